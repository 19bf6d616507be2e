//! Files by other writers, and by our own, read token for token.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::Row;
use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use serde_json::Value;
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{CachePolicy, DataSet, Error, IdType, Result, ScanOptions, Source, scan};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/writers")
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(testdata().join("expected.json")).unwrap()).unwrap()
}

fn open(path: &Path) -> Result<Arc<DataSet>> {
    let options = ScanOptions { cache: CachePolicy::Off, ..ScanOptions::default() };
    scan(&Source::Files(vec![path.to_owned()]), &options).map(|(data, _)| data)
}

/// All rows with tokens, in portions of at most `portion`.
fn read(data: &Arc<DataSet>, portion: usize) -> Result<Vec<Vec<u32>>> {
    let mut rows: Vec<Vec<u32>> = Vec::new();
    for group in 0..data.manifest().row_groups().len() {
        let mut cursor = data.open_row_group(group as u32)?;
        while let Some(segment) = cursor.segment(portion)? {
            assert!(segment.tokens >= 1 && segment.tokens <= portion);
            if segment.starts_row {
                rows.push(Vec::new());
            }
            cursor.read(segment.tokens, rows.last_mut().unwrap())?;
        }
    }
    Ok(rows)
}

fn rows_of(expected: &Value, file: &Value) -> Vec<Row> {
    serde_json::from_value(expected["rowsets"][file["rowset"].as_str().unwrap()].clone()).unwrap()
}

fn with_tokens(rows: &[Row]) -> Vec<Vec<u32>> {
    rows.iter().flatten().filter(|row| !row.is_empty()).cloned().collect()
}

#[test]
fn every_writers_files_are_read_exactly() {
    let expected = expected();
    let files = expected["files"].as_array().unwrap();
    assert!(files.len() > 100);
    for file in files {
        let name = file["file"].as_str().unwrap();
        let rows = rows_of(&expected, file);
        let data = open(&testdata().join(name)).unwrap_or_else(|error| panic!("{error}"));
        let manifest = data.manifest();
        let tokens: usize = rows.iter().flatten().map(Vec::len).sum();
        let counts = (manifest.rows(), manifest.tokens(), manifest.documents());
        assert_eq!(counts, (rows.len() as u64, tokens as u64, with_tokens(&rows).len() as u64), "{name}");
        for portion in [1, 7, usize::MAX] {
            let read = read(&data, portion).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read, with_tokens(&rows), "{name} in portions of {portion}");
        }
    }
}

#[test]
fn files_in_a_disputed_form_are_read_right_or_refused() {
    let expected = expected();
    for file in expected["odd"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        match open(&testdata().join(name)).and_then(|data| read(&data, 100)) {
            Ok(rows) => assert_eq!(rows, with_tokens(&rows_of(&expected, file)), "{name}"),
            Err(error) => assert!(error.to_string().contains(name), "{error}"),
        }
    }
}

#[test]
fn what_is_no_token_column_or_no_token_is_refused_and_named() {
    let expected = expected();
    let bad = expected["bad"].as_array().unwrap();
    assert!(bad.len() > 20);
    for file in bad {
        let name = file["file"].as_str().unwrap();
        let error = open(&testdata().join(name)).and_then(|data| read(&data, 100)).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(name), "{message}");
        match (&error, file["row"].as_u64()) {
            (Error::Row { row_group, row, .. }, Some(bad_row)) => {
                let file = std::fs::File::open(testdata().join(name)).unwrap();
                let footer = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
                let groups = &footer.row_groups()[..*row_group as usize];
                let before: i64 = groups.iter().map(RowGroupMetaData::num_rows).sum();
                assert_eq!(before as u64 + row, bad_row, "{message}");
            }
            (Error::Column { .. }, None) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn our_own_writer_and_the_reader_agree_over_the_cross_of_options() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let rows: Vec<Row> = (0..60_u32)
        .map(|row| match row % 10 {
            3 => None,
            4 => Some(vec![]),
            _ => Some((0..=row * 7 % 45).map(|token| (token * token * 31 + row) % 60_000).collect()),
        })
        .collect();
    let compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
    ];
    let encodings =
        [None, Some(Encoding::PLAIN), Some(Encoding::DELTA_BINARY_PACKED), Some(Encoding::BYTE_STREAM_SPLIT)];
    for ids in [IdType::U16, IdType::U32, IdType::I32, IdType::I64, IdType::U64] {
        for compression in compressions {
            for encoding in encodings {
                for flags in 0..8 {
                    let options = WriteOptions {
                        column: if flags & 4 > 0 { "token_ids" } else { "input_ids" }.to_owned(),
                        ids,
                        rows_per_group: 17,
                        compression,
                        dictionary: encoding.is_none(),
                        encoding,
                        page_v2: flags & 1 > 0,
                        page_bytes: 150,
                        statistics: flags & 2 > 0,
                        ..WriteOptions::default()
                    };
                    write_rows(&path, &rows, &options).unwrap();
                    let data = open(&path).unwrap();
                    assert_eq!(read(&data, 11).unwrap(), with_tokens(&rows), "{options:?}");
                }
            }
        }
    }
}
