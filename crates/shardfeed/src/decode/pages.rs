use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use shardfeed_plan::{IdType, RowGroup};

use super::foreign_values::{flat_column, physical_type};
use crate::dataset::{ChunkBytes, LastPage};
use crate::page_memory::PageMemory;
use crate::{DataSet, foreign};

/// The pages of a column chunk, from any of them on: headers and checksums by the crate, decompressed into buffers
/// that are used again.
pub(super) struct Pages {
    data: Arc<DataSet>,
    memory: Arc<PageMemory>,
    codec: Compression,
    reader: SerializedPageReader<ChunkBytes>,
    last_page: Arc<LastPage>,
}

/// A page, decompressed.
pub(super) struct LoadedPage {
    pub page: Page,
    /// Where its header begins in the file.
    pub at: u64,
    /// Bytes that it takes in memory.
    pub capacity: u64,
}

impl Pages {
    /// From the page that begins at byte `at` of the file, or from the first.
    pub fn open(
        data: &Arc<DataSet>,
        facts: &RowGroup,
        ids: IdType,
        memory: &Arc<PageMemory>,
        at: Option<u64>,
    ) -> Result<Self, String> {
        let codec =
            codec(facts.codec).ok_or_else(|| format!("its compression {} is not supported", facts.codec))?;
        let from = at.unwrap_or(facts.chunk_start);
        let chunk = ColumnChunkMetaData::builder(flat_column(physical_type(ids)))
            .set_compression(Compression::UNCOMPRESSED)
            .set_num_values(facts.slots() as i64)
            .set_data_page_offset(from as i64)
            .set_total_compressed_size((facts.chunk_start + facts.chunk_len).saturating_sub(from) as i64)
            .build()
            .map_err(|error| error.to_string())?;
        let bytes = ChunkBytes::new(data, facts, memory);
        let last_page = bytes.last_page();
        let reader = SerializedPageReader::new(Arc::new(bytes), &chunk, facts.rows as usize, None)
            .map_err(|error| error.to_string())?;
        Ok(Self { data: Arc::clone(data), memory: Arc::clone(memory), codec, reader, last_page })
    }

    pub fn next(&mut self) -> Result<Option<LoadedPage>, ParquetError> {
        let page =
            foreign::call(|| self.reader.get_next_page()).unwrap_or_else(|panic| Err(general(panic)))?;
        let Some(mut page) = page else { return Ok(None) };
        let at = self.last_page.at();
        let mut capacity = self.last_page.body_capacity();
        if self.codec != Compression::UNCOMPRESSED {
            capacity = self.inflate(&mut page).map_err(general)?;
        }
        Ok(Some(LoadedPage { page, at, capacity }))
    }

    /// The page whose header was read last.
    pub fn last_page(&self) -> &LastPage {
        &self.last_page
    }

    pub fn peek(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        foreign::call(|| self.reader.peek_next_page()).unwrap_or_else(|panic| Err(general(panic)))
    }

    pub fn skip(&mut self) -> Result<(), ParquetError> {
        foreign::call(|| self.reader.skip_next_page()).unwrap_or_else(|panic| Err(general(panic)))
    }

    /// Decompresses a page: all of it, or, in the second version, what follows the levels. Returns what it takes.
    fn inflate(&self, page: &mut Page) -> Result<u64, String> {
        let len = self.last_page.uncompressed_bytes();
        let (buf, levels_len) = match page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0),
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                let levels_len =
                    (*def_levels_byte_len as usize).saturating_add(*rep_levels_byte_len as usize);
                if !*is_compressed {
                    return Ok(self.last_page.body_capacity());
                }
                (buf, levels_len)
            }
        };
        let (Some(values_len), Some(compressed)) = (len.checked_sub(levels_len), buf.get(levels_len..))
        else {
            return Err(format!("levels of {levels_len} bytes in a page of {len}"));
        };
        let mut inflated = self.memory.buffer(len);
        let (levels, values) = inflated.as_mut().split_at_mut(levels_len);
        levels.copy_from_slice(&buf[..levels_len]);
        // A page without values has nothing to decompress, not even an empty stream.
        if values_len > 0 {
            self.data.inflate().inflate(self.codec, compressed, values)?;
        }
        let capacity = inflated.capacity();
        *buf = Bytes::from_owner(inflated);
        Ok(capacity)
    }
}

fn general(reason: String) -> ParquetError {
    ParquetError::General(reason)
}

fn codec(number: u8) -> Option<Compression> {
    Some(match number {
        0 => Compression::UNCOMPRESSED,
        1 => Compression::SNAPPY,
        2 => Compression::GZIP(GzipLevel::default()),
        4 => Compression::BROTLI(BrotliLevel::default()),
        5 => Compression::LZ4,
        6 => Compression::ZSTD(ZstdLevel::default()),
        7 => Compression::LZ4_RAW,
        _ => return None,
    })
}
