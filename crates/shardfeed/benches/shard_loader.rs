//! What does a sample cost that lies in memory, and what does it take to open a rank's view of a billion?

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shardfeed::{
    Dataset, PartitionStrategy, Result, StreamingConfig, StreamingShardLoader, Tensor, TensorDataset,
};

/// Samples that cost nothing, however many there are.
struct Indexes(usize);

impl Dataset for Indexes {
    type Sample = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<usize> {
        Ok(index)
    }

    fn label(&self, index: usize) -> Result<Option<u64>> {
        Ok(Some(index as u64 % 10))
    }
}

const SAMPLES: usize = 100_000;

fn next_sample(c: &mut Criterion) {
    let mut group = c.benchmark_group("an_epoch_of_100000_samples");
    group.throughput(Throughput::Elements(SAMPLES as u64));
    let features = Tensor::<f32>::from_vec(vec![0.5; SAMPLES * 16], &[SAMPLES, 16]).unwrap();
    let labels = Tensor::<i64>::from_vec(vec![1; SAMPLES], &[SAMPLES]).unwrap();
    let dataset = TensorDataset::new(features, labels);
    group.bench_function("without_a_loader", |b| {
        b.iter(|| (0..SAMPLES).for_each(|index| drop(black_box(dataset.get(index).unwrap()))));
    });
    let off = || StreamingConfig::new(1, 0).unwrap().with_prefetch_buffer_size(0);
    for (name, config) in [
        ("prefetch_off", off()),
        ("prefetch_off_shuffled", off().with_shuffle_seed(7)),
        ("prefetch_64", off().with_prefetch_buffer_size(64)),
    ] {
        let loader = StreamingShardLoader::new(dataset.clone(), config).unwrap();
        group.bench_function(name, |b| {
            b.iter(|| {
                while let Some(sample) = loader.next().unwrap() {
                    black_box(sample);
                }
                loader.reset();
            });
        });
    }
    group.finish();
}

fn open_a_billion(c: &mut Criterion) {
    let mut group = c.benchmark_group("opening_a_rank_of_a_billion_samples");
    for (name, strategy) in
        [("round_robin", PartitionStrategy::RoundRobin), ("contiguous", PartitionStrategy::Contiguous)]
    {
        let config = StreamingConfig::new(1000, 500).unwrap().with_partition_strategy(strategy);
        let config = config.with_shuffle_seed(7).with_prefetch_buffer_size(0);
        group.bench_function(name, |b| {
            b.iter(|| {
                let loader = StreamingShardLoader::new(Indexes(1_000_000_000), config.clone()).unwrap();
                black_box(loader.next().unwrap());
                loader
            });
        });
    }
    group.finish();
}

/// Strategies that look at every sample.
fn open_ten_million(c: &mut Criterion) {
    let mut group = c.benchmark_group("opening_a_rank_of_ten_million_samples");
    group.sample_size(10);
    for (name, strategy) in [
        ("hashed", PartitionStrategy::HashBased { num_partitions: 64, hash_seed: 7 }),
        ("stratified", PartitionStrategy::Stratified { num_classes: 10 }),
    ] {
        for seed in [None, Some(7)] {
            let config = StreamingConfig::new(8, 3).unwrap().with_partition_strategy(strategy.clone());
            let config = config.with_prefetch_buffer_size(0);
            let config = seed.into_iter().fold(config, StreamingConfig::with_shuffle_seed);
            let name = if seed.is_some() { format!("{name}_shuffled") } else { name.to_owned() };
            group.bench_function(name, |b| {
                b.iter(|| StreamingShardLoader::new(Indexes(10_000_000), config.clone()).unwrap().len());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, next_sample, open_a_billion, open_ten_million);
criterion_main!(benches);
