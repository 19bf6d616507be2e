use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::ReadCounts;

/// What a loader did since it was made. Always counted: it costs two looks at the clock for each of a lane's turns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoaderStats {
    /// Batches handed out.
    pub batches: u64,
    /// Tokens in them, padding left out.
    pub tokens: u64,
    /// From the first call for a batch to the last batch handed out.
    pub elapsed: Duration,
    /// How much of that the trainer spent waiting for a batch.
    pub stalled: Duration,
    /// Time spent reading, decoding and filling batches, summed over threads.
    pub decoding: Duration,
    /// Batches that are ready now.
    pub queue_depth: usize,
    /// What was read of the files, by everybody who shares the data set.
    pub read: ReadCounts,
}

impl LoaderStats {
    /// Tokens per second, over the whole time; 0 before the first batch.
    pub fn tokens_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 }
    }
}

/// What engines of a loader add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    decoding_ns: AtomicU64,
}

impl Counters {
    pub fn add_decoding(&self, took: Duration) {
        self.decoding_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    pub fn decoding(&self) -> Duration {
        Duration::from_nanos(self.decoding_ns.load(Relaxed))
    }
}
