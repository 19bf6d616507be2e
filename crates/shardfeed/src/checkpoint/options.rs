use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_plan::checkpoint::RunLimits;

use super::workers::memory_budget;

/// How a checkpoint is read.
#[derive(Clone)]
pub struct ReadOptions {
    /// On several threads. Otherwise item after item, whole, as the stock reader does it: slow, simple, and what the other
    /// way is compared with.
    pub use_parallel: bool,
    /// How many threads; chosen by cores, work and memory if nobody says.
    pub num_workers: Option<usize>,
    /// Compare the checksums that were stored with the items. Of items that are wanted in part, the rest is read for it, too.
    pub verify: bool,
    /// Bytes that may be held besides the destinations; four fifths of what is available if nobody says.
    pub memory_budget: Option<u64>,
    /// Is told how far a read is, on the threads that read.
    pub progress: Option<TellProgress>,
    /// Ends the read early, if somebody wishes so.
    pub stop: Option<Stop>,
    /// Whether the system's cache is passed by.
    pub direct_io: DirectIo,
    /// How large reads are, and when several become one.
    pub limits: RunLimits,
}

impl ReadOptions {
    /// Bytes that may be held: as many as was said, or four fifths of what is available.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_budget.unwrap_or_else(memory_budget)
    }

    /// The same for somebody who reads all pieces of a tensor, one after another: nothing for which an item would be read as a whole for each of
    /// its pieces.
    pub(crate) fn of_pieces(&self) -> Self {
        Self { use_parallel: true, progress: None, ..self.clone() }
    }
}

/// A wish that a read end early, which any thread may utter. What is under way then fails within milliseconds, or as soon as the system is
/// done with the portion of at most 4 MiB that it was asked for by each thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Nobody wishes so yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all reads that look at it.
    pub fn stop(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.0.load(Relaxed) {
            Err("the read was stopped before it was finished".to_owned())
        } else {
            Ok(())
        }
    }
}

/// Is told how far a read is.
pub type TellProgress = Arc<dyn Fn(ReadProgress<'_>) + Send + Sync>;

/// Tells of bytes that several threads bring. Calls come one after another, and never go back.
pub(crate) struct Telling<'a> {
    bytes: Mutex<u64>,
    bytes_total: u64,
    tell: Option<&'a TellProgress>,
}

impl<'a> Telling<'a> {
    pub(crate) fn new(bytes_total: u64, tell: Option<&'a TellProgress>) -> Self {
        Self { bytes: Mutex::new(0), bytes_total, tell }
    }

    /// So many more bytes are where they belong, and with them `finished`, if something is.
    pub(crate) fn came(&self, bytes: u64, finished: Option<&str>) {
        let Some(tell) = self.tell else { return };
        // Held while it is told: a thread that overtook another would say more before less.
        let mut done = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // Chunks that overlap bring some bytes twice.
        *done = done.saturating_add(bytes).min(self.bytes_total);
        tell(ReadProgress { bytes: *done, bytes_total: self.bytes_total, finished });
    }
}

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
            stop: None,
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
            .field("stop", &self.stop)
            .field("direct_io", &self.direct_io)
            .field("limits", &self.limits)
            .finish()
    }
}
