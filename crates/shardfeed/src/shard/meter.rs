use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::queue::Counts;

/// What a shard loader did so far. Every number is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StreamingStats {
    /// Samples handed out.
    pub samples_loaded: u64,
    /// Of those, samples of this worker's own partition, from this machine.
    pub local_samples: u64,
    /// Of those, samples that were another worker's at first, or come from another machine.
    pub remote_samples: u64,
    /// Samples that were loaded before they were asked for.
    pub prefetch_hits: u64,
    /// Samples that were not: the caller waited for them, or loaded them.
    pub prefetch_misses: u64,
    /// What `Dataset::get` takes, on average, in microseconds. Where it takes less than one, every 64th call is
    /// measured.
    pub avg_load_time_us: f64,
    /// Checkpoints taken.
    pub num_checkpoints: u64,
    /// The part of the time since the first call of `next` in which this worker did not wait for samples: 1 if it never
    /// did. The waits of several callers add up.
    pub worker_utilization: f64,
}

/// Times loads and waits. A clock costs as much as a small sample, so it is not looked at for each of them.
#[derive(Debug, Default)]
pub(super) struct Meter {
    loads: Timed,
    /// Waits of callers for those who load ahead.
    waits: Timed,
    is_slow: AtomicBool,
    started: OnceLock<Instant>,
    pub checkpoints: AtomicU64,
    /// Samples of the worker's own that came from another machine.
    pub remote: AtomicU64,
}

#[derive(Debug, Default)]
struct Timed {
    ns: AtomicU64,
    count: AtomicU64,
}

impl Timed {
    fn add(&self, took: Duration) {
        self.ns.fetch_add(took.as_nanos() as u64, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    fn mean_ns(&self) -> f64 {
        let count = self.count.load(Relaxed);
        if count == 0 { 0.0 } else { self.ns.load(Relaxed) as f64 / count as f64 }
    }
}

/// From here on every load is timed.
const SLOW: Duration = Duration::from_micros(1);
const TIMED_EVERY: u64 = 64;

impl Meter {
    /// Somebody asks for a sample.
    #[inline]
    pub fn begin(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// A load ahead.
    pub fn load<T>(&self, load: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let loaded = load();
        let took = since.elapsed();
        self.loads.add(took);
        self.is_slow.store(took > SLOW, Relaxed);
        loaded
    }

    /// A load by a caller, who waits for it.
    #[inline]
    pub fn load_for_caller<T>(&self, position: u64, load: impl FnOnce() -> T) -> T {
        if position.is_multiple_of(TIMED_EVERY) || self.is_slow.load(Relaxed) {
            self.load(load)
        } else {
            load()
        }
    }

    /// A caller waited for somebody else's load.
    pub fn waited(&self, since: Instant) {
        self.waits.add(since.elapsed());
    }

    pub fn stats(&self, counts: Counts) -> StreamingStats {
        let remote_samples = counts.foreign + self.remote.load(Relaxed);
        // Who did not wait for somebody else's load loaded it.
        let loaded_by_callers = counts.misses.saturating_sub(self.waits.count.load(Relaxed));
        let waited = loaded_by_callers as f64 * self.loads.mean_ns() + self.waits.ns.load(Relaxed) as f64;
        let elapsed = self.started.get().map_or(0.0, |started| started.elapsed().as_nanos() as f64);
        let worker_utilization = if elapsed > 0.0 { (1.0 - waited / elapsed).clamp(0.0, 1.0) } else { 1.0 };
        StreamingStats {
            samples_loaded: counts.handed_out,
            local_samples: counts.handed_out - remote_samples,
            remote_samples,
            prefetch_hits: counts.hits,
            prefetch_misses: counts.misses,
            avg_load_time_us: self.loads.mean_ns() / 1000.0,
            num_checkpoints: self.checkpoints.load(Relaxed),
            worker_utilization,
        }
    }
}
