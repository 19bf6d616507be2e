use std::sync::Arc;

use shardfeed::{CachePolicy, DataSet, ScanOptions, Source, TokenLoader, TokenLoaderBuilder, scan};
use tempfile::TempDir;

use crate::args::Failure;

/// The data set that everything is measured on, and how it becomes batches.
pub struct Subject {
    pub source: Source,
    pub data: Arc<DataSet>,
    pub seq_len: u32,
    pub global_batch: u32,
    /// For what is written beside the data set: the manifest, the raw tokens.
    pub scratch: TempDir,
}

impl Subject {
    /// Scans the source; the manifest is kept in a place of its own, so that the data set stays as it is.
    pub fn new(source: Source, seq_len: u32, global_batch: u32) -> Result<Self, Failure> {
        let scratch = tempfile::tempdir()?;
        let options = ScanOptions { cache: kept_in(&scratch), ..ScanOptions::default() };
        let (data, _) = scan(&source, &options)?;
        Ok(Self { source, data, seq_len, global_batch, scratch })
    }

    /// The same with only as many files, in their order, as hold `tokens`.
    pub fn cut(self, tokens: u64) -> Result<Self, Failure> {
        let manifest = self.data.manifest();
        let mut left = tokens;
        let mut paths = Vec::new();
        for file in 0..manifest.files().len() as u32 {
            if left == 0 && !paths.is_empty() {
                break;
            }
            let held: u64 =
                manifest.row_groups()[manifest.row_groups_of(file)].iter().map(|group| group.tokens).sum();
            left = left.saturating_sub(held);
            paths.push(self.data.path(file).to_path_buf());
        }
        if paths.len() == manifest.files().len() {
            return Ok(self);
        }
        Self::new(Source::from(paths), self.seq_len, self.global_batch)
    }

    /// A loader of all of it, on one rank, shuffled, int64: the defaults.
    pub fn builder(&self) -> TokenLoaderBuilder {
        TokenLoader::builder(self.source.clone(), self.seq_len, self.global_batch)
            .cache(kept_in(&self.scratch))
    }

    pub fn tokens(&self) -> u64 {
        self.data.manifest().tokens()
    }

    pub fn bytes(&self) -> u64 {
        self.data.manifest().files().iter().map(|file| file.size).sum()
    }
}

fn kept_in(scratch: &TempDir) -> CachePolicy {
    CachePolicy::At(scratch.path().join("manifest"))
}
