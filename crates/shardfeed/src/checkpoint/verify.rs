use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use shardfeed_plan::checkpoint::{Cover, Record, StoredChunk, StoredItem, StoredTensor, ZipItem};

use super::bytes::FileBytes;
use super::directory::FileFacts;
use super::locate::{Headers, Reason, Windows, locate, locate_by};
use super::opened::{Found, OpenOptions, implausible};
use super::options::{DirectIo, TellProgress, Telling};
use super::read::{OBJECT_BYTES_MAX, compare_crc, decoded_bytes_max};
use super::undo::Unpacked;
use crate::error::{Error, Result};
use crate::parallel::{default_threads, map_in_parallel};

/// What was found by looking at every byte of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct CheckpointReport {
    /// Everything that is wrong, by file and place.
    pub problems: Vec<Problem>,
    /// Tensors there are.
    pub tensors: usize,
    /// Objects there are.
    pub objects: usize,
    /// Files there are.
    pub files: usize,
    /// Bytes of all items.
    pub bytes: u64,
    /// Items all of whose checksums were compared.
    pub items_with_checksums: usize,
    /// Items that were saved without: that they can be read is all that is known of them.
    pub items_without: usize,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// The tensor or object, if it is about one.
    pub item: String,
    /// Of which kind it is.
    pub kind: ProblemKind,
    /// What was found, and what to do.
    pub reason: String,
}

/// What can be wrong with a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// What describes the checkpoint is missing, damaged, or not believed.
    Metadata,
    /// A file is missing, or may not be read.
    MissingFile,
    /// A file belongs to nothing: a save that was not finished, or another checkpoint.
    OrphanFile,
    /// A file is shorter than what it must hold.
    CutShort,
    /// Parts of a tensor are stored nowhere.
    Uncovered,
    /// Parts of a tensor are stored twice.
    OverlappingChunks,
    /// Two items share bytes of a file.
    OverlappingItems,
    /// An item is not what it should be.
    Layout,
    /// Bytes are not those that were saved.
    Checksum,
    /// Bytes cannot be read.
    Unreadable,
}

impl ProblemKind {
    /// A word for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::MissingFile => "missing_file",
            Self::OrphanFile => "orphan_file",
            Self::CutShort => "cut_short",
            Self::Uncovered => "uncovered",
            Self::OverlappingChunks => "overlapping_chunks",
            Self::OverlappingItems => "overlapping_items",
            Self::Layout => "layout",
            Self::Checksum => "checksum",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Reads a checkpoint through and lists every problem: that it cannot be opened is one of them.
pub fn verify_checkpoint(
    path: &Path,
    options: &OpenOptions,
    progress: Option<&TellProgress>,
) -> Result<CheckpointReport> {
    // A path that is not there is a mistake, not a damaged checkpoint.
    std::fs::metadata(path).map_err(|error| Error::io(path, "open it", error))?;
    let mut report = CheckpointReport::default();
    let found = match Found::open(path, options) {
        Ok(found) => found,
        Err(Error::CheckpointDamaged(failures)) => {
            let problem = |failure: crate::failures::ItemFailure| Problem {
                kind: match failure.path.try_exists() {
                    Ok(false) => ProblemKind::MissingFile,
                    _ => ProblemKind::Metadata,
                },
                path: failure.path,
                offset: failure.offset,
                item: failure.item,
                reason: failure.reason,
            };
            report.problems = failures.0.into_iter().map(problem).collect();
            return Ok(report);
        }
        Err(Error::CheckpointRefused { path, reason }) => {
            report.problems.push(Problem {
                path,
                offset: 0,
                item: String::new(),
                kind: ProblemKind::Metadata,
                reason,
            });
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    // What ranks saved on their own under one name is looked at for each of them.
    let mut others = Vec::new();
    if found.is_rank_local() && options.rank.is_none() {
        for name in &found.described_by {
            let rank = name.strip_prefix("__").and_then(|name| name.strip_suffix(".metadata")?.parse().ok());
            others.push(Found::open(path, &OpenOptions { rank, ..options.clone() })?);
        }
    }
    let mut merged = CheckpointReport::default();
    for own in others.iter().filter(|_| others.len() > 1) {
        let mut verifier = Verifier::new(own, progress);
        verifier.conflicts(&found);
        verifier.items();
        merged.problems.append(&mut verifier.report.problems);
        merged.items_with_checksums += verifier.report.items_with_checksums;
        merged.items_without += verifier.report.items_without;
    }
    let mut verifier = Verifier::new(&found, progress);
    verifier.forms();
    if merged.items_with_checksums + merged.items_without == 0 {
        verifier.items();
    } else {
        verifier.report.items_with_checksums = merged.items_with_checksums;
        verifier.report.items_without = merged.items_without;
        verifier.report.problems.append(&mut merged.problems);
    }
    verifier.orphans(options)?;
    let mut report = verifier.report;
    report.problems.sort();
    report.problems.dedup();
    Ok(report)
}

struct Verifier<'a> {
    found: &'a Found,
    files: Vec<Result<FileFacts, String>>,
    report: CheckpointReport,
    telling: Telling<'a>,
}

/// An item of a tensor, or of an object.
struct Entry<'a> {
    name: &'a str,
    item: &'a StoredItem,
    chunk: Option<(&'a StoredTensor, &'a StoredChunk)>,
}

/// What was found out about an item.
#[derive(Default)]
struct Checked {
    is_archive: bool,
    has_checksums: bool,
    problem: Option<(ProblemKind, String)>,
}

impl<'a> Verifier<'a> {
    fn new(found: &'a Found, progress: Option<&'a TellProgress>) -> Self {
        let metadata = &found.metadata;
        let report = CheckpointReport {
            tensors: metadata.tensors.len(),
            objects: metadata.objects.len(),
            files: metadata.files.len(),
            bytes: found.items().map(|(_, item)| item.length).fold(0, u64::saturating_add),
            ..CheckpointReport::default()
        };
        Self { found, files: found.look_at_files(), telling: Telling::new(report.bytes, progress), report }
    }

    /// What is there to be looked at.
    fn forms(&mut self) {
        let metadata = &self.found.metadata;
        for (name, facts) in metadata.files.iter().zip(&self.files) {
            if let Err(reason) = facts {
                self.report.problems.push(self.problem(
                    name,
                    "",
                    0,
                    ProblemKind::MissingFile,
                    reason.clone(),
                ));
            }
        }
        for tensor in &metadata.tensors {
            let kind = match tensor.cover() {
                Cover::Exact => continue,
                Cover::Overlapping => ProblemKind::OverlappingChunks,
                Cover::Missing(_) | Cover::Unknown => ProblemKind::Uncovered,
            };
            let reason = tensor
                .hole()
                .unwrap_or_else(|| "some of its elements are in several of its chunks".to_owned());
            let file = &self.found.described_by[0];
            self.report.problems.push(self.problem(file, &tensor.name, 0, kind, reason));
        }
    }

    /// What a rank saved as something else than those before it.
    fn conflicts(&mut self, all: &Found) {
        let known: HashMap<&str, &StoredTensor> =
            all.metadata.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        for tensor in &self.found.metadata.tensors {
            let Some(other) = known.get(tensor.name.as_str()) else { continue };
            if (other.dtype, &other.shape) != (tensor.dtype, &tensor.shape) {
                let reason = format!(
                    "this rank saved {} of shape {:?}, and another one {} of shape {:?} under the same name",
                    tensor.dtype, tensor.shape, other.dtype, other.shape
                );
                let problem =
                    self.problem(&self.found.described_by[0], &tensor.name, 0, ProblemKind::Metadata, reason);
                self.report.problems.push(problem);
            }
        }
    }

    fn items(&mut self) {
        let metadata = &self.found.metadata;
        let chunks =
            metadata.tensors.iter().flat_map(|tensor| tensor.chunks.iter().map(move |chunk| (tensor, chunk)));
        let chunks = chunks.map(|(tensor, chunk)| Entry {
            name: &tensor.name,
            item: &chunk.item,
            chunk: Some((tensor, chunk)),
        });
        let objects = metadata.objects.iter().map(|object| Entry {
            name: &object.name,
            item: &object.item,
            chunk: None,
        });
        // What lies in missing files needs no line of its own.
        let mut entries: Vec<Entry<'_>> =
            chunks.chain(objects).filter(|entry| self.files[entry.item.file as usize].is_ok()).collect();
        entries.sort_by_key(|entry| (entry.item.file, entry.item.offset));
        let headers = Headers::default();
        let check = |entry: &Entry<'_>| Ok::<_, std::convert::Infallible>(self.check(entry, &headers));
        let Ok(checked) = map_in_parallel(&entries, default_threads(), check);
        let mut problems = Vec::new();
        let mut before: Option<&Entry<'_>> = None;
        for (entry, checked) in entries.iter().zip(&checked) {
            if checked.has_checksums {
                self.report.items_with_checksums += 1;
            } else {
                self.report.items_without += 1;
            }
            let file = &metadata.files[entry.item.file as usize];
            if let Some((kind, reason)) = &checked.problem {
                problems.push(self.problem(file, entry.name, entry.item.offset, *kind, reason.clone()));
            }
            // Safetensors within a file all have its beginning as their place.
            if !checked.is_archive && !self.found.is_raw && entry.item.transforms.is_empty() {
                continue;
            }
            if let Some(before) = before.filter(|before| {
                before.item.file == entry.item.file
                    && before.item.offset + before.item.length > entry.item.offset
            }) && entry.item.length > 0
            {
                let reason = format!(
                    "it begins before {} has ended, at byte {}",
                    before.name,
                    before.item.offset + before.item.length
                );
                problems.push(self.problem(
                    file,
                    entry.name,
                    entry.item.offset,
                    ProblemKind::OverlappingItems,
                    reason,
                ));
            }
            // A short item may lie within a long one, which reaches further.
            let is_further = |before: &&Entry<'_>| {
                before.item.file != entry.item.file
                    || before.item.offset + before.item.length <= entry.item.offset + entry.item.length
            };
            if before.as_ref().is_none_or(is_further) {
                before = Some(entry);
            }
        }
        self.report.problems.append(&mut problems);
    }

    fn check(&self, entry: &Entry<'_>, headers: &Headers) -> Checked {
        let mut checked = Checked::default();
        let Ok(facts) = &self.files[entry.item.file as usize] else { return checked };
        let end = entry.item.offset + entry.item.length;
        if end > facts.len {
            let reason = format!("it ends at byte {end} and the file has {}; copy the file again", facts.len);
            checked.problem = Some((ProblemKind::CutShort, reason));
        } else if let Some(reason) = entry.chunk.and_then(|(tensor, chunk)| implausible(tensor, chunk)) {
            checked.problem = Some((ProblemKind::Layout, reason));
        } else if let Err(problem) = self.look_through(entry, facts, headers, &mut checked) {
            checked.problem = Some(problem);
        }
        self.telling.came(entry.item.length, Some(entry.name));
        checked
    }

    fn look_through(
        &self,
        entry: &Entry<'_>,
        facts: &FileFacts,
        headers: &Headers,
        checked: &mut Checked,
    ) -> Result<(), (ProblemKind, String)> {
        let unreadable = |reason| (ProblemKind::Unreadable, reason);
        let layout = |reason| (ProblemKind::Layout, reason);
        let mut file = FileBytes::open(facts, DirectIo::Never, Vec::new()).map_err(unreadable)?;
        let item = entry.item;
        let range = item.offset..item.offset + item.length;
        if !item.transforms.is_empty() {
            let max =
                entry.chunk.map_or(OBJECT_BYTES_MAX, |(tensor, chunk)| decoded_bytes_max(tensor, chunk));
            let mut unpacked = Unpacked::new(&mut file, range, &item.transforms, max).map_err(layout)?;
            checked.is_archive = ZipItem::begins(&unpacked.head);
            if let Some((tensor, chunk)) = entry.chunk {
                let len = unpacked.len;
                locate_by(tensor, chunk, len, &mut |range| unpacked.read(range)).map_err(layout)?;
            }
            if !checked.is_archive {
                return Ok(());
            }
            let records =
                places_of_records(unpacked.len, &mut |range| unpacked.read(range)).map_err(layout)?;
            let ranges: Vec<Range<u64>> = records.iter().map(|(_, data)| data.clone()).collect();
            let mut sums = unpacked.checksums(&ranges).map_err(layout)?.into_iter();
            checked.has_checksums = compare_records(&records, |_| Ok(sums.next().expect("one for each")))?;
            return Ok(());
        }
        let is_archive = {
            let windows = Windows::new(&mut file, range.clone()).map_err(unreadable)?;
            ZipItem::begins(&windows.head) && !self.found.is_raw
        };
        checked.is_archive = is_archive;
        if let Some((tensor, chunk)) = entry.chunk {
            let located =
                locate(tensor, chunk, self.found.is_raw, &mut file, facts.len, headers).map_err(layout)?;
            if !is_archive {
                // No checksum is known; that every byte comes is what can be seen.
                return file.checksum(located.view.data).map(drop).map_err(unreadable);
            }
        } else if !is_archive {
            return file.checksum(range).map(drop).map_err(unreadable);
        }
        let records = {
            let mut windows = Windows::new(&mut file, range.clone()).map_err(unreadable)?;
            places_of_records(item.length, &mut |range| windows.read(range)).map_err(layout)?
        };
        checked.has_checksums = compare_records(&records, |data| {
            file.checksum(range.start + data.start..range.start + data.end).map_err(unreadable)
        })?;
        Ok(())
    }

    fn orphans(&mut self, options: &OpenOptions) -> Result<()> {
        let metadata = &self.found.metadata;
        let mut known: HashSet<String> =
            metadata.files.iter().chain(&self.found.described_by).cloned().collect();
        let names = self.found.directory.names_within()?;
        let is_rank_local = self.found.is_rank_local();
        for name in &names {
            let rank =
                name.strip_prefix("__").and_then(|name| name.strip_suffix(".metadata")?.parse::<u32>().ok());
            let Some(rank) = rank.filter(|_| is_rank_local) else { continue };
            // Files of other ranks are theirs.
            known.insert(name.clone());
            let options = OpenOptions { rank: Some(rank), ..options.clone() };
            if let Ok(other) = Found::open(self.found.directory.root(), &options) {
                known.extend(other.metadata.files);
            }
        }
        let is_ours = |name: &str| {
            [".distcp", ".tmp", ".metadata"].iter().any(|end| name.ends_with(end))
                || self.found.is_raw && name.ends_with(".safetensors")
        };
        for name in names.iter().filter(|name| is_ours(name) && !known.contains(*name)) {
            let reason = "nothing in the checkpoint is stored in it: it is left from a save that was not finished, or from another checkpoint";
            let problem = self.problem(name, "", 0, ProblemKind::OrphanFile, reason.to_owned());
            self.report.problems.push(problem);
        }
        Ok(())
    }

    fn problem(&self, file: &str, item: &str, offset: u64, kind: ProblemKind, reason: String) -> Problem {
        Problem { path: self.found.directory.root().join(file), offset, item: item.to_owned(), kind, reason }
    }
}

/// Compares the checksums of an archive in memory.
pub(crate) fn check_records(bytes: &[u8]) -> Result<(), (ProblemKind, String)> {
    let part = |range: &Range<u64>| &bytes[range.start as usize..range.end as usize];
    let records = places_of_records(bytes.len() as u64, &mut |range| Ok(part(&range).to_vec()))
        .map_err(|reason| (ProblemKind::Layout, reason))?;
    compare_records(&records, |data| Ok(crc32fast::hash(part(data)))).map(drop)
}

/// The records of an archive, each with where its bytes lie, in that order.
fn places_of_records(
    len: u64,
    read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, String>,
) -> Result<Vec<(Record, Range<u64>)>, String> {
    let mut read = |range| read(range).map_err(Reason);
    let zip: Result<ZipItem, Reason> = ZipItem::parse(len, &mut read);
    let mut records = Vec::new();
    for record in zip.map_err(|reason| reason.0)?.records {
        let data: Result<Range<u64>, Reason> = record.data(&mut read);
        records.push((record, data.map_err(|reason| reason.0)?));
    }
    records.sort_by_key(|(_, data)| (data.start, data.end));
    // A million records of the same bytes would be looked through for days.
    if let Some(pair) = records.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        return Err(format!("its records {} and {} share bytes", pair[0].0.name, pair[1].0.name));
    }
    Ok(records)
}

/// Compares checksums, and says whether every record has one.
fn compare_records(
    records: &[(Record, Range<u64>)],
    mut checksum: impl FnMut(&Range<u64>) -> Result<u32, (ProblemKind, String)>,
) -> Result<bool, (ProblemKind, String)> {
    let mut has_checksums = true;
    for (record, data) in records {
        has_checksums &= record.crc != 0 || record.size == 0;
        compare_record(&record.name, record.crc, checksum(data)?)?;
    }
    Ok(has_checksums)
}

fn compare_record(name: &str, recorded: u32, found: u32) -> Result<(), (ProblemKind, String)> {
    // Zero stands for none.
    let recorded = Some(recorded).filter(|&crc| crc != 0);
    compare_crc(recorded, found).map_err(|reason| (ProblemKind::Checksum, format!("{name}: {reason}")))
}
