//! A file as the `parquet` crate reads it, whose claims are checked before the crate believes them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::dataset::page_sizes;
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
            let sizes = page_sizes(&bytes).ok_or("it does not begin with the page's sizes")?;
            let claimed = sizes.0.saturating_add(sizes.1);
            if claimed > self.page_bytes_max {
                return Err(format!("it claims {claimed} bytes, where {} are allowed", self.page_bytes_max));
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

/// Pages that together claim no more values than there is room for.
pub(super) struct GuardedPages<P> {
    pub pages: P,
    pub values_left: u64,
}

impl<P: PageReader> GuardedPages<P> {
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
            return Ok(Some(page));
        }
        self.values_left =
            self.values_left.checked_sub(values).ok_or_else(|| general(TOO_MANY.to_owned()))?;
        Ok(Some(page))
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
