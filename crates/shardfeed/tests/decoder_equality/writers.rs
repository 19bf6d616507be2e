use std::path::{Path, PathBuf};

use serde_json::Value;
use shardfeed::IdType;

use crate::compare::{assert_equal, open};
use crate::reference;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

/// Files of `testdata/writers` that are listed under this word.
fn listed(kind: &str) -> Vec<PathBuf> {
    let folder = testdata().join("writers");
    let expected: Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let files = expected[kind].as_array().unwrap().iter();
    files.map(|file| folder.join(file["file"].as_str().unwrap())).collect()
}

#[test]
fn files_of_every_writer_are_read_as_the_crates_own_reader_reads_them() {
    let files = listed("files");
    assert!(files.len() > 100);
    for path in files {
        for seed in 0..5 {
            assert_equal(&path, seed).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn files_in_a_disputed_form_are_refused_or_read_as_the_crates_own_reader_reads_them() {
    for path in listed("odd") {
        // Some are too odd for the crate; `tests/writers.rs` knows what is in them.
        if reference::row_groups(&path, true).is_err() {
            continue;
        }
        if let Err(error) = assert_equal(&path, 1) {
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
    }
}

#[test]
fn before_a_file_is_refused_its_tokens_are_those_of_the_crates_own_reader() {
    for path in listed("bad") {
        let Ok(data) = open(&path) else { continue };
        let is_unsigned = data.manifest().files()[0].column.ids == IdType::U32;
        let naive = reference::row_groups(&path, is_unsigned).unwrap();
        let mut refused = false;
        for (index, facts) in data.manifest().row_groups().iter().enumerate() {
            let (tokens, end) = tokens_before_the_end(&data, index as u32);
            let naive: Vec<i64> = naive[facts.number as usize].concat();
            assert_eq!(tokens, naive[..tokens.len()], "{}", path.display());
            refused |= end.is_err();
        }
        assert!(refused, "{}", path.display());
    }
}

/// One by one, so that nothing right is lost with what is wrong.
fn tokens_before_the_end(
    data: &std::sync::Arc<shardfeed::DataSet>,
    row_group: u32,
) -> (Vec<i64>, shardfeed::Result<()>) {
    let mut tokens = Vec::new();
    let mut read = || {
        let mut cursor = data.open_row_group(row_group)?;
        let mut token = Vec::new();
        while let Some(segment) = cursor.segment(1)? {
            token.clear();
            cursor.read(segment.tokens, &mut token)?;
            tokens.extend(token.iter().copied().map(i64::from));
        }
        Ok(())
    };
    let end = read();
    (tokens, end)
}
