//! `shardfeed data verify` as people and programs use it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use shardfeed::sample::{SampleData, write_sample};

fn verify(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardfeed"));
    command.args(["data", "verify", "data"]).args(args).current_dir(dir).output().unwrap()
}

fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    write_sample(&dir.path().join("data"), &SampleData::default()).unwrap();
    dir
}

#[test]
fn a_whole_data_set_passes_and_says_what_was_read() {
    let dir = world();
    let output = verify(dir.path(), &["--seq-len=64"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("files         4") && text.contains("rows          1,024"), "{text}");
    assert!(text.contains("every sequence of an epoch") && text.contains("as it was written"), "{text}");
}

#[test]
fn damage_ends_with_1_and_is_named() {
    let dir = world();
    let path = dir.path().join("data/part-00002.parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    // Behind the first page's header.
    bytes[60..90].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let output = verify(dir.path(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("1 place is damaged") && text.contains("part-00002.parquet"), "{text}");
    let output = verify(dir.path(), &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["files"].as_u64(), report["exactly_once"].as_bool()), (Some(4), None));
    assert_eq!(report["damages"][0]["row_group"], 0);
    assert_eq!(verify(dir.path(), &["--seq-len=0"]).status.code(), Some(2));
}
