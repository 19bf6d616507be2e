use std::sync::Arc;

use shardfeed_plan::LaneWalk;

use crate::Result;
use crate::page_limit::PageLimit;
use crate::window::{LineSource, Sequence, Window};

/// One lane of the epoch: delivers its sequences in shuffled order out of a window that slides along the line.
pub(crate) struct Lane {
    source: Arc<LineSource>,
    walk: LaneWalk,
    window: Option<Window>,
    /// A sequence read by itself, while the window is not there or does not reach back to it.
    alone: Option<Window>,
    tokens_max: usize,
    page_limit: PageLimit,
}

impl Lane {
    pub fn new(source: &Arc<LineSource>, lane: u32, page_limit: PageLimit) -> Self {
        Self {
            source: Arc::clone(source),
            walk: source.order.walk(lane),
            window: None,
            alone: None,
            tokens_max: window_tokens(source, lane) as usize,
            page_limit,
        }
    }

    /// The sequence that the lane delivers after `index` others; `is_first_step` of the engine's.
    pub fn sequence(&mut self, index: u64, is_first_step: bool) -> Result<Sequence<'_>> {
        let sequence = self.walk.sequence(index);
        let floor = self.walk.floor(index);
        // The first batch after a start must not wait for whole windows: each of its sequences opens its own row
        // group, or two. And what a wrapped tail takes from the epoch's beginning is behind every window.
        let is_alone = match &self.window {
            Some(window) => sequence < window.start() || (is_first_step && sequence > window.end()),
            None => is_first_step && sequence > floor,
        };
        if is_alone {
            let tokens = self.source.settings.seq_len as usize;
            let alone = self.alone.insert(Window::open(&self.source, sequence, tokens, self.page_limit));
            return alone.sequence(sequence);
        }
        self.alone = None;
        // After a long skip, going there is quicker than decoding everything up to it.
        let jump_min = u64::from(self.source.settings.window);
        self.window.take_if(|window| floor > window.end() + jump_min);
        let window = self
            .window
            .get_or_insert_with(|| Window::open(&self.source, floor, self.tokens_max, self.page_limit));
        window.forget_before(floor);
        window.sequence(sequence)
    }
}

/// Sequences that the window of a lane may hold at once.
fn window_sequences(source: &LineSource, lane: u32) -> u64 {
    let sequences = source.order.sequences_of(lane);
    // Two windows, since the two passes overlap, and the label of the last token.
    (2 * u64::from(source.settings.window)).min(sequences.end - sequences.start) + 1
}

fn window_tokens(source: &LineSource, lane: u32) -> u64 {
    window_sequences(source, lane) * u64::from(source.settings.seq_len)
}

/// Bytes that a lane may hold, its page left out: its window, a sequence by itself, and the shuffles of its walk.
pub(crate) fn lane_bytes(source: &LineSource, lane: u32) -> u64 {
    let window = Window::bytes(window_sequences(source, lane), window_tokens(source, lane));
    let alone = Window::bytes(2, u64::from(source.settings.seq_len));
    window + alone + LaneWalk::bytes(source.settings.window.into())
}
