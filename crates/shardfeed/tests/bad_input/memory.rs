use std::path::Path;

use parquet::basic::{Compression, GzipLevel};
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{CachePolicy, Error, Packing, Result, ShardConfig, StreamingParquetLoader, TokenLoader};

use crate::child::{Child, prepared};
use crate::common::Row;
use crate::world::plain;

const MIB: u64 = 1 << 20;
/// The allocator's slack, stacks of threads, pages of the program.
const ALLOWANCE: u64 = 16 * MIB;

/// Runs one of our tests in two children that stream `data` in `dir` within a budget, and checks their memory.
fn stream_in_children(test: &str, dir: &Path) {
    for before in ["export READER=stream", "export READER=files"] {
        Child { test, before, own_mounts: false }.run(dir);
    }
}

/// In a child: streams within the least budget there may be. Refusing the file is as good as staying within it.
fn stream_within_budget(dir: &Path) -> Result<()> {
    let before = status_bytes("VmRSS");
    let (budget, result) = match std::env::var("READER").as_deref() {
        Ok("stream") => {
            let build = |budget| {
                let builder = TokenLoader::builder(dir, 1024, 4).shuffle(false).threads(1);
                builder.cache(CachePolicy::Off).memory_budget(budget).build()
            };
            let budget = needed(build(1).map(drop).unwrap_err());
            let result = build(budget).and_then(|mut loader| loader.batches().try_for_each(|b| b.map(drop)));
            (budget, result)
        }
        _ => {
            let loader = |budget| {
                let loader = StreamingParquetLoader::new(dir, ShardConfig::single(), 4, 1024);
                loader.unwrap().with_memory_budget(budget)
            };
            let budget = needed(loader(1).batches().next().unwrap().map(drop).unwrap_err());
            let result = loader(budget).batches().try_for_each(|batch| batch.map(drop));
            (budget, result)
        }
    };
    let grown = status_bytes("VmHWM") - before;
    assert!(
        grown < budget + ALLOWANCE,
        "took {} MiB with a budget of {} MiB, and then: {result:?}",
        grown / MIB,
        budget / MIB
    );
    result
}

fn needed(error: Error) -> u64 {
    match error {
        Error::Budget { needed, .. } => needed,
        other => panic!("{other}"),
    }
}

/// A line of `/proc/self/status`, which is in KiB.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).expect("Linux has it");
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// One file of one page, of `mib` MiB once it is decompressed.
fn write_one_page(dir: &Path, mib: u64, compression: Compression) {
    let rows: Vec<Row> = vec![Some(vec![5; 1 << 16]); (mib * 4) as usize];
    let options = WriteOptions { compression, rows_per_group: usize::MAX, page_bytes: 1 << 30, ..plain() };
    write_rows(&dir.join("a.parquet"), &rows, &options).unwrap();
}

/// Makes the first page's header claim another size once decompressed, written in as many bytes: 1 to 127 MiB.
fn claim(dir: &Path, mib: u32) {
    let path = dir.join("a.parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    // After the magic: field 1, the page's type, and field 2, its size; numbers of 7 bits a byte, doubled.
    assert_eq!((bytes[4], bytes[6], bytes[5]), (0x15, 0x15, 0), "the header of a data page");
    let size = &mut bytes[7..11];
    assert!(size[..3].iter().all(|byte| byte & 0x80 != 0) && size[3] & 0x80 == 0, "four bytes");
    let doubled = mib << 21;
    for (index, byte) in size.iter_mut().enumerate() {
        *byte = (doubled >> (7 * index) & 0x7f) as u8 | if index < 3 { 0x80 } else { 0 };
    }
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_page_larger_than_the_budget_is_refused_or_read_within_it() {
    if let Some(dir) = prepared() {
        if let Err(error) = stream_within_budget(&dir) {
            assert!(matches!(error, Error::Budget { .. }), "{error}");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write_one_page(dir.path(), 64, Compression::UNCOMPRESSED);
    stream_in_children("memory::a_page_larger_than_the_budget_is_refused_or_read_within_it", dir.path());
}

#[test]
fn a_file_without_statistics_is_refused_for_its_pages_before_they_are_read() {
    if let Some(dir) = prepared() {
        let error = stream_within_budget(&dir).unwrap_err();
        assert!(matches!(error, Error::Budget { .. }), "{error}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = vec![Some(vec![5; 1 << 16]); 256];
    let options = WriteOptions {
        compression: Compression::UNCOMPRESSED,
        rows_per_group: usize::MAX,
        page_bytes: 1 << 30,
        statistics: false,
        ..plain()
    };
    write_rows(&dir.path().join("a.parquet"), &rows, &options).unwrap();
    let test = "memory::a_file_without_statistics_is_refused_for_its_pages_before_they_are_read";
    Child { test, before: "export READER=files", own_mounts: false }.run(dir.path());
}

#[test]
fn a_page_that_claims_to_be_huge_takes_no_more_memory_than_the_budget() {
    if let Some(dir) = prepared() {
        if let Err(error) = stream_within_budget(&dir) {
            assert!(error.to_string().contains("a.parquet"), "{error}");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write_one_page(dir.path(), 1, Compression::SNAPPY);
    assert!(std::fs::metadata(dir.path().join("a.parquet")).unwrap().len() < 100_000);
    claim(dir.path(), 127);
    let test = "memory::a_page_that_claims_to_be_huge_takes_no_more_memory_than_the_budget";
    stream_in_children(test, dir.path());
}

#[test]
fn a_page_that_is_more_than_it_claims_is_refused_at_its_claim() {
    if let Some(dir) = prepared() {
        let error = stream_within_budget(&dir).unwrap_err();
        assert!(error.to_string().contains("a.parquet"), "{error}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    write_one_page(dir.path(), 64, Compression::GZIP(GzipLevel::default()));
    assert!(std::fs::metadata(dir.path().join("a.parquet")).unwrap().len() < MIB);
    claim(dir.path(), 1);
    let test = "memory::a_page_that_is_more_than_it_claims_is_refused_at_its_claim";
    stream_in_children(test, dir.path());
}

/// Lanes, windows, sequence lengths: each with the least budget there may be, over short rows and longer ones.
const SHUFFLED: [(&str, Packing, u32, u32, u32); 5] = [
    ("long", Packing::Concat, 4, 8192, 256),
    ("long", Packing::Concat, 8, 4096, 256),
    ("short", Packing::Concat, 4, 2048, 256),
    ("short", Packing::Pad, 4, 300_000, 1),
    ("short", Packing::Concat, 64, 64, 256),
];

#[test]
fn shuffled_streams_of_short_and_long_rows_stay_within_their_budget() {
    let test = "memory::shuffled_streams_of_short_and_long_rows_stay_within_their_budget";
    if let Some(dir) = prepared() {
        let case: usize = std::env::var("CASE").unwrap().parse().unwrap();
        let (rows, packing, lanes, window, seq_len) = SHUFFLED[case];
        let build = |budget| {
            TokenLoader::builder(dir.join(rows), seq_len, 4)
                .packing(packing)
                .lanes(lanes)
                .window(window)
                .threads(2)
                .memory_budget(budget)
                .build()
        };
        let budget = needed(build(1).map(drop).unwrap_err());
        let before = status_bytes("VmRSS");
        let mut loader = build(budget).unwrap();
        loader.batches().try_for_each(|batch| batch.map(drop)).unwrap();
        let grown = status_bytes("VmHWM").saturating_sub(before);
        assert!(grown < budget + ALLOWANCE, "case {case}: took {} MiB of {} MiB", grown / MIB, budget / MIB);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, rows, tokens) in [("short", 2_200_000, 3), ("long", 52_000, 512)] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        let rows: Vec<Row> = vec![Some(vec![7; tokens]); rows];
        let options = WriteOptions { rows_per_group: rows.len() / 8, ..plain() };
        write_rows(&dir.path().join(name).join("a.parquet"), &rows, &options).unwrap();
    }
    for case in 0..SHUFFLED.len() {
        let before = format!("export CASE={case}");
        Child { test, before: &before, own_mounts: false }.run(dir.path());
    }
}

/// Row groups, lanes, window, each with the least budget there may be and with three times as much.
const EPOCHS: [(&str, u32, u32); 4] =
    [("tiny", 1, 512), ("huge", 1, 512), ("tiny", 256, 16), ("huge", 256, 16)];
/// Tokens of each data set.
const EPOCH_TOKENS: u64 = 32_000_000;

#[test]
fn row_groups_far_smaller_and_far_larger_than_the_budget_stay_within_it_over_epochs() {
    let test = "memory::row_groups_far_smaller_and_far_larger_than_the_budget_stay_within_it_over_epochs";
    if let Some(dir) = prepared() {
        let case: usize = std::env::var("CASE").unwrap().parse().unwrap();
        let (row_groups, lanes, window) = EPOCHS[case / 2];
        let build = |budget| {
            let builder = TokenLoader::builder(dir.join(row_groups), 256, 8).threads(2);
            builder.lanes(lanes).window(window).memory_budget(budget).build()
        };
        let budget = needed(build(1).map(drop).unwrap_err()) * if case.is_multiple_of(2) { 1 } else { 3 };
        // So that the measurement can fail: what is read is more.
        assert!(4 * EPOCH_TOKENS > budget + ALLOWANCE, "{budget}");
        let before = status_bytes("VmRSS");
        let mut loader = build(budget).unwrap();
        for _ in 0..3 {
            let tokens: u64 = loader.batches().map(|batch| batch.unwrap().tokens).sum();
            assert_eq!(tokens, EPOCH_TOKENS);
        }
        let grown = status_bytes("VmHWM").saturating_sub(before);
        assert!(grown < budget + ALLOWANCE, "case {case}: took {} MiB of {} MiB", grown / MIB, budget / MIB);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = vec![Some((0..500).collect()); EPOCH_TOKENS as usize / 500];
    for (name, rows_per_group) in [("tiny", 10), ("huge", rows.len())] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        let options = WriteOptions { rows_per_group, ..plain() };
        write_rows(&dir.path().join(name).join("a.parquet"), &rows, &options).unwrap();
    }
    for case in 0..2 * EPOCHS.len() {
        let before = format!("export CASE={case}");
        Child { test, before: &before, own_mounts: false }.run(dir.path());
    }
}
