use std::collections::VecDeque;
use std::sync::Arc;

use shardfeed_plan::{EpochOrder, Packing, StreamSettings};

use crate::decode::{RowGroupCursor, Segment};
use crate::page_memory::PageMemory;
use crate::slot::{Sequence, Slot};
use crate::{DataSet, Error, Result};

/// Decoded sequences around the place where a lane stands on the line of its epoch.
///
/// Grows at its end as sequences are asked for, shrinks at its beginning as they are no longer needed. Each sequence
/// has a slot, which is free for another as soon as it is delivered: the memory last read is the next written.
pub(crate) struct Window {
    source: Arc<LineSource>,
    memory: Arc<PageMemory>,
    /// Sequences from `first` on, those delivered left out. The last one may be incomplete.
    live: VecDeque<Option<Slot>>,
    first: u64,
    free: Vec<Slot>,
    /// Slots there are, and may be if nobody asks for more.
    slots: usize,
    slots_max: usize,
    /// The row group being decoded.
    reading: Option<Reading>,
    /// Units of a damaged row group that are still to be put down as missing.
    missing: u64,
    /// Unit of the line that the next row group to open begins at, or is entered at.
    next_unit: u64,
}

/// What all windows of an epoch share.
pub(crate) struct LineSource {
    pub data: Arc<DataSet>,
    pub order: EpochOrder,
    pub settings: StreamSettings,
    pub on_corrupt: OnCorrupt,
}

/// What happens to a row group that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCorrupt {
    /// The stream ends with an error that names it.
    #[default]
    Error,
    /// Its tokens are replaced in place by padding that is masked out of the labels. All other sequences, steps and ranks
    /// stay as they were. To know before the first of its tokens is delivered, each row group is read through once when it
    /// is first opened.
    Mask,
}

impl std::str::FromStr for OnCorrupt {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "error" => Ok(Self::Error),
            "mask" => Ok(Self::Mask),
            other => Err(format!("unknown on_corrupt {other:?}; it is \"error\" or \"mask\"")),
        }
    }
}

struct Reading {
    cursor: RowGroupCursor,
    /// Units still to be passed over before the window begins.
    discard: u64,
    /// Tokens of the current row so far; 0 before the first.
    row_len: u64,
    /// With `Pad`: sequences that began so far, and that the manifest says there are.
    begun: u64,
    units: u64,
    row_group: u32,
}

impl Window {
    /// Bytes of a window with room for this many sequences.
    pub fn bytes(sequences: u64, seq_len: u64) -> u64 {
        // The one that is being filled comes on top.
        (sequences + 1) * Slot::bytes(seq_len)
    }

    /// A window that begins with `sequence` and holds at most so many at once.
    pub fn open(source: &Arc<LineSource>, sequence: u64, sequences: usize, memory: &Arc<PageMemory>) -> Self {
        Self {
            source: Arc::clone(source),
            memory: Arc::clone(memory),
            // Delivered ones leave holes.
            live: VecDeque::with_capacity(sequences + sequences / 2 + 1),
            first: sequence,
            free: Vec::with_capacity(sequences + 1),
            slots: 0,
            slots_max: sequences,
            reading: None,
            missing: 0,
            next_unit: source.order.units(sequence).start,
        }
    }

    /// One past the last sequence that is decoded completely.
    pub fn end(&self) -> u64 {
        self.first + (self.live.len() as u64).saturating_sub(1)
    }

    /// Whether a sequence is behind the window, or was taken out of it.
    pub fn has_delivered(&self, sequence: u64) -> bool {
        sequence < self.first || self.live.get((sequence - self.first) as usize).is_some_and(Option::is_none)
    }

    /// Decodes as far as needed, shows one sequence, which must not be delivered yet, and then frees its slot.
    pub fn deliver<T>(&mut self, sequence: u64, take: impl FnOnce(&Sequence) -> T) -> Result<T> {
        let index = (sequence - self.first) as usize;
        let units = self.source.order.units(sequence);
        let full = match self.source.settings.packing {
            Packing::Concat => (units.end - units.start) as usize,
            // A piece has at least one token, and ends with its row or where the next begins.
            Packing::Pad => 1,
        };
        while !self.is_settled(index, full) {
            self.decode_more()?;
        }
        let slot = self.live[index].take().expect("not delivered yet");
        let taken = take(&slot.sequence());
        self.free.push(slot);
        Ok(taken)
    }

    /// Decodes as far as `end`: somebody will ask for it.
    pub fn decode_to(&mut self, end: u64) -> Result<()> {
        while self.can_decode_to(end) {
            self.decode_more()?;
        }
        Ok(())
    }

    /// Whether there is anything to decode before `end`, and room for it.
    pub fn can_decode_to(&self, end: u64) -> bool {
        let has_room = !self.free.is_empty() || self.slots < self.slots_max;
        self.end() < end && has_room && self.next_unit_is_there()
    }

    fn next_unit_is_there(&self) -> bool {
        self.reading.is_some() || self.missing > 0 || self.next_unit < self.source.order.line().units()
    }

    /// A sequence can be shown once it is complete and what follows it in its row is known: another sequence has
    /// begun behind it, or its row group is over.
    fn is_settled(&self, index: usize, full: usize) -> bool {
        match (index + 1).cmp(&self.live.len()) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => {
                self.reading.is_none()
                    && self.missing == 0
                    && self.live[index].as_ref().is_some_and(|slot| slot.len() >= full)
            }
            std::cmp::Ordering::Greater => false,
        }
    }

    /// Sequences before this one are not needed any more.
    pub fn forget_before(&mut self, sequence: u64) {
        // The last one may be incomplete.
        while self.first < sequence && self.live.len() > 1 {
            self.free.extend(self.live.pop_front().flatten());
            self.first += 1;
        }
    }

    /// Nobody asks for a while.
    pub fn park(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.cursor.park();
        }
    }

    fn decode_more(&mut self) -> Result<()> {
        if self.missing > 0 {
            self.put_missing();
            return Ok(());
        }
        let Some(mut reading) = self.reading.take() else { return self.open_row_group() };
        match self.source.settings.packing {
            Packing::Concat => {
                if self.decode_units(&mut reading)? {
                    self.reading = Some(reading);
                }
            }
            Packing::Pad => {
                if self.decode_piece(&mut reading)? {
                    self.reading = Some(reading);
                }
            }
        }
        Ok(())
    }

    /// Puts down a slot's worth of what is missing.
    fn put_missing(&mut self) {
        let seq_len = self.source.settings.seq_len as usize;
        let (count, begins) = match self.source.settings.packing {
            // How many tokens a piece had, nobody knows: one stands for all.
            Packing::Pad => (1, true),
            Packing::Concat => {
                let used = self.live.back().and_then(Option::as_ref).map_or(seq_len, Slot::len);
                let room = if used == seq_len { seq_len } else { seq_len - used };
                (self.missing.min(room as u64) as usize, used == seq_len)
            }
        };
        if begins {
            self.begin_slot();
        }
        self.live.back_mut().and_then(Option::as_mut).expect("just begun").append_masked(count);
        self.missing -= count as u64;
    }

    /// Decodes up to the end of the row or of the slot. False at the end of the row group.
    fn decode_units(&mut self, reading: &mut Reading) -> Result<bool> {
        let seq_len = self.source.settings.seq_len as usize;
        let used = self.live.back().and_then(Option::as_ref).map_or(0, |slot| slot.len() % seq_len);
        let segment = reading.cursor.segment(seq_len - used)?;
        let row_ends = reading.row_len > 0 && segment.is_none_or(|segment| segment.starts_row);
        if let (true, Some(eos_id)) = (row_ends, self.source.settings.eos_id) {
            if reading.discard > 0 {
                reading.discard -= 1;
            } else {
                self.write(1, false, |out| {
                    out[0] = eos_id;
                    Ok(())
                })?;
                // It took the place of one of them, which goes on in the next slot.
                if let Some(Segment { tokens, starts_row }) = segment
                    && tokens == seq_len - used
                    && used + 1 < seq_len
                {
                    self.take_units(reading, starts_row, tokens - 1)?;
                    self.take_units(reading, false, 1)?;
                    return Ok(true);
                }
            }
        }
        let Some(Segment { starts_row, tokens }) = segment else { return Ok(false) };
        self.take_units(reading, starts_row, tokens)?;
        Ok(true)
    }

    fn take_units(&mut self, reading: &mut Reading, starts_row: bool, tokens: usize) -> Result<()> {
        if starts_row {
            reading.row_len = 0;
        }
        reading.row_len += tokens as u64;
        let discarded = reading.discard.min(tokens as u64) as usize;
        if discarded > 0 {
            reading.discard -= discarded as u64;
            reading.cursor.skip(discarded)?;
        }
        if tokens > discarded {
            let cursor = &mut reading.cursor;
            self.write(tokens - discarded, starts_row && discarded == 0, |out| cursor.read_into(out))?;
        }
        Ok(())
    }

    /// Appends tokens of one row to the slot being filled, which has room for them, or to a new one if it is full.
    fn write(
        &mut self,
        tokens: usize,
        starts_row: bool,
        write: impl FnOnce(&mut [u32]) -> Result<()>,
    ) -> Result<()> {
        let seq_len = self.source.settings.seq_len as usize;
        let is_full =
            self.live.back().is_none_or(|slot| slot.as_ref().is_none_or(|slot| slot.len() == seq_len));
        if is_full {
            self.begin_slot();
        }
        let slot = self.live.back_mut().and_then(Option::as_mut).expect("just begun");
        let first = slot.append(tokens, starts_row, write)?;
        if is_full && !starts_row {
            self.set_next_of_previous(Some(first));
        }
        Ok(())
    }

    fn begin_slot(&mut self) {
        let seq_len = self.source.settings.seq_len;
        let mut slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            Slot::new(seq_len)
        });
        slot.clear();
        self.live.push_back(Some(slot));
    }

    /// What follows the last token of the sequence before the one just begun, unless it is delivered.
    fn set_next_of_previous(&mut self, next: Option<u32>) {
        if let Some(previous) = self.live.len().checked_sub(2)
            && let Some(slot) = &mut self.live[previous]
        {
            slot.next = next;
        }
    }

    /// Decodes up to the end of the piece or of the page. False at the end of the row group.
    fn decode_piece(&mut self, reading: &mut Reading) -> Result<bool> {
        let seq_len = u64::from(self.source.settings.seq_len);
        let eos_id = self.source.settings.eos_id;
        // Up to the end of the piece, so that the next segment begins the next one.
        let Some(segment) = reading.cursor.segment((seq_len - reading.row_len % seq_len) as usize)? else {
            if reading.begun > 0
                && let Some(Some(last)) = self.live.back_mut()
            {
                last.next = eos_id;
            }
            self.check_pieces(reading)?;
            return Ok(false);
        };
        if segment.starts_row {
            reading.row_len = 0;
        }
        let starts_piece = reading.row_len.is_multiple_of(seq_len);
        if starts_piece {
            reading.begun += 1;
            reading.discard = reading.discard.saturating_sub(1);
        }
        let continues_row = reading.row_len > 0;
        reading.row_len += segment.tokens as u64;
        if reading.discard > 0 {
            reading.cursor.skip(segment.tokens)?;
            return Ok(true);
        }
        if starts_piece {
            self.begin_slot();
        }
        let slot = self.live.back_mut().and_then(Option::as_mut).expect("a piece is begun before it goes on");
        let first = slot.append(segment.tokens, !continues_row, |out| reading.cursor.read_into(out))?;
        if starts_piece {
            self.set_next_of_previous(if continues_row { Some(first) } else { eos_id });
        }
        Ok(true)
    }

    /// A row group of other sequences than the manifest says would shift all that follow.
    fn check_pieces(&self, reading: &Reading) -> Result<()> {
        if reading.begun == reading.units {
            return Ok(());
        }
        let manifest = self.source.data.manifest();
        let facts = manifest.row_groups()[reading.row_group as usize];
        Err(Error::Damaged {
            path: self.source.data.path(facts.file).to_owned(),
            row_group: facts.number,
            reason: format!(
                "its rows make {} sequences where {} were counted before, so remove the cached manifest and scan again",
                reading.begun, reading.units
            ),
        })
    }

    fn open_row_group(&mut self) -> Result<()> {
        let row_group = self.source.order.line().row_group_at(self.next_unit);
        let (row_group, units) = row_group.expect("nobody asks past the end of the line");
        let into = self.next_unit - units.start;
        self.next_unit = units.end;
        if self.source.on_corrupt == OnCorrupt::Mask && !self.source.data.is_sound(row_group, &self.memory)? {
            self.missing = units.end - units.start - into;
            return Ok(());
        }
        let mut cursor = self.source.data.open_row_group_within(row_group, &self.memory)?;
        let settings = &self.source.settings;
        let discard = match settings.packing {
            Packing::Concat if into > 0 => into - cursor.skip_pages(into, settings.eos_id.is_some())?,
            // Pieces are passed over by their beginnings, and the one that begins the window begins too.
            Packing::Pad if into > 0 => into + 1,
            _ => 0,
        };
        let units = units.end - units.start;
        self.reading = Some(Reading { cursor, discard, row_len: 0, begun: 0, units, row_group });
        Ok(())
    }
}
