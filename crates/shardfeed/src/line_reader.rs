use std::sync::Arc;

use shardfeed_plan::{EpochOrder, Packing, StreamSettings};

use crate::decode::{Room, RowGroupCursor, Segment};
use crate::page_memory::PageMemory;
use crate::slot::{Slot, SlotPool};
use crate::{DataSet, Error, Result};

/// Decodes along the line of an epoch, sequence after sequence, each into a slot of its own.
pub(crate) struct LineReader {
    source: Arc<LineSource>,
    memory: Arc<PageMemory>,
    /// The sequence that is next to be complete.
    next: u64,
    /// What there is of it. May be all of it, while it is not known what follows in its row.
    current: Option<Slot>,
    /// The row group being decoded.
    reading: Option<Reading>,
    /// Units of a damaged row group that are still to be put down as missing.
    missing: u64,
    /// Unit of the line that the next row group to open begins at, or is entered at.
    next_unit: u64,
}

/// Slots to decode into, and those that hold a sequence.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    pub free: Vec<Slot>,
    /// Slots that may be made when none is free.
    pub to_make: usize,
    pub full: Vec<Slot>,
    /// Where slots are made.
    pub pool: SlotPool,
}

impl Tray {
    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.to_make > 0
    }

    fn slot(&mut self, seq_len: u32) -> Slot {
        let mut slot = self.free.pop().unwrap_or_else(|| {
            self.to_make = self.to_make.saturating_sub(1);
            self.pool.make(seq_len)
        });
        slot.clear();
        slot
    }
}

/// What all readers of an epoch share.
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

impl LineReader {
    /// Begins with `sequence`.
    pub fn open(source: &Arc<LineSource>, sequence: u64, memory: &Arc<PageMemory>) -> Self {
        Self {
            source: Arc::clone(source),
            memory: Arc::clone(memory),
            next: sequence,
            current: None,
            reading: None,
            missing: 0,
            next_unit: source.order.units(sequence).start,
        }
    }

    /// Decodes up to sequence `end`; and on to the end of the page, while there are slots and up to `last`: to come back
    /// to a page costs more than to go on with it. What is complete is there also when something behind it is damaged.
    pub fn read_to(&mut self, end: u64, last: u64, tray: &mut Tray) -> Result<()> {
        let goes_on =
            |reader: &Self, tray: &Tray| reader.next < last && tray.has_room() && !reader.is_between_pages();
        while (self.next < end || goes_on(self, tray)) && self.is_there_more() {
            self.decode_more(tray)?;
        }
        Ok(())
    }

    /// One sequence by itself.
    pub fn read_one(
        source: &Arc<LineSource>,
        sequence: u64,
        memory: &Arc<PageMemory>,
        pool: &SlotPool,
    ) -> Result<Slot> {
        let mut reader = Self::open(source, sequence, memory);
        let mut tray = Tray { pool: pool.clone(), ..Tray::default() };
        while reader.next == sequence {
            reader.decode_more(&mut tray)?;
        }
        Ok(tray.full.swap_remove(0))
    }

    /// Nobody asks for a while.
    pub fn park(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.cursor.park();
        }
    }

    /// Where it would stop by itself: what comes next has to be loaded.
    fn is_between_pages(&self) -> bool {
        self.reading.as_ref().is_none_or(|reading| reading.cursor.is_between_pages())
    }

    fn is_there_more(&self) -> bool {
        self.reading.is_some() || self.missing > 0 || self.next_unit < self.source.order.line().units()
    }

    fn decode_more(&mut self, tray: &mut Tray) -> Result<()> {
        if self.missing > 0 {
            self.put_missing(tray);
            return Ok(());
        }
        let Some(mut reading) = self.reading.take() else { return self.open_row_group() };
        let goes_on = match self.source.settings.packing {
            Packing::Concat => self.decode_units(&mut reading, tray)?,
            Packing::Pad => self.decode_piece(&mut reading, tray)?,
        };
        if goes_on {
            self.reading = Some(reading);
        } else {
            self.end_row_group(tray);
        }
        Ok(())
    }

    /// No row goes on in another row group: what is all there is complete.
    fn end_row_group(&mut self, tray: &mut Tray) {
        let units = self.source.order.units(self.next);
        let len = match self.source.settings.packing {
            Packing::Concat => (units.end - units.start) as usize,
            // A piece has at least one token, and ends with its row or where the next begins.
            Packing::Pad => 1,
        };
        if self.current.as_ref().is_some_and(|slot| slot.len() >= len) {
            self.complete(tray);
        }
    }

    fn complete(&mut self, tray: &mut Tray) {
        if let Some(slot) = self.current.take() {
            tray.full.push(slot);
            self.next += 1;
        }
    }

    /// Puts down a slot's worth of what is missing.
    fn put_missing(&mut self, tray: &mut Tray) {
        let seq_len = self.source.settings.seq_len as usize;
        let (count, begins) = match self.source.settings.packing {
            // How many tokens a piece had, nobody knows: one stands for all.
            Packing::Pad => (1, true),
            Packing::Concat => {
                let used = self.current.as_ref().map_or(seq_len, Slot::len);
                let room = if used == seq_len { seq_len } else { seq_len - used };
                (self.missing.min(room as u64) as usize, used == seq_len)
            }
        };
        if begins {
            self.complete(tray);
        }
        let seq_len = self.source.settings.seq_len;
        self.current.get_or_insert_with(|| tray.slot(seq_len)).append_masked(count);
        self.missing -= count as u64;
        if self.missing == 0 {
            self.end_row_group(tray);
        }
    }

    /// Decodes up to the end of the row or of the slot. False at the end of the row group.
    fn decode_units(&mut self, reading: &mut Reading, tray: &mut Tray) -> Result<bool> {
        let seq_len = self.source.settings.seq_len as usize;
        let used = self.current.as_ref().map_or(0, |slot| slot.len() % seq_len);
        let segment = reading.cursor.segment(seq_len - used)?;
        let row_ends = reading.row_len > 0 && segment.is_none_or(|segment| segment.starts_row);
        if let (true, Some(eos_id)) = (row_ends, self.source.settings.eos_id) {
            if reading.discard > 0 {
                reading.discard -= 1;
            } else {
                self.write(1, false, tray, |room| Ok(put(eos_id, room)))?;
                // It took the place of one of them, which goes on in the next slot.
                if let Some(Segment { tokens, starts_row }) = segment
                    && tokens == seq_len - used
                    && used + 1 < seq_len
                {
                    self.take_units(reading, starts_row, tokens - 1, tray)?;
                    self.take_units(reading, false, 1, tray)?;
                    return Ok(true);
                }
            }
        }
        let Some(Segment { starts_row, tokens }) = segment else { return Ok(false) };
        self.take_units(reading, starts_row, tokens, tray)?;
        Ok(true)
    }

    fn take_units(
        &mut self,
        reading: &mut Reading,
        starts_row: bool,
        tokens: usize,
        tray: &mut Tray,
    ) -> Result<()> {
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
            self.write(tokens - discarded, starts_row && discarded == 0, tray, |room| {
                cursor.read_room(room)
            })?;
        }
        Ok(())
    }

    /// Appends tokens of one row to the slot being filled, which has room for them, or to a new one if it is full.
    fn write(
        &mut self,
        tokens: usize,
        starts_row: bool,
        tray: &mut Tray,
        write: impl FnMut(Room) -> Result<bool>,
    ) -> Result<()> {
        let seq_len = self.source.settings.seq_len;
        if let Some(slot) = self.current.as_mut().filter(|slot| slot.len() < seq_len as usize) {
            slot.append(tokens, starts_row, write)?;
            return Ok(());
        }
        let mut slot = tray.slot(seq_len);
        let first = slot.append(tokens, starts_row, write)?;
        self.begin(slot, (!starts_row).then_some(first), tray);
        Ok(())
    }

    /// Goes on with a new slot. What follows in the row of the one before is known now.
    fn begin(&mut self, slot: Slot, next_of_previous: Option<u32>, tray: &mut Tray) {
        if let Some(previous) = &mut self.current {
            previous.next = next_of_previous;
        }
        self.complete(tray);
        self.current = Some(slot);
    }

    /// Decodes up to the end of the piece or of the page. False at the end of the row group.
    fn decode_piece(&mut self, reading: &mut Reading, tray: &mut Tray) -> Result<bool> {
        let seq_len = u64::from(self.source.settings.seq_len);
        let eos_id = self.source.settings.eos_id;
        // Up to the end of the piece, so that the next segment begins the next one.
        let Some(segment) = reading.cursor.segment((seq_len - reading.row_len % seq_len) as usize)? else {
            if reading.begun > 0
                && let Some(last) = &mut self.current
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
            let mut slot = tray.slot(self.source.settings.seq_len);
            let first = slot.append(segment.tokens, !continues_row, |room| reading.cursor.read_room(room))?;
            self.begin(slot, if continues_row { Some(first) } else { eos_id }, tray);
        } else {
            let slot = self.current.as_mut().expect("a piece is begun before it goes on");
            slot.append(segment.tokens, !continues_row, |room| reading.cursor.read_room(room))?;
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

/// One token. False if it does not fit.
fn put(token: u32, room: Room) -> bool {
    match room {
        Room::Wide(out) => out[0] = token,
        Room::Narrow(out) => match u16::try_from(token) {
            Ok(narrow) => out[0] = narrow,
            Err(_) => return false,
        },
    }
    true
}
