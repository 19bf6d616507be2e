use std::ops::Range;

use crate::key;

/// An epoch's row groups laid end to end, in shuffled order: one line of units (tokens, or pieces of rows).
///
/// Sixteen bytes per row group, while it is built and afterwards.
#[derive(Clone, Debug)]
pub struct Line {
    slots: Vec<Slot>,
    units: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The sort key while the line is built, then where the row group begins on the line.
    start: u64,
    row_group: u32,
}

/// Part of one row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the row group in the manifest.
    pub row_group: u32,
    /// Units within the row group.
    pub units: Range<u64>,
}

impl Line {
    /// Lays out row groups of these sizes, shuffled by `(seed, epoch)`.
    pub fn shuffled(sizes: &[u64], seed: u64, epoch: u64) -> Self {
        Self::sorted_by(sizes, |row_group| key(&[seed, epoch, 1, u64::from(row_group)]))
    }

    /// Lays out row groups of these sizes in the order of the manifest.
    pub fn in_file_order(sizes: &[u64]) -> Self {
        Self::sorted_by(sizes, u64::from)
    }

    fn sorted_by(sizes: &[u64], sort_key: impl Fn(u32) -> u64) -> Self {
        let mut slots: Vec<Slot> =
            (0..sizes.len() as u32).map(|row_group| Slot { start: sort_key(row_group), row_group }).collect();
        slots.sort_unstable_by_key(|slot| (slot.start, slot.row_group));
        let mut units = 0;
        for slot in &mut slots {
            slot.start = units;
            units += sizes[slot.row_group as usize];
        }
        Self { slots, units }
    }

    /// Length of the line.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The row groups under `units`, in line order. Row groups without units are never among them.
    pub fn spans(&self, units: Range<u64>) -> impl Iterator<Item = Span> + '_ {
        let mut at = units.start;
        let end = units.end.min(self.units);
        std::iter::from_fn(move || {
            let (row_group, whole) = self.row_group_at(at).filter(|_| at < end)?;
            let span = Span { row_group, units: at - whole.start..end.min(whole.end) - whole.start };
            at = whole.end;
            Some(span)
        })
    }

    /// The row group under one unit, and all the units of the line that it takes.
    pub fn row_group_at(&self, unit: u64) -> Option<(u32, Range<u64>)> {
        if unit >= self.units {
            return None;
        }
        // The last slot that begins at or before the unit; empty ones that begin there too come before it.
        let index = self.slots.partition_point(|slot| slot.start <= unit) - 1;
        Some((self.slots[index].row_group, self.slots[index].start..self.end_of(index)))
    }

    /// Row groups in line order, for looking at.
    pub fn row_groups(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.slots.iter().map(|slot| slot.row_group)
    }

    /// Row groups in line order, each with the units of the line that it takes.
    pub fn row_group_units(&self) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        self.slots_from(0)
    }

    /// The row groups under `units`, each with all the units of the line that it takes. As [`Self::spans`], but with
    /// one search for all of them.
    pub fn row_groups_under(&self, units: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        let first = self.slots.partition_point(|slot| slot.start <= units.start).saturating_sub(1);
        self.slots_from(first)
            .take_while(move |(_, whole)| whole.start < units.end)
            .filter(|(_, whole)| !whole.is_empty())
    }

    fn slots_from(&self, first: usize) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        (first..self.slots.len())
            .map(|index| (self.slots[index].row_group, self.slots[index].start..self.end_of(index)))
    }

    fn end_of(&self, index: usize) -> u64 {
        self.slots.get(index + 1).map_or(self.units, |next| next.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_any_range_exactly_and_pass_over_empty_row_groups() {
        let sizes = [0, 5, 0, 0, 3, 1, 0, 7, 0];
        for line in [Line::in_file_order(&sizes), Line::shuffled(&sizes, 1, 2), Line::shuffled(&sizes, 9, 0)]
        {
            // Naive: every unit of the line, one by one.
            let naive: Vec<(u32, u64)> = line
                .row_groups()
                .flat_map(|group| (0..sizes[group as usize]).map(move |unit| (group, unit)))
                .collect();
            assert_eq!(line.units(), 16);
            for (group, units) in line.row_group_units() {
                assert_eq!(units.end - units.start, sizes[group as usize]);
                assert!(units.clone().zip(0..).all(|(unit, at)| naive[unit as usize] == (group, at)));
            }
            for start in 0..=16 {
                for end in start..=17 {
                    let spans: Vec<Span> = line.spans(start..end).collect();
                    assert!(spans.iter().all(|span| !span.units.is_empty()));
                    if start < end.min(16) {
                        let under: Vec<u32> =
                            line.row_groups_under(start..end).map(|(row_group, _)| row_group).collect();
                        assert_eq!(under, spans.iter().map(|span| span.row_group).collect::<Vec<_>>());
                    }
                    let units: Vec<(u32, u64)> = spans
                        .into_iter()
                        .flat_map(|span| span.units.map(move |unit| (span.row_group, unit)))
                        .collect();
                    assert_eq!(units, naive[start as usize..end.min(16) as usize]);
                }
            }
        }
    }

    #[test]
    fn a_line_takes_sixteen_bytes_per_row_group() {
        assert_eq!(size_of::<Slot>(), 16);
    }

    #[test]
    fn a_line_without_row_groups_is_empty() {
        assert_eq!(Line::shuffled(&[], 1, 1).spans(0..10).count(), 0);
    }
}
