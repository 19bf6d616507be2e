use std::path::{Path, PathBuf};
use std::time::Duration;

use shardfeed_plan::{PartitionStrategy, Rank, RankError};

use crate::{Error, Result};

/// How one worker of a job streams its samples.
///
/// ```
/// use shardfeed::{PartitionStrategy, StreamingConfig};
///
/// let config = StreamingConfig::new(4, 0)? // four workers, of which this is the first
///     .with_partition_strategy(PartitionStrategy::Contiguous)
///     .with_shuffle_seed(42)
///     .with_checkpointing(1000);
/// config.validate()?;
/// # Ok::<(), shardfeed::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StreamingConfig {
    rank: Rank,
    strategy: PartitionStrategy,
    prefetch_buffer_size: usize,
    prefetch_threads: usize,
    shuffle_seed: Option<u64>,
    checkpoint_interval: Option<usize>,
    checkpoint_path: Option<PathBuf>,
    replicas: usize,
    dynamic_balancing: bool,
    lease: Duration,
}

/// Samples that may be loaded ahead. They are held in memory, whatever they take.
const PREFETCH_MAX: usize = 1 << 24;
const PREFETCH_THREADS_MAX: usize = 1024;
const LEASE_MIN: Duration = Duration::from_millis(100);
const LEASE_MAX: Duration = Duration::from_hours(1);
/// Where no strategy says otherwise.
const THRESHOLD: f64 = 0.2;

impl StreamingConfig {
    /// Worker `rank` of `world_size`. By default samples are dealt in turn, not shuffled, and 16 of them loaded ahead.
    pub fn new(world_size: usize, rank: usize) -> Result<Self> {
        if rank >= world_size && world_size > 0 {
            return Err(RankError::OutOfRange { index: rank, world_size }.into());
        }
        let workers = u32::try_from(world_size).map_err(|_| RankError::TooManyRanks { world_size })?;
        Ok(Self {
            rank: Rank::new(rank as u32, workers)?,
            strategy: PartitionStrategy::default(),
            prefetch_buffer_size: 16,
            prefetch_threads: 1,
            shuffle_seed: None,
            checkpoint_interval: None,
            checkpoint_path: None,
            replicas: 0,
            dynamic_balancing: false,
            lease: Duration::from_secs(15),
        })
    }

    /// How samples are divided among workers.
    pub fn with_partition_strategy(mut self, strategy: PartitionStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// How many samples are loaded in the background before they are asked for; with 0, none. Which samples come, and
    /// their order, do not depend on it.
    pub fn with_prefetch_buffer_size(mut self, samples: usize) -> Self {
        self.prefetch_buffer_size = samples;
        self
    }

    /// How many threads load samples in the background; 1 by default.
    pub fn with_prefetch_threads(mut self, threads: usize) -> Self {
        self.prefetch_threads = threads;
        self
    }

    /// Shuffles samples, anew in every epoch.
    pub fn with_shuffle_seed(mut self, seed: u64) -> Self {
        self.shuffle_seed = Some(seed);
        self
    }

    /// Takes a checkpoint every so many samples, and hands it to the coordinator, and to the file, if there are any.
    pub fn with_checkpointing(mut self, interval: usize) -> Self {
        self.checkpoint_interval = Some(interval);
        self
    }

    /// Writes checkpoints to this file, which then holds the last or the one before it, never half of one. Every worker
    /// needs a file of its own.
    pub fn with_checkpoint_path(mut self, path: impl AsRef<Path>) -> Self {
        self.checkpoint_path = Some(path.as_ref().to_owned());
        self
    }

    /// How many of the other workers stand by to take over what a worker leaves behind that fails: with a coordinator. They go on
    /// where it committed last. 0: nobody does. Who stands by for hashed or stratified samples keeps a list of them.
    pub fn with_fault_tolerance(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Whether what is left is dealt again when workers turn out to be unequally fast: with a coordinator. An adaptive strategy says
    /// how unequally; others do so when the coefficient of variation is above 0.2.
    pub fn with_dynamic_balancing(mut self, is_on: bool) -> Self {
        self.dynamic_balancing = is_on;
        self
    }

    /// A worker that is not heard of for so long has failed; 15 seconds by default. It makes itself heard five times as often, and
    /// hands out nothing in the last fifth, unless it was.
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Refuses what cannot be meant. A loader does so by itself.
    pub fn validate(&self) -> Result<()> {
        self.strategy.validate(self.rank.world_size())?;
        let refuse = |reason: String| Err(Error::Invalid(reason));
        if self.checkpoint_interval == Some(0) {
            return refuse(
                "a checkpoint every 0 samples; give an interval of at least 1, or leave it out".to_owned(),
            );
        }
        if self.prefetch_buffer_size > PREFETCH_MAX {
            let given = self.prefetch_buffer_size;
            return refuse(format!("a prefetch buffer of {given} samples; at most {PREFETCH_MAX} are kept"));
        }
        if !(1..=PREFETCH_THREADS_MAX).contains(&self.prefetch_threads) {
            let given = self.prefetch_threads;
            return refuse(format!("{given} prefetch threads; give 1 to {PREFETCH_THREADS_MAX}"));
        }
        if !(LEASE_MIN..=LEASE_MAX).contains(&self.lease) {
            let given = self.lease.as_millis();
            return refuse(format!("a lease of {given} ms; give 100 ms to an hour"));
        }
        if self.replicas > self.rank.world_size() as usize {
            let (given, workers) = (self.replicas, self.rank.world_size());
            return refuse(format!(
                "{given} replicas of each partition, but {workers} workers to hold them; give fewer"
            ));
        }
        Ok(())
    }

    /// The worker.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// See [`with_partition_strategy`](Self::with_partition_strategy).
    pub fn partition_strategy(&self) -> &PartitionStrategy {
        &self.strategy
    }

    /// See [`with_prefetch_buffer_size`](Self::with_prefetch_buffer_size).
    pub fn prefetch_buffer_size(&self) -> usize {
        self.prefetch_buffer_size
    }

    /// See [`with_prefetch_threads`](Self::with_prefetch_threads).
    pub fn prefetch_threads(&self) -> usize {
        self.prefetch_threads
    }

    /// See [`with_shuffle_seed`](Self::with_shuffle_seed).
    pub fn shuffle_seed(&self) -> Option<u64> {
        self.shuffle_seed
    }

    /// See [`with_checkpointing`](Self::with_checkpointing).
    pub fn checkpoint_interval(&self) -> Option<usize> {
        self.checkpoint_interval
    }

    /// See [`with_checkpoint_path`](Self::with_checkpoint_path).
    pub fn checkpoint_path(&self) -> Option<&Path> {
        self.checkpoint_path.as_deref()
    }

    /// See [`with_fault_tolerance`](Self::with_fault_tolerance).
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// See [`with_dynamic_balancing`](Self::with_dynamic_balancing).
    pub fn dynamic_balancing(&self) -> bool {
        self.dynamic_balancing
    }

    /// See [`with_lease`](Self::with_lease).
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// What is left is dealt again when the coefficient of variation is above this; `None`: never.
    pub(crate) fn threshold(&self) -> Option<f64> {
        self.dynamic_balancing.then(|| self.strategy.rebalance_threshold().unwrap_or(THRESHOLD))
    }

    /// Whether samples are leased to workers, or theirs for good.
    pub(crate) fn is_leased(&self) -> bool {
        self.replicas > 0 || self.dynamic_balancing
    }

    /// Fewer samples are not moved from one worker to another.
    pub(crate) fn unit(&self) -> u64 {
        self.checkpoint_interval.unwrap_or(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_numbers() {
        let says = |config: Result<StreamingConfig>, words: &str| {
            let message = config.and_then(|config| config.validate()).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        };
        says(StreamingConfig::new(4, 4), "rank 4 of world size 4");
        says(StreamingConfig::new(0, 0), "world size is 0");
        says(StreamingConfig::new(usize::MAX, 1), "more than 4294967295");
        let config = || StreamingConfig::new(4, 0).unwrap();
        says(Ok(config().with_checkpointing(0)), "every 0 samples");
        says(Ok(config().with_prefetch_buffer_size(usize::MAX)), "at most 16777216");
        says(Ok(config().with_prefetch_threads(0)), "0 prefetch threads");
        says(Ok(config().with_fault_tolerance(5)), "5 replicas");
        says(Ok(config().with_lease(Duration::ZERO)), "a lease of 0 ms");
        let strategy = PartitionStrategy::RangeBased { ranges: vec![(0, 10)] };
        says(Ok(config().with_partition_strategy(strategy)), "1 ranges for 4 workers");
        config()
            .with_fault_tolerance(4)
            .with_checkpointing(1)
            .with_prefetch_buffer_size(0)
            .validate()
            .unwrap();
    }
}
