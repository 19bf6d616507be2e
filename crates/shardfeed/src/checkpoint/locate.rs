use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_plan::checkpoint::{
    ItemError, SafetensorsHeader, StoredChunk, StoredTensor, TensorItem, TensorView, ZipError, ZipItem,
};

use super::bytes::FileBytes;
use super::hugging_face::header_at;
use crate::failures::other_than_described;

/// Bytes at both ends of an item in which everything about it lies, nearly always.
const WINDOW: u64 = 1024;

/// Where a chunk's elements lie.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    /// In bytes of the file, or of the memory that the item was read into.
    pub(crate) view: TensorView,
    /// The checksum of those bytes, where one was recorded.
    pub(crate) crc: Option<u32>,
}

/// Headers of safetensors parts that were read already: one is shared by all tensors of a file.
#[derive(Default)]
pub(crate) struct Headers(Mutex<HashMap<(u32, u64), Arc<SafetensorsHeader>>>);

impl Headers {
    /// The header at a byte of a file, if it was read.
    pub(crate) fn get(&self, file: u32, offset: u64) -> Option<Arc<SafetensorsHeader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(file, offset)).cloned()
    }
}

/// A reason, as functions of the plan return it.
pub(crate) struct Reason(pub(crate) String);

impl From<ItemError> for Reason {
    fn from(error: ItemError) -> Self {
        match error {
            ItemError::Zip(error) => error.into(),
            ItemError::Content(reason) => Self(reason),
        }
    }
}

impl From<ZipError> for Reason {
    fn from(error: ZipError) -> Self {
        Self(format!("{error}; it is damaged, or torch did not write it: copy the file again"))
    }
}

/// Finds a chunk's elements in its file, reading little more than what describes them.
pub(crate) fn locate(
    tensor: &StoredTensor,
    chunk: &StoredChunk,
    is_raw: bool,
    file: &mut FileBytes,
    file_len: u64,
    headers: &Headers,
) -> Result<Located, String> {
    let item = &chunk.item;
    let range = item.offset..item.offset + item.length;
    if is_raw {
        return Ok(Located {
            view: TensorView::row_major(tensor.dtype, &chunk.part.sizes, range),
            crc: None,
        });
    }
    let mut windows = Windows::new(file, range)?;
    if !ZipItem::begins(&windows.head) {
        return locate_safetensors(tensor, chunk, file, file_len, headers);
    }
    let parsed = TensorItem::parse(item.length, &mut |range| windows.read(range).map_err(Reason));
    checked(tensor, chunk, parsed.map_err(|reason| reason.0)?, item.offset)
}

/// The same in an item that was read as a whole: places are counted from its beginning.
pub(crate) fn locate_in(tensor: &StoredTensor, chunk: &StoredChunk, item: &[u8]) -> Result<Located, String> {
    locate_by(tensor, chunk, item.len() as u64, &mut |range| {
        Ok(item[range.start as usize..range.end as usize].to_vec())
    })
}

/// The same in an archive of `len` bytes that `read` gives ranges of.
pub(crate) fn locate_by(
    tensor: &StoredTensor,
    chunk: &StoredChunk,
    len: u64,
    read: &mut dyn FnMut(Range<u64>) -> Result<Vec<u8>, String>,
) -> Result<Located, String> {
    let parsed: Result<TensorItem, Reason> = TensorItem::parse(len, &mut |range| read(range).map_err(Reason));
    checked(tensor, chunk, parsed.map_err(|reason| reason.0)?, 0)
}

fn checked(
    tensor: &StoredTensor,
    chunk: &StoredChunk,
    found: TensorItem,
    start: u64,
) -> Result<Located, String> {
    let mut view = found.view;
    if view.dtype != tensor.dtype || view.sizes != chunk.part.sizes {
        return Err(other_than_described((view.dtype, &view.sizes), (tensor.dtype, &chunk.part.sizes)));
    }
    view.data = view.data.start + start..view.data.end + start;
    Ok(Located { view, crc: found.crc })
}

/// Torch writes all tensors of a file as one part in the format of safetensors, if it is told to, and cannot read it.
fn locate_safetensors(
    tensor: &StoredTensor,
    chunk: &StoredChunk,
    file: &mut FileBytes,
    file_len: u64,
    headers: &Headers,
) -> Result<Located, String> {
    let key = (chunk.item.file, chunk.item.offset);
    let header = match headers.get(key.0, key.1) {
        Some(header) => header,
        None => {
            let header = header_at(file, chunk.item.offset, file_len)
                .map_err(|reason| format!("neither an archive of torch.save nor safetensors: {reason}"))?;
            let header = Arc::new(header);
            headers.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&header));
            header
        }
    };
    let entry = header.tensors.get(&tensor.name).ok_or("the safetensors header does not name it")?;
    if entry.dtype != tensor.dtype || entry.shape != chunk.part.sizes {
        return Err(other_than_described((entry.dtype, &entry.shape), (tensor.dtype, &chunk.part.sizes)));
    }
    // A file keeps one part under each name, whatever the metadata say.
    if let Some(offsets) =
        header.saved_offsets.get(&tensor.name).filter(|offsets| **offsets != chunk.part.offsets)
    {
        return Err(format!(
            "the file holds the part at {offsets:?}, not the one at {:?}: torch kept only the last of several",
            chunk.part.offsets
        ));
    }
    let start = chunk.item.offset + entry.offset;
    let view = TensorView::row_major(entry.dtype, &entry.shape, start..start + entry.len);
    Ok(Located { view, crc: None })
}

/// Both ends of an item, read once; whatever else is asked for is read then.
pub(crate) struct Windows<'f> {
    file: &'f mut FileBytes,
    item: Range<u64>,
    pub(crate) head: Vec<u8>,
    tail: Vec<u8>,
}

impl<'f> Windows<'f> {
    pub(crate) fn new(file: &'f mut FileBytes, item: Range<u64>) -> Result<Self, String> {
        let len = item.end - item.start;
        let mut head = vec![0; len.min(WINDOW) as usize];
        file.read(item.start, &mut head)?;
        let mut tail = vec![0; (len - head.len() as u64).min(WINDOW) as usize];
        file.read(item.end - tail.len() as u64, &mut tail)?;
        Ok(Self { file, item, head, tail })
    }

    /// A range of the item, counted from its beginning.
    pub(crate) fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let len = self.item.end - self.item.start;
        debug_assert!(range.end <= len, "nobody asks for what is not there");
        let tail_start = len - self.tail.len() as u64;
        if range.end <= self.head.len() as u64 {
            return Ok(self.head[range.start as usize..range.end as usize].to_vec());
        }
        if range.start >= tail_start {
            let start = (range.start - tail_start) as usize;
            return Ok(self.tail[start..start + (range.end - range.start) as usize].to_vec());
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.file.read(self.item.start + range.start, &mut bytes)?;
        Ok(bytes)
    }
}
