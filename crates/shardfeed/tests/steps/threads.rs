//! What the system says about the threads of loaders. Other tests of this process have some too, so each test that
//! asks runs again in a process of its own.

use std::time::{Duration, Instant};

use crate::job::{Wish, some_dir};

const DEADLINE: Duration = Duration::from_mins(1);

/// True in a process that runs the one test; elsewhere runs it in such a process first.
fn is_alone(test: &str) -> bool {
    const MARK: &str = "SHARDFEED_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&format!("threads::{test}"), "--exact", "--test-threads=1", "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "it is named as it was asked for: {said}");
    false
}

/// How a thread spent its time so far.
#[derive(Clone, Debug, PartialEq)]
struct Thread {
    id: String,
    state: String,
    /// User and system time.
    ticks: (u64, u64),
    /// Times it gave up the processor, or was made to: one that wakes up to look has more each time.
    switches: Vec<String>,
}

fn loader_threads() -> Vec<Thread> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = entry.unwrap().path();
        // A thread may end while it is looked at.
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if !read("comm").starts_with("shardfeed-") {
            continue;
        }
        let (stat, status) = (read("stat"), read("status"));
        let Some((_, stat)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = stat.split_whitespace().collect();
        threads.push(Thread {
            id: task.file_name().unwrap().to_string_lossy().into_owned(),
            state: fields[0].to_owned(),
            ticks: (fields[11].parse().unwrap(), fields[12].parse().unwrap()),
            switches: status
                .lines()
                .filter(|line| line.contains("ctxt_switches"))
                .map(String::from)
                .collect(),
        });
    }
    threads.sort_by(|a, b| a.id.cmp(&b.id));
    threads
}

/// A joined thread is listed for a moment longer.
fn wait_for_threads(count: usize) {
    let begin = Instant::now();
    while loader_threads().len() != count {
        assert!(begin.elapsed() < DEADLINE, "{count} threads wanted, there are {:?}", loader_threads());
        std::thread::yield_now();
    }
}

#[test]
fn a_dropped_loader_ends_its_threads() {
    if !is_alone("a_dropped_loader_ends_its_threads") {
        return;
    }
    let (dir, _) = some_dir();
    let builder = || Wish::default().builder(dir.path(), 12).threads(3);
    wait_for_threads(0);
    let mut loader = builder().build().unwrap();
    wait_for_threads(0);
    loader.next_batch().unwrap();
    wait_for_threads(3);
    let mut second = builder().threads(2).build().unwrap();
    second.next_batch().unwrap();
    wait_for_threads(5);
    drop(loader);
    wait_for_threads(2);
    // What moves the stream elsewhere ends what was prepared, and so does the end of an epoch.
    second.skip(3..4).unwrap();
    wait_for_threads(0);
    second.next_batch().unwrap();
    wait_for_threads(2);
    second.set_epoch(5);
    wait_for_threads(0);
    second.next_batch().unwrap();
    let state = second.state().clone();
    second.load_state(&state).unwrap();
    wait_for_threads(0);
    assert!(second.batches().count() > 10);
    wait_for_threads(0);
    second.next_batch().unwrap();
    wait_for_threads(2);
    drop(second);
    wait_for_threads(0);
}

#[test]
fn an_idle_loader_uses_no_processor() {
    if !is_alone("an_idle_loader_uses_no_processor") {
        return;
    }
    let (dir, _) = some_dir();
    let mut loader = Wish::default().builder(dir.path(), 12).threads(3).build().unwrap();
    loader.next_batch().unwrap();
    // Once all steps ahead are prepared, there comes a while in which no thread even wakes up.
    let begin = Instant::now();
    loop {
        let before = loader_threads();
        std::thread::sleep(Duration::from_millis(300)); // The interval that is measured.
        let after = loader_threads();
        if before == after && after.len() == 3 && after.iter().all(|thread| thread.state == "S") {
            assert!(after.iter().all(|thread| thread.switches.len() == 2), "{after:?}");
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "never idle: {before:?}, then {after:?}");
    }
    assert_eq!(loader.next_batch().unwrap().unwrap().step, 1);
}
