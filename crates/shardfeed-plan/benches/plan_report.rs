//! How long does it take to tell what 10,000 ranks read of a million row groups?

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use shardfeed_plan::{
    DataFile, EpochPlan, IdType, Manifest, Packing, RowGroup, StreamSettings, Tail, TokenColumn, mix,
};

const RANKS: u32 = 10_000;

/// A million row groups of 100,000 to 900,000 tokens in 10,000 files: half a trillion tokens in all.
fn manifest() -> Manifest {
    let column =
        TokenColumn { name: "input_ids".into(), ids: IdType::I32, present_level: 3, nullable_items: true };
    let group = |number: u64| {
        let tokens = 100_000 + mix(number) % 800_000;
        let chunk_len = tokens * 2;
        RowGroup {
            file: 0,
            number: 0,
            rows: 100,
            tokens,
            documents: 100,
            chunk_start: 4,
            chunk_len,
            codec: 1,
        }
    };
    let file = |number: u64| {
        let (name, column) = (format!("part-{number:05}.parquet"), column.clone());
        let file = DataFile { name, size: 1 << 30, modified_ns: 0, column, pieces: vec![] };
        (file, (number * 100..(number + 1) * 100).map(group).collect())
    };
    Manifest::new((0..10_000).map(file).collect()).expect("a manifest of made-up files")
}

fn reports(c: &mut Criterion) {
    let manifest = manifest();
    let mut group = c.benchmark_group("report_on_a_million_row_groups");
    group.sample_size(10);
    let owned = StreamSettings::auto(2048, Packing::Concat, None, 7, RANKS);
    let shared = StreamSettings { lanes: 1000, ..owned.clone() };
    for (name, settings) in [("lanes_of_one_rank_each", owned), ("lanes_that_ranks_share", shared)] {
        group.bench_function(format!("plan_an_epoch/{name}"), |b| {
            b.iter(|| EpochPlan::new(black_box(&manifest), &settings, 1, RANKS, Tail::Pad).map(drop));
        });
        let plan = EpochPlan::new(&manifest, &settings, 1, RANKS, Tail::Pad).expect("an epoch");
        group.bench_function(format!("world_size_of_10_000/{name}"), |b| {
            b.iter(|| plan.report(black_box(RANKS)));
        });
    }
}

criterion_group!(benches, reports);
criterion_main!(benches);
