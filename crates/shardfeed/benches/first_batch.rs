//! How long until the first batch, and until the first after a resume, of a few files and of very many?
//!
//! Opening grows with the files; from there on their number should make no difference, nor where the stream stands.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{Source, TokenLoader, TokenLoaderBuilder};

const SEQ_LEN: u32 = 512;
const GLOBAL_BATCH: u32 = 8;

fn first_batch(c: &mut Criterion) {
    // Run as a check that it still works, a few files will do.
    let is_check = std::env::args().any(|arg| arg == "--test");
    for files in [10, if is_check { 200 } else { 100_000 }] {
        let dir = tempfile::tempdir().unwrap();
        let first = dir.path().join("part-000000.parquet");
        write_rows(&first, &vec![Some((0..500).collect()); 8], &WriteOptions::default()).unwrap();
        let bytes = std::fs::read(&first).unwrap();
        for index in 1..files {
            std::fs::write(dir.path().join(format!("part-{index:06}.parquet")), &bytes).unwrap();
        }
        let source = Source::from(dir.path());
        let builder = || TokenLoader::builder(source.clone(), SEQ_LEN, GLOBAL_BATCH);
        // Scans, and keeps the manifest.
        let mut state = builder().build().unwrap().state().clone();
        let steps = builder().build().unwrap().steps_per_epoch();

        let mut group = c.benchmark_group(format!("{files}_files"));
        // Each first batch needs a loader of its own, and making that is not what is measured: few will do.
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(10)).measurement_time(Duration::from_millis(100));
        group.bench_function("open", |b| b.iter(|| black_box(builder().build().unwrap())));
        group.bench_function("first_batch", |b| b.iter_custom(|times| first_batches(times, builder)));
        for percent in [50, 90] {
            state.position = steps * percent / 100 * u64::from(GLOBAL_BATCH);
            group.bench_function(BenchmarkId::new("first_batch_resumed_at_percent", percent), |b| {
                b.iter_custom(|times| first_batches(times, || builder().resume_from(state.clone())));
            });
        }
    }
}

/// Opens a loader so many times, and sums up what its first batch takes.
fn first_batches(times: u64, builder: impl Fn() -> TokenLoaderBuilder) -> Duration {
    let mut took = Duration::ZERO;
    for _ in 0..times {
        let mut loader = builder().build().unwrap();
        let started = Instant::now();
        let batch = loader.next_batch().unwrap();
        took += started.elapsed();
        black_box(batch);
    }
    took
}

criterion_group!(benches, first_batch);
criterion_main!(benches);
