use std::ops::Range;

use crate::{EpochOrder, RowGroup, StreamSettings};

/// What reports are worked out from.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub row_groups: &'a [RowGroup],
    pub order: &'a EpochOrder,
    pub settings: &'a StreamSettings,
}

/// What somebody reads, or what there is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub sequences: u64,
    pub blocks: u64,
    pub bytes: u64,
    pub row_groups: u64,
}

/// A stretch of the line, and the row groups under its two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    pub load: Load,
    pub first_row_group: u32,
    pub last_row_group: u32,
}

/// The blocks in which a lane is read: the windows of its first shuffle. All are of one length but for the first,
/// which may be shorter, and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    lane_sequences: u64,
    first: u64,
    each: u64,
}

impl Ground<'_> {
    /// Sequences of a block that is not cut short.
    pub fn block_sequences(&self) -> u64 {
        if self.settings.shuffle {
            u64::from(self.settings.window)
        } else {
            // Without windows it is pages that are read: about as large as windows are by themselves.
            u64::from(StreamSettings::auto_window(self.settings.seq_len))
        }
    }

    pub fn blocks(&self, lane: u32) -> Blocks {
        let lanes = self.order.lanes();
        let Range { start, end } = lanes.sequences_of(lane);
        let first = if self.settings.shuffle { lanes.first_window(lane) } else { 0 };
        Blocks { lane_sequences: end - start, first, each: self.block_sequences() }
    }

    /// The sequences of the line that an index range of a lane is.
    pub fn on_line(&self, lane: u32, indexes: &Range<u64>) -> Range<u64> {
        let start = self.order.sequences_of(lane).start;
        start + indexes.start..start + indexes.end
    }

    /// What there is under some sequences of the line, as one block.
    pub fn stretch(&self, sequences: Range<u64>) -> Stretch {
        if sequences.is_empty() {
            return Stretch::default();
        }
        let load = Load { sequences: sequences.end - sequences.start, blocks: 1, ..Load::default() };
        let mut stretch = Stretch { load, ..Stretch::default() };
        let units = self.order.units(sequences.start).start..self.order.units(sequences.end - 1).end;
        for (row_group, whole) in self.order.line().row_groups_under(units.clone()) {
            if stretch.load.row_groups == 0 {
                stretch.first_row_group = row_group;
            }
            stretch.last_row_group = row_group;
            stretch.load.row_groups += 1;
            let part = units.start.max(whole.start)..units.end.min(whole.end);
            stretch.load.bytes += self.bytes(row_group, &whole, part);
        }
        stretch
    }

    /// The share of a row group's bytes that some of its units have. Shares of neighbours add up exactly.
    fn bytes(&self, row_group: u32, whole: &Range<u64>, units: Range<u64>) -> u64 {
        let chunk_len = self.row_groups[row_group as usize].chunk_len;
        if units == *whole {
            return chunk_len;
        }
        let len = u128::from(whole.end - whole.start);
        let before = |unit: u64| (u128::from(chunk_len) * u128::from(unit - whole.start) / len) as u64;
        before(units.end) - before(units.start)
    }
}

impl Blocks {
    pub fn count(&self) -> u64 {
        if self.lane_sequences == 0 { 0 } else { self.number(self.lane_sequences - 1) + 1 }
    }

    /// The block that an index of the line within the lane is in.
    pub fn number(&self, index: u64) -> u64 {
        match index.checked_sub(self.first) {
            Some(after_first) => after_first / self.each + u64::from(self.first > 0),
            None => 0,
        }
    }

    /// The indexes of a block.
    pub fn indexes(&self, number: u64) -> Range<u64> {
        let (start, end) = match number.checked_sub(u64::from(self.first > 0)) {
            Some(whole) => (self.first + whole * self.each, self.first + (whole + 1) * self.each),
            None => (0, self.first),
        };
        start..end.min(self.lane_sequences)
    }
}

impl Load {
    pub fn add(&mut self, other: &Self) {
        self.sequences += other.sequences;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.row_groups += other.row_groups;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_a_lane_without_gaps() {
        for lane_sequences in 0..20 {
            for first in 0..4 {
                for each in [1, 4, 7] {
                    let blocks = Blocks { lane_sequences, first: first.min(each - 1), each };
                    let mut end = 0;
                    for number in 0..blocks.count() {
                        let indexes = blocks.indexes(number);
                        assert!(indexes.start == end && !indexes.is_empty());
                        assert!(indexes.clone().all(|index| blocks.number(index) == number));
                        end = indexes.end;
                    }
                    assert_eq!(end, lane_sequences);
                }
            }
        }
    }
}
