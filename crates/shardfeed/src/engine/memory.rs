use std::collections::BTreeSet;

use shardfeed_plan::{LaneWalk, StreamState, steps_ahead};

use super::EngineSettings;
use crate::line_reader::LineSource;
use crate::page_memory::{PageMemory, WORK_BYTES_USUAL};
use crate::slot::Slot;
use crate::{Error, Result};

/// How an engine divides its memory.
pub(crate) struct MemoryPlan {
    pub(super) limits: Limits,
    pub(super) page_memory: PageMemory,
}

/// How much an engine prepares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Steps that may be open at once.
    pub steps_ahead: usize,
    /// Sequences that a lane may hold decoded.
    pub lane_slots: usize,
    /// Sequences that a lane may decode beyond what is needed soon, to be done with a page.
    pub slots_beyond: usize,
    /// Sequences that all lanes and steps may hold together.
    pub slots_max: usize,
    /// Sequences that are rather passed over than decoded.
    pub jump_min: u64,
}

/// One being taken, one being made.
const STEPS_AHEAD_MIN: u64 = 2;
/// Tokens of a page of 1 MiB with ids of 16 bits, as most writers make them, and some: what is worth decoding in one go.
const TOKENS_BEYOND: u64 = 5 << 17;

/// Divides the budget among windows, pages and steps; an error if it is too small for the settings.
pub(crate) fn plan_memory(
    source: &LineSource,
    state: &StreamState,
    settings: &EngineSettings,
) -> Result<MemoryPlan> {
    let (budget, threads) = (settings.memory_budget, settings.threads.max(1));
    let (rows, seq_len) = (settings.shape.rows as u64, settings.shape.seq_len as u64);
    let lanes = lanes_of(source, state, settings);
    let window_bytes: u64 = lanes.iter().map(|&lane| lane_bytes(source, lane)).sum();
    let page_bytes = threads as u64 * WORK_BYTES_USUAL;
    // A batch, and the sequences it is made of.
    let step_bytes = (settings.shape.bytes() + rows * Slot::bytes(seq_len)).max(1);
    // The trainer's own comes on top.
    let needed = window_bytes + page_bytes + (STEPS_AHEAD_MIN + 1) * step_bytes;
    if budget < needed {
        return Err(Error::Budget {
            given: budget,
            needed,
            because: format!(
                "{} lanes take {window_bytes} for their windows, {threads} threads {page_bytes} for their pages, and \
                 {} steps {step_bytes} each; allow more, use more ranks, or choose a smaller window or fewer lanes \
                 where a run begins",
                lanes.len(),
                STEPS_AHEAD_MIN + 1
            ),
        });
    }
    let wanted = steps_ahead(rows, seq_len);
    let steps_ahead = ((budget - window_bytes - page_bytes) / step_bytes - 1).min(wanted);
    let left = budget - window_bytes - page_bytes - (steps_ahead + 1) * step_bytes;
    // Half of what is left, at most: pages have to be kept where they cannot be decoded in one go.
    let slots_left = left / 2 / Slot::bytes(seq_len);
    let slots_beyond = (slots_left / (lanes.len() as u64).max(1)).min(TOKENS_BEYOND / seq_len);
    let for_pages = page_bytes + left - slots_beyond * lanes.len() as u64 * Slot::bytes(seq_len);
    Ok(MemoryPlan {
        limits: Limits {
            steps_ahead: steps_ahead as usize,
            lane_slots: (window_slots(source) + slots_beyond) as usize,
            slots_beyond: slots_beyond as usize,
            slots_max: (lanes.len() as u64 * (window_slots(source) + SLOTS_BESIDES + slots_beyond)
                + (steps_ahead + 1) * rows) as usize,
            jump_min: source.settings.window.into(),
        },
        page_memory: PageMemory::within(budget, for_pages, threads),
    })
}

/// The sequence of a lane that is being decoded, one by itself, and its neighbour.
const SLOTS_BESIDES: u64 = 3;

/// Sequences that a lane holds where nothing is decoded beyond what is needed soon.
fn window_slots(source: &LineSource) -> u64 {
    // Two windows, since the two passes overlap.
    2 * u64::from(source.settings.window) + 1
}

/// Bytes that a lane may hold, its page left out: its window, the sequence being decoded, one by itself with its
/// neighbour, and the shuffles of its walk.
fn lane_bytes(source: &LineSource, lane: u32) -> u64 {
    let sequences = source.order.sequences_of(lane);
    let slots = window_slots(source).min(sequences.end - sequences.start + 1) + SLOTS_BESIDES;
    slots * Slot::bytes(source.settings.seq_len.into()) + LaneWalk::bytes(source.settings.window.into())
}

/// The lanes that the rank visits as the epoch goes on. Steps repeat their lanes after a while.
fn lanes_of(source: &LineSource, state: &StreamState, settings: &EngineSettings) -> BTreeSet<u32> {
    let (lanes, batch) = (u64::from(source.settings.lanes), u64::from(state.steps.global_batch()));
    let steps_until_repeat = lanes / gcd(lanes, batch);
    if steps_until_repeat * batch > 1 << 18 || settings.rank.world_size() == 1 {
        return (0..source.settings.lanes.min(source.order.sequences().min(1 << 20) as u32)).collect();
    }
    let mut visited = BTreeSet::new();
    let mut position = state.position;
    for _ in 0..steps_until_repeat {
        let step = source.order.step_at(position, &state.skips, state.steps.global_batch(), settings.tail);
        let Some(step) = step else { break };
        visited
            .extend(step.positions(settings.rank).iter().map(|&position| source.order.place(position).lane));
        position = step.next();
    }
    visited
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
