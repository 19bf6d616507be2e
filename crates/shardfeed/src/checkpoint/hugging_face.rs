use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use shardfeed_plan::checkpoint::{
    HEADER_BYTES_MAX, Metadata, Part, SafetensorsHeader, StoredChunk, StoredItem, StoredTensor, safe_path,
};

use super::bytes::FileBytes;
use super::directory::Directory;
use super::opened::{Found, refused};
use super::options::DirectIo;
use crate::error::{Error, Result};
use crate::failures::Failures;
use crate::parallel::{default_threads, map_in_parallel};

/// Bytes that an index of safetensors files may take.
const INDEX_BYTES_MAX: u64 = 512 << 20;

/// A directory of safetensors files: those that its index names, or all that there are.
pub(super) fn open(directory: Directory, names: &[String]) -> Result<Found> {
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
    for (name, header) in files.iter().zip(headers) {
        let file = found.metadata.file(name);
        let expected = map.iter().filter(|(_, file)| file == name).map(|(tensor, _)| tensor);
        let added = header.and_then(|header| {
            match expected.clone().find(|tensor| !header.tensors.contains_key(*tensor)) {
                Some(missing) => {
                    Err(format!("the index says that {missing} is in it, and it is not; copy both again"))
                }
                None => collect(&mut parts, file, &header),
            }
        });
        if let Err(reason) = added {
            failures.push(found.failure(name, reason));
        }
    }
    failures.extend(missing_of_series(&files).into_iter().map(|name| {
        found.failure(&name, "the file is missing: others say by their names that it is one of theirs; copy the checkpoint again".to_owned())
    }));
    if !failures.is_empty() {
        return Err(Error::CheckpointDamaged(Failures(failures)));
    }
    found.metadata.tensors = parts.into_values().collect();
    found.described_by = files;
    Ok(found)
}

/// Names and the files that they are in.
type WeightMap = Vec<(String, String)>;

/// Files of a series such as `model-00002-of-00003.safetensors` that are not there.
fn missing_of_series(files: &[String]) -> BTreeSet<String> {
    let mut missing = BTreeSet::new();
    for file in files {
        let parts = file.strip_suffix(".safetensors").and_then(|stem| stem.rsplit_once("-of-"));
        let Some(((lead, number), count)) =
            parts.and_then(|(rest, count)| Some((rest.rsplit_once('-')?, count)))
        else {
            continue;
        };
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        if let (true, true, Ok(last)) = (is_number(number), is_number(count), count.parse::<u32>()) {
            let series = (1..=last).map(|number| format!("{lead}-{number:05}-of-{count}.safetensors"));
            missing.extend(series.filter(|name| files.binary_search(name).is_err()));
        }
    }
    missing
}

fn named_files(directory: &Directory, names: &[String]) -> Result<(Vec<String>, WeightMap)> {
    let mut indexes = names.iter().filter(|name| name.ends_with(".safetensors.index.json"));
    let (Some(index), None) = (indexes.next(), indexes.next()) else {
        return Ok((
            names.iter().filter(|name| name.ends_with(".safetensors")).cloned().collect(),
            Vec::new(),
        ));
    };
    let refuse = |reason: String| refused(&directory.root().join(index), reason);
    let bytes = directory.read_small(index, INDEX_BYTES_MAX).map_err(refuse)?;
    let parsed: Value =
        serde_json::from_slice(&bytes).map_err(|error| refuse(format!("not JSON: {error}")))?;
    let map = parsed.get("weight_map").and_then(Value::as_object);
    let pair = |(name, file): (&String, &Value)| Some((name.clone(), file.as_str()?.to_owned()));
    let map: Option<WeightMap> = map.and_then(|map| map.iter().map(pair).collect());
    let map = map.ok_or_else(|| refuse("it has no weight_map of names and files".to_owned()))?;
    let files: BTreeSet<String> = map.iter().map(|(_, file)| file.clone()).collect();
    if let Some(outside) = files.iter().find(|file| !safe_path(file)) {
        return Err(refuse(format!(
            "the file {outside:?} would lie outside of the checkpoint; it is not read"
        )));
    }
    Ok((files.into_iter().collect(), map))
}

fn read_header(directory: &Directory, name: &str) -> Result<SafetensorsHeader, String> {
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
        return Err(format!("{total} bytes are too few for a safetensors file"));
    }
    file.read(offset, &mut first)?;
    let len = SafetensorsHeader::length(first).filter(|len| len + 8 <= total);
    let len = len.ok_or_else(|| {
        let len = u64::from_le_bytes(first);
        format!("a header of {len} bytes, where {} are left and {HEADER_BYTES_MAX} are the most: no safetensors file, or cut short", total - 8)
    })?;
    let mut json = vec![0; len as usize];
    file.read(offset + 8, &mut json)?;
    SafetensorsHeader::parse(&json, total)
}

/// Adds the tensors of a file, or their parts, to those of the files before.
fn collect(
    tensors: &mut BTreeMap<String, StoredTensor>,
    file: u32,
    header: &SafetensorsHeader,
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
        if tensor.dtype != entry.dtype || tensor.shape.len() != dims {
            return Err(format!(
                "{name}: it is {} of {dims} dimensions here, and something else in a file before",
                entry.dtype
            ));
        }
        // The whole reaches as far as its parts do.
        for (size, end) in tensor.shape.iter_mut().zip(ends) {
            *size = end.max(*size);
        }
        let total =
            tensor.shape.iter().try_fold(entry.dtype.bytes(), |product, &size| product.checked_mul(size));
        if total.is_none_or(|total| total > i64::MAX as u64) {
            return Err(format!("{name}: shape {:?} is larger than any memory", tensor.shape));
        }
        let item = StoredItem { file, offset: entry.offset, length: entry.len, transforms: Vec::new() };
        tensor.chunks.push(StoredChunk { part: Part { offsets, sizes: entry.shape.clone() }, item });
    }
    Ok(())
}
