use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::{Assignment, Partition, PartitionError, Rank, SampleOrder};

/// The samples of one worker in one epoch, once they were dealt again: found in O(log n) of its stretches.
#[derive(Clone, Debug)]
pub struct DealtOrder {
    assignment: Assignment,
    /// What the strategy gives those whose samples they were at first.
    origins: BTreeMap<u32, SampleOrder>,
}

impl DealtOrder {
    /// Samples of a partition's epoch. Refuses those that nobody has.
    pub fn new(partition: &Partition, epoch: u64, assignment: Assignment) -> Result<Self, PartitionError> {
        Self::of_orders(partition.world_size(), assignment, |rank| partition.order(rank, epoch))
    }

    /// The same, of the orders that the strategy gives workers of one epoch: for those who have looked them up.
    pub fn of_orders(
        world_size: u32,
        assignment: Assignment,
        order_of: impl Fn(Rank) -> SampleOrder,
    ) -> Result<Self, PartitionError> {
        let mut origins = BTreeMap::new();
        for stretch in assignment.stretches() {
            let (origin, start, end) = (stretch.origin, stretch.start, stretch.end);
            let order = match origins.entry(origin) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let rank = Rank::new(origin, world_size);
                    let rank = rank.map_err(|_| PartitionError::Dealt { origin, start, end, len: 0 })?;
                    place.insert(order_of(rank))
                }
            };
            if end > order.len() {
                return Err(PartitionError::Dealt { origin, start, end, len: order.len() });
            }
        }
        Ok(Self { assignment, origins })
    }

    /// What it is made of.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// Index in the data set of the worker's sample `position`, and whose it was at first; `None` past the last.
    pub fn index(&self, position: u64) -> Option<(u64, u32)> {
        let (origin, number) = self.assignment.place(position)?;
        Some((self.origins[&origin].index(number)?, origin))
    }
}
