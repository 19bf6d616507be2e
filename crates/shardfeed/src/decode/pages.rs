use std::sync::Arc;

use parquet::basic::{BrotliLevel, Compression, GzipLevel, Type as PhysicalType, ZstdLevel};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use shardfeed_plan::RowGroup;

use super::inflate;
use super::values::flat_column;
use crate::dataset::{ChunkBytes, LastPage};
use crate::page_limit::PageLimit;
use crate::{DataSet, foreign};

/// The pages of a column chunk. Decompressed by the crate, except where it would not know when to stop.
pub(super) struct Pages {
    reader: SerializedPageReader<ChunkBytes>,
    last_page: Arc<LastPage>,
    /// The codec, if pages are decompressed here.
    inflated_here: Option<Compression>,
}

impl Pages {
    pub fn open(
        data: &Arc<DataSet>,
        facts: &RowGroup,
        ids: PhysicalType,
        limit: PageLimit,
    ) -> Result<Self, String> {
        let codec =
            codec(facts.codec).ok_or_else(|| format!("its compression {} is not supported", facts.codec))?;
        let inflated_here = inflate::is_ours(codec).then_some(codec);
        let chunk = ColumnChunkMetaData::builder(flat_column(ids))
            .set_compression(if inflated_here.is_some() { Compression::UNCOMPRESSED } else { codec })
            .set_num_values(facts.slots() as i64)
            .set_data_page_offset(facts.chunk_start as i64)
            .set_total_compressed_size(facts.chunk_len as i64)
            .build()
            .map_err(|error| error.to_string())?;
        let bytes = ChunkBytes::new(data, facts, limit);
        let last_page = bytes.last_page();
        let reader = SerializedPageReader::new(Arc::new(bytes), &chunk, facts.rows as usize, None)
            .map_err(|error| error.to_string())?;
        Ok(Self { reader, last_page, inflated_here })
    }

    pub fn next(&mut self) -> Result<Option<Page>, ParquetError> {
        let page =
            foreign::call(|| self.reader.get_next_page()).unwrap_or_else(|panic| Err(general(panic)))?;
        match (page, self.inflated_here) {
            (Some(page), Some(codec)) => {
                let len = self.last_page.uncompressed_bytes();
                let inflated = foreign::call(|| inflate_page(page, codec, len)).and_then(|page| page);
                inflated.map(Some).map_err(general)
            }
            (page, _) => Ok(page),
        }
    }

    pub fn peek(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        foreign::call(|| self.reader.peek_next_page()).unwrap_or_else(|panic| Err(general(panic)))
    }

    pub fn skip(&mut self) -> Result<(), ParquetError> {
        foreign::call(|| self.reader.skip_next_page()).unwrap_or_else(|panic| Err(general(panic)))
    }
}

fn general(reason: String) -> ParquetError {
    ParquetError::General(reason)
}

/// The page with its compressed part decompressed: all of it, or, in the second version, what follows the levels.
fn inflate_page(mut page: Page, codec: Compression, len: usize) -> Result<Page, String> {
    match &mut page {
        Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => {
            *buf = inflate::inflate(codec, buf, len)?;
        }
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
            let levels_len = (*def_levels_byte_len as usize).saturating_add(*rep_levels_byte_len as usize);
            let (Some(values_len), true) = (len.checked_sub(levels_len), levels_len <= buf.len()) else {
                return Err(format!("levels of {levels_len} bytes in a page of {len}"));
            };
            // A page without values has nothing to decompress, not even an empty stream.
            if *is_compressed && values_len > 0 {
                let values = inflate::inflate(codec, &buf[levels_len..], values_len)?;
                *buf = [&buf[..levels_len], &values[..]].concat().into();
            }
        }
    }
    Ok(page)
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
