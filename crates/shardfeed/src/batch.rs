use std::ops::Range;

use crate::array::{Array, ArrayPool, Pool};
use crate::slot::{Sequence, Stretch, Tokens};
use crate::{Error, Result};

/// One rank's part of a step: `rows` sequences of `seq_len` tokens, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The step's number in its epoch.
    pub step: u64,
    /// The epoch.
    pub epoch: u64,
    /// Sequences of this batch, padding included: the same at every step.
    pub rows: usize,
    /// Sequences that are not padding.
    pub real_rows: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
    /// Tokens that are not padding.
    pub tokens: u64,
    /// Labels that are not [`IGNORE_LABEL`]. Divide a summed loss by the sum of this over the ranks: a mean over
    /// a batch without labels is not a number.
    pub valid_labels: u64,
    /// On request: where documents begin in the batch seen as one long row of `rows * seq_len` tokens, and its
    /// length at the end. Padding at the end of a sequence counts as one more document.
    pub cu_seqlens: Option<Array<i32>>,
    /// All other arrays that were asked for, one after another.
    ids: IdArray,
    arrays: BatchArrays,
}

/// The label at which no loss is taken.
pub const IGNORE_LABEL: i32 = -100;

/// One array of a batch: integers of the type that was asked for. Empty if the array was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids<'a> {
    /// 64 bits each.
    I64(&'a [i64]),
    /// 32 bits each.
    I32(&'a [i32]),
}

/// All arrays of a batch in one piece of memory, which is used again for another batch once nobody holds it any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdArray {
    /// 64 bits each.
    I64(Array<i64>),
    /// 32 bits each.
    I32(Array<i32>),
}

/// Integer type of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 64 bits, as PyTorch's embeddings and losses expect.
    #[default]
    Int64,
    /// 32 bits. Token ids over 2,147,483,647 are refused.
    Int32,
}

/// What `labels` hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelStyle {
    /// At each token the next one of its row; after the last the `eos_id`, or nothing.
    #[default]
    Shifted,
    /// A copy of the token, for models that shift themselves; nothing at each row's first token.
    Unshifted,
}

/// Which arrays a batch has besides its token ids. Those that nobody reads are not made: each costs as much as the
/// ids themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own.
pub struct BatchArrays {
    /// [`Batch::labels`].
    pub labels: bool,
    /// [`Batch::position_ids`].
    pub position_ids: bool,
    /// [`Batch::document_ids`].
    pub document_ids: bool,
    /// [`Batch::cu_seqlens`].
    pub cu_seqlens: bool,
}

impl Default for BatchArrays {
    fn default() -> Self {
        Self { labels: true, position_ids: true, document_ids: true, cu_seqlens: false }
    }
}

impl BatchArrays {
    /// Token ids and nothing else.
    pub const NONE: Self =
        Self { labels: false, position_ids: false, document_ids: false, cu_seqlens: false };

    pub(crate) fn count(self) -> u64 {
        1 + [self.labels, self.position_ids, self.document_ids].map(u64::from).iter().sum::<u64>()
    }
}

/// What batches of a loader have in common.
#[derive(Clone, Debug)]
pub(crate) struct BatchShape {
    pub rows: usize,
    pub seq_len: usize,
    pub dtype: Dtype,
    pub labels: LabelStyle,
    pub pad_id: u32,
    pub arrays: BatchArrays,
    pub pool: ArrayPool,
}

impl BatchShape {
    /// Bytes of one batch.
    pub fn bytes(&self) -> u64 {
        let each: u64 = match self.dtype {
            Dtype::Int64 => 8,
            Dtype::Int32 => 4,
        };
        let starts = if self.arrays.cu_seqlens { 4 } else { 0 };
        (self.arrays.count() * each + starts) * self.rows as u64 * self.seq_len as u64
    }

    /// A batch whose first `real_rows` are to be filled, each once; the others are padding.
    pub fn begin(&self, step: u64, epoch: u64, real_rows: usize) -> Batch {
        let ids = match self.dtype {
            Dtype::Int64 => IdArray::I64(self.begin_ids(&self.pool.i64s, real_rows, i64::from(self.pad_id))),
            Dtype::Int32 => {
                IdArray::I32(self.begin_ids(&self.pool.i32s, real_rows, self.pad_id.cast_signed()))
            }
        };
        Batch {
            step,
            epoch,
            rows: self.rows,
            real_rows,
            seq_len: self.seq_len,
            tokens: 0,
            valid_labels: 0,
            cu_seqlens: self.arrays.cu_seqlens.then(|| self.pool.starts.take_empty()),
            ids,
            arrays: self.arrays,
        }
    }

    fn begin_ids<T: Clone + Default + From<i16>>(
        &self,
        pool: &Pool<T>,
        real_rows: usize,
        pad_id: T,
    ) -> Array<T> {
        let len = self.rows * self.seq_len;
        let mut ids = pool.take(self.arrays.count() as usize * len);
        let padding = Row::of(real_rows * self.seq_len..len, self.arrays, len, &mut ids);
        padding.ids.fill(pad_id);
        padding.labels.fill(T::from(IGNORE_LABEL as i16));
        padding.positions.fill(T::from(0));
        padding.documents.fill(T::from(-1));
        ids
    }

    /// Writes a sequence into row `row`.
    pub fn fill(&self, batch: &mut Batch, row: usize, sequence: &Sequence, position: u64) -> Result<()> {
        let row = row * self.seq_len..(row + 1) * self.seq_len;
        let len = self.rows * self.seq_len;
        match &mut batch.ids {
            IdArray::I64(ids) => {
                let row = Row::of(row.clone(), self.arrays, len, ids);
                let pad_id = i64::from(self.pad_id);
                match sequence.tokens {
                    Tokens::Narrow(tokens) => row.fill(tokens, sequence, self.labels, pad_id, i64::from),
                    Tokens::Wide(tokens) => row.fill(tokens, sequence, self.labels, pad_id, i64::from),
                }
            }
            IdArray::I32(ids) => {
                // Checked before anything is narrowed.
                let id = largest(sequence);
                if i32::try_from(id).is_err() {
                    return Err(Error::Int32 { position, id });
                }
                let row = Row::of(row.clone(), self.arrays, len, ids);
                let pad_id = self.pad_id.cast_signed();
                match sequence.tokens {
                    Tokens::Narrow(tokens) => {
                        row.fill(tokens, sequence, self.labels, pad_id, u32::cast_signed);
                    }
                    Tokens::Wide(tokens) => {
                        row.fill(tokens, sequence, self.labels, pad_id, u32::cast_signed);
                    }
                }
            }
        }
        batch.tokens += sequence.tokens_there() as u64;
        batch.valid_labels += valid_labels(sequence, self.labels) as u64;
        if let Some(starts) = &mut batch.cu_seqlens {
            // In whatever order rows come; sorted when all are there.
            let len = sequence.tokens.len();
            let padding = (len < self.seq_len).then_some(len);
            let within = sequence.row_starts.iter().chain([0]).chain(padding);
            starts.extend(within.map(|start| (row.start + start) as i32));
        }
        Ok(())
    }

    /// What can only be told once all rows are there.
    pub fn finish(&self, batch: &mut Batch) {
        if let Some(starts) = &mut batch.cu_seqlens {
            starts.extend((batch.real_rows..=self.rows).map(|row| (row * self.seq_len) as i32));
            starts.sort_unstable();
        }
    }
}

/// The largest id of a sequence, if it needs more than 16 bits.
fn largest(sequence: &Sequence) -> u32 {
    let next = sequence.next.unwrap_or(0);
    match sequence.tokens {
        Tokens::Narrow(_) => next,
        Tokens::Wide(tokens) => {
            let there = sequence.stretches().filter(|stretch| !stretch.is_masked);
            there.flat_map(|stretch| &tokens[stretch.tokens]).copied().fold(next, u32::max)
        }
    }
}

/// Labels of a sequence at which a loss is taken.
fn valid_labels(sequence: &Sequence, style: LabelStyle) -> usize {
    let valid = |stretch: Stretch| match style {
        _ if stretch.is_masked => 0,
        LabelStyle::Shifted => stretch.tokens.len() - usize::from(stretch.next.is_none()),
        LabelStyle::Unshifted => stretch.tokens.len() - usize::from(stretch.starts_row),
    };
    if let Some(stretches) = sequence.whole_stretches() {
        // Each lacks one label, but for a row that goes on in the next sequence, or came from the one before.
        let goes_on = match style {
            LabelStyle::Shifted => sequence.next.is_some(),
            LabelStyle::Unshifted => !sequence.starts_row,
        };
        return sequence.tokens.len() - stretches + usize::from(goes_on);
    }
    sequence.stretches().map(valid).sum()
}

/// One row of a batch. Arrays that are not made are empty.
struct Row<'a, T> {
    ids: &'a mut [T],
    labels: &'a mut [T],
    positions: &'a mut [T],
    documents: &'a mut [T],
}

impl<'a, T> Row<'a, T> {
    /// The numbers `range` of each array, of arrays that are `len` long and lie one after another in `ids`.
    fn of(range: Range<usize>, arrays: BatchArrays, len: usize, ids: &'a mut [T]) -> Self {
        let mut each = ids.chunks_exact_mut(len);
        let mut part = |is_made: bool| match is_made.then(|| each.next()).flatten() {
            Some(array) => &mut array[range.clone()],
            None => &mut [],
        };
        Self {
            ids: part(true),
            labels: part(arrays.labels),
            positions: part(arrays.position_ids),
            documents: part(arrays.document_ids),
        }
    }
}

impl<T: Copy + From<i16> + std::ops::AddAssign> Row<'_, T> {
    fn fill<N: Copy + Into<u32>>(
        self,
        tokens: &[N],
        sequence: &Sequence,
        style: LabelStyle,
        pad_id: T,
        convert: impl Fn(u32) -> T,
    ) {
        let len = tokens.len();
        let ignore = T::from(IGNORE_LABEL as i16);
        widen(tokens, self.ids, &convert);
        self.ids[len..].fill(pad_id);
        sequence.masked().for_each(|stretch| self.ids[stretch.tokens].fill(pad_id));
        if !self.labels.is_empty() {
            match style {
                LabelStyle::Shifted => {
                    widen(&tokens[1..], self.labels, &convert);
                    self.labels[len - 1] = sequence.next.map_or(ignore, &convert);
                    sequence.row_starts.iter().for_each(|start| self.labels[start - 1] = ignore);
                }
                LabelStyle::Unshifted => {
                    widen(tokens, self.labels, &convert);
                    let starts = sequence.row_starts.iter().chain(sequence.starts_row.then_some(0));
                    starts.for_each(|start| self.labels[start] = ignore);
                }
            }
            sequence.masked().for_each(|stretch| self.labels[stretch.tokens].fill(ignore));
            self.labels[len..].fill(ignore);
        }
        if !self.positions.is_empty() {
            for stretch in sequence.stretches() {
                let mut position = T::from(0);
                for slot in &mut self.positions[stretch.tokens] {
                    *slot = position;
                    position += T::from(i16::from(!stretch.is_masked));
                }
            }
            self.positions[len..].fill(T::from(0));
        }
        if !self.documents.is_empty() {
            let mut document = T::from(0);
            for stretch in sequence.stretches() {
                if stretch.is_masked {
                    self.documents[stretch.tokens].fill(T::from(-1));
                } else {
                    self.documents[stretch.tokens].fill(document);
                    document += T::from(1);
                }
            }
            self.documents[len..].fill(T::from(-1));
        }
    }
}

fn widen<N: Copy + Into<u32>, T>(tokens: &[N], out: &mut [T], convert: impl Fn(u32) -> T) {
    for (id, &token) in out.iter_mut().zip(tokens) {
        *id = convert(token.into());
    }
}

impl Batch {
    /// Token ids; `pad_id` where there is none.
    pub fn input_ids(&self) -> Ids<'_> {
        self.array(0, true)
    }

    /// What is to be predicted at each token, or [`IGNORE_LABEL`].
    pub fn labels(&self) -> Ids<'_> {
        self.array(1, self.arrays.labels)
    }

    /// Counts from 0 at each sequence's and each document's start; 0 at padding.
    pub fn position_ids(&self) -> Ids<'_> {
        self.array(1 + usize::from(self.arrays.labels), self.arrays.position_ids)
    }

    /// Documents of a sequence numbered from 0; -1 at padding.
    pub fn document_ids(&self) -> Ids<'_> {
        let before = [self.arrays.labels, self.arrays.position_ids];
        self.array(1 + before.map(usize::from).iter().sum::<usize>(), self.arrays.document_ids)
    }

    /// The memory itself: `input_ids`, `labels`, `position_ids`, `document_ids`, those that were asked for, each `rows * seq_len` numbers; and
    /// [`Self::cu_seqlens`].
    pub fn into_arrays(self) -> (IdArray, Option<Array<i32>>) {
        (self.ids, self.cu_seqlens)
    }

    fn array(&self, index: usize, is_made: bool) -> Ids<'_> {
        let len = if is_made { self.rows * self.seq_len } else { 0 };
        let range = index * len..(index + 1) * len;
        match &self.ids {
            IdArray::I64(ids) => Ids::I64(&ids[range]),
            IdArray::I32(ids) => Ids::I32(&ids[range]),
        }
    }
}

impl<'a> Ids<'a> {
    /// How many there are.
    pub fn len(self) -> usize {
        match self {
            Self::I64(ids) => ids.len(),
            Self::I32(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// As 64-bit integers, if they are.
    pub fn as_i64(self) -> Option<&'a [i64]> {
        match self {
            Self::I64(ids) => Some(ids),
            Self::I32(_) => None,
        }
    }

    /// As 32-bit integers, if they are.
    pub fn as_i32(self) -> Option<&'a [i32]> {
        match self {
            Self::I32(ids) => Some(ids),
            Self::I64(_) => None,
        }
    }

    /// All of them, widened.
    #[allow(clippy::iter_not_returning_iterator)] // It is one, in a box.
    pub fn iter(self) -> Box<dyn Iterator<Item = i64> + 'a> {
        match self {
            Self::I64(ids) => Box::new(ids.iter().copied()),
            Self::I32(ids) => Box::new(ids.iter().map(|&id| i64::from(id))),
        }
    }
}

impl std::str::FromStr for LabelStyle {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "shifted" => Ok(Self::Shifted),
            "unshifted" => Ok(Self::Unshifted),
            other => Err(format!("unknown labels {other:?}; they are \"shifted\" or \"unshifted\"")),
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "int64" => Ok(Self::Int64),
            "int32" => Ok(Self::Int32),
            other => Err(format!("unknown dtype {other:?}; it is \"int64\" or \"int32\"")),
        }
    }
}
