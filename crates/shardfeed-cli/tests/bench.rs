//! `data bench` measures everything it says it does. How fast anything is, no test asks.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use shardfeed::sample::{SampleData, WriteOptions, write_sample};

fn bench(dir: &Path, args: &[&str]) -> Output {
    // Its own temporary directory, to see that nothing is left there.
    Command::new(env!("CARGO_BIN_EXE_shardfeed"))
        .args(["data", "bench"])
        .args(args)
        .current_dir(dir)
        .env("TMPDIR", dir.join("tmp"))
        .output()
        .unwrap()
}

fn succeed(dir: &Path, args: &[&str]) -> String {
    let output = bench(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.join("tmp")).unwrap().count(), 0);
    String::from_utf8(output.stdout).unwrap()
}

fn world() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tmp")).unwrap();
    dir
}

fn assert_spread(value: &Value, count: usize) {
    let all = value["all"].as_array().unwrap_or_else(|| panic!("{value}"));
    assert_eq!(all.len(), count, "{value}");
    for number in all.iter().chain([&value["best"], &value["median"]]) {
        assert!(number.as_f64().is_some_and(|number| number > 0.0), "{value}");
    }
}

/// Every field of one data set.
fn assert_complete(set: &Value, rounds: usize) {
    let tokens = set["tokens"].as_u64().unwrap();
    assert!(set["name"].is_string() && set["bytes"].as_u64().unwrap() > 0, "{set}");
    assert!(set["rows"].as_u64().unwrap() > 0 && set["row_groups"].as_u64().unwrap() > 0, "{set}");
    assert!(set["bare_batch_rows"].as_u64().unwrap() > 0, "{set}");
    let readers = set["readers"].as_array().unwrap();
    for reader in readers {
        // All of them read everything: that is what makes them comparable.
        assert_eq!(reader["tokens"].as_u64(), Some(tokens), "{reader}");
        assert_spread(&reader["million_tokens_per_second"], rounds);
        for over in ["over_bare", "over_raw"] {
            assert!(reader[over]["best"].as_f64().unwrap() > 0.0, "{reader}");
            assert!(reader[over]["median"].as_f64().unwrap() > 0.0, "{reader}");
        }
    }
    let has = |name: &str, threads: u64| {
        readers.iter().any(|reader| reader["reader"] == name && reader["threads"] == threads)
    };
    assert!(has("bare", 1) && has("bare", 2) && has("raw", 1), "{set}");
    assert!(has("shardfeed", 1) && has("shardfeed", 2), "{set}");
    assert!(readers.iter().any(|reader| reader["arrays"] == "all four arrays"), "{set}");
    assert_spread(&set["open_ms"], rounds.max(5));
    assert_spread(&set["first_batch_ms"], rounds.max(5));
    let resumed = set["resumed"].as_array().unwrap();
    assert_eq!(resumed.iter().map(|at| at["percent"].as_u64().unwrap()).collect::<Vec<_>>(), [50, 90]);
    for at in resumed {
        assert_spread(&at["first_batch_ms"], rounds.max(5));
    }
}

#[test]
fn every_made_up_data_set_has_every_number_and_nothing_is_left_behind() {
    let dir = world();
    let json = succeed(dir.path(), &["--tokens=20000", "--seq-len=128", "--files=3", "--rounds=1", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    for field in ["version", "optimised", "cores", "seq_len", "global_batch", "rounds"] {
        assert!(!json[field].is_null(), "{field}");
    }
    let sets = json["data_sets"].as_array().unwrap();
    assert_eq!(sets.len(), 16);
    for set in sets {
        assert_complete(set, 1);
        let tokens = set["tokens"].as_u64().unwrap();
        assert!((20_000..80_000).contains(&tokens), "{tokens}");
        assert_eq!(set["files"], 3);
    }
}

#[test]
fn a_given_data_set_is_measured_and_left_as_it_is() {
    let dir = world();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let options = WriteOptions { rows_per_group: 40, ..WriteOptions::default() };
    let sample =
        SampleData { files: 4, rows_per_file: 100, row_tokens_max: 300, options, ..SampleData::default() };
    write_sample(&data, &sample).unwrap();
    let measure = |more: &[&str]| -> Value {
        let args = ["data", "--seq-len=64", "--batch=4", "--rounds=2", "--json"];
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        serde_json::from_str(&succeed(dir.path(), &args)).unwrap()
    };
    let whole = measure(&[]);
    assert_eq!(whole["data_sets"].as_array().unwrap().len(), 1);
    assert_complete(&whole["data_sets"][0], 2);
    assert_eq!(
        (&whole["data_sets"][0]["files"], &whole["data_sets"][0]["row_groups"]),
        (&4.into(), &12.into())
    );
    // As many files as hold 20,000 tokens, at some 15,000 each.
    let part = measure(&["--tokens=20000"]);
    assert_complete(&part["data_sets"][0], 2);
    assert_eq!(part["data_sets"][0]["files"], 2);
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 4);
}

#[test]
fn the_table_names_every_reader() {
    let dir = world();
    let args = ["--tokens=20000", "--rounds=1", "--threads=2", "--compression=zstd", "--encoding=plain"];
    let table = succeed(dir.path(), &[&args[..], &["--lengths=variable"]].concat());
    for words in
        ["zstd, plain, variable: ", "bare parquet", "raw file", "shardfeed, all four arrays", "at 90 %"]
    {
        assert!(table.contains(words), "{table}");
    }
    let output = bench(dir.path(), &["data", "--compression=zstd"]);
    assert_eq!(output.status.code(), Some(2), "a given data set is written as it is");
    let output = bench(dir.path(), &["nowhere"]);
    assert_eq!(output.status.code(), Some(3));
    let output = bench(dir.path(), &["--threads=0"]);
    assert_eq!(output.status.code(), Some(2));
}
