use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::{EpochOrder, Packing, StreamSettings};

use crate::decode::RowGroupCursor;
use crate::page_limit::PageLimit;
use crate::{DataSet, Error, Result};

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

/// Offsets at which rows begin, ascending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowStarts<'a> {
    /// One bit per token of the window.
    bits: &'a [u64],
    /// The tokens asked about.
    within: Range<usize>,
    /// What is offset 0.
    base: usize,
}

impl RowStarts<'_> {
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let Range { start, end } = self.within;
        let words = start / 64..end.div_ceil(64).max(start / 64);
        words
            .flat_map(move |word| {
                let mut bits = self.bits.get(word).copied().unwrap_or(0);
                std::iter::from_fn(move || {
                    let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                    bits &= bits - 1;
                    Some(word * 64 + bit)
                })
            })
            .filter(move |at| (start..end).contains(at))
            .map(|at| at - self.base)
    }
}

/// Tokens by their number since the window was opened.
#[derive(Default)]
struct Tokens {
    base: u64,
    kept: Vec<u32>,
    /// One bit for each of `kept`, and one more: whether a row begins there.
    row_starts: Vec<u64>,
    /// Of `kept`, those at the front that are no longer needed.
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
    /// With `Pad`: sequences that began so far, and that the manifest says there are.
    begun: u64,
    units: u64,
    row_group: u32,
}

/// Tokens decoded between two looks at how far to go.
const PORTION: usize = 1 << 14;

impl Window {
    /// Bytes of a window with room for this many sequences and tokens.
    pub fn bytes(sequences: u64, tokens: u64) -> u64 {
        let tokens = tokens + PORTION as u64;
        4 * tokens + tokens / 8 + size_of::<Piece>() as u64 * sequences
    }

    /// A window that begins with `sequence`, with room for this many tokens.
    pub fn open(source: &Arc<LineSource>, sequence: u64, tokens_max: usize, page_limit: PageLimit) -> Self {
        Self {
            source: Arc::clone(source),
            tokens: Tokens { kept: Vec::with_capacity(tokens_max + PORTION), ..Tokens::default() },
            pieces: VecDeque::with_capacity(match source.settings.packing {
                Packing::Concat => 0,
                Packing::Pad => tokens_max / source.settings.seq_len as usize + 2,
            }),
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
            row_starts: self.tokens.row_starts_within(start..end),
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
            row_starts: RowStarts { bits: &[], within: 0..0, base: 0 },
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
        let Some(segment) = segment else { return self.check_pieces(&reading) };
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
            reading.begun += 1;
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

    /// A row group of other sequences than the manifest says would shift all that follow.
    fn check_pieces(&self, reading: &Reading) -> Result<()> {
        if self.source.settings.packing == Packing::Concat || reading.begun == reading.units {
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
        let units = units.end - units.start;
        self.reading = Some(Reading { cursor, discard, row_len: 0, begun: 0, units, row_group });
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
    }

    /// The vector to append `count` tokens to. Rather than grow, it moves what is kept to the front.
    fn room_for(&mut self, count: usize) -> &mut Vec<u32> {
        // Whole words of bits, so that they need no shifting.
        let dead_words = self.dead / 64;
        if dead_words > 0 && self.kept.len() + count > self.kept.capacity() {
            self.base += dead_words as u64 * 64;
            self.dead %= 64;
            self.kept.drain(..dead_words * 64);
            self.row_starts.drain(..dead_words.min(self.row_starts.len()));
        }
        &mut self.kept
    }

    /// The next token is the first of its row; at a row group's border even before it is known.
    fn start_row(&mut self) {
        let at = self.kept.len();
        if self.row_starts.len() <= at / 64 {
            self.row_starts.resize(at / 64 + 1, 0);
        }
        self.row_starts[at / 64] |= 1 << (at % 64);
    }

    fn starts_row(&self, at: u64) -> bool {
        let at = (at - self.base) as usize;
        self.row_starts.get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)
    }

    /// Rows that begin after the first token of a range, counted from it.
    fn row_starts_within(&self, range: Range<u64>) -> RowStarts<'_> {
        let base = (range.start - self.base) as usize;
        RowStarts { bits: &self.row_starts, within: base + 1..(range.end - self.base) as usize, base }
    }
}
