use std::sync::Arc;

use shardfeed_plan::{Assignment, DealtOrder, Partition, PartitionError, Rank, SampleOrder};

use super::queue::{Place, Stream, UPCOMING};

/// One worker's samples of one epoch, by position.
#[derive(Clone, Debug)]
pub(super) struct ShardStream {
    pub epoch: u64,
    rank: u32,
    order: Order,
}

#[derive(Clone, Debug)]
enum Order {
    /// What the strategy gives the worker.
    Own(SampleOrder),
    /// What it has instead, since samples were dealt again.
    Dealt(Arc<DealtOrder>),
}

impl ShardStream {
    pub fn new(partition: &Partition, rank: Rank, epoch: u64) -> Self {
        Self { epoch, rank: rank.index(), order: Order::Own(partition.order(rank, epoch)) }
    }

    /// With what the worker has since samples were dealt again.
    pub fn dealt(
        partition: &Partition,
        rank: Rank,
        epoch: u64,
        assignment: &Assignment,
    ) -> Result<Self, PartitionError> {
        Self::of_orders(rank, epoch, assignment.clone(), |rank| partition.order(rank, epoch))
    }

    /// The same, of what the strategy gives workers in that epoch.
    pub fn of_orders(
        rank: Rank,
        epoch: u64,
        assignment: Assignment,
        order_of: impl Fn(Rank) -> SampleOrder,
    ) -> Result<Self, PartitionError> {
        let order = DealtOrder::of_orders(rank.world_size(), assignment, order_of)?;
        Ok(Self { epoch, rank: rank.index(), order: Order::Dealt(Arc::new(order)) })
    }

    /// What the worker has, if samples were dealt again.
    pub fn assignment(&self) -> Option<&Assignment> {
        match &self.order {
            Order::Own(_) => None,
            Order::Dealt(order) => Some(order.assignment()),
        }
    }

    fn whole(&self) -> Assignment {
        match &self.order {
            Order::Own(order) => Assignment::whole(self.rank, order.len()),
            Order::Dealt(order) => order.assignment().clone(),
        }
    }
}

impl Stream for ShardStream {
    fn len(&self) -> u64 {
        match &self.order {
            Order::Own(order) => order.len(),
            Order::Dealt(order) => order.assignment().len(),
        }
    }

    #[inline]
    fn place(&self, position: u64) -> Place {
        let (index, origin) = match &self.order {
            Order::Own(order) => order.index(position).map(|index| (index, self.rank)),
            Order::Dealt(order) => order.index(position),
        }
        .expect("a position of the stream");
        Place { index, is_foreign: origin != self.rank }
    }

    fn fill(&self, from: u64, places: &mut [Place]) {
        match &self.order {
            Order::Own(order) => {
                let mut indexes = [0; UPCOMING];
                order.indexes(from, &mut indexes[..places.len()]);
                for (place, index) in places.iter_mut().zip(indexes) {
                    *place = Place { index, is_foreign: false };
                }
            }
            Order::Dealt(_) => {
                for (position, place) in (from..).zip(places) {
                    *place = self.place(position);
                }
            }
        }
    }

    fn is_same_until(&self, other: &Self, position: u64) -> bool {
        self.epoch == other.epoch && self.whole().is_same_until(&other.whole(), position)
    }
}
