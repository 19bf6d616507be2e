//! `shardfeed data plan` as people and programs use it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use shardfeed::sample::{SampleData, WriteOptions, write_sample};

fn plan(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shardfeed"))
        .args(["data", "plan", "data", "--seq-len=8", "--seed=3"])
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn succeed(dir: &Path, args: &[&str]) -> String {
    let output = plan(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&succeed(dir, &[args, &["--json"]].concat())).unwrap()
}

fn fail(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = plan(dir, args);
    assert!(!output.status.success(), "{args:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let options = WriteOptions { rows_per_group: 20, ..WriteOptions::default() };
    let sample = SampleData { files: 3, rows_per_file: 2000, row_tokens_max: 60, seed: 5, options };
    write_sample(&dir.path().join("data"), &sample).unwrap();
    dir
}

#[test]
fn a_table_compares_world_sizes() {
    let dir = world();
    let text = succeed(dir.path(), &["--global-batch=64", "--world-size=1,8,64"]);
    let figures = text.lines().skip_while(|line| !line.starts_with("world size")).skip(2).take(3);
    let firsts: Vec<&str> = figures.map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(firsts, ["1", "8", "64"], "{text}");
    assert!(text.contains("shuffle quality") && text.contains("exact, every step counted"), "{text}");
    let listed = succeed(dir.path(), &["--global-batch=64", "--world-size=8", "--ranks"]);
    assert!(listed.contains("rank of 8") && listed.lines().last().unwrap().starts_with('7'), "{listed}");
}

#[test]
fn a_plan_says_what_the_stream_then_does() {
    let dir = world();
    let value = json(dir.path(), &["--global-batch=24", "--world-size=5", "--ranks"]);
    let ranks = value["world_sizes"][0]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 5);
    for (rank, planned) in ranks.iter().enumerate() {
        let output = Command::new(env!("CARGO_BIN_EXE_shardfeed"))
            .args(["data", "stream", "data", "--seq-len=8", "--seed=3", "--global-batch=24", "--json"])
            .args(["--world-size=5", &format!("--rank={rank}")])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let tokens: u64 = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["tokens"].as_u64().unwrap())
            .sum();
        assert_eq!(Some(lines.lines().count() as u64), value["steps"].as_u64());
        assert_eq!(Some(tokens.div_ceil(8)), planned["sequences"].as_u64());
    }
    let bytes: u64 = ranks.iter().map(|rank| rank["bytes"].as_u64().unwrap()).sum();
    let amplification = bytes as f64 / value["column_bytes"].as_f64().unwrap();
    assert!((amplification - value["world_sizes"][0]["amplification"].as_f64().unwrap()).abs() < 1e-9);
    assert!(value["shuffle_quality"]["distinct_ratio"].as_f64().unwrap() > 0.5);
}

#[test]
fn ten_thousand_ranks_and_shared_lanes_are_planned() {
    let dir = world();
    let value = json(dir.path(), &["--global-batch=10000", "--world-size=10000", "--svg=plan.svg"]);
    let of = &value["world_sizes"][0];
    assert_eq!((of["world_size"].as_u64(), of["basis"]["kind"].as_str()), (Some(10_000), Some("exact")));
    assert_well_formed(&std::fs::read_to_string(dir.path().join("plan.svg")).unwrap());
    let shared = json(dir.path(), &["--global-batch=512", "--lanes=64", "--window=4", "--world-size=512"]);
    assert!(shared["world_sizes"][0]["amplification"].as_f64().unwrap() > 1.05);
    let text = succeed(dir.path(), &["--global-batch=512", "--lanes=64", "--window=4", "--world-size=512"]);
    assert!(text.contains("such as 512 lanes"), "{text}");
}

#[test]
fn a_picture_is_well_formed_whatever_files_are_called() {
    let dir = world();
    let name = dir.path().join("data/part-00001.parquet");
    std::fs::rename(name, dir.path().join("data/<b> & \"it's\" ]]>\u{1b}.parquet")).unwrap();
    for args in [
        &["--global-batch=64", "--world-size=1"][..],
        &["--global-batch=64", "--world-size=1,64,8"],
        &["--global-batch=24", "--world-size=7", "--lanes=40"],
        &["--global-batch=24", "--world-size=24", "--no-shuffle"],
        &["--global-batch=24", "--world-size=24", "--packing=pad", "--eos-id=2"],
        &["--global-batch=100000", "--world-size=9"],
    ] {
        succeed(dir.path(), &[args, &["--svg=plan.svg"]].concat());
        let picture = std::fs::read_to_string(dir.path().join("plan.svg")).unwrap();
        assert_well_formed(&picture);
        assert!(picture.contains("&lt;b&gt;") && !picture.contains("NaN") && !picture.contains("inf"));
    }
}

#[test]
fn a_state_brings_its_settings() {
    let dir = world();
    let stream = Command::new(env!("CARGO_BIN_EXE_shardfeed"))
        .args(["data", "stream", "data", "--seq-len=8", "--seed=3", "--global-batch=12", "--lanes=36"])
        .args(["--steps=2", "--state=s.json"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(stream.status.success());
    let value = json(dir.path(), &["--state=s.json"]);
    assert_eq!((value["global_batch"].as_u64(), value["lanes"].as_u64()), (Some(12), Some(36)));
    let (code, message) = fail(dir.path(), &["--state=s.json", "--lanes=24"]);
    assert!(code == 4 && message.contains("lanes"), "{code}: {message}");
}

#[test]
fn what_cannot_be_planned_says_why() {
    let dir = world();
    let (code, message) = fail(dir.path(), &["--world-size=0"]);
    assert!(code == 2 && message.contains("world size is 0"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["--global-batch=8", "--world-size=1,9"]);
    assert!(code == 2 && message.contains("global batch is 8 for 9 ranks"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["--global-batch=0"]);
    assert!(code == 2 && message.contains("global batch is 0"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["--world-size=1,x"]);
    assert!(code == 2 && message.contains("--world-size"), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["--global-batch=7", "--tail=error"]);
    assert!(code == 2 && message.contains("tail \"error\""), "{code}: {message}");
    let (code, message) = fail(dir.path(), &["--svg=/proc/shardfeed/plan.svg"]);
    assert!(code == 3 && message.contains("write the picture"), "{code}: {message}");
    let text = succeed(dir.path(), &["--memory-budget=1K"]);
    assert!(text.contains("memory budget of 1.0 KiB is too small"), "{text}");
}

/// Every tag closed in its turn, attributes quoted, entities known, nothing after the root.
fn assert_well_formed(xml: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a declaration");
    while let Some(start) = rest.find('<') {
        let (text, tag) = rest.split_at(start);
        assert_text(text);
        assert!(!open.is_empty() || text.trim().is_empty(), "text outside the root: {text:?}");
        let end = tag.find('>').expect("a tag ends");
        let inside = &tag[1..end];
        rest = &tag[end + 1..];
        if let Some(name) = inside.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in its turn");
            continue;
        }
        let is_empty = inside.ends_with('/');
        let inside = inside.trim_end_matches('/');
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name:?}");
        let quoted: Vec<&str> = attributes.split('"').collect();
        assert!(quoted.len() % 2 == 1, "{attributes:?}");
        for pair in quoted.chunks_exact(2) {
            assert!(pair[0].trim().ends_with('='), "{attributes:?}");
            assert_text(pair[1]);
        }
        if !is_empty {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
}

fn assert_text(text: &str) {
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    for after in text.split('&').skip(1) {
        let entity = after.split(';').next().unwrap();
        assert!(["amp", "lt", "gt", "quot", "apos"].contains(&entity), "{text:?}");
    }
}
