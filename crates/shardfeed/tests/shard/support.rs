use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use shardfeed::{Dataset, Error, PartitionStrategy, Result, StreamingConfig, StreamingShardLoader, mix};

/// Samples that are their own index.
#[derive(Debug, Default)]
pub struct Numbers {
    pub len: usize,
    pub num_classes: u64,
    pub has_keys: bool,
    /// How long each takes.
    pub delay: Duration,
    /// Every so many take twenty times as long.
    pub slow_every: Option<usize>,
    /// Every so many come from another machine.
    pub remote_every: Option<usize>,
    /// This one cannot be loaded, as long as that is set.
    pub broken: Option<usize>,
    pub is_broken: AtomicBool,
    /// Calls of `get`.
    pub loads: AtomicU64,
}

impl Numbers {
    pub fn new(len: usize) -> Self {
        Self { len, num_classes: 5, ..Self::default() }
    }
}

impl Dataset for Numbers {
    type Sample = usize;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<usize> {
        self.loads.fetch_add(1, Relaxed);
        if !self.delay.is_zero() {
            let is_slow = self.slow_every.is_some_and(|every| index.is_multiple_of(every));
            std::thread::sleep(if is_slow { self.delay * 20 } else { self.delay });
        }
        if self.broken == Some(index) && self.is_broken.load(Relaxed) {
            return Err(Error::Invalid(format!("sample {index} is broken")));
        }
        Ok(index)
    }

    fn label(&self, index: usize) -> Result<Option<u64>> {
        Ok((self.num_classes > 0).then(|| mix(index as u64) % self.num_classes))
    }

    fn key(&self, index: usize) -> Result<Option<Cow<'_, [u8]>>> {
        Ok(self.has_keys.then(|| Cow::Owned((index / 3).to_le_bytes().to_vec())))
    }

    fn is_remote(&self, index: usize) -> bool {
        self.remote_every.is_some_and(|every| index.is_multiple_of(every))
    }
}

/// One of every kind.
pub fn strategies(len: usize, world_size: usize) -> Vec<PartitionStrategy> {
    let cut = |worker: usize| len * worker / world_size;
    let base = |strategy| PartitionStrategy::Adaptive {
        base_strategy: Box::new(strategy),
        rebalance_threshold: 0.1,
    };
    vec![
        PartitionStrategy::RoundRobin,
        PartitionStrategy::Contiguous,
        PartitionStrategy::HashBased { num_partitions: 16, hash_seed: 42 },
        PartitionStrategy::RangeBased {
            ranges: (0..world_size).rev().map(|worker| (cut(worker), cut(worker + 1))).collect(),
        },
        PartitionStrategy::Stratified { num_classes: 5 },
        base(PartitionStrategy::RoundRobin),
        base(PartitionStrategy::Stratified { num_classes: 5 }),
    ]
}

pub fn config(world_size: usize, rank: usize) -> StreamingConfig {
    StreamingConfig::new(world_size, rank).unwrap()
}

/// What is left of the epoch.
pub fn rest<D: Dataset>(loader: &StreamingShardLoader<D>) -> Vec<D::Sample> {
    std::iter::from_fn(|| loader.next().unwrap()).collect()
}

/// The next samples, of which there are as many.
pub fn take<D: Dataset>(loader: &StreamingShardLoader<D>, count: usize) -> Vec<D::Sample> {
    (0..count).map(|_| loader.next().unwrap().unwrap()).collect()
}
