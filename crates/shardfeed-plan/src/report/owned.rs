use std::ops::Range;

use super::stretch::{Ground, Load};
use super::{Basis, EpochShape, RankLoad};
use crate::{Rank, Tail};

/// Lanes that belong to one rank each, as they do when their number is a multiple of the global batch: a step has
/// at most one sequence of a lane, and always the same place for it. Only a short last step deals them anew.
pub(super) struct OwnedLanes {
    lanes: Vec<OwnedLane>,
    there_is: Load,
    /// What the short last step reads; also, with `Tail::Drop`, what it would have read.
    short_step: Vec<ShortStepRead>,
    /// Left out where its windows are too many and too long to be shuffled for it.
    is_short_step_known: bool,
}

struct OwnedLane {
    /// The place of its sequences in steps; `None` for a lane so short that no whole step has one.
    slot: Option<u32>,
    load: Load,
}

struct ShortStepRead {
    /// `None` if it is dropped.
    slot: Option<u32>,
    lane: u32,
    /// Indexes of the block that holds the sequence.
    block: Range<u64>,
    /// Whether the position comes again from the epoch's beginning.
    is_wrapped: bool,
}

/// Elements of windows that are shuffled at most to learn what the short last step reads.
const SHUFFLED_MAX: u64 = 1 << 25;

impl OwnedLanes {
    pub fn new(ground: &Ground<'_>, shape: EpochShape) -> Self {
        let order = ground.order;
        let mut there_is = Load::default();
        let mut lanes: Vec<OwnedLane> = (0..ground.settings.lanes)
            .map(|lane| {
                let mut load = ground.stretch(order.sequences_of(lane)).load;
                load.blocks = ground.blocks(lane).count();
                there_is.add(&load);
                OwnedLane { slot: None, load }
            })
            .collect();
        let steps_until_repeat = u64::from(ground.settings.lanes / shape.global_batch);
        for step in 0..steps_until_repeat.min(shape.whole_steps) {
            for (position, slot) in shape.positions(order, step).into_iter().zip(0..) {
                lanes[order.place(position).lane as usize].slot = Some(slot);
            }
        }
        let lane_sequences = shape.sequences / u64::from(ground.settings.lanes) + 1;
        let shuffled_per_position = 2 * u64::from(ground.settings.window).min(lane_sequences);
        let is_short_step_known = u64::from(shape.global_batch) * shuffled_per_position <= SHUFFLED_MAX;
        let short_step = if is_short_step_known { short_step_reads(ground, shape) } else { Vec::new() };
        Self { lanes, there_is, short_step, is_short_step_known }
    }

    /// What the ranks read, what there is, and how that is known.
    pub fn among(
        &self,
        ground: &Ground<'_>,
        shape: EpochShape,
        world_size: u32,
    ) -> (Vec<RankLoad>, Load, Basis) {
        let mut ranks = vec![RankLoad::default(); world_size as usize];
        for lane in 0..self.lanes.len() as u32 {
            if let Some(rank) = self.rank_of(shape, lane, world_size) {
                ranks[rank as usize].lanes += 1;
                ranks[rank as usize].add(&self.lanes[lane as usize].load);
            }
        }
        let mut reads_of_others: Vec<(u32, u32, u64, u64)> = Vec::new();
        for read in &self.short_step {
            let of = shape.short_step_sequences();
            let reader = read.slot.map(|slot| Rank::index_of(slot.into(), of, world_size));
            let owner = self.rank_of(shape, read.lane, world_size);
            if reader == owner {
                continue;
            }
            reads_of_others.extend(reader.map(|rank| (rank, read.lane, read.block.start, read.block.end)));
            // A block of this sequence alone is no longer read by the lane's owner.
            let is_alone = read.block.end - read.block.start == 1 && !read.is_wrapped;
            if let Some(owner) = owner.filter(|_| is_alone) {
                self.leave_out(ground, read, &mut ranks[owner as usize]);
            }
        }
        reads_of_others.sort_unstable();
        reads_of_others.dedup();
        let mut before = None;
        for (rank, lane, start, end) in reads_of_others {
            let stretch = ground.stretch(ground.on_line(lane, &(start..end)));
            ranks[rank as usize].add(&stretch.load);
            // The lane has it open already.
            let is_open = before == Some((rank, lane, stretch.first_row_group));
            ranks[rank as usize].row_groups -= u64::from(is_open);
            before = Some((rank, lane, stretch.last_row_group));
        }
        let basis = if self.is_short_step_known || shape.rest() == 0 {
            Basis::Exact
        } else {
            Basis::Sampled { steps: shape.whole_steps, of: shape.steps() }
        };
        (ranks, self.there_is, basis)
    }

    pub fn rank_of(&self, shape: EpochShape, lane: u32, world_size: u32) -> Option<u32> {
        let slot = self.lanes.get(lane as usize)?.slot?;
        Some(Rank::index_of(slot.into(), shape.global_batch.into(), world_size))
    }

    /// Takes a block at one end of a lane from its owner.
    fn leave_out(&self, ground: &Ground<'_>, read: &ShortStepRead, owner: &mut RankLoad) {
        let lane = &self.lanes[read.lane as usize].load;
        let rest = if read.block.start == 0 { read.block.end..lane.sequences } else { 0..read.block.start };
        let rest = ground.stretch(ground.on_line(read.lane, &rest)).load;
        owner.sequences_read -= lane.sequences - rest.sequences;
        owner.blocks -= 1;
        owner.bytes -= lane.bytes - rest.bytes;
        owner.row_groups -= lane.row_groups - rest.row_groups;
    }
}

impl RankLoad {
    pub(super) fn add(&mut self, load: &Load) {
        self.sequences_read += load.sequences;
        self.blocks += load.blocks;
        self.bytes += load.bytes;
        self.row_groups += load.row_groups;
    }
}

fn short_step_reads(ground: &Ground<'_>, shape: EpochShape) -> Vec<ShortStepRead> {
    let from = shape.sequences - shape.rest();
    let positions: Vec<(u64, Option<u32>)> = if shape.tail == Tail::Drop {
        (from..shape.sequences).map(|position| (position, None)).collect()
    } else {
        shape.positions(ground.order, shape.whole_steps).into_iter().zip((0..).map(Some)).collect()
    };
    let read = |(position, slot)| {
        let lane = ground.order.place(position).lane;
        let index = ground.order.sequence(position) - ground.order.sequences_of(lane).start;
        let blocks = ground.blocks(lane);
        let block = blocks.indexes(blocks.number(index));
        ShortStepRead { slot, lane, block, is_wrapped: position < from }
    };
    positions.into_iter().map(read).collect()
}
