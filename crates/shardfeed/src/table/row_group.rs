use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::file::metadata::RowGroupMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::column::{Column, Leaf};
use super::guarded::{GuardedFile, GuardedPages, TOO_MANY};
use super::value::Value;
use crate::{Error, Result, foreign};

/// The columns of a row group that were asked for, decoded.
pub(super) struct DecodedRowGroup {
    columns: Vec<Column>,
    pub bytes: u64,
}

/// Which row group of which file.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub path: &'a Path,
    pub row_group: u32,
}

impl DecodedRowGroup {
    /// Reads and decodes columns of a row group, which take no more than `bytes_max` in memory.
    pub fn read(
        origin: Origin,
        file: &File,
        file_len: u64,
        metadata: &RowGroupMetaData,
        leaves: &[Leaf],
        bytes_max: u64,
    ) -> Result<Self> {
        let damaged = |reason: String| match reason {
            reason if reason.contains(TOO_MANY) => Error::Invalid(format!(
                "{}: row group {} takes more than {bytes_max} bytes when it is decoded; allow more with cache_bytes, ask for fewer \
                 columns, or write smaller row groups",
                origin.path.display(),
                origin.row_group
            )),
            reason => Error::Damaged { path: origin.path.to_owned(), row_group: origin.row_group, reason },
        };
        let rows = usize::try_from(metadata.num_rows())
            .map_err(|_| damaged("it has a negative number of rows".to_owned()))?;
        let mut columns = Vec::with_capacity(leaves.len());
        let mut bytes = 0;
        for leaf in leaves {
            let left = bytes_max - bytes;
            let handle = file.try_clone().map_err(|error| Error::io(origin.path, "open it", error))?;
            let column = foreign::call(|| -> Result<Column, String> {
                let chunk = metadata.columns().get(leaf.number).ok_or("it lacks a column")?;
                if chunk.data_page_offset() < 0 || chunk.compressed_size() < 0 {
                    return Err("its footer claims bytes before the first".to_owned());
                }
                let file = Arc::new(GuardedFile::new(handle, file_len, left.max(PAGE_BYTES_MIN)));
                let pages =
                    SerializedPageReader::new(file, chunk, rows, None).map_err(|error| error.to_string())?;
                Column::read(leaf, Box::new(GuardedPages::new(pages, leaf.shape(), left)), rows, left)
            });
            let column = column.and_then(|column| column).map_err(|reason| {
                damaged(if reason.contains(TOO_MANY) {
                    reason
                } else {
                    format!("column {}: {reason}", leaf.name())
                })
            })?;
            bytes += column.bytes();
            if bytes > bytes_max {
                return Err(damaged(TOO_MANY.to_owned()));
            }
            columns.push(column);
        }
        Ok(Self { columns, bytes })
    }

    /// The values of a row, column by column.
    pub fn row(&self, row: usize) -> Result<Vec<Value>, String> {
        self.columns.iter().map(|column| column.value(row)).collect()
    }
}

/// Pages of this size are read whatever the limit.
const PAGE_BYTES_MIN: u64 = 1 << 16;
