use super::{PartitionError, Table};
use crate::mix;

/// The class of each sample. Made of all labels, in order.
#[derive(Clone, Debug)]
pub struct Classes {
    labels: Table,
    /// Samples of each class.
    counts: Vec<u64>,
    fingerprint: u64,
}

impl Classes {
    /// Of no sample yet. [`PartitionStrategy::validate`](super::PartitionStrategy::validate) says how many classes
    /// there may be.
    pub fn new(num_classes: usize) -> Self {
        Self {
            labels: Table::for_numbers_below(num_classes as u64),
            counts: vec![0; num_classes],
            fingerprint: 1,
        }
    }

    /// The next sample's label.
    pub fn push(&mut self, label: Option<u64>) -> Result<(), PartitionError> {
        let row = self.labels.len();
        let label = label.ok_or(PartitionError::NoLabel { row })?;
        let num_classes = self.counts.len();
        if num_classes == 0 {
            return Err(PartitionError::NoClasses);
        }
        let count = usize::try_from(label).ok().and_then(|label| self.counts.get_mut(label));
        *count.ok_or(PartitionError::Label { row, label, num_classes })? += 1;
        self.labels.push(label);
        self.fingerprint = mix(self.fingerprint ^ label);
        Ok(())
    }

    /// Tells these labels from others.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// That was the last: no more memory than they need.
    pub fn shrink_to_fit(&mut self) {
        self.labels.shrink_to_fit();
    }

    /// Samples so far.
    pub fn len(&self) -> u64 {
        self.labels.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses those of another division.
    pub(super) fn check(&self, len: u64, num_classes: usize) -> Result<(), PartitionError> {
        for (what, theirs, ours) in [
            ("number of classes", self.counts.len() as u64, num_classes as u64),
            ("number of samples", self.len(), len),
        ] {
            if theirs != ours {
                return Err(PartitionError::Facts { facts: "classes", what, theirs, ours });
            }
        }
        Ok(())
    }

    pub(super) fn class(&self, index: u64) -> usize {
        self.labels.get(index) as usize
    }

    /// Deals each class in turn, beginning where the class before it ended: so that no worker has two more than
    /// another, of any class or altogether.
    pub(super) fn turns(&self, world_size: u32) -> Turns {
        let mut before = 0;
        let next = self.counts.iter().map(|count| {
            let first = before % u64::from(world_size);
            before += count;
            first as u32
        });
        Turns { next: next.collect(), world_size }
    }
}

/// Whose turn it is in each class.
pub(super) struct Turns {
    next: Vec<u32>,
    world_size: u32,
}

impl Turns {
    pub fn next(&mut self, class: usize) -> u32 {
        let turn = self.next[class];
        self.next[class] = if turn + 1 == self.world_size { 0 } else { turn + 1 };
        turn
    }
}
