use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::row_group::DecodedRowGroup;
use crate::Result;

/// Decoded row groups, those used last, within a number of bytes. One that several threads ask for is decoded once.
pub(super) struct RowGroupCache {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: HashMap<usize, Kept>,
    bytes: u64,
    clock: u64,
    hits: u64,
    misses: u64,
}

struct Kept {
    used: u64,
    cell: Arc<Cell>,
    /// Once it is decoded.
    bytes: Option<u64>,
}

/// Locked while it is decoded.
#[derive(Default)]
struct Cell(Mutex<Option<Arc<DecodedRowGroup>>>);

impl RowGroupCache {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Row groups found here, and decoded.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.hits, state.misses)
    }

    pub fn get(
        &self,
        row_group: usize,
        decode: impl FnOnce() -> Result<DecodedRowGroup>,
    ) -> Result<Arc<DecodedRowGroup>> {
        let cell = {
            let mut state = self.lock();
            state.clock += 1;
            let used = state.clock;
            let kept = state.kept.entry(row_group).or_insert_with(|| Kept {
                used,
                cell: Arc::default(),
                bytes: None,
            });
            kept.used = used;
            Arc::clone(&kept.cell)
        };
        let mut decoded = cell.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decoded) = &*decoded {
            self.lock().hits += 1;
            return Ok(Arc::clone(decoded));
        }
        let fresh = decode().map(Arc::new);
        if let Ok(fresh) = &fresh {
            *decoded = Some(Arc::clone(fresh));
        }
        drop(decoded);
        let mut state = self.lock();
        state.misses += 1;
        state.keep(row_group, &cell, fresh.as_ref().ok().map(|fresh| fresh.bytes), self.bytes_max);
        fresh
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A row group was decoded, or could not be. Others that were not used for the longest time make room for it.
    fn keep(&mut self, row_group: usize, cell: &Arc<Cell>, bytes: Option<u64>, bytes_max: u64) {
        let Some(kept) = self.kept.get_mut(&row_group).filter(|kept| Arc::ptr_eq(&kept.cell, cell)) else {
            return;
        };
        let Some(bytes) = bytes else {
            self.kept.remove(&row_group);
            return;
        };
        kept.bytes = Some(bytes);
        self.bytes += bytes;
        while self.bytes > bytes_max {
            let decoded =
                self.kept.iter().filter(|(other, kept)| **other != row_group && kept.bytes.is_some());
            let Some(oldest) = decoded.min_by_key(|(_, kept)| kept.used).map(|(&oldest, _)| oldest) else {
                break;
            };
            let gone = self.kept.remove(&oldest).and_then(|gone| gone.bytes);
            self.bytes -= gone.unwrap_or(0);
        }
    }
}
