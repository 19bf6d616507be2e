use std::path::{Path, PathBuf};

use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use serde_json::Value;
use shardfeed::sample::WriteOptions;
use shardfeed::{CachePolicy, Error, IdType, Packing, Rank, ShardConfig, StreamingParquetLoader};

use crate::common::Row;
use crate::world::{
    World, assert_names, assert_says, in_file_order, message, plain, rest, tokens_of, until_error,
};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/writers")
}

/// The row group, and the row within it, of a file's row.
fn place_of(path: &Path, row: u64) -> (usize, u64) {
    let footer = ParquetMetaDataReader::new().parse_and_finish(&std::fs::File::open(path).unwrap()).unwrap();
    let mut before = 0;
    for (number, rows) in footer.row_groups().iter().map(RowGroupMetaData::num_rows).enumerate() {
        if row < before + rows as u64 {
            return (number, row - before);
        }
        before += rows as u64;
    }
    panic!("{} has no row {row}", path.display());
}

#[test]
fn wrong_columns_types_and_ids_are_refused_by_both_loaders_with_their_place() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(testdata().join("expected.json")).unwrap()).unwrap();
    for bad in expected["bad"].as_array().unwrap() {
        let name = bad["file"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::copy(testdata().join(name), &path).unwrap();
        let build = |packing| in_file_order(dir.path()).packing(packing).cache(CachePolicy::Off).build();
        let mut whole = StreamingParquetLoader::new(dir.path(), ShardConfig::single(), 4, 16).unwrap();
        let mut told = vec![message(whole.next_batches())];
        for packing in [Packing::Concat, Packing::Pad] {
            told.push(match build(packing) {
                Ok(mut loader) => until_error(&mut loader).1,
                Err(error) => error.to_string(),
            });
        }
        for said in told {
            assert_names(&said, &path);
            match bad["row"].as_u64() {
                Some(row) => {
                    let (row_group, row) = place_of(&path, row);
                    let place = format!("row group {row_group}, row {row}:");
                    assert_says(&said, &[&place, "tokenize this row again"]);
                }
                None => assert_says(
                    &said,
                    &["Shardfeed reads a column input_ids (or token_ids) that is a list of"],
                ),
            }
        }
    }
}

/// One file of one row group of many pages; in row 700, token 3, an id over 2,147,483,647.
fn one_large_id(ids: IdType) -> World {
    let mut rows: Vec<Row> =
        (0..1000_u32).map(|row| Some((0..8).map(|token| row * 8 + token).collect())).collect();
    rows[700].as_mut().unwrap()[3] = 3_000_000_000;
    World::of(vec![rows], &WriteOptions { ids, page_bytes: 128, ..plain() })
}

#[test]
fn a_negative_id_is_named_by_row_and_everything_before_it_was_delivered() {
    let world = one_large_id(IdType::I32);
    let mut loader = world.loader();
    let (tokens, said) = until_error(&mut loader);
    assert_names(&said, &world.path(0));
    assert_says(&said, &["row group 0, row 700:", "-1294967296 is negative", "tokenize this row again"]);
    assert_eq!(tokens.len(), 700 * 8 / 64 * 64);
    assert!(world.tokens().starts_with(&tokens));
    assert_eq!(message(loader.next_batch()), said, "it is no better the second time");
}

#[test]
fn a_bad_row_has_the_same_name_from_wherever_the_stream_began() {
    // With statistics but no page index, pages that are passed over do not tell how many rows they hold.
    for options in [WriteOptions::default(), WriteOptions { page_v2: true, ..WriteOptions::default() }] {
        let world = one_large_id(IdType::I32);
        let world = World::of(world.files.clone(), &WriteOptions { page_bytes: 128, ..options });
        let start = world.loader().state().clone();
        for position in [0, 1, 100, 200, 340, 349, 350] {
            let mut state = start.clone();
            state.position = position;
            let mut loader = world.builder().resume_from(state).build().unwrap();
            let (_, said) = until_error(&mut loader);
            assert_says(&said, &["row group 0, row 700:", "negative"]);
        }
        // Behind it, the stream goes on.
        let mut state = start.clone();
        state.position = 352;
        let mut loader = world.builder().resume_from(state).build().unwrap();
        assert_eq!(rest(&mut loader).unwrap(), world.tokens()[352 * 16..]);
    }
}

#[test]
fn an_id_that_int32_cannot_hold_is_refused_with_the_type_that_can() {
    for ids in [IdType::U32, IdType::I64, IdType::U64] {
        let world = one_large_id(ids);
        assert_eq!(rest(&mut world.loader()).unwrap(), world.tokens(), "int64 holds it");
        for packing in [Packing::Concat, Packing::Pad] {
            let int32 = world.builder().dtype(shardfeed::Dtype::Int32).packing(packing);
            let mut loader = int32.build().unwrap();
            let (tokens, said) = until_error(&mut loader);
            assert_says(&said, &["3000000000", "does not fit int32", "use dtype int64", "position"]);
            assert!(world.tokens().starts_with(&tokens));
            assert_eq!(message(loader.next_batch()), said);
        }
    }
    let world = World::with_files(1);
    let said = message(world.builder().dtype(shardfeed::Dtype::Int32).pad_id(3_000_000_000).build());
    assert_says(&said, &["pad_id 3000000000 does not fit int32"]);
}

#[test]
fn a_data_set_without_tokens_is_refused_with_its_counts() {
    let hollow = || vec![None, Some(vec![]), None];
    for (files, counts) in [
        (vec![vec![]], "1 files, 0 rows"),
        (vec![vec![], vec![], vec![]], "3 files, 0 rows"),
        (vec![hollow(), vec![], hollow()], "3 files, 6 rows"),
    ] {
        for statistics in [true, false] {
            let world = World::of(files.clone(), &WriteOptions { statistics, ..plain() });
            for packing in [Packing::Concat, Packing::Pad] {
                let error = world.builder().packing(packing).build().err().expect("nothing to stream");
                assert!(matches!(error, Error::NoTokens { .. }), "{error}");
                assert_names(&error.to_string(), world.dir());
                assert_says(&error.to_string(), &["no tokens", counts]);
            }
        }
    }
}

#[test]
fn files_without_tokens_among_others_are_passed_over() {
    let hollow = || vec![None, Some(vec![]), None];
    let files =
        vec![vec![], hollow(), vec![Some(vec![1, 2, 3])], vec![], vec![None, Some(vec![4]), None], hollow()];
    for statistics in [true, false] {
        let world = World::of(files.clone(), &WriteOptions { statistics, rows_per_group: 1, ..plain() });
        for packing in [Packing::Concat, Packing::Pad] {
            let mut loader = world.builder().packing(packing).build().unwrap();
            assert_eq!(rest(&mut loader).unwrap(), [1, 2, 3, 4]);
        }
    }
}

#[test]
fn one_file_with_one_row_of_one_token_is_a_data_set() {
    let world = World::of(vec![vec![Some(vec![77])]], &plain());
    for world_size in 1..=4 {
        let mut tokens = Vec::new();
        for index in 0..world_size {
            let rank = Rank::new(index, world_size).unwrap();
            let mut loader = world.builder().rank(rank).build().unwrap();
            let batch = loader.next_batch().unwrap().expect("every rank has the one step");
            tokens.extend(tokens_of(&batch));
            assert!(loader.next_batch().unwrap().is_none());
        }
        assert_eq!(tokens, [77]);
    }
    let mut whole = StreamingParquetLoader::new(world.dir(), ShardConfig::single(), 4, 16).unwrap();
    let batches = whole.next_batches().unwrap().unwrap();
    assert_eq!((batches.len(), batches[0].get_input(0)), (1, Some(&[77][..])));
}

#[test]
fn many_files_of_one_row_each_are_more_than_are_open_at_once() {
    // More than the 128 files that are kept open, so that some are opened again.
    let files: Vec<Vec<Row>> =
        (0..400_u32).map(|file| vec![Some(vec![file; 1 + file as usize % 5])]).collect();
    let world = World::of(files, &plain());
    assert_eq!(rest(&mut world.loader()).unwrap(), world.tokens());
    let mut shuffled = world.builder().shuffle(true).seed(5).window(4).build().unwrap();
    for _ in 0..2 {
        let mut tokens = rest(&mut shuffled).unwrap();
        tokens.sort_unstable();
        let mut expected = world.tokens();
        expected.sort_unstable();
        assert_eq!(tokens, expected);
    }
}
