use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{Encoding, Repetition, Type as PhysicalType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, ColumnPath, Type};
use shardfeed_plan::IdType;

/// Token ids of a column chunk's pages, in order, in portions of any size.
pub(super) struct Values {
    pages: PageQueue,
    reader: Reader,
    ids: IdType,
    has_dictionary: bool,
}

enum Reader {
    Int32(ColumnReaderImpl<Int32Type>, Vec<i32>),
    Int64(ColumnReaderImpl<Int64Type>, Vec<i64>),
}

/// Why values could not be read.
pub(super) enum ValueError {
    /// The pages do not decode.
    Page(String),
    /// A number that is no token id.
    NotAnId(String),
}

/// Values converted at once: bounds the scratch space, and stays in the cache.
const PORTION: usize = 4096;

impl Values {
    pub fn new(ids: IdType) -> Self {
        let pages = PageQueue::default();
        let boxed = Box::new(pages.clone());
        let reader = match physical_type(ids) {
            PhysicalType::INT32 => {
                Reader::Int32(ColumnReaderImpl::new(flat_column(PhysicalType::INT32), boxed), Vec::new())
            }
            _ => Reader::Int64(ColumnReaderImpl::new(flat_column(PhysicalType::INT64), boxed), Vec::new()),
        };
        Self { pages, reader, ids, has_dictionary: false }
    }

    /// Hands over a dictionary page, or the values of a data page without its levels. Refuses what the crate's
    /// decoders take for granted.
    pub fn push(&mut self, page: Page) -> Result<(), String> {
        let (count, bytes) = (page.num_values() as usize, page.buffer().len());
        match page.encoding() {
            _ if page.is_dictionary_page() => self.has_dictionary = true,
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY if !self.has_dictionary => {
                return Err("its values are in a dictionary, and there is none".to_owned());
            }
            Encoding::BYTE_STREAM_SPLIT if Some(bytes) != count.checked_mul(self.id_bytes()) => {
                return Err(format!("{count} values in {bytes} bytes"));
            }
            _ => {}
        }
        self.pages.lock().push_back(page);
        Ok(())
    }

    fn id_bytes(&self) -> usize {
        match self.reader {
            Reader::Int32(..) => 4,
            Reader::Int64(..) => 8,
        }
    }

    /// Appends the next `count` ids to `out`.
    pub fn read(&mut self, mut count: usize, out: &mut Vec<u32>) -> Result<(), ValueError> {
        while count > 0 {
            let portion = count.min(PORTION);
            match &mut self.reader {
                Reader::Int32(reader, scratch) => {
                    read_portion(reader, portion, scratch)?;
                    let from = out.len();
                    out.extend(scratch.iter().map(|&value| value.cast_unsigned()));
                    // An unsigned 32-bit id uses all 32 bits; any other with the highest bit set is negative.
                    let or = out[from..].iter().fold(0, |all, &id| all | id);
                    let id_max = match self.ids {
                        IdType::U32 => u32::MAX,
                        IdType::U16 => u32::from(u16::MAX),
                        _ => i32::MAX.cast_unsigned(),
                    };
                    if or > id_max
                        && let Some(bad) = out[from..].iter().find(|&&id| id > id_max)
                    {
                        return Err(not_an_id(i64::from(bad.cast_signed()), self.ids));
                    }
                }
                Reader::Int64(reader, scratch) => {
                    read_portion(reader, portion, scratch)?;
                    let or = scratch.iter().fold(0, |all, &value| all | value);
                    if u32::try_from(or).is_err()
                        && let Some(&bad) = scratch.iter().find(|&&value| u32::try_from(value).is_err())
                    {
                        return Err(not_an_id(bad, self.ids));
                    }
                    out.extend(scratch.iter().map(|&value| value as u32));
                }
            }
            count -= portion;
        }
        Ok(())
    }

    /// Passes over the next `count` ids.
    pub fn skip(&mut self, count: usize) -> Result<(), ValueError> {
        let skipped = match &mut self.reader {
            Reader::Int32(reader, _) => reader.skip_records(count),
            Reader::Int64(reader, _) => reader.skip_records(count),
        };
        match skipped {
            Ok(skipped) if skipped == count => Ok(()),
            Ok(skipped) => Err(too_few(count, skipped)),
            Err(error) => Err(ValueError::Page(error.to_string())),
        }
    }
}

fn read_portion<T: DataType>(
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

fn too_few(wanted: usize, found: usize) -> ValueError {
    ValueError::Page(format!("its levels announce {wanted} more values, but {found} are there"))
}

fn not_an_id(value: i64, ids: IdType) -> ValueError {
    let text = match ids {
        IdType::U64 => value.cast_unsigned().to_string(),
        _ => value.to_string(),
    };
    let wrong = if text.starts_with('-') { "is negative" } else { "is over 4,294,967,295" };
    let wrong = if ids == IdType::U16 { "does not fit the column's type u16" } else { wrong };
    ValueError::NotAnId(format!("{text} {wrong}, so it is no token id; tokenize this row again"))
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

/// The door through which the cursor hands pages to the crate's reader, which owns the other side of it.
#[derive(Clone, Default)]
struct PageQueue(Arc<Mutex<VecDeque<Page>>>);

impl PageQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Page>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Iterator for PageQueue {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.lock().pop_front().map(Ok)
    }
}

impl PageReader for PageQueue {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        Ok(self.lock().pop_front())
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        Ok(self.lock().front().map(|page| {
            let is_dict = page.is_dictionary_page();
            let count = (!is_dict).then_some(page.num_values() as usize);
            PageMetadata { num_rows: count, num_levels: count, is_dict }
        }))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.lock().pop_front();
        Ok(())
    }
}
