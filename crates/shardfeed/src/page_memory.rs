use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// Memory for the pages of everybody who shares a budget: how large one may be, how many may be kept, and buffers
/// to use again.
#[derive(Debug)]
pub(crate) struct PageMemory {
    limit: PageLimit,
    /// Bytes that pages, dictionaries and unused buffers may still take while nobody works on them.
    keep_left: AtomicU64,
    idle: Mutex<Vec<Vec<u8>>>,
}

/// How large a page may be, compressed and decompressed together.
#[derive(Clone, Copy, Debug)]
struct PageLimit {
    bytes_max: u64,
    budget: Option<PageBudget>,
}

/// The budget that a limit comes from.
#[derive(Clone, Copy, Debug)]
struct PageBudget {
    given: u64,
    /// What of it is not for pages.
    others: u64,
    threads: u64,
}

/// What a thread needs to read a row group as most writers make them: a page of 1 MiB and some, compressed and not,
/// and a dictionary.
pub(crate) const WORK_BYTES_USUAL: u64 = 2 * PAGE_BYTES_USUAL;

const PAGE_BYTES_USUAL: u64 = 3 << 20;

/// Far above what any writer makes by itself: what is refused is damage or malice.
const PAGE_BYTES_MAX: u64 = 1 << 30;

/// What is kept of buffers where nobody gave a budget.
const IDLE_BYTES_UNBOUNDED: u64 = 32 << 20;

/// Unused buffers are looked through one by one.
const IDLE_BUFFERS_MAX: usize = 32;

impl Default for PageMemory {
    fn default() -> Self {
        Self::new(PageLimit { bytes_max: PAGE_BYTES_MAX, budget: None }, IDLE_BYTES_UNBOUNDED)
    }
}

impl PageMemory {
    fn new(limit: PageLimit, keep: u64) -> Self {
        Self { limit, keep_left: AtomicU64::new(keep), idle: Mutex::default() }
    }

    /// Pages of `threads` that have `for_pages` bytes of a budget. Half of it is for the pages they work on, so
    /// that as large ones as possible can be read, and half for keeping those of others; a small one is all for
    /// working.
    pub fn within(budget: u64, for_pages: u64, threads: usize) -> Self {
        let threads = (threads as u64).max(1);
        let work = (for_pages / 2).max(for_pages.min(threads * WORK_BYTES_USUAL));
        // A page, and as much for its dictionary.
        let bytes_max = (work / threads / 2).min(PAGE_BYTES_MAX);
        let budget = PageBudget { given: budget, others: budget - for_pages, threads };
        Self::new(PageLimit { bytes_max, budget: Some(budget) }, for_pages - work)
    }

    /// Refuses a page before anything is allocated for it.
    pub fn check(&self, path: &Path, page_bytes: u64) -> Result<()> {
        let PageLimit { bytes_max, budget } = self.limit;
        if page_bytes <= bytes_max {
            return Ok(());
        }
        match budget {
            Some(PageBudget { given, others, threads }) if page_bytes <= PAGE_BYTES_MAX => {
                Err(Error::Budget {
                    given,
                    // Of what is for pages, a quarter for a thread's page, compressed and decompressed.
                    needed: others + 4 * threads * page_bytes,
                    because: format!(
                        "{} has a page of {page_bytes} bytes, compressed and decompressed, where {bytes_max} are left for one; \
                     write it with smaller pages, use fewer threads, or allow more",
                        path.display()
                    ),
                })
            }
            _ => Err(Error::Invalid(format!(
                "a page claims {page_bytes} bytes, at most {PAGE_BYTES_MAX} are read"
            ))),
        }
    }

    /// Whether `bytes` may be kept by somebody who does not work. If so, they must be [released](Self::release).
    pub fn try_keep(&self, bytes: u64) -> bool {
        self.keep_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    /// Somebody who kept these bytes works again, or let go of them.
    pub fn release(&self, bytes: u64) {
        self.keep_left.fetch_add(bytes, Relaxed);
    }

    /// A buffer of at least `len` bytes, what is in it being left over.
    pub fn buffer(self: &Arc<Self>, len: usize) -> PageBuffer {
        let idle = {
            let mut idle = self.lock();
            let fitting = idle.iter().rposition(|buffer| fits(buffer, len));
            fitting.map(|at| idle.remove(at))
        };
        self.release(idle.as_ref().map_or(0, |idle| idle.capacity() as u64));
        let mut bytes = idle.unwrap_or_else(|| Vec::with_capacity(round_up(len)));
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        PageBuffer { bytes, len, home: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages are all about as large, but hardly two are equal: each must fit into the buffer of another. What is beyond
/// the length is not touched.
fn round_up(len: usize) -> usize {
    len.next_multiple_of((len.next_power_of_two() / 8).max(64))
}

/// Not a huge one for something tiny, which would then be kept.
fn fits(buffer: &Vec<u8>, len: usize) -> bool {
    (len..=len.max(4096) * 2).contains(&buffer.capacity())
}

/// Bytes of a page, in a buffer that goes back to where it came from.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<PageMemory>,
}

impl PageBuffer {
    /// What it takes, used or not.
    pub fn capacity(&self) -> u64 {
        self.bytes.capacity() as u64
    }

    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let capacity = bytes.capacity() as u64;
        let mut idle = self.home.lock();
        loop {
            if idle.len() < IDLE_BUFFERS_MAX && self.home.try_keep(capacity) {
                idle.push(bytes);
                return;
            }
            // Those that nobody took for the longest time make room.
            if idle.is_empty() {
                return;
            }
            self.home.release(idle.remove(0).capacity() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_what_is_kept_stays_within_the_budget() {
        let memory = Arc::new(PageMemory::within(100 << 20, 64 << 20, 2));
        let keep = memory.keep_left.load(Relaxed);
        assert_eq!(keep, 32 << 20);
        let mut buffer = memory.buffer(1 << 20);
        buffer.as_mut()[0] = 7;
        assert_eq!((buffer.as_ref().len(), buffer.capacity()), (1 << 20, 1 << 20));
        drop(buffer);
        assert_eq!(memory.keep_left.load(Relaxed), keep - (1 << 20));
        let again = memory.buffer((1 << 20) - 5);
        assert_eq!((again.as_ref()[0], again.as_ref().len()), (7, (1 << 20) - 5));
        assert_eq!(memory.keep_left.load(Relaxed), keep);
        let others: Vec<_> = (0..40).map(|_| memory.buffer(1 << 20)).collect();
        drop((others, again));
        assert_eq!(memory.lock().len(), IDLE_BUFFERS_MAX);
        assert_eq!(memory.keep_left.load(Relaxed), 0);
        assert!(!memory.try_keep(1));
        // What nobody took for long makes room for what was used last.
        assert_eq!(memory.buffer(5 << 20).as_ref().len(), 5 << 20);
        assert_eq!(memory.lock().iter().map(Vec::capacity).max(), Some(5 << 20));
        assert_eq!(memory.keep_left.load(Relaxed), 0);
    }

    #[test]
    fn pages_of_about_the_same_length_share_a_buffer() {
        let memory = Arc::new(PageMemory::default());
        let mut buffers = std::collections::HashSet::new();
        for len in (1_000_000..1_048_576).step_by(1000) {
            buffers.insert(memory.buffer(len).as_ref().as_ptr());
        }
        assert_eq!(buffers.len(), 1);
    }

    #[test]
    fn a_page_too_large_is_refused_with_what_would_do() {
        for (for_pages, threads) in [(3_u64 << 20, 1), (12 << 20, 2), (64 << 20, 2), (1 << 30, 16)] {
            let fixed = 10 << 20;
            let memory = PageMemory::within(fixed + for_pages, for_pages, threads);
            let page = memory.limit.bytes_max + 1000;
            assert!(memory.check(Path::new("a"), memory.limit.bytes_max).is_ok());
            let Err(Error::Budget { needed, .. }) = memory.check(Path::new("a"), page) else { panic!() };
            let enough = PageMemory::within(needed, needed - fixed, threads);
            assert!(enough.check(Path::new("a"), page).is_ok(), "{for_pages} {threads}");
        }
    }
}
