use crate::{EpochOrder, Skips};

/// Numbers the steps of an epoch in which the global batch may have changed.
///
/// A step keeps its number whatever is skipped around it: it is the number of whole batches before its first
/// position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepNumbers {
    /// In order of position; never empty.
    changes: Vec<BatchChange>,
}

/// From this position and step on, steps have this many sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchChange {
    /// First position.
    pub position: u64,
    /// First step.
    pub step: u64,
    /// Sequences of a step, over all ranks.
    pub global_batch: u32,
}

impl StepNumbers {
    /// Changes that are remembered; with more, the oldest steps of the epoch can no longer be named.
    pub const CHANGES_MAX: usize = 8;

    /// An epoch that begins with this global batch.
    pub fn new(global_batch: u32) -> Self {
        Self { changes: vec![BatchChange { position: 0, step: 0, global_batch }] }
    }

    /// As stored; the state that holds them checks them.
    pub(crate) fn from_changes(changes: Vec<BatchChange>) -> Self {
        Self { changes }
    }

    /// The changes, in order.
    pub fn changes(&self) -> &[BatchChange] {
        &self.changes
    }

    /// Sequences of the next step.
    pub fn global_batch(&self) -> u32 {
        self.current().global_batch
    }

    /// From `position` on, where a step begins, steps have `global_batch` sequences.
    pub fn change(&mut self, position: u64, global_batch: u32) {
        if self.global_batch() == global_batch {
            return;
        }
        let change = BatchChange { position, step: self.steps_before(position), global_batch };
        if self.current().position == position {
            self.changes.pop();
        }
        if self.changes.len() == Self::CHANGES_MAX {
            self.changes.remove(0);
        }
        self.changes.push(change);
    }

    /// The number of the step whose first position is `position`, which the current global batch covers.
    pub fn number(&self, position: u64) -> u64 {
        let now = self.current();
        now.step + (position - now.position) / u64::from(now.global_batch)
    }

    /// The number that the next step would have if nothing were skipped, once positions before this are delivered.
    pub fn steps_before(&self, position: u64) -> u64 {
        let now = self.current();
        now.step + (position - now.position).div_ceil(u64::from(now.global_batch))
    }

    /// Where the first step begins that has this number or a later one, of those with the current global batch;
    /// the number of sequences if there is none.
    ///
    /// What is skipped already counts: a step that straddles a skipped range begins later than its number says.
    pub fn position_of(&self, step: u64, sequences: u64, skips: &Skips) -> u64 {
        let now = self.current();
        let batches = step.saturating_sub(now.step);
        let nominal = batches.saturating_mul(u64::from(now.global_batch)).saturating_add(now.position);
        first_from(now, nominal.min(sequences), skips).min(sequences)
    }

    /// Where the steps after `step` begin, which may lie before the last changes.
    pub fn position_after(&self, step: u64, sequences: u64, skips: &Skips) -> u64 {
        let mut then = self.clone();
        then.go_back(step);
        let end = self.changes.get(then.changes.len()).map_or(sequences, |next| next.position);
        then.position_of(step.saturating_add(1), end, skips)
    }

    /// Forgets changes after a step, but for the first that is remembered.
    pub fn go_back(&mut self, step: u64) {
        let changes = self.changes.partition_point(|change| change.step <= step);
        self.changes.truncate(changes.max(1));
    }

    /// Where step `step` begins and how large it is; `None` if it was skipped, is past the end, or is forgotten.
    pub fn find(&self, step: u64, order: &EpochOrder, skips: &Skips) -> Option<BatchChange> {
        let index = self.changes.iter().rposition(|change| change.step <= step)?;
        let change = self.changes[index];
        let batch = u64::from(change.global_batch);
        let nominal = (step - change.step).checked_mul(batch)?.checked_add(change.position)?;
        let end = self.changes.get(index + 1).map_or(order.sequences(), |next| next.position);
        if nominal >= end {
            return None;
        }
        let position = first_from(change, nominal, skips);
        let is_there = position < end.min(nominal + batch);
        is_there.then_some(BatchChange { position, step, global_batch: change.global_batch })
    }

    fn current(&self) -> BatchChange {
        *self.changes.last().expect("never empty")
    }
}

/// Where the first step begins, of those since `change`, that begins at or after `position`.
fn first_from(change: BatchChange, position: u64, skips: &Skips) -> u64 {
    let batch = u64::from(change.global_batch);
    let steps_before = skips.live_within(change.position..position).div_ceil(batch);
    skips.nth_live(change.position, steps_before * batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Packing, StreamSettings, Tail};

    #[test]
    fn a_step_that_straddles_a_skipped_range_begins_where_it_really_does() {
        let settings = StreamSettings { lanes: 4, ..StreamSettings::auto(1, Packing::Pad, None, 1, 8) };
        let order = EpochOrder::new(&[100], &settings, 0);
        let mut steps = StepNumbers::new(8);
        let mut skips = Skips::default();
        skips.add(24..40).unwrap();
        steps.change(8, 5);
        // Positions 23, 40, 41, 42 and 43 are step 4, so step 8 begins at 44, not at 8 + (8 - 1) * 5 = 43.
        let step_4 = |skips: &Skips| {
            let found = steps.find(4, &order, skips).unwrap();
            order.step_at(found.position, skips, 5, Tail::Pad).unwrap()
        };
        let before = step_4(&skips);
        assert_eq!(steps.find(8, &order, &skips).unwrap().position, 44);
        skips.add(steps.position_of(8, 100, &skips)..steps.position_of(9, 100, &skips)).unwrap();
        assert_eq!(step_4(&skips), before);
    }
}
