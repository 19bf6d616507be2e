use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::{EpochOrder, Packing, StreamSettings};

use crate::decode::{PageLimit, RowGroupCursor};
use crate::{DataSet, Result};

/// Decoded sequences around the place where a lane stands on the line of its epoch.
///
/// Grows at its end as sequences are asked for, shrinks at its beginning as they are no longer needed.
pub(crate) struct Window {
    source: Arc<LineSource>,
    /// What is decoded, and where rows begin in it.
    tokens: Tokens,
    /// With `Pad`: where each sequence begins, `first_sequence` the first.
    pieces: VecDeque<Piece>,
    first_sequence: u64,
    /// The row group being decoded.
    reading: Option<Reading>,
    /// Unit of the line that the next row group to open begins at, or is entered at.
    next_unit: u64,
    page_limit: PageLimit,
}

/// What all windows of an epoch share.
pub(crate) struct LineSource {
    pub data: Arc<DataSet>,
    pub order: EpochOrder,
    pub settings: StreamSettings,
}

/// One sequence, as the line has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sequence<'a> {
    /// At least one, at most `seq_len`; an end-of-document id among them counts as the last token of its row.
    pub tokens: &'a [u32],
    /// Where rows begin in it, 0 left out: a sequence always begins something.
    pub row_starts: RowStarts<'a>,
    /// Whether its first token is the first of its row.
    pub starts_row: bool,
    /// What follows the last token in the same row.
    pub next: Option<u32>,
}

/// Ascending offsets at which rows begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowStarts<'a> {
    starts: &'a [u64],
    base: u64,
}

impl RowStarts<'_> {
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.starts.iter().map(|start| (start - self.base) as usize)
    }
}

/// Tokens by their number since the window was opened.
#[derive(Default)]
struct Tokens {
    base: u64,
    kept: Vec<u32>,
    row_starts: Vec<u64>,
    /// Row starts before this one are of tokens no longer kept.
    dead_starts: usize,
    dead: usize,
}

#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    /// Goes on with the row of the piece before it.
    continues: bool,
}

struct Reading {
    cursor: RowGroupCursor,
    /// Units still to be passed over before the window begins.
    discard: u64,
    /// Tokens of the current row so far; 0 before the first.
    row_len: u64,
}

/// Tokens decoded between two looks at how far to go.
const PORTION: usize = 1 << 14;

impl Window {
    /// A window that begins with `sequence`, with room for this many tokens.
    pub fn open(source: &Arc<LineSource>, sequence: u64, tokens_max: usize, page_limit: PageLimit) -> Self {
        Self {
            source: Arc::clone(source),
            tokens: Tokens { kept: Vec::with_capacity(tokens_max + PORTION), ..Tokens::default() },
            pieces: VecDeque::new(),
            first_sequence: sequence,
            reading: None,
            next_unit: source.order.units(sequence).start,
            page_limit,
        }
    }

    /// The first sequence kept.
    pub fn start(&self) -> u64 {
        self.first_sequence
    }

    /// One past the last sequence that is decoded completely.
    pub fn end(&self) -> u64 {
        match self.source.settings.packing {
            Packing::Concat => {
                self.first_sequence + self.tokens.len() / u64::from(self.source.settings.seq_len)
            }
            Packing::Pad => self.first_sequence + (self.pieces.len() as u64).saturating_sub(1),
        }
    }

    /// Decodes as far as needed and shows one sequence, which must not lie before [`Self::start`].
    pub fn sequence(&mut self, sequence: u64) -> Result<Sequence<'_>> {
        match self.source.settings.packing {
            Packing::Concat => self.concatenated(sequence),
            Packing::Pad => self.piece(sequence),
        }
    }

    /// Sequences before this one are not needed any more.
    pub fn forget_before(&mut self, sequence: u64) {
        let count = sequence.saturating_sub(self.first_sequence);
        match self.source.settings.packing {
            Packing::Concat => {
                let count = count.min(self.tokens.len() / u64::from(self.source.settings.seq_len));
                self.tokens.forget(count * u64::from(self.source.settings.seq_len));
                self.first_sequence += count;
            }
            Packing::Pad => {
                let count = count.min(self.pieces.len() as u64);
                self.pieces.drain(..count as usize);
                let first_kept = self.pieces.front().map_or(self.tokens.end(), |piece| piece.start);
                self.tokens.forget(first_kept - self.tokens.start());
                self.first_sequence += count;
            }
        }
    }

    fn concatenated(&mut self, sequence: u64) -> Result<Sequence<'_>> {
        let seq_len = u64::from(self.source.settings.seq_len);
        let units = self.source.order.units(sequence);
        let start = self.tokens.start() + (sequence - self.first_sequence) * seq_len;
        let end = start + (units.end - units.start);
        // One token more, for the last label; at a row group's end there is none, and none is needed.
        while self.tokens.end() < end || (self.tokens.end() == end && self.reading.is_some()) {
            self.decode_more()?;
        }
        let row_continues = self.tokens.end() > end && !self.tokens.starts_row(end);
        Ok(Sequence {
            tokens: self.tokens.slice(start..end),
            row_starts: self.tokens.row_starts_within(start + 1..end, start),
            starts_row: self.tokens.starts_row(start),
            next: row_continues.then(|| self.tokens.slice(end..end + 1)[0]),
        })
    }

    fn piece(&mut self, sequence: u64) -> Result<Sequence<'_>> {
        let index = (sequence - self.first_sequence) as usize;
        // The piece is complete once the next one has a token, or its row group is at its end.
        while self.pieces.len() < index + 1 || (self.pieces.len() == index + 1 && self.reading.is_some()) {
            self.decode_more()?;
        }
        let start = self.pieces[index].start;
        let next_piece = self.pieces.get(index + 1);
        let end = next_piece.map_or(self.tokens.end(), |piece| piece.start);
        let next = match next_piece {
            Some(piece) if piece.continues => Some(self.tokens.slice(end..end + 1)[0]),
            _ => self.source.settings.eos_id,
        };
        Ok(Sequence {
            tokens: self.tokens.slice(start..end),
            row_starts: RowStarts { starts: &[], base: 0 },
            starts_row: !self.pieces[index].continues,
            next,
        })
    }

    fn decode_more(&mut self) -> Result<()> {
        let packing = self.source.settings.packing;
        let seq_len = u64::from(self.source.settings.seq_len);
        let Some(mut reading) = self.reading.take() else { return self.open_row_group() };
        let max = match packing {
            Packing::Concat => PORTION,
            // Up to the end of the piece, so that the next segment begins the next one.
            Packing::Pad => (seq_len - reading.row_len % seq_len).min(PORTION as u64) as usize,
        };
        let segment = reading.cursor.segment(max)?;
        let row_ends = reading.row_len > 0 && segment.is_none_or(|segment| segment.starts_row);
        if let (Packing::Concat, true, Some(eos_id)) = (packing, row_ends, self.source.settings.eos_id) {
            if reading.discard > 0 {
                reading.discard -= 1;
            } else {
                self.tokens.room_for(1).push(eos_id);
            }
        }
        let Some(segment) = segment else { return Ok(()) };
        if segment.starts_row {
            reading.row_len = 0;
        }
        match packing {
            Packing::Concat => self.take_units(&mut reading, segment.tokens, segment.starts_row)?,
            Packing::Pad => self.take_piece(&mut reading, segment.tokens)?,
        }
        reading.row_len += segment.tokens as u64;
        self.reading = Some(reading);
        Ok(())
    }

    fn take_units(&mut self, reading: &mut Reading, tokens: usize, starts_row: bool) -> Result<()> {
        let discarded = reading.discard.min(tokens as u64) as usize;
        if discarded > 0 {
            reading.discard -= discarded as u64;
            reading.cursor.skip(discarded)?;
        } else if starts_row {
            self.tokens.start_row();
        }
        if tokens > discarded {
            reading.cursor.read(tokens - discarded, self.tokens.room_for(tokens - discarded))?;
        }
        Ok(())
    }

    fn take_piece(&mut self, reading: &mut Reading, tokens: usize) -> Result<()> {
        let starts_piece = reading.row_len.is_multiple_of(u64::from(self.source.settings.seq_len));
        if starts_piece {
            reading.discard = reading.discard.saturating_sub(1);
        }
        if reading.discard > 0 {
            return reading.cursor.skip(tokens);
        }
        if starts_piece {
            self.pieces.push_back(Piece { start: self.tokens.end(), continues: reading.row_len > 0 });
        }
        reading.cursor.read(tokens, self.tokens.room_for(tokens))
    }

    fn open_row_group(&mut self) -> Result<()> {
        let row_group = self.source.order.line().row_group_at(self.next_unit);
        let (row_group, units) = row_group.expect("nobody asks past the end of the line");
        let into = self.next_unit - units.start;
        self.next_unit = units.end;
        if into == 0 {
            self.tokens.start_row();
        }
        let mut cursor = self.source.data.open_row_group_within(row_group, self.page_limit)?;
        let settings = &self.source.settings;
        let discard = match settings.packing {
            Packing::Concat if into > 0 => into - cursor.skip_pages(into, settings.eos_id.is_some())?,
            // Pieces are passed over by their beginnings, and the one that begins the window begins too.
            Packing::Pad if into > 0 => into + 1,
            _ => 0,
        };
        self.reading = Some(Reading { cursor, discard, row_len: 0 });
        Ok(())
    }
}

impl Tokens {
    fn start(&self) -> u64 {
        self.base + self.dead as u64
    }

    fn end(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    fn len(&self) -> u64 {
        self.end() - self.start()
    }

    fn slice(&self, range: Range<u64>) -> &[u32] {
        &self.kept[(range.start - self.base) as usize..(range.end - self.base) as usize]
    }

    fn forget(&mut self, count: u64) {
        self.dead += count as usize;
        let start = self.start();
        self.dead_starts += self.row_starts[self.dead_starts..].partition_point(|&at| at < start);
    }

    /// The vector to append `count` tokens to. Rather than grow, it moves what is kept to the front, unless that
    /// would free too little for the work.
    fn room_for(&mut self, count: usize) -> &mut Vec<u32> {
        if self.kept.len() + count > self.kept.capacity() && self.dead * 4 >= self.kept.len() {
            self.base += self.dead as u64;
            self.kept.drain(..std::mem::take(&mut self.dead));
            self.row_starts.drain(..std::mem::take(&mut self.dead_starts));
        }
        &mut self.kept
    }

    /// The next token is the first of its row; at a row group's border even before it is known.
    fn start_row(&mut self) {
        let end = self.end();
        if self.row_starts.last() != Some(&end) {
            self.row_starts.push(end);
        }
    }

    fn starts_row(&self, at: u64) -> bool {
        self.row_starts.binary_search(&at).is_ok()
    }

    fn row_starts_within(&self, range: Range<u64>, base: u64) -> RowStarts<'_> {
        let live = &self.row_starts[self.dead_starts..];
        let from = live.partition_point(|&at| at < range.start);
        let to = from + live[from..].partition_point(|&at| at < range.end);
        RowStarts { starts: &live[from..to], base }
    }
}
