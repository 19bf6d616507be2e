use std::ops::Range;

use crate::{LaneWalk, Lanes, Line, Place, Rank, Skips, Span, StreamSettings};

/// One epoch's order: which sequence is at which position, and where its tokens are.
///
/// A pure function of the row groups' sizes, the settings and the epoch. Building it costs a sort of the row
/// groups; asking it costs a search among them and a shuffle of one window.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    line: Line,
    lanes: Lanes,
    units_per_sequence: u64,
}

/// What happens to an epoch's last step when too few sequences are left to fill it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// Missing sequences are padding, masked out of the labels, and spread evenly over the ranks.
    #[default]
    Pad,
    /// The step is left out.
    Drop,
    /// It is filled up from the epoch's beginning.
    Wrap,
    /// There must be none: refused before the first step.
    Error,
}

/// The sequences of one step, before they are divided among ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Sorted by lane, then position, so that a rank's slice touches few lanes.
    positions: Vec<u64>,
    global_batch: u32,
    first: u64,
    next: u64,
}

impl EpochOrder {
    /// The order of `epoch` over row groups with these sizes in units ([`crate::Manifest::sizes`]).
    ///
    /// # Panics
    /// If the settings do not pass [`StreamSettings::check`].
    pub fn new(sizes: &[u64], settings: &StreamSettings, epoch: u64) -> Self {
        settings.check().expect("checked settings");
        let line = if settings.shuffle {
            Line::shuffled(sizes, settings.seed, epoch)
        } else {
            Line::in_file_order(sizes)
        };
        let units_per_sequence = settings.units_per_sequence();
        let sequences = line.units().div_ceil(units_per_sequence);
        let lanes = Lanes::new(sequences, settings.lanes, settings.window, settings.seed, epoch);
        Self { line, lanes, units_per_sequence }
    }

    /// Sequences of the epoch; the same in every epoch.
    pub fn sequences(&self) -> u64 {
        self.line.units().div_ceil(self.units_per_sequence)
    }

    /// The lane of a position, and how many the lane delivers before it.
    pub fn place(&self, position: u64) -> Place {
        self.lanes.place(position)
    }

    /// The sequence on the line at a position.
    pub fn sequence(&self, position: u64) -> u64 {
        self.lanes.sequence(self.lanes.place(position))
    }

    /// A walker along one lane, for many positions of it.
    pub fn walk(&self, lane: u32) -> LaneWalk {
        self.lanes.walk(lane)
    }

    /// The sequences of the line that a lane holds.
    pub fn sequences_of(&self, lane: u32) -> Range<u64> {
        self.lanes.sequences_of(lane)
    }

    /// Units of the line that a sequence takes; only the last of the line may be short.
    pub fn units(&self, sequence: u64) -> Range<u64> {
        let start = sequence * self.units_per_sequence;
        start..(start + self.units_per_sequence).min(self.line.units())
    }

    /// Units that every sequence takes but the last.
    pub fn units_per_sequence(&self) -> u64 {
        self.units_per_sequence
    }

    /// The parts of row groups under a range of the line.
    pub fn spans(&self, units: Range<u64>) -> impl Iterator<Item = Span> + '_ {
        self.line.spans(units)
    }

    /// How the line is cut into lanes.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The line itself.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// The step that begins with the first live position at or after `from`; `None` when the epoch is over.
    pub fn step_at(&self, from: u64, skips: &Skips, global_batch: u32, tail: Tail) -> Option<StepPlan> {
        let mut plan = StepPlan::default();
        self.step_into(&mut plan, from, skips, global_batch, tail).then_some(plan)
    }

    /// [`step_at`](Self::step_at) in memory that is there already. False when the epoch is over.
    pub fn step_into(
        &self,
        plan: &mut StepPlan,
        from: u64,
        skips: &Skips,
        global_batch: u32,
        tail: Tail,
    ) -> bool {
        let sequences = self.sequences();
        let positions = &mut plan.positions;
        positions.clear();
        let live = skips.live_from(from).take(global_batch as usize);
        positions.extend(live.take_while(|&position| position < sequences));
        let (Some(&first), Some(&last)) = (positions.first(), positions.last()) else { return false };
        let missing = global_batch as usize - positions.len();
        let next = if missing == 0 { last + 1 } else { sequences };
        if missing > 0 {
            match tail {
                Tail::Pad | Tail::Error => {}
                Tail::Drop => return false,
                Tail::Wrap => {
                    let live: Vec<u64> = skips
                        .live_from(0)
                        .take_while(|&position| position < sequences)
                        .take(missing)
                        .collect();
                    positions.extend(live.iter().cycle().take(missing));
                }
            }
        }
        positions.sort_unstable_by_key(|&position| (self.lanes.place(position).lane, position));
        (plan.global_batch, plan.first, plan.next) = (global_batch, first, next);
        true
    }

    /// Steps from position `from` to the epoch's end.
    pub fn steps_from(&self, from: u64, skips: &Skips, global_batch: u32, tail: Tail) -> u64 {
        let live = skips.live_within(from..self.sequences());
        match tail {
            Tail::Drop => live / u64::from(global_batch),
            Tail::Pad | Tail::Wrap | Tail::Error => live.div_ceil(u64::from(global_batch)),
        }
    }
}

impl StepPlan {
    /// The positions that a rank delivers, in the order of its batch. Fewer than [`Self::rows`] at a padded tail.
    pub fn positions(&self, rank: Rank) -> &[u64] {
        let share = rank.share(self.positions.len() as u64);
        &self.positions[share.start as usize..share.end as usize]
    }

    /// Rows of the rank's batch, padding included: the same at every step.
    pub fn rows(&self, rank: Rank) -> usize {
        let share = rank.share(u64::from(self.global_batch));
        (share.end - share.start) as usize
    }

    /// All positions of the step, over all ranks.
    pub fn all_positions(&self) -> &[u64] {
        &self.positions
    }

    /// The first live position of the step.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Where the stream stands once the step is delivered.
    pub fn next(&self) -> u64 {
        self.next
    }
}

impl Tail {
    /// The word used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pad => "pad",
            Self::Drop => "drop",
            Self::Wrap => "wrap",
            Self::Error => "error",
        }
    }
}

impl std::str::FromStr for Tail {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        [Self::Pad, Self::Drop, Self::Wrap, Self::Error]
            .into_iter()
            .find(|tail| tail.name() == word)
            .ok_or_else(|| format!("unknown tail {word:?}; it is \"pad\", \"drop\", \"wrap\" or \"error\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packing;

    fn golden(window: u32) -> EpochOrder {
        // Rows of [[5, 3], [8], [0], [13, 1], [40], [2, 2, 2], [31]] tokens.
        let sizes = [8, 8, 0, 14, 40, 6, 31];
        let settings =
            StreamSettings { lanes: 4, window, ..StreamSettings::auto(4, Packing::Concat, None, 7, 4) };
        EpochOrder::new(&sizes, &settings, 0)
    }

    #[test]
    fn golden_order_of_version_1() {
        let order = golden(4);
        assert_eq!(order.line().row_groups().collect::<Vec<_>>(), [5, 4, 3, 6, 1, 0, 2]);
        assert_eq!(order.sequences(), 27);
        let sequences: Vec<u64> = (0..27).map(|position| order.sequence(position)).collect();
        assert_eq!(
            sequences,
            [
                2, 14, 8, 21, 0, 15, 9, 26, 6, 18, 12, 23, 1, 16, 7, 24, 5, 17, 10, 22, 3, 20, 13, 25, 4, 19,
                11
            ]
        );
        let order = golden(2);
        let sequences: Vec<u64> = (0..27).map(|position| order.sequence(position)).collect();
        assert_eq!(
            sequences,
            [
                0, 15, 7, 22, 2, 17, 9, 21, 1, 14, 10, 25, 3, 16, 8, 23, 5, 19, 11, 26, 4, 18, 13, 24, 6, 20,
                12
            ]
        );
        assert_eq!(order.units(26), 104..107);
    }

    #[test]
    fn tails_pad_drop_wrap() {
        let order = golden(4);
        let step = |tail| order.step_at(20, &Skips::default(), 10, tail);
        let padded = step(Tail::Pad).unwrap();
        assert_eq!((padded.all_positions().len(), padded.first(), padded.next()), (7, 20, 27));
        assert_eq!(step(Tail::Drop), None);
        let wrapped = step(Tail::Wrap).unwrap();
        let mut positions = wrapped.all_positions().to_vec();
        positions.sort_unstable();
        assert_eq!(positions, [0, 1, 2, 20, 21, 22, 23, 24, 25, 26]);
        assert_eq!(wrapped.next(), 27);
        assert_eq!(order.step_at(27, &Skips::default(), 10, Tail::Wrap), None);
        assert_eq!(order.steps_from(0, &Skips::default(), 10, Tail::Pad), 3);
        assert_eq!(order.steps_from(0, &Skips::default(), 10, Tail::Drop), 2);
    }

    #[test]
    fn wrapping_repeats_an_epoch_smaller_than_a_step() {
        let order = golden(4);
        let step = order.step_at(0, &Skips::default(), 60, Tail::Wrap).unwrap();
        let mut counts = [0; 27];
        step.all_positions().iter().for_each(|&position| counts[position as usize] += 1);
        assert_eq!(counts.iter().sum::<i32>(), 60);
        assert!(counts.iter().all(|count| (2..=3).contains(count)));
    }
}
