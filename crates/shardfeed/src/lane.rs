use std::sync::Arc;

use shardfeed_plan::LaneWalk;

use crate::Result;
use crate::page_memory::PageMemory;
use crate::slot::Sequence;
use crate::window::{LineSource, Window};

/// One lane of the epoch: delivers its sequences in shuffled order out of a window that slides along the line.
pub(crate) struct Lane {
    source: Arc<LineSource>,
    memory: Arc<PageMemory>,
    walk: LaneWalk,
    window: Option<Window>,
    sequences_max: usize,
}

impl Lane {
    pub fn new(source: &Arc<LineSource>, lane: u32, memory: &Arc<PageMemory>) -> Self {
        Self {
            source: Arc::clone(source),
            memory: Arc::clone(memory),
            walk: source.order.walk(lane),
            window: None,
            sequences_max: window_sequences(source, lane) as usize,
        }
    }

    /// Shows the sequence that the lane delivers after `index` others; `is_first_step` of the engine's.
    pub fn deliver<T>(
        &mut self,
        index: u64,
        is_first_step: bool,
        take: impl FnOnce(&Sequence) -> T,
    ) -> Result<T> {
        let sequence = self.walk.sequence(index);
        let floor = self.walk.floor(index);
        // The first batch after a start must not wait for whole windows: each of its sequences opens its own row
        // group, or two. And what a wrapped tail takes from the epoch's beginning was delivered before.
        let is_alone = match &self.window {
            Some(window) => window.has_delivered(sequence) || (is_first_step && sequence > window.end()),
            None => is_first_step && sequence > floor,
        };
        if is_alone {
            return Window::open(&self.source, sequence, 1, &self.memory).deliver(sequence, take);
        }
        // After a long skip, going there is quicker than decoding everything up to it.
        let jump_min = u64::from(self.source.settings.window);
        self.window.take_if(|window| floor > window.end() + jump_min);
        let window = self
            .window
            .get_or_insert_with(|| Window::open(&self.source, floor, self.sequences_max, &self.memory));
        window.forget_before(floor);
        if sequence >= window.end() && !is_first_step {
            // All that is needed soon, in one go: it takes a while until a dictionary is in the processor's cache.
            window.decode_to(self.walk.ceiling(index))?;
        }
        window.deliver(sequence, take)
    }

    /// Whether something that is needed after `index` can be decoded already.
    pub fn can_go_ahead(&self, index: u64) -> bool {
        let end = self.walk.ceiling_ahead(index);
        self.window.as_ref().is_some_and(|window| window.can_decode_to(end))
    }

    /// Decodes what is needed after `index`, so that no delivery waits for it.
    pub fn go_ahead(&mut self, index: u64) -> Result<()> {
        let end = self.walk.ceiling_ahead(index);
        self.window.as_mut().map_or(Ok(()), |window| window.decode_to(end))
    }

    /// Nobody asks for a while.
    pub fn park(&mut self) {
        if let Some(window) = &mut self.window {
            window.park();
        }
    }
}

/// Sequences that the window of a lane may hold at once.
fn window_sequences(source: &LineSource, lane: u32) -> u64 {
    let sequences = source.order.sequences_of(lane);
    // Two windows, since the two passes overlap.
    (2 * u64::from(source.settings.window)).min(sequences.end - sequences.start) + 1
}

/// Bytes that a lane may hold, its page left out: its window, a sequence by itself, and the shuffles of its walk.
pub(crate) fn lane_bytes(source: &LineSource, lane: u32) -> u64 {
    let seq_len = u64::from(source.settings.seq_len);
    let window = Window::bytes(window_sequences(source, lane), seq_len);
    window + Window::bytes(1, seq_len) + LaneWalk::bytes(source.settings.window.into())
}
