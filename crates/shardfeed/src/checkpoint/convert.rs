use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use shardfeed_plan::checkpoint::{Dtype, HEADER_BYTES_MAX, RunLimits, StoredTensor};

use super::bytes::make_room;
use super::checksums::Checksums;
use super::number::cast;
use super::opened::Checkpoint;
use super::options::{DirectIo, ReadOptions, Stop, TellProgress, Telling};
use super::parallel::Kept;
use super::slabs::for_each_piece;
use super::wanted::{Asked, ReadPlan};
use crate::error::{Error, Result};
use crate::parallel::{default_threads, map_in_parallel};

/// Bytes of a tensor that a thread has in its hands.
const SLAB_BYTES: u64 = 4 << 20;

/// Slabs that are noted at a time, before they are copied: of a large checkpoint there are a million.
const SLABS: usize = 1 << 14;

/// Bytes that all threads together may hold, if nobody says otherwise.
const MEMORY_BYTES: u64 = 64 << 20;

/// What becomes of a checkpoint.
#[derive(Clone)]
pub struct ConvertOptions {
    /// Names of tensors to take, as globs (`model.*`); all if there are none.
    pub include: Vec<String>,
    /// Names of tensors to leave out.
    pub exclude: Vec<String>,
    /// What names begin with that is left off.
    pub strip_prefix: String,
    /// What tensors of 16, 32 and 64 bit floating-point numbers are cast to; others stay what they are.
    pub dtype: Option<Dtype>,
    /// Bytes of a file at most, unless a single tensor has more.
    pub file_bytes_max: u64,
    /// Compare the checksums that were stored with those of what is read: damaged bytes are an error, and nothing is written.
    pub verify: bool,
    /// Bytes that may be held.
    pub memory_budget: Option<u64>,
    /// Is told how far it is.
    pub progress: Option<TellProgress>,
    /// Ends it early, if somebody wishes so, and leaves nothing behind.
    pub stop: Option<Stop>,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            include: Vec::new(),
            exclude: Vec::new(),
            strip_prefix: String::new(),
            dtype: None,
            file_bytes_max: 5_000_000_000,
            verify: false,
            memory_budget: None,
            progress: None,
            stop: None,
        }
    }
}

/// What was written.
#[derive(Clone, Debug, Default)]
pub struct Converted {
    /// Names of the files.
    pub files: Vec<String>,
    /// Tensors in them.
    pub tensors: usize,
    /// Tensors that were left out.
    pub tensors_left_out: usize,
    /// Objects, which safetensors files cannot hold.
    pub objects_left_out: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Writes the tensors of a checkpoint as safetensors files into a new directory, which appears when it is complete.
pub fn convert_checkpoint(
    checkpoint: &Checkpoint,
    out: &Path,
    options: &ConvertOptions,
) -> Result<Converted> {
    // Files, links, pipes: only an empty directory may be there.
    let is_other = out.symlink_metadata().is_ok_and(|there| !there.is_dir());
    if is_other || std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::Invalid(format!(
            "{}: it is there already; remove it, or name another directory",
            out.display()
        )));
    }
    let chosen = choose(checkpoint, options)?;
    let files = distribute(chosen, options.file_bytes_max, HEADER_BYTES_MAX)?;
    let mut converted = Converted {
        files: file_names(files.len()),
        tensors: files.iter().map(Vec::len).sum(),
        objects_left_out: checkpoint.objects().len(),
        bytes: files.iter().flatten().map(Chosen::bytes).sum(),
        ..Converted::default()
    };
    converted.tensors_left_out = checkpoint.tensors().len() - converted.tensors;
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|error| Error::io(parent, "create it", error))?;
    let name = out
        .file_name()
        .ok_or_else(|| Error::Invalid(format!("{}: no name for a directory", out.display())))?;
    let unfinished = Unfinished::beside(parent, &name.to_string_lossy())?;
    let verify = options.verify || checkpoint.options.verify;
    let stop = options.stop.clone().or_else(|| checkpoint.options.stop.clone());
    let reading = ReadOptions { verify, stop, ..checkpoint.options.clone() };
    let telling = Telling::new(converted.bytes, options.progress.as_ref());
    let checksums = Arc::new(Checksums::default());
    Writer { checkpoint, options, reading, checksums, telling }.write(
        &unfinished.0,
        &converted.files,
        &files,
    )?;
    if files.len() > 1 {
        write_index(&unfinished.0, &converted, &files)?;
    }
    sync_directory(&unfinished.0)?;
    // An empty directory may be there; anything else stays.
    let moved = std::fs::remove_dir(out).or_else(|error| if out.exists() { Err(error) } else { Ok(()) });
    moved
        .and_then(|()| std::fs::rename(&unfinished.0, out))
        .map_err(|error| Error::io(out, "put the result there", error))?;
    sync_directory(parent)?;
    Ok(converted)
}

/// A tensor, what it will be called, and what it will be.
struct Chosen<'a> {
    tensor: &'a StoredTensor,
    name: String,
    dtype: Dtype,
}

impl Chosen<'_> {
    fn bytes(&self) -> u64 {
        self.tensor.shape.iter().product::<u64>() * self.dtype.bytes()
    }

    /// Bytes that it takes of a header at most, with its share of what every header has.
    fn header_bytes(&self) -> u64 {
        /// Everything but the name and the shape.
        const FIXED: u64 = 200;
        /// A number, and what separates it from the next.
        const NUMBER: u64 = 21;
        // Quotes, and letters that are written as several.
        let name = Value::from(self.name.as_str()).to_string().len() as u64;
        name + FIXED + NUMBER * self.tensor.shape.len() as u64
    }
}

fn choose<'a>(checkpoint: &'a Checkpoint, options: &ConvertOptions) -> Result<Vec<Chosen<'a>>> {
    let patterns = |texts: &[String]| -> Result<Vec<glob::Pattern>> {
        let parse = |text: &String| glob::Pattern::new(text);
        texts
            .iter()
            .map(|text| {
                parse(text).map_err(|error| Error::Glob { pattern: text.clone(), reason: error.to_string() })
            })
            .collect()
    };
    let (include, exclude) = (patterns(&options.include)?, patterns(&options.exclude)?);
    let mut chosen = Vec::new();
    let mut names = BTreeSet::new();
    for tensor in checkpoint.tensors() {
        let name = &tensor.name;
        let is_in = include.is_empty() || include.iter().any(|pattern| pattern.matches(name));
        if !is_in || exclude.iter().any(|pattern| pattern.matches(name)) {
            continue;
        }
        let dtype = options.dtype.filter(|_| tensor.dtype.is_float()).unwrap_or(tensor.dtype);
        // Two elements of four bits are no tensor without dimensions.
        let is_pair = dtype == Dtype::Float4E2m1fnX2 && tensor.shape.is_empty();
        if dtype.safetensors_name().is_none() || is_pair {
            return Err(Error::Invalid(format!(
                "{name}: safetensors files cannot hold {dtype}; leave it out (exclude), or keep the checkpoint as it is"
            )));
        }
        let new = name.strip_prefix(&options.strip_prefix).unwrap_or(name).to_owned();
        if new == "__metadata__" || !names.insert(new.clone()) {
            return Err(Error::Invalid(format!(
                "{name}: two tensors would be called {new}, or it is a name that the format keeps for itself"
            )));
        }
        chosen.push(Chosen { tensor, name: new, dtype });
    }
    if chosen.is_empty() {
        return Err(Error::Invalid(format!(
            "{}: none of its {} tensors is chosen",
            checkpoint.path().display(),
            checkpoint.tensors().len()
        )));
    }
    Ok(chosen)
}

/// Which tensors share a file: as they were saved, as many as fit it and its header. Within a file those of wide elements come first, so that
/// all of them lie at places that suit them.
fn distribute(
    chosen: Vec<Chosen<'_>>,
    bytes_max: u64,
    header_bytes_max: u64,
) -> Result<Vec<Vec<Chosen<'_>>>> {
    let mut files: Vec<Vec<Chosen<'_>>> = Vec::new();
    let (mut filled, mut header_filled) = (0, 0);
    for tensor in chosen {
        let (bytes, header_bytes) = (tensor.bytes(), tensor.header_bytes());
        if header_bytes > header_bytes_max {
            return Err(Error::Invalid(format!(
                "{}…: a name of {} bytes is too long for a safetensors file, whose header has {header_bytes_max} at most; leave it out (exclude), or keep the checkpoint as it is",
                tensor.name.chars().take(60).collect::<String>(),
                tensor.name.len()
            )));
        }
        match files.last_mut() {
            Some(file) if filled + bytes <= bytes_max && header_filled + header_bytes <= header_bytes_max => {
                filled += bytes;
                header_filled += header_bytes;
                file.push(tensor);
            }
            _ => {
                (filled, header_filled) = (bytes, header_bytes);
                files.push(vec![tensor]);
            }
        }
    }
    for file in &mut files {
        file.sort_by(|one, other| {
            other.dtype.bytes().cmp(&one.dtype.bytes()).then(one.name.cmp(&other.name))
        });
    }
    Ok(files)
}

fn file_names(count: usize) -> Vec<String> {
    match count {
        1 => vec!["model.safetensors".to_owned()],
        _ => (1..=count).map(|number| format!("model-{number:05}-of-{count:05}.safetensors")).collect(),
    }
}

/// The eight bytes of its length, and the header.
fn header(tensors: &[Chosen<'_>]) -> Vec<u8> {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut at = 0;
    for chosen in tensors {
        let mut shape = chosen.tensor.shape.clone();
        // The format counts elements of four bits, torch counts pairs of them.
        if let (Dtype::Float4E2m1fnX2, Some(last)) = (chosen.dtype, shape.last_mut()) {
            *last *= 2;
        }
        let end = at + chosen.bytes();
        let entry =
            json!({"dtype": chosen.dtype.safetensors_name(), "shape": shape, "data_offsets": [at, end]});
        entries.insert(chosen.name.clone(), entry);
        at = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    bytes
}

fn write_index(directory: &Path, converted: &Converted, files: &[Vec<Chosen<'_>>]) -> Result<()> {
    let named = files.iter().zip(&converted.files);
    let map: BTreeMap<&str, &str> = named
        .flat_map(|(tensors, file)| tensors.iter().map(|chosen| (chosen.name.as_str(), file.as_str())))
        .collect();
    let index = json!({"metadata": {"total_size": converted.bytes}, "weight_map": map});
    let path = directory.join("model.safetensors.index.json");
    let text = serde_json::to_string_pretty(&index).map_err(|error| Error::Invalid(error.to_string()))?;
    let write = || {
        std::fs::write(&path, text)?;
        File::open(&path)?.sync_all()
    };
    write().map_err(|error| Error::io(&path, "write it", error))
}

/// A directory that goes away unless it was renamed.
struct Unfinished(PathBuf);

impl Unfinished {
    /// A new one: what another process has left behind is not taken up.
    fn beside(parent: &Path, name: &str) -> Result<Self> {
        for attempt in 0..1000 {
            let path = parent.join(format!(".{name}.{}.{attempt}.tmp", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(path, "create it", error)),
            }
        }
        Err(Error::Invalid(format!(
            "{}: a thousand unfinished conversions lie there (.{name}.*.tmp); remove them",
            parent.display()
        )))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After the rename there is nothing; if it cannot be removed, its name says what it is.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Writer<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a ConvertOptions,
    reading: ReadOptions,
    checksums: Arc<Checksums>,
    telling: Telling<'a>,
}

/// A piece of a tensor that one thread reads and writes.
struct Slab<'a> {
    chosen: &'a Chosen<'a>,
    ranges: Vec<Range<u64>>,
    path: &'a Path,
    /// Where the tensor begins in the file.
    start: u64,
}

impl Writer<'_> {
    fn write(&self, directory: &Path, names: &[String], files: &[Vec<Chosen<'_>>]) -> Result<()> {
        let mut opened = Vec::new();
        for (name, tensors) in names.iter().zip(files) {
            let path = directory.join(name);
            let header = header(tensors);
            let bytes: u64 = tensors.iter().map(Chosen::bytes).sum();
            let create = || {
                let file = File::create_new(&path)?;
                file.set_len(header.len() as u64 + bytes)?;
                file.write_all_at(&header, 0)
            };
            create().map_err(|error| Error::io(&path, "write it", error))?;
            opened.push((path, header.len() as u64));
        }
        if self.reading.verify {
            let all: Vec<&Chosen<'_>> = files.iter().flatten().collect();
            map_in_parallel(&all, default_threads(), |chosen| {
                self.checkpoint.check_empty_chunks(chosen.tensor, &self.reading)
            })?;
        }
        let mut slabs = Vec::new();
        for ((path, header), tensors) in opened.iter().zip(files) {
            let mut start = *header;
            for chosen in tensors {
                for_each_piece(chosen.tensor, SLAB_BYTES, &mut |ranges| {
                    slabs.push(Slab { chosen, ranges: ranges.to_vec(), path, start });
                    if slabs.len() == SLABS {
                        self.copy_all(&slabs)?;
                        slabs.clear();
                    }
                    Ok(())
                })?;
                start += chosen.bytes();
            }
        }
        self.copy_all(&slabs)?;
        if self.reading.verify {
            self.check_rest()?;
        }
        for (path, _) in &opened {
            self.go_on()?;
            let sync = || File::open(path)?.sync_all();
            sync().map_err(|error| Error::io(path, "write it", error))?;
        }
        Ok(())
    }

    /// What was not copied of the items whose checksums are compared, within the same memory.
    fn check_rest(&self) -> Result<()> {
        let options = ReadOptions {
            memory_budget: Some(self.memory_budget()),
            limits: RunLimits { block: SLAB_BYTES, ..RunLimits::default() },
            direct_io: DirectIo::Never,
            ..self.reading.of_pieces()
        };
        self.checkpoint.compare_rest_with(&self.checksums, &options)
    }

    /// Bytes that may be held.
    fn memory_budget(&self) -> u64 {
        self.options.memory_budget.unwrap_or(MEMORY_BYTES)
    }

    /// On as many threads as the budget has memory for.
    fn copy_all(&self, slabs: &[Slab<'_>]) -> Result<()> {
        // What a thread holds: a slab as it was, what reading it takes, and as it will be; what is compressed is a slab as a whole.
        let element = |slab: &Slab<'_>| (slab.chosen.tensor.dtype.bytes(), slab.chosen.dtype.bytes());
        let bytes = |slab: &Slab<'_>| {
            let count: u64 = slab.ranges.iter().map(|range| range.end - range.start).product();
            let (from, to) = element(slab);
            count.saturating_mul(2 * from + to)
        };
        let each = slabs.iter().map(bytes).max().unwrap_or(0).max(1);
        let threads = default_threads().min((self.memory_budget() / each).max(1) as usize);
        map_in_parallel(slabs, threads, |slab| self.copy(slab)).map(drop)
    }

    /// An error once somebody wishes that it end.
    fn go_on(&self) -> Result<()> {
        self.reading.stop.as_ref().map_or(Ok(()), Stop::check).map_err(Error::Invalid)
    }

    fn copy(&self, slab: &Slab<'_>) -> Result<()> {
        self.go_on()?;
        let (tensor, dtype) = (slab.chosen.tensor, slab.chosen.dtype);
        let count: u64 = slab.ranges.iter().map(|range| range.end - range.start).product();
        let mut bytes = Vec::new();
        make_room(&mut bytes, count * tensor.dtype.bytes())
            .map_err(|reason| Error::Invalid(format!("{}: {reason}", tensor.name)))?;
        let mut plan = ReadPlan::new();
        plan.ask(&tensor.name, Asked::Piece(slab.ranges.clone()), &mut bytes);
        // In blocks no larger than a slab, and through the cache: what is written takes longer than what is read.
        let limits = RunLimits { block: SLAB_BYTES, ..RunLimits::default() };
        let options = ReadOptions {
            num_workers: Some(1),
            limits,
            direct_io: DirectIo::Never,
            ..self.reading.of_pieces()
        };
        let kept = Kept::sharing(Arc::clone(&self.checksums));
        self.checkpoint.read_into_keeping(plan, &options, &kept)?;
        if dtype != tensor.dtype {
            let mut numbers = Vec::new();
            make_room(&mut numbers, count * dtype.bytes())
                .map_err(|reason| Error::Invalid(format!("{}: {reason}", tensor.name)))?;
            cast(&bytes, tensor.dtype, dtype, &mut numbers);
            bytes = numbers;
        }
        let failed = |error| Error::io(slab.path, "write it", error);
        // Opened for each: there may be more files than may be open at a time.
        let file = File::options().write(true).open(slab.path).map_err(failed)?;
        for (at, part) in rows(&tensor.shape, &slab.ranges, dtype.bytes(), &bytes) {
            file.write_all_at(part, slab.start + at).map_err(failed)?;
        }
        self.telling.came(bytes.len() as u64, None);
        Ok(())
    }
}

/// Blocks of a box that lie together in its tensor, each with its place there.
fn rows<'a>(
    shape: &[u64],
    ranges: &[Range<u64>],
    element: u64,
    bytes: &'a [u8],
) -> impl Iterator<Item = (u64, &'a [u8])> {
    let size = |dim: usize| ranges[dim].end - ranges[dim].start;
    // Everything after the last dimension that is cut lies together, and so do the rows of that one.
    let cut = (0..shape.len()).rev().find(|&dim| size(dim) != shape[dim]).unwrap_or(0);
    let len = (cut..shape.len()).map(size).product::<u64>() * element;
    let count = (0..cut.min(shape.len())).map(size).product::<u64>();
    let (shape, ranges) = (shape.to_vec(), ranges.to_vec());
    (0..count).map(move |row| {
        let (mut rest, mut at, mut stride) = (row, 0, element);
        for dim in (0..shape.len()).rev() {
            let size = ranges[dim].end - ranges[dim].start;
            let index = if dim >= cut { 0 } else { rest % size };
            if dim < cut {
                rest /= size;
            }
            at += (ranges[dim].start + index) * stride;
            stride *= shape[dim];
        }
        (at, &bytes[(row * len) as usize..((row + 1) * len) as usize])
    })
}

fn sync_directory(path: &Path) -> Result<()> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|error| Error::io(path, "write it", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_no_longer_than_the_format_allows() {
        let tensor = |name: String| StoredTensor {
            name,
            dtype: Dtype::Float8E4m3fnuz,
            shape: vec![1; 9],
            chunks: Vec::new(),
        };
        // Letters that are one byte here and six in the header.
        let tensors: Vec<StoredTensor> =
            (0..20).map(|number| tensor(format!("{number}{}", "\u{1}".repeat(50 * number)))).collect();
        let chosen = || {
            let of = |tensor| Chosen { tensor, name: String::clone(&tensor.name), dtype: tensor.dtype };
            tensors.iter().map(of).collect::<Vec<_>>()
        };
        let max = 7000;
        let files = distribute(chosen(), u64::MAX, max).unwrap();
        assert!(files.len() > 1 && files[0].len() > 1);
        assert_eq!(files.iter().map(Vec::len).sum::<usize>(), tensors.len());
        for file in &files {
            assert!(header(file).len() as u64 <= max + 8, "{}", header(file).len());
        }
        let error = distribute(chosen(), u64::MAX, 5000).err().unwrap().to_string();
        assert!(error.contains("a name of 802 bytes is too long"), "{error}");
    }

    #[test]
    fn boxes_are_written_where_their_elements_belong() {
        let shape = [3_u64, 4, 5];
        for ranges in [
            [0..3, 0..4, 0..5],
            [1..2, 0..4, 0..5],
            [0..3, 1..3, 0..5],
            [1..3, 2..4, 1..4],
            [2..3, 3..4, 4..5],
        ] {
            let inside = |dim: usize, index: u64| ranges[dim].contains(&index);
            let wanted: Vec<u8> = (0..60)
                .filter(|&element| {
                    inside(0, element / 20) && inside(1, element / 5 % 4) && inside(2, element % 5)
                })
                .map(|element| element as u8)
                .collect();
            for (at, part) in rows(&shape, &ranges, 1, &wanted) {
                assert_eq!(part, (at as u8..at as u8 + part.len() as u8).collect::<Vec<_>>(), "{ranges:?}");
            }
            assert_eq!(
                rows(&shape, &ranges, 1, &wanted).map(|(_, part)| part.len()).sum::<usize>(),
                wanted.len()
            );
        }
        assert_eq!(rows(&[], &[], 4, &[1, 2, 3, 4]).collect::<Vec<_>>(), [(0, &[1, 2, 3, 4][..])]);
    }
}
