//! Made-up token data as Parquet: what the demo streams, and what examples and tests are run on.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use shardfeed_plan::{IdType, mix};

use crate::{Error, Result};

/// How much to make up.
#[derive(Clone, Debug)]
pub struct SampleData {
    /// Files.
    pub files: u32,
    /// Rows of each.
    pub rows_per_file: u32,
    /// Rows have 1 to this many tokens.
    pub row_tokens_max: u32,
    /// Another seed, other tokens.
    pub seed: u64,
    /// How files are written.
    pub options: WriteOptions,
}

impl Default for SampleData {
    fn default() -> Self {
        let options = WriteOptions { rows_per_group: 64, ..WriteOptions::default() };
        Self { files: 4, rows_per_file: 256, row_tokens_max: 200, seed: 1, options }
    }
}

/// How a file is written.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "writers have as many switches, each by itself")]
pub struct WriteOptions {
    /// Name of the column.
    pub column: String,
    /// Type of the ids.
    pub ids: IdType,
    /// Rows of a row group.
    pub rows_per_group: usize,
    /// Compression.
    pub compression: Compression,
    /// Whether ids go through a dictionary.
    pub dictionary: bool,
    /// Encoding of the ids, without a dictionary.
    pub encoding: Option<Encoding>,
    /// Pages of the second version of the format.
    pub page_v2: bool,
    /// Bytes after which a page ends.
    pub page_bytes: usize,
    /// Bytes after which no more ids go into the dictionary: later pages do without it.
    pub dictionary_page_bytes: usize,
    /// Whether column chunks have statistics.
    pub statistics: bool,
    /// Whether page headers have them, and column chunks, too.
    pub page_statistics: bool,
    /// Whether the schema allows null rows; if not, they are written as empty ones.
    pub nullable_rows: bool,
    /// Whether the schema allows nulls inside rows, though none are written.
    pub nullable_items: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            column: "input_ids".to_owned(),
            ids: IdType::I32,
            rows_per_group: 1024,
            compression: Compression::SNAPPY,
            dictionary: true,
            encoding: None,
            page_v2: false,
            page_bytes: 1 << 20,
            dictionary_page_bytes: 1 << 20,
            statistics: true,
            page_statistics: false,
            nullable_rows: true,
            nullable_items: true,
        }
    }
}

/// Writes the sample's files into an existing directory.
pub fn write_sample(dir: &Path, sample: &SampleData) -> Result<()> {
    for file in 0..sample.files {
        let rows: Vec<_> = (0..sample.rows_per_file).map(|row| Some(sample_row(sample, file, row))).collect();
        write_rows(&dir.join(format!("part-{file:05}.parquet")), &rows, &sample.options)?;
    }
    Ok(())
}

/// One made-up row: each token tells where it comes from, so that nothing can be mistaken for anything else.
fn sample_row(sample: &SampleData, file: u32, row: u32) -> Vec<u32> {
    let word = |salt: u64| mix(sample.seed ^ mix(u64::from(file) << 32 | u64::from(row)) ^ salt);
    let len = 1 + word(u64::MAX) % u64::from(sample.row_tokens_max.max(1));
    (0..len).map(|token| (word(token) % 50_000) as u32).collect()
}

/// Writes rows, `None` being a null list, as one Parquet file.
pub fn write_rows(path: &Path, rows: &[Option<Vec<u32>>], options: &WriteOptions) -> Result<()> {
    write_parquet(path, rows, options)
        .map_err(|error| Error::io(path, "write it", std::io::Error::other(error)))
}

fn write_parquet(path: &Path, rows: &[Option<Vec<u32>>], options: &WriteOptions) -> Result<(), ParquetError> {
    let item = match options.ids {
        IdType::U16 => "int32 element (INTEGER(16, false))",
        IdType::U32 => "int32 element (INTEGER(32, false))",
        IdType::I32 => "int32 element",
        IdType::I64 => "int64 element",
        IdType::U64 => "int64 element (INTEGER(64, false))",
    };
    let presence = |nullable| if nullable { "optional" } else { "required" };
    let schema = format!(
        "message schema {{ {} group {} (LIST) {{ repeated group list {{ {} {item}; }} }} }}",
        presence(options.nullable_rows),
        options.column,
        presence(options.nullable_items),
    );
    let leaf = ColumnPath::new(vec![options.column.clone(), "list".to_owned(), "element".to_owned()]);
    let mut properties = WriterProperties::builder()
        .set_compression(options.compression)
        .set_dictionary_enabled(options.dictionary)
        .set_writer_version(if options.page_v2 {
            WriterVersion::PARQUET_2_0
        } else {
            WriterVersion::PARQUET_1_0
        })
        .set_data_page_size_limit(options.page_bytes)
        .set_dictionary_page_size_limit(options.dictionary_page_bytes)
        .set_write_batch_size(64.min(options.page_bytes))
        .set_statistics_enabled(match (options.page_statistics, options.statistics) {
            (true, _) => EnabledStatistics::Page,
            (false, true) => EnabledStatistics::Chunk,
            (false, false) => EnabledStatistics::None,
        })
        .set_write_page_header_statistics(options.page_statistics);
    if let Some(encoding) = options.encoding {
        properties = properties.set_column_encoding(leaf, encoding);
    }
    let schema = Arc::new(parse_message_type(&schema)?);
    let mut writer = SerializedFileWriter::new(File::create(path)?, schema, Arc::new(properties.build()))?;
    for rows in rows.chunks(options.rows_per_group.max(1)) {
        let mut group = writer.next_row_group()?;
        match options.ids {
            IdType::U16 | IdType::U32 | IdType::I32 => {
                write_group::<Int32Type>(&mut group, rows, options, u32::cast_signed)?;
            }
            IdType::I64 | IdType::U64 => write_group::<Int64Type>(&mut group, rows, options, i64::from)?,
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

fn write_group<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    rows: &[Option<Vec<u32>>],
    options: &WriteOptions,
    convert: impl Fn(u32) -> T::T,
) -> Result<(), ParquetError> {
    let empty_level = i16::from(options.nullable_rows);
    let present_level = empty_level + 1 + i16::from(options.nullable_items);
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        match row.as_deref() {
            None => definition.push(0),
            Some([]) => definition.push(empty_level),
            Some(tokens) => {
                definition.resize(definition.len() + tokens.len(), present_level);
                values.extend(tokens.iter().map(|&token| convert(token)));
            }
        }
        repetition.push(0);
        repetition.resize(definition.len(), 1);
    }
    let mut column = group.next_column()?.expect("the schema has one column");
    column.typed::<T>().write_batch(&values, Some(&definition), Some(&repetition))?;
    column.close()
}
