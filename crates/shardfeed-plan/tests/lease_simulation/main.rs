//! The lease protocol under a hundred thousand schedules of faults: nothing lost, nothing committed twice, and always
//! progress once the faults end. And with each rule broken: noticed.
//!
//! `cargo test --release -p shardfeed-plan --test lease_simulation -- --nocapture` prints the figures.

// What the sources of the protocol find in their crate.
use shardfeed_plan::{CheckpointState, Deals, PartitionStrategy, key};

mod lease; // the protocol, with rules that can be broken
mod network; // a request           -> when it arrives, and whether
mod oracle; // what the store takes -> whether that may be
mod schedule; // a seed             -> workers, work and faults
mod world; // all of these          -> what came of it

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use lease::rules::{self, Rule};
use world::{Faults, Outcome};

/// Runs schedules on all cores. Returns faults by kind, and what went wrong.
fn run(seeds: std::ops::Range<u64>, broken: Option<Rule>) -> (Faults, Vec<(u64, String)>) {
    let next = AtomicU64::new(seeds.start);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        rules::set_broken(broken);
        let (mut faults, mut wrong) = (Faults::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                return (faults, wrong);
            }
            let Outcome { faults: seen, violation } = world::run(seed);
            faults.add(&seen);
            wrong.extend(violation.map(|violation| (seed, violation)));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let mut all = (Faults::default(), Vec::new());
        for thread in threads {
            let (faults, wrong) = thread.join().expect("a schedule panicked");
            all.0.add(&faults);
            all.1.extend(wrong);
        }
        all.1.sort();
        all
    })
}

#[test]
fn nothing_is_lost_or_committed_twice_and_there_is_progress() {
    let long = std::env::var_os("SHARDFEED_LONG").is_some();
    let given = std::env::var("SHARDFEED_SCHEDULES").ok().and_then(|count| count.parse().ok());
    let schedules = given.unwrap_or(if long { 1_000_000 } else { 100_000 });
    let since = Instant::now();
    let (faults, wrong) = run(0..schedules, None);
    println!("{schedules} schedules in {:.0} s, {} wrong", since.elapsed().as_secs_f64(), wrong.len());
    println!("{faults}");
    assert!(wrong.is_empty(), "{} of {schedules}: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert!(faults.all_happened(), "{faults}");
}

#[test]
fn every_broken_rule_is_noticed() {
    const AT_A_TIME: u64 = 2_000;
    for rule in Rule::ALL {
        let mut wrong = Vec::new();
        let mut schedules = 0;
        while wrong.is_empty() && schedules < 20 * AT_A_TIME {
            wrong = run(schedules..schedules + AT_A_TIME, Some(rule)).1;
            schedules += AT_A_TIME;
        }
        let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
        for (_, violation) in &wrong {
            *kinds.entry(violation.split(':').next().unwrap_or_default()).or_default() += 1;
        }
        println!("without `{rule:?}`: {} of {schedules} schedules go wrong {kinds:?}", wrong.len());
        assert!(!wrong.is_empty(), "without {rule:?} nothing went wrong in {schedules} schedules");
    }
}

/// Tells one schedule: `SHARDFEED_SEED=7 cargo test ... one_schedule -- --nocapture`.
#[test]
fn one_schedule() {
    if let Some(seed) = std::env::var("SHARDFEED_SEED").ok().and_then(|seed| seed.parse().ok()) {
        world::tell();
        println!("{:?}", world::run(seed).violation);
    }
}
