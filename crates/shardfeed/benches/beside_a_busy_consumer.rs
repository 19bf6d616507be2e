//! What does a loader cost a consumer that is busy itself, and what does it cost while nobody asks it for batches?

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use shardfeed::sample::{SampleData, WriteOptions, write_sample};
use shardfeed::{Batch, Ids, TokenLoader, mix};

/// What a consumer does with one batch: each of its tokens so many times, on each of its threads.
const ROUNDS: u64 = 64;

fn beside(c: &mut Criterion) {
    let is_check = std::env::args().any(|arg| arg == "--test");
    let dir = tempfile::tempdir().unwrap();
    let sample = SampleData {
        files: if is_check { 2 } else { 16 },
        rows_per_file: 1000,
        row_tokens_max: if is_check { 100 } else { 2000 },
        options: WriteOptions { rows_per_group: 500, ..WriteOptions::default() },
        ..SampleData::default()
    };
    write_sample(dir.path(), &sample).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = c.benchmark_group("a_batch");
    group.sample_size(20);
    for consumer_threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        let consumer = Consumer::start(consumer_threads);
        // The same work on a batch that is there already.
        let batch = Arc::new(open(dir.path()).next_batch().unwrap().unwrap());
        group.bench_function(BenchmarkId::new("consumer_alone", consumer_threads), |b| {
            b.iter(|| consumer.consume(&batch));
        });
        let mut loader = open(dir.path());
        let (mut batches, before) = (0_u32, loader_threads());
        group.bench_function(BenchmarkId::new("consumer_and_loader", consumer_threads), |b| {
            b.iter(|| {
                let batch = loader.next_batch().unwrap().or_else(|| loader.next_batch().unwrap());
                consumer.consume(&Arc::new(batch.expect("the next epoch begins")));
                batches += 1;
            });
        });
        if let (Some(before), Some(after)) = (before, loader_threads()) {
            let each = after.cpu.saturating_sub(before.cpu) / batches.max(1);
            println!("the loader's own threads: {each:?} of processor time a batch");
        }
    }
    group.finish();
    show_idle_cost(dir.path(), if is_check { Duration::from_millis(10) } else { Duration::from_secs(1) });
}

fn open(dir: &Path) -> TokenLoader {
    TokenLoader::builder(dir, 2048, 8).threads(1).build().unwrap()
}

/// Threads that do the same amount of work for every batch, and stay: a trainer does not start new ones at each step.
struct Consumer {
    helpers: Vec<Sender<Arc<Batch>>>,
    done: Receiver<()>,
}

impl Consumer {
    /// The one who asks is the first of them.
    fn start(threads: usize) -> Self {
        let (is_done, done) = channel();
        let start = |_| {
            let ((sender, batches), is_done) = (channel::<Arc<Batch>>(), is_done.clone());
            // Ends when nobody sends any more.
            std::thread::spawn(move || {
                for batch in batches {
                    work(&batch);
                    is_done.send(()).unwrap();
                }
            });
            sender
        };
        Self { helpers: (1..threads).map(start).collect(), done }
    }

    fn consume(&self, batch: &Arc<Batch>) {
        for helper in &self.helpers {
            helper.send(Arc::clone(batch)).unwrap();
        }
        work(batch);
        for _ in &self.helpers {
            self.done.recv().unwrap();
        }
    }
}

fn work(batch: &Batch) {
    let Ids::I64(ids) = batch.input_ids() else { unreachable!("int64 is what was asked for") };
    for round in 0..ROUNDS {
        black_box(ids.iter().fold(round, |sum, &id| sum.wrapping_add(mix(sum ^ id as u64))));
    }
}

/// Prints the processor time that a loader takes while nobody asks for a batch. Only where there is a `/proc`.
fn show_idle_cost(dir: &Path, idle: Duration) {
    let mut loader = open(dir);
    for _ in 0..3 {
        loader.next_batch().unwrap();
    }
    // Until it has prepared what it prepares ahead.
    let mut before = None;
    let at_rest = loop {
        let now = loader_threads();
        match now {
            Some(Threads { asleep: true, .. }) if now == before => break now,
            None => break None,
            _ => before = now,
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    std::thread::sleep(idle);
    if let (Some(before), Some(after)) = (at_rest, loader_threads()) {
        println!("an idle loader: {:?} of processor time in {idle:?}", after.cpu.saturating_sub(before.cpu));
    }
}

/// What the kernel says about a loader's threads.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Threads {
    /// Processor time so far.
    cpu: Duration,
    /// Whether all of them wait for something.
    asleep: bool,
}

fn loader_threads() -> Option<Threads> {
    let mut threads = Threads { cpu: Duration::ZERO, asleep: true };
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        if read("comm").is_some_and(|name| name.starts_with("shardfeed-")) {
            let run_ns: u64 = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
            threads.cpu += Duration::from_nanos(run_ns);
            threads.asleep &= read("status")?.lines().any(|line| line.starts_with("State:\tS"));
        }
    }
    Some(threads)
}

criterion_group!(benches, beside);
criterion_main!(benches);
