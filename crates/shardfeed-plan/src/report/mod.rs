//! What a job of any world size would read and hold, worked out from the manifest alone.
//!
//! Nothing here costs ranks × files. What does not depend on the world size is worked out once, in
//! [`EpochPlan::new`]; each world size then costs a pass over the lanes.

mod stretch; // sequences of the line   -> bytes, row groups; blocks of a lane
mod owned; // lanes of one rank each    -> what ranks read, exactly
mod walked; // lanes that ranks share   -> what ranks read, counted step by step
mod quality; // an order                -> how well it is shuffled
mod memory; // lanes, rows              -> bytes that a rank holds

pub use memory::{MemoryNeeds, RankMemory, steps_ahead};
pub use quality::ShuffleQuality;

use crate::{EpochOrder, Manifest, Rank, RankError, SettingsError, Skips, StreamSettings, Tail};
use owned::OwnedLanes;
use stretch::{Ground, Load};
use walked::WalkedLanes;

/// One epoch of a data set, ready to be asked what a job of any world size reads of it.
///
/// ```
/// use shardfeed_plan::*;
///
/// let column = TokenColumn { name: "input_ids".into(), ids: IdType::I32, present_level: 3, nullable_items: true };
/// let file = DataFile { name: "a".into(), size: 5000, modified_ns: 0, column, pieces: vec![] };
/// let group = RowGroup { file: 0, number: 0, rows: 9, tokens: 999, documents: 9, chunk_start: 4, chunk_len: 4000, codec: 0 };
/// let manifest = Manifest::new(vec![(file, vec![group; 40])]).unwrap();
///
/// let settings = StreamSettings::auto(16, Packing::Concat, None, 7, 8);
/// let plan = EpochPlan::new(&manifest, &settings, 0, 8, Tail::Pad).unwrap();
/// let on_four_ranks = plan.report(4).unwrap();
/// assert_eq!(on_four_ranks.ranks.len(), 4);
/// assert!(on_four_ranks.amplification < 1.05);
/// ```
pub struct EpochPlan<'a> {
    manifest: &'a Manifest,
    settings: StreamSettings,
    order: EpochOrder,
    shape: EpochShape,
    reading: Reading,
    quality: Option<ShuffleQuality>,
}

/// An epoch cut into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochShape {
    global_batch: u32,
    tail: Tail,
    sequences: u64,
    /// Steps that are full without a tail's help.
    whole_steps: u64,
}

/// Who reads which lanes.
enum Reading {
    Owned(OwnedLanes),
    Walked(WalkedLanes),
}

/// What the ranks of one world size read in the epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanReport {
    /// How many ranks.
    pub world_size: u32,
    /// What each rank reads, by its index.
    pub ranks: Vec<RankLoad>,
    /// How the figures of reading came about.
    pub basis: Basis,
    /// Bytes that all ranks read, by the bytes there are.
    pub amplification: f64,
    /// Window blocks that all ranks read, by the blocks there are.
    pub amplification_of_blocks: f64,
    /// Sequences of the blocks that a rank reads, by those that it delivers: of the rank with the most.
    pub amplification_of_worst_rank: f64,
}

/// What one rank delivers and reads in the epoch.
///
/// A lane is read in blocks, the windows of its first shuffle; a rank reads a block if it delivers one of its
/// sequences. Seeking to the first page of a lane is not counted, and neither is the very first batch after a
/// start, whose sequences are read by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Sequences that it delivers, padding left out. Always exact.
    pub sequences: u64,
    /// Lanes that it visits, a short last step left out unless it is the only one.
    pub lanes: u64,
    /// Sequences of the blocks that it reads.
    pub sequences_read: u64,
    /// Blocks that it reads.
    pub blocks: u64,
    /// Bytes of the token column under those blocks: a part of a row group takes its share of the row group's bytes.
    pub bytes: u64,
    /// Row groups that it opens. One that two of its lanes share counts twice, since both open it.
    pub row_groups: u64,
}

/// How the figures of a report came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// By arithmetic or by counting: every step is in them.
    Exact,
    /// Counted over some steps in the middle of the epoch, and scaled up.
    Sampled {
        /// Steps that were counted.
        steps: u64,
        /// Steps there are.
        of: u64,
    },
    /// Windows are too long to be counted over so few steps: a rank is taken to read all of each lane that it
    /// visits in them.
    WholeLanes {
        /// Steps that were looked at.
        steps: u64,
        /// Steps there are.
        of: u64,
    },
}

/// The least, the mean and the most of a figure over the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Spread {
    pub min: u64,
    pub mean: f64,
    pub max: u64,
}

/// The largest world size that a report is made for: it lists every rank.
pub const WORLD_SIZE_MAX: u32 = 1 << 20;
/// The largest global batch that is planned: whole steps are held while they are looked at.
pub const GLOBAL_BATCH_MAX: u32 = 1 << 20;

/// What cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// See [`SettingsError`].
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// See [`RankError`].
    #[error(transparent)]
    Rank(#[from] RankError),
    /// No sequences a step, or more than are planned.
    #[error("the global batch is {0}; a plan is made for 1 to {GLOBAL_BATCH_MAX} sequences a step")]
    GlobalBatch(u32),
    /// More ranks than sequences.
    #[error(
        "the global batch is {global_batch} for {world_size} ranks; each rank needs at least one sequence a step: \
         give a global batch of at least {world_size}, or at most {global_batch} ranks"
    )]
    TooManyRanks {
        /// Ranks asked for.
        world_size: u32,
        /// Sequences of a step.
        global_batch: u32,
    },
    /// More ranks than can be listed.
    #[error("the world size is {0}; a plan lists every rank, and at most {WORLD_SIZE_MAX}")]
    WorldSize(u32),
    /// Packing `Pad` without counts.
    #[error("rows are not counted at seq_len {0}; scan with it")]
    Uncounted(u32),
    /// Nothing to deliver.
    #[error("the data set has no tokens")]
    Empty,
    /// A last step that the tail does not allow, or leaves nothing of.
    #[error("the epoch has {sequences} sequences and a step takes {global_batch}: with tail \"{}\" there is no such \
             epoch; choose tail \"pad\", or another global batch", .tail.name())]
    Tail {
        /// Sequences of the epoch.
        sequences: u64,
        /// Sequences of a step.
        global_batch: u32,
        /// The tail asked for.
        tail: Tail,
    },
}

impl<'a> EpochPlan<'a> {
    /// Plans an epoch. Costs a sort of the row groups, a pass over them, and a bounded number of steps looked at.
    pub fn new(
        manifest: &'a Manifest,
        settings: &StreamSettings,
        epoch: u64,
        global_batch: u32,
        tail: Tail,
    ) -> Result<Self, PlanError> {
        settings.check()?;
        if !(1..=GLOBAL_BATCH_MAX).contains(&global_batch) {
            return Err(PlanError::GlobalBatch(global_batch));
        }
        let sizes = manifest.sizes(settings).ok_or(PlanError::Uncounted(settings.seq_len))?;
        let order = EpochOrder::new(&sizes, settings, epoch);
        let sequences = order.sequences();
        let shape =
            EpochShape { global_batch, tail, sequences, whole_steps: sequences / u64::from(global_batch) };
        if sequences == 0 {
            return Err(PlanError::Empty);
        }
        if (tail == Tail::Error && shape.rest() > 0) || shape.steps() == 0 {
            return Err(PlanError::Tail { sequences, global_batch, tail });
        }
        let ground = Ground { row_groups: manifest.row_groups(), order: &order, settings };
        // A lane that comes once in a while of whole steps always falls to the same rank.
        let reading = if settings.lanes.is_multiple_of(global_batch) && shape.whole_steps > 0 {
            Reading::Owned(OwnedLanes::new(&ground, shape))
        } else {
            Reading::Walked(WalkedLanes::new(&ground, shape))
        };
        let quality = ShuffleQuality::measure(&order, &sizes, settings, shape);
        Ok(Self { manifest, settings: settings.clone(), order, shape, reading, quality })
    }

    /// What the ranks of a job of this world size read.
    pub fn report(&self, world_size: u32) -> Result<PlanReport, PlanError> {
        // The rules of a rank first, so that their words are the same everywhere.
        Rank::new(0, world_size)?;
        let global_batch = self.shape.global_batch;
        if world_size > global_batch {
            return Err(PlanError::TooManyRanks { world_size, global_batch });
        }
        if world_size > WORLD_SIZE_MAX {
            return Err(PlanError::WorldSize(world_size));
        }
        let ground = self.ground();
        let (mut ranks, there_is, basis) = match &self.reading {
            Reading::Owned(lanes) => lanes.among(&ground, self.shape, world_size),
            Reading::Walked(lanes) => lanes.among(self.shape, world_size),
        };
        let mut read = Load::default();
        let mut worst = 0_f64;
        for (index, rank) in (0..).zip(&mut ranks) {
            rank.sequences = self.shape.delivered_by(Rank::new(index, world_size)?);
            read.blocks += rank.blocks;
            read.bytes += rank.bytes;
            if rank.sequences > 0 {
                worst = worst.max(rank.sequences_read as f64 / rank.sequences as f64);
            }
        }
        let ratio =
            |read: u64, there_is: u64| if there_is == 0 { 1.0 } else { read as f64 / there_is as f64 };
        Ok(PlanReport {
            world_size,
            ranks,
            basis,
            amplification: ratio(read.bytes, there_is.bytes),
            amplification_of_blocks: ratio(read.blocks, there_is.blocks),
            amplification_of_worst_rank: worst,
        })
    }

    /// The ranks that deliver a lane, sorted: one of them, if lanes are a multiple of the global batch; all that were
    /// seen in the steps looked at, if not.
    pub fn ranks_of_lane(&self, lane: u32, world_size: u32) -> Vec<u32> {
        match &self.reading {
            Reading::Owned(lanes) => lanes.rank_of(self.shape, lane, world_size).into_iter().collect(),
            Reading::Walked(lanes) => lanes.ranks_of(self.shape, lane, world_size),
        }
    }

    /// How well the epoch is shuffled, at any world size. `None` without a whole step, or when windows are so long
    /// that looking at one step would take seconds.
    pub fn quality(&self) -> Option<&ShuffleQuality> {
        self.quality.as_ref()
    }

    /// What a rank of a report holds in memory, estimated.
    pub fn memory(&self, report: &PlanReport, rank: u32, needs: &MemoryNeeds) -> RankMemory {
        let rows = Rank::new(rank, report.world_size)
            .map_or(0..0, |rank| rank.share(u64::from(self.shape.global_batch)));
        let lanes = report.ranks.get(rank as usize).map_or(0, |rank| rank.lanes);
        let lane_sequences = self.shape.sequences.div_ceil(u64::from(self.settings.lanes));
        RankMemory::estimate(&self.settings, needs, lanes, lane_sequences, rows.end - rows.start)
    }

    /// The order that is planned.
    pub fn order(&self) -> &EpochOrder {
        &self.order
    }

    /// The settings that define it.
    pub fn settings(&self) -> &StreamSettings {
        &self.settings
    }

    /// What is in the data set.
    pub fn manifest(&self) -> &Manifest {
        self.manifest
    }

    /// Sequences of a step.
    pub fn global_batch(&self) -> u32 {
        self.shape.global_batch
    }

    /// Steps of the epoch.
    pub fn steps(&self) -> u64 {
        self.shape.steps()
    }

    /// What becomes of sequences that fill no step.
    pub fn tail(&self) -> Tail {
        self.shape.tail
    }

    /// Sequences that are left for a last, short step; 0 if there is none.
    pub fn tail_sequences(&self) -> u64 {
        self.shape.rest()
    }

    /// Bytes of the token column that the epoch is made of.
    pub fn bytes(&self) -> u64 {
        let has_units = |units: &std::ops::Range<u64>| !units.is_empty();
        let groups = self.order.line().row_group_units().filter(|(_, units)| has_units(units));
        groups.map(|(group, _)| self.manifest.row_groups()[group as usize].chunk_len).sum()
    }

    fn ground(&self) -> Ground<'_> {
        Ground { row_groups: self.manifest.row_groups(), order: &self.order, settings: &self.settings }
    }
}

impl EpochShape {
    /// Sequences that no whole step takes.
    fn rest(self) -> u64 {
        self.sequences - self.whole_steps * u64::from(self.global_batch)
    }

    /// Whether there is a step that is not whole.
    fn has_short_step(self) -> bool {
        self.rest() > 0 && self.tail != Tail::Drop
    }

    fn steps(self) -> u64 {
        self.whole_steps + u64::from(self.has_short_step())
    }

    /// Sequences that the short last step delivers.
    fn short_step_sequences(self) -> u64 {
        match self.tail {
            _ if self.rest() == 0 => 0,
            Tail::Drop => 0,
            Tail::Wrap => u64::from(self.global_batch),
            Tail::Pad | Tail::Error => self.rest(),
        }
    }

    fn delivered_by(self, rank: Rank) -> u64 {
        let len = |n| rank.share(n).end - rank.share(n).start;
        self.whole_steps * len(u64::from(self.global_batch)) + len(self.short_step_sequences())
    }

    /// Positions of a step, in the order in which ranks share them.
    fn positions(self, order: &EpochOrder, step: u64) -> Vec<u64> {
        let from = step * u64::from(self.global_batch);
        let plan = order.step_at(from, &Skips::default(), self.global_batch, self.tail);
        plan.map_or(Vec::new(), |plan| plan.all_positions().to_vec())
    }
}

impl PlanReport {
    /// The spread of a figure over the ranks.
    pub fn spread(&self, figure: impl Fn(&RankLoad) -> u64) -> Spread {
        let figures = || self.ranks.iter().map(&figure);
        Spread {
            min: figures().min().unwrap_or(0),
            mean: figures().map(|figure| figure as f64).sum::<f64>() / self.ranks.len().max(1) as f64,
            max: figures().max().unwrap_or(0),
        }
    }

    /// The rank that visits the most lanes, and so holds the most: the first of them.
    pub fn rank_of_most_lanes(&self) -> u32 {
        let most = self.spread(|rank| rank.lanes).max;
        self.ranks.iter().position(|rank| rank.lanes == most).unwrap_or(0) as u32
    }
}

/// Row groups begin and end sequences in the middle: those that begin in this range of units.
fn sequences_that_begin_in(units: &std::ops::Range<u64>, units_per_sequence: u64) -> std::ops::Range<u64> {
    units.start.div_ceil(units_per_sequence)..units.end.div_ceil(units_per_sequence)
}
