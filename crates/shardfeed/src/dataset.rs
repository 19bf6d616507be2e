use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use shardfeed_plan::{Manifest, PageChecksum, RowGroup};

use crate::decode::Inflate;
use crate::footer::modified_ns;
use crate::page_memory::PageMemory;
use crate::soundness::Soundness;
use crate::thrift::{Flaw, struct_len};
use crate::{Error, Result};

/// Files open at once. Lanes outnumber the descriptors a process may have; a file that made room is opened again.
const OPEN_FILES_MAX: usize = 128;

/// A manifest and where its files are. Reads are positioned and checked, so any number of threads share it.
#[derive(Debug)]
pub struct DataSet {
    manifest: Manifest,
    paths: Vec<PathBuf>,
    open: Mutex<OpenFiles>,
    counts: Counts,
    inflate: Inflate,
    /// For those who read without a budget.
    page_memory: Arc<PageMemory>,
    soundness: Soundness,
}

/// What was read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Row groups opened.
    pub row_groups: u64,
    /// Bytes read from files, page headers included.
    pub bytes: u64,
    /// Row groups with pages that only the `parquet` crate's own reader could decode.
    pub fallbacks: u64,
    /// Pages that were let go of to stay within the budget, and read again.
    pub pages_read_again: u64,
    /// Row groups whose tokens are masked, since they are damaged.
    pub masked_row_groups: u64,
}

#[derive(Debug, Default)]
struct Counts {
    row_groups: AtomicU64,
    bytes: AtomicU64,
    fallbacks: AtomicU64,
    pages_read_again: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenFiles {
    by_index: HashMap<u32, (u64, Arc<File>)>,
    clock: u64,
}

impl DataSet {
    /// `paths` are those of the manifest's files, in its order.
    pub(crate) fn new(manifest: Manifest, paths: Vec<PathBuf>) -> Self {
        assert_eq!(manifest.files().len(), paths.len(), "one path per file");
        let soundness = Soundness::of(manifest.row_groups().len());
        Self {
            manifest,
            paths,
            open: Mutex::default(),
            counts: Counts::default(),
            inflate: Inflate::default(),
            page_memory: Arc::default(),
            soundness,
        }
    }

    /// What is in the data set.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Where a file of the manifest is.
    pub fn path(&self, file: u32) -> &Path {
        &self.paths[file as usize]
    }

    /// What was read so far, by everybody who shares this data set.
    pub fn counts(&self) -> ReadCounts {
        ReadCounts {
            row_groups: self.counts.row_groups.load(Relaxed),
            bytes: self.counts.bytes.load(Relaxed),
            fallbacks: self.counts.fallbacks.load(Relaxed),
            pages_read_again: self.counts.pages_read_again.load(Relaxed),
            masked_row_groups: self.soundness.damaged_count(),
        }
    }

    /// A row group of this file is opened, which must still be the one that was scanned.
    pub(crate) fn note_opening(&self, file: u32) -> Result<()> {
        self.counts.row_groups.fetch_add(1, Relaxed);
        self.check_unchanged(file)
    }

    pub(crate) fn note_fallback(&self) {
        self.counts.fallbacks.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_page_read_again(&self) {
        self.counts.pages_read_again.fetch_add(1, Relaxed);
    }

    /// Whether a row group decodes from its first page to its last. Read through once, then known.
    pub(crate) fn is_sound(self: &Arc<Self>, row_group: u32, memory: &Arc<PageMemory>) -> Result<bool> {
        self.soundness.of_row_group(row_group, || {
            let mut cursor = self.open_row_group_within(row_group, memory)?;
            cursor.read_through()
        })
    }

    /// Row groups found damaged where damage is masked, and why; the first thousand of them.
    pub fn masked(&self) -> Vec<(u32, String)> {
        self.soundness.damaged()
    }

    pub(crate) fn inflate(&self) -> &Inflate {
        &self.inflate
    }

    pub(crate) fn page_memory(&self) -> &Arc<PageMemory> {
        &self.page_memory
    }

    pub(crate) fn into_parts(self) -> (Manifest, Vec<PathBuf>) {
        (self.manifest, self.paths)
    }

    /// The file is still the one that was scanned.
    pub(crate) fn check_unchanged(&self, file: u32) -> Result<()> {
        self.check_handle(file, &*self.file(file)?)
    }

    fn check_handle(&self, file: u32, handle: &File) -> Result<()> {
        let path = self.path(file);
        let now = handle.metadata().map_err(|error| Error::io(path, "look at it", error))?;
        let scanned = &self.manifest.files()[file as usize];
        let changed = |what| Err(Error::Changed { path: path.to_owned(), what });
        if now.len() != scanned.size {
            return changed(format!("it had {} bytes and now has {}", scanned.size, now.len()));
        }
        if modified_ns(&now) != scanned.modified_ns {
            return changed("it was written to since".to_owned());
        }
        Ok(())
    }

    /// The open file. One that is opened, or opened again, is the one that was scanned.
    fn file(&self, index: u32) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clock += 1;
        let clock = open.clock;
        if let Some((used, file)) = open.by_index.get_mut(&index) {
            *used = clock;
            return Ok(Arc::clone(file));
        }
        if open.by_index.len() == OPEN_FILES_MAX {
            let oldest = open.by_index.iter().min_by_key(|(_, (used, _))| *used).map(|(index, _)| *index);
            oldest.and_then(|oldest| open.by_index.remove(&oldest));
        }
        let path = self.path(index);
        let file = Arc::new(File::open(path).map_err(|error| Error::io(path, "open it", error))?);
        self.check_handle(index, &file)?;
        open.by_index.insert(index, (clock, Arc::clone(&file)));
        Ok(file)
    }
}

/// The bytes of one column chunk, as the `parquet` crate asks for them. Where its pages are recorded, they are compared.
#[derive(Debug)]
pub(crate) struct ChunkBytes {
    data: Arc<DataSet>,
    file: u32,
    /// Index in the manifest.
    row_group: u32,
    end: u64,
    memory: Arc<PageMemory>,
    /// What the page header read last says of its page.
    last_page: Arc<LastPage>,
}

/// The page whose header was read last, and the sizes in it.
#[derive(Debug, Default)]
pub(crate) struct LastPage {
    uncompressed_bytes: AtomicU64,
    at: AtomicU64,
    is_dictionary: AtomicBool,
    has_header: AtomicBool,
    body_capacity: AtomicU64,
}

impl LastPage {
    pub fn uncompressed_bytes(&self) -> usize {
        self.uncompressed_bytes.load(Relaxed) as usize
    }

    /// Where it begins in the file.
    pub fn at(&self) -> u64 {
        self.at.load(Relaxed)
    }

    pub fn is_dictionary(&self) -> bool {
        self.is_dictionary.load(Relaxed)
    }

    /// Bytes that its body takes in memory, in a buffer that may be longer.
    pub fn body_capacity(&self) -> u64 {
        self.body_capacity.load(Relaxed)
    }

    /// Whether its header could be read, so that the next page can be found.
    pub fn has_header(&self) -> bool {
        self.has_header.load(Relaxed)
    }

    /// How messages call it: the dictionary has no number.
    pub fn name(&self, number: u32) -> String {
        if self.is_dictionary() { "dictionary page".to_owned() } else { format!("page {number}") }
    }
}

/// A page as it lies in the file.
pub(crate) struct StoredPage {
    pub header: Vec<u8>,
    pub body: Bytes,
}

impl ChunkBytes {
    pub fn new(data: &Arc<DataSet>, facts: &RowGroup, memory: &Arc<PageMemory>) -> Self {
        let row_group = data.manifest().index_of(facts);
        let (data, memory) = (Arc::clone(data), Arc::clone(memory));
        let end = facts.chunk().end;
        Self { data, file: facts.file, row_group, end, memory, last_page: Arc::default() }
    }

    pub fn last_page(&self) -> Arc<LastPage> {
        Arc::clone(&self.last_page)
    }

    /// The page that begins at byte `at` of the file.
    pub fn stored_page(&self, at: u64) -> Result<StoredPage> {
        let mut header = self.header_at(at);
        header.load()?;
        let (_, body_len) = page_sizes(&header.bytes).expect("a header that was loaded");
        let body = self.body(at + header.bytes.len() as u64, body_len as usize)?;
        Ok(StoredPage { header: header.bytes, body })
    }

    fn header_at(&self, start: u64) -> HeaderBytes {
        let (data, memory) = (Arc::clone(&self.data), Arc::clone(&self.memory));
        let chunk = Self { data, memory, last_page: self.last_page(), ..*self };
        HeaderBytes { chunk, start, bytes: Vec::new(), taken: 0 }
    }

    fn body(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.end) {
            return Err(Error::Invalid(format!(
                "{length} bytes at {start} pass the chunk's end {}",
                self.end
            )));
        }
        let mut bytes = self.memory.buffer(length);
        self.read_exact(bytes.as_mut(), start)?;
        self.check_body(bytes.as_ref(), start)?;
        self.last_page.body_capacity.store(bytes.capacity(), Relaxed);
        Ok(Bytes::from_owner(bytes))
    }

    /// A header is about to be looked at. What it begins with tells a dictionary, even if more of it is damaged.
    fn note_header(&self, start: u64, bytes: &[u8]) {
        let may_be_dictionary = self.recorded().first().is_none_or(|first| first.at == start);
        let is_dictionary = may_be_dictionary && bytes.starts_with(&DICTIONARY_HEADER_START);
        self.last_page.at.store(start, Relaxed);
        self.last_page.has_header.store(false, Relaxed);
        self.last_page.is_dictionary.store(is_dictionary, Relaxed);
    }

    /// Refuses a page before anything is allocated for it.
    fn check_header(&self, header: &[u8], start: u64) -> Result<()> {
        // Before its sizes are believed: what they ask for may be refused for other reasons than damage.
        self.compare_header(header, start)?;
        let (uncompressed, compressed) = page_sizes(header)
            .ok_or_else(|| Error::Invalid("its header does not begin with its sizes".to_owned()))?;
        self.memory.check(self.data.path(self.file), uncompressed + compressed)?;
        self.last_page.uncompressed_bytes.store(uncompressed, Relaxed);
        self.last_page.has_header.store(true, Relaxed);
        Ok(())
    }

    fn compare_header(&self, header: &[u8], start: u64) -> Result<()> {
        if self.recorded().is_empty() {
            return Ok(());
        }
        match self.recorded_at(start) {
            Some(recorded) if recorded.header == crc32fast::hash(header) => Ok(()),
            Some(_) => {
                Err(Error::Invalid(format!("its header at byte {start} is not the one that was recorded")))
            }
            None => Err(Error::Invalid(format!("it begins at byte {start}, where no page was recorded"))),
        }
    }

    /// Bodies follow their headers, which have been compared.
    fn check_body(&self, body: &[u8], start: u64) -> Result<()> {
        match self.recorded_at(self.last_page.at()) {
            Some(recorded) if recorded.body != crc32fast::hash(body) => Err(Error::Invalid(format!(
                "its {} bytes from byte {start} on are not those that were recorded",
                body.len()
            ))),
            _ => Ok(()),
        }
    }

    /// What was recorded of the row group's pages, if anything was.
    fn recorded(&self) -> &[PageChecksum] {
        self.data.manifest.checksums().of(self.row_group)
    }

    fn recorded_at(&self, at: u64) -> Option<&PageChecksum> {
        let recorded = self.recorded();
        recorded.binary_search_by_key(&at, |page| page.at).ok().map(|index| &recorded[index])
    }

    fn read_exact(&self, buffer: &mut [u8], start: u64) -> Result<()> {
        self.data.counts.bytes.fetch_add(buffer.len() as u64, Relaxed);
        let file = self.data.file(self.file)?;
        let read = file.read_exact_at(buffer, start);
        // After each page, since others may write into the file at any time: what was read before they did is right.
        self.data.check_handle(self.file, &file)?;
        read.map_err(|error| Error::io(self.data.path(self.file), "read it", error))
    }
}

impl Length for ChunkBytes {
    fn len(&self) -> u64 {
        self.end
    }
}

impl ChunkReader for ChunkBytes {
    type T = HeaderBytes;

    fn get_read(&self, start: u64) -> Result<HeaderBytes, ParquetError> {
        Ok(self.header_at(start))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.body(start, length).map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// A page header. Bodies are read by `get_bytes`, in one piece.
pub(crate) struct HeaderBytes {
    chunk: ChunkBytes,
    start: u64,
    /// The header, once it is read; and how much of it was taken.
    bytes: Vec<u8>,
    taken: usize,
}

impl HeaderBytes {
    /// A header has some twenty bytes, and two values of statistics.
    const LEN_USUAL: u64 = 128;
    /// Far above what any writer makes.
    const LEN_MAX: u64 = 1 << 20;

    /// Reads the header, which is known to be sound then, and the one that was recorded.
    fn load(&mut self) -> Result<()> {
        let mut len = Self::LEN_USUAL;
        loop {
            let there = self.chunk.end.saturating_sub(self.start).min(len);
            self.bytes.resize(there as usize, 0);
            self.chunk.read_exact(&mut self.bytes, self.start)?;
            self.chunk.note_header(self.start, &self.bytes);
            let flaw = match struct_len(&self.bytes) {
                Ok(len) => {
                    self.bytes.truncate(len);
                    return self.chunk.check_header(&self.bytes, self.start);
                }
                Err(Flaw::Short) if there == len && len < Self::LEN_MAX => {
                    len *= 8;
                    continue;
                }
                Err(Flaw::Short) => "it has no end",
                Err(Flaw::Foreign(flaw)) => flaw,
            };
            return Err(Error::Invalid(format!("its header at byte {} is damaged: {flaw}", self.start)));
        }
    }
}

impl Read for HeaderBytes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            self.load().map_err(io::Error::other)?;
        }
        let rest = &self.bytes[self.taken..];
        if rest.is_empty() && !out.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = out.len().min(rest.len());
        out[..len].copy_from_slice(&rest[..len]);
        self.taken += len;
        Ok(len)
    }
}

/// A page header's first field, the page's type, where it is a dictionary's.
const DICTIONARY_HEADER_START: [u8; 2] = [0x15, 4];

/// Uncompressed and compressed size from the beginning of a page header: its first three fields are the page's type and
/// its sizes, as every writer has them. `None` if they are not: without them no limit would hold.
pub(crate) fn page_sizes(header: &[u8]) -> Option<(u64, u64)> {
    let [_, uncompressed, compressed] = first_fields(header)?;
    // Zigzag: even numbers are positive.
    [uncompressed, compressed].iter().all(|size| size % 2 == 0).then_some((uncompressed / 2, compressed / 2))
}

/// The checksum of its body that a page header may carry, in its fourth field.
pub(crate) fn own_checksum(header: &[u8]) -> Option<u32> {
    let [.., zigzag] = first_fields::<4>(header)?;
    Some(((zigzag / 2) ^ (zigzag % 2).wrapping_neg()) as u32)
}

/// The fields that a page header begins with, numbered from one on, each a 32-bit number in Thrift's compact form.
fn first_fields<const N: usize>(header: &[u8]) -> Option<[u64; N]> {
    let mut bytes = header.iter();
    let mut fields = [0; N];
    for field in &mut fields {
        // One field further, a 32-bit number.
        if *bytes.next()? != 0x15 {
            return None;
        }
        let mut shift = 0;
        loop {
            let byte = *bytes.next()?;
            *field |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
            if shift == 35 {
                return None;
            }
        }
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::{own_checksum, page_sizes};

    #[test]
    fn sizes_are_read_from_a_page_header() {
        assert_eq!(page_sizes(&[0x15, 0, 0x15, 0x80, 1, 0x15, 6, 0x2c]), Some((64, 3)));
        assert_eq!(page_sizes(&[0x15, 4, 0x15, 2, 0x15, 2]), Some((1, 1)));
        for header in [
            &[][..],
            &[0x15],
            &[0x15, 0, 0x15, 1, 0x15, 2],
            &[0x15, 0, 0x25, 2],
            &[0x15, 0, 0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(page_sizes(header), None);
        }
    }

    #[test]
    fn a_pages_own_checksum_is_read_where_it_has_one() {
        assert_eq!(own_checksum(&[0x15, 0, 0x15, 2, 0x15, 2, 0x15, 0x80, 1, 0x2c]), Some(64));
        assert_eq!(own_checksum(&[0x15, 0, 0x15, 2, 0x15, 2, 0x15, 1, 0x2c]), Some(u32::MAX));
        let lowest = [0x15, 0, 0x15, 2, 0x15, 2, 0x15, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(own_checksum(&lowest), Some(1 << 31));
        assert_eq!(own_checksum(&[0x15, 0, 0x15, 2, 0x15, 2, 0x2c, 0x15, 2]), None);
    }
}
