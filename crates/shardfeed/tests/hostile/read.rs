use std::path::Path;

use shardfeed::{CachePolicy, Result, ScanOptions, Source, TokenLoader, scan};

/// Tokens more than a file should have at which reading stops: they differ, however many follow. A run of a few
/// bytes may stand for billions.
const SURPLUS: usize = 1 << 16;

/// What is in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub tokens: Vec<u32>,
    /// Of each row group, one after the other.
    pub row_starts: Vec<usize>,
}

/// The whole file by cursors, or its beginning if there is more than `tokens_about`.
pub fn by_cursor(path: &Path, tokens_about: usize) -> Result<Content> {
    let options = ScanOptions { cache: CachePolicy::Off, threads: Some(1), ..ScanOptions::default() };
    let (data, _) = scan(&Source::Files(vec![path.to_owned()]), &options)?;
    let mut content = Content::default();
    for group in 0..data.manifest().row_groups().len() {
        let mut cursor = data.open_row_group(group as u32)?;
        while let Some(segment) = cursor.segment(50)? {
            if segment.starts_row {
                content.row_starts.push(content.tokens.len());
            }
            let before = content.tokens.len();
            cursor.read(segment.tokens, &mut content.tokens)?;
            assert_eq!(content.tokens.len() - before, segment.tokens, "as many tokens as were announced");
            if content.tokens.len() > tokens_about.saturating_add(SURPLUS) {
                return Ok(content);
            }
        }
    }
    Ok(content)
}

/// Goes through the file as [`by_cursor`] does, but passes over most of it. Returns the tokens that were not, each
/// with its place.
pub fn in_part(path: &Path, tokens_about: usize) -> Result<Vec<(usize, u32)>> {
    let options = ScanOptions { cache: CachePolicy::Off, threads: Some(1), ..ScanOptions::default() };
    let (data, _) = scan(&Source::Files(vec![path.to_owned()]), &options)?;
    let (mut taken, mut at, mut read) = (Vec::new(), 0, Vec::new());
    for group in 0..data.manifest().row_groups().len() {
        let mut cursor = data.open_row_group(group as u32)?;
        while let Some(segment) = cursor.segment(20)? {
            let skipped = segment.tokens * 2 / 3;
            cursor.skip(skipped)?;
            read.clear();
            cursor.read(segment.tokens - skipped, &mut read)?;
            taken.extend((at + skipped..).zip(read.iter().copied()));
            at += segment.tokens;
            if at > tokens_about.saturating_add(SURPLUS) {
                return Ok(taken);
            }
        }
    }
    Ok(taken)
}

/// All tokens of the files in a directory, as a stream in file order.
pub fn by_loader(dir: &Path, tokens_about: usize, memory_budget: u64) -> Result<Vec<u32>> {
    let mut loader = TokenLoader::builder(dir, 16, 4)
        .shuffle(false)
        .threads(1)
        .memory_budget(memory_budget)
        .cache(CachePolicy::Off)
        .build()?;
    let mut tokens = Vec::new();
    while let Some(batch) = loader.next_batch()? {
        let documents = batch.document_ids().iter();
        let real = batch.input_ids().iter().zip(documents).filter(|&(_, document)| document >= 0);
        tokens.extend(real.map(|(id, _)| u32::try_from(id).expect("a token id")));
        if tokens.len() > tokens_about.saturating_add(SURPLUS) {
            break;
        }
    }
    Ok(tokens)
}
