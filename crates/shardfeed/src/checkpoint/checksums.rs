use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use shardfeed_plan::checkpoint::Summing;

use super::locate::Located;
use super::read::compare_crc;

/// Checksums of items that are read in parts, each compared as soon as all its bytes have come, to whoever shares this: see
/// [`Checkpoint::plan_reader_with`](super::Checkpoint::plan_reader_with).
#[derive(Default)]
pub struct Checksums(Mutex<HashMap<ChunkPlace, Arc<Checksum>>>);

/// A tensor, and which of its chunks, by their numbers.
type ChunkPlace = (usize, usize);

/// That of the elements of one item.
pub(crate) struct Checksum {
    pub(crate) chunk: ChunkPlace,
    pub(crate) file: u32,
    recorded: u32,
    summing: Mutex<Summing>,
    /// What is wrong, from when it is known: whoever reads any of it after that is told, too.
    failed: OnceLock<String>,
}

impl Checksums {
    /// That of a chunk that was found in its file, if one was recorded.
    pub(crate) fn of(&self, chunk: ChunkPlace, file: u32, located: &Located) -> Option<Arc<Checksum>> {
        let recorded = located.crc?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let checksum = all.entry(chunk).or_insert_with(|| {
            let summing = Mutex::new(Summing::new(located.view.data.clone()));
            Arc::new(Checksum { chunk, file, recorded, summing, failed: OnceLock::new() })
        });
        Some(Arc::clone(checksum))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Checksum>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl Checksum {
    /// Sums what nobody has summed of bytes that were read from this place of the file. Fails from when all have come, if the checksum is not the
    /// one that was recorded.
    pub(crate) fn look_at(&self, start: u64, bytes: &[u8]) -> Result<(), String> {
        let new = self.summing().claim(&(start..start + bytes.len() as u64));
        for range in new {
            let own = &bytes[(range.start - start) as usize..(range.end - start) as usize];
            // Others sum at the same time.
            let sum = crc32fast::hash(own);
            let all = self.summing().add(&range, sum);
            if let Some(Err(reason)) = all.map(|all| compare_crc(Some(self.recorded), all)) {
                self.failed.get_or_init(|| reason);
            }
        }
        self.verdict()
    }

    /// What is known so far.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        self.failed.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Where its bytes begin.
    pub(crate) fn start(&self) -> u64 {
        self.summing().start()
    }

    /// What nobody has looked at.
    pub(crate) fn rest(&self) -> Vec<Range<u64>> {
        self.summing().rest()
    }

    fn summing(&self) -> MutexGuard<'_, Summing> {
        self.summing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
