//! How much memory it takes to stream one huge file. Alone in its file, so that nothing else is measured.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::Int32Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use shardfeed::{LMBatch, ShardConfig, StreamingParquetLoader};

const MIB: u64 = 1 << 20;
const TOKENS: u64 = 40_000_000;
const BUDGET: u64 = 32 * MIB;
/// For what is no data of ours: the allocator's slack, the stack of the reading thread, pages of the program.
const ALLOWANCE: u64 = 16 * MIB;
/// Large enough for the budget to hold only a few batches.
const BATCH_SIZE: usize = 256;
const SEQ_LEN: usize = 2048;

/// Names the part that a process is to do; the process that has none does the test.
const ROLE: &str = "SHARDFEED_MEMORY_TEST_ROLE";
const DIR: &str = "SHARDFEED_MEMORY_TEST_DIR";

#[test]
fn one_huge_file_streams_within_the_budget_and_is_held_whole_only_where_that_is_said() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role, Path::new(&std::env::var_os(DIR).expect("given with the role")));
    }
    for row_groups in [20, 1] {
        let dir = tempfile::tempdir().unwrap();
        in_new_process(&format!("write {row_groups}"), dir.path());
        let one_by_one = in_new_process("batches", dir.path());
        let whole = in_new_process("next_batches", dir.path());
        eprintln!(
            "{row_groups} row groups: batches() {} MiB, next_batches() {} MiB",
            one_by_one / MIB,
            whole / MIB
        );
        assert!(
            one_by_one < BUDGET + ALLOWANCE,
            "{row_groups} row groups: batches() took {one_by_one} bytes with a budget of {BUDGET}"
        );
        // So the measurement can fail: the file's tokens are more than twice the budget and the allowance.
        assert!(whole > 4 * TOKENS, "{row_groups} row groups: next_batches() took only {whole} bytes");
    }
}

/// Runs this test in a process of its own and returns how far its resident memory grew, in bytes.
fn in_new_process(role: &str, dir: &Path) -> u64 {
    let name = "one_huge_file_streams_within_the_budget_and_is_held_whole_only_where_that_is_said";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ROLE, role)
        .env(DIR, dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{role}: {said}{}", String::from_utf8_lossy(&output.stderr));
    let grown = std::fs::read_to_string(dir.join("grown")).unwrap();
    grown.parse().unwrap()
}

fn play(role: &str, dir: &Path) {
    let before = status_bytes("VmRSS");
    match role.split_once(' ') {
        Some(("write", row_groups)) => write(&dir.join("huge.parquet"), row_groups.parse().unwrap()),
        _ => read(dir, role == "batches"),
    }
    let grown = status_bytes("VmHWM") - before;
    std::fs::write(dir.join("grown"), grown.to_string()).unwrap();
}

fn read(dir: &Path, one_by_one: bool) {
    let mut loader = StreamingParquetLoader::new(dir, ShardConfig::single(), BATCH_SIZE, SEQ_LEN)
        .unwrap()
        .with_special_tokens(0, 1)
        .with_memory_budget(BUDGET);
    let mut rows = Rows::default();
    // The sequence that the next one must continue, or begin.
    let mut expected: Vec<u32> = Vec::new();
    let mut check = |batch: &LMBatch| {
        for index in 0..batch.batch_size {
            if expected.is_empty() {
                expected = rows.next().expect("no more rows than were written");
            }
            let rest = expected.split_off(expected.len().min(SEQ_LEN));
            let input = batch.get_input(index).unwrap();
            let (tokens, padding) = input.split_at(expected.len().min(input.len()));
            assert!(expected.starts_with(tokens) && expected.len() <= tokens.len() + 1);
            assert!(padding.iter().all(|&token| token == 0));
            expected = rest;
        }
    };
    if one_by_one {
        loader.batches().for_each(|batch| check(&batch.unwrap()));
    } else {
        loader.next_batches().unwrap().unwrap().iter().for_each(&mut check);
    }
    assert!(loader.is_epoch_exhausted() && expected.is_empty());
    assert_eq!((rows.next(), rows.tokens), (None, TOKENS));
}

/// Rows of 1 to 6,000 tokens of 2 to 50,001: all lengths that are cut, padded and neither.
#[derive(Default)]
struct Rows {
    tokens: u64,
    word: u64,
}

impl Iterator for Rows {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let mut word = || {
            self.word =
                self.word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.word >> 33
        };
        let len = (1 + word() % 6000).min(TOKENS - self.tokens);
        let row: Vec<u32> = (0..len).map(|_| 2 + (word() % 50_000) as u32).collect();
        self.tokens += len;
        (!row.is_empty()).then_some(row)
    }
}

/// Writes all rows in pieces, so that only one row group is in memory, compressed.
fn write(path: &Path, row_groups: u64) {
    let schema = "message schema { optional group input_ids (LIST) { repeated group list { optional int32 element; } } }";
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(MIB as usize)
        .build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut rows = Rows::default();
    for number in 1..=row_groups {
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        while rows.tokens < TOKENS * number / row_groups {
            let row = rows.next().unwrap();
            let values: Vec<i32> = row.into_iter().map(u32::cast_signed).collect();
            let definition = vec![3; values.len()];
            let mut repetition = vec![1; values.len()];
            repetition[0] = 0;
            column.typed::<Int32Type>().write_batch(&values, Some(&definition), Some(&repetition)).unwrap();
        }
        column.close().unwrap();
        group.close().unwrap();
    }
    let metadata = file.close().unwrap();
    assert_eq!((rows.tokens, metadata.num_row_groups() as u64), (TOKENS, row_groups));
}

/// A line of `/proc/self/status`, which is in KiB.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).expect("Linux has it");
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}
