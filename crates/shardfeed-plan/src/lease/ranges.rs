use serde::{Deserialize, Serialize};

/// A set of numbers as ranges, ascending and apart: from, up to and without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Takes `start..end` in.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // Those that it touches become one with it.
        let from = self.0.partition_point(|&(_, other)| other < start);
        let until = self.0.partition_point(|&(other, _)| other <= end);
        let (mut first, mut last) = (start, end);
        if from < until {
            first = first.min(self.0[from].0);
            last = last.max(self.0[until - 1].1);
        }
        self.0.splice(from..until, [(first, last)]);
    }

    /// Takes all of another set in.
    pub fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|&(start, end)| self.insert(start, end));
    }

    /// What of `start..end` is not in the set.
    pub fn gaps(&self, start: u64, end: u64) -> Self {
        let mut gaps = Vec::new();
        let mut from = start;
        for &(first, last) in &self.0 {
            if first >= end {
                break;
            }
            if first > from {
                gaps.push((from, first));
            }
            from = from.max(last);
        }
        if from < end {
            gaps.push((from, end));
        }
        Self(gaps)
    }

    /// What is in this set and not in another.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.iter().flat_map(|&(start, end)| other.gaps(start, end).0).collect())
    }

    /// What of it lies in `start..end`.
    pub fn within(&self, start: u64, end: u64) -> Self {
        let cut = self.0.iter().map(|&(first, last)| (first.max(start), last.min(end)));
        Self(cut.filter(|(first, last)| first < last).collect())
    }

    /// How many numbers.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the largest; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }
}

impl TryFrom<Vec<(u64, u64)>> for Ranges {
    type Error = String;

    fn try_from(ranges: Vec<(u64, u64)>) -> Result<Self, String> {
        if let Some((start, end)) = ranges.iter().find(|(start, end)| start >= end) {
            return Err(format!("{start}..{end} is no range"));
        }
        if let Some([before, after]) = ranges.array_windows().find(|[before, after]| before.1 >= after.0) {
            return Err(format!("{before:?} cannot be followed by {after:?}"));
        }
        Ok(Self(ranges))
    }
}

impl From<Ranges> for Vec<(u64, u64)> {
    fn from(ranges: Ranges) -> Self {
        ranges.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn of(numbers: &BTreeSet<u64>) -> Ranges {
        let mut ranges = Ranges::default();
        for &number in numbers {
            ranges.insert(number, number + 1);
        }
        ranges
    }

    fn set() -> impl Strategy<Value = BTreeSet<u64>> {
        proptest::collection::btree_set(0_u64..40, 0..30)
    }

    proptest! {
        #[test]
        fn as_a_set_of_numbers(a in set(), b in set(), start in 0_u64..40, len in 0_u64..40) {
            let (ranges, others, end) = (of(&a), of(&b), start + len);
            prop_assert_eq!(Ranges::try_from(ranges.0.clone()), Ok(ranges.clone()));
            prop_assert_eq!(ranges.count(), a.len() as u64);
            prop_assert_eq!(ranges.end(), a.last().map_or(0, |last| last + 1));
            let mut both = ranges.clone();
            both.extend(&others);
            prop_assert_eq!(both, of(&a.union(&b).copied().collect()));
            prop_assert_eq!(ranges.without(&others), of(&a.difference(&b).copied().collect()));
            prop_assert_eq!(ranges.gaps(start, end), of(&(start..end).filter(|n| !a.contains(n)).collect()));
            prop_assert_eq!(ranges.within(start, end), of(&(start..end).filter(|n| a.contains(n)).collect()));
            let mut more = ranges.clone();
            more.insert(start, end);
            prop_assert_eq!(more, of(&a.iter().copied().chain(start..end).collect()));
        }
    }

    #[test]
    fn what_is_no_set_of_ranges_is_refused() {
        for wrong in [vec![(2, 2)], vec![(3, 1)], vec![(0, 2), (2, 3)], vec![(4, 5), (0, 1)]] {
            assert!(Ranges::try_from(wrong.clone()).is_err(), "{wrong:?}");
        }
    }
}
