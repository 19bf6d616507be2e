use std::ops::Range;

/// Ranges of positions that an epoch leaves out, for example after a loss spike. Sorted, apart, never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    ranges: Vec<Range<u64>>,
}

/// Ranges that cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkipsError {
    /// The state stays small.
    #[error(
        "at most {} separate ranges of steps can be skipped in one epoch; skip neighbouring steps as one range",
        Skips::MAX
    )]
    TooMany,
    /// Nothing is in the range.
    #[error("steps {start}..{end} are no range; the end comes after the start")]
    Empty {
        /// First step.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// The range was delivered before it could be skipped, or lies past the epoch's end.
    #[error(
        "steps {start}..{end} cannot be skipped: the next step is {next} and the epoch ends before step {steps}"
    )]
    OutOfReach {
        /// First step.
        start: u64,
        /// One past the last.
        end: u64,
        /// The step that would be delivered next.
        next: u64,
        /// Steps of the epoch.
        steps: u64,
    },
}

impl Skips {
    /// How many separate ranges there may be.
    pub const MAX: usize = 16;

    /// Leaves out `range` as well; joins it with those that it touches.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), SkipsError> {
        if range.is_empty() {
            return Ok(());
        }
        let first = self.ranges.partition_point(|other| other.end < range.start);
        let after = self.ranges.partition_point(|other| other.start <= range.end);
        if first == after && self.ranges.len() == Self::MAX {
            return Err(SkipsError::TooMany);
        }
        let joined = self.ranges[first..after]
            .iter()
            .fold(range, |all, other| all.start.min(other.start)..all.end.max(other.end));
        self.ranges.splice(first..after, [joined]);
        Ok(())
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Positions of `0..end` that are not left out.
    pub fn live_before(&self, end: u64) -> u64 {
        let skipped: u64 = self
            .ranges
            .iter()
            .take_while(|range| range.start < end)
            .map(|range| range.end.min(end) - range.start)
            .sum();
        end - skipped
    }

    /// Positions of `range` that are not left out.
    pub fn live_within(&self, range: Range<u64>) -> u64 {
        if range.is_empty() { 0 } else { self.live_before(range.end) - self.live_before(range.start) }
    }

    /// The `n`-th position at or after `from` that is not left out, counted from 0.
    pub fn nth_live(&self, from: u64, n: u64) -> u64 {
        let mut position = from + n;
        for range in &self.ranges {
            if range.end <= from {
                continue;
            }
            if range.start > position {
                break;
            }
            position += range.end - range.start.max(from);
        }
        position
    }

    /// Positions from `from` on that are not left out.
    pub fn live_from(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let mut ranges = self.ranges.iter().skip_while(move |range| range.end <= from).peekable();
        let mut position = from;
        std::iter::from_fn(move || {
            if let Some(range) = ranges.next_if(|range| range.start <= position) {
                position = range.end;
            }
            position += 1;
            Some(position - 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_list_of_marked_positions(
            ranges in proptest::collection::vec((0_u64..90, 0_u64..12), 0..12),
            from in 0_u64..100,
            n in 0_u64..20,
        ) {
            let mut skips = Skips::default();
            let mut marked = [false; 300];
            for (start, len) in ranges {
                skips.add(start..start + len).unwrap();
                (start..start + len).for_each(|position| marked[position as usize] = true);
            }
            let live: Vec<u64> = (0..300).filter(|&position| !marked[position as usize]).collect();
            let naive: Vec<u64> = live.iter().copied().filter(|&position| position >= from).collect();
            prop_assert_eq!(skips.live_from(from).take(20).collect::<Vec<_>>(), &naive[..20]);
            prop_assert_eq!(skips.nth_live(from, n), naive[n as usize]);
            prop_assert_eq!(skips.live_before(from), live.partition_point(|&p| p < from) as u64);
            prop_assert!(skips.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn a_seventeenth_separate_range_is_refused_but_a_neighbour_joins() {
        let mut skips = Skips::default();
        for i in 0..16 {
            skips.add(i * 10..i * 10 + 5).unwrap();
        }
        assert_eq!(skips.add(1000..1001), Err(SkipsError::TooMany));
        skips.add(5..10).unwrap();
        assert_eq!(skips.ranges().len(), 15);
        assert_eq!(skips.ranges()[0], 0..15);
    }
}
