use std::collections::VecDeque;

use crate::line_reader::LineReader;
use crate::slot::Slot;

/// One lane of the epoch, as the engine sees it: what is decoded of it, and who waits for more.
#[derive(Default)]
pub(super) struct Lane {
    /// Away while a thread decodes; `None` also before the first time and after an error.
    pub reader: Option<Box<LineReader>>,
    pub is_busy: bool,
    /// Sequences from `first` on that are decoded; those taken leave holes.
    shelf: VecDeque<Option<Slot>>,
    first: u64,
    /// Slots on the shelf.
    live: usize,
    /// Rows whose sequences are not decoded yet, in the order in which they are to be delivered.
    pub wanted: VecDeque<Wanted>,
    /// No sequence below this one is wanted by a row that is planned from now on.
    floor: u64,
    /// Up to where it is worth decoding before somebody waits.
    pub ahead: u64,
    pub is_queued_to_go_ahead: bool,
    /// One past the last of its sequences.
    pub last: u64,
}

/// A row of an open step that waits for its sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub step: u64,
    pub row: usize,
    pub sequence: u64,
    /// Where a reader has to begin, and how far it should go in one turn.
    pub floor: u64,
    pub ceiling: u64,
}

/// What becomes of a row.
pub(super) enum Answer {
    /// Its sequence is here.
    Here(Slot),
    /// It was decoded before and is gone: a wrapped tail takes sequences of the epoch's beginning again.
    Gone,
    /// It comes when the lane is decoded further.
    Later,
}

impl Lane {
    /// One past the last sequence that is decoded.
    pub fn end(&self) -> u64 {
        self.first + self.shelf.len() as u64
    }

    pub fn live(&self) -> usize {
        self.live
    }

    /// A row is planned. Later rows ask for nothing below its `floor`, unless they wrap around.
    pub fn ask(&mut self, sequence: u64, floor: u64) -> Answer {
        let is_behind = floor < self.floor;
        self.floor = self.floor.max(floor);
        match self.take(sequence) {
            Some(slot) => Answer::Here(slot),
            None if is_behind || sequence < self.end() => Answer::Gone,
            None => Answer::Later,
        }
    }

    fn take(&mut self, sequence: u64) -> Option<Slot> {
        let index = sequence.checked_sub(self.first)?;
        let slot = self.shelf.get_mut(index as usize)?.take();
        self.live -= usize::from(slot.is_some());
        slot
    }

    /// Sequences were decoded. Gives those that are waited for to `give`, and what nobody will ask for to `free`.
    pub fn add(&mut self, decoded: &mut Vec<Slot>, free: &mut Vec<Slot>, mut give: impl FnMut(Wanted, Slot)) {
        self.live += decoded.len();
        self.shelf.extend(decoded.drain(..).map(Some));
        for _ in 0..self.wanted.len() {
            let wanted = self.wanted.pop_front().expect("as many as there are");
            match self.take(wanted.sequence) {
                Some(slot) => give(wanted, slot),
                None => self.wanted.push_back(wanted),
            }
        }
        self.forget(free);
    }

    /// Lets go of what no row that is planned from now on asks for.
    pub fn forget(&mut self, free: &mut Vec<Slot>) {
        while self.first < self.floor
            && let Some(slot) = self.shelf.pop_front()
        {
            self.first += 1;
            self.live -= usize::from(slot.is_some());
            free.extend(slot);
        }
    }

    /// Goes somewhere else.
    pub fn restart(&mut self, at: u64, free: &mut Vec<Slot>) {
        free.extend(self.shelf.drain(..).flatten());
        (self.first, self.live) = (at, 0);
    }
}
