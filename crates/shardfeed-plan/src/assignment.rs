use serde::{Deserialize, Serialize};

/// Samples of one worker, in the order in which it takes them: those that it took, then those that it has to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Stretch>", into = "Vec<Stretch>")]
pub struct Assignment {
    stretches: Vec<Stretch>,
    /// One past the last position of each stretch.
    ends: Vec<u64>,
}

/// Samples `start..end` of what the base strategy gives worker `origin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Whose they were at first.
    pub origin: u32,
    /// The first.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Assignment {
    /// All that the base strategy gives a worker.
    pub fn whole(origin: u32, len: u64) -> Self {
        Self::from_iter((len > 0).then_some(Stretch { origin, start: 0, end: len }))
    }

    /// Samples of the worker, those that it took included.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stretches that it is made of.
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// Whose the sample at `position` was at first, and which of them it is. `None` past the last.
    pub fn place(&self, position: u64) -> Option<(u32, u64)> {
        let at = self.ends.partition_point(|&end| end <= position);
        let stretch = self.stretches.get(at)?;
        Some((stretch.origin, stretch.end - (self.ends[at] - position)))
    }

    /// The same with more samples, to be taken before what is at a position now.
    pub fn with(&self, position: u64, more: impl IntoIterator<Item = Stretch>) -> Self {
        let (mut first, mut last) = (self.clone(), Vec::new());
        last.extend(first.cut(position.min(self.len())));
        more.into_iter().chain(last).for_each(|stretch| first.push(stretch));
        first
    }

    /// The same without those of the samples `start..end` of what was `origin`'s that come at a position or later.
    pub fn without(&self, position: u64, of: Stretch) -> Self {
        let mut kept = self.clone();
        for stretch in kept.cut(position.min(self.len())) {
            let Stretch { origin, start, end } = stretch;
            if origin != of.origin {
                kept.push(stretch);
                continue;
            }
            for (start, end) in [(start, end.min(of.start)), (start.max(of.end), end)] {
                if start < end {
                    kept.push(Stretch { origin, start, end });
                }
            }
        }
        kept
    }

    /// Samples at positions `start..end`, as stretches, each with its first position.
    pub fn between(&self, start: u64, end: u64) -> Vec<(u64, Stretch)> {
        let mut first = 0;
        let mut found = Vec::new();
        for (stretch, &until) in self.stretches.iter().zip(&self.ends) {
            let (from, to) = (start.max(first), end.min(until));
            if from < to {
                let start = stretch.start + (from - first);
                found.push((from, Stretch { start, end: start + (to - from), ..*stretch }));
            }
            first = until;
        }
        found
    }

    /// Whether both have the same samples up to a position.
    pub fn is_same_until(&self, other: &Self, position: u64) -> bool {
        let until = |assignment: &Self| {
            let mut first = assignment.clone();
            first.cut(position);
            first
        };
        until(self) == until(other)
    }

    pub(crate) fn push(&mut self, stretch: Stretch) {
        let len = self.len() + (stretch.end - stretch.start);
        match self.stretches.last_mut() {
            Some(last) if (last.origin, last.end) == (stretch.origin, stretch.start) => {
                last.end = stretch.end;
                self.ends.pop();
            }
            _ => self.stretches.push(stretch),
        }
        self.ends.push(len);
    }

    /// Keeps the first `len`. Returns the others.
    pub(crate) fn cut(&mut self, len: u64) -> Vec<Stretch> {
        let mut over = Vec::new();
        while self.len() > len {
            let (mut last, end) =
                (self.stretches.pop().expect("not empty"), self.ends.pop().expect("as many"));
            let excess = (end - len).min(last.end - last.start);
            over.push(Stretch { start: last.end - excess, ..last });
            last.end -= excess;
            if last.start < last.end {
                self.push(last);
            }
        }
        over.reverse();
        over
    }
}

impl TryFrom<Vec<Stretch>> for Assignment {
    type Error = String;

    fn try_from(stretches: Vec<Stretch>) -> Result<Self, String> {
        let mut sorted: Vec<&Stretch> = stretches.iter().collect();
        sorted.sort_by_key(|stretch| (stretch.origin, stretch.start));
        let overlap =
            sorted.windows(2).find(|pair| pair[0].origin == pair[1].origin && pair[0].end > pair[1].start);
        if let Some(&[_, Stretch { origin, start, end }]) = overlap {
            return Err(format!("samples {start}..{end} of worker {origin} are given twice"));
        }
        let mut len = 0_u64;
        for Stretch { origin, start, end } in &stretches {
            let sum =
                end.checked_sub(*start).filter(|&count| count > 0).and_then(|count| len.checked_add(count));
            len = sum.ok_or_else(|| format!("samples {start}..{end} of worker {origin} cannot be"))?;
        }
        Ok(stretches.into_iter().collect())
    }
}

impl From<Assignment> for Vec<Stretch> {
    fn from(assignment: Assignment) -> Self {
        assignment.stretches
    }
}

impl FromIterator<Stretch> for Assignment {
    fn from_iter<I: IntoIterator<Item = Stretch>>(stretches: I) -> Self {
        let mut assignment = Self::default();
        stretches.into_iter().for_each(|stretch| assignment.push(stretch));
        assignment
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Samples = Vec<(u32, u64)>;

    fn listed(assignment: &Assignment) -> Samples {
        (0..assignment.len()).map(|position| assignment.place(position).unwrap()).collect()
    }

    /// Stretches of several origins, none of which has a sample twice.
    fn stretches(first: u64) -> impl Strategy<Value = Vec<Stretch>> {
        proptest::collection::vec((0_u32..3, 0_u64..4, 1_u64..6), 0..8).prop_map(move |drawn| {
            let mut next = [first; 3];
            let stretch = |(origin, gap, len): (u32, u64, u64)| {
                let start = next[origin as usize] + gap;
                next[origin as usize] = start + len;
                Stretch { origin, start, end: start + len }
            };
            drawn.into_iter().map(stretch).collect()
        })
    }

    proptest! {
        #[test]
        fn as_a_list_of_samples(
            all in stretches(0), more in stretches(1000), position in 0_u64..50, len in 0_u64..30,
            origin in 0_u32..3, start in 0_u64..20,
        ) {
            let assignment: Assignment = all.into_iter().collect();
            let naive = listed(&assignment);
            let at = (position as usize).min(naive.len());

            let added: Samples = more.iter().flat_map(|s| (s.start..s.end).map(|n| (s.origin, n))).collect();
            let mut with = naive.clone();
            with.splice(at..at, added);
            prop_assert_eq!(listed(&assignment.with(position, more)), with);

            let of = Stretch { origin, start, end: start + len };
            let stays = |&(p, &(o, n)): &(usize, &(u32, u64))| p < at || o != origin || !(of.start..of.end).contains(&n);
            let without: Samples = naive.iter().enumerate().filter(stays).map(|(_, sample)| *sample).collect();
            prop_assert_eq!(listed(&assignment.without(position, of)), without);

            let between = assignment.between(position, position + len);
            let found: Samples =
                between.iter().flat_map(|(_, s)| (s.start..s.end).map(|n| (s.origin, n))).collect();
            let end = ((position + len) as usize).min(naive.len());
            prop_assert_eq!(&found[..], naive.get(at..end).unwrap_or_default());
            for (first, stretch) in between {
                prop_assert_eq!(assignment.place(first), Some((stretch.origin, stretch.start)));
            }
        }
    }
}
