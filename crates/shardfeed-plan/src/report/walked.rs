use super::stretch::{Ground, Load, Stretch};
use super::{Basis, EpochShape, RankLoad};
use crate::Rank;

/// Lanes that several ranks share: who reads what is counted, over all steps of a small epoch and over consecutive
/// steps in the middle of a large one.
pub(super) struct WalkedLanes {
    /// What whole steps deliver, lane by lane.
    reads: Vec<Read>,
    /// Where each lane begins in `reads`, and where the last ends.
    lane_starts: Vec<usize>,
    /// What a short last step delivers, lane by lane.
    short_step: Vec<(u32, Read)>,
    /// Lane by lane, in line order.
    blocks: Vec<Stretch>,
    /// What the counted steps can be read from, and what the whole epoch can.
    counted: Load,
    there_is: Load,
    basis: Basis,
}

/// One sequence that is delivered.
#[derive(Clone, Copy)]
struct Read {
    /// Its place in its step.
    slot: u32,
    /// Its block, in `blocks`.
    block: u32,
}

/// Positions that are looked at, at most, or one step: eight bytes and a shuffle of one element or two each.
const POSITIONS_MAX: u64 = 1 << 20;
/// Windows that a lane must have in the steps looked at, so that some are whole.
const WINDOWS_MIN: u64 = 4;
/// The block of a sequence that is read with others outside the steps looked at.
const CUT: u32 = u32::MAX;

impl WalkedLanes {
    pub fn new(ground: &Ground<'_>, shape: EpochShape) -> Self {
        Self::within(ground, shape, POSITIONS_MAX)
    }

    fn within(ground: &Ground<'_>, shape: EpochShape, positions_max: u64) -> Self {
        let lanes = u64::from(ground.settings.lanes);
        let batch = u64::from(shape.global_batch);
        let steps = (positions_max / batch).max(1);
        let basis = if steps >= shape.steps() {
            Basis::Exact
        } else if steps * batch >= WINDOWS_MIN * ground.block_sequences() * lanes {
            Basis::Sampled { steps, of: shape.steps() }
        } else {
            Basis::WholeLanes { steps, of: shape.steps() }
        };
        let steps = match basis {
            Basis::Exact => 0..shape.whole_steps,
            _ => (shape.whole_steps - steps) / 2..(shape.whole_steps - steps) / 2 + steps,
        };
        let first = steps.start * batch;
        let mut slots = vec![0; ((steps.end - steps.start) * batch) as usize];
        for step in steps {
            for (position, slot) in shape.positions(ground.order, step).into_iter().zip(0_u32..) {
                slots[(position - first) as usize] = slot;
            }
        }
        let short_step = match basis {
            Basis::Exact if shape.has_short_step() => shape.positions(ground.order, shape.whole_steps),
            _ => Vec::new(),
        };
        let mut walked = Self {
            reads: Vec::with_capacity(slots.len()),
            lane_starts: vec![0],
            short_step: Vec::with_capacity(short_step.len()),
            blocks: Vec::new(),
            counted: Load::default(),
            there_is: Load::default(),
            basis,
        };
        let mut short_step = short_step.into_iter().zip(0..).peekable();
        for lane in 0..ground.settings.lanes {
            // Positions of a step are sorted by lane.
            let of_short_step =
                std::iter::from_fn(|| short_step.next_if(|(at, _)| ground.order.place(*at).lane == lane));
            walked.walk(ground, lane, first, &slots, &of_short_step.collect::<Vec<_>>());
        }
        walked
    }

    /// Goes along one lane.
    fn walk(&mut self, ground: &Ground<'_>, lane: u32, first: u64, slots: &[u32], short_step: &[(u64, u32)]) {
        let order = ground.order;
        let lanes = u64::from(ground.settings.lanes);
        let line = order.sequences_of(lane);
        let blocks = ground.blocks(lane);
        let whole_lane = Load { blocks: blocks.count(), ..ground.stretch(line.clone()).load };
        self.there_is.add(&whole_lane);

        // Deliveries of the lane among the positions looked at.
        let turn = u64::from(order.lanes().turn_of(lane));
        let delivery = |position: u64| position.saturating_sub(turn).div_ceil(lanes);
        let counted = delivery(first)..delivery(first + slots.len() as u64);
        let of_short_step = short_step.iter().map(|&(position, _)| order.place(position).index);
        let mut walk = order.walk(lane);
        let by_whole_lanes = matches!(self.basis, Basis::WholeLanes { .. });
        let numbers: Vec<u64> = counted
            .clone()
            .chain(of_short_step)
            .map(|index| if by_whole_lanes { 0 } else { blocks.number(walk.sequence(index) - line.start) })
            .collect();
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut last_row_group = None;
        let reach = u64::from(ground.settings.window);
        let mut blocks_of_distinct = Vec::with_capacity(distinct.len());
        for &number in &distinct {
            let mut indexes = blocks.indexes(number);
            if by_whole_lanes {
                indexes = 0..whole_lane.sequences;
            } else if self.basis != Basis::Exact {
                // The two shuffles deliver a sequence less than a window before or after its block.
                let deliveries =
                    indexes.start.saturating_sub(reach)..(indexes.end + reach).min(whole_lane.sequences);
                if deliveries.start < counted.start || deliveries.end > counted.end {
                    blocks_of_distinct.push(CUT);
                    continue;
                }
            }
            let mut stretch = ground.stretch(ground.on_line(lane, &indexes));
            if by_whole_lanes {
                stretch.load.blocks = whole_lane.blocks;
            }
            self.counted.add(&stretch.load);
            self.counted.row_groups -= u64::from(last_row_group == Some(stretch.first_row_group));
            last_row_group = Some(stretch.last_row_group);
            blocks_of_distinct.push(self.blocks.len() as u32);
            self.blocks.push(stretch);
        }
        let slots = counted.map(|index| slots[(index * lanes + turn - first) as usize]);
        let slots = slots.chain(short_step.iter().map(|&(_, slot)| slot));
        let mut reads: Vec<Read> = slots
            .zip(&numbers)
            .map(|(slot, number)| {
                let block = distinct.binary_search(number).map_or(CUT, |at| blocks_of_distinct[at]);
                Read { slot, block }
            })
            .collect();
        let of_short_step = reads.split_off(reads.len() - short_step.len());
        self.short_step.extend(of_short_step.into_iter().map(|read| (lane, read)));
        self.reads.extend(reads);
        self.lane_starts.push(self.reads.len());
    }

    /// What the ranks read, what there is, and how that is known.
    pub fn among(&self, shape: EpochShape, world_size: u32) -> (Vec<RankLoad>, Load, Basis) {
        let mut ranks = vec![RankLoad::default(); world_size as usize];
        let mut short_step = self.short_step.iter().peekable();
        let mut lane_last_seen = vec![u32::MAX; world_size as usize];
        let mut reads: Vec<(u32, u32)> = Vec::new();
        for lane in 0..self.lane_starts.len() as u32 - 1 {
            reads.clear();
            for read in self.of_lane(lane) {
                let rank = Rank::index_of(read.slot.into(), shape.global_batch.into(), world_size);
                reads.push((rank, read.block));
            }
            let whole_steps = reads.len();
            while let Some((_, read)) = short_step.next_if(|(of, _)| *of == lane) {
                let rank = Rank::index_of(read.slot.into(), shape.short_step_sequences(), world_size);
                reads.push((rank, read.block));
            }
            let visits = if shape.whole_steps == 0 { &reads } else { &reads[..whole_steps] };
            for &(rank, _) in visits {
                let seen = std::mem::replace(&mut lane_last_seen[rank as usize], lane);
                ranks[rank as usize].lanes += u64::from(seen != lane);
            }
            self.add_blocks(&mut reads, &mut ranks);
        }
        let share = |of: u64, counted: u64, there_is: u64| {
            if counted == 0 {
                0
            } else {
                (u128::from(of) * u128::from(there_is) / u128::from(counted)) as u64
            }
        };
        if self.basis != Basis::Exact {
            let (counted, there_is) = (&self.counted, &self.there_is);
            for rank in &mut ranks {
                rank.sequences_read = share(rank.sequences_read, counted.sequences, there_is.sequences);
                rank.blocks = share(rank.blocks, counted.blocks, there_is.blocks);
                rank.bytes = share(rank.bytes, counted.bytes, there_is.bytes);
                rank.row_groups = share(rank.row_groups, counted.row_groups, there_is.row_groups);
            }
        }
        (ranks, self.there_is, self.basis)
    }

    pub fn ranks_of(&self, shape: EpochShape, lane: u32, world_size: u32) -> Vec<u32> {
        let rank = |read: &Read| Rank::index_of(read.slot.into(), shape.global_batch.into(), world_size);
        let mut ranks: Vec<u32> = self.of_lane(lane).iter().map(rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn of_lane(&self, lane: u32) -> &[Read] {
        &self.reads[self.lane_starts[lane as usize]..self.lane_starts[lane as usize + 1]]
    }

    /// Adds the blocks of one lane to the ranks that read them, each once.
    fn add_blocks(&self, reads: &mut Vec<(u32, u32)>, ranks: &mut [RankLoad]) {
        reads.retain(|&(_, block)| block != CUT);
        reads.sort_unstable();
        reads.dedup();
        let mut before = None;
        for &(rank, block) in reads.iter() {
            let stretch = &self.blocks[block as usize];
            ranks[rank as usize].add(&stretch.load);
            let is_open = before == Some((rank, stretch.first_row_group));
            ranks[rank as usize].row_groups -= u64::from(is_open);
            before = Some((rank, stretch.last_row_group));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpochOrder, Packing, RowGroup, StreamSettings, Tail};

    fn relative(a: u64, b: u64) -> f64 {
        (a as f64 / b as f64 - 1.0).abs()
    }

    #[test]
    fn some_steps_tell_what_all_would_and_whole_lanes_are_never_less() {
        for (lanes, window, global_batch, positions_until_repeat) in
            [(8, 16, 48, 48), (12, 10, 32, 96), (64, 8, 100, 1600), (1, 1, 32, 32)]
        {
            let shuffle = lanes > 1;
            let sizes: Vec<u64> = (0..400).map(|group| 100 + crate::mix(group) % 100).collect();
            let groups: Vec<RowGroup> = sizes
                .iter()
                .map(|&tokens| RowGroup {
                    file: 0,
                    number: 0,
                    rows: tokens,
                    tokens,
                    documents: tokens,
                    chunk_start: 4,
                    chunk_len: tokens * 3,
                    codec: 0,
                })
                .collect();
            let auto = StreamSettings::auto(1 << 13, Packing::Pad, None, 7, global_batch);
            let settings = StreamSettings { shuffle, lanes, window, ..auto };
            let order = EpochOrder::new(&sizes, &settings, 0);
            let ground = Ground { row_groups: &groups, order: &order, settings: &settings };
            let sequences = order.sequences();
            let whole_steps = sequences / u64::from(global_batch);
            let shape = EpochShape { global_batch, tail: Tail::Pad, sequences, whole_steps };
            let all = WalkedLanes::within(&ground, shape, u64::MAX);
            let some = WalkedLanes::within(&ground, shape, sequences / 3);
            let few = WalkedLanes::within(&ground, shape, positions_until_repeat);
            for world_size in [1, 3, 8, 17, 31] {
                let (exact, there_is, basis) = all.among(shape, world_size);
                assert_eq!(basis, Basis::Exact);
                let (sampled, same, basis) = some.among(shape, world_size);
                assert!(matches!(basis, Basis::Sampled { .. }) && same == there_is, "{basis:?}");
                let (by_lane, same, basis) = few.among(shape, world_size);
                assert!(matches!(basis, Basis::WholeLanes { .. }) && same == there_is, "{basis:?}");
                let sum = |ranks: &[RankLoad]| ranks.iter().map(|rank| rank.bytes).sum::<u64>();
                assert!(relative(sum(&sampled), sum(&exact)) < 0.03, "{} {}", sum(&sampled), sum(&exact));
                assert!(sum(&by_lane) as f64 > 0.97 * sum(&exact) as f64);
                for (sampled, exact) in sampled.iter().zip(&exact) {
                    assert_eq!(sampled.lanes, exact.lanes);
                    for figure in [
                        |load: &RankLoad| load.bytes,
                        |load: &RankLoad| load.blocks,
                        |load: &RankLoad| load.sequences_read,
                        |load: &RankLoad| load.row_groups,
                    ] {
                        assert!(relative(figure(sampled), figure(exact)) < 0.25, "{sampled:?} {exact:?}");
                    }
                }
            }
        }
    }
}
