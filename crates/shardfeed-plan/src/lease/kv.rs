use std::collections::BTreeMap;

use super::key::{Key, Keys};
use super::record::Value;

/// What the coordinator needs of a store: numbers every change, compares before it writes, forgets what hangs on a lease that
/// ended. This one is memory, and has no clock of its own: times are milliseconds from anywhere.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The number of the last change.
    revision: u64,
    entries: BTreeMap<Key, Entry>,
    leases: BTreeMap<u64, Lease>,
    leases_granted: u64,
}

/// What is kept under a key, and when it came there.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// What is there.
    pub value: Value,
    /// The change that created it, and the last that touched it.
    pub created: u64,
    /// See `created`.
    pub modified: u64,
    /// It vanishes with this lease; 0 if with none.
    pub lease: u64,
}

/// A write that happens if everything is as it says, or else does not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Txn {
    /// What must be so.
    pub compares: Vec<Compare>,
    /// What is written then: a key, what, and the lease that it vanishes with (0: none).
    pub puts: Vec<(Key, Value, u64)>,
    /// What is removed.
    pub deletes: Vec<Key>,
}

/// What must be so for a [`Txn`] to happen. A key that is not there was created and modified by change 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// A key was created by this change.
    Created(Key, u64),
    /// A key was modified last by this change.
    Modified(Key, u64),
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl_ms: u64,
    ends_ms: u64,
}

/// A lease that ended, or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGone;

impl Memory {
    /// A lease that ends so much later, unless it is kept alive.
    pub fn grant(&mut self, now_ms: u64, ttl_ms: u64) -> u64 {
        self.expire(now_ms);
        self.leases_granted += 1;
        self.leases.insert(self.leases_granted, Lease { ttl_ms, ends_ms: now_ms + ttl_ms });
        self.leases_granted
    }

    /// It ends as much later than now as it was granted for.
    pub fn keep_alive(&mut self, now_ms: u64, lease: u64) -> Result<(), LeaseGone> {
        self.expire(now_ms);
        let lease = self.leases.get_mut(&lease).ok_or(LeaseGone)?;
        lease.ends_ms = now_ms + lease.ttl_ms;
        Ok(())
    }

    /// It ends now.
    pub fn revoke(&mut self, now_ms: u64, lease: u64) {
        self.expire(now_ms);
        if self.leases.remove(&lease).is_some() {
            self.forget(lease);
        }
    }

    /// What a lease was granted for, and how much of it is left.
    pub fn time_to_live(&mut self, now_ms: u64, lease: u64) -> Option<(u64, u64)> {
        self.expire(now_ms);
        self.leases.get(&lease).map(|lease| (lease.ttl_ms, lease.ends_ms - now_ms))
    }

    /// What is there, in the order of keys, and the number of the last change.
    pub fn read(&mut self, now_ms: u64, keys: &[Keys]) -> (u64, Vec<Entry>) {
        self.expire(now_ms);
        let found = keys.iter().flat_map(|keys| {
            let (first, last) = keys.bounds();
            self.entries.range(first..=last).map(|(_, entry)| entry.clone())
        });
        let found = found.collect();
        (self.revision, found)
    }

    /// Writes, and returns the number of the change; `None` if something is not as the write says.
    pub fn apply(&mut self, now_ms: u64, txn: &Txn) -> Result<Option<u64>, LeaseGone> {
        self.expire(now_ms);
        if !txn.compares.iter().all(|compare| self.holds(compare)) {
            return Ok(None);
        }
        if txn.puts.iter().any(|(_, _, lease)| *lease != 0 && !self.leases.contains_key(lease)) {
            return Err(LeaseGone);
        }
        // What changes nothing is no change.
        let changes = !txn.puts.is_empty() || txn.deletes.iter().any(|key| self.entries.contains_key(key));
        self.revision += u64::from(changes);
        for key in &txn.deletes {
            self.entries.remove(key);
        }
        for (key, value, lease) in &txn.puts {
            let created = self.entries.get(key).map_or(self.revision, |entry| entry.created);
            let (value, lease, modified) = (value.clone(), *lease, self.revision);
            self.entries.insert(*key, Entry { key: *key, value, created, modified, lease });
        }
        Ok(Some(self.revision))
    }

    /// When the next lease ends, unless it is kept alive.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.leases.values().map(|lease| lease.ends_ms).min()
    }

    /// All leases begin anew, as when another server becomes the one that counts their time.
    pub fn extend_leases(&mut self, now_ms: u64) {
        self.leases.values_mut().for_each(|lease| lease.ends_ms = lease.ends_ms.max(now_ms + lease.ttl_ms));
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Created(key, created) => {
                self.entries.get(key).map_or(0, |entry| entry.created) == *created
            }
            Compare::Modified(key, modified) => {
                self.entries.get(key).map_or(0, |entry| entry.modified) == *modified
            }
        }
    }

    /// Ends the leases whose time has come. True if something vanished.
    pub fn expire(&mut self, now_ms: u64) -> bool {
        let before = self.revision;
        while let Some(lease) =
            self.leases.iter().find(|(_, lease)| lease.ends_ms <= now_ms).map(|(id, _)| *id)
        {
            self.leases.remove(&lease);
            self.forget(lease);
        }
        self.revision != before
    }

    fn forget(&mut self, lease: u64) {
        let len = self.entries.len();
        self.entries.retain(|_, entry| entry.lease != lease);
        self.revision += u64::from(self.entries.len() != len);
    }
}
