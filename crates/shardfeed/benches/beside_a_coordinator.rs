//! What does it cost a token loader to tell a coordinator on etcd how it does, and to have one that is gone?
//!
//! Ways take turns, so that what else the machine does falls on all of them; the best epoch of each counts. Beside that, the
//! processor time of the threads that do the telling, which no noise hides.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed::sample::{SampleData, WriteOptions, write_sample};
use shardfeed::{StreamCoordinator, StreamingConfig, TokenLoader};

#[allow(dead_code)]
#[path = "../tests/common/etcd.rs"]
mod etcd;

/// Five times as often as by default: the cost is the more visible.
const LEASE: Duration = Duration::from_secs(3);

fn main() {
    let is_check = std::env::args().any(|argument| argument == "--test");
    let dir = tempfile::tempdir().unwrap();
    let sample = SampleData {
        files: if is_check { 2 } else { 16 },
        rows_per_file: 1000,
        row_tokens_max: if is_check { 100 } else { 4000 },
        options: WriteOptions { rows_per_group: 500, ..WriteOptions::default() },
        ..SampleData::default()
    };
    write_sample(dir.path(), &sample).unwrap();
    let rounds = if is_check { 1 } else { 25 };

    let there = etcd::Etcd::start(1);
    let mut gone = etcd::Etcd::start(1);
    let config = || StreamingConfig::new(1, 0).unwrap().with_lease(LEASE);
    let connect =
        |etcd: &etcd::Etcd| Arc::new(StreamCoordinator::connect(&etcd.url("bench"), config()).unwrap());
    let coordinators = [None, Some(connect(&there)), Some(connect(&gone))];
    gone.kill(0);

    let mut loaders: Vec<TokenLoader> =
        coordinators.into_iter().map(|coordinator| open(dir.path(), coordinator)).collect();
    let mut best = [f64::INFINITY; 3];
    let since = Instant::now();
    let told = cpu_of(TELLING);
    for _ in 0..rounds {
        for (loader, best) in loaders.iter_mut().zip(&mut best) {
            let since = Instant::now();
            while loader.next_batch().unwrap().is_some() {}
            *best = best.min(since.elapsed().as_secs_f64());
        }
    }
    let told = cpu_of(TELLING).saturating_sub(told).as_secs_f64() / since.elapsed().as_secs_f64();
    let tokens = loaders[0].stats().tokens as f64 / f64::from(rounds) / 1e6;
    for (name, best_of) in ["no coordinator", "etcd there", "etcd gone"].into_iter().zip(best) {
        let than_alone = 100.0 * (best_of / best[0] - 1.0);
        println!(
            "{name:15} best of {rounds} epochs {best_of:.4} s, {:.0} M tokens/s, {than_alone:+.2} % of time",
            tokens / best_of
        );
    }
    println!("threads that tell two coordinators, one of which is gone: {:.3} % of one core", 100.0 * told);
}

fn open(dir: &Path, coordinator: Option<Arc<StreamCoordinator>>) -> TokenLoader {
    let builder = TokenLoader::builder(dir, 2048, 8).threads(1);
    match coordinator {
        Some(coordinator) => builder.coordinator(coordinator),
        None => builder,
    }
    .build()
    .unwrap()
}

/// Names, as the system cuts them.
const TELLING: [&str; 2] = ["shardfeed-worke", "shardfeed-etcd"];

/// Processor time of threads of these names.
fn cpu_of(names: [&str; 2]) -> Duration {
    let mut all = Duration::ZERO;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if names.contains(&name.trim()) {
            let times = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let on_cpu = times.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            all += Duration::from_nanos(on_cpu);
        }
    }
    all
}
