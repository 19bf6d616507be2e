use std::fs::File;
use std::path::Path;

use parquet::basic::Type as PhysicalType;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

/// Records that the crate's reader is asked for at once: more than most row groups have, less than some.
const RECORDS: usize = 1000;

/// Rows with anything in them, by row group: what stands there, be it a token id or not.
pub fn row_groups(path: &Path, is_unsigned_32: bool) -> Result<Vec<Vec<Vec<i64>>>> {
    let file = SerializedFileReader::new(File::open(path)?)?;
    let leaf = token_leaf(file.metadata().file_metadata().schema_descr());
    (0..file.num_row_groups())
        .map(|number| {
            let group = file.get_row_group(number)?;
            match group.metadata().column(leaf).column_type() {
                PhysicalType::INT32 if is_unsigned_32 => {
                    read::<Int32Type>(&*group, leaf, |id| i64::from(id.cast_unsigned()))
                }
                PhysicalType::INT32 => read::<Int32Type>(&*group, leaf, i64::from),
                _ => read::<Int64Type>(&*group, leaf, |id| id),
            }
        })
        .collect()
}

/// Encodings of the token column's chunk in each row group, as the footer names them.
pub fn encodings(path: &Path) -> Vec<Vec<parquet::basic::Encoding>> {
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let leaf = token_leaf(file.metadata().file_metadata().schema_descr());
    let of = |group: &RowGroupMetaData| group.column(leaf).encodings().collect();
    file.metadata().row_groups().iter().map(of).collect()
}

fn token_leaf(schema: &SchemaDescriptor) -> usize {
    let leaf_of = |name| (0..schema.num_columns()).find(|&leaf| schema.get_column_root(leaf).name() == name);
    leaf_of("input_ids").or_else(|| leaf_of("token_ids")).expect("a token column")
}

fn read<T: DataType>(
    group: &dyn RowGroupReader,
    leaf: usize,
    widen: impl Fn(T::T) -> i64,
) -> Result<Vec<Vec<i64>>> {
    let present = group.metadata().column(leaf).column_descr().max_def_level();
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(leaf)?);
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let levels = (Some(&mut definition), Some(&mut repetition));
        let (records, _, _) = reader.read_records(RECORDS, levels.0, levels.1, &mut values)?;
        if records == 0 {
            break;
        }
    }
    let mut values = values.into_iter().map(widen);
    let mut rows: Vec<Vec<i64>> = Vec::new();
    for (definition, repetition) in definition.into_iter().zip(repetition) {
        if repetition == 0 {
            rows.push(Vec::new());
        }
        if definition == present {
            rows.last_mut().expect("a row begins first").push(values.next().expect("as many as levels say"));
        }
    }
    assert_eq!(values.next(), None, "no more than levels say");
    rows.retain(|row| !row.is_empty());
    Ok(rows)
}
