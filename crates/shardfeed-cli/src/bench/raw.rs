use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use memmap2::Mmap;
use shardfeed::{Dtype, Ids, mix};

use super::contest::Pass;
use super::subject::Subject;
use crate::args::Failure;
use crate::stop::Stop;

/// Every token of the data set as one file of int32, mapped into memory: what a loader of converted data reads.
///
/// One thread copies sequences in a shuffled order into batches of int64, in a buffer that is used again.
pub struct Raw {
    map: Mmap,
    seq_len: usize,
    rows: usize,
    /// Sequences in the order in which they are read; made beforehand.
    order: Vec<u32>,
}

impl Raw {
    /// Writes the file into the subject's scratch directory. The engine itself reads the tokens, unshuffled.
    pub fn new(subject: &Subject, stop: &Stop) -> Result<Self, Failure> {
        let path = subject.scratch.path().join("tokens.raw");
        write_tokens(subject, &path, stop)?;
        let map = map(&path)?;
        let seq_len = subject.seq_len as usize;
        let sequences = (map.len() / 4).div_ceil(seq_len);
        Ok(Self { map, seq_len, rows: subject.global_batch as usize, order: shuffled(sequences as u32) })
    }

    /// Copies everything into batches once.
    pub fn pass(&self, stop: &Stop) -> Result<Pass, Failure> {
        let (tokens, _) = self.map.as_chunks::<4>();
        let mut batch = vec![0_i64; self.rows * self.seq_len];
        let mut copied = 0;
        let started = Instant::now();
        for sequences in self.order.chunks(self.rows) {
            stop.check()?;
            for (&sequence, row) in sequences.iter().zip(batch.chunks_exact_mut(self.seq_len)) {
                let start = sequence as usize * self.seq_len;
                let tokens = &tokens[start..tokens.len().min(start + self.seq_len)];
                for (id, token) in row.iter_mut().zip(tokens) {
                    *id = i64::from(i32::from_le_bytes(*token));
                }
                copied += tokens.len() as u64;
            }
            black_box(&mut batch);
        }
        Ok(Pass { tokens: copied, took: started.elapsed() })
    }
}

fn write_tokens(subject: &Subject, path: &Path, stop: &Stop) -> Result<(), Failure> {
    let mut loader = subject.builder().shuffle(false).dtype(Dtype::Int32).build()?;
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    // Padding comes after the last token.
    let mut left = subject.tokens() as usize;
    while let Some(batch) = loader.next_batch()? {
        stop.check()?;
        let Ids::I32(ids) = batch.input_ids() else { unreachable!("int32 was asked for") };
        let ids = &ids[..left.min(ids.len())];
        left -= ids.len();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        file.write_all(&bytes)?;
    }
    Ok(file.flush()?)
}

#[allow(unsafe_code)] // Being memory-mapped is what this peer is about.
fn map(path: &Path) -> Result<Mmap, Failure> {
    let file = File::open(path)?;
    // SAFETY: the file is our own, in a directory that this process just made and only its user may enter; nothing
    // writes to it or shortens it once it is mapped.
    Ok(unsafe { Mmap::map(&file) }?)
}

fn shuffled(len: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, (mix(i as u64) % (i as u64 + 1)) as usize);
    }
    order
}
