use std::ops::Range;

/// One process of a job, or one group of processes that must see the same data. Always `index < world_size`.
///
/// Ranks of a tensor-, context- or pipeline-parallel group pass the same data-parallel rank, and so get the same
/// bytes; nothing else is needed to form a replica group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    index: u32,
    world_size: u32,
}

/// A rank that no job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A job of nobody.
    #[error("world size is 0; a job has at least one rank")]
    NoRanks,
    /// More ranks than can be numbered.
    #[error("world size {world_size} is more than {}", u32::MAX)]
    TooManyRanks {
        /// How many were asked for.
        world_size: usize,
    },
    /// An index past the last rank.
    #[error("rank {index} of world size {world_size} does not exist; ranks go from 0 to {}", world_size - 1)]
    OutOfRange {
        /// The rank asked for.
        index: usize,
        /// How many there are.
        world_size: usize,
    },
}

impl Rank {
    /// Rank `index` of `world_size`.
    pub fn new(index: u32, world_size: u32) -> Result<Self, RankError> {
        if world_size == 0 {
            return Err(RankError::NoRanks);
        }
        if index >= world_size {
            return Err(RankError::OutOfRange { index: index as usize, world_size: world_size as usize });
        }
        Ok(Self { index, world_size })
    }

    /// The only rank of a job of one.
    pub const fn single() -> Self {
        Self { index: 0, world_size: 1 }
    }

    /// Which rank, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many ranks there are.
    pub fn world_size(self) -> u32 {
        self.world_size
    }

    /// This rank's contiguous share of `0..n`: the first `n mod world_size` ranks hold one more.
    pub fn share(self, n: u64) -> Range<u64> {
        let (index, world_size) = (u64::from(self.index), u64::from(self.world_size));
        let (each, rest) = (n / world_size, n % world_size);
        let start = index * each + index.min(rest);
        start..start + each + u64::from(index < rest)
    }

    /// The rank of `world_size` in whose share of `0..n` `item` is: the inverse of [`Self::share`].
    pub(crate) fn index_of(item: u64, n: u64, world_size: u32) -> u32 {
        let (each, rest) = (n / u64::from(world_size), n % u64::from(world_size));
        let of_larger = rest * (each + 1);
        let index = if item < of_larger { item / (each + 1) } else { rest + (item - of_larger) / each };
        index as u32
    }
}

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.index, self.world_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other_and_differ_by_at_most_one() {
        for world_size in 1..20 {
            for n in 0..60 {
                let mut end = 0;
                for index in 0..world_size {
                    let share = Rank::new(index, world_size).unwrap().share(n);
                    assert_eq!(share.start, end);
                    let len = share.end - share.start;
                    assert!(share.clone().all(|item| Rank::index_of(item, n, world_size) == index));
                    assert!(len == n / u64::from(world_size) || len == n.div_ceil(u64::from(world_size)));
                    end = share.end;
                }
                assert_eq!(end, n);
            }
        }
    }

    #[test]
    fn a_rank_that_does_not_exist_is_refused_with_both_numbers() {
        assert_eq!(Rank::new(0, 0), Err(RankError::NoRanks));
        let message = Rank::new(8, 8).unwrap_err().to_string();
        assert!(message.contains("rank 8") && message.contains("world size 8"), "{message}");
    }
}
