use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use shardfeed_plan::lease::{Answer, Key, Keys, LeaseGone, Memory, Request};

use super::clock::now_ms;
use super::store::{Store, StoreError, Wake, Watch, is_watched};

/// A store in the process.
#[derive(Default)]
pub(crate) struct LocalStore {
    memory: Mutex<Memory>,
    watches: Mutex<Vec<Weak<Watcher>>>,
}

struct Watcher {
    keys: Keys,
    wake: Wake,
}

impl LocalStore {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who watch one of these keys; all, if nobody knows which have changed.
    fn tell(&self, changed: Option<&[Key]>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        let there: Vec<Arc<Watcher>> = watches.iter().filter_map(Weak::upgrade).collect();
        drop(watches);
        for watcher in there {
            if changed.is_none_or(|keys| keys.iter().any(|key| is_watched(&watcher.keys, key))) {
                (watcher.wake)();
            }
        }
    }
}

impl Store for LocalStore {
    fn ask(&self, request: &Request, _patience: Duration) -> Result<Answer, StoreError> {
        let now = now_ms();
        let mut memory = self.lock();
        let has_expired = memory.expire(now);
        let mut changed = None;
        let answer = match request {
            Request::Grant(ttl) => Answer::Granted(memory.grant(now, *ttl)),
            Request::KeepAlive(lease) => match memory.keep_alive(now, *lease) {
                Ok(()) => Answer::Alive,
                Err(LeaseGone) => Answer::LeaseGone,
            },
            Request::Revoke(lease) => {
                memory.revoke(now, *lease);
                changed = Some(None);
                Answer::Alive
            }
            Request::Read(keys) => Answer::Read(memory.read(now, keys).1),
            Request::Write(txn) => match memory.apply(now, txn) {
                Ok(Some(change)) => {
                    let puts = txn.puts.iter().map(|(key, ..)| *key);
                    changed = Some(Some(puts.chain(txn.deletes.iter().copied()).collect::<Vec<_>>()));
                    Answer::Applied(change)
                }
                Ok(None) => Answer::Refused,
                Err(LeaseGone) => Answer::LeaseGone,
            },
        };
        drop(memory);
        if has_expired {
            self.tell(None);
        } else if let Some(changed) = changed {
            self.tell(changed.as_deref());
        }
        Ok(answer)
    }

    fn time_to_live(&self, lease: u64, _patience: Duration) -> Result<Option<(u64, u64)>, StoreError> {
        Ok(self.lock().time_to_live(now_ms(), lease))
    }

    fn modified(&self, key: &Key, _patience: Duration) -> Result<u64, StoreError> {
        let (_, entries) = self.lock().read(now_ms(), &[Keys::One(*key)]);
        Ok(entries.first().map_or(0, |entry| entry.modified))
    }

    fn watch(&self, keys: Keys, wake: Wake) -> Watch {
        let watcher = Arc::new(Watcher { keys, wake });
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&watcher));
        Box::new(watcher)
    }

    fn is_local(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "the coordinator in this process".to_owned()
    }
}
