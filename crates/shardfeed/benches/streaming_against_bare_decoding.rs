//! How many tokens per second reach batches, beside what the `parquet` crate decodes of the same column?

use std::hint::black_box;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::Int32Type;
use parquet::file::reader::{FileReader, SerializedFileReader};
use shardfeed::TokenLoader;
use shardfeed::sample::{SampleData, WriteOptions, write_sample};

fn streaming(c: &mut Criterion) {
    let is_check = std::env::args().any(|arg| arg == "--test");
    let dir = tempfile::tempdir().unwrap();
    let sample = SampleData {
        files: if is_check { 2 } else { 16 },
        rows_per_file: 2000,
        row_tokens_max: if is_check { 100 } else { 2000 },
        options: WriteOptions { rows_per_group: 1000, ..WriteOptions::default() },
        ..SampleData::default()
    };
    write_sample(dir.path(), &sample).unwrap();
    let tokens = TokenLoader::builder(dir.path(), 2048, 8).build().unwrap().manifest().tokens();
    let mut group = c.benchmark_group("an_epoch");
    group.sample_size(10).throughput(Throughput::Elements(tokens));
    group.bench_function("bare_decoding_one_thread", |b| b.iter(|| decode_all(dir.path())));
    for threads in [1, 2] {
        group.bench_function(BenchmarkId::new("token_loader_8x2048_int64", threads), |b| {
            b.iter(|| {
                let mut loader = TokenLoader::builder(dir.path(), 2048, 8).threads(threads).build().unwrap();
                while let Some(batch) = loader.next_batch().unwrap() {
                    black_box(batch);
                }
            });
        });
    }
}

/// Every value and level of every file, by the crate's own column reader.
fn decode_all(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "parquet") {
            continue;
        }
        let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group).unwrap();
            let mut column = get_typed_column_reader::<Int32Type>(group.get_column_reader(0).unwrap());
            let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                values.clear();
                definition.clear();
                repetition.clear();
                let (rows, _, _) = column
                    .read_records(64, Some(&mut definition), Some(&mut repetition), &mut values)
                    .unwrap();
                if rows == 0 {
                    break;
                }
                black_box(&values);
            }
        }
    }
}

criterion_group!(benches, streaming);
criterion_main!(benches);
