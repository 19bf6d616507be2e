use std::collections::HashMap;
use std::path::{Path, PathBuf};

use shardfeed_plan::checkpoint::{
    Cover, Metadata, MetadataError, StoredChunk, StoredItem, StoredObject, StoredTensor, safe_path,
};

use super::directory::{Directory, FileFacts};
use super::hugging_face;
use super::options::ReadOptions;
use crate::error::{Error, Result};
use crate::failures::{Failures, ItemFailure};
use crate::parallel::{default_threads, map_in_parallel};

/// Bytes of metadata that are read. A checkpoint of a million tensors has some hundred million.
const METADATA_BYTES_MAX: u64 = 2 << 30;

/// A checkpoint that was opened: what it holds is known and checked, and any of it can be read.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) found: Found,
    /// Files by their numbers, as they were when this was opened.
    pub(crate) files: Vec<FileFacts>,
    index: HashMap<String, usize>,
    /// How the parts of each tensor fill it.
    pub(crate) covers: Vec<Cover>,
    pub(crate) options: ReadOptions,
}

/// How a checkpoint is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Whose metadata are read, of a checkpoint that was saved without the ranks talking to each other. If nobody says, those of all
    /// ranks together: where two saved something under one name, the lower rank's counts.
    pub rank: Option<u32>,
    /// Read files that are links to somewhere else, as those of Hugging Face's cache are.
    pub follow_links: bool,
}

/// What a directory says that it holds, before anybody looked at its files.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) directory: Directory,
    pub(crate) metadata: Metadata,
    /// Items are the bytes of tensors and nothing else.
    pub(crate) is_raw: bool,
    /// Files that say what there is.
    pub(crate) described_by: Vec<String>,
}

impl Checkpoint {
    /// Opens a directory with `.metadata` and the files that it names, or one with safetensors files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// The same, in another way.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let found = Found::open(path.as_ref(), options)?;
        let implausible = found.implausible();
        let opened = Self::look_at(found, implausible)?;
        // One rank's metadata know its own parts; what is missing is said to those who ask for it.
        let is_whole = opened.covers.iter().all(|cover| matches!(cover, Cover::Exact | Cover::Overlapping));
        if !is_whole && !opened.found.is_rank_local() {
            let found = &opened.found;
            let holes: Vec<String> = found.metadata.holes().iter().map(ToString::to_string).collect();
            let first = found.metadata.tensors.iter().find(|tensor| tensor.hole().is_some());
            return Err(refused(&found.described_in(first), holes.join("; ")));
        }
        Ok(opened)
    }

    /// Opens what somebody else has read the metadata of, or the part of it that they need: only files that these name are
    /// looked at, and nothing is missed that they do not mention.
    pub fn open_described(path: impl AsRef<Path>, metadata: Metadata, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        if let Some(file) = metadata.files.iter().find(|file| !safe_path(file)) {
            return Err(refused(
                path,
                format!("the file {file:?} would lie outside of the checkpoint; it is not read"),
            ));
        }
        if let Some(reason) = metadata.tensors.iter().find_map(impossible) {
            return Err(refused(path, reason));
        }
        let directory = Directory::open(path, options.follow_links)?;
        let found = Found { directory, metadata, is_raw: false, described_by: vec![".metadata".to_owned()] };
        if let Some((name, _)) = found.items().find(|(_, item)| {
            item.file as usize >= found.metadata.files.len() || item.offset.checked_add(item.length).is_none()
        }) {
            return Err(refused(path, format!("{name} is stored in no file that is named")));
        }
        // Too few bytes are no damage yet: the item may be of another type, which is seen when it is read into memory that is there.
        Self::look_at(found, Vec::new())
    }

    /// What is wrong besides is part of the report.
    fn look_at(found: Found, mut failures: Vec<ItemFailure>) -> Result<Self> {
        let looked_at = found.look_at_files();
        failures
            .extend(found.misplaced(|file| looked_at[file as usize].as_ref().ok().map(|facts| facts.len)));
        let mut files = Vec::new();
        for (name, facts) in found.metadata.files.iter().zip(looked_at) {
            match facts {
                Ok(facts) => files.push(facts),
                Err(reason) => failures.push(found.failure(name, reason)),
            }
        }
        if !failures.is_empty() {
            failures.sort_by(|one, other| (&one.path, one.offset).cmp(&(&other.path, other.offset)));
            return Err(Error::CheckpointDamaged(Failures(failures)));
        }
        let covers: Vec<Cover> = found.metadata.tensors.iter().map(StoredTensor::cover).collect();
        let tensors = found.metadata.tensors.iter().enumerate();
        let index = tensors.map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(Self { found, files, index, covers, options: ReadOptions::default() })
    }

    /// Reads in this way from now on.
    pub fn with_options(mut self, options: ReadOptions) -> Self {
        self.options = options;
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.found.directory.root()
    }

    /// Everything that it says of itself.
    pub fn metadata(&self) -> &Metadata {
        &self.found.metadata
    }

    /// Its tensors, in the order in which they were saved, each with its chunks and where those lie.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.found.metadata.tensors
    }

    /// What it holds besides tensors, as bytes that somebody else may know how to read.
    pub fn objects(&self) -> &[StoredObject] {
        &self.found.metadata.objects
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.index.get(name).map(|&index| &self.tensors()[index])
    }

    /// Paths of the files that it consists of, by the numbers that items have, with their lengths.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.files.iter().map(|file| (file.path.as_path(), file.len))
    }

    pub(crate) fn tensor_index(&self, name: &str) -> Result<usize> {
        self.index.get(name).copied().ok_or_else(|| {
            let near = nearest(name, self.tensors().iter().map(|tensor| tensor.name.as_str()));
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            Error::Invalid(format!("{}: no tensor is called {name}{hint}", self.path().display()))
        })
    }

    /// The bytes in which a checkpoint, or the rank that the options name, says what it holds: of `.metadata`, or `__RANK.metadata`.
    pub fn metadata_bytes(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Vec<u8>> {
        let name = options.rank.map_or_else(|| ".metadata".to_owned(), |rank| format!("__{rank}.metadata"));
        let file = path.as_ref().join(&name);
        // Callers tell a file that is not there from everything else.
        std::fs::symlink_metadata(&file).map_err(|error| Error::io(&file, "open it", error))?;
        let directory = Directory::open(path.as_ref(), options.follow_links)?;
        directory.read_small(&name, METADATA_BYTES_MAX).map_err(|reason| refused(&file, reason))
    }

    pub(crate) fn item_failure(&self, item: &StoredItem, name: &str, reason: String) -> ItemFailure {
        let path = self.files[item.file as usize].path.clone();
        ItemFailure { path, item: name.to_owned(), offset: item.offset, reason }
    }
}

impl Found {
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self> {
        let (found, mut wrong) = Self::open_in_part(path, options)?;
        if wrong.is_empty() { Ok(found) } else { Err(wrong.swap_remove(0)) }
    }

    /// What can be known of it, and what is wrong with what says the rest; an error if that is everything.
    pub(crate) fn open_in_part(path: &Path, options: &OpenOptions) -> Result<(Self, Vec<Error>)> {
        let directory = Directory::open(path, options.follow_links)?;
        let names = directory.names()?;
        let own = |rank: u32| format!("__{rank}.metadata");
        let mut ranks: Vec<u32> = names.iter().filter_map(|name| rank_of(name)).collect();
        ranks.sort_unstable();
        let described_by = match options.rank {
            Some(rank) if ranks.contains(&rank) => vec![own(rank)],
            Some(rank) if !ranks.is_empty() => {
                return Err(refused(
                    path,
                    format!("it has no metadata of rank {rank}; it has those of {ranks:?}"),
                ));
            }
            _ if names.iter().any(|name| name == ".metadata") => vec![".metadata".to_owned()],
            _ if ranks.is_empty() => {
                let (found, failures) = hugging_face::open(directory, &names)?;
                let wrong = (!failures.is_empty()).then_some(Error::CheckpointDamaged(Failures(failures)));
                return Ok((found, wrong.into_iter().collect()));
            }
            _ => ranks.into_iter().map(own).collect(),
        };
        let read = |name: &String| -> Result<Metadata> {
            let file = path.join(name);
            let bytes =
                directory.read_small(name, METADATA_BYTES_MAX).map_err(|reason| refused(&file, reason))?;
            Metadata::parse(&bytes).map_err(|error| {
                let why = match error {
                    MetadataError::Newer { .. } => {
                        "a newer torch wrote it; read it with a newer version of this"
                    }
                    MetadataError::Quantized { .. } => {
                        "only torch makes sense of that: load it there (shardfeed.checkpoint.Reader for Python does), or save it dequantized"
                    }
                    _ => "it is damaged, or was not written by torch.distributed.checkpoint",
                };
                refused(&file, format!("{error}; {why}"))
            })
        };
        let (mut ranks, mut wrong, mut readable) = (Vec::new(), Vec::new(), Vec::new());
        for name in described_by {
            match read(&name) {
                Ok(metadata) => {
                    ranks.push(metadata);
                    readable.push(name);
                }
                Err(error) => wrong.push(error),
            }
        }
        if readable.is_empty() {
            return Err(wrong.swap_remove(0));
        }
        let found =
            Self { directory, metadata: Metadata::merged(ranks), is_raw: false, described_by: readable };
        Ok((found, wrong))
    }

    /// Whether ranks saved without talking to each other, each with metadata of its own.
    pub(crate) fn is_rank_local(&self) -> bool {
        !self.is_raw && self.described_by[0].starts_with("__")
    }

    /// Every file, in the order of their numbers.
    pub(crate) fn look_at_files(&self) -> Vec<Result<FileFacts, String>> {
        let look = |name: &String| Ok::<_, std::convert::Infallible>(self.directory.look_at(name));
        let Ok(files) = map_in_parallel(&self.metadata.files, default_threads(), look);
        files
    }

    /// Everything that is stored, with the name of what it is.
    pub(crate) fn items(&self) -> impl Iterator<Item = (&str, &StoredItem)> {
        let chunks = self
            .metadata
            .tensors
            .iter()
            .flat_map(|tensor| tensor.chunks.iter().map(|chunk| (tensor.name.as_str(), &chunk.item)));
        chunks.chain(self.metadata.objects.iter().map(|object| (object.name.as_str(), &object.item)))
    }

    /// Items that would reach past the end of their file, where its length is known.
    pub(crate) fn misplaced(&self, len: impl Fn(u32) -> Option<u64>) -> Vec<ItemFailure> {
        let past = self.items().filter_map(|(name, item)| {
            let len = len(item.file)?;
            let end = item.offset + item.length;
            let reason =
                format!("it ends at byte {end} and the file has {len}: the file is cut short; copy it again");
            (end > len).then(|| ItemFailure {
                path: self.path_of(&self.metadata.files[item.file as usize]),
                item: name.to_owned(),
                offset: item.offset,
                reason,
            })
        });
        past.collect()
    }

    /// Chunks that cannot be stored in as few bytes as it says.
    pub(crate) fn implausible(&self) -> Vec<ItemFailure> {
        let chunks = self
            .metadata
            .tensors
            .iter()
            .flat_map(|tensor| tensor.chunks.iter().map(move |chunk| (tensor, chunk)));
        let failure = |(tensor, chunk): (&StoredTensor, &StoredChunk)| {
            Some(ItemFailure {
                path: self.path_of(&self.metadata.files[chunk.item.file as usize]),
                item: tensor.name.clone(),
                offset: chunk.item.offset,
                reason: implausible(tensor, chunk)?,
            })
        };
        chunks.filter_map(failure).collect()
    }

    pub(crate) fn failure(&self, file: &str, reason: String) -> ItemFailure {
        ItemFailure { path: self.path_of(file), item: String::new(), offset: 0, reason }
    }

    fn path_of(&self, file: &str) -> PathBuf {
        self.directory.root().join(file)
    }

    /// The file that says what a tensor consists of.
    fn described_in(&self, tensor: Option<&StoredTensor>) -> PathBuf {
        let first = tensor.and_then(|tensor| tensor.chunks.first()).filter(|_| self.is_raw);
        let file = first.map(|chunk| &self.metadata.files[chunk.item.file as usize]);
        self.path_of(file.unwrap_or(&self.described_by[0]))
    }
}

/// Whose own metadata a file holds: `__7.metadata`, and nothing that only looks like it (`__07.metadata`).
pub(crate) fn rank_of(name: &str) -> Option<u32> {
    let rank = name.strip_prefix("__")?.strip_suffix(".metadata")?.parse().ok()?;
    Some(rank).filter(|rank: &u32| name.len() == rank.to_string().len() + "__.metadata".len())
}

pub(crate) fn refused(path: &Path, reason: String) -> Error {
    Error::CheckpointRefused { path: path.to_owned(), reason }
}

/// Why there can be no such tensor, as parsed metadata describe none: everything that reads counts on it.
fn impossible(tensor: &StoredTensor) -> Option<String> {
    let StoredTensor { name, dtype, shape, chunks } = tensor;
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &size| bytes.checked_mul(size));
    if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
        return Some(format!("{name}: {dtype} of shape {shape:?} is larger than any memory"));
    }
    let outside = chunks.iter().find(|chunk| !chunk.part.is_within(shape))?;
    Some(format!("{name}: the chunk {:?} is no part of its shape {shape:?}", outside.part))
}

/// Why a chunk cannot be stored in so few bytes: nothing is made room for that cannot be there.
pub(crate) fn implausible(tensor: &StoredTensor, chunk: &StoredChunk) -> Option<String> {
    /// Bytes that a byte can become when it is decompressed: zstd says "128 KiB of these" in four.
    const GROWTH_MAX: u64 = 1 << 16;
    /// Bytes that zeros may become, say, which two layers make next to nothing of. What is more has to take more.
    const STACKED_BYTES_MAX: u64 = 1 << 30;
    let bytes = chunk.part.volume().saturating_mul(tensor.dtype.bytes());
    let stored = chunk.item.length;
    let grown = stored.saturating_mul(GROWTH_MAX).saturating_add(1 << 20);
    let most = match chunk.item.transforms.len() {
        0 => stored,
        1 => grown,
        _ => grown.max(STACKED_BYTES_MAX),
    };
    (bytes > most).then(|| {
        format!(
            "{bytes} bytes of elements cannot be stored in {stored}; the metadata are damaged, or mean harm"
        )
    })
}

/// The name that shares most of its parts with one that is not there.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let parts = |name: &str| name.split('.').map(str::to_owned).collect::<Vec<_>>();
    let wanted = parts(name);
    let shared = |other: &str| parts(other).iter().filter(|part| wanted.contains(part)).count();
    names
        .map(|other| (shared(other), other))
        .filter(|(shared, _)| *shared > 0)
        .max_by_key(|(shared, _)| *shared)
        .map(|(_, name)| name)
}
