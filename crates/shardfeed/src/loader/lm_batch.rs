/// Inputs and targets of one batch for a causal language model: `target[i] = input[i + 1]`.
///
/// ```
/// use shardfeed::LMBatch;
/// // Sequences of one length share one buffer; input and target are two views of it.
/// let batch = LMBatch::from_sequences(&[vec![1, 2, 3], vec![4, 5, 6]], 0, 99);
/// assert_eq!((batch.batch_size, batch.seq_len), (2, 2));
/// assert_eq!(batch.get_input(1), Some(&[4, 5][..]));
/// assert_eq!(batch.get_target(1), Some(&[5, 6][..]));
///
/// // Others are padded, and the end-of-document id is the target after a sequence's last token.
/// let batch = LMBatch::from_sequences(&[vec![1, 2, 3], vec![4]], 0, 99);
/// assert_eq!((batch.batch_size, batch.seq_len), (2, 3));
/// assert_eq!(batch.get_input(1), Some(&[4, 0, 0][..]));
/// assert_eq!(batch.get_target(1), Some(&[99, 0, 0][..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LMBatch {
    /// Sequences.
    pub batch_size: usize,
    /// Tokens of each input and each target.
    pub seq_len: usize,
    tokens: Vec<u32>,
    layout: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Rows of `seq_len + 1` tokens.
    Shared,
    /// All inputs, then all targets.
    Apart,
}

impl LMBatch {
    /// A batch of these sequences.
    pub fn from_sequences(sequences: &[Vec<u32>], pad_id: u32, eos_id: u32) -> Self {
        let batch_size = sequences.len();
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let equal = sequences.iter().all(|sequence| sequence.len() == longest);
        // One token alone has no successor to share a buffer with.
        if equal && longest > 1 {
            return Self {
                batch_size,
                seq_len: longest - 1,
                tokens: sequences.concat(),
                layout: Layout::Shared,
            };
        }
        let mut tokens = Vec::with_capacity(2 * batch_size * longest);
        for sequence in sequences {
            tokens.extend_from_slice(sequence);
            tokens.resize(tokens.len() + longest - sequence.len(), pad_id);
        }
        for sequence in sequences {
            let end = tokens.len() + longest;
            if let [_, targets @ ..] = sequence.as_slice() {
                tokens.extend_from_slice(targets);
                tokens.push(eos_id);
            }
            tokens.resize(end, pad_id);
        }
        Self { batch_size, seq_len: longest, tokens, layout: Layout::Apart }
    }

    /// The input of sequence `index`.
    pub fn get_input(&self, index: usize) -> Option<&[u32]> {
        self.view(index, 0, 0)
    }

    /// What is to be predicted at each token of that input.
    pub fn get_target(&self, index: usize) -> Option<&[u32]> {
        self.view(index, 1, self.batch_size * self.seq_len)
    }

    fn view(&self, index: usize, shared_offset: usize, apart_offset: usize) -> Option<&[u32]> {
        if index >= self.batch_size {
            return None;
        }
        let start = match self.layout {
            Layout::Shared => index * (self.seq_len + 1) + shared_offset,
            Layout::Apart => index * self.seq_len + apart_offset,
        };
        Some(&self.tokens[start..start + self.seq_len])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn targets_are_the_next_inputs(
            sequences in proptest::collection::vec(proptest::collection::vec(1_u32..50, 0..6), 0..6)
        ) {
            let batch = LMBatch::from_sequences(&sequences, 0, 99);
            prop_assert_eq!(batch.batch_size, sequences.len());
            let equal = sequences.iter().all(|sequence| sequence.len() == sequences[0].len());
            for (index, sequence) in sequences.iter().enumerate() {
                let (input, target) = (batch.get_input(index).unwrap(), batch.get_target(index).unwrap());
                prop_assert_eq!((input.len(), target.len()), (batch.seq_len, batch.seq_len));
                // Naive: the sequence, the end, then padding; equal ones leave the end out.
                let shared = equal && sequence.len() > 1;
                let inputs = sequence.len() - usize::from(shared);
                for i in 0..batch.seq_len {
                    prop_assert_eq!(input[i], if i < inputs { sequence[i] } else { 0 });
                    let next = if i + 1 < sequence.len() { sequence[i + 1] } else { 99 };
                    prop_assert_eq!(target[i], if i < inputs { next } else { 0 });
                }
            }
            prop_assert_eq!(batch.get_input(sequences.len()), None);
            prop_assert_eq!(batch.get_target(sequences.len()), None);
        }
    }

    #[test]
    fn equal_sequences_take_one_buffer_of_their_own_length() {
        let batch = LMBatch::from_sequences(&vec![vec![7; 128]; 4], 0, 2);
        assert_eq!((batch.tokens.len(), batch.seq_len), (4 * 128, 127));
    }
}
