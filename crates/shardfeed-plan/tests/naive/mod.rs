//! The order of a token stream written out as lists: slow, as large as the data, and meant to be believed at
//! a glance. It shares nothing with the crate but the shuffle of a short list, which has golden values.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;

use shardfeed_plan::{Packing, StreamSettings, Tail, fisher_yates, key};

/// A token of a row group, or a piece of a row: the row group and the index within it.
pub type Unit = (u32, u64);

/// One epoch, all of it in memory.
pub struct Epoch {
    /// What each sequence of the line holds.
    pub sequences: Vec<Vec<Unit>>,
    /// The sequence at each position.
    pub order: Vec<usize>,
    /// The lane that each position belongs to.
    pub lane_of: Vec<usize>,
}

impl Epoch {
    pub fn new(sizes: &[u64], settings: &StreamSettings, epoch: u64) -> Self {
        let (seed, lane_count, window) = (settings.seed, settings.lanes as usize, settings.window as usize);

        // Row groups by key; their units, one after another, are the line; the line is cut into sequences.
        let mut row_groups: Vec<u32> = (0..sizes.len() as u32).collect();
        if settings.shuffle {
            row_groups.sort_by_key(|&group| (key(&[seed, epoch, 1, u64::from(group)]), group));
        }
        let line: Vec<Unit> = row_groups
            .iter()
            .flat_map(|&group| (0..sizes[group as usize]).map(move |unit| (group, unit)))
            .collect();
        let units_per_sequence = match settings.packing {
            Packing::Concat => settings.seq_len as usize,
            Packing::Pad => 1,
        };
        let sequences: Vec<Vec<Unit>> = line.chunks(units_per_sequence).map(<[Unit]>::to_vec).collect();

        // Lanes take turns; a lane is as long as it has turns; lanes follow each other on the line.
        let visit = bit_reversed(lane_count);
        let lane_of: Vec<usize> = visit.iter().copied().cycle().take(sequences.len()).collect();
        let mut line_of_sequences = 0..sequences.len();
        let mut lanes: Vec<VecDeque<usize>> = Vec::new();
        for lane in 0..lane_count {
            let turns = lane_of.iter().filter(|&&other| other == lane).count();
            let in_line_order: Vec<usize> = line_of_sequences.by_ref().take(turns).collect();

            let turn = visit.iter().position(|&other| other == lane).unwrap();
            let offset = turn * window / lane_count;
            let key_of = |pass, block| key(&[seed, epoch, 2, lane as u64, pass, block]);
            let once = shuffle_blocks(&in_line_order, offset, window, |block| key_of(1, block));
            let offset = (offset + window / 2) % window;
            let twice = shuffle_blocks(&once, offset, window, |block| key_of(2, block));
            lanes.push(twice.into());
        }
        let order = lane_of.iter().map(|&lane| lanes[lane].pop_front().unwrap()).collect();
        Self { sequences, order, lane_of }
    }

    pub fn positions(&self) -> Range<u64> {
        0..self.order.len() as u64
    }

    /// All steps from position `from` to the end of the epoch: each a list of positions.
    pub fn steps(&self, from: u64, skipped: &[Range<u64>], global_batch: u32, tail: Tail) -> Vec<Vec<u64>> {
        let live: Vec<u64> = self
            .positions()
            .filter(|position| !skipped.iter().any(|range| range.contains(position)))
            .collect();
        let ahead: Vec<u64> = live.iter().copied().filter(|&position| position >= from).collect();
        let mut steps: Vec<Vec<u64>> = ahead.chunks(global_batch as usize).map(<[u64]>::to_vec).collect();

        let missing = steps.last().map_or(0, |last| global_batch as usize - last.len());
        match tail {
            Tail::Drop if missing > 0 => drop(steps.pop()),
            Tail::Wrap if missing > 0 => {
                steps.last_mut().unwrap().extend(live.iter().cycle().take(missing));
            }
            _ => {}
        }
        for step in &mut steps {
            step.sort_by_key(|&position| (self.lane_of[position as usize], position));
        }
        steps
    }

    /// The units of a position.
    pub fn units(&self, position: u64) -> &[Unit] {
        &self.sequences[self.order[position as usize]]
    }
}

/// A step cut into one piece per rank, the larger pieces first.
pub fn among_ranks(step: &[u64], world_size: u32) -> Vec<Vec<u64>> {
    let world_size = world_size as usize;
    let (each, rest) = (step.len() / world_size, step.len() % world_size);
    let (larger, smaller) = step.split_at(rest * (each + 1));
    let pieces = larger.chunks(each + 1).chain(smaller.chunks(each.max(1)));
    pieces.map(<[u64]>::to_vec).chain(iter::repeat(Vec::new())).take(world_size).collect()
}

/// `0..count` sorted by their binary digits read backwards.
fn bit_reversed(count: usize) -> Vec<usize> {
    let digits = (0..32).find(|&digits| 1 << digits >= count).unwrap();
    let backwards = |lane: &usize| format!("{lane:0digits$b}").chars().rev().collect::<String>();
    let mut lanes: Vec<usize> = (0..count).collect();
    lanes.sort_by_key(backwards);
    lanes
}

/// Cuts a list into blocks, the first of length `first`, the others of length `window`, and shuffles each.
fn shuffle_blocks(list: &[usize], first: usize, window: usize, key_of: impl Fn(u64) -> u64) -> Vec<usize> {
    let (head, rest) = list.split_at(first.min(list.len()));
    let blocks = iter::once(head).chain(rest.chunks(window));
    let mut shuffled = Vec::new();
    for (block, number) in blocks.zip(0..) {
        shuffled.extend(fisher_yates(block.len() as u32, key_of(number)).iter().map(|&i| block[i as usize]));
    }
    shuffled
}
