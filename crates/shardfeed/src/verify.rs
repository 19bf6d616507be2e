use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfeed_plan::{EpochOrder, Manifest};

use crate::cache::{self, Kept};
use crate::decode::damaged_pages;
use crate::footer::read_footer;
use crate::page_memory::PageMemory;
use crate::parallel::{default_threads, map_in_parallel};
use crate::progress::Progress;
use crate::{CachePolicy, DataSet, Error, Result, Source};

/// How to verify.
#[derive(Clone, Default)]
pub struct VerifyOptions {
    /// Threads that read; as many as there are cores when `None`.
    pub threads: Option<usize>,
    /// Where a scan kept its manifest, with the checksums that it recorded.
    pub cache: CachePolicy,
    /// Called after each row group with bytes of pages read and to read.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
}

/// What a data set holds, and what is wrong with it.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Files looked at.
    pub files: usize,
    /// Row groups read.
    pub row_groups: usize,
    /// Row groups whose pages were compared with what a scan recorded.
    pub row_groups_with_checksums: usize,
    /// Rows found, null and empty ones included.
    pub rows: u64,
    /// Tokens found.
    pub tokens: u64,
    /// Bytes of the token column.
    pub bytes: u64,
    /// Every damaged place, file by file.
    pub damages: Vec<Damage>,
}

/// A place that cannot be read as it was written.
#[derive(Debug)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// The row group within it; `None` if the file as a whole is no Parquet file of tokens.
    pub row_group: Option<u32>,
    /// The page within the row group, where it is known; the dictionary's has no number.
    pub page: Option<u32>,
    /// What is wrong, with file and place.
    pub reason: String,
}

/// Reads everything once: footers, checksums in pages and those that a scan recorded, levels, every id. Goes on after
/// damage, so that all of it is known in the end; only a source that cannot be listed is an error.
pub fn verify(source: &Source, options: &VerifyOptions) -> Result<VerifyReport> {
    let threads = options.threads.unwrap_or_else(default_threads).max(1);
    let listing = source.list()?;
    let (kept, _) = cache::read_all(&cache::places(source, &listing.base, &options.cache));
    let files = listing.files;
    let mut report = VerifyReport { files: files.len(), ..VerifyReport::default() };
    let opened = map_in_parallel(&files, threads, |file| {
        Ok::<_, Error>((file.path.clone(), open_file(&file.path, &file.name, &kept)))
    })?;
    let mut row_groups = Vec::new();
    for (path, opened) in opened {
        match opened {
            Ok(file) => {
                let count = file.data.manifest().row_groups().len() as u32;
                report.row_groups_with_checksums += file.data.manifest().row_groups_with_checksums();
                row_groups.extend((0..count).map(|row_group| (Arc::clone(&file), row_group)));
            }
            Err(error) => {
                let (row_group, page) = (None, None);
                report.damages.push(Damage { path, row_group, page, reason: error.to_string() });
            }
        }
    }
    let facts =
        |(file, row_group): &(Arc<OpenFile>, u32)| file.data.manifest().row_groups()[*row_group as usize];
    report.row_groups = row_groups.len();
    report.bytes = row_groups.iter().map(|at| facts(at).chunk_len).sum();
    let progress = Progress::new(report.bytes, options.progress.as_ref());
    let memory = Arc::default();
    let found = map_in_parallel(&row_groups, threads, |at| {
        let (file, row_group) = at;
        let found = verify_row_group(file, *row_group, &memory);
        progress.add(facts(at).chunk_len);
        Ok::<_, Error>(found)
    })?;
    for found in found {
        report.rows += found.rows;
        report.tokens += found.tokens;
        report.damages.extend(found.damages);
    }
    report.damages.sort_by(|a, b| (&a.path, a.row_group, a.page).cmp(&(&b.path, b.row_group, b.page)));
    Ok(report)
}

/// Whether an epoch delivers every sequence exactly once, and every row group from its first unit to its last.
pub fn is_exactly_once(order: &EpochOrder, sizes: &[u64]) -> bool {
    let mut seen = vec![0_u64; order.sequences().div_ceil(64) as usize];
    let mut walks: Vec<_> = (0..order.lanes().count()).map(|lane| order.walk(lane)).collect();
    for position in 0..order.sequences() {
        let place = order.place(position);
        let sequence = walks[place.lane as usize].sequence(place.index);
        let Some(word) = seen.get_mut((sequence / 64) as usize) else { return false };
        if *word >> (sequence % 64) & 1 == 1 {
            return false;
        }
        *word |= 1 << (sequence % 64);
    }
    let mut covered = vec![0; sizes.len()];
    for sequence in 0..order.sequences() {
        for span in order.spans(order.units(sequence)) {
            let Some(end) = covered.get_mut(span.row_group as usize) else { return false };
            if *end != span.units.start {
                return false;
            }
            *end = span.units.end;
        }
    }
    covered == sizes
}

struct OpenFile {
    data: Arc<DataSet>,
    /// Row groups whose tokens the footer does not tell.
    uncounted: Vec<usize>,
}

fn open_file(path: &Path, name: &str, kept: &[Kept]) -> Result<Arc<OpenFile>> {
    let footer = read_footer(path, name)?;
    let mut manifest = Manifest::new(vec![(footer.file, footer.row_groups)])?;
    if let Some(kept) = kept.iter().find(|kept| has_recorded(&kept.manifest, &manifest)) {
        manifest.take_checksums(&kept.manifest);
        if manifest.checksums().is_empty() {
            return Err(Error::NotParquet {
                path: path.to_owned(),
                reason: "its footer is not the one it had when checksums were recorded".to_owned(),
            });
        }
    }
    let data = Arc::new(DataSet::new(manifest, vec![path.to_owned()]));
    Ok(Arc::new(OpenFile { data, uncounted: footer.uncounted }))
}

/// Whether the one file of `manifest` is, by its size and time, one whose pages are recorded in `kept`.
fn has_recorded(kept: &Manifest, manifest: &Manifest) -> bool {
    let [file] = manifest.files() else { return false };
    kept.file_named(&file.name).is_some_and(|known| {
        let known_file = &kept.files()[known as usize];
        (known_file.size, known_file.modified_ns) == (file.size, file.modified_ns)
            && kept.row_groups_of(known).any(|row_group| !kept.checksums().of(row_group as u32).is_empty())
    })
}

#[derive(Default)]
struct Found {
    rows: u64,
    tokens: u64,
    damages: Vec<Damage>,
}

fn verify_row_group(file: &OpenFile, row_group: u32, memory: &Arc<PageMemory>) -> Found {
    let mut found = Found::default();
    let damage = |page, reason| Damage {
        path: file.data.path(0).to_owned(),
        row_group: Some(file.data.manifest().row_groups()[row_group as usize].number),
        page,
        reason,
    };
    match damaged_pages(&file.data, row_group, memory) {
        Ok(pages) if !pages.is_empty() => {
            found.damages.extend(pages.into_iter().map(|(page, error)| damage(page, error.to_string())));
            return found;
        }
        Ok(_) => {}
        Err(error) => {
            found.damages.push(damage(None, error.to_string()));
            return found;
        }
    }
    // Pages are whole: what is in them may still be no tokens.
    if let Err(error) = decode_row_group(file, row_group, memory, &mut found) {
        found.damages.push(damage(None, error.to_string()));
    }
    found
}

fn decode_row_group(
    file: &OpenFile,
    row_group: u32,
    memory: &Arc<PageMemory>,
    found: &mut Found,
) -> Result<()> {
    let mut cursor = file.data.open_row_group_within(row_group, memory)?;
    if file.uncounted.contains(&(row_group as usize)) {
        cursor = cursor.uncounted();
    }
    cursor.read_through()?;
    found.tokens = cursor.seen().0;
    found.rows = file.data.manifest().row_groups()[row_group as usize].rows;
    Ok(())
}

impl std::fmt::Debug for VerifyOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyOptions")
            .field("threads", &self.threads)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}
