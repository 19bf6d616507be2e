//! Rows of Parquet files with any columns, as another library wrote them; in any order, by many threads, within bounds.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::{Value as Json, json};
use shardfeed::{
    Dataset, Error, ParquetDataset, PartitionStrategy, Record, StreamingConfig, StreamingShardLoader, Value,
    mix,
};

fn tables() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tables")
}

fn expected() -> Vec<Json> {
    serde_json::from_slice(&std::fs::read(tables().join("expected.json")).unwrap()).unwrap()
}

fn plain(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::UInt(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Text(value) => json!(value),
        Value::Bytes(bytes) => {
            let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            json!({"bytes": digits.map(|digit| char::from_digit(digit.into(), 16).unwrap()).collect::<String>()})
        }
        Value::Ints(values) => json!(values),
        Value::Floats(values) => json!(values),
        Value::List(values) => values.iter().map(plain).collect(),
        other => panic!("{other:?}"),
    }
}

fn as_json(record: &Record) -> Json {
    record
        .iter()
        .map(|(name, value)| (name.to_owned(), plain(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn every_row_has_what_was_written() {
    let (rows, expected) = (ParquetDataset::open(tables().as_path()).unwrap(), expected());
    assert_eq!((rows.len(), rows.columns().len()), (expected.len(), 22));
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(&as_json(&rows.get(index).unwrap()), expected, "row {index}");
    }
    let row = rows.get(0).unwrap();
    assert_eq!(row.get("id").and_then(Value::as_int), Some(0));
    assert!(row.get("nothing").is_none());
    let error = rows.get(200).unwrap_err().to_string();
    assert!(error.contains("row 200 does not exist; there are 200"), "{error}");
}

/// What `testdata/texts/make.py` writes into a row.
fn text_of(row: usize) -> Value {
    match row % 7 {
        3 => Value::Null,
        _ => Value::Text(format!("row {}{}", "ab".repeat(row % 9), row / 3)),
    }
}

#[test]
fn texts_that_are_stored_by_their_lengths_have_what_was_written() {
    let rows =
        ParquetDataset::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/texts")).unwrap();
    assert_eq!(rows.len(), 5 * 906);
    for index in 0..rows.len() {
        let (row, number) = (rows.get(index).unwrap(), index % 906);
        assert_eq!(row.get("text"), Some(&text_of(number)), "row {index}");
        let required = text_of(number).as_text().unwrap_or_default().as_bytes().to_vec();
        assert_eq!(row.get("required"), Some(&Value::Bytes(required)), "row {index}");
        let texts = (number..number + number % 4).map(text_of).collect();
        assert_eq!(row.get("texts"), Some(&Value::List(texts)), "row {index}");
    }
}

#[test]
fn only_what_is_asked_for_is_decoded_and_what_is_not_there_is_named() {
    let builder = || ParquetDataset::builder(tables().as_path());
    let rows = builder().columns(["point", "id"]).build().unwrap();
    assert_eq!(rows.columns(), ["point.x", "point.deep.z", "id"]);
    assert_eq!(rows.get(150).unwrap().iter().count(), 3);
    let deep = builder().columns(["point.deep"]).build().unwrap();
    assert_eq!(deep.columns(), ["point.deep.z"]);
    let error = builder().columns(["poin"]).build().err().unwrap().to_string();
    assert!(
        error.contains("a.parquet") && error.contains("no column \"poin\"") && error.contains("id, text"),
        "{error}"
    );
    let twice = builder().columns(["point.x", "point", "id", "id"]).build().unwrap();
    assert_eq!(twice.columns(), ["point.x", "point.deep.z", "id"]);
    assert_eq!(as_json(&twice.get(3).unwrap())["point.deep.z"], expected()[3]["point.deep.z"]);
    let error = builder().key_column("point").build().err().unwrap().to_string();
    assert!(error.contains("\"point\" is several: point.x, point.deep.z"), "{error}");
    let error = builder().label_column("nothing").build().err().unwrap().to_string();
    assert!(error.contains("no column \"nothing\""), "{error}");
}

#[test]
fn row_groups_are_kept_within_bounds_and_decoded_once_for_many_threads() {
    let expected = expected();
    let open = |bytes| ParquetDataset::builder(tables().as_path()).cache_bytes(bytes).build().unwrap();
    let all = open(1 << 30);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Relaxed);
                    if turn >= 2000 {
                        break;
                    }
                    let index = (mix(turn as u64) % 200) as usize;
                    assert_eq!(as_json(&all.get(index).unwrap()), expected[index]);
                }
            });
        }
    });
    // Four of the first file, one of the second, three of the last.
    assert_eq!(all.cache_counts(), (2000 - 8, 8));
    // Room for one or two: in order each is still decoded once, and whatever the order, rows are right.
    let few = open(20 << 10);
    (0..200).for_each(|index| assert_eq!(as_json(&few.get(index).unwrap()), expected[index]));
    assert_eq!(few.cache_counts(), (200 - 8, 8));
    (0..200)
        .rev()
        .step_by(7)
        .for_each(|index| assert_eq!(as_json(&few.get(index).unwrap()), expected[index]));
    assert!(few.cache_counts().1 > 8);
    let error = open(1000).get(0).unwrap_err().to_string();
    assert!(error.contains("a.parquet: row group 0 takes more than 1000 bytes"), "{error}");
}

fn strategy_of_keys() -> PartitionStrategy {
    PartitionStrategy::HashBased { num_partitions: 8, hash_seed: 1 }
}

#[test]
fn labels_and_keys_come_from_columns() {
    let open = || ParquetDataset::builder(tables().as_path()).columns(["id"]);
    let rows = open().label_column("small").key_column("text").build().unwrap();
    for (index, expected) in expected().iter().enumerate() {
        assert_eq!(rows.label(index).unwrap(), expected["small"].as_u64());
        let text = expected["text"].as_str().map(str::as_bytes);
        assert_eq!(rows.key(index).unwrap().as_deref(), text);
    }
    let load = |strategy: PartitionStrategy, rows: ParquetDataset| {
        let config =
            StreamingConfig::new(2, 0).unwrap().with_partition_strategy(strategy).with_shuffle_seed(3);
        StreamingShardLoader::new(rows, config)
    };
    let keyed = load(strategy_of_keys(), rows.clone()).unwrap();
    let unkeyed = load(strategy_of_keys(), open().build().unwrap()).unwrap();
    let error = unkeyed.restore_from_checkpoint(keyed.get_checkpoint()).unwrap_err().to_string();
    assert!(error.contains("its fingerprint of labels or keys is"), "{error}");
    let others =
        ParquetDataset::builder(tables().as_path()).columns(["id"]).key_column("blob").build().unwrap();
    let others = load(strategy_of_keys(), others).unwrap();
    let error = others.restore_from_checkpoint(keyed.get_checkpoint()).unwrap_err().to_string();
    assert!(error.contains("its fingerprint of labels or keys is"), "{error}");
    let error = load(PartitionStrategy::Stratified { num_classes: 256 }, rows).err().unwrap().to_string();
    assert!(error.contains("has no label"), "{error}");
    let error = open()
        .label_column("weight")
        .build()
        .and_then(|rows| load(PartitionStrategy::Stratified { num_classes: 2 }, rows))
        .err()
        .unwrap();
    assert!(error.to_string().contains("in its label column weight"), "{error}");
}

#[test]
fn a_checkpoint_of_other_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| std::fs::copy(tables().join(from), dir.path().join(to)).unwrap();
    copy("a.parquet", "a.parquet");
    let open = || {
        let rows = ParquetDataset::open(dir.path()).unwrap();
        StreamingShardLoader::new(rows, StreamingConfig::new(1, 0).unwrap()).unwrap()
    };
    let loader = open();
    loader.next().unwrap();
    let state = loader.get_checkpoint();
    open().restore_from_checkpoint(&state).unwrap();
    std::fs::rename(dir.path().join("a.parquet"), dir.path().join("other.parquet")).unwrap();
    let error = open().restore_from_checkpoint(&state).unwrap_err().to_string();
    assert!(error.contains("its data fingerprint is"), "{error}");
    // And a file that changes while it is used.
    let rows = ParquetDataset::open(dir.path()).unwrap();
    copy("d.parquet", "other.parquet");
    assert!(matches!(rows.get(0), Err(Error::Changed { .. })));
}

#[test]
fn damaged_files_are_refused_by_name_or_read_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("case.parquet");
    let (mut refused, mut read) = (0, 0);
    for name in ["a.parquet", "d.parquet"] {
        let good = std::fs::read(tables().join(name)).unwrap();
        for case in 0..1500_u64 {
            let mut bytes = good.clone();
            for flip in 0..=case % 3 {
                let at = mix(case * 4 + flip) as usize % bytes.len();
                bytes[at] = mix(case ^ flip << 32) as u8;
            }
            if case % 10 == 0 {
                bytes.truncate(mix(case) as usize % bytes.len());
            }
            std::fs::write(&path, &bytes).unwrap();
            let rows = ParquetDataset::builder(vec![path.clone()]).cache_bytes(4 << 20).build();
            let outcome = rows
                .and_then(|rows| (0..rows.len().min(300)).try_for_each(|index| rows.get(index).map(drop)));
            match outcome {
                Ok(()) => read += 1,
                Err(error) => {
                    assert!(error.to_string().contains("case.parquet"), "{name} {case}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 500 && read > 100, "{refused} refused, {read} read");
}
