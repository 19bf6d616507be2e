//! A loader that nobody asks for batches sleeps: its threads wait to be woken, they do not look again and again.
//!
//! One test in a program of its own: it looks at every thread that is called like a loader's.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use shardfeed::TokenLoader;
use shardfeed::sample::{SampleData, write_sample};

/// What the kernel says about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    /// `S` while it waits for something, `R` while it works.
    state: String,
    /// How often it went to sleep: a thread that looks now and then does so each time.
    sleeps: u64,
    /// How often it was made to wait for a processor.
    preempted: u64,
    /// Processor time, in clock ticks.
    cpu_ticks: u64,
}

/// The loader's threads by their number.
fn loader_threads() -> BTreeMap<String, Thread> {
    let mut threads = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let read = |name: &str| std::fs::read_to_string(task.path().join(name));
        // One that ends meanwhile is none of those that stay.
        let (Ok(name), Ok(status), Ok(stat)) = (read("comm"), read("status"), read("stat")) else { continue };
        if !name.starts_with("shardfeed-") {
            continue;
        }
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().to_owned()
        };
        // After the name, which may hold anything, the 12th and 13th field are times in user and system mode.
        let times: Vec<u64> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse().unwrap())
            .collect();
        let thread = Thread {
            state: field("State:"),
            sleeps: field("voluntary_ctxt_switches:").parse().unwrap(),
            preempted: field("nonvoluntary_ctxt_switches:").parse().unwrap(),
            cpu_ticks: times.iter().sum(),
        };
        threads.insert(task.file_name().into_string().unwrap(), thread);
    }
    threads
}

/// Waits until every thread sleeps and none did anything between two looks: then nobody is left to wake another.
fn loader_threads_at_rest() -> BTreeMap<String, Thread> {
    let started = Instant::now();
    let mut before = loader_threads();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = loader_threads();
        if now == before && !now.is_empty() && now.values().all(|thread| thread.state == "S") {
            return now;
        }
        assert!(started.elapsed() < Duration::from_mins(1), "the loader's threads find no rest: {now:?}");
        before = now;
    }
}

#[test]
fn a_loader_that_nobody_asks_sleeps_until_somebody_does() {
    let dir = tempfile::tempdir().unwrap();
    let sample = SampleData { files: 8, rows_per_file: 500, ..SampleData::default() };
    write_sample(dir.path(), &sample).unwrap();
    let mut loader = TokenLoader::builder(dir.path(), 128, 16).threads(3).build().unwrap();
    // After the first batch, and once the stream is under way.
    for step in [0, 1, 20] {
        while loader.next_batch().unwrap().expect("the epoch is longer").step < step {}
        let at_rest = loader_threads_at_rest();
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(loader_threads(), at_rest, "after step {step}");
    }
    assert_eq!(loader.next_batch().unwrap().expect("the epoch is longer").step, 21);
}
