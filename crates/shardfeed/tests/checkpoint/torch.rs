//! Hundreds of checkpoints that torch writes, and what its own reader makes of them: `testdata/checkpoints/matrix.py`.

use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Map, Value};
use shardfeed::checkpoint::{Checkpoint, OpenOptions, ReadPlan};

use crate::support::{sha256, ways};

fn matrix() -> PathBuf {
    let path = std::env::var_os("SHARDFEED_MATRIX");
    path.expect("SHARDFEED_MATRIX says where testdata/checkpoints/matrix.py has written; `cargo xtask test` does both").into()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn entries<'a>(case: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    case.get(field).and_then(Value::as_object).map(Map::iter).into_iter().flatten()
}

#[test]
#[ignore = "needs what torch writes: `cargo xtask test` makes it and runs this"]
fn everything_equals_what_torchs_own_reader_gives() {
    let root = matrix();
    let cases: Value = serde_json::from_slice(&std::fs::read(root.join("cases.json")).unwrap()).unwrap();
    let (mut tensors, mut objects, mut slices) = (0, 0, 0);
    for case in cases["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let options = OpenOptions {
            rank: case.get("rank").map(|rank| rank.as_u64().unwrap() as u32),
            ..OpenOptions::default()
        };
        let path = root.join(case["path"].as_str().unwrap());
        let unsupported: Vec<&String> = entries(case, "unsupported").map(|(name, _)| name).collect();
        let opened = Checkpoint::open_with(&path, &options);
        let mut checkpoint = match opened {
            Ok(checkpoint) => checkpoint,
            // Types that have no meaning without torch are refused by name.
            Err(error) if unsupported.iter().any(|name| error.to_string().contains(name.as_str())) => {
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        for (key, entry) in entries(case, "tensors") {
            let stored = checkpoint.tensor(key).unwrap_or_else(|| panic!("{name}: {key} is not there"));
            assert_eq!(format!("torch.{}", stored.dtype), entry["dtype"].as_str().unwrap(), "{name}: {key}");
            assert_eq!(stored.shape, numbers(&entry["shape"]), "{name}: {key}");
        }
        for (key, entry) in entries(case, "objects") {
            let bytes = checkpoint.read_object(key).unwrap_or_else(|error| panic!("{name}: {key}: {error}"));
            assert_eq!(sha256(&bytes), entry["sha256"].as_str().unwrap(), "{name}: {key}");
            objects += 1;
        }
        for options in ways() {
            let way = format!("{name}, {options:?}");
            checkpoint = checkpoint.with_options(options);
            let (read, sliced) = compare(&checkpoint, case, &way);
            tensors += read;
            slices += sliced;
        }
    }
    println!(
        "{tensors} tensors, {slices} slices and {objects} objects are what torch {} gives",
        cases["torch"]
    );
    assert!(tensors > 10_000 && slices > 50_000 && objects > 200, "{tensors} {slices} {objects}");
}

/// A tensor, the part of it that is wanted, and the answer.
type Wish<'a> = (&'a String, Option<Vec<Range<u64>>>, &'a Value);

/// Everything that a case has an answer for, with one plan for all tensors and one for all slices.
fn compare(checkpoint: &Checkpoint, case: &Value, way: &str) -> (usize, usize) {
    let whole: Vec<Wish<'_>> = entries(case, "tensors").map(|(name, entry)| (name, None, entry)).collect();
    let Value::Array(listed) = &case["slices"] else { panic!("{way}: slices are a list") };
    let names: Vec<String> =
        listed.iter().map(|slice| slice["tensor"].as_str().unwrap().to_owned()).collect();
    let parts = listed.iter().zip(&names).map(|(slice, name)| {
        let (start, size) = (numbers(&slice["start"]), numbers(&slice["size"]));
        let ranges = start.iter().zip(&size).map(|(start, size)| *start..start + size).collect();
        (name, Some(ranges), slice)
    });
    let parts: Vec<_> = parts.collect();
    for wanted in [&whole, &parts] {
        let bytes = |(name, ranges, _): &Wish<'_>| {
            let tensor = checkpoint.tensor(name).unwrap();
            let volume = |ranges: &Vec<Range<u64>>| {
                ranges.iter().map(|range| range.end - range.start).product::<u64>()
            };
            ranges.as_ref().map_or_else(|| tensor.bytes(), |ranges| volume(ranges) * tensor.dtype.bytes())
        };
        // Nothing that was there before may stay.
        let mut memory: Vec<Vec<u8>> = wanted.iter().map(|wish| vec![0xa5; bytes(wish) as usize]).collect();
        let mut plan = ReadPlan::new();
        for ((name, ranges, _), memory) in wanted.iter().zip(&mut memory) {
            match ranges {
                Some(ranges) => plan.read_slice(name, ranges, memory),
                None => plan.read(name, memory),
            };
        }
        checkpoint.read_into(plan).unwrap_or_else(|error| panic!("{way}: {error}"));
        for ((name, ranges, expected), memory) in wanted.iter().zip(&memory) {
            assert_eq!(sha256(memory), expected["sha256"].as_str().unwrap(), "{way}: {name} {ranges:?}");
        }
    }
    (whole.len(), parts.len())
}
