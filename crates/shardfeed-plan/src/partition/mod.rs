//! Samples of a data set, divided among the workers of a job.

use std::ops::Range;
use std::sync::Arc;

use crate::{Permutation, Rank, key};

mod classes; // labels     -> whose turn it is in each class
mod hash; // a key         -> a worker, for ever
mod order; // a rank       -> its samples, one after another
mod ranges; // given ranges -> checked ones
mod strategy; // what users ask for
mod table; // small numbers, kept small

pub use classes::Classes;
pub use hash::{Owners, hash_of_index, hash_of_key};
pub use order::SampleOrder;
pub use strategy::{Needs, PartitionError, PartitionStrategy, SAMPLES_WITH_TABLE_MAX};

use ranges::check_ranges;
use table::Table;

/// Who gets which samples of `0..len`, in which order, in every epoch. Equal facts give equal orders on any machine.
///
/// Holds nothing as long as the data, but for the owners of hashed keys and the classes of stratified samples: a byte
/// or so each, shared by all who hold a clone.
///
/// ```
/// use shardfeed_plan::{Facts, Partition, PartitionStrategy, Rank};
///
/// let halves = Partition::new(&PartitionStrategy::Contiguous, 10, 2, None, Facts::None)?;
/// let second = halves.order(Rank::new(1, 2).unwrap(), 0);
/// assert_eq!(second.iter().collect::<Vec<_>>(), [5, 6, 7, 8, 9]);
/// # Ok::<(), shardfeed_plan::PartitionError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Partition {
    len: u64,
    world_size: u32,
    seed: Option<u64>,
    division: Division,
}

#[derive(Clone, Debug)]
enum Division {
    Strided,
    Blocks,
    Ranges(Arc<[Range<u64>]>),
    /// By the hash of their indexes.
    Hashed {
        partitions: u64,
        seed: u64,
    },
    Owned(Arc<Owners>),
    Stratified(Arc<Classes>),
}

/// What has to be known of every sample beforehand. [`PartitionStrategy::needs`] says what that is.
#[derive(Clone, Debug)]
pub enum Facts {
    /// Nothing.
    None,
    /// Who owns it, by its key.
    Owners(Arc<Owners>),
    /// The class it is of.
    Classes(Arc<Classes>),
}

impl Facts {
    /// Tells these from others; 0 if there are none.
    pub fn fingerprint(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Owners(owners) => owners.fingerprint().max(1),
            Self::Classes(classes) => classes.fingerprint().max(1),
        }
    }
}

/// Keeps the shuffles of samples apart from all others that a seed may have.
const SHUFFLE: u64 = 16;
const SHUFFLE_IN_RANGE: u64 = 17;

impl Partition {
    /// Divides `0..len` among `world_size` workers. With a seed, the order is shuffled anew in every epoch.
    ///
    /// Samples with keys are hashed by them if `facts` has their owners, and by their indexes if it has nothing.
    pub fn new(
        strategy: &PartitionStrategy,
        len: u64,
        world_size: u32,
        seed: Option<u64>,
        facts: Facts,
    ) -> Result<Self, PartitionError> {
        strategy.validate(world_size)?;
        strategy.validate_len(len)?;
        let division = match (strategy.base(), facts) {
            (PartitionStrategy::Contiguous, _) => Division::Blocks,
            (PartitionStrategy::RangeBased { ranges }, _) => {
                Division::Ranges(check_ranges(ranges, len, world_size)?.into())
            }
            (&PartitionStrategy::HashBased { num_partitions, hash_seed }, Facts::Owners(owners)) => {
                owners.check(len, &Owners::new(num_partitions, hash_seed, world_size))?;
                Division::Owned(owners)
            }
            (&PartitionStrategy::HashBased { num_partitions, hash_seed }, _) => {
                Division::Hashed { partitions: hash::partitions(num_partitions, world_size), seed: hash_seed }
            }
            (&PartitionStrategy::Stratified { num_classes }, Facts::Classes(classes)) => {
                classes.check(len, num_classes)?;
                Division::Stratified(classes)
            }
            (PartitionStrategy::Stratified { .. }, _) if len > 0 => {
                return Err(PartitionError::NoLabel { row: 0 });
            }
            _ => Division::Strided,
        };
        Ok(Self { len, world_size, seed, division })
    }

    /// Samples there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Workers they are divided among.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// How many samples each worker has, in every epoch.
    ///
    /// Microseconds, but for hashed samples, of which each is looked at.
    pub fn lens(&self) -> Vec<u64> {
        let ranks = (0..self.world_size).filter_map(|rank| Rank::new(rank, self.world_size).ok());
        let counted = |owner: &dyn Fn(u64) -> u32| {
            let mut lens = vec![0; self.world_size as usize];
            (0..self.len).for_each(|index| lens[owner(index) as usize] += 1);
            lens
        };
        match &self.division {
            // The classes of stratified samples are dealt in turn, one after another: as if there were one.
            Division::Strided | Division::Blocks | Division::Stratified(_) => {
                ranks.map(|rank| rank.share(self.len)).map(|share| share.end - share.start).collect()
            }
            Division::Ranges(ranges) => ranges.iter().map(|range| range.end - range.start).collect(),
            &Division::Hashed { partitions, seed } => {
                counted(&|index| hash::worker(hash_of_index(index, seed), partitions, self.world_size))
            }
            Division::Owned(owners) => counted(&|index| owners.owner(index)),
        }
    }

    /// The samples of a worker in an epoch.
    ///
    /// Microseconds, but for hashed and stratified samples, of which each is looked at.
    ///
    /// # Panics
    /// If the rank is of another world size.
    pub fn order(&self, rank: Rank, epoch: u64) -> SampleOrder {
        assert_eq!(rank.world_size(), self.world_size, "a rank of another job");
        let shuffle = self.seed.map(|seed| key(&[seed, epoch, SHUFFLE]));
        let shuffle = |len| shuffle.map(|key| Permutation::new(len, key));
        match &self.division {
            Division::Strided => SampleOrder::strided(self.len, rank, shuffle(self.len)),
            Division::Blocks => SampleOrder::block(rank.share(self.len), shuffle(self.len)),
            Division::Ranges(ranges) => {
                let index = u64::from(rank.index());
                let range = ranges[index as usize].clone();
                let len = range.end - range.start;
                let within = self.seed.map(|seed| key(&[seed, epoch, SHUFFLE_IN_RANGE, index]));
                SampleOrder::range(range, within.map(|key| Permutation::new(len, key)))
            }
            &Division::Hashed { partitions, seed } => {
                let owner = |index| hash::worker(hash_of_index(index, seed), partitions, self.world_size);
                self.owned(rank, shuffle(self.len).as_ref(), owner)
            }
            Division::Owned(owners) => {
                self.owned(rank, shuffle(self.len).as_ref(), |index| owners.owner(index))
            }
            Division::Stratified(classes) => {
                let shuffle = shuffle(self.len);
                let mut mine = Table::for_numbers_below(self.len);
                let mut turns = classes.turns(self.world_size);
                for place in 0..self.len {
                    let index = shuffle.as_ref().map_or(place, |shuffle| shuffle.at(place));
                    if turns.next(classes.class(index)) == rank.index() {
                        mine.push(index);
                    }
                }
                SampleOrder::listed(mine)
            }
        }
    }

    /// The samples that `owner` gives to a rank, in the order of the shuffle.
    fn owned(&self, rank: Rank, shuffle: Option<&Permutation>, owner: impl Fn(u64) -> u32) -> SampleOrder {
        let mut mine = Table::for_numbers_below(self.len);
        (0..self.len).filter(|&index| owner(index) == rank.index()).for_each(|index| mine.push(index));
        if let Some(shuffle) = shuffle {
            // As if all were shuffled and then dealt, but only this rank's are touched.
            mine.sort_by_key(|index| shuffle.place_of(index));
        }
        SampleOrder::listed(mine)
    }
}
