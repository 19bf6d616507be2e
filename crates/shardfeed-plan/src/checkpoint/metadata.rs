use std::collections::{BTreeMap, HashMap, HashSet};

use super::cover::{Cover, Part, cover};
use super::dtype::Dtype;
use super::pickle::{Id, Pickle, PickleError};

/// Dimensions that a tensor may have. Torch allows 64.
const DIMS_MAX: usize = 64;

/// Bytes that what is read may take for each byte of its pickle. Values that are written once and used often make it more than one: it is
/// under two for every checkpoint in `testdata/checkpoints`.
const GROWTH_MAX: usize = 64;

/// Types whose numbers mean nothing without a scale that is stored apart from them.
const QUANTIZED: [&str; 5] = ["qint8", "quint8", "qint32", "quint4x2", "quint2x4"];

/// Fields of metadata that are read, or of no use here.
const KNOWN: [&str; 5] = ["state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"];

/// What a checkpoint holds, and where.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// Tensors, in the order in which they were saved.
    pub tensors: Vec<StoredTensor>,
    /// Everything else, each as bytes of its own.
    pub objects: Vec<StoredObject>,
    /// Files by the numbers that items have: paths within the directory.
    pub files: Vec<String>,
    /// Where each name was in the nested dictionary that was saved.
    pub paths: BTreeMap<String, Vec<PathPart>>,
    /// The version of the format, where it is stated.
    pub version: Option<String>,
    /// What is not known here, as text.
    pub others: Vec<(String, String)>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// Its name: where it was in the nested dictionary, with dots.
    pub name: String,
    /// What it is made of.
    pub dtype: Dtype,
    /// How large it is.
    pub shape: Vec<u64>,
    /// Its parts.
    pub chunks: Vec<StoredChunk>,
}

/// A part of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredChunk {
    /// Which part.
    pub part: Part,
    /// Where it is stored.
    pub item: StoredItem,
}

/// Something that is not a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredObject {
    /// Its name.
    pub name: String,
    /// Where it is stored.
    pub item: StoredItem,
}

/// Where something is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredItem {
    /// The file, by its number in [`Metadata::files`].
    pub file: u32,
    /// Its first byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// What has to be undone, in this order, to have the item.
    pub transforms: Vec<String>,
}

/// A step into a nested dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPart {
    /// Of a dictionary.
    Key(String),
    /// Of a list.
    Index(i64),
}

/// Why metadata are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Not a pickle.
    #[error("not a readable pickle: {0}")]
    Pickle(#[from] PickleError),
    /// A pickle of something else.
    #[error("{}not the metadata of a distributed checkpoint: {reason}", told(*.offset))]
    Foreign {
        /// What it is.
        reason: String,
        /// The byte at which that is written.
        offset: Option<usize>,
    },
    /// A thing that is not as it must be.
    #[error("{}{name}: {reason}", told(*.offset))]
    Entry {
        /// The tensor or object.
        name: String,
        /// What is wrong with it.
        reason: String,
        /// The byte of the metadata at which it is described.
        offset: Option<usize>,
    },
    /// Nothing is wrong, but a torch wrote it that has more than is known here.
    #[error("{}{name}: {reason}", told(*.offset))]
    Newer {
        /// The tensor.
        name: String,
        /// What is not known of it.
        reason: String,
        /// The byte of the metadata at which it is described.
        offset: Option<usize>,
    },
    /// Nothing is wrong, but it is no tensor of plain numbers.
    #[error("{}{name}: it is quantized (torch.{dtype})", told(*.offset))]
    Quantized {
        /// The tensor.
        name: String,
        /// Torch's name for its type.
        dtype: String,
        /// The byte of the metadata at which it is described.
        offset: Option<usize>,
    },
}

impl MetadataError {
    /// It is about what is written at this byte, unless a place is known already.
    fn at(mut self, byte: usize) -> Self {
        if let Self::Foreign { offset, .. }
        | Self::Entry { offset, .. }
        | Self::Newer { offset, .. }
        | Self::Quantized { offset, .. } = &mut self
        {
            offset.get_or_insert(byte);
        }
        self
    }
}

fn told(offset: Option<usize>) -> String {
    offset.map_or_else(String::new, |offset| format!("byte {offset}: "))
}

impl Metadata {
    /// From the bytes of `.metadata`, of torch 2.0 to 2.15 and whatever adds fields to it. Shapes, parts and paths are checked;
    /// whether files are long enough is not, for nobody has looked at them yet.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        let pickle = Pickle::parse(bytes)?;
        let budget = pickle.len().saturating_mul(GROWTH_MAX).saturating_add(1 << 20);
        Parser {
            pickle: &pickle,
            metadata: Self::default(),
            files: HashMap::new(),
            names: Names::default(),
            places: HashMap::new(),
            budget,
        }
        .metadata()
    }

    /// Tensors whose parts do not fill them, each with what is missing. Such a checkpoint cannot have been saved in one piece.
    pub fn holes(&self) -> Vec<MetadataError> {
        let holes = self.tensors.iter().filter_map(|tensor| Some((tensor, tensor.hole()?)));
        holes.map(|(tensor, reason)| entry(&tensor.name, reason)).collect()
    }

    /// What several ranks saved by themselves, together. What two have under one name is as the first of them has it, but for parts of a
    /// tensor that are new.
    pub fn merged(ranks: impl IntoIterator<Item = Self>) -> Self {
        let mut ranks = ranks.into_iter();
        let mut all = ranks.next().unwrap_or_default();
        let mut known = None;
        for rank in ranks {
            all.merge(rank, known.get_or_insert_with(|| Known::of(&all)));
        }
        all
    }

    fn merge(&mut self, other: Self, known: &mut Known) {
        let numbers: Vec<u32> =
            other.files.into_iter().map(|file| known.file(&mut self.files, file)).collect();
        let moved = |item: StoredItem| StoredItem { file: numbers[item.file as usize], ..item };
        for tensor in other.tensors {
            let chunks =
                tensor.chunks.into_iter().map(|chunk| StoredChunk { item: moved(chunk.item), ..chunk });
            let Some((index, parts)) = known.tensors.get_mut(&tensor.name) else {
                let tensor = StoredTensor { chunks: chunks.collect(), ..tensor };
                known.tensors.insert(tensor.name.clone(), (self.tensors.len(), parts_of(&tensor)));
                self.tensors.push(tensor);
                continue;
            };
            let own = &mut self.tensors[*index];
            if (own.dtype, &own.shape) == (tensor.dtype, &tensor.shape) {
                own.chunks.extend(chunks.filter(|chunk| parts.insert(chunk.part.clone())));
            }
        }
        for object in other.objects {
            if known.objects.insert(object.name.clone()) {
                self.objects.push(StoredObject { item: moved(object.item), ..object });
            }
        }
        for (name, path) in other.paths {
            self.paths.entry(name).or_insert(path);
        }
        self.version = self.version.take().or(other.version);
        if self.others.is_empty() {
            self.others = other.others;
        }
    }
}

/// What of many ranks is together already: it is asked for each of their names, and there may be a thousand ranks.
struct Known {
    /// Where each tensor is, and the parts that it has.
    tensors: HashMap<String, (usize, HashSet<Part>)>,
    objects: HashSet<String>,
    files: HashMap<String, u32>,
}

impl Known {
    fn of(metadata: &Metadata) -> Self {
        let tensors = metadata.tensors.iter().enumerate();
        Self {
            tensors: tensors
                .map(|(index, tensor)| (tensor.name.clone(), (index, parts_of(tensor))))
                .collect(),
            objects: metadata.objects.iter().map(|object| object.name.clone()).collect(),
            files: metadata.files.iter().cloned().zip(0..).collect(),
        }
    }

    /// The number of a file, which is new if nobody had it yet.
    fn file(&mut self, files: &mut Vec<String>, file: String) -> u32 {
        *self.files.entry(file).or_insert_with_key(|file| {
            files.push(file.clone());
            files.len() as u32 - 1
        })
    }
}

fn parts_of(tensor: &StoredTensor) -> HashSet<Part> {
    tensor.chunks.iter().map(|chunk| chunk.part.clone()).collect()
}

impl StoredTensor {
    /// How many bytes it takes in memory.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.bytes()
    }

    /// How its parts fill it.
    pub fn cover(&self) -> Cover {
        let parts: Vec<Part> = self.chunks.iter().map(|chunk| chunk.part.clone()).collect();
        cover(&self.shape, &parts)
    }

    /// What is missing of it, in words, if its parts do not fill it.
    pub fn hole(&self) -> Option<String> {
        match self.cover() {
            Cover::Exact | Cover::Overlapping => None,
            Cover::Missing(missing) => Some(format!(
                "{missing} of its {} elements are in none of its {} chunks",
                self.shape.iter().product::<u64>(),
                self.chunks.len()
            )),
            Cover::Unknown => Some(format!(
                "its {} chunks overlap in too many ways to tell whether they fill it",
                self.chunks.len()
            )),
        }
    }
}

/// Whether a path stays where it begins, and names a file there: `a/b.distcp`, but not `/a`, `../a`, `a/../../b` or `a/`.
pub fn safe_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 4096
        && !path.contains(['\0', '\\'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// A tensor's name, by its number, and where a part of it begins; nothing for objects.
type Place = (u32, Option<Vec<u64>>);

/// Names as numbers. A name may be a megabyte long, written once, and used a hundred thousand times: it is looked at once.
#[derive(Default)]
struct Names<'p> {
    by_value: HashMap<Id, u32>,
    by_text: HashMap<&'p str, u32>,
}

impl<'p> Names<'p> {
    fn number(&mut self, value: Id, text: &'p str) -> u32 {
        let Self { by_value, by_text } = self;
        *by_value.entry(value).or_insert_with(|| {
            let next = by_text.len() as u32;
            *by_text.entry(text).or_insert(next)
        })
    }
}

struct Parser<'p, 'a> {
    pickle: &'p Pickle<'a>,
    metadata: Metadata,
    files: HashMap<String, u32>,
    names: Names<'p>,
    places: HashMap<Place, StoredItem>,
    /// Bytes that may still be taken for what was read.
    budget: usize,
}

type Parsed<T = ()> = Result<T, MetadataError>;

impl<'p> Parser<'p, '_> {
    fn metadata(mut self) -> Parsed<Metadata> {
        let pickle = self.pickle;
        let root = pickle.root();
        // Whatever the class is called: Megatron has one of its own with the same fields.
        let is_known = |state: &Id| pickle.get(*state, "storage_data").is_some();
        let Some(state) = pickle.object(root).and_then(|made| made.state).filter(is_known) else {
            return Err(foreign(format!("it holds {}", pickle.print(root))).at(pickle.offset(root)));
        };
        let field = |name: &str| pickle.get(state, name);
        let at_state = |error: MetadataError| error.at(pickle.offset(state));
        let dictionary = |name: &str| {
            let value = field(name).ok_or_else(|| foreign(format!("{name} is missing")))?;
            let entries = pickle.entries(value).ok_or_else(|| foreign(format!("{name} is no dictionary")));
            entries.map_err(|error| error.at(pickle.offset(value)))
        };
        for &(key, value) in dictionary("storage_data").map_err(at_state)? {
            let (name, place) = self.place(key).map_err(|error| error.at(pickle.offset(key)))?;
            let item = self.item(name, value).map_err(|error| error.at(pickle.offset(value)))?;
            // Torch compares indexes by name and offset: the last one counts there, too.
            self.places.insert(place, item);
        }
        let mut seen = HashSet::new();
        for &(key, value) in dictionary("state_dict_metadata").map_err(at_state)? {
            let at_key = |error: MetadataError| error.at(pickle.offset(key));
            let name = pickle.text(key);
            let name = name
                .ok_or_else(|| at_key(foreign(format!("a name that is no text: {}", pickle.print(key)))))?;
            let number = self.names.number(key, name);
            if !seen.insert(number) {
                return Err(at_key(entry(name, "it is there twice")));
            }
            self.entry(name, number, value).map_err(|error| error.at(pickle.offset(value)))?;
        }
        if let Some(paths) = field("planner_data").and_then(|data| pickle.entries(data)) {
            let mut by_number = HashMap::new();
            for &(key, path) in paths {
                let (Some(name), Some(parts)) = (pickle.text(key), pickle.sequence(path)) else { continue };
                let mut path = Vec::new();
                for &part in parts {
                    let part = self.path_part(part);
                    let len = if let PathPart::Key(key) = &part { key.len() } else { 0 };
                    self.spend(name, size_of::<PathPart>() + len)
                        .map_err(|error| error.at(pickle.offset(key)))?;
                    path.push(part);
                }
                by_number.insert(self.names.number(key, name), (name, path));
            }
            let paths = by_number.into_values().map(|(name, path)| (name.to_owned(), path));
            self.metadata.paths = paths.collect();
        }
        self.metadata.version = field("version").and_then(|version| pickle.text(version)).map(str::to_owned);
        for &(key, value) in pickle.entries(state).unwrap_or(&[]) {
            if let Some(name) = pickle.text(key).filter(|name| !KNOWN.contains(name)) {
                self.spend(name, name.len() + 256)?;
                self.metadata.others.push((name.to_owned(), pickle.print(value)));
            }
        }
        Ok(self.metadata)
    }

    /// Notes that something takes so many bytes. Values may be written once and used a million times, each time as a copy.
    fn spend(&mut self, name: &str, bytes: usize) -> Parsed {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            entry(name, "what is written once is used so often that it would take far more memory than the file has bytes")
        })?;
        Ok(())
    }

    fn place(&mut self, key: Id) -> Parsed<(&'p str, Place)> {
        let pickle = self.pickle;
        let state =
            pickle.object(key).filter(|made| made.class.name == "MetadataIndex").and_then(|made| made.state);
        let state =
            state.ok_or_else(|| foreign(format!("storage_data has the key {}", pickle.print(key))))?;
        let name = pickle.get(state, "fqn").and_then(|id| Some((id, pickle.text(id)?)));
        let (id, name) =
            name.ok_or_else(|| foreign(format!("a key without a name: {}", pickle.print(key))))?;
        let offset = match pickle.get(state, "offset") {
            Some(offset) if !matches!(pickle.node(offset), super::Node::None) => {
                Some(self.size(name, offset)?)
            }
            _ => None,
        };
        self.spend(name, 128 + offset.as_ref().map_or(0, |offset| offset.len() * 8))?;
        Ok((name, (self.names.number(id, name), offset)))
    }

    fn item(&mut self, name: &str, value: Id) -> Parsed<StoredItem> {
        let pickle = self.pickle;
        let state =
            pickle.object(value).filter(|made| made.class.name == "_StorageInfo").and_then(|made| made.state);
        let state = state.ok_or_else(|| entry(name, format!("it is stored as {}", pickle.print(value))))?;
        let count = |field: &str| {
            let number = pickle.get(state, field).and_then(|value| pickle.count(value));
            number.ok_or_else(|| entry(name, format!("its {field} is no number of bytes")))
        };
        let (offset, length) = (count("offset")?, count("length")?);
        if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
            return Err(entry(name, format!("{length} bytes at {offset} are more than a file can have")));
        }
        let path = pickle.get(state, "relative_path").and_then(|path| pickle.text(path));
        let path = path.ok_or_else(|| entry(name, "its file has no name"))?;
        if !safe_path(path) {
            return Err(entry(
                name,
                format!("its file {path:?} would lie outside of the checkpoint; it is not read"),
            ));
        }
        let transforms = match pickle.get(state, "transform_descriptors") {
            None => Vec::new(),
            Some(list) if matches!(pickle.node(list), super::Node::None) => Vec::new(),
            Some(list) => {
                let no_names = || entry(name, "its transforms are no list of names");
                let list = pickle.sequence(list).ok_or_else(no_names)?;
                let mut transforms = Vec::new();
                for &id in list {
                    let transform = pickle.text(id).ok_or_else(no_names)?;
                    self.spend(name, size_of::<String>() + transform.len())?;
                    transforms.push(transform.to_owned());
                }
                transforms
            }
        };
        let file = match self.files.get(path) {
            Some(&file) => file,
            None => {
                let file = self.metadata.files.len() as u32;
                self.metadata.files.push(path.to_owned());
                self.files.insert(path.to_owned(), file);
                file
            }
        };
        Ok(StoredItem { file, offset, length, transforms })
    }

    fn entry(&mut self, name: &str, number: u32, value: Id) -> Parsed {
        let pickle = self.pickle;
        let made =
            pickle.object(value).ok_or_else(|| entry(name, format!("it is {}", pickle.print(value))))?;
        match &*made.class.name {
            "BytesStorageMetadata" => {
                let item = self.places.get(&(number, None)).cloned();
                let item = item.ok_or_else(|| entry(name, "it is nowhere in storage_data"))?;
                let transforms =
                    item.transforms.iter().map(|transform| size_of::<String>() + transform.len());
                self.spend(name, size_of::<StoredObject>() + name.len() + transforms.sum::<usize>())?;
                self.metadata.objects.push(StoredObject { name: name.to_owned(), item });
                Ok(())
            }
            "TensorStorageMetadata" => {
                let state = made.state.ok_or_else(|| entry(name, "it is empty"))?;
                let tensor = self.tensor(name, number, state)?;
                self.metadata.tensors.push(tensor);
                Ok(())
            }
            _ => Err(entry(name, format!("it is a {}, which is not known here", made.class))),
        }
    }

    fn tensor(&mut self, name: &str, number: u32, state: Id) -> Parsed<StoredTensor> {
        let pickle = self.pickle;
        let field =
            |field: &str| pickle.get(state, field).ok_or_else(|| entry(name, format!("it has no {field}")));
        let dtype = self.dtype(name, field("properties")?)?;
        let shape = self.size(name, field("size")?)?;
        let bytes = shape.iter().try_fold(dtype.bytes(), |product, &size| product.checked_mul(size));
        if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
            return Err(entry(name, format!("a tensor of shape {shape:?} is larger than any memory")));
        }
        self.spend(name, size_of::<StoredTensor>() + name.len() + shape.len() * size_of::<u64>())?;
        let list = pickle.sequence(field("chunks")?).ok_or_else(|| entry(name, "its chunks are no list"))?;
        let mut chunks = Vec::new();
        for &chunk in list {
            self.spend(name, size_of::<StoredChunk>() + shape.len() * 16)?;
            let state = pickle.object(chunk).and_then(|made| made.state);
            let state =
                state.ok_or_else(|| entry(name, format!("it has the chunk {}", pickle.print(chunk))))?;
            let size = |field: &str| {
                let id =
                    pickle.get(state, field).ok_or_else(|| entry(name, format!("a chunk has no {field}")))?;
                self.size(name, id)
            };
            let part = Part { offsets: size("offsets")?, sizes: size("sizes")? };
            if !part.is_within(&shape) {
                return Err(entry(
                    name,
                    format!(
                        "its chunk of {:?} at {:?} is not within its shape {shape:?}",
                        part.sizes, part.offsets
                    ),
                ));
            }
            let item = self.places.get(&(number, Some(part.offsets.clone()))).cloned();
            let item = item.ok_or_else(|| {
                entry(name, format!("its chunk at {:?} is nowhere in storage_data", part.offsets))
            })?;
            let transforms = item.transforms.iter().map(|transform| size_of::<String>() + transform.len());
            self.spend(name, transforms.sum())?;
            chunks.push(StoredChunk { part, item });
        }
        Ok(StoredTensor { name: name.to_owned(), dtype, shape, chunks })
    }

    /// The first thing that `TensorProperties` hold, in every version.
    fn dtype(&self, name: &str, properties: Id) -> Parsed<Dtype> {
        let pickle = self.pickle;
        let state = pickle.object(properties).and_then(|made| made.state);
        let dtype = state.and_then(|state| match pickle.sequence(state) {
            Some(fields) => fields.first().copied(),
            None => pickle.get(state, "dtype"),
        });
        let dtype = dtype.ok_or_else(|| entry(name, "it has no dtype"))?;
        let global = pickle.global(dtype).filter(|global| global.module == "torch");
        let unknown = || format!("its dtype {} is not known here", pickle.print(dtype));
        let global = global.ok_or_else(|| entry(name, unknown()))?;
        Dtype::of_torch(&global.name).ok_or_else(|| {
            if QUANTIZED.contains(&&*global.name) {
                return MetadataError::Quantized {
                    name: name.to_owned(),
                    dtype: global.name.to_string(),
                    offset: None,
                };
            }
            MetadataError::Newer { name: name.to_owned(), reason: unknown(), offset: None }
        })
    }

    fn size(&self, name: &str, id: Id) -> Parsed<Vec<u64>> {
        let pickle = self.pickle;
        let wrapped = pickle
            .object(id)
            .filter(|made| made.class.is("torch", "Size"))
            .and_then(|made| made.args.first().copied());
        let numbers = pickle.sequence(wrapped.unwrap_or(id)).filter(|numbers| numbers.len() <= DIMS_MAX);
        let numbers =
            numbers.and_then(|numbers| numbers.iter().map(|&number| pickle.count(number)).collect());
        numbers.ok_or_else(|| entry(name, format!("{} is no size", pickle.print(id))))
    }

    fn path_part(&self, id: Id) -> PathPart {
        match self.pickle.node(id) {
            super::Node::Text(text) => PathPart::Key(text.to_string()),
            super::Node::Int(index) => PathPart::Index(*index),
            _ => PathPart::Key(self.pickle.print(id)),
        }
    }
}

fn foreign(reason: impl Into<String>) -> MetadataError {
    MetadataError::Foreign { reason: reason.into(), offset: None }
}

fn entry(name: &str, reason: impl Into<String>) -> MetadataError {
    MetadataError::Entry { name: name.chars().take(500).collect(), reason: reason.into(), offset: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_saved_by_themselves_is_put_together() {
        let chunk = |at: u64, file: u32| StoredChunk {
            part: Part { offsets: vec![at], sizes: vec![2] },
            item: StoredItem { file, offset: 0, length: 9, transforms: Vec::new() },
        };
        let tensor = |name: &str, shape: u64, chunks: Vec<StoredChunk>| StoredTensor {
            name: name.to_owned(),
            dtype: Dtype::Int8,
            shape: vec![shape],
            chunks,
        };
        let rank = |file: &str, tensors: Vec<StoredTensor>| Metadata {
            objects: vec![StoredObject { name: "o".to_owned(), item: chunk(0, 0).item }],
            files: vec![file.to_owned(), "all".to_owned()],
            tensors,
            ..Metadata::default()
        };
        let all = Metadata::merged([
            rank("0", vec![tensor("a", 6, vec![chunk(0, 0)]), tensor("b", 2, vec![chunk(0, 1)])]),
            rank(
                "1",
                vec![tensor("a", 6, vec![chunk(0, 0), chunk(2, 0)]), tensor("b", 4, vec![chunk(2, 0)])],
            ),
            rank(
                "2",
                vec![tensor("c", 2, vec![chunk(0, 1)]), tensor("a", 6, vec![chunk(2, 0), chunk(4, 0)])],
            ),
        ]);
        assert_eq!(all.files, ["0", "all", "1", "2"]);
        // What the first had counts; of a tensor of another shape, nothing else does.
        let a = tensor("a", 6, vec![chunk(0, 0), chunk(2, 2), chunk(4, 3)]);
        assert_eq!(all.tensors, [a, tensor("b", 2, vec![chunk(0, 1)]), tensor("c", 2, vec![chunk(0, 1)])]);
        assert_eq!((all.objects.len(), all.objects[0].item.file), (1, 0));
        assert!(Metadata::merged([]).tensors.is_empty());
    }

    #[test]
    fn paths_that_leave_are_told_from_those_that_stay() {
        for good in ["__0_0.distcp", "a/b.distcp", "..a", "a..", "ä"] {
            assert!(safe_path(good), "{good}");
        }
        for bad in ["", "/a", "../a", "a/../b", "a/..", ".", "a/./b", "a//b", "a/", "a\0b", "..\\a", "C:\\a"]
        {
            assert!(!safe_path(bad), "{bad}");
        }
    }
}
