//! How long does it take to open a data set of 100,000 files that was scanned before, changes checked?

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{CachePolicy, ScanOptions, Source, TokenLoader, scan};

fn opening(c: &mut Criterion) {
    // Run as a check that it still works, a few files will do.
    let files = if std::env::args().any(|arg| arg == "--test") { 200 } else { 100_000 };
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("part-000000.parquet");
    write_rows(&first, &vec![Some((0..500).collect()); 8], &WriteOptions::default()).unwrap();
    let bytes = std::fs::read(&first).unwrap();
    for index in 1..files {
        std::fs::write(dir.path().join(format!("part-{index:06}.parquet")), &bytes).unwrap();
    }
    let source = Source::from(dir.path());
    let mut group = c.benchmark_group(format!("{files}_files"));
    group.sample_size(10);
    group.bench_function("scan_without_a_cache", |b| {
        let options = ScanOptions { cache: CachePolicy::Off, ..ScanOptions::default() };
        b.iter(|| black_box(scan(&source, &options).unwrap()));
    });
    scan(&source, &ScanOptions::default()).unwrap();
    group.bench_function("scan_with_a_cache", |b| {
        b.iter(|| {
            let (data, report) = scan(&source, &ScanOptions::default()).unwrap();
            assert_eq!(report.files_cached, files);
            black_box(data)
        });
    });
    group.bench_function("build_a_loader_with_a_cache", |b| {
        b.iter(|| black_box(TokenLoader::builder(source.clone(), 512, 64).build().unwrap()));
    });
}

criterion_group!(benches, opening);
criterion_main!(benches);
