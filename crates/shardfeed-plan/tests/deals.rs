//! Adaptive deals against the clock: simulated workers of all speeds, constant and changing, beside a greedy oracle.

use std::collections::HashSet;

use proptest::prelude::*;
use shardfeed_plan::{Assignment, Deal, DealError, Deals, Stretch, mix};

/// A worker's samples a second, from each time on.
#[derive(Clone, Debug)]
struct Speed(Vec<(f64, f64)>);

impl Speed {
    fn at(&self, time: f64) -> f64 {
        self.0.iter().take_while(|(from, _)| *from <= time).last().expect("from the beginning").1
    }
}

#[derive(Clone, Debug)]
struct Schedule {
    samples: u64,
    speeds: Vec<Speed>,
    threshold: f64,
    /// Between reports of all workers.
    report_every: f64,
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of all magnitudes alike.
    fn speed(&mut self) -> f64 {
        10_f64.powf(self.next() * 2.0 - 1.0)
    }
}

impl Schedule {
    fn random(number: u64, changing: bool) -> Self {
        let mut dice = Dice(mix(number ^ 0xdea1));
        let workers = 1 + (dice.next() * 16.0) as usize;
        let samples = (dice.next() * 100.0 * 10_f64.powf(dice.next() * 1.5)) as u64;
        let usual = samples as f64 / workers as f64;
        let speeds = (0..workers).map(|_| {
            let mut changes = vec![(0.0, dice.speed())];
            while changing && dice.next() < 0.8 {
                let time = changes.last().unwrap().0 + dice.next() * usual;
                changes.push((time, dice.speed()));
            }
            Speed(changes)
        });
        let speeds: Vec<Speed> = speeds.collect();
        // Whatever it is: who has nothing left gets some of what the others have.
        let threshold = dice.next();
        Self { samples, speeds, threshold, report_every: (0.005 + 0.1 * dice.next()) * usual }
    }

    /// Even blocks to begin with.
    fn lens(&self) -> Vec<u64> {
        let workers = self.speeds.len() as u64;
        (0..workers)
            .map(|worker| self.samples / workers + u64::from(worker < self.samples % workers))
            .collect()
    }
}

/// What a worker is at.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    taken: u64,
    /// When the sample at hand was taken, and when it is done; `None` while there is none.
    sample: Option<(f64, f64)>,
    /// How long the sample before it took.
    last_took: Option<f64>,
}

impl Busy {
    /// Samples a second, as far as can be told: a sample that takes longer than the one before tells too.
    fn throughput(&self, now: f64) -> Option<f64> {
        let at_least = self.sample.map(|(since, _)| now - since).filter(|&took| took > 0.0);
        let took = self.last_took.into_iter().chain(at_least).reduce(f64::max)?;
        Some(1.0 / took)
    }
}

struct Outcome {
    took: f64,
    longest_sample: f64,
}

/// All workers until nothing is left. `next` says whether there is a sample for a worker.
fn simulate(
    schedule: &Schedule,
    mut next: impl FnMut(f64, usize, &mut [Busy]) -> bool,
    reports: bool,
) -> Outcome {
    let mut workers = vec![Busy::default(); schedule.speeds.len()];
    let (mut now, mut longest_sample, mut report_at) = (0.0, 0.0_f64, schedule.report_every);
    loop {
        // Again, while somebody begins: a deal may give samples to one who found none.
        let mut has_begun = true;
        while std::mem::take(&mut has_begun) {
            for worker in 0..workers.len() {
                if workers[worker].sample.is_none() && next(now, worker, &mut workers) {
                    let took = 1.0 / schedule.speeds[worker].at(now);
                    longest_sample = longest_sample.max(took);
                    workers[worker].taken += 1;
                    workers[worker].sample = Some((now, now + took));
                    has_begun = true;
                }
            }
        }
        let done = workers.iter().filter_map(|worker| worker.sample).map(|sample| sample.1).reduce(f64::min);
        let Some(done) = done else { return Outcome { took: now, longest_sample } };
        if reports && report_at < done {
            now = report_at;
            report_at += schedule.report_every;
            next(now, usize::MAX, &mut workers);
            continue;
        }
        now = done;
        for worker in &mut workers {
            if let Some((since, until)) = worker.sample
                && until <= now
            {
                (worker.sample, worker.last_took) = (None, Some(until - since));
            }
        }
    }
}

fn greedy(schedule: &Schedule) -> Outcome {
    let mut left = schedule.samples;
    simulate(
        schedule,
        |_, worker, _| worker != usize::MAX && left.checked_sub(1).inspect(|&rest| left = rest).is_some(),
        false,
    )
}

/// Adaptive deals; checks that each sample is given once, and that the deals can be replayed.
fn adaptive(schedule: &Schedule) -> Outcome {
    adaptive_with(schedule, |_, _, _| ())
}

/// The same; `look` sees the deals, when, and who asked for more, whenever they may have changed.
fn adaptive_with(schedule: &Schedule, mut look: impl FnMut(f64, usize, &Deals)) -> Outcome {
    let lens = schedule.lens();
    let mut deals = Deals::new(&lens, schedule.threshold);
    let mut given = HashSet::new();
    let outcome = simulate(
        schedule,
        |now, worker, workers| {
            let has_more = |deals: &Deals, workers: &[Busy]| {
                worker != usize::MAX && workers[worker].taken < deals.assignment(worker).len()
            };
            if !has_more(&deals, workers) {
                for (number, busy) in workers.iter().enumerate() {
                    // Who has done nothing yet is taken for average.
                    match busy.throughput(now) {
                        Some(throughput) => deals.report(number, busy.taken, throughput).unwrap(),
                        None => deals.report_taken(number, busy.taken).unwrap(),
                    }
                }
                if worker == usize::MAX {
                    deals.rebalance();
                } else {
                    deals.rebalance_for(worker);
                }
                look(now, worker, &deals);
            }
            if !has_more(&deals, workers) {
                return false;
            }
            let place = deals.assignment(worker).place(workers[worker].taken).unwrap();
            assert!(given.insert(place), "{place:?} is given twice");
            true
        },
        true,
    );
    assert_eq!(given.len() as u64, schedule.samples);
    assert!(given.iter().all(|&(origin, number)| number < lens[origin as usize]));
    let replayed = Deals::replay(&lens, schedule.threshold, deals.made()).unwrap();
    assert_eq!(replayed.made(), deals.made());
    (0..lens.len()).for_each(|worker| assert_eq!(replayed.assignment(worker), deals.assignment(worker)));
    outcome
}

#[test]
fn with_constant_speeds_the_last_is_done_soon_after_the_ideal() {
    let mut worst = 0.0_f64;
    for number in 0..10_000 {
        let schedule = Schedule::random(number, false);
        let outcome = adaptive(&schedule);
        let ideal = schedule.samples as f64 / schedule.speeds.iter().map(|speed| speed.at(0.0)).sum::<f64>();
        worst = worst.max((outcome.took - outcome.longest_sample) / ideal);
        assert!(
            outcome.took <= 1.1 * ideal + outcome.longest_sample,
            "schedule {number}: {} beside {ideal}, a sample {}",
            outcome.took,
            outcome.longest_sample
        );
    }
    println!("worst, less one sample: {worst} of the ideal");
}

#[test]
fn with_changing_speeds_it_is_nearly_as_good_as_dealing_one_by_one() {
    let mut worst = 0.0_f64;
    for number in 0..10_000 {
        let schedule = Schedule::random(number, true);
        let (took, best) = (adaptive(&schedule).took, greedy(&schedule).took);
        worst = worst.max(if best > 0.0 { took / best } else { 1.0 });
        assert!(took <= 1.2 * best, "schedule {number}: {took} beside {best}");
    }
    println!("worst: {worst} of the oracle");
}

proptest! {
    #[test]
    fn whatever_is_reported_nothing_is_lost_or_given_twice(
        lens in proptest::collection::vec(0_u64..50, 1..6),
        threshold in 0.0..1.0,
        reports in proptest::collection::vec((any::<u8>(), any::<u8>(), 0.0..100.0), 0..60),
    ) {
        let mut deals = Deals::new(&lens, threshold);
        let mut taken = vec![0; lens.len()];
        let mut given = HashSet::new();
        for (who, more, throughput) in reports {
            let who = who as usize % lens.len();
            let until = (taken[who] + u64::from(more) % 10).min(deals.assignment(who).len());
            for position in taken[who]..until {
                prop_assert!(given.insert(deals.assignment(who).place(position).unwrap()));
            }
            taken[who] = until;
            deals.report(who, until, if more % 5 == 0 { 0.0 } else { throughput }).unwrap();
            let before = deals.clone();
            let dealt = if more % 3 == 0 { deals.rebalance_for(who) } else { deals.rebalance() };
            if let Some(deal) = dealt.cloned() {
                prop_assert_eq!(&deal.taken, &taken);
                // What was taken stays as it was.
                for (who, &taken) in taken.iter().enumerate() {
                    let of = |deals: &Deals| (0..taken).map(|at| deals.assignment(who).place(at)).collect::<Vec<_>>();
                    prop_assert_eq!(of(&before), of(&deals));
                    prop_assert_eq!(deals.assignment(who).len(), taken + deal.shares[who]);
                }
            }
        }
        for (who, &taken) in taken.iter().enumerate() {
            for position in taken..deals.assignment(who).len() {
                prop_assert!(given.insert(deals.assignment(who).place(position).unwrap()));
            }
            prop_assert_eq!(deals.assignment(who).place(deals.assignment(who).len()), None);
        }
        let all = (0..).zip(&lens).flat_map(|(origin, &len)| (0..len).map(move |number| (origin, number)));
        prop_assert_eq!(given, all.collect::<HashSet<_>>());
        let replayed = Deals::replay(&lens, threshold, deals.made()).unwrap();
        for who in 0..lens.len() {
            prop_assert_eq!(replayed.assignment(who), deals.assignment(who));
            let json = serde_json::to_string(deals.assignment(who)).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Assignment>(&json).unwrap(), deals.assignment(who));
        }
    }
}

#[test]
fn equal_workers_and_those_below_the_threshold_are_left_alone() {
    for (speeds, is_dealt) in
        [([1.0, 1.0], false), ([1.0, 1.4], false), ([1.0, 1.6], true), ([0.0, 1.0], true)]
    {
        let mut deals = Deals::new(&[100, 100], 0.2);
        deals.report(0, 10, speeds[0]).unwrap();
        deals.report(1, 10, speeds[1]).unwrap();
        assert_eq!(deals.rebalance().is_some(), is_dealt, "{speeds:?}");
        // The same once more changes nothing.
        assert_eq!(deals.rebalance(), None);
    }
    let mut unheard = Deals::new(&[100, 100], 0.0);
    assert_eq!(unheard.rebalance(), None);
    unheard.report(0, 100, 0.0).unwrap();
    assert_eq!(unheard.rebalance(), None, "nobody moves");
}

/// Without it, too, they would be done at the same time here: whoever has nothing left asks for more. But then it waits for what is
/// moved, which takes no time here alone.
#[test]
fn where_speeds_differ_by_more_than_the_threshold_samples_are_dealt_before_anybody_is_idle() {
    // The third is half as fast: a coefficient of variation of 0.283. It would be done at 200 s, all at 120 s.
    let schedule = |threshold| Schedule {
        samples: 300,
        speeds: [1.0, 1.0, 0.5].map(|speed| Speed(vec![(0.0, speed)])).to_vec(),
        threshold,
        report_every: 10.0,
    };
    for (threshold, expected) in [(0.2, Some(10.0)), (0.28, Some(10.0)), (0.29, None), (5.0, None)] {
        let mut first = None;
        let mut look = |now: f64, worker: usize, deals: &Deals| {
            if !deals.made().is_empty() && first.is_none() {
                first = Some((now, worker));
            }
        };
        let outcome = adaptive_with(&schedule(threshold), &mut look);
        let (at, worker) = first.expect("sooner or later somebody is idle");
        match expected {
            // By the first report, of nobody who is idle; they end together.
            Some(expected) => assert_eq!((at, worker), (expected, usize::MAX), "{threshold}"),
            // When the first two have done their hundred.
            None => assert!(at >= 100.0 && worker != usize::MAX, "{threshold}: {at} {worker}"),
        }
        assert!((120.0..=122.0).contains(&outcome.took), "{threshold}: {}", outcome.took);
    }
}

#[test]
fn one_who_has_nothing_left_gets_some_of_what_others_have() {
    let mut deals = Deals::new(&[10, 100], 5.0);
    deals.report(0, 10, 1.0).unwrap();
    deals.report(1, 20, 1.0).unwrap();
    assert_eq!(deals.rebalance().unwrap().shares, [40, 40]);
    assert_eq!(deals.assignment(0).stretches()[1], Stretch { origin: 1, start: 60, end: 100 });
}

#[test]
fn one_who_asks_gets_a_sample_however_slow_it_is() {
    let mut deals = Deals::new(&[3, 10], 0.1);
    deals.report(0, 3, 0.001).unwrap();
    deals.report(1, 8, 1000.0).unwrap();
    assert_eq!(deals.clone().rebalance(), None, "the other is done with two before it has begun");
    assert_eq!(deals.rebalance_for(0).unwrap().shares, [1, 1]);
    deals.report(0, 4, 0.001).unwrap();
    deals.report(1, 9, 1000.0).unwrap();
    assert_eq!(deals.rebalance_for(1), None, "nothing is left");
}

#[test]
fn one_who_asks_gets_a_sample_though_nobody_is_known_to_move() {
    let mut unheard = Deals::new(&[0, 10], 0.2);
    assert_eq!(unheard.rebalance_for(0).unwrap().shares, [5, 5]);
    // All that is known is that one stood still.
    let mut deals = Deals::new(&[1, 10], 0.2);
    deals.report(0, 1, 0.0).unwrap();
    deals.report_taken(1, 0).unwrap();
    assert_eq!(deals.clone().rebalance(), None, "nobody asks");
    assert_eq!(deals.clone().rebalance_for(1), None, "it has some");
    assert_eq!(deals.rebalance_for(0).unwrap().shares, [5, 5]);
}

#[test]
fn reports_and_deals_that_cannot_be_are_refused() {
    let mut deals = Deals::new(&[10, 10], 0.1);
    deals.report(0, 5, 1.0).unwrap();
    assert_eq!(deals.report(0, 4, 1.0), Err(DealError::Taken { worker: 0, taken: 4, before: 5, len: 10 }));
    assert_eq!(deals.report(1, 11, 1.0), Err(DealError::Taken { worker: 1, taken: 11, before: 0, len: 10 }));
    assert_eq!(deals.report(2, 0, 1.0), Err(DealError::NoWorker { worker: 2, workers: 2 }));
    assert!(matches!(deals.report(1, 0, f64::NAN), Err(DealError::Throughput { worker: 1, .. })));
    assert!(matches!(deals.report(1, 0, -1.0), Err(DealError::Throughput { worker: 1, .. })));
    let replay = |taken: &[u64], shares: &[u64]| {
        Deals::replay(&[10, 10], 0.1, &[Deal { taken: taken.to_vec(), shares: shares.to_vec() }]).map(drop)
    };
    assert_eq!(replay(&[5, 5], &[5, 5]), Ok(()));
    assert_eq!(replay(&[5, 5], &[5, 6]), Err(DealError::Left { number: 0, dealt: 11, left: 10 }));
    assert_eq!(
        replay(&[5, 5], &[u64::MAX, 11]),
        Err(DealError::Left { number: 0, dealt: u64::MAX, left: 10 })
    );
    assert_eq!(replay(&[5], &[5, 5]), Err(DealError::Workers { number: 0, dealt: 1, workers: 2 }));
    assert!(matches!(replay(&[5, 11], &[5, 5]), Err(DealError::Taken { .. })));
    for stretches in [r#"[{"origin":0,"start":5,"end":5}]"#, r#"[{"origin":0,"start":5,"end":4}]"#] {
        assert!(serde_json::from_str::<Assignment>(stretches).unwrap_err().to_string().contains("cannot be"));
    }
}
