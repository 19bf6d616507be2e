//! What a file's footer says: the token column and its row groups.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::{SchemaDescriptor, Type};
use shardfeed_plan::{DataFile, IdType, RowGroup, TokenColumn};

use crate::thrift::{Flaw, struct_len};
use crate::{Error, Result, foreign};

/// Names of the token column, the preferred one first.
const COLUMN_NAMES: [&str; 2] = ["input_ids", "token_ids"];

/// A footer's facts. Row groups whose statistics do not tell the tokens are to be counted.
pub(crate) struct Footer {
    pub file: DataFile,
    pub row_groups: Vec<RowGroup>,
    /// Indexes of row groups whose `tokens` and `documents` are not known yet.
    pub uncounted: Vec<usize>,
}

/// When a file was last written, in nanoseconds.
pub(crate) fn modified_ns(metadata: &std::fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// The footer of the file at `path`, looked through before the crate believes it, and what the system says of the file.
pub(crate) fn read_metadata(path: &Path) -> Result<(File, std::fs::Metadata, ParquetMetaData)> {
    let file = File::open(path).map_err(|error| Error::io(path, "open it", error))?;
    let metadata = file.metadata().map_err(|error| Error::io(path, "look at it", error))?;
    let not_parquet = |reason: String| Error::NotParquet { path: path.to_owned(), reason };
    if metadata.len() == 0 {
        return Err(not_parquet("the file is empty".to_owned()));
    }
    check_footer(&file, metadata.len()).map_err(not_parquet)?;
    let parquet = foreign::call(|| ParquetMetaDataReader::new().parse_and_finish(&file))
        .map_err(not_parquet)?
        .map_err(|error| not_parquet(error.to_string()))?;
    Ok((file, metadata, parquet))
}

/// Reads the footer of the file at `path`, known as `name`.
pub(crate) fn read_footer(path: &Path, name: &str) -> Result<Footer> {
    let (_, metadata, parquet) = read_metadata(path)?;
    let size = metadata.len();
    let (leaf, column) = find_column(path, &parquet)?;
    let mut row_groups = Vec::with_capacity(parquet.num_row_groups());
    let mut uncounted = Vec::new();
    for (index, group) in parquet.row_groups().iter().enumerate() {
        let facts = read_row_group(group, leaf, size).map_err(|reason| Error::Damaged {
            path: path.to_owned(),
            row_group: index as u32,
            reason,
        })?;
        // Rows without any token: null and empty ones, or nulls inside lists, which only levels tell apart.
        let is_hollow = facts.row_group.tokens == 0 && facts.row_group.rows > 0;
        if facts.null_count.is_none() || is_hollow {
            uncounted.push(index);
        }
        row_groups.push(facts.row_group);
    }
    let file = DataFile {
        name: name.to_owned(),
        size,
        modified_ns: modified_ns(&metadata),
        column,
        pieces: Vec::new(),
    };
    Ok(Footer { file, row_groups, uncounted })
}

/// Refuses a footer whose lengths are not true. Where there is none at all, the crate says what is missing.
fn check_footer(file: &File, size: u64) -> Result<(), String> {
    let mut tail = [0; TAIL_LEN as usize];
    let Some(tail_at) = size.checked_sub(TAIL_LEN) else { return Ok(()) };
    file.read_exact_at(&mut tail, tail_at).map_err(|error| error.to_string())?;
    let (len, magic) = tail.split_first_chunk::<4>().expect("eight bytes");
    let len = u32::from_le_bytes(*len);
    let Some(footer_at) = tail_at.checked_sub(len.into()).filter(|_| magic == b"PAR1") else { return Ok(()) };
    let mut footer = vec![0; len as usize];
    file.read_exact_at(&mut footer, footer_at).map_err(|error| error.to_string())?;
    match struct_len(&footer) {
        Ok(_) => Ok(()),
        Err(Flaw::Short) => Err("its footer is damaged: it has no end".to_owned()),
        Err(Flaw::Foreign(flaw)) => Err(format!("its footer is damaged: {flaw}")),
    }
}

/// The footer's length and four letters.
const TAIL_LEN: u64 = 8;

struct RowGroupFacts {
    row_group: RowGroup,
    /// Null and empty rows, if the statistics tell.
    null_count: Option<u64>,
}

fn read_row_group(group: &RowGroupMetaData, leaf: usize, file_len: u64) -> Result<RowGroupFacts, String> {
    let chunk = group.column(leaf);
    if chunk.file_path().is_some() {
        return Err("its column chunk lies in another file, which is not supported".to_owned());
    }
    let number = |value: i64, what: &str| {
        u64::try_from(value).map_err(|_| format!("the footer claims {value} {what}"))
    };
    let rows = number(group.num_rows(), "rows")?;
    let slots = number(chunk.num_values(), "values")?;
    // As the crate's `byte_range` does, which panics on negative offsets; hostile footers have them.
    let first_page = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let chunk_start = number(first_page, "as the column chunk's first byte")?;
    let chunk_len = number(chunk.compressed_size(), "bytes of column chunk")?;
    if chunk_start.checked_add(chunk_len).is_none_or(|end| end > file_len) {
        return Err(format!(
            "its column chunk ends at byte {} of {file_len}",
            chunk_start.saturating_add(chunk_len)
        ));
    }
    // With no null inside a list (an error when it is met), a null slot is a row that is null or empty.
    let null_count = chunk
        .statistics()
        .and_then(parquet::file::statistics::Statistics::null_count_opt)
        .or((slots == 0 || rows == 0).then_some(0));
    let nulls = null_count.unwrap_or(0);
    let (Some(tokens), Some(documents)) = (slots.checked_sub(nulls), rows.checked_sub(nulls)) else {
        return Err(format!(
            "its footer counts {nulls} nulls among {slots} values in {rows} rows: it is wrong, or there are nulls inside lists, which are no tokens"
        ));
    };
    let codec = codec_number(chunk.compression());
    let row_group = RowGroup { file: 0, number: 0, rows, tokens, documents, chunk_start, chunk_len, codec };
    Ok(RowGroupFacts { row_group, null_count })
}

fn find_column(path: &Path, parquet: &ParquetMetaData) -> Result<(usize, TokenColumn)> {
    let schema = parquet.file_metadata().schema_descr();
    let wrong = |reason: String| Error::Column { path: path.to_owned(), reason };
    let fields = schema.root_schema().get_fields();
    let Some(name) = COLUMN_NAMES.into_iter().find(|name| fields.iter().any(|field| field.name() == *name))
    else {
        let mut found: Vec<&str> = fields.iter().map(|field| field.name()).take(20).collect();
        if fields.len() > found.len() {
            found.push("...");
        }
        return Err(wrong(format!("no column input_ids or token_ids among [{}]", found.join(", "))));
    };
    let leaves: Vec<usize> =
        (0..schema.num_columns()).filter(|&leaf| schema.get_column_root(leaf).name() == name).collect();
    let field = fields.iter().find(|field| field.name() == name).expect("found above");
    let wrong_type = || wrong(format!("column {name} is {}", describe(field)));
    let [leaf] = leaves[..] else { return Err(wrong_type()) };
    let ids = id_type(schema, leaf).ok_or_else(wrong_type)?;
    let column = schema.column(leaf);
    if !is_list(field) || column.max_rep_level() != 1 {
        return Err(wrong_type());
    }
    let item = column.self_type().get_basic_info();
    Ok((
        leaf,
        TokenColumn {
            name: name.to_owned(),
            ids,
            present_level: u8::try_from(column.max_def_level()).map_err(|_| wrong_type())?,
            nullable_items: item.has_repetition() && item.repetition() == Repetition::OPTIONAL,
        },
    ))
}

/// A list of primitives: in three levels as the format asks, or in two or one as older writers have it. A struct
/// around or inside the list is not one, though its levels look the same.
fn is_list(field: &Type) -> bool {
    let is_repeated = |field: &Type| field.get_basic_info().repetition() == Repetition::REPEATED;
    if field.is_primitive() {
        return is_repeated(field);
    }
    let info = field.get_basic_info();
    let is_annotated =
        info.logical_type_ref() == Some(&LogicalType::List) || info.converted_type() == ConvertedType::LIST;
    match field.get_fields() {
        [list] if is_annotated && is_repeated(list) => {
            list.is_primitive() || matches!(list.get_fields(), [item] if item.is_primitive())
        }
        _ => false,
    }
}

fn id_type(schema: &SchemaDescriptor, leaf: usize) -> Option<IdType> {
    let column = schema.column(leaf);
    let (bits, signed) = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Integer(int)), _) => (u32::try_from(int.bit_width).ok()?, int.is_signed),
        (None, ConvertedType::NONE) => match column.physical_type() {
            PhysicalType::INT32 => (32, true),
            PhysicalType::INT64 => (64, true),
            _ => return None,
        },
        (None, ConvertedType::INT_32) => (32, true),
        (None, ConvertedType::INT_64) => (64, true),
        (None, ConvertedType::UINT_16) => (16, false),
        (None, ConvertedType::UINT_32) => (32, false),
        (None, ConvertedType::UINT_64) => (64, false),
        _ => return None,
    };
    match (column.physical_type(), bits, signed) {
        (PhysicalType::INT32, 16, false) => Some(IdType::U16),
        (PhysicalType::INT32, 32, false) => Some(IdType::U32),
        (PhysicalType::INT32, 32, true) => Some(IdType::I32),
        (PhysicalType::INT64, 64, true) => Some(IdType::I64),
        (PhysicalType::INT64, 64, false) => Some(IdType::U64),
        _ => None,
    }
}

/// A type as Parquet writes it, on one line.
fn describe(field: &Type) -> String {
    let mut text = Vec::new();
    parquet::schema::printer::print_schema(&mut text, field);
    let words: Vec<String> =
        String::from_utf8_lossy(&text).split_whitespace().take(40).map(str::to_owned).collect();
    words.join(" ")
}

fn codec_number(codec: parquet::basic::Compression) -> u8 {
    use parquet::basic::Compression::{BROTLI, GZIP, LZ4, LZ4_RAW, LZO, SNAPPY, UNCOMPRESSED, ZSTD};
    match codec {
        UNCOMPRESSED => 0,
        SNAPPY => 1,
        GZIP(_) => 2,
        LZO => 3,
        BROTLI(_) => 4,
        LZ4 => 5,
        ZSTD(_) => 6,
        LZ4_RAW => 7,
    }
}
