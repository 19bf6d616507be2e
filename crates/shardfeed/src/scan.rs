use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shardfeed_plan::{DataFile, Manifest, ManifestError, PageChecksums, PieceCounts, RowGroup};

use crate::cache::{self, CachePolicy, Kept};
use crate::dataset::DataSet;
use crate::footer::{Footer, modified_ns, read_footer};
use crate::page_memory::PageMemory;
use crate::parallel::{default_threads, map_in_parallel};
use crate::progress::Progress;
use crate::record::record_row_group;
use crate::source::{ListedFile, Source};
use crate::{Error, Result};

/// How to scan.
#[derive(Clone, Default)]
pub struct ScanOptions {
    /// Threads that read; as many as there are cores when `None`.
    pub threads: Option<usize>,
    /// Where the manifest is kept for the next start.
    pub cache: CachePolicy,
    /// Also count the sequences of each row group at this length, as [`crate::Packing::Pad`] needs.
    pub pieces_of: Option<u32>,
    /// Also read every page of files without recorded checksums, and record them in the manifest. From then on reading
    /// compares: a page that is not as it was recorded is damage. Scans without this keep what was recorded.
    pub checksum: bool,
    /// Bytes that counting levels and recording may take, for pages of all threads; a gigabyte a page when `None`.
    pub memory_budget: Option<u64>,
    /// Called now and then with work done and work to do: files, then row groups whose checksums are recorded, then row
    /// groups whose levels are counted.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Once it is set, the scan ends with an error.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// What a scan did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Files whose footers were read.
    pub files_read: usize,
    /// Files taken from the cached manifest.
    pub files_cached: usize,
    /// Row groups whose levels were counted, since no statistics told.
    pub row_groups_counted: usize,
    /// Row groups whose checksums were recorded by this scan.
    pub row_groups_recorded: usize,
    /// The cached manifest that was used.
    pub cache_read: Option<PathBuf>,
    /// Where the new manifest was written.
    pub cache_written: Option<PathBuf>,
    /// Why a cached manifest was not used, or none could be written.
    pub cache_notes: Vec<String>,
}

/// What the manifest is to be kept in: other libraries take a directory for that.
fn refuse_no_file(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Err(Error::Invalid(format!(
            "the manifest cannot be kept in {}, which is no file; give the file that it is to be kept in, for example {}",
            path.display(),
            path.join("manifest").display()
        )));
    }
    Ok(())
}

/// Reads what there is in a source: from the cached manifest where files did not change, else from their footers.
pub fn scan(source: &Source, options: &ScanOptions) -> Result<(Arc<DataSet>, ScanReport)> {
    let threads = options.threads.unwrap_or_else(default_threads).max(1);
    if let CachePolicy::At(path) = &options.cache {
        refuse_no_file(path)?;
    }
    let listing = source.list()?;
    let caches = cache::places(source, &listing.base, &options.cache);
    let (mut kept, cache_notes) = cache::read_all(&caches);
    let mut report = ScanReport { cache_notes, ..ScanReport::default() };
    let stats = map_in_parallel(&listing.files, threads, |file| {
        let metadata =
            std::fs::metadata(&file.path).map_err(|error| Error::io(&file.path, "look at it", error))?;
        if metadata.is_dir() {
            return Err(Error::Invalid(format!(
                "{}: a directory in a list of files; give the directory by itself, or its files",
                file.path.display()
            )));
        }
        Ok::<_, Error>((metadata.len(), modified_ns(&metadata)))
    })?;
    let cached = take_best(&mut kept, &listing.files, &stats);
    report.cache_read = cached.as_ref().map(|cached| cached.place.clone());
    let cached = cached.map(|cached| cached.manifest);
    let (mut manifest, mut is_new) = match cached {
        Some(cached) if is_current(&cached, &listing.files, &stats) => {
            report.files_cached = listing.files.len();
            (cached, false)
        }
        cached => (refresh(&listing.files, &stats, cached.as_ref(), threads, options, &mut report)?, true),
    };
    let paths: Vec<PathBuf> = listing.files.into_iter().map(|file| file.path).collect();
    if options.checksum {
        let unrecorded = manifest.files_without_checksums();
        if !unrecorded.is_empty() {
            (manifest, report.row_groups_recorded) =
                record_checksums(manifest, &paths, &unrecorded, threads, options)?;
            is_new = true;
        }
    }
    if let Some(seq_len) = options.pieces_of {
        let uncounted = manifest.files_without_pieces(seq_len);
        if !uncounted.is_empty() {
            (manifest, report.row_groups_counted) =
                count_pieces(manifest, &paths, &uncounted, seq_len, threads, options)?;
            is_new = true;
        }
    }
    if is_new {
        let (written, mut notes) = cache::write_first(&caches, &manifest);
        report.cache_written = written;
        report.cache_notes.append(&mut notes);
    }
    Ok((Arc::new(DataSet::new(manifest, paths)), report))
}

/// One file alone, without a cache; and which of its row groups are not counted, since no statistics tell.
pub(crate) fn scan_file(path: &Path) -> Result<(Arc<DataSet>, Vec<usize>)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Footer { file, row_groups, uncounted } = read_footer(path, &name)?;
    let manifest = Manifest::new(vec![(file, row_groups)]).map_err(|error| refused(error, |_| Some(path)))?;
    Ok((Arc::new(DataSet::new(manifest, vec![path.to_owned()])), uncounted))
}

type Stat = (u64, i64);

/// One that is current, wherever it was kept: the preferred place may be read-only, and its manifest old or without the
/// checksums that were recorded later. The preferred one among equals.
fn take_best(kept: &mut Vec<Kept>, files: &[ListedFile], stats: &[Stat]) -> Option<Kept> {
    let worth =
        |manifest: &Manifest| (is_current(manifest, files, stats), manifest.row_groups_with_checksums());
    let best = (0..kept.len()).min_by_key(|&index| Reverse(worth(&kept[index].manifest)))?;
    Some(kept.swap_remove(best))
}

fn is_current(cached: &Manifest, files: &[ListedFile], stats: &[Stat]) -> bool {
    cached.files().len() == files.len()
        && cached.files().iter().zip(files).zip(stats).all(|((cached, file), &stat)| {
            cached.name == file.name && (cached.size, cached.modified_ns) == stat
        })
}

/// A manifest of what the cache still knows and what footers say.
fn refresh(
    files: &[ListedFile],
    stats: &[Stat],
    cached: Option<&Manifest>,
    threads: usize,
    options: &ScanOptions,
    report: &mut ScanReport,
) -> Result<Manifest> {
    let by_name: HashMap<&str, u32> = cached
        .map(|cached| (0..).zip(cached.files()).map(|(index, file)| (file.name.as_str(), index)).collect())
        .unwrap_or_default();
    let known = |name: &str, stat: Stat| -> Option<(DataFile, Vec<RowGroup>)> {
        let index = *by_name.get(name)?;
        let cached = cached?;
        let file = &cached.files()[index as usize];
        ((file.size, file.modified_ns) == stat)
            .then(|| (file.clone(), cached.row_groups()[cached.row_groups_of(index)].to_vec()))
    };
    let mut scanned: Vec<Option<(DataFile, Vec<RowGroup>)>> =
        files.iter().zip(stats).map(|(file, &stat)| known(&file.name, stat)).collect();
    let missing: Vec<usize> = (0..files.len()).filter(|&index| scanned[index].is_none()).collect();
    report.files_read = missing.len();
    report.files_cached = files.len() - missing.len();
    let progress = Progress::new(missing.len() as u64, options.progress.as_ref());
    let memory = options.page_memory(threads);
    let read = map_in_parallel(&missing, threads, |&index| {
        let result = read_file(&files[index].path, &files[index].name, &memory);
        progress.add(1);
        options.stop_if_cancelled()?;
        result
    })?;
    for (index, read) in missing.into_iter().zip(read) {
        scanned[index] = Some(read);
    }
    let path_of = |name: &str| Some(files.iter().find(|file| file.name == name)?.path.as_path());
    let mut manifest =
        Manifest::new(scanned.into_iter().flatten().collect()).map_err(|error| refused(error, path_of))?;
    if let Some(cached) = cached {
        manifest.take_checksums(cached);
    }
    Ok(manifest)
}

/// A footer that can be read, and claims what cannot be.
fn refused<'a>(error: ManifestError, path_of: impl Fn(&str) -> Option<&'a Path>) -> Error {
    match error.damaged_file().and_then(path_of) {
        Some(path) => Error::NotParquet { path: path.to_owned(), reason: error.to_string() },
        None => error.into(),
    }
}

/// Footer and, where statistics are missing, counted levels.
fn read_file(path: &Path, name: &str, memory: &Arc<PageMemory>) -> Result<(DataFile, Vec<RowGroup>)> {
    let Footer { file, mut row_groups, uncounted } = read_footer(path, name)?;
    if !uncounted.is_empty() {
        let manifest = Manifest::new(vec![(file.clone(), row_groups.clone())])
            .map_err(|error| refused(error, |_| Some(path)))?;
        let data = Arc::new(DataSet::new(manifest, vec![path.to_owned()]));
        for index in uncounted {
            let mut cursor = data.open_row_group_within(index as u32, memory)?.uncounted().levels_only();
            while cursor.segment(usize::MAX)?.is_some() {}
            (row_groups[index].tokens, row_groups[index].documents) = cursor.seen();
        }
    }
    Ok((file, row_groups))
}

/// Checksums of all pages of `files`; those of others stay.
fn record_checksums(
    manifest: Manifest,
    paths: &[PathBuf],
    files: &[u32],
    threads: usize,
    options: &ScanOptions,
) -> Result<(Manifest, usize)> {
    let row_groups = row_groups_of(&manifest, files);
    let (mut manifest, recorded) =
        read_each(manifest, paths, &row_groups, threads, options, record_row_group)?;
    let mut checksums = PageChecksums::default();
    let mut recorded = row_groups.iter().zip(recorded).peekable();
    for row_group in 0..manifest.row_groups().len() as u32 {
        match recorded.next_if(|(recorded, _)| **recorded == row_group) {
            Some((_, pages)) => checksums.push(&pages),
            None => checksums.push(manifest.checksums().of(row_group)),
        }
    }
    manifest.set_checksums(checksums)?;
    Ok((manifest, row_groups.len()))
}

/// What `read` makes of each of these row groups, in parallel; and the manifest again.
fn read_each<T: Send>(
    manifest: Manifest,
    paths: &[PathBuf],
    row_groups: &[u32],
    threads: usize,
    options: &ScanOptions,
    read: impl Fn(&Arc<DataSet>, u32, &Arc<PageMemory>) -> Result<T> + Sync,
) -> Result<(Manifest, Vec<T>)> {
    let data = Arc::new(DataSet::new(manifest, paths.to_vec()));
    let progress = Progress::new(row_groups.len() as u64, options.progress.as_ref());
    let memory = options.page_memory(threads);
    let made = map_in_parallel(row_groups, threads, |&row_group| {
        let made = read(&data, row_group, &memory);
        progress.add(1);
        options.stop_if_cancelled()?;
        made
    })?;
    let data = Arc::into_inner(data).expect("all threads are done");
    Ok((data.into_parts().0, made))
}

fn row_groups_of(manifest: &Manifest, files: &[u32]) -> Vec<u32> {
    files.iter().flat_map(|&file| manifest.row_groups_of(file)).map(|index| index as u32).collect()
}

fn count_pieces(
    manifest: Manifest,
    paths: &[PathBuf],
    files: &[u32],
    seq_len: u32,
    threads: usize,
    options: &ScanOptions,
) -> Result<(Manifest, usize)> {
    let row_groups = row_groups_of(&manifest, files);
    let count = |data: &Arc<DataSet>, row_group: u32, memory: &Arc<PageMemory>| {
        pieces_of_row_group(data, row_group, u64::from(seq_len), memory)
    };
    let (mut manifest, counts) = read_each(manifest, paths, &row_groups, threads, options, count)?;
    let mut counts = counts.into_iter();
    for &file in files {
        let counts = counts.by_ref().take(manifest.row_groups_of(file).len()).collect();
        manifest.set_pieces(file, PieceCounts { seq_len, counts });
    }
    Ok((manifest, row_groups.len()))
}

fn pieces_of_row_group(
    data: &Arc<DataSet>,
    row_group: u32,
    seq_len: u64,
    memory: &Arc<PageMemory>,
) -> Result<u64> {
    let mut cursor = data.open_row_group_within(row_group, memory)?.levels_only();
    let (mut pieces, mut row_len) = (0, 0_u64);
    while let Some(segment) = cursor.segment(usize::MAX)? {
        if segment.starts_row {
            pieces += row_len.div_ceil(seq_len);
            row_len = 0;
        }
        row_len += segment.tokens as u64;
    }
    Ok(pieces + row_len.div_ceil(seq_len))
}

impl ScanOptions {
    fn stop_if_cancelled(&self) -> Result<()> {
        if self.cancel.as_ref().is_some_and(|cancel| cancel.load(Relaxed)) {
            return Err(Error::Invalid("the scan was interrupted; start it again".to_owned()));
        }
        Ok(())
    }

    fn page_memory(&self, threads: usize) -> Arc<PageMemory> {
        let memory = self.memory_budget.map(|budget| PageMemory::within(budget, budget, threads));
        Arc::new(memory.unwrap_or_default())
    }
}

impl std::fmt::Debug for ScanOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScanOptions")
            .field("threads", &self.threads)
            .field("cache", &self.cache)
            .field("pieces_of", &self.pieces_of)
            .field("checksum", &self.checksum)
            .field("memory_budget", &self.memory_budget)
            .finish_non_exhaustive()
    }
}
