//! Once a stream is under way, its memory is used again: nothing is allocated per batch.
//!
//! One test in a program of its own: it counts what every thread allocates.

use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{BatchArrays, TokenLoader};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const SEQ_LEN: u32 = 256;
const GLOBAL_BATCH: u32 = 8;
const BATCHES: u64 = 2000;

#[test]
fn nothing_is_allocated_per_batch() {
    let dir = tempfile::tempdir().unwrap();
    for dictionary in [true, false] {
        let rows = |file: u32| {
            (0..8000).map(move |row| Some((0..300).map(|at| (file + row * at) % 30_000).collect()))
        };
        for file in 0..4 {
            let options = WriteOptions { rows_per_group: 4000, dictionary, ..WriteOptions::default() };
            let rows: Vec<_> = rows(file).collect();
            write_rows(&dir.path().join(format!("{file}.parquet")), &rows, &options).unwrap();
        }
        for threads in [1, 2] {
            let arrays = BatchArrays { cu_seqlens: true, ..BatchArrays::default() };
            let builder = TokenLoader::builder(dir.path(), SEQ_LEN, GLOBAL_BATCH).lanes(8).threads(threads);
            let mut loader = builder.arrays(arrays).build().unwrap();
            // The first epoch makes what the others use again.
            loader.batches().for_each(|batch| drop(batch.unwrap()));
            for _ in 0..BATCHES / 2 {
                loader.next_batch().unwrap().expect("the epoch is longer");
            }
            let profiler = dhat::Profiler::builder().testing().build();
            let mut bytes_delivered = 0;
            for _ in 0..BATCHES {
                let batch = loader.next_batch().unwrap().expect("the epoch is longer");
                bytes_delivered += 4 * 8 * batch.input_ids().len() as u64;
            }
            let stats = dhat::HeapStats::get();
            drop(profiler);
            let (blocks, bytes) = (stats.total_blocks, stats.total_bytes);
            let what = format!(
                "{blocks} allocations, {bytes} bytes, for {BATCHES} batches of {bytes_delivered} bytes"
            );
            eprintln!("{what}");
            // Row groups that are opened, and pages, take a little each; lists of an engine that just started still grow.
            assert!(blocks < BATCHES / 10, "{what}");
            // Threads that are not equally fast hold a page or two more, of a megabyte each. One array for each batch would be a quarter.
            assert!(bytes < bytes_delivered / 10, "{what}");
        }
    }
}
