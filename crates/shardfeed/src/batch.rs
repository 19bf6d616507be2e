use crate::window::Sequence;
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
    /// Labels that are not [`IGNORE_LABEL`]. Divide a summed loss by the sum of this over the ranks: a mean over
    /// a batch without labels is not a number.
    pub valid_labels: u64,
    /// Token ids; `pad_id` where there is none.
    pub input_ids: IdArray,
    /// What is to be predicted at each token, or [`IGNORE_LABEL`].
    pub labels: IdArray,
    /// Counts from 0 at each sequence's and each document's start; 0 at padding.
    pub position_ids: IdArray,
    /// Documents of a sequence numbered from 0; -1 at padding.
    pub document_ids: IdArray,
    /// On request: where documents begin in the batch seen as one long row of `rows * seq_len` tokens, and its
    /// length at the end. Padding at the end of a sequence counts as one more document.
    pub cu_seqlens: Option<Vec<i32>>,
}

/// The label at which no loss is taken.
pub const IGNORE_LABEL: i32 = -100;

/// Integers of the type that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdArray {
    /// 64 bits each.
    I64(Vec<i64>),
    /// 32 bits each.
    I32(Vec<i32>),
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

/// What batches of a loader have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchShape {
    pub rows: usize,
    pub seq_len: usize,
    pub dtype: Dtype,
    pub labels: LabelStyle,
    pub pad_id: u32,
    pub cu_seqlens: bool,
}

impl BatchShape {
    /// Bytes of one batch.
    pub fn bytes(&self) -> u64 {
        let each: u64 = match self.dtype {
            Dtype::Int64 => 8,
            Dtype::Int32 => 4,
        };
        4 * each * self.rows as u64 * self.seq_len as u64
    }

    /// A batch of padding, to be filled row by row.
    pub fn empty(&self, step: u64, epoch: u64) -> Batch {
        let all = |value: i64| match self.dtype {
            Dtype::Int64 => IdArray::I64(vec![value; self.rows * self.seq_len]),
            Dtype::Int32 => IdArray::I32(vec![value as i32; self.rows * self.seq_len]),
        };
        Batch {
            step,
            epoch,
            rows: self.rows,
            real_rows: 0,
            seq_len: self.seq_len,
            valid_labels: 0,
            input_ids: all(i64::from(self.pad_id)),
            labels: all(i64::from(IGNORE_LABEL)),
            position_ids: all(0),
            document_ids: all(-1),
            cu_seqlens: None,
        }
    }

    /// Writes a sequence into row `row` of a batch that is still empty there.
    pub fn fill(&self, batch: &mut Batch, row: usize, sequence: &Sequence, position: u64) -> Result<()> {
        let at = row * self.seq_len..row * self.seq_len + sequence.tokens.len();
        let valid =
            match (&mut batch.input_ids, &mut batch.labels, &mut batch.position_ids, &mut batch.document_ids)
            {
                (
                    IdArray::I64(ids),
                    IdArray::I64(labels),
                    IdArray::I64(positions),
                    IdArray::I64(documents),
                ) => {
                    let row = Row {
                        ids: &mut ids[at.clone()],
                        labels: &mut labels[at.clone()],
                        positions: &mut positions[at.clone()],
                        documents: &mut documents[at],
                    };
                    row.fill(sequence, self.labels, i64::from)
                }
                (
                    IdArray::I32(ids),
                    IdArray::I32(labels),
                    IdArray::I32(positions),
                    IdArray::I32(documents),
                ) => {
                    // Checked before anything is narrowed.
                    let largest = sequence.tokens.iter().copied().chain(sequence.next).max().unwrap_or(0);
                    if i32::try_from(largest).is_err() {
                        return Err(Error::Int32 { position, id: largest });
                    }
                    let row = Row {
                        ids: &mut ids[at.clone()],
                        labels: &mut labels[at.clone()],
                        positions: &mut positions[at.clone()],
                        documents: &mut documents[at],
                    };
                    row.fill(sequence, self.labels, u32::cast_signed)
                }
                _ => unreachable!("all arrays of a batch have one type"),
            };
        batch.valid_labels += valid as u64;
        batch.real_rows += 1;
        Ok(())
    }

    /// What can only be told once all rows are there.
    pub fn finish(&self, batch: &mut Batch) {
        if self.cu_seqlens {
            batch.cu_seqlens = Some(match &batch.document_ids {
                IdArray::I64(documents) => cumulative_lengths(documents, self.seq_len),
                IdArray::I32(documents) => cumulative_lengths(documents, self.seq_len),
            });
        }
    }
}

/// One row of a batch, as long as the sequence that goes into it.
struct Row<'a, T> {
    ids: &'a mut [T],
    labels: &'a mut [T],
    positions: &'a mut [T],
    documents: &'a mut [T],
}

impl<T: Copy + From<i16> + std::ops::AddAssign> Row<'_, T> {
    /// Returns how many labels are valid.
    fn fill(self, sequence: &Sequence, style: LabelStyle, convert: impl Fn(u32) -> T) -> usize {
        let tokens = sequence.tokens;
        let len = tokens.len();
        let ignore = T::from(IGNORE_LABEL as i16);
        for (id, &token) in self.ids.iter_mut().zip(tokens) {
            *id = convert(token);
        }
        let mut valid = len;
        match style {
            LabelStyle::Shifted => {
                self.labels[..len - 1].copy_from_slice(&self.ids[1..]);
                self.labels[len - 1] = sequence.next.map_or(ignore, &convert);
                valid -= usize::from(sequence.next.is_none());
                for start in sequence.row_starts.iter() {
                    self.labels[start - 1] = ignore;
                    valid -= 1;
                }
            }
            LabelStyle::Unshifted => {
                self.labels.copy_from_slice(self.ids);
                for start in sequence.row_starts.iter().chain(sequence.starts_row.then_some(0)) {
                    self.labels[start] = ignore;
                    valid -= 1;
                }
            }
        }
        let mut document = T::from(0);
        let mut from = 0;
        for to in sequence.row_starts.iter().chain([len]) {
            self.documents[from..to].fill(document);
            let mut position = T::from(0);
            for slot in &mut self.positions[from..to] {
                *slot = position;
                position += T::from(1);
            }
            document += T::from(1);
            from = to;
        }
        valid
    }
}

fn cumulative_lengths<T: PartialEq>(documents: &[T], seq_len: usize) -> Vec<i32> {
    let mut starts = vec![0];
    for (row, documents) in documents.chunks(seq_len).enumerate() {
        let mut at = row * seq_len;
        for document in documents.chunk_by(|a, b| a == b) {
            at += document.len();
            starts.push(at as i32);
        }
    }
    starts
}

impl IdArray {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::I64(ids) => ids.len(),
            Self::I32(ids) => ids.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As 64-bit integers, if they are.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match self {
            Self::I64(ids) => Some(ids),
            Self::I32(_) => None,
        }
    }

    /// As 32-bit integers, if they are.
    pub fn as_i32(&self) -> Option<&[i32]> {
        match self {
            Self::I32(ids) => Some(ids),
            Self::I64(_) => None,
        }
    }

    /// All of them, widened.
    #[allow(clippy::iter_without_into_iter)] // A loop over a batch would be a mistake more often than a wish.
    pub fn iter(&self) -> Box<dyn Iterator<Item = i64> + '_> {
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
