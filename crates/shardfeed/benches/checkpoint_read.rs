//! How fast does a checkpoint fill memory beside plain `pread` of as many bytes, what does a third of it cost, and what would safe slices
//! instead of windows into the destination cost?

#[path = "../tests/checkpoint/writer.rs"]
#[allow(dead_code)]
mod writer;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shardfeed::checkpoint::{Checkpoint, Dtype, ReadOptions, ReadPlan, ReadStats};
use writer::{Item, Writer};

const SIDE: u64 = 4096;
const TENSORS: usize = 4;
const BYTES: usize = (SIDE * SIDE * 4) as usize;

/// Four square tensors of 64 MiB, each in eight chunks of columns.
fn make(directory: &Path, chunks: u64) -> Checkpoint {
    let mut writer = Writer::new();
    let width = SIDE / chunks;
    let item =
        Item::row_major(Dtype::Float32, &[SIDE, width], &vec![7; (SIDE * width * 4) as usize]).without_crc();
    for tensor in 0..TENSORS {
        writer.tensor(&format!("t{tensor}"), Dtype::Float32, &[SIDE, SIDE]);
        for chunk in 0..chunks {
            writer.chunk(&format!("__{chunk}_0.distcp"), &[0, chunk * width], &item);
        }
    }
    writer.write(directory);
    Checkpoint::open(directory).unwrap()
}

fn read(checkpoint: &Checkpoint, part: &[Range<u64>], memory: &mut [Vec<u8>]) -> ReadStats {
    let mut plan = ReadPlan::new();
    for (tensor, memory) in memory.iter_mut().enumerate() {
        let len = part.iter().map(|range| range.end - range.start).product::<u64>() as usize * 4;
        plan.read_slice(&format!("t{tensor}"), part, &mut memory[..len]);
    }
    checkpoint.read_into(plan).unwrap()
}

fn whole_beside_pread(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let mut checkpoint = make(dir.path(), 1);
    let mut memory = vec![vec![1; BYTES]; TENSORS];
    let mut group = c.benchmark_group("checkpoint, warm");
    group.sample_size(10).throughput(Throughput::Bytes((BYTES * TENSORS) as u64));
    for threads in [1, 2] {
        let path = checkpoint.files().next().unwrap().0.to_owned();
        group.bench_function(format!("pread, {threads} threads"), |b| {
            b.iter(|| {
                let each = memory.chunks_mut(TENSORS.div_ceil(threads)).enumerate();
                std::thread::scope(|scope| {
                    for (number, memory) in each {
                        let path = &path;
                        scope.spawn(move || {
                            let file = File::open(path).unwrap();
                            for (index, memory) in memory.iter_mut().enumerate() {
                                let at = (number * TENSORS.div_ceil(threads) + index) * BYTES;
                                file.read_exact_at(memory, at as u64).unwrap();
                            }
                        });
                    }
                });
            });
        });
        checkpoint =
            checkpoint.with_options(ReadOptions { num_workers: Some(threads), ..ReadOptions::default() });
        group.bench_function(format!("shardfeed, {threads} threads"), |b| {
            b.iter(|| read(&checkpoint, &[0..SIDE, 0..SIDE], &mut memory));
        });
    }
    for (name, part) in [("rows", [0..SIDE / 3, 0..SIDE]), ("columns", [0..SIDE, 0..SIDE / 3])] {
        let stats = read(&checkpoint, &part, &mut memory);
        let more = stats.bytes_read as f64 / stats.bytes as f64;
        println!("a third of the {name}: {more:.3} bytes read for each byte wanted, {} reads", stats.reads);
        group.bench_function(format!("a third of the {name}"), |b| {
            b.iter(|| read(&checkpoint, &part, &mut memory));
        });
    }
}

/// Chunks that are one column wide lie in the destination element by element.
fn windows_or_slices(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = make(dir.path(), 1024);
    let mut memory = vec![vec![1; BYTES]; TENSORS];
    let mut group = c.benchmark_group("checkpoint, chunks of four columns");
    group.sample_size(10).throughput(Throughput::Bytes((BYTES * TENSORS) as u64));
    group.bench_function("windows: the whole read", |b| {
        b.iter(|| read(&checkpoint, &[0..SIDE, 0..SIDE], &mut memory));
    });
    group.bench_function("slices: only cutting the destinations into rows of chunks", |b| {
        b.iter(|| {
            let cut = memory.iter_mut().map(|memory| memory.chunks_exact_mut(16).collect::<Vec<&mut [u8]>>());
            std::hint::black_box(cut.collect::<Vec<_>>());
        });
    });
}

criterion_group!(benches, whole_beside_pread, windows_or_slices);
criterion_main!(benches);
