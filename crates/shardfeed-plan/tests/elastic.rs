//! Does a stream keep its promises whatever the data, the world sizes, the restarts, the changes of the
//! global batch and the skips? Random histories, compared with lists.
//!
//! `SHARDFEED_LONG=1` tries twenty times as many.

mod naive;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use shardfeed_plan::{
    BatchChange, EpochOrder, Fingerprint, Packing, Rank, Skips, StepNumbers, StepPlan, StreamSettings,
    StreamState, Tail,
};

const GLOBAL_BATCH_MAX: u32 = 40;
const WORLD_SIZE_MAX: u32 = 16;

proptest! {
    #![proptest_config(cases(3000))]
    #[test]
    fn every_position_and_every_step_is_where_the_naive_version_puts_it(
        case in any_case(),
        somewhere in any::<prop::sample::Index>(),
        holes in prop::collection::vec((any::<prop::sample::Index>(), 1_u64..30), 0..6),
    ) {
        let (order, naive) = (case.order(), case.naive());
        prop_assert_eq!(order.sequences(), naive.positions().end);
        let mut walks: Vec<_> = (0..case.settings.lanes).map(|lane| order.walk(lane)).collect();
        for position in naive.positions() {
            let sequence = naive.order[position as usize] as u64;
            let place = order.place(position);
            prop_assert_eq!(place.lane as usize, naive.lane_of[position as usize]);
            prop_assert_eq!(order.sequence(position), sequence);
            prop_assert_eq!(walks[place.lane as usize].sequence(place.index), sequence);
            prop_assert_eq!(units_at(&order, position), naive.units(position));
        }

        let mut skips = Skips::default();
        for (start, len) in holes {
            let start = start.index(order.sequences() as usize + 1) as u64;
            skips.add(start..(start + len).min(order.sequences())).unwrap();
        }
        for from in [0, somewhere.index(order.sequences() as usize + 1) as u64] {
            for skips in [Skips::default(), skips.clone()] {
                let expected = naive.steps(from, skips.ranges(), case.global_batch, case.tail);
                let steps = order.steps_from(from, &skips, case.global_batch, case.tail);
                prop_assert_eq!(steps, expected.len() as u64);
                let state = StreamState { position: from, skips, ..case.start().state };
                let delivered = Job { state, ..case.start() }.run();
                holds(check_steps(&naive, &delivered, &expected))?;
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn every_world_size_delivers_every_unit_once_in_the_same_steps_of_constant_shape(case in any_case()) {
        let naive = case.naive();
        let steps = naive.steps(0, &[], case.global_batch, case.tail);
        let batch = u64::from(case.global_batch);
        let missing = naive.positions().end.next_multiple_of(batch) - naive.positions().end;
        let owed: Vec<u64> = match case.tail {
            Tail::Drop => (0..naive.positions().end / batch * batch).collect(),
            Tail::Wrap => naive.positions().chain(naive.positions().cycle().take(missing as usize)).collect(),
            Tail::Pad | Tail::Error => naive.positions().collect(),
        };
        let units_owed: Vec<naive::Unit> =
            owed.iter().flat_map(|&position| naive.units(position).to_vec()).collect();
        if case.tail == Tail::Pad {
            let in_file_order = case.sizes.iter().zip(0..);
            let all = in_file_order.flat_map(|(&size, group)| (0..size).map(move |unit| (group, unit)));
            holds(check_each_once(all, units_owed.clone()))?;
        }
        for world_size in 1..=case.global_batch.min(WORLD_SIZE_MAX) {
            let job = Job { world_size, ..case.start() };
            let order = job.order.clone();
            let delivered = job.run();
            holds(check_steps(&naive, &delivered, &steps))?;
            holds(check_shapes(&delivered, world_size))?;
            let positions = delivered.iter().flat_map(Delivered::positions);
            let units = positions.flat_map(|position| units_at(&order, position));
            holds(check_each_once(units_owed.clone(), units))?;
        }
    }
}

proptest! {
    #![proptest_config(cases(3000))]
    #[test]
    fn a_job_stopped_at_any_step_resumes_at_any_world_size_with_the_steps_it_would_have_seen(
        case in any_case(),
        stops in prop::collection::vec((0_usize..30, any_world_size()), 1..8),
    ) {
        let naive = case.naive();
        let uninterrupted = naive.steps(0, &[], case.global_batch, case.tail);
        let mut job = case.start();
        let mut delivered = Vec::new();
        for (steps, world_size) in stops {
            job.deliver(steps, &mut delivered);
            job = case.resume(&job.save(), world_size);
        }
        job.deliver(usize::MAX, &mut delivered);
        holds(check_steps(&naive, &delivered, &uninterrupted))?;
        holds(check_numbers(&job, &delivered))?;
        let numbers: Vec<u64> = delivered.iter().map(|step| step.number).collect();
        prop_assert_eq!(numbers, (0..uninterrupted.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn after_a_change_of_the_global_batch_come_the_next_positions_and_every_step_can_be_found(
        case in any_case(),
        // Often more changes than are remembered, and often several at one position.
        changes in prop::collection::vec((0_usize..5, 1..=GLOBAL_BATCH_MAX, any_world_size()), 1..14),
    ) {
        let naive = case.naive();
        let mut job = case.start();
        let mut delivered = Vec::new();
        let mut expected = Vec::new();
        let ends = changes.into_iter().map(Some).chain([None]);
        for change in ends {
            let steps = change.map_or(usize::MAX, |(steps, ..)| steps);
            let ahead = naive.steps(job.state.position, &[], job.state.steps.global_batch(), case.tail);
            expected.extend(ahead.into_iter().take(steps));
            job.deliver(steps, &mut delivered);
            if let Some((_, global_batch, world_size)) = change {
                job.change_global_batch(global_batch);
                job = case.resume(&job.save(), world_size);
            }
        }
        holds(check_steps(&naive, &delivered, &expected))?;
        holds(check_each_live_position_once(&job, &delivered))?;
        holds(check_numbers(&job, &delivered))?;
        let numbers: Vec<u64> = delivered.iter().map(|step| step.number).collect();
        prop_assert_eq!(numbers, (0..expected.len() as u64).collect::<Vec<_>>());
        prop_assert!(job.state.steps.changes().len() <= StepNumbers::CHANGES_MAX);
    }

    #[test]
    fn skipped_steps_leave_all_others_and_their_numbers_as_they_were(
        case in any_case(),
        skips in prop::collection::vec((0_usize..10, 0_u64..12, 1_u64..6, any_world_size()), 1..6),
    ) {
        let naive = case.naive();
        let untouched = naive.steps(0, &[], case.global_batch, case.tail);
        let mut job = case.start();
        let mut delivered = Vec::new();
        let mut skipped = vec![false; untouched.len()];
        for (steps, ahead, count, world_size) in skips {
            job.deliver(steps, &mut delivered);
            let first = job.next_number() + ahead;
            job.skip(first..first + count);
            let numbers = (first..first + count).map(|number| number as usize);
            numbers.filter(|&number| number < untouched.len()).for_each(|number| skipped[number] = true);
            job = case.resume(&job.save(), world_size);
        }
        job.deliver(usize::MAX, &mut delivered);

        let mut others: Vec<Vec<u64>> = untouched.clone();
        if case.tail == Tail::Wrap && !skipped.last().is_some_and(|&last| last) {
            // A wrapped tail is filled from what is live, so a skip at the epoch's beginning changes it.
            let filled = naive.steps(0, job.state.skips.ranges(), case.global_batch, case.tail);
            others.pop();
            others.extend(filled.last().cloned());
        }
        let kept: Vec<usize> = (0..untouched.len()).filter(|&number| !skipped[number]).collect();
        let numbers: Vec<usize> = delivered.iter().map(|step| step.number as usize).collect();
        prop_assert_eq!(&numbers, &kept);
        let expected: Vec<Vec<u64>> = kept.iter().map(|&number| others[number].clone()).collect();
        holds(check_steps(&naive, &delivered, &expected))?;
        holds(check_each_live_position_once(&job, &delivered))?;
        holds(check_numbers(&job, &delivered))?;
    }

    #[test]
    fn whatever_happens_in_an_epoch_every_live_position_comes_once(
        case in any_case(),
        events in prop::collection::vec(any_event(), 0..24),
    ) {
        let naive = case.naive();
        let mut job = case.start();
        let mut delivered = Vec::new();
        for event in events {
            let before = delivered.len();
            let (from, global_batch) = (job.state.position, job.state.steps.global_batch());
            match event {
                Event::Deliver(steps) => job.deliver(steps, &mut delivered),
                Event::Restart(world_size) => job = case.resume(&job.save(), world_size),
                Event::ChangeGlobalBatch(global_batch) => job.change_global_batch(global_batch),
                Event::Skip { ahead, count } if job.state.skips.ranges().len() < 15 => {
                    let first = job.next_number() + ahead;
                    job.skip(first..first + count);
                }
                Event::Skip { .. } => {}
            }
            let ahead = naive.steps(from, job.state.skips.ranges(), global_batch, case.tail);
            let now = &delivered[before..];
            holds(check_steps(&naive, now, &ahead[..now.len()]))?;
        }
        job.deliver(usize::MAX, &mut delivered);
        holds(check_each_live_position_once(&job, &delivered))?;
        holds(check_numbers(&job, &delivered))?;
    }

    #[test]
    fn steps_that_were_found_can_be_skipped_after_any_history_without_changing_another(
        case in any_case(),
        events in prop::collection::vec(any_event(), 0..12),
        ahead in 0_u64..8,
        count in 1_u64..6,
    ) {
        let mut job = case.start();
        let mut delivered = Vec::new();
        for event in events {
            match event {
                Event::Deliver(steps) => job.deliver(steps, &mut delivered),
                Event::Restart(world_size) => job = case.resume(&job.save(), world_size),
                Event::ChangeGlobalBatch(global_batch) => job.change_global_batch(global_batch),
                Event::Skip { ahead, count } => {
                    let first = job.next_number() + ahead;
                    job.skip(first..first + count);
                }
            }
        }
        let untouched = job.clone().run();
        let first = job.next_number() + ahead;
        let gone = first..first + count;
        job.skip_found(gone.clone());
        let kept = untouched.into_iter().filter(|step| !gone.contains(&step.number));
        let after = case.resume(&job.save(), 1).run();
        // Without what fills a wrapped tail, which changes when the epoch's first steps are skipped.
        let real = |step: &Delivered| {
            let mut positions = step.positions();
            positions.retain(|&position| position >= step.first);
            positions.sort_unstable();
            positions.dedup();
            (step.number, step.first, positions)
        };
        let kept: Vec<_> = kept.map(|step| real(&step)).collect();
        prop_assert_eq!(after.iter().map(real).collect::<Vec<_>>(), kept);
    }
}

proptest! {
    #![proptest_config(cases(500))]
    #[test]
    fn another_epoch_or_seed_has_another_order_of_as_many_sequences(
        // Twelve row groups with something in them: one chance in 12! that two orders of them are the same.
        sizes in prop::collection::vec(1_u64..60, 12..30),
        case in any_case(),
        epochs in prop::collection::hash_set(any::<u64>(), 2),
    ) {
        let epochs: Vec<u64> = epochs.into_iter().collect();
        let settings = match case.settings {
            shuffled if shuffled.shuffle => shuffled,
            StreamSettings { seq_len, packing, seed, .. } => {
                StreamSettings::auto(seq_len, packing, None, seed, case.global_batch)
            }
        };
        let reseeded = StreamSettings { seed: settings.seed ^ 1, ..settings.clone() };
        let all_units = |settings, epoch| {
            let order = EpochOrder::new(&sizes, settings, epoch);
            (0..order.sequences()).map(|position| units_at(&order, position)).collect::<Vec<_>>()
        };
        let one = all_units(&settings, epochs[0]);
        for other in [all_units(&settings, epochs[1]), all_units(&reseeded, epochs[0])] {
            prop_assert_eq!(one.len(), other.len());
            prop_assert!(one != other);
        }
        prop_assert!(one == all_units(&settings, epochs[0]));
    }
}

#[test]
fn a_stream_with_a_planted_fault_is_caught() {
    let case = case_of_eleven_steps();
    let naive = case.naive();
    let expected = naive.steps(0, &[], case.global_batch, case.tail);
    let verdict = |fault: &dyn Fn(&mut Vec<Delivered>)| {
        let mut job = Job { world_size: 3, ..case.start() };
        let mut delivered = Vec::new();
        job.deliver(usize::MAX, &mut delivered);
        fault(&mut delivered);
        let checks = [
            check_each_live_position_once(&job, &delivered),
            check_steps(&naive, &delivered, &expected),
            check_shapes(&delivered, 3),
            check_numbers(&job, &delivered),
        ];
        checks.map(|check| check.err().unwrap_or_default())
    };

    assert_eq!(verdict(&|_| {}), ["", "", "", ""]);

    let [once, steps, ..] = verdict(&|steps| steps[2].ranks[1][0] = steps[1].ranks[0][0]);
    assert!(once.contains("was delivered 2 times") && steps.contains("step 2"), "{once}; {steps}");
    let [once, ..] = verdict(&|steps| {
        let again = steps[1].ranks[0][0];
        steps[9].ranks[2].push(again);
    });
    assert!(once.contains("was delivered 2 times"), "{once}");
    let [once, .., shapes, _] = verdict(&|steps| steps[4].ranks[2].truncate(2));
    assert!(once.contains("was not delivered") && shapes.contains("rank 2"), "{once}; {shapes}");
    let [once, ..] = verdict(&|steps| steps[0].ranks[0].push(1_000_000));
    assert!(once.contains("1000000 was delivered but is not owed"), "{once}");

    // A rank that ends a step early, and one whose batch changes its shape.
    let [.., shapes, _] = verdict(&|steps| steps[9].rows.truncate(2));
    assert!(shapes.contains("step 9"), "{shapes}");
    let [.., shapes, _] = verdict(&|steps| steps[5].rows.swap(0, 2));
    assert!(shapes.contains("step 5"), "{shapes}");
    // Two ranks that hold each other's slice: the step is the same set, but not the same batches.
    let [once, steps, ..] = verdict(&|steps| steps[5].ranks.swap(0, 1));
    assert!(once.is_empty() && steps.contains("step 5"), "{steps}");
    let [once, steps, ..] = verdict(&|steps| steps.swap(5, 6));
    assert!(once.is_empty() && steps.contains("step 5"), "{steps}");
    let [_, steps, ..] = verdict(&|steps| steps.truncate(10));
    assert!(steps.contains("10 steps"), "{steps}");

    let [.., numbers] = verdict(&|steps| steps[6].number = 5);
    assert!(numbers.contains("not after"), "{numbers}");
    let [.., numbers] = verdict(&|steps| steps[6].first += 1);
    assert!(numbers.contains("step 6"), "{numbers}");
}

#[test]
fn a_resume_or_a_skip_that_is_one_off_is_caught() {
    let case = case_of_eleven_steps();
    let naive = case.naive();
    let expected = naive.steps(0, &[], case.global_batch, case.tail);
    let run = |fault: &dyn Fn(&mut Job)| {
        let mut job = case.start();
        let mut delivered = Vec::new();
        job.deliver(4, &mut delivered);
        fault(&mut job);
        job.deliver(usize::MAX, &mut delivered);
        [check_each_live_position_once(&job, &delivered), check_steps(&naive, &delivered, &expected)]
            .map(|check| check.is_ok())
    };
    assert_eq!(run(&|_| {}), [true, true]);
    assert_eq!(run(&|job| job.state.position += 1), [false, false]);
    assert_eq!(run(&|job| job.state.position -= 1), [false, false]);
    assert_eq!(run(&|job| job.order = EpochOrder::new(&case.sizes, &job.state.settings, 4)), [true, false]);
    assert_eq!(run(&|job| job.state.skips.add(53..54).unwrap()), [true, false]);
}

fn case_of_eleven_steps() -> Case {
    let sizes = vec![100, 3, 0, 77, 41, 200];
    let settings = StreamSettings::auto(4, Packing::Concat, None, 7, 1);
    let settings = StreamSettings { lanes: 5, window: 4, ..settings };
    Case { sizes, settings, epoch: 3, global_batch: 10, tail: Tail::Pad }
}

fn cases(default: u32) -> ProptestConfig {
    let times = if std::env::var_os("SHARDFEED_LONG").is_some() { 20 } else { 1 };
    // A failing input is printed; a file of them beside the sources is not wanted.
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(default * times) }
}

fn holds(check: Result<(), String>) -> Result<(), TestCaseError> {
    check.map_err(TestCaseError::fail)
}

/// A data set and how it is streamed.
#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<u64>,
    settings: StreamSettings,
    epoch: u64,
    global_batch: u32,
    tail: Tail,
}

impl Case {
    fn order(&self) -> EpochOrder {
        EpochOrder::new(&self.sizes, &self.settings, self.epoch)
    }

    fn naive(&self) -> naive::Epoch {
        naive::Epoch::new(&self.sizes, &self.settings, self.epoch)
    }

    fn start(&self) -> Job {
        let state =
            StreamState::start(Fingerprint([7; 16]), self.settings.clone(), self.epoch, self.global_batch);
        Job { order: self.order(), state, tail: self.tail, world_size: 1 }
    }

    /// Another job, that knows of the first one nothing but what it saved.
    fn resume(&self, saved: &str, world_size: u32) -> Job {
        let state = StreamState::from_json(saved).unwrap();
        let order = EpochOrder::new(&self.sizes, &state.settings, state.epoch);
        state.check_data(Fingerprint([7; 16]), order.sequences()).unwrap();
        Job { world_size: world_size.min(state.steps.global_batch()), order, state, tail: self.tail }
    }
}

/// All ranks of a job at once, doing with the plan what a loader does.
#[derive(Clone)]
struct Job {
    order: EpochOrder,
    state: StreamState,
    tail: Tail,
    world_size: u32,
}

/// A step as the ranks got it.
#[derive(Clone)]
struct Delivered {
    number: u64,
    first: u64,
    global_batch: u32,
    ranks: Vec<Vec<u64>>,
    rows: Vec<usize>,
    /// The first unit of each sequence: which data it was.
    begins: Vec<naive::Unit>,
}

impl Delivered {
    fn positions(&self) -> Vec<u64> {
        self.ranks.concat()
    }
}

impl Job {
    fn next_step(&mut self) -> Option<Delivered> {
        let global_batch = self.state.steps.global_batch();
        let step = self.order.step_at(self.state.position, &self.state.skips, global_batch, self.tail);
        self.state.position = step.as_ref().map_or(self.order.sequences(), StepPlan::next);
        let step = step?;
        let ranks = || (0..self.world_size).map(|index| Rank::new(index, self.world_size).unwrap());
        Some(Delivered {
            number: self.state.steps.number(step.first()),
            first: step.first(),
            global_batch,
            ranks: ranks().map(|rank| step.positions(rank).to_vec()).collect(),
            rows: ranks().map(|rank| step.rows(rank)).collect(),
            begins: step.all_positions().iter().map(|&position| units_at(&self.order, position)[0]).collect(),
        })
    }

    fn deliver(&mut self, steps: usize, delivered: &mut Vec<Delivered>) {
        delivered.extend(std::iter::from_fn(|| self.next_step()).take(steps));
    }

    fn run(mut self) -> Vec<Delivered> {
        let mut delivered = Vec::new();
        self.deliver(usize::MAX, &mut delivered);
        delivered
    }

    fn save(&self) -> String {
        self.state.to_json()
    }

    fn change_global_batch(&mut self, global_batch: u32) {
        self.state.steps.change(self.state.position, global_batch);
        self.world_size = self.world_size.min(global_batch);
    }

    fn next_number(&self) -> u64 {
        self.state.steps.steps_before(self.state.position)
    }

    /// Leaves out the positions of these steps, as a loader does.
    fn skip(&mut self, steps: Range<u64>) {
        let position_of =
            |step| self.state.steps.position_of(step, self.order.sequences(), &self.state.skips);
        let positions = position_of(steps.start)..position_of(steps.end);
        self.state.skips.add(positions).unwrap();
    }

    /// Leaves out the positions that these steps have now.
    fn skip_found(&mut self, steps: Range<u64>) {
        let past = self.state.steps.steps_before(self.order.sequences());
        let begin = |step| {
            let found =
                (step..past).find_map(|step| self.state.steps.find(step, &self.order, &self.state.skips));
            found.map_or(self.order.sequences(), |step| step.position)
        };
        let positions = begin(steps.start)..begin(steps.end);
        let position_of =
            |step| self.state.steps.position_of(step, self.order.sequences(), &self.state.skips);
        assert_eq!(position_of(steps.start)..position_of(steps.end), positions);
        self.state.skips.add(positions).unwrap();
    }
}

fn units_at(order: &EpochOrder, position: u64) -> Vec<naive::Unit> {
    let units = order.units(order.sequence(position));
    order.spans(units).flat_map(|span| span.units.map(move |unit| (span.row_group, unit))).collect()
}

/// What is owed was delivered, as often as it is owed, and nothing else.
fn check_each_once<T: Ord + Debug>(
    owed: impl IntoIterator<Item = T>,
    delivered: impl IntoIterator<Item = T>,
) -> Result<(), String> {
    let mut counts: BTreeMap<T, (u32, u32)> = BTreeMap::new();
    owed.into_iter().for_each(|item| counts.entry(item).or_default().0 += 1);
    delivered.into_iter().for_each(|item| counts.entry(item).or_default().1 += 1);
    for (item, (owed, delivered)) in counts {
        match (owed, delivered) {
            (owed, delivered) if owed == delivered => {}
            (0, _) => return Err(format!("{item:?} was delivered but is not owed")),
            (_, 0) => return Err(format!("{item:?} was not delivered")),
            _ => return Err(format!("{item:?} was delivered {delivered} times and is owed {owed} times")),
        }
    }
    Ok(())
}

/// Over a whole epoch, every position that is not skipped came once; the tail came as the tail's mode says.
fn check_each_live_position_once(job: &Job, delivered: &[Delivered]) -> Result<(), String> {
    let skipped = job.state.skips.ranges();
    let is_live = |position: &u64| !skipped.iter().any(|range| range.contains(position));
    let mut owed: Vec<u64> = (0..job.order.sequences()).filter(is_live).collect();
    match (job.tail, delivered.last()) {
        (Tail::Drop, last) => {
            let last = last.into_iter().flat_map(Delivered::positions).max();
            let whole = owed.partition_point(|&position| Some(position) <= last);
            // A change that was made after the epoch's end came too late to matter.
            let mut changes = job.state.steps.changes().iter().rev();
            let in_force = changes.find(|change| change.position < job.order.sequences());
            if in_force.is_some_and(|change| owed.len() - whole >= change.global_batch as usize) {
                return Err(format!("{} sequences were left over, enough for a step", owed.len() - whole));
            }
            owed.truncate(whole);
        }
        (Tail::Wrap, Some(last)) => {
            let in_last = owed.iter().filter(|&&position| position >= last.first).count();
            let missing = (last.global_batch as usize).saturating_sub(in_last);
            let filling: Vec<u64> = owed.iter().copied().cycle().take(missing).collect();
            owed.extend(filling);
        }
        _ => {}
    }
    check_each_once(owed, delivered.iter().flat_map(Delivered::positions))
}

/// The steps are these, in this order, cut among the ranks that there were, and hold the data they should.
fn check_steps(naive: &naive::Epoch, delivered: &[Delivered], expected: &[Vec<u64>]) -> Result<(), String> {
    for (index, (step, expected)) in delivered.iter().zip(expected).enumerate() {
        let begins: Vec<naive::Unit> = expected.iter().map(|&position| naive.units(position)[0]).collect();
        if step.begins != begins {
            return Err(format!("step {index} has sequences from {:?} instead of {begins:?}", step.begins));
        }
        let expected = naive::among_ranks(expected, step.ranks.len() as u32);
        if step.ranks != expected {
            return Err(format!("step {index} gave the ranks {:?} instead of {expected:?}", step.ranks));
        }
    }
    if delivered.len() != expected.len() {
        return Err(format!("{} steps instead of {}", delivered.len(), expected.len()));
    }
    Ok(())
}

/// Every rank has a batch at every step, always of the same rows, divided evenly, and filled but for padding
/// at the last step, which is spread evenly too.
fn check_shapes(delivered: &[Delivered], world_size: u32) -> Result<(), String> {
    for (index, step) in delivered.iter().enumerate() {
        let rows = &step.rows;
        let rows_differ = rows.iter().max() > rows.iter().min().map(|least| least + 1).as_ref();
        let ranks = world_size as usize;
        if (rows.len(), step.ranks.len()) != (ranks, ranks)
            || rows.iter().sum::<usize>() != step.global_batch as usize
            || rows_differ
            || *rows != delivered[0].rows
        {
            return Err(format!(
                "step {index} has rows {rows:?} for a global batch of {}",
                step.global_batch
            ));
        }
        let padding: Vec<usize> =
            rows.iter().zip(&step.ranks).map(|(rows, rank)| rows.abs_diff(rank.len())).collect();
        let is_last = index + 1 == delivered.len();
        let uneven = padding.iter().max() > padding.iter().min().map(|least| least + 1).as_ref();
        if uneven || (!is_last && padding.iter().any(|&rows| rows > 0)) {
            let rank = padding.iter().position(|&rows| rows > 0).unwrap();
            return Err(format!("step {index}: rank {rank} has {} rows of padding", padding[rank]));
        }
    }
    Ok(())
}

/// Numbers grow; each delivered step that is still remembered is found by its number, and by no other number
/// is anything found.
fn check_numbers(job: &Job, delivered: &[Delivered]) -> Result<(), String> {
    let StreamState { steps, skips, .. } = &job.state;
    for pair in delivered.windows(2) {
        if pair[0].number >= pair[1].number {
            return Err(format!("step {} is not after {}", pair[1].number, pair[0].number));
        }
    }
    let by_number: BTreeMap<u64, &Delivered> = delivered.iter().map(|step| (step.number, step)).collect();
    let remembered = steps.changes()[0].step;
    for number in 0..steps.steps_before(job.order.sequences()) + 3 {
        let expected = by_number.get(&number).filter(|_| number >= remembered).map(|step| BatchChange {
            position: step.first,
            step: number,
            global_batch: step.global_batch,
        });
        // Numbers know nothing of tails: a short last step is found even if it is dropped.
        let found = steps
            .find(number, &job.order, skips)
            .filter(|found| job.order.step_at(found.position, skips, found.global_batch, job.tail).is_some());
        if found != expected {
            return Err(format!("step {number} is found at {found:?} but was delivered at {expected:?}"));
        }
    }
    Ok(())
}

/// What can happen to a job.
#[derive(Clone, Debug)]
enum Event {
    Deliver(usize),
    Restart(u32),
    ChangeGlobalBatch(u32),
    Skip { ahead: u64, count: u64 },
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_usize..8).prop_map(Event::Deliver),
        2 => any_world_size().prop_map(Event::Restart),
        2 => (1..=GLOBAL_BATCH_MAX).prop_map(Event::ChangeGlobalBatch),
        2 => (0_u64..6, 1_u64..5).prop_map(|(ahead, count)| Event::Skip { ahead, count }),
    ]
}

/// Capped at the global batch where it is used.
fn any_world_size() -> impl Strategy<Value = u32> {
    1..=WORLD_SIZE_MAX
}

fn any_case() -> impl Strategy<Value = Case> {
    let packing = prop_oneof![Just(Packing::Concat), Just(Packing::Pad)];
    let lanes = prop_oneof![6 => (1_u32..=64).prop_map(Some), 1 => Just(None)];
    let window = prop_oneof![6 => (1_u32..=64).prop_map(Some), 1 => Just(None)];
    let settings = (1_u32..=40, packing, any::<u64>(), prop::bool::weighted(0.9), lanes, window);
    let tail = prop_oneof![Just(Tail::Pad), Just(Tail::Drop), Just(Tail::Wrap)];
    (any_sizes(), settings, any::<u64>(), 1..=GLOBAL_BATCH_MAX, tail).prop_map(
        |(sizes, (seq_len, packing, seed, shuffle, lanes, window), epoch, global_batch, tail)| {
            let auto = StreamSettings::auto(seq_len, packing, None, seed, global_batch);
            let lanes = lanes.unwrap_or(auto.lanes);
            let window = window.unwrap_or(auto.window);
            let (lanes, window) = if shuffle { (lanes, window) } else { (1, 1) };
            Case {
                sizes,
                settings: StreamSettings { shuffle, lanes, window, ..auto },
                epoch,
                global_batch,
                tail,
            }
        },
    )
}

/// Row groups: a few, many that are empty or tiny, one alone, a giant among dwarfs, none with anything in it.
fn any_sizes() -> impl Strategy<Value = Vec<u64>> {
    let many = prop_oneof![2 => Just(0_u64), 3 => 1_u64..4, 1 => 50_u64..300];
    let dwarfs = prop::collection::vec(0_u64..4, 0..10);
    prop_oneof![
        8 => prop::collection::vec(0_u64..80, 1..16),
        4 => prop::collection::vec(many, 1..30),
        2 => prop::collection::vec(1_u64..3000, 1),
        2 => (dwarfs, 1000_u64..3000, any::<prop::sample::Index>()).prop_map(|(mut sizes, giant, at)| {
            sizes.insert(at.index(sizes.len() + 1), giant);
            sizes
        }),
        1 => prop::collection::vec(Just(0_u64), 0..3),
    ]
}
