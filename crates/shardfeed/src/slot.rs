use std::ops::Range;

use crate::Result;

/// Room for one sequence of the line, and what is known of it.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Tokens, and behind them one bit for each: whether a row begins there. The first is not among them.
    words: Box<[u32]>,
    seq_len: u32,
    len: u32,
    starts_row: bool,
    /// What follows the last token in the same row.
    pub next: Option<u32>,
    /// Where tokens are missing, since their row group is damaged. Whole rows, as far as they are in here.
    masked: Vec<Range<u32>>,
}

/// One sequence, as the line has it.
#[derive(Debug)]
pub(crate) struct Sequence<'a> {
    /// At least one, at most `seq_len`; an end-of-document id among them counts as the last token of its row.
    pub tokens: &'a [u32],
    /// Where rows begin in it, 0 left out: a sequence always begins something.
    pub row_starts: RowStarts<'a>,
    /// Whether its first token is the first of its row.
    pub starts_row: bool,
    /// What follows the last token in the same row.
    pub next: Option<u32>,
    masked: &'a [Range<u32>],
}

/// Tokens of a sequence that follow each other in one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub tokens: Range<usize>,
    /// Whether its first token is the first of the row.
    pub starts_row: bool,
    /// What follows its last token in the same row, in another sequence.
    pub next: Option<u32>,
    /// Its tokens are missing.
    pub is_masked: bool,
}

impl Sequence<'_> {
    /// Row by row.
    pub fn stretches(&self) -> impl Iterator<Item = Stretch> + '_ {
        let len = self.tokens.len();
        let ends = self.row_starts.iter().chain([len]);
        let mut from = 0;
        ends.map(move |to| {
            let tokens = std::mem::replace(&mut from, to)..to;
            Stretch {
                starts_row: tokens.start > 0 || self.starts_row,
                next: self.next.filter(|_| to == len),
                is_masked: self.masked.iter().any(|range| range.contains(&(tokens.start as u32))),
                tokens,
            }
        })
    }

    /// Tokens that are not missing.
    pub fn tokens_there(&self) -> usize {
        self.tokens.len() - self.masked.iter().map(ExactSizeIterator::len).sum::<usize>()
    }
}

/// Offsets at which rows begin, ascending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowStarts<'a>(&'a [u32]);

impl RowStarts<'_> {
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            let mut bits = bits;
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(word * 32 + bit)
            })
        })
    }
}

/// What an allocation takes on top, and what a slot takes in the places where it may be: a ring of half as many more
/// sequences, and a list.
const OVERHEAD: u64 = 16 + 3 * size_of::<Option<Slot>>() as u64;

impl Slot {
    /// Bytes of a slot for this many tokens.
    pub fn bytes(seq_len: u64) -> u64 {
        (4 * seq_len + seq_len.div_ceil(32) * 4).next_multiple_of(16) + OVERHEAD
    }

    pub fn new(seq_len: u32) -> Self {
        let words = vec![0; seq_len as usize + seq_len.div_ceil(32) as usize].into();
        Self { words, seq_len, len: 0, starts_row: false, next: None, masked: Vec::new() }
    }

    /// Empty again; tokens left over are never shown.
    pub fn clear(&mut self) {
        self.words[self.seq_len as usize..].fill(0);
        (self.len, self.starts_row, self.next) = (0, false, None);
        self.masked.clear();
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Appends `count` tokens of one row, for which there is room, as `write` has them. Returns the first.
    pub fn append(
        &mut self,
        count: usize,
        starts_row: bool,
        write: impl FnOnce(&mut [u32]) -> Result<()>,
    ) -> Result<u32> {
        let from = self.len as usize;
        let (tokens, row_starts) = self.words.split_at_mut(self.seq_len as usize);
        write(&mut tokens[from..from + count])?;
        if from == 0 {
            self.starts_row = starts_row;
        } else if starts_row {
            row_starts[from / 32] |= 1 << (from % 32);
        }
        self.len += count as u32;
        Ok(tokens[from])
    }

    /// Appends `count` tokens that are missing, and that begin a row as far as anybody can tell.
    pub fn append_masked(&mut self, count: usize) {
        let from = self.len;
        // Nothing has to be written: what is missing is never shown.
        let _ = self.append(count, true, |_| Ok(()));
        self.masked.push(from..self.len);
    }

    pub fn sequence(&self) -> Sequence<'_> {
        let (tokens, row_starts) = self.words.split_at(self.seq_len as usize);
        Sequence {
            tokens: &tokens[..self.len as usize],
            row_starts: RowStarts(row_starts),
            starts_row: self.starts_row,
            next: self.next,
            masked: &self.masked,
        }
    }
}
