use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Deserialize;
use shardfeed_plan::checkpoint::{
    HEADER_BYTES_MAX, Metadata, Part, SafetensorsHeader, StoredChunk, StoredItem, StoredTensor, safe_path,
};

use super::bytes::FileBytes;
use super::directory::Directory;
use super::opened::{Found, refused};
use super::options::DirectIo;
use crate::error::Result;
use crate::failures::ItemFailure;
use crate::parallel::{default_threads, map_in_parallel};

/// Bytes that an index of safetensors files may take.
const INDEX_BYTES_MAX: u64 = 512 << 20;

/// A directory of safetensors files: those that its index names, or all that there are. What is wrong with some of them is told beside what
/// the others hold.
pub(super) fn open(directory: Directory, names: &[String]) -> Result<(Found, Vec<ItemFailure>)> {
    let (files, map) = named_files(&directory, names)?;
    if files.is_empty() {
        let why = "no checkpoint: it has neither .metadata (or __0.metadata) nor *.safetensors files; give the directory that torch.distributed.checkpoint.save was given";
        return Err(refused(directory.root(), why.to_owned()));
    }
    let read = |name: &String| Ok::<_, std::convert::Infallible>(read_header(&directory, name));
    let Ok(headers) = map_in_parallel(&files, default_threads(), read);
    let mut found =
        Found { directory, metadata: Metadata::default(), is_raw: true, described_by: Vec::new() };
    let (mut parts, mut failures) = (BTreeMap::<String, StoredTensor>::new(), Vec::new());
    // Names that are noted to be parts of larger tensors.
    let mut parted = HashSet::new();
    let is_elsewhere =
        |tensor: &str, file: &str| map.get(tensor).is_some_and(|own: &String| own.as_str() != file);
    let mut expected = HashMap::<&str, Vec<&str>>::new();
    for (tensor, file) in &map {
        expected.entry(file).or_default().push(tensor);
    }
    for (number, (name, header)) in (0..).zip(files.iter().zip(headers)) {
        let expected = expected.get(name.as_str()).map_or(&[][..], |tensors| tensors);
        let added = header.and_then(|mut header| {
            match expected.iter().find(|tensor| !header.tensors.contains_key(**tensor)) {
                Some(missing) => {
                    Err(format!("the index says that {missing} is in it, and it is not; copy both again"))
                }
                None => {
                    // Where an index says, nobody else has a word: what is left of another save is left.
                    header.tensors.retain(|tensor, _| !is_elsewhere(tensor, name));
                    collect(&mut parts, number, &header, &files, &mut parted)
                }
            }
        });
        if let Err(reason) = added {
            failures.push(found.failure(name, reason));
        }
    }
    failures.extend(missing_of_series(&files).into_iter().map(|(name, more)| {
        let more = if more == 0 { String::new() } else { format!(", and so are {more} more of this series") };
        found.failure(&name, format!("the file is missing{more}: others say by their names that it is one of theirs; copy the checkpoint again"))
    }));
    found.metadata.files.clone_from(&files);
    // Where the first part was refused there is none.
    found.metadata.tensors = parts.into_values().filter(|tensor| !tensor.chunks.is_empty()).collect();
    found.described_by = files;
    Ok((found, failures))
}

/// What is read of an index; the rest takes no memory, however much of it there is.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Names and the files that they are in.
type WeightMap = BTreeMap<String, String>;

/// Missing files that are listed of a series; the others are counted.
const LISTED_MAX: u64 = 20;

/// Series of which missing files are listed.
const SERIES_MAX: usize = 50;

/// What torch puts before the names of a series when ranks save their own parts: of each file of the series a rank writes what it has of
/// it, and none if it has nothing.
const ANY_RANK: &str = "shard-*-";

/// Files of a series such as `model-00002-of-00003.safetensors` that are not there, each with how many more are missing after it that are
/// not listed. A name is a few bytes and may speak of a hundred thousand files: those are never all written out.
fn missing_of_series(files: &[String]) -> Vec<(String, u64)> {
    let mut series = BTreeMap::<(&str, &str, &str), BTreeSet<u64>>::new();
    for file in files {
        let parts = file.strip_suffix(".safetensors").and_then(|stem| stem.rsplit_once("-of-"));
        let Some(((lead, number), count)) =
            parts.and_then(|(rest, count)| Some((rest.rsplit_once('-')?, count)))
        else {
            continue;
        };
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let own = lead.strip_prefix("shard-").and_then(|rest| rest.split_once('-'));
        let (by, lead) =
            own.filter(|(rank, _)| is_number(rank)).map_or(("", lead), |(_, lead)| (ANY_RANK, lead));
        if is_number(number) && is_number(count) {
            series.entry((by, lead, count)).or_default().insert(number.parse().expect("five digits"));
        }
    }
    let mut listed = Vec::new();
    for ((by, lead, count), there) in series {
        let last: u64 = count.parse().expect("five digits");
        let missing = last - there.iter().filter(|number| (1..=last).contains(*number)).count() as u64;
        if missing == 0 || listed.len() >= SERIES_MAX * LISTED_MAX as usize {
            continue;
        }
        let numbers = (1..=last).filter(|number| !there.contains(number)).take(LISTED_MAX as usize);
        listed.extend(numbers.map(|number| (format!("{by}{lead}-{number:05}-of-{count}.safetensors"), 0)));
        listed.last_mut().expect("one is missing").1 = missing - missing.min(LISTED_MAX);
    }
    listed
}

fn named_files(directory: &Directory, names: &[String]) -> Result<(Vec<String>, WeightMap)> {
    let mut indexes = names.iter().filter(|name| name.ends_with(".safetensors.index.json"));
    let (Some(index), None) = (indexes.next(), indexes.next()) else {
        return Ok((
            names.iter().filter(|name| name.ends_with(".safetensors")).cloned().collect(),
            WeightMap::new(),
        ));
    };
    let refuse = |reason: String| refused(&directory.root().join(index), reason);
    let bytes = directory.read_small(index, INDEX_BYTES_MAX).map_err(refuse)?;
    let parsed: Index = serde_json::from_slice(&bytes)
        .map_err(|error| refuse(format!("no weight_map of names and files: {error}")))?;
    let map = parsed.weight_map;
    let files: BTreeSet<String> = map.values().cloned().collect();
    if let Some(outside) = files.iter().find(|file| !safe_path(file)) {
        return Err(refuse(format!(
            "the file {outside:?} would lie outside of the checkpoint; it is not read"
        )));
    }
    Ok((files.into_iter().collect(), map))
}

pub(super) fn read_header(directory: &Directory, name: &str) -> Result<SafetensorsHeader, String> {
    let facts = directory.look_at(name)?;
    let mut file = FileBytes::open(&facts, DirectIo::Never, Vec::new())?;
    header_at(&mut file, 0, facts.len)
}

/// The header of the safetensors file, or part of a file, that begins at `offset` and ends with its file.
pub(super) fn header_at(
    file: &mut FileBytes,
    offset: u64,
    file_len: u64,
) -> Result<SafetensorsHeader, String> {
    let total = file_len.saturating_sub(offset);
    let mut first = [0; 8];
    if total < 8 {
        return Err(format!("byte {offset}: {total} bytes are too few for a safetensors file"));
    }
    file.read(offset, &mut first)?;
    let len = SafetensorsHeader::length(first).filter(|len| len + 8 <= total);
    let len = len.ok_or_else(|| {
        let len = u64::from_le_bytes(first);
        format!("byte {offset}: a header of {len} bytes, where {} are left and {HEADER_BYTES_MAX} are the most: no safetensors file, or cut short", total - 8)
    })?;
    let mut json = vec![0; len as usize];
    file.read(offset + 8, &mut json)?;
    SafetensorsHeader::parse(&json, total)
        .map_err(|reason| format!("the header at byte {}: {reason}", offset + 8))
}

/// Adds the tensors of a file, or their parts, to those of the files before.
fn collect(
    tensors: &mut BTreeMap<String, StoredTensor>,
    file: u32,
    header: &SafetensorsHeader,
    files: &[String],
    parted: &mut HashSet<String>,
) -> Result<(), String> {
    let saved = &header.saved_offsets;
    for (name, entry) in &header.tensors {
        let dims = entry.shape.len();
        let offsets = saved.get(name).cloned().unwrap_or_else(|| vec![0; dims]);
        let ends: Option<Vec<u64>> =
            offsets.iter().zip(&entry.shape).map(|(offset, size)| offset.checked_add(*size)).collect();
        let ends = ends.filter(|ends| ends.len() == dims && offsets.len() == dims);
        let ends = ends.ok_or_else(|| {
            format!("{name}: a part of shape {:?} cannot begin at {offsets:?}", entry.shape)
        })?;
        let tensor = tensors.entry(name.clone()).or_insert_with(|| StoredTensor {
            name: name.clone(),
            dtype: entry.dtype,
            shape: vec![0; dims],
            chunks: Vec::new(),
        });
        if let Some(before) = tensor.chunks.first() {
            let other = &files[before.item.file as usize];
            if tensor.dtype != entry.dtype || tensor.shape.len() != dims {
                return Err(format!(
                    "{name}: it is {} of {dims} dimensions here, and something else in {other}",
                    entry.dtype
                ));
            }
            if !saved.contains_key(name) || !parted.contains(name) {
                return Err(format!(
                    "{name}: it is in {other}, too, there of shape {:?} and here of {:?}, and nothing says which of them counts; remove one of both files",
                    before.part.sizes, entry.shape
                ));
            }
        } else if saved.contains_key(name) {
            parted.insert(name.clone());
        }
        // The whole reaches as far as its parts do.
        let shape: Vec<u64> = tensor.shape.iter().zip(ends).map(|(&size, end)| end.max(size)).collect();
        let total = shape.iter().try_fold(entry.dtype.bytes(), |product, &size| product.checked_mul(size));
        if total.is_none_or(|total| total > i64::MAX as u64) {
            return Err(format!("{name}: shape {shape:?} is larger than any memory"));
        }
        tensor.shape = shape;
        let item = StoredItem { file, offset: entry.offset, length: entry.len, transforms: Vec::new() };
        tensor.chunks.push(StoredChunk { part: Part { offsets, sizes: entry.shape.clone() }, item });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_that_ranks_saved_together_is_whole_if_each_file_is_somebodys() {
        let name = |rank: u32, number: u32| format!("shard-{rank:05}-model-{number:05}-of-00004.safetensors");
        let files = [name(1, 1), name(1, 2), name(2, 3), name(2, 4)];
        assert!(missing_of_series(&files).is_empty());
        let missing = missing_of_series(&files[..3]);
        assert_eq!(missing, [("shard-*-model-00004-of-00004.safetensors".to_owned(), 0)]);
        // A series of whole tensors beside it is another one.
        let both = [&files[..], &["model-00002-of-00002.safetensors".to_owned()]].concat();
        assert_eq!(missing_of_series(&both), [("model-00001-of-00002.safetensors".to_owned(), 0)]);
    }

    #[test]
    fn a_series_of_a_hundred_thousand_files_is_counted_and_not_written_out() {
        let name =
            |lead: &str, number: u32, count: &str| format!("{lead}-{number:05}-of-{count}.safetensors");
        let files =
            [name("a", 2, "00003"), name("a", 3, "00003"), name("b", 7, "99999"), name("c", 1, "00001")];
        let missing = missing_of_series(&files);
        assert_eq!(missing[0], (name("a", 1, "00003"), 0));
        assert_eq!(missing.len(), 1 + LISTED_MAX as usize);
        assert_eq!(missing[20], (name("b", 21, "99999"), 99_998 - LISTED_MAX));
        // Numbers that are none of the series', and a series of nothing.
        assert_eq!(missing_of_series(&[name("d", 0, "00001"), name("d", 2, "00001")]).len(), 1);
        assert!(missing_of_series(&[name("e", 1, "00000"), name("e", 0, "00000")]).is_empty());
        // Many series that are all but empty.
        let many: Vec<String> = (0..5000).map(|lead| name(&format!("{lead:04}"), 1, "99999")).collect();
        assert!(missing_of_series(&many).len() < (SERIES_MAX + 1) * LISTED_MAX as usize);
    }
}
