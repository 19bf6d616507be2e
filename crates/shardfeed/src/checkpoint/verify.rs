use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use shardfeed_plan::checkpoint::{Cover, Record, StoredChunk, StoredItem, StoredTensor, ZipError, ZipItem};

use super::bytes::FileBytes;
use super::directory::FileFacts;
use super::hugging_face::read_header;
use super::locate::{Headers, Reason, Windows, locate, locate_by};
use super::opened::{Found, OpenOptions, implausible, rank_of};
use super::options::{DirectIo, TellProgress, Telling};
use super::read::{compare_crc, decoded_bytes_max, object_bytes_max};
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
    /// Items that were saved without: that they can be read is all that is known of them. Those that have problems are in neither number.
    pub items_without: usize,
    /// Folders that may not be listed: whether something is left in them nobody knows.
    pub folders_not_listed: Vec<PathBuf>,
    /// It consists of safetensors that ranks saved by themselves, and nobody noted how many ranks there were: if the files of the last of them
    /// are missing, it is a smaller checkpoint of which nothing is missing.
    pub ranks_not_noted: bool,
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
    /// Bytes of a file belong to nothing.
    Unclaimed,
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
            Self::Unclaimed => "unclaimed_bytes",
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
    let (found, wrong) = match Found::open_in_part(path, options) {
        Ok((found, wrong)) => (found, told(wrong)?),
        Err(error) => {
            return Ok(CheckpointReport { problems: told(vec![error])?, ..CheckpointReport::default() });
        }
    };
    // What ranks saved on their own under one name is looked at for each of them.
    let mut others = Vec::new();
    if found.is_rank_local() && options.rank.is_none() {
        for name in &found.described_by {
            others.push(Found::open(path, &OpenOptions { rank: rank_of(name), ..options.clone() })?);
        }
    }
    let mut all = Verifier::new(&found, progress);
    // Of some of the ranks, or of the files, nobody knows what they would have added.
    let is_readable = wrong.is_empty();
    all.report.problems = wrong;
    all.forms(is_readable && !(found.is_rank_local() && options.rank.is_some()));
    if others.len() > 1 {
        for own in &others {
            let mut verifier = Verifier::new(own, progress);
            verifier.conflicts(&found);
            verifier.items();
            let Verifier { report: mut own, .. } = verifier;
            all.report.problems.append(&mut own.problems);
            all.report.items_with_checksums += own.items_with_checksums;
            all.report.items_without += own.items_without;
        }
    } else {
        all.items();
    }
    all.orphans(options, is_readable)?;
    let mut report = all.report;
    report.problems.sort();
    report.problems.dedup();
    Ok(report)
}

/// What kept metadata from being read, as problems.
fn told(wrong: Vec<Error>) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for error in wrong {
        match error {
            Error::CheckpointDamaged(failures) => {
                problems.extend(failures.0.into_iter().map(|failure| Problem {
                    kind: match failure.path.try_exists() {
                        Ok(false) => ProblemKind::MissingFile,
                        _ => ProblemKind::Metadata,
                    },
                    path: failure.path,
                    offset: failure.offset,
                    item: failure.item,
                    reason: failure.reason,
                }));
            }
            Error::CheckpointRefused { path, reason } => {
                let (offset, item) = (0, String::new());
                problems.push(Problem { path, offset, item, kind: ProblemKind::Metadata, reason });
            }
            error => return Err(error),
        }
    }
    Ok(problems)
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
            ranks_not_noted: found.is_raw && metadata.files.iter().any(|file| file.starts_with("shard-")),
            ..CheckpointReport::default()
        };
        Self { found, files: found.look_at_files(), telling: Telling::new(report.bytes, progress), report }
    }

    /// What is there to be looked at. If these are not all metadata, others may know where the parts are that are missing here.
    fn forms(&mut self, is_all: bool) {
        let metadata = &self.found.metadata;
        let known: HashSet<PathBuf> =
            self.report.problems.iter().map(|problem| problem.path.clone()).collect();
        for (name, facts) in metadata.files.iter().zip(&self.files) {
            if known.contains(&self.found.directory.root().join(name)) {
                continue;
            }
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
                Cover::Overlapping => ProblemKind::OverlappingChunks,
                Cover::Missing(_) | Cover::Unknown if is_all => ProblemKind::Uncovered,
                Cover::Exact | Cover::Missing(_) | Cover::Unknown => continue,
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
        let mut problems = self.unclaimed(&entries, &checked, &headers);
        let mut before: Option<&Entry<'_>> = None;
        for (entry, checked) in entries.iter().zip(&checked) {
            match checked {
                Checked { problem: Some(_), .. } => {}
                Checked { has_checksums: true, .. } => self.report.items_with_checksums += 1,
                _ => self.report.items_without += 1,
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

    /// Bytes of files that belong to nothing: after the last item, which torch never leaves, and in safetensors anywhere.
    fn unclaimed(&self, entries: &[Entry<'_>], checked: &[Checked], headers: &Headers) -> Vec<Problem> {
        // Of each file the item that is last, and where it ends.
        let mut ends: HashMap<u32, (u64, u64)> = HashMap::new();
        let mut found: BTreeMap<u32, Range<u64>> = BTreeMap::new();
        for (entry, checked) in entries.iter().zip(checked).filter(|_| !self.found.is_raw) {
            let StoredItem { file, offset, length, .. } = *entry.item;
            let Ok(facts) = &self.files[file as usize] else { continue };
            let is_safetensors =
                entry.chunk.is_some() && !checked.is_archive && entry.item.transforms.is_empty();
            // What is damaged may end anywhere; and of objects beside safetensors, and of what is compressed, torch may write more than it
            // says the length is.
            let is_told = entry.chunk.is_some() && checked.is_archive && entry.item.transforms.is_empty();
            let end = if is_told { offset + length } else { facts.len };
            let last = ends.entry(file).or_default();
            *last = (offset, end).max(*last);
            if let Some(header) = headers.get(file, offset).filter(|_| is_safetensors)
                && let Some(range) = header.unclaimed(facts.len - offset)
            {
                found.insert(file, range.start + offset..range.end + offset);
            }
        }
        for (file, (_, end)) in ends {
            let len = self.files[file as usize].as_ref().map_or(0, |facts| facts.len);
            if end < len {
                found.insert(file, end..len);
            }
        }
        for (file, name) in (0..).zip(&self.found.metadata.files).filter(|_| self.found.is_raw) {
            let (Ok(facts), Ok(header)) =
                (&self.files[file as usize], read_header(&self.found.directory, name))
            else {
                continue;
            };
            found.extend(header.unclaimed(facts.len).map(|range| (file, range)));
        }
        let problem = |(file, range): (u32, Range<u64>)| {
            let reason = format!(
                "bytes {} to {} belong to nothing that is stored in it: something was added to it, or lost; copy the file again",
                range.start, range.end
            );
            let name = &self.found.metadata.files[file as usize];
            self.problem(name, "", range.start, ProblemKind::Unclaimed, reason)
        };
        found.into_iter().map(problem).collect()
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
        let mut file = FileBytes::open(facts, DirectIo::Never, Vec::new()).map_err(unreadable)?;
        let looked = self.look_into(entry, &mut file, facts.len, headers, checked);
        // Of a file that was written to meanwhile, nothing that was found is worth anything.
        file.check(facts).map_err(unreadable)?;
        looked
    }

    fn look_into(
        &self,
        entry: &Entry<'_>,
        file: &mut FileBytes,
        file_len: u64,
        headers: &Headers,
        checked: &mut Checked,
    ) -> Result<(), (ProblemKind, String)> {
        let unreadable = |reason| (ProblemKind::Unreadable, reason);
        let layout = |reason| (ProblemKind::Layout, reason);
        let item = entry.item;
        let range = item.offset..item.offset + item.length;
        if !item.transforms.is_empty() {
            let max = entry.chunk.map_or_else(
                || object_bytes_max(item.length),
                |(tensor, chunk)| decoded_bytes_max(tensor, chunk),
            );
            let mut unpacked = Unpacked::new(file, range, &item.transforms, max).map_err(layout)?;
            checked.is_archive = ZipItem::begins(&unpacked.head);
            if let Some((tensor, chunk)) = entry.chunk {
                let len = unpacked.len;
                locate_by(tensor, chunk, len, &mut |range| unpacked.read(range)).map_err(layout)?;
            }
            if !checked.is_archive {
                return Ok(());
            }
            let records =
                places_of_records(unpacked.len, &mut |ranges| unpacked.read_each(ranges)).map_err(layout)?;
            let ranges: Vec<Range<u64>> = records.iter().map(|(_, data)| data.clone()).collect();
            let mut sums = unpacked.checksums(&ranges).map_err(layout)?.into_iter();
            checked.has_checksums = compare_records(&records, |_| Ok(sums.next().expect("one for each")))?;
            return Ok(());
        }
        let is_archive = {
            let windows = Windows::new(file, range.clone()).map_err(unreadable)?;
            ZipItem::begins(&windows.head) && !self.found.is_raw
        };
        checked.is_archive = is_archive;
        if let Some((tensor, chunk)) = entry.chunk {
            let located =
                locate(tensor, chunk, self.found.is_raw, file, file_len, headers).map_err(layout)?;
            if !is_archive {
                // No checksum is known; that every byte comes is what can be seen.
                return file.checksum(located.view.data).map(drop).map_err(unreadable);
            }
        } else if !is_archive {
            return file.checksum(range).map(drop).map_err(unreadable);
        }
        let records = {
            let mut windows = Windows::new(file, range.clone()).map_err(unreadable)?;
            let mut read_each =
                |ranges: &[Range<u64>]| ranges.iter().map(|range| windows.read(range.clone())).collect();
            places_of_records(item.length, &mut read_each).map_err(layout)?
        };
        checked.has_checksums = compare_records(&records, |data| {
            file.checksum(range.start + data.start..range.start + data.end).map_err(unreadable)
        })?;
        Ok(())
    }

    /// Files that nothing is said of. Where some metadata cannot be read, those of ranks may be theirs.
    fn orphans(&mut self, options: &OpenOptions, mut is_readable: bool) -> Result<()> {
        let metadata = &self.found.metadata;
        let mut known: HashSet<String> =
            metadata.files.iter().chain(&self.found.described_by).cloned().collect();
        let (names, closed) = self.found.directory.names_within()?;
        let root = self.found.directory.root();
        self.report.folders_not_listed = closed.iter().map(|folder| root.join(folder)).collect();
        let is_rank_local = self.found.is_rank_local();
        for name in &names {
            let Some(rank) = rank_of(name).filter(|_| is_rank_local) else { continue };
            // Files of other ranks are theirs, and known here unless one was asked for.
            known.insert(name.clone());
            if options.rank.is_some_and(|own| own != rank) {
                let options = OpenOptions { rank: Some(rank), ..options.clone() };
                match Found::open(self.found.directory.root(), &options) {
                    Ok(other) => known.extend(other.metadata.files),
                    Err(_) => is_readable = false,
                }
            }
        }
        let is_ours = |name: &str| {
            [".distcp", ".tmp", ".metadata"].iter().any(|end| name.ends_with(end))
                || self.found.is_raw && name.ends_with(".safetensors")
        };
        // Torch leaves the parts there that it has made whole tensors of (`enable_consolidation`).
        let is_consolidated = |name: &str| self.found.is_raw && name.starts_with("sharded/shard-");
        let is_somebodys = |name: &str| is_rank_local && !is_readable && name.ends_with(".distcp");
        let is_orphan = |name: &String| {
            is_ours(name) && !is_consolidated(name) && !is_somebodys(name) && !known.contains(name)
        };
        for name in names.iter().filter(|name| is_orphan(name)) {
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
    let records = records_of(bytes).map_err(|reason| (ProblemKind::Layout, reason))?;
    compare_records(&records, |data| Ok(crc32fast::hash(&bytes[data.start as usize..data.end as usize])))
        .map(drop)
}

/// The records of an archive in memory, each with where its bytes lie. No two share any.
pub(crate) fn records_of(bytes: &[u8]) -> Result<Vec<(Record, Range<u64>)>, String> {
    let part = |range: &Range<u64>| bytes[range.start as usize..range.end as usize].to_vec();
    places_of_records(bytes.len() as u64, &mut |ranges| Ok(ranges.iter().map(part).collect()))
}

/// Gives ranges of an archive.
type ReadEach<'r> = dyn FnMut(&[Range<u64>]) -> Result<Vec<Vec<u8>>, String> + 'r;

/// The records of an archive, each with where its bytes lie, in that order. Their headers are asked for all together: of a compressed
/// archive each request may be a way through all of it.
fn places_of_records(len: u64, read_each: &mut ReadEach<'_>) -> Result<Vec<(Record, Range<u64>)>, String> {
    let zip: Result<ZipItem, Reason> = ZipItem::parse(len, &mut |range| {
        Ok(read_each(&[range]).map_err(Reason)?.pop().expect("one was asked for"))
    });
    let records = zip.map_err(|reason| reason.0)?.records;
    let said = |error: ZipError| error.to_string();
    let headers: Vec<Range<u64>> =
        records.iter().map(Record::header_range).collect::<Result<_, _>>().map_err(said)?;
    let headers = read_each(&headers)?;
    let place = |(record, header): (Record, Vec<u8>)| {
        let data = record.data_after(&header)?;
        Ok((record, data))
    };
    let mut records: Vec<(Record, Range<u64>)> =
        records.into_iter().zip(headers).map(place).collect::<Result<_, _>>().map_err(said)?;
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
