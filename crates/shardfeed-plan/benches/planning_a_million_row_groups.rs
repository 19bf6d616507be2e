//! How long does an epoch's plan take over a million row groups, and one question to it?

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use shardfeed_plan::{EpochOrder, Packing, Skips, StreamSettings, Tail, mix};

fn planning(c: &mut Criterion) {
    // Row groups of 100,000 to 900,000 tokens: half a trillion in all.
    let sizes: Vec<u64> = (0..1_000_000).map(|group| 100_000 + mix(group) % 800_000).collect();
    let settings = StreamSettings::auto(2048, Packing::Concat, None, 7, 256);
    let mut group = c.benchmark_group("a_million_row_groups");
    group.sample_size(10);
    group.bench_function("plan_an_epoch", |b| {
        b.iter(|| black_box(EpochOrder::new(black_box(&sizes), &settings, 1)));
    });
    let order = EpochOrder::new(&sizes, &settings, 0);
    let middle = order.sequences() / 2;
    group.bench_function("step_of_256_sequences", |b| {
        b.iter(|| black_box(order.step_at(black_box(middle), &Skips::default(), 256, Tail::Pad)));
    });
    group.bench_function("where_is_a_position", |b| {
        b.iter(|| {
            let sequence = order.sequence(black_box(middle));
            black_box(order.spans(order.units(sequence)).count())
        });
    });
}

criterion_group!(benches, planning);
criterion_main!(benches);
