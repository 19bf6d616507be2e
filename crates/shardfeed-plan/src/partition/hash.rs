use super::{PartitionError, Table};
use crate::{key, mix};

/// Who owns each sample, by the hash of its key. Made of all keys, in order.
#[derive(Clone, Debug)]
pub struct Owners {
    workers: Table,
    partitions: u64,
    hash_seed: u64,
    world_size: u32,
    fingerprint: u64,
}

impl Owners {
    /// Of no sample yet.
    pub fn new(num_partitions: usize, hash_seed: u64, world_size: u32) -> Self {
        let partitions = partitions(num_partitions, world_size);
        let workers = Table::for_numbers_below(world_size.into());
        Self { workers, partitions, hash_seed, world_size, fingerprint: 1 }
    }

    /// The next sample, which may have a key.
    pub fn push(&mut self, key: Option<&[u8]>) {
        let hash = match key {
            Some(key) => hash_of_key(key, self.hash_seed),
            None => hash_of_index(self.len(), self.hash_seed),
        };
        self.workers.push(worker(hash, self.partitions, self.world_size).into());
        self.fingerprint = mix(self.fingerprint ^ hash);
    }

    /// Tells these keys from others.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// That was the last: no more memory than they need.
    pub fn shrink_to_fit(&mut self) {
        self.workers.shrink_to_fit();
    }

    /// Samples so far.
    pub fn len(&self) -> u64 {
        self.workers.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses those of another division, such as `other` of no sample yet.
    pub(super) fn check(&self, len: u64, other: &Self) -> Result<(), PartitionError> {
        for (what, theirs, ours) in [
            ("world size", self.world_size.into(), other.world_size.into()),
            ("number of partitions", self.partitions, other.partitions),
            ("hash seed", self.hash_seed, other.hash_seed),
            ("number of samples", self.len(), len),
        ] {
            if theirs != ours {
                return Err(PartitionError::Facts { facts: "owners", what, theirs, ours });
            }
        }
        Ok(())
    }

    pub(super) fn owner(&self, index: u64) -> u32 {
        self.workers.get(index) as u32
    }
}

/// The hash of a sample without a key.
pub fn hash_of_index(index: u64, hash_seed: u64) -> u64 {
    key(&[hash_seed, index])
}

/// The hash of a key: of its length, and of its bytes as little-endian words, the last filled up with zeros.
pub fn hash_of_key(bytes: &[u8], hash_seed: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let hash = words
        .iter()
        .fold(key(&[hash_seed, bytes.len() as u64]), |hash, word| key(&[hash, u64::from_le_bytes(*word)]));
    if rest.is_empty() { hash } else { key(&[hash, u64::from_le_bytes(last)]) }
}

pub(super) fn partitions(num_partitions: usize, world_size: u32) -> u64 {
    (num_partitions as u64).max(world_size.into())
}

pub(super) fn worker(hash: u64, partitions: u64, world_size: u32) -> u32 {
    (hash % partitions % u64::from(world_size)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_golden() {
        assert_eq!(hash_of_index(0, 42), 17_236_458_464_334_926_649);
        assert_eq!(hash_of_key(b"", 42), 17_236_458_464_334_926_649);
        assert_eq!(hash_of_key(b"doc-17", 42), 1_526_275_099_823_311_897);
        assert_eq!(hash_of_key(b"a longer key of some words", 42), 6_298_819_343_253_399_954);
    }

    #[test]
    fn keys_that_are_filled_up_are_not_equal_to_others() {
        let hashes = [&b"a"[..], b"a\0", b"a\0\0\0\0\0\0\0", b"", b"\0"].map(|key| hash_of_key(key, 1));
        assert!((0..5).all(|i| (0..i).all(|j| hashes[i] != hashes[j])), "{hashes:?}");
    }

    #[test]
    fn workers_own_about_equally_many() {
        let mut owners = Owners::new(64, 7, 8);
        (0..80_000_u32).for_each(|id| owners.push(Some(&id.to_le_bytes())));
        let mut counts = [0; 8];
        (0..80_000).for_each(|index| counts[owners.owner(index) as usize] += 1);
        // 10,000 expected, standard deviation 94.
        assert!(counts.iter().all(|count| (9500..10_500).contains(count)), "{counts:?}");
    }
}
