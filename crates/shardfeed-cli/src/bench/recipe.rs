use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clap::ValueEnum;
use parquet::basic::{Compression, ZstdLevel};
use shardfeed::key;
use shardfeed::sample::{WriteOptions, write_rows};

use super::zipf::Zipf;
use crate::args::Failure;
use crate::stop::Stop;

/// How one made-up data set is written.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub codec: Codec,
    pub encoding: Encoding,
    pub lengths: Lengths,
}

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    None,
    Snappy,
    #[value(name = "lz4_raw", alias = "lz4")]
    Lz4Raw,
    Zstd,
}

/// How ids are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    Dictionary,
    Plain,
    /// What writers hardly ever choose for token ids: it goes through the `parquet` crate's reader.
    ByteStreamSplit,
}

/// How long rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lengths {
    /// Every row one sequence.
    Fixed,
    /// Documents: most of them short, some long.
    Variable,
}

/// How much is made up.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// About this many tokens in all.
    pub tokens: u64,
    pub files: u32,
    /// Tokens of a row of fixed length.
    pub seq_len: u32,
}

/// Tokens after which a row group ends, about.
const ROW_GROUP_TOKENS: u64 = 2 << 20;
/// Mean length of a document, and the longest.
const DOCUMENT_TOKENS: f64 = 600.0;
const DOCUMENT_TOKENS_MAX: f64 = 16_384.0;

impl Recipe {
    /// Every combination.
    pub fn all(codecs: &[Codec], encodings: &[Encoding], lengths: &[Lengths]) -> Vec<Self> {
        let mut recipes = Vec::new();
        for &lengths in lengths {
            for &encoding in encodings {
                recipes.extend(codecs.iter().map(|&codec| Self { codec, encoding, lengths }));
            }
        }
        recipes
    }

    /// "snappy, dictionary, fixed".
    pub fn name(self) -> String {
        [name(&self.codec), name(&self.encoding), name(&self.lengths)].join(", ")
    }

    /// Writes the files into an existing directory, on every core.
    pub fn write(self, dir: &Path, amount: Amount, zipf: &Zipf, stop: &Stop) -> Result<(), Failure> {
        let next = AtomicU64::new(0);
        let failure = Mutex::new(None);
        let work = || -> Result<(), Failure> {
            loop {
                let file = next.fetch_add(1, Relaxed);
                if file >= u64::from(amount.files) {
                    return Ok(());
                }
                stop.check()?;
                let rows = self.rows(file, amount, zipf);
                let tokens: u64 = rows.iter().flatten().map(|row| row.len() as u64).sum();
                let groups = tokens.div_ceil(ROW_GROUP_TOKENS).max(1) as usize;
                let path = dir.join(format!("part-{file:05}.parquet"));
                write_rows(&path, &rows, &self.options(rows.len().div_ceil(groups)))?;
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    if let Err(error) = work() {
                        next.store(u64::from(amount.files), Relaxed);
                        failure.lock().expect("nobody panics with it").get_or_insert(error);
                    }
                });
            }
        });
        failure.into_inner().expect("nobody panics with it").map_or(Ok(()), Err)
    }

    fn rows(self, file: u64, amount: Amount, zipf: &Zipf) -> Vec<Option<Vec<u32>>> {
        let wanted = (amount.tokens / u64::from(amount.files)).max(1);
        let mut rows = Vec::new();
        let mut tokens = 0;
        while tokens < wanted {
            let row_key = key(&[file, rows.len() as u64]);
            let len = match self.lengths {
                Lengths::Fixed => amount.seq_len as usize,
                Lengths::Variable => document_tokens(row_key),
            };
            rows.push(Some(zipf.row(len, row_key)));
            tokens += len as u64;
        }
        rows
    }

    fn options(self, rows_per_group: usize) -> WriteOptions {
        let compression = match self.codec {
            Codec::None => Compression::UNCOMPRESSED,
            Codec::Snappy => Compression::SNAPPY,
            Codec::Lz4Raw => Compression::LZ4_RAW,
            Codec::Zstd => Compression::ZSTD(ZstdLevel::default()),
        };
        let dictionary = self.encoding == Encoding::Dictionary;
        let encoding = (self.encoding == Encoding::ByteStreamSplit)
            .then_some(parquet::basic::Encoding::BYTE_STREAM_SPLIT);
        WriteOptions { rows_per_group, compression, dictionary, encoding, ..WriteOptions::default() }
    }
}

/// The name that people type.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Lengths fall off exponentially.
fn document_tokens(row_key: u64) -> usize {
    let uniform = (row_key >> 11) as f64 / (1_u64 << 53) as f64;
    (1.0 - (1.0 - uniform).ln() * DOCUMENT_TOKENS).min(DOCUMENT_TOKENS_MAX) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_name_of_its_own() {
        let all = Recipe::all(Codec::value_variants(), Encoding::value_variants(), Lengths::value_variants());
        let mut names: Vec<String> = all.iter().map(|recipe| recipe.name()).collect();
        assert_eq!(names[0], "none, dictionary, fixed");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 24);
    }

    #[test]
    fn documents_are_about_as_long_as_they_should_be() {
        let lengths: Vec<usize> = (0..10_000).map(|row| document_tokens(key(&[row]))).collect();
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        assert!((550..650).contains(&mean), "{mean}");
        assert!(lengths.iter().all(|&len| (1..=16_384).contains(&len)));
    }
}
