use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result};

/// What is known of row groups that were read through: which of them are damaged, and how.
#[derive(Debug)]
pub(crate) struct Soundness {
    verdicts: Vec<AtomicU8>,
    damaged: Mutex<Vec<(u32, String)>>,
    count: AtomicU64,
}

const UNKNOWN: u8 = 0;
const SOUND: u8 = 1;
const DAMAGED: u8 = 2;

/// Reasons kept.
const REASONS_MAX: usize = 1000;

impl Soundness {
    pub fn of(row_groups: usize) -> Self {
        let verdicts = std::iter::repeat_with(|| AtomicU8::new(UNKNOWN)).take(row_groups).collect();
        Self { verdicts, damaged: Mutex::default(), count: AtomicU64::new(0) }
    }

    /// The verdict, passed once by reading the row group through. What is no damage, such as a file that is away, is an
    /// error.
    pub fn of_row_group(&self, row_group: u32, read_through: impl FnOnce() -> Result<()>) -> Result<bool> {
        let verdict = &self.verdicts[row_group as usize];
        match verdict.load(Relaxed) {
            SOUND => return Ok(true),
            DAMAGED => return Ok(false),
            _ => {}
        }
        match read_through() {
            Ok(()) => {
                verdict.store(SOUND, Relaxed);
                Ok(true)
            }
            Err(error @ (Error::Damaged { .. } | Error::Row { .. })) => {
                // Two threads may have read it at once.
                if verdict.swap(DAMAGED, Relaxed) != DAMAGED {
                    self.count.fetch_add(1, Relaxed);
                    let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
                    if damaged.len() < REASONS_MAX {
                        damaged.push((row_group, error.to_string()));
                    }
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    pub fn damaged(&self) -> Vec<(u32, String)> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn damaged_count(&self) -> u64 {
        self.count.load(Relaxed)
    }
}
