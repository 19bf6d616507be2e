//! What a worker decides by the table of an epoch: who may claim what, and how what is left is dealt again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use shardfeed_plan::lease::{Claimer, Owner, Present, Ranges, Run, RunId, Table, WorkerRecord};

/// Workers by rank: whether each is there, its speed, its samples, how many of them are done, whether it has them.
type Drawn = Vec<(bool, Option<f64>, u64, u64, bool)>;

fn drawn() -> impl Strategy<Value = Drawn> {
    let rate = prop_oneof![1 => Just(None), 6 => (0.1_f64..50.0).prop_map(Some)];
    let worker = (prop::bool::weighted(0.8), rate, 0_u64..300, 0_u64..300, prop::bool::weighted(0.9));
    proptest::collection::vec(worker, 1..9)
}

fn table(drawn: &Drawn) -> Table {
    let mut table = Table::default();
    for (rank, &(is_there, rate, len, done, has)) in (0_u32..).zip(drawn) {
        let session = u64::from(rank) + 100;
        let id = RunId { origin: rank, start: 0 };
        let done = done.min(len);
        let is_held = is_there && has && len > done;
        let record =
            WorkerRecord { session, rank, rate, is_waiting: is_there && !is_held, ..WorkerRecord::default() };
        table.records.insert(rank, record.clone());
        if is_there {
            table.workers.insert(rank, Present { record, created: 1, modified: 1, lease: 1 });
        }
        if len > 0 {
            let mut run = Run::new(len);
            run.done = Ranges::default();
            run.done.insert(0, done);
            table.runs.insert(id, (run, 1));
            if is_held {
                table.owners.insert(id, (Owner { session, rank }, 1));
            }
        }
    }
    table
}

fn claimer(rank: u32, replicas: usize, is_idle: bool, takes_tails: bool) -> Claimer {
    Claimer { rank, epoch: 0, replicas, is_idle, takes_tails }
}

proptest! {
    /// The first of those there by the hash of both numbers; whoever comes or goes changes no list but those it is in.
    #[test]
    fn candidates_are_few_and_steady(drawn in drawn(), count in 0_usize..4, origin in 0_u32..8, gone in 0_u32..8) {
        let mut table = table(&drawn);
        let before = table.candidates(origin, count, 0);
        let there = table.workers.keys().filter(|&&rank| rank != origin).count();
        prop_assert_eq!(before.len(), count.min(there));
        prop_assert!(!before.contains(&origin));
        table.workers.remove(&gone);
        let after = table.candidates(origin, count, 0);
        if before.contains(&gone) {
            let stay: Vec<u32> = before.iter().copied().filter(|&rank| rank != gone).collect();
            prop_assert_eq!(&after[..stay.len()], &stay[..]);
        } else {
            prop_assert_eq!(after, before);
        }
    }

    /// Nothing is claimed that somebody has, that is done, or whose worker is there; of what a worker left behind, only by so many.
    #[test]
    fn only_what_is_free_is_claimed(drawn in drawn(), replicas in 0_usize..3, is_idle: bool, takes_tails: bool) {
        let table = table(&drawn);
        let mut claimers = BTreeMap::<RunId, Vec<u32>>::new();
        for &rank in table.workers.keys() {
            if let Some(run) = table.claimable(&claimer(rank, replicas, is_idle, takes_tails)) {
                claimers.entry(run).or_default().push(rank);
            }
        }
        for (run, ranks) in &claimers {
            prop_assert!(!table.owners.contains_key(run));
            prop_assert!(!table.runs[run].0.is_done(run.start));
            let is_home_there = table.workers.contains_key(&run.origin);
            let is_right = if is_home_there { ranks == &[run.origin] } else { ranks.len() <= replicas };
            prop_assert!(is_right, "{:?} by {:?}", run, ranks);
        }
        // Whatever is free has somebody who takes it, if anybody may.
        let is_taken = |run: &RunId| table.owners.contains_key(run) || table.runs[run].0.is_done(run.start);
        let free = table.runs.keys().filter(|run| !is_taken(run)).count();
        let may = table.runs.keys().any(|run| {
            !is_taken(run) && (table.workers.contains_key(&run.origin) || replicas > 0 && !table.workers.is_empty())
        });
        prop_assert_eq!(!claimers.is_empty(), free > 0 && may);
    }

    /// A deal cuts off what is too much, in whole units, after what is done; nobody is left with less than its share.
    #[test]
    fn deals_cut_what_is_too_much(drawn in drawn(), unit in 1_u64..20) {
        let table = table(&drawn);
        let Some(deal) = table.deal(0.05, unit, 0) else { return Ok(()) };
        prop_assert_eq!(deal.number, 1);
        let all = |of: fn(&(u32, u64, u64)) -> u64| deal.left.iter().map(of).sum::<u64>();
        prop_assert_eq!(all(|left| left.1), all(|left| left.2));
        for cut in &deal.cuts {
            let (run, _) = &table.runs[&cut.run];
            let (owner, _) = table.owners[&cut.run];
            let &(_, before, share) = deal.left.iter().find(|(rank, ..)| *rank == owner.rank).unwrap();
            prop_assert!(cut.at.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(cut.at.iter().all(|at| (at - cut.run.start).is_multiple_of(unit) && *at < run.end));
            prop_assert!(cut.at[0] > run.done.end());
            let kept = before - (run.end - cut.at[0]);
            prop_assert!(kept >= share, "{kept} of {share}");
            // No more than a unit too much, or the one that it is at.
            prop_assert!(kept < share + unit || cut.at[0] <= run.done.end() + unit, "{kept} of {share}");
        }
    }
}
