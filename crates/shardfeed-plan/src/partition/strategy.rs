use serde::{Deserialize, Serialize};

/// How samples are divided among the workers of a job. All are disjoint and complete, for every length and world size.
///
/// With a shuffle seed the order of all samples is shuffled first and divided then; ranges are of the original indexes,
/// and shuffled within.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionStrategy {
    /// Sample `i` of the order goes to worker `i mod world_size`.
    #[default]
    RoundRobin,
    /// Blocks of the order, one after another; their sizes differ by at most one.
    Contiguous,
    /// By a hash of the sample's key, or of its index if it has none, that is the same on every platform and release:
    /// partition = hash mod max(`num_partitions`, world size), worker = partition mod world size. If `num_partitions` is a
    /// multiple of both world sizes, then from 8 workers to 4 each keeps what it has, and from 4 to 8 half of it.
    HashBased {
        /// Partitions to hash into.
        num_partitions: usize,
        /// Makes another division of the same samples.
        hash_seed: u64,
    },
    /// Half-open ranges of indexes, one for each worker, that together are all samples.
    RangeBased {
        /// From, up to and without.
        ranges: Vec<(usize, usize)>,
    },
    /// Every worker has its share of every class, exact to within one sample. Needs a data set with labels.
    Stratified {
        /// Labels go from 0 to one less.
        num_classes: usize,
    },
    /// Begins as another strategy; what is left is dealt again in proportion to throughput when that differs too much
    /// between workers.
    Adaptive {
        /// The strategy to begin with.
        base_strategy: Box<PartitionStrategy>,
        /// The coefficient of variation of the workers' throughputs from which on samples are dealt again.
        rebalance_threshold: f64,
    },
}

/// What a strategy has to know of every sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// Its key, if samples have keys.
    Keys,
    /// Its label.
    Labels,
}

/// Why samples cannot be divided as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// Hashing into nothing.
    #[error("num_partitions is 0; choose at least 1, or several for each worker")]
    NoPartitions,
    /// No class at all.
    #[error("num_classes is 0; say how many classes the labels have")]
    NoClasses,
    /// More classes than are counted.
    #[error("num_classes is {given}, at most {max} are counted; use fewer, coarser classes")]
    TooManyClasses {
        /// How many were given.
        given: usize,
        /// How many are counted.
        max: usize,
    },
    /// A threshold that can never, or not sensibly, be passed.
    #[error(
        "rebalance_threshold is {given}; it is a coefficient of variation, such as 0.2: finite, and not negative"
    )]
    Threshold {
        /// What was given.
        given: f64,
    },
    /// An adaptive strategy that begins as an adaptive one.
    #[error("the base strategy of an adaptive one is adaptive itself; give the one that it begins with")]
    NestedAdaptive,
    /// Not one range for each worker.
    #[error("{ranges} ranges for {world_size} workers; give one for each")]
    RangeCount {
        /// Ranges there are.
        ranges: usize,
        /// Workers there are.
        world_size: u32,
    },
    /// A range that ends before it begins.
    #[error("the range of worker {worker} is reversed: {start}..{end}; give the smaller number first")]
    RangeReversed {
        /// Whose it is.
        worker: usize,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
    },
    /// A range of samples that do not exist.
    #[error(
        "the range of worker {worker}, {start}..{end}, passes the end: there are {len} samples; let it end there"
    )]
    RangePastEnd {
        /// Whose it is.
        worker: usize,
        /// Where it begins.
        start: usize,
        /// Where it ends.
        end: usize,
        /// Samples there are.
        len: u64,
    },
    /// Samples with two owners.
    #[error(
        "samples {start}..{end} are in the ranges of worker {first} and of worker {second}; give each to one"
    )]
    RangesOverlap {
        /// The first of them.
        start: usize,
        /// One past the last.
        end: usize,
        /// One owner.
        first: usize,
        /// The other.
        second: usize,
    },
    /// Samples without an owner.
    #[error("samples {start}..{end} of {len} are in no range; give them to a worker")]
    RangesIncomplete {
        /// The first of them.
        start: u64,
        /// One past the last.
        end: u64,
        /// Samples there are.
        len: u64,
    },
    /// A sample without a label.
    #[error(
        "sample {row} has no label, and strata are made of labels; give the data set labels, or choose another strategy"
    )]
    NoLabel {
        /// Its index.
        row: u64,
    },
    /// Owners or classes that were made for another division.
    #[error(
        "the {facts} are of another division: their {what} is {theirs}, here it is {ours}; make them of the same samples, strategy \
         and world size"
    )]
    Facts {
        /// Which they are.
        facts: &'static str,
        /// What differs.
        what: &'static str,
        /// What they were made for.
        theirs: u64,
        /// What they are used for.
        ours: u64,
    },
    /// More samples than a table is kept of.
    #[error(
        "{len} samples to be hashed or stratified: a table is kept of them, of at most {SAMPLES_WITH_TABLE_MAX}; see whether there are \
         that many, or choose RoundRobin, Contiguous or RangeBased, which keep none"
    )]
    TooManySamples {
        /// How many there are.
        len: u64,
    },
    /// Samples dealt that nobody has.
    #[error(
        "samples {start}..{end} of worker {origin} are dealt, which has {len}; the deal belongs to another run"
    )]
    Dealt {
        /// Whose they should have been at first.
        origin: u32,
        /// The first.
        start: u64,
        /// One past the last.
        end: u64,
        /// How many it has; none, if there is no such worker.
        len: u64,
    },
    /// A label that is no class.
    #[error("sample {row} has label {label}, where labels go from 0 to {}; correct it, or num_classes", num_classes - 1)]
    Label {
        /// Its index.
        row: u64,
        /// What it has.
        label: u64,
        /// Classes there are.
        num_classes: usize,
    },
}

/// Four bytes are kept of each, by the worker that has it. More may be claimed by a file than anybody has memory for.
pub const SAMPLES_WITH_TABLE_MAX: u64 = 1 << 32;

/// A count is kept for each; what is above is a mistake.
pub(super) const CLASSES_MAX: usize = 1 << 24;

impl PartitionStrategy {
    /// When an adaptive strategy deals again.
    pub fn rebalance_threshold(&self) -> Option<f64> {
        match self {
            Self::Adaptive { rebalance_threshold, .. } => Some(*rebalance_threshold),
            _ => None,
        }
    }

    /// Checks what can be checked without the data.
    pub fn validate(&self, world_size: u32) -> Result<(), PartitionError> {
        match self {
            Self::HashBased { num_partitions: 0, .. } => Err(PartitionError::NoPartitions),
            Self::RangeBased { ranges } if ranges.len() != world_size as usize => {
                Err(PartitionError::RangeCount { ranges: ranges.len(), world_size })
            }
            Self::RangeBased { ranges } => super::ranges::check_each(ranges),
            Self::Stratified { num_classes: 0 } => Err(PartitionError::NoClasses),
            &Self::Stratified { num_classes } if num_classes > CLASSES_MAX => {
                Err(PartitionError::TooManyClasses { given: num_classes, max: CLASSES_MAX })
            }
            &Self::Adaptive { rebalance_threshold: given, .. } if !(0.0..f64::INFINITY).contains(&given) => {
                Err(PartitionError::Threshold { given })
            }
            Self::Adaptive { base_strategy, .. } => match **base_strategy {
                Self::Adaptive { .. } => Err(PartitionError::NestedAdaptive),
                ref base => base.validate(world_size),
            },
            Self::RoundRobin | Self::Contiguous | Self::HashBased { .. } | Self::Stratified { .. } => Ok(()),
        }
    }

    /// Refuses more samples than a table can be kept of, where one is: before each of them is looked at.
    pub fn validate_len(&self, len: u64) -> Result<(), PartitionError> {
        if self.needs() == Needs::Nothing || len <= SAMPLES_WITH_TABLE_MAX {
            return Ok(());
        }
        Err(PartitionError::TooManySamples { len })
    }

    /// The strategy that samples are divided by until they are dealt again.
    pub fn base(&self) -> &Self {
        match self {
            Self::Adaptive { base_strategy, .. } => base_strategy,
            other => other,
        }
    }

    /// What has to be known of every sample.
    pub fn needs(&self) -> Needs {
        match self.base() {
            Self::HashBased { .. } => Needs::Keys,
            Self::Stratified { .. } => Needs::Labels,
            _ => Needs::Nothing,
        }
    }
}
