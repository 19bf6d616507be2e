use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;

use crate::Result;
use crate::decode::Room;
use crate::large_pages::prefer_large_pages;

/// Room for one sequence of the line, and what is known of it.
#[derive(Debug)]
pub(crate) struct Slot {
    /// One bit for each token: whether a row begins there, the first left out. Then the tokens, of 16 bits each in
    /// the first half, or of 32.
    memory: BytesMut,
    seq_len: u32,
    len: u32,
    is_wide: bool,
    starts_row: bool,
    /// What follows the last token in the same row.
    pub next: Option<u32>,
    /// Where tokens are missing, since their row group is damaged. Whole rows, as far as they are in here.
    masked: Vec<Range<u32>>,
    /// Where its memory goes when nobody holds it any more.
    home: SlotPool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.home.lock().idle.push(std::mem::take(&mut self.memory));
    }
}

/// One sequence, as the line has it.
#[derive(Debug)]
pub(crate) struct Sequence<'a> {
    /// At least one, at most `seq_len`; an end-of-document id among them counts as the last token of its row.
    pub tokens: Tokens<'a>,
    /// Where rows begin in it, 0 left out: a sequence always begins something.
    pub row_starts: RowStarts<'a>,
    /// Whether its first token is the first of its row.
    pub starts_row: bool,
    /// What follows the last token in the same row.
    pub next: Option<u32>,
    masked: &'a [Range<u32>],
}

/// Tokens as they are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tokens<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

impl Tokens<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Narrow(tokens) => tokens.len(),
            Self::Wide(tokens) => tokens.len(),
        }
    }
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

    /// Stretches whose tokens are missing.
    pub fn masked(&self) -> impl Iterator<Item = Stretch> + '_ {
        let stretches = (!self.masked.is_empty()).then(|| self.stretches());
        stretches.into_iter().flatten().filter(|stretch| stretch.is_masked)
    }

    /// How many stretches there are, if none of them is missing.
    pub fn whole_stretches(&self) -> Option<usize> {
        self.masked.is_empty().then(|| 1 + self.row_starts.count())
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
    pub fn count(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

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

/// What an allocation takes on top, and what a slot takes in the places where it may be, which grow by doubling: on the
/// shelf of its lane, among the free ones, on the tray of a thread.
const OVERHEAD: u64 = 16 + 6 * size_of::<Option<Slot>>() as u64;

impl Slot {
    /// Bytes of a slot for this many tokens, when all of it is used.
    pub fn bytes(seq_len: u64) -> u64 {
        (4 * seq_len + seq_len.div_ceil(32) * 4).next_multiple_of(16) + OVERHEAD
    }

    fn new(memory: BytesMut, seq_len: u32, home: SlotPool) -> Self {
        let (len, is_wide, starts_row) = (0, false, false);
        Self { memory, seq_len, len, is_wide, starts_row, next: None, masked: Vec::new(), home }
    }

    fn words(&self) -> &[u32] {
        bytemuck::cast_slice(&self.memory)
    }

    fn words_mut(&mut self) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }

    /// Empty again; tokens left over are never shown.
    pub fn clear(&mut self) {
        let bits = bit_words(self.seq_len);
        self.words_mut()[..bits].fill(0);
        (self.len, self.is_wide, self.starts_row, self.next) = (0, false, false, None);
        self.masked.clear();
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Reads a word of every line of its memory that is in use, so that all of them are on their way into the
    /// processor's cache at once. One after the other, as they are needed, they would be waited for.
    pub fn fetch(&self) {
        const LINE: usize = 64 / size_of::<u32>();
        let tokens = if self.is_wide { self.len as usize } else { self.len.div_ceil(2) as usize };
        let lines = self.words()[..bit_words(self.seq_len) + tokens].iter().step_by(LINE);
        std::hint::black_box(lines.fold(0, |all: u32, word| all | word));
    }

    /// Appends `count` tokens of one row, for which there is room, as `write` has them: narrow if it can, which it
    /// says before it takes anything, or else wide. Returns the first.
    pub fn append(
        &mut self,
        count: usize,
        starts_row: bool,
        mut write: impl FnMut(Room) -> Result<bool>,
    ) -> Result<u32> {
        let from = self.len as usize;
        if !self.is_wide && !write(Room::Narrow(&mut self.narrow_mut()[from..from + count]))? {
            self.widen();
        }
        let first = if self.is_wide {
            write(Room::Wide(&mut self.wide_mut()[from..from + count]))?;
            self.wide_mut()[from]
        } else {
            self.narrow_mut()[from].into()
        };
        if from == 0 {
            self.starts_row = starts_row;
        } else if starts_row {
            self.words_mut()[from / 32] |= 1 << (from % 32);
        }
        self.len += count as u32;
        Ok(first)
    }

    fn wide_mut(&mut self) -> &mut [u32] {
        let bits = bit_words(self.seq_len);
        &mut self.words_mut()[bits..]
    }

    fn narrow_mut(&mut self) -> &mut [u16] {
        bytemuck::cast_slice_mut(self.wide_mut())
    }

    /// Gives each token 32 bits.
    fn widen(&mut self) {
        // From the last on, so that none is written over before it is read.
        for at in (0..self.len as usize).rev() {
            let token = self.narrow_mut()[at];
            self.wide_mut()[at] = token.into();
        }
        self.is_wide = true;
    }

    /// Appends `count` tokens that are missing, and that begin a row as far as anybody can tell.
    pub fn append_masked(&mut self, count: usize) {
        let from = self.len;
        // Nothing has to be written: what is missing is never shown.
        let _ = self.append(count, true, |_| Ok(true));
        self.masked.push(from..self.len);
    }

    pub fn sequence(&self) -> Sequence<'_> {
        let (row_starts, words) = self.words().split_at(bit_words(self.seq_len));
        let len = self.len as usize;
        let tokens = if self.is_wide {
            Tokens::Wide(&words[..len])
        } else {
            Tokens::Narrow(&bytemuck::cast_slice(words)[..len])
        };
        Sequence {
            tokens,
            row_starts: RowStarts(row_starts),
            starts_row: self.starts_row,
            next: self.next,
            masked: &self.masked,
        }
    }
}

/// Words that hold one bit for each token.
fn bit_words(seq_len: u32) -> usize {
    seq_len.div_ceil(32) as usize
}

/// Where slots are made, and where the memory of those that are gone waits for others: epoch after epoch the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotPool(Arc<Mutex<Pool>>);

#[derive(Debug, Default)]
struct Pool {
    idle: Vec<BytesMut>,
    /// What is left of the memory that slots are cut from.
    slab: BytesMut,
    /// Slots that were cut.
    cut: usize,
}

/// Memory from which slots are cut: in large pieces, so that it can be kept in large pages.
const SLAB_BYTES: usize = 32 << 20;

impl SlotPool {
    pub fn make(&self, seq_len: u32) -> Slot {
        let len = (4 * (bit_words(seq_len) + seq_len as usize)).next_multiple_of(16);
        let mut pool = self.lock();
        let memory = pool.idle.pop_if(|memory| memory.len() == len).unwrap_or_else(|| {
            if pool.slab.len() < len {
                pool.slab = BytesMut::zeroed(SLAB_BYTES.max(len));
                prefer_large_pages(&mut pool.slab);
            }
            pool.cut += 1;
            pool.slab.split_to(len)
        });
        drop(pool);
        Slot::new(memory, seq_len, self.clone())
    }

    /// Whoever comes next needs no more than this many. Memory is freed in whole slabs, so it is all or nothing.
    pub fn fit(&self, slots_max: usize) {
        let mut pool = self.lock();
        if pool.cut > slots_max && pool.idle.len() == pool.cut {
            *pool = Pool::default();
        }
    }

    /// Slots whose memory was ever cut.
    #[cfg(test)]
    pub fn cut(&self) -> usize {
        self.lock().cut
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_appended_is_there_narrow_or_wide(
            parts in proptest::collection::vec((1_usize..40, any::<bool>(), any::<bool>()), 1..20),
        ) {
            let pool = SlotPool::default();
            let mut slot = pool.make(1000);
            for _ in 0..2 {
                slot.clear();
                let (mut tokens, mut starts) = (Vec::new(), Vec::new());
                for &(count, starts_row, is_wide) in &parts {
                    let from = tokens.len();
                    if starts_row {
                        starts.push(from);
                    }
                    tokens.extend((from..from + count).map(|at| at as u32 + if is_wide { 1 << 16 } else { 0 }));
                    let first = slot.append(count, starts_row, |room| Ok(match room {
                        Room::Narrow(_) if is_wide => false,
                        Room::Narrow(out) => {
                            out.iter_mut().zip(&tokens[from..]).for_each(|(out, &token)| *out = token as u16);
                            true
                        }
                        Room::Wide(out) => {
                            out.copy_from_slice(&tokens[from..]);
                            true
                        }
                    })).unwrap();
                    prop_assert_eq!(first, tokens[from]);
                }
                slot.fetch();
                let sequence = slot.sequence();
                let found: Vec<u32> = match sequence.tokens {
                    Tokens::Narrow(tokens) => tokens.iter().map(|&token| token.into()).collect(),
                    Tokens::Wide(tokens) => tokens.to_vec(),
                };
                prop_assert_eq!(&found, &tokens);
                prop_assert_eq!(matches!(sequence.tokens, Tokens::Wide(_)), parts.iter().any(|part| part.2));
                prop_assert_eq!(sequence.starts_row, starts.first() == Some(&0));
                starts.retain(|&start| start > 0);
                prop_assert_eq!(sequence.row_starts.count(), starts.len());
                prop_assert!(sequence.row_starts.iter().eq(starts));
            }
        }
    }
}
