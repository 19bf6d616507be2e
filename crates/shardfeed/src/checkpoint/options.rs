use std::fmt;
use std::sync::Arc;

use shardfeed_plan::checkpoint::RunLimits;

/// How a checkpoint is read.
#[derive(Clone)]
pub struct ReadOptions {
    /// On several threads. Otherwise item after item, whole, as the stock reader does it: slow, simple, and what the other
    /// way is compared with.
    pub use_parallel: bool,
    /// How many threads; chosen by cores, work and memory if nobody says.
    pub num_workers: Option<usize>,
    /// Compare the checksums that were stored with the items. Costs a second look at every byte.
    pub verify: bool,
    /// Bytes that may be held besides the destinations; four fifths of what is available if nobody says.
    pub memory_budget: Option<u64>,
    /// Is told how far a read is, on the threads that read.
    pub progress: Option<TellProgress>,
    /// Whether the system's cache is passed by.
    pub direct_io: DirectIo,
    /// How large reads are, and when several become one.
    pub limits: RunLimits,
}

/// Is told how far a read is.
pub type TellProgress = Arc<dyn Fn(ReadProgress<'_>) + Send + Sync>;

/// Whether the system's cache is passed by. Large ranges that are not in it come some times as fast from a fast disk
/// without it. Where a file system refuses, it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// For large ranges that are not in the cache.
    #[default]
    Auto,
    /// For all large ranges.
    Always,
    /// Never.
    Never,
}

/// How far a read is.
#[derive(Clone, Copy, Debug)]
pub struct ReadProgress<'a> {
    /// Bytes that are where they belong.
    pub bytes: u64,
    /// Bytes there will be.
    pub bytes_total: u64,
    /// What has just been finished.
    pub finished: Option<&'a str>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            use_parallel: true,
            num_workers: None,
            verify: false,
            memory_budget: None,
            progress: None,
            direct_io: DirectIo::Auto,
            limits: RunLimits::default(),
        }
    }
}

impl fmt::Debug for ReadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOptions")
            .field("use_parallel", &self.use_parallel)
            .field("num_workers", &self.num_workers)
            .field("verify", &self.verify)
            .field("memory_budget", &self.memory_budget)
            .field("progress", &self.progress.is_some())
            .field("direct_io", &self.direct_io)
            .field("limits", &self.limits)
            .finish()
    }
}
