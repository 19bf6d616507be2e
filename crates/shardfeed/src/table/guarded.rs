//! A file as the `parquet` crate reads it, whose claims are checked before the crate believes them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::dataset::page_sizes;
use crate::decode::{Deltas, take_prefixed};
use crate::thrift::{Flaw, struct_len};

/// Page headers, and pages of a limited size.
#[derive(Clone)]
pub(super) struct GuardedFile {
    file: Arc<File>,
    len: u64,
    page_bytes_max: u64,
}

impl GuardedFile {
    pub fn new(file: File, len: u64, page_bytes_max: u64) -> Self {
        Self { file: Arc::new(file), len, page_bytes_max }
    }

    fn header(&self, start: u64) -> std::result::Result<Vec<u8>, String> {
        let mut len = HEADER_LEN_USUAL;
        loop {
            let there = self.len.saturating_sub(start).min(len);
            let mut bytes = vec![0; there as usize];
            self.file.read_exact_at(&mut bytes, start).map_err(|error| error.to_string())?;
            match struct_len(&bytes) {
                Ok(len) => bytes.truncate(len),
                Err(Flaw::Short) if there == len && len < HEADER_LEN_MAX => {
                    len *= 8;
                    continue;
                }
                Err(Flaw::Short) => return Err("it has no end".to_owned()),
                Err(Flaw::Foreign(flaw)) => return Err(flaw.to_owned()),
            }
            let (uncompressed, compressed) =
                page_sizes(&bytes).ok_or("it does not begin with the page's sizes")?;
            let there = self.len - start - bytes.len() as u64;
            if compressed > there {
                return Err(format!("it claims {compressed} bytes, where the file ends after {there}"));
            }
            if uncompressed.saturating_add(compressed) > self.page_bytes_max {
                return Err(TOO_MANY.to_owned());
            }
            return Ok(bytes);
        }
    }
}

/// A header has some twenty bytes, and two values of statistics.
const HEADER_LEN_USUAL: u64 = 512;
/// Far above what any writer makes.
const HEADER_LEN_MAX: u64 = 1 << 22;

impl Length for GuardedFile {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for GuardedFile {
    type T = GuardedHeader;

    fn get_read(&self, start: u64) -> Result<GuardedHeader> {
        Ok(GuardedHeader { file: self.clone(), start, bytes: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(general(format!("{length} bytes at {start} of a file of {}", self.len)));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// The header of the page that begins at `start`; nothing else is read this way. Looked at when the first byte is asked for:
/// the crate opens some that it then does not read.
pub(super) struct GuardedHeader {
    file: GuardedFile,
    start: u64,
    bytes: Option<io::Cursor<Vec<u8>>>,
}

impl Read for GuardedHeader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_none() {
            let header = self.file.header(self.start).map_err(|flaw| {
                io::Error::other(format!("its page header at byte {} is damaged: {flaw}", self.start))
            })?;
            self.bytes = Some(io::Cursor::new(header));
        }
        self.bytes.as_mut().map_or(Ok(0), |bytes| bytes.read(out))
    }
}

/// What is to be known of a column to say what decoding it takes.
pub(super) struct ColumnShape {
    /// What a value takes in memory when the crate has just decoded it, with its levels.
    pub decoded_bytes: u64,
    /// Whether rows may have several values, so that nobody knows how many before a row is read.
    pub is_repeated: bool,
    pub has_definition: bool,
}

/// How many times its limit a row group may take for the moment in which the crate decodes it: one row, or a dictionary, is
/// decoded as a whole, in a form that takes more room than what is kept of it, and never more than so many times as much.
const DECODING_FACTOR: u64 = 4;

/// Pages that together claim no more values than there is room for.
pub(super) struct GuardedPages<P> {
    pages: P,
    shape: ColumnShape,
    values_left: u64,
    entries_max: u64,
    /// For what values share with those before them and the crate copies for each.
    prefix_bytes_left: u64,
}

impl<P: PageReader> GuardedPages<P> {
    /// Of a column that must fit into `bytes_max` when it is decoded.
    pub fn new(pages: P, shape: ColumnShape, bytes_max: u64) -> Self {
        let at_once = bytes_max.saturating_mul(DECODING_FACTOR) / shape.decoded_bytes;
        // Where rows have one value no more is decoded at once than is asked for, and what is kept of a value takes a byte at least.
        let values_left = if shape.is_repeated { at_once } else { bytes_max };
        Self { pages, shape, values_left, entries_max: at_once, prefix_bytes_left: bytes_max }
    }

    fn check(&mut self, page: Option<Page>) -> Result<Option<Page>> {
        let Some(page) = page else { return Ok(None) };
        let values = u64::from(page.num_values());
        // Entries of a dictionary take at least a byte each; other values may be packed to nothing.
        if page.is_dictionary_page() {
            if values > page.buffer().len() as u64 {
                return Err(general(format!(
                    "a dictionary of {values} entries in {} bytes",
                    page.buffer().len()
                )));
            }
            if values > self.entries_max {
                return Err(general(TOO_MANY.to_owned()));
            }
            return Ok(Some(page));
        }
        self.values_left =
            self.values_left.checked_sub(values).ok_or_else(|| general(TOO_MANY.to_owned()))?;
        self.check_lengths(&page).map_err(general)?;
        Ok(Some(page))
    }

    /// The crate believes how many lengths a page of delta-encoded bytes says that it has, and makes room for whole values of which a page
    /// has only what is new in each.
    fn check_lengths(&mut self, page: &Page) -> std::result::Result<(), String> {
        let encoding = page.encoding();
        if !matches!(encoding, Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY) {
            return Ok(());
        }
        let begin = |bytes: &[u8]| {
            let lengths = Deltas::new(bytes)?;
            if lengths.left() > page.num_values().into() {
                return Err(format!("{} lengths in a page of {} values", lengths.left(), page.num_values()));
            }
            Ok(lengths)
        };
        let values = self.values_of(page)?;
        let mut lengths = begin(&values)?;
        if encoding == Encoding::DELTA_BYTE_ARRAY {
            let mut bytes = 0_u64;
            let count = lengths.left() as usize;
            // Lengths have 32 bits. A negative one is the crate's to refuse.
            lengths.read(&values, count, |some| {
                bytes += some.iter().map(|&len| u64::try_from(len as i32).unwrap_or(0)).sum::<u64>();
            })?;
            self.prefix_bytes_left = self.prefix_bytes_left.checked_sub(bytes).ok_or(TOO_MANY)?;
            begin(values.get(lengths.end()..).ok_or("its lengths end early")?)?;
        }
        Ok(())
    }

    /// The bytes of a page without its levels.
    fn values_of(&self, page: &Page) -> std::result::Result<Bytes, String> {
        match page {
            Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
                let mut rest = buf.clone();
                let levels = [
                    (self.shape.is_repeated, rep_level_encoding),
                    (self.shape.has_definition, def_level_encoding),
                ];
                for (_, encoding) in levels.into_iter().filter(|(is_there, _)| *is_there) {
                    // The other one is older than these encodings of values.
                    if *encoding != Encoding::RLE {
                        return Err(format!("levels encoded as {encoding}, not RLE"));
                    }
                    rest = take_prefixed(&rest)?.1;
                }
                Ok(rest)
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let levels = (*def_levels_byte_len as usize).saturating_add(*rep_levels_byte_len as usize);
                if levels > buf.len() {
                    return Err(format!("levels of {levels} bytes in a page of {}", buf.len()));
                }
                Ok(buf.slice(levels..))
            }
            Page::DictionaryPage { .. } => Err("a dictionary where data was expected".to_owned()),
        }
    }
}

/// How the crate's error tells us that there is no room.
pub(super) const TOO_MANY: &str = "its pages claim more values than there is room for";

impl<P: PageReader> Iterator for GuardedPages<P> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<P: PageReader> PageReader for GuardedPages<P> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        self.check(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }
}

fn general(reason: String) -> ParquetError {
    ParquetError::General(reason)
}
