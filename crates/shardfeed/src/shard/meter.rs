use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::queue::Counts;
use crate::mix;

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
    /// What `Dataset::get` takes, on average, in microseconds. Where it takes less than one, about every 64th call is
    /// measured.
    pub avg_load_time_us: f64,
    /// Checkpoints taken.
    pub num_checkpoints: u64,
    /// The part of the time since the first call of `next` or `prefetch` in which this worker did not wait for samples, or for a
    /// lease to have some: 1 if it never did. Time after the end of an epoch does not count until the next sample; the waits of several callers add up.
    pub worker_utilization: f64,
}

/// Times loads and waits. A clock costs as much as a small sample, so it is not looked at for each of them.
#[derive(Debug, Default)]
pub(super) struct Meter {
    loads: Timed,
    /// Loads by callers that came to nothing.
    in_vain: AtomicU64,
    /// Nanoseconds that callers waited, for those who load ahead or for a lease.
    waited_ns: AtomicU64,
    /// Whether samples are known to take little: not before one was timed.
    is_fast: AtomicBool,
    started: OnceLock<Instant>,
    /// Nanoseconds from the first call to the one that found the epoch over; 0 while it is not. And between epochs.
    ended_ns: AtomicU64,
    paused_ns: AtomicU64,
    pub checkpoints: AtomicU64,
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

/// Where loads take longer, on average, each is timed.
const SLOW_NS: f64 = 1000.0;
const TIMED_EVERY: u64 = 64;

impl Meter {
    /// Somebody asks for a sample.
    #[inline]
    pub fn begin(&self) {
        let started = self.started.get_or_init(Instant::now);
        if self.ended_ns.load(Relaxed) > 0 {
            let ended = self.ended_ns.swap(0, Relaxed);
            let paused = if ended > 0 { started.elapsed().as_nanos() as u64 - ended } else { 0 };
            self.paused_ns.fetch_add(paused, Relaxed);
        }
    }

    /// The epoch is over: from here on nobody waits.
    pub fn end(&self) {
        if let Some(started) = self.started.get() {
            self.ended_ns.store(started.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Whether samples take so long, for all that is known, that it is worth looking at the clock, and waking threads, for each.
    #[inline]
    pub fn is_slow(&self) -> bool {
        !self.is_fast.load(Relaxed)
    }

    /// A load ahead.
    pub fn load<T>(&self, load: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let loaded = load();
        self.loads.add(since.elapsed());
        self.is_fast.store(self.loads.mean_ns() <= SLOW_NS, Relaxed);
        loaded
    }

    /// A load by a caller, who waits for it.
    #[inline]
    pub fn load_for_caller<T>(&self, position: u64, load: impl FnOnce() -> T) -> T {
        // Positions that are no multiples of anything, so that what happens at regular ones is not always, or never, seen.
        let is_timed = mix(position).is_multiple_of(TIMED_EVERY) || self.is_slow();
        if is_timed { self.load(load) } else { load() }
    }

    /// A load by a caller came to nothing: it failed, or nobody wanted it any more.
    #[cold]
    pub fn note_in_vain(&self) {
        self.in_vain.fetch_add(1, Relaxed);
    }

    /// A caller waited, and did not load.
    pub fn waited(&self, since: Instant) {
        self.waited_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
    }

    pub fn stats(&self, counts: Counts) -> StreamingStats {
        let remote_samples = counts.foreign + counts.remote;
        let loading = (counts.by_callers + self.in_vain.load(Relaxed)) as f64 * self.loads.mean_ns();
        let waited = loading + self.waited_ns.load(Relaxed) as f64;
        let ended = self.ended_ns.load(Relaxed);
        let running = || self.started.get().map_or(0.0, |started| started.elapsed().as_nanos() as f64);
        let elapsed = if ended > 0 { ended as f64 } else { running() } - self.paused_ns.load(Relaxed) as f64;
        let worker_utilization = if elapsed > 0.0 { (1.0 - waited / elapsed).clamp(0.0, 1.0) } else { 1.0 };
        StreamingStats {
            samples_loaded: counts.handed_out,
            local_samples: counts.handed_out - remote_samples,
            remote_samples,
            prefetch_hits: counts.hits,
            prefetch_misses: counts.misses(),
            avg_load_time_us: self.loads.mean_ns() / 1000.0,
            num_checkpoints: self.checkpoints.load(Relaxed),
            worker_utilization,
        }
    }
}
