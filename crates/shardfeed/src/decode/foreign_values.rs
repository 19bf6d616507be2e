//! Values by the `parquet` crate's own column reader: what is not decoded here goes this way.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Encoding, Repetition, Type as PhysicalType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, ColumnPath, Type};
use shardfeed_plan::IdType;

use super::values::{ValueError, id_bytes, id_max, not_an_id, too_few};
use crate::foreign;

/// Token ids of one page, read by the crate.
pub(super) struct ForeignValues {
    reader: Reader,
    ids: IdType,
    /// The values read last did not fit where they were wanted: they are next to be read.
    is_scratch_next: bool,
}

enum Reader {
    Int32(ColumnReaderImpl<Int32Type>, Vec<i32>),
    Int64(ColumnReaderImpl<Int64Type>, Vec<i64>),
}

impl ForeignValues {
    /// The `count` values of a page without its levels. Refuses what the crate's decoders take for granted.
    pub fn open(
        ids: IdType,
        dictionary: Option<&Page>,
        bytes: Bytes,
        encoding: Encoding,
        count: usize,
    ) -> Result<Self, String> {
        if encoding == Encoding::BYTE_STREAM_SPLIT && Some(bytes.len()) != count.checked_mul(id_bytes(ids)) {
            return Err(format!("{count} values in {} bytes", bytes.len()));
        }
        let page = Page::DataPage {
            buf: bytes,
            num_values: count as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        Ok(Self::of(ids, dictionary.cloned().into_iter().chain([page]).rev().collect()))
    }

    /// Of no page at all.
    pub fn closed(ids: IdType) -> Self {
        Self::of(ids, Vec::new())
    }

    fn of(ids: IdType, pages: Vec<Page>) -> Self {
        let pages = Box::new(PageStack(pages));
        let reader = match physical_type(ids) {
            PhysicalType::INT32 => {
                Reader::Int32(ColumnReaderImpl::new(flat_column(PhysicalType::INT32), pages), Vec::new())
            }
            _ => Reader::Int64(ColumnReaderImpl::new(flat_column(PhysicalType::INT64), pages), Vec::new()),
        };
        Self { reader, ids, is_scratch_next: false }
    }

    /// Fills `out` with the next ids.
    pub fn read(&mut self, out: &mut [u32]) -> Result<(), ValueError> {
        self.load(out.len())?;
        let ids = self.ids;
        match &self.reader {
            Reader::Int32(_, values) => {
                // One look at all bits together: only when that is suspicious, at each.
                let mut all = 0;
                for (id, value) in out.iter_mut().zip(values) {
                    *id = value.cast_unsigned();
                    all |= *id;
                }
                let bad = out.iter().find(|&&id| all > id_max(ids) && id > id_max(ids));
                bad.map_or(Ok(()), |bad| Err(not_an_id(i64::from(bad.cast_signed()), ids)))
            }
            Reader::Int64(_, values) => {
                let mut all = 0;
                for (id, &value) in out.iter_mut().zip(values) {
                    *id = value as u32;
                    all |= value.cast_unsigned();
                }
                let max = u64::from(u32::MAX);
                let bad = values.iter().find(|value| all > max && value.cast_unsigned() > max);
                bad.map_or(Ok(()), |&bad| Err(not_an_id(bad, ids)))
            }
        }
    }

    /// The same into 16 bits each. False if one does not fit: then they are the next to be read, as many of them.
    pub fn read_narrow(&mut self, out: &mut [u16]) -> Result<bool, ValueError> {
        self.load(out.len())?;
        // What is negative does not fit either.
        let all = match &self.reader {
            Reader::Int32(_, values) => out.iter_mut().zip(values).fold(0, |all, (id, value)| {
                *id = *value as u16;
                all | u64::from(value.cast_unsigned())
            }),
            Reader::Int64(_, values) => out.iter_mut().zip(values).fold(0, |all, (id, value)| {
                *id = *value as u16;
                all | value.cast_unsigned()
            }),
        };
        self.is_scratch_next = all > u16::MAX.into();
        Ok(!self.is_scratch_next)
    }

    /// Has the crate decode the next `count` values, unless it did.
    fn load(&mut self, count: usize) -> Result<(), ValueError> {
        if std::mem::take(&mut self.is_scratch_next) {
            return Ok(());
        }
        foreign::call(|| match &mut self.reader {
            Reader::Int32(reader, values) => read_values(reader, count, values),
            Reader::Int64(reader, values) => read_values(reader, count, values),
        })
        .unwrap_or_else(|panic| Err(ValueError::Page(panic)))
    }

    /// Passes over the next `count` ids.
    pub fn skip(&mut self, count: usize) -> Result<(), ValueError> {
        let skipped = foreign::call(|| match &mut self.reader {
            Reader::Int32(reader, _) => reader.skip_records(count),
            Reader::Int64(reader, _) => reader.skip_records(count),
        });
        match skipped {
            Ok(Ok(skipped)) if skipped == count => Ok(()),
            Ok(Ok(skipped)) => Err(too_few(count, skipped)),
            Ok(Err(error)) => Err(ValueError::Page(error.to_string())),
            Err(panic) => Err(ValueError::Page(panic)),
        }
    }
}

fn read_values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    count: usize,
    scratch: &mut Vec<T::T>,
) -> Result<(), ValueError> {
    scratch.clear();
    match reader.read_records(count, None, None, scratch) {
        Ok((read, _, _)) if read == count => Ok(()),
        Ok((read, _, _)) => Err(too_few(count, read)),
        Err(error) => Err(ValueError::Page(error.to_string())),
    }
}

/// How ids are stored.
pub(super) fn physical_type(ids: IdType) -> PhysicalType {
    match ids {
        IdType::U16 | IdType::U32 | IdType::I32 => PhysicalType::INT32,
        IdType::I64 | IdType::U64 => PhysicalType::INT64,
    }
}

/// A required column of integers: what is left of a list column when its levels are taken off.
pub(super) fn flat_column(physical: PhysicalType) -> ColumnDescPtr {
    let column = Type::primitive_type_builder("ids", physical)
        .with_repetition(Repetition::REQUIRED)
        .build()
        .expect("a plain integer type");
    Arc::new(ColumnDescriptor::new(Arc::new(column), 0, 0, ColumnPath::from("ids")))
}

/// The pages of one reader, the next one last.
struct PageStack(Vec<Page>);

impl Iterator for PageStack {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop().map(Ok)
    }
}

impl PageReader for PageStack {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        Ok(self.0.pop())
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        Ok(self.0.last().map(|page| {
            let is_dict = page.is_dictionary_page();
            let count = (!is_dict).then_some(page.num_values() as usize);
            PageMetadata { num_rows: count, num_levels: count, is_dict }
        }))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.0.pop();
        Ok(())
    }
}
