use std::ops::Range;
use std::sync::Arc;

use super::Table;
use crate::{Permutation, Rank};

/// The samples of one worker in one epoch, one after another: each is found in O(1), from any on.
#[derive(Clone, Debug)]
pub struct SampleOrder {
    len: u64,
    places: Places,
}

#[derive(Clone, Debug)]
enum Places {
    /// Every `step`th of all, from `first` on, shuffled.
    Strided {
        first: u64,
        step: u64,
        shuffle: Option<Permutation>,
    },
    /// From `first` on, in the order of all, shuffled.
    Block {
        first: u64,
        shuffle: Option<Permutation>,
    },
    /// From `first` on, shuffled among themselves.
    Range {
        first: u64,
        shuffle: Option<Permutation>,
    },
    Listed(Arc<Table>),
}

impl SampleOrder {
    pub(super) fn strided(samples: u64, rank: Rank, shuffle: Option<Permutation>) -> Self {
        let (first, step) = (u64::from(rank.index()), u64::from(rank.world_size()));
        let len = samples.saturating_sub(first).div_ceil(step);
        Self { len, places: Places::Strided { first, step, shuffle } }
    }

    pub(super) fn block(block: Range<u64>, shuffle: Option<Permutation>) -> Self {
        Self { len: block.end - block.start, places: Places::Block { first: block.start, shuffle } }
    }

    pub(super) fn range(range: Range<u64>, shuffle: Option<Permutation>) -> Self {
        Self { len: range.end - range.start, places: Places::Range { first: range.start, shuffle } }
    }

    pub(super) fn listed(mut samples: Table) -> Self {
        samples.shrink_to_fit();
        Self { len: samples.len(), places: Places::Listed(Arc::new(samples)) }
    }

    /// Samples of this worker.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Index in the data set of the worker's sample `position`; `None` past the last.
    #[inline]
    pub fn index(&self, position: u64) -> Option<u64> {
        if position >= self.len {
            return None;
        }
        let shuffled =
            |shuffle: &Option<Permutation>, place| shuffle.as_ref().map_or(place, |all| all.at(place));
        Some(match &self.places {
            Places::Strided { first, step, shuffle } => shuffled(shuffle, first + position * step),
            Places::Block { first, shuffle } => shuffled(shuffle, first + position),
            Places::Range { first, shuffle } => first + shuffled(shuffle, position),
            Places::Listed(samples) => samples.get(position),
        })
    }

    /// The same for the positions from `from` on, as many as `indexes` has room for: faster than one by one.
    ///
    /// # Panics
    /// If it has more room than there are.
    pub fn indexes(&self, from: u64, indexes: &mut [u64]) {
        let end = from.checked_add(indexes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len), "{} positions from {from} on", indexes.len());
        let (first, step, offset, shuffle) = match &self.places {
            Places::Strided { first, step, shuffle } => (*first, *step, 0, shuffle),
            Places::Block { first, shuffle } => (*first, 1, 0, shuffle),
            Places::Range { first, shuffle } => (0, 1, *first, shuffle),
            Places::Listed(samples) => {
                for (position, index) in (from..).zip(indexes) {
                    *index = samples.get(position);
                }
                return;
            }
        };
        for (position, index) in (from..).zip(&mut *indexes) {
            *index = first + position * step;
        }
        if let Some(shuffle) = shuffle {
            shuffle.at_each(indexes);
        }
        for index in indexes {
            *index += offset;
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len).map_while(|position| self.index(position))
    }
}
