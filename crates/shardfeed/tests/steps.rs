//! Steps as a job meets them: numbered, skipped, explained, resumed at another size, and prepared by threads that
//! nobody notices.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Barrier;

use common::{NaiveSequence, Row, TestData, cases, naive_sequences, order_of, padding, rows_of, test_data};
use proptest::prelude::*;
use shardfeed::sample::WriteOptions;
use shardfeed::{
    Batch, CachePolicy, EpochOrder, Error, LabelStyle, Packing, Rank, SequenceOrigin, SkipsError, StateError,
    StepOrigin, StreamState, Tail, TokenLoader, TokenLoaderBuilder, mix,
};

const PAD_ID: u32 = 9;

/// What a stream is asked to do, whatever the size of the job.
#[derive(Clone, Debug)]
struct Wish {
    seq_len: u32,
    packing: Packing,
    eos_id: Option<u32>,
    seed: u64,
    shuffle: bool,
    lanes: Option<u32>,
    window: Option<u32>,
    tail: Tail,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            seq_len: 16,
            packing: Packing::Concat,
            eos_id: None,
            seed: 3,
            shuffle: true,
            lanes: Some(10),
            window: Some(4),
            tail: Tail::Pad,
        }
    }
}

impl Wish {
    fn builder(&self, dir: &Path, global_batch: u32) -> TokenLoaderBuilder {
        let mut builder = TokenLoader::builder(dir, self.seq_len, global_batch)
            .seed(self.seed)
            .shuffle(self.shuffle)
            .packing(self.packing)
            .eos_id(self.eos_id)
            .tail(self.tail)
            .pad_id(PAD_ID)
            .threads(1);
        if let Some(lanes) = self.lanes {
            builder = builder.lanes(lanes);
        }
        if let Some(window) = self.window {
            builder = builder.window(window);
        }
        builder
    }
}

fn wish() -> impl Strategy<Value = Wish> {
    let order = (any::<u64>(), prop::bool::weighted(0.85), 1_u32..30, 1_u32..12);
    let line = (1_u32..40, prop_oneof![Just(Packing::Concat), Just(Packing::Pad)], any::<bool>());
    (order, line).prop_map(|((seed, shuffle, lanes, window), (seq_len, packing, eos))| Wish {
        seq_len,
        packing,
        eos_id: eos.then_some(7),
        seed,
        shuffle,
        lanes: shuffle.then_some(lanes),
        window: shuffle.then_some(window),
        tail: Tail::Pad,
    })
}

/// One global batch, put together from all ranks, without padding.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    epoch: u64,
    number: u64,
    rows: Vec<NaiveSequence>,
}

/// All ranks of a job, one loader each, taking their steps together.
struct Job {
    global_batch: u32,
    loaders: Vec<TokenLoader>,
}

impl Job {
    fn start(wish: &Wish, dir: &Path, global_batch: u32, world_size: u32) -> Self {
        Self::build(|| wish.builder(dir, global_batch), global_batch, world_size)
    }

    fn resume(wish: &Wish, dir: &Path, global_batch: u32, world_size: u32, state: &str) -> Self {
        let state = StreamState::from_json(state).unwrap();
        Self::build(|| wish.builder(dir, global_batch).resume_from(state.clone()), global_batch, world_size)
    }

    fn build(builder: impl Fn() -> TokenLoaderBuilder, global_batch: u32, world_size: u32) -> Self {
        let loaders = (0..world_size)
            .map(|index| builder().rank(Rank::new(index, world_size).unwrap()).build().unwrap())
            .collect();
        Self { global_batch, loaders }
    }

    /// The next step, `None` at the end of the epoch: on all ranks at once.
    fn next(&mut self) -> Option<Step> {
        let batches: Vec<Option<Batch>> =
            self.loaders.iter_mut().map(|loader| loader.next_batch().unwrap()).collect();
        let batches: Vec<Batch> = match batches.iter().flatten().count() {
            0 => return None,
            some => {
                assert_eq!(some, batches.len(), "all ranks end together");
                batches.into_iter().flatten().collect()
            }
        };
        let (epoch, number) = (batches[0].epoch, batches[0].step);
        assert!(batches.iter().all(|batch| (batch.epoch, batch.step) == (epoch, number)));
        assert_eq!(batches.iter().map(|batch| batch.rows).sum::<usize>(), self.global_batch as usize);
        let nothing = padding(batches[0].seq_len, PAD_ID);
        let rows = batches.iter().flat_map(rows_of).filter(|row| *row != nothing).collect();
        Some(Step { epoch, number, rows })
    }

    fn take(&mut self, steps: usize) -> Vec<Step> {
        (0..steps).map(|_| self.next().expect("the epoch has more steps")).collect()
    }

    /// What is left of the epoch.
    fn rest(&mut self) -> Vec<Step> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn skip(&mut self, steps: &Range<u64>) -> Result<(), String> {
        let results: Vec<Result<(), String>> = self
            .loaders
            .iter_mut()
            .map(|loader| loader.skip(steps.clone()).map_err(|error| error.to_string()))
            .collect();
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        results[0].clone()
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.loaders.iter_mut().for_each(|loader| loader.set_epoch(epoch));
    }

    /// The state: the same bytes on every rank, and small.
    fn state(&self) -> String {
        let states: Vec<String> = self.loaders.iter().map(|loader| loader.state().to_json()).collect();
        assert!(states.iter().all(|state| *state == states[0]) && states[0].len() < 1024, "{states:?}");
        states[0].clone()
    }

    fn position(&self) -> u64 {
        self.loaders[0].state().position
    }

    fn sequences(&self) -> u64 {
        self.loaders[0].sequences_per_epoch()
    }
}

/// Which positions an epoch still has to deliver, naively: a list of them.
struct Model {
    order: EpochOrder,
    line: Vec<NaiveSequence>,
    left: Vec<u64>,
}

impl Model {
    fn new(data: &TestData, loader: &TokenLoader, epoch: u64) -> Self {
        let order = order_of(loader.manifest(), loader.settings(), epoch);
        let line =
            naive_sequences(&data.row_groups(), &order, loader.settings(), LabelStyle::Shifted, PAD_ID);
        let left = (0..line.len() as u64).collect();
        Self { order, line, left }
    }

    /// The steps to come with this global batch, as positions.
    fn steps(&self, global_batch: u32) -> Vec<Vec<u64>> {
        self.left.chunks(global_batch as usize).map(<[u64]>::to_vec).collect()
    }

    fn rows(&self, positions: &[u64]) -> Vec<NaiveSequence> {
        let mut positions = positions.to_vec();
        positions.sort_by_key(|&position| (self.order.place(position).lane, position));
        positions.iter().map(|&position| self.line[self.order.sequence(position) as usize].clone()).collect()
    }

    fn remove(&mut self, positions: &[u64]) {
        self.left.retain(|position| !positions.contains(position));
    }
}

/// A few hundred sequences of 16 tokens, with null and empty rows among the others.
fn some_data() -> TestData {
    let mut ids = 100_u32..;
    let files = (0..4_u64)
        .map(|file| {
            (0..60_u64)
                .map(|row| match mix(file << 32 | row) % 40 {
                    0 => None,
                    len => Some(ids.by_ref().take(len as usize - 1).collect()),
                })
                .collect::<Vec<Row>>()
        })
        .collect();
    TestData {
        files,
        options: WriteOptions { rows_per_group: 7, page_bytes: 200, ..WriteOptions::default() },
    }
}

/// [`some_data`] on disk.
fn some_dir() -> (tempfile::TempDir, TestData) {
    let (dir, data) = (tempfile::tempdir().unwrap(), some_data());
    data.write(dir.path());
    (dir, data)
}

fn has_tokens(data: &TestData) -> bool {
    data.files.iter().flatten().flatten().any(|row| !row.is_empty())
}

/// One leg of a run: resumed with this global batch at this world size, perhaps skipping, then taking some steps.
#[derive(Clone, Debug)]
struct Leg {
    global_batch: u32,
    world_size: u32,
    /// Steps from the next one to the first skipped, and how many.
    skip: Option<(u64, u64)>,
    take: usize,
}

fn legs(count: Range<usize>, skips: bool) -> impl Strategy<Value = Vec<Leg>> {
    let leg = (1_u32..16, any::<prop::sample::Index>(), prop::option::of((0_u64..6, 1_u64..5)), 0_usize..6)
        .prop_map(move |(global_batch, world_size, skip, take)| Leg {
            global_batch,
            world_size: 1 + world_size.index((global_batch as usize).min(4)) as u32,
            skip: skip.filter(|_| skips),
            take,
        });
    prop::collection::vec(leg, count)
}

/// Runs an epoch leg by leg and compares every step with the list of positions that are left.
fn check_legs(data: &TestData, wish: &Wish, legs: &[Leg]) {
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    let first = Job::start(wish, dir.path(), legs[0].global_batch, 1);
    let mut model = Model::new(data, &first.loaders[0], 0);
    let mut state = first.state();
    let mut last_number = None;
    let mut has_skipped = false;
    for leg in legs {
        let mut job = Job::resume(wish, dir.path(), leg.global_batch, leg.world_size, &state);
        // What would come if nothing more were skipped: the next sequences from position, again and again.
        let planned = model.steps(leg.global_batch);
        let unskipped = Job::resume(wish, dir.path(), leg.global_batch, 1, &state).rest();
        assert_eq!(unskipped.len(), planned.len(), "{leg:?}");
        for (step, positions) in unskipped.iter().zip(&planned) {
            assert_eq!(step.rows, model.rows(positions), "{leg:?}, step {}", step.number);
        }
        let mut numbers: Vec<u64> = unskipped.iter().map(|step| step.number).collect();
        let all_numbers: Vec<u64> = last_number.into_iter().chain(numbers.iter().copied()).collect();
        assert!(all_numbers.is_sorted_by(|a, b| a < b), "steps are numbered upwards: {all_numbers:?}");
        if !has_skipped {
            assert!(all_numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{all_numbers:?}");
        }
        if let (Some((ahead, len)), Some(next)) = (leg.skip, numbers.first()) {
            let skipped = next + ahead..next + ahead + len;
            let is_skipped = |number: &u64| skipped.contains(number);
            let result = job.skip(&skipped);
            assert_eq!(result.is_ok(), numbers.iter().any(is_skipped), "{leg:?}: {numbers:?}: {result:?}");
            for (number, positions) in numbers.iter().zip(&planned) {
                if is_skipped(number) {
                    model.remove(positions);
                    has_skipped = true;
                }
            }
            numbers.retain(|number| !is_skipped(number));
            // Nothing else has changed, at any world size, also after a resume.
            let rest = Job::resume(wish, dir.path(), leg.global_batch, 1, &job.state()).rest();
            let kept = unskipped.iter().filter(|step| !skipped.contains(&step.number));
            assert!(kept.eq(&rest), "{leg:?}: all other steps stay as they were");
        }
        for (number, positions) in numbers.into_iter().zip(model.steps(leg.global_batch)).take(leg.take) {
            let step = job.next().expect("the model has one");
            assert_eq!((step.number, step.rows), (number, model.rows(&positions)), "{leg:?}");
            model.remove(&positions);
            last_number = Some(number);
        }
        state = job.state();
    }
    let last = legs.last().expect("at least one");
    let mut job = Job::resume(wish, dir.path(), last.global_batch, 1, &state);
    for positions in model.steps(last.global_batch) {
        let step = job.next().expect("the model has one");
        assert_eq!(step.rows, model.rows(&positions));
        assert!(last_number.is_none_or(|number| number < step.number));
        last_number = Some(step.number);
        model.remove(&positions);
    }
    assert_eq!(job.next(), None);
    assert!(model.left.is_empty(), "every sequence was delivered or skipped, once");
    // The next epoch is whole again.
    assert!(job.loaders[0].state().skips.ranges().is_empty());
    let model = Model::new(data, &job.loaders[0], 1);
    let steps = job.rest();
    assert!(steps.iter().map(|step| step.number).eq(0..steps.len() as u64));
    assert!(steps.iter().map(|step| &step.rows).eq(
        &model.steps(last.global_batch).iter().map(|positions| model.rows(positions)).collect::<Vec<_>>()
    ));
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn changes_of_the_global_batch_lose_and_repeat_nothing(
        data in test_data(),
        wish in wish(),
        legs in legs(2..12, false),
    ) {
        prop_assume!(has_tokens(&data));
        check_legs(&data, &wish, &legs);
    }

    #[test]
    fn skipping_leaves_all_other_steps_as_they_were_also_after_changes_of_the_global_batch(
        data in test_data(),
        wish in wish(),
        legs in legs(1..8, true),
    ) {
        prop_assume!(has_tokens(&data));
        check_legs(&data, &wish, &legs);
    }
}

#[test]
fn after_a_change_of_the_global_batch_the_next_step_is_the_next_sequences_from_position() {
    let (dir, data) = some_dir();
    let wish = Wish::default();
    let mut job = Job::start(&wish, dir.path(), 8, 2);
    let model = Model::new(&data, &job.loaders[0], 0);
    job.take(3);
    let mut job = Job::resume(&wish, dir.path(), 13, 4, &job.state());
    let steps = job.take(2);
    assert_eq!(steps[0].rows, model.rows(&(24..37).collect::<Vec<_>>()));
    assert_eq!(steps[1].rows, model.rows(&(37..50).collect::<Vec<_>>()));
    assert_eq!(steps.iter().map(|step| step.number).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(job.position(), 50);
}

#[test]
fn more_changes_than_the_state_remembers_still_deliver_everything_once() {
    let (dir, data) = some_dir();
    let wish = Wish::default();
    let mut job = Job::start(&wish, dir.path(), 5, 1);
    let mut model = Model::new(&data, &job.loaders[0], 0);
    for change in 0..20 {
        let global_batch = 5 + change % 4;
        job = Job::resume(&wish, dir.path(), global_batch, 1 + change % 3, &job.state());
        let positions = model.steps(global_batch)[0].clone();
        let step = job.next().unwrap();
        assert_eq!((step.number, step.rows), (u64::from(change), model.rows(&positions)));
        model.remove(&positions);
    }
    let global_batch = job.global_batch;
    let planned: Vec<_> = model.steps(global_batch).iter().map(|positions| model.rows(positions)).collect();
    assert!(job.rest().into_iter().map(|step| step.rows).eq(planned));
}

#[test]
fn skipped_steps_are_left_out_alike_at_every_world_size() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let all = Job::start(&wish, dir.path(), 12, 1).rest();
    let kept: Vec<Step> = all.iter().filter(|step| ![5, 6, 9].contains(&step.number)).cloned().collect();
    for world_size in [1, 2, 5, 12] {
        let mut job = Job::start(&wish, dir.path(), 12, world_size);
        let mut steps = job.take(3);
        job.skip(&(5..7)).unwrap();
        job.skip(&(9..10)).unwrap();
        let skipped = job.loaders[0].state().skips.ranges().to_vec();
        assert_eq!(skipped, [60..84, 108..120], "positions, in the state");
        steps.extend(job.rest());
        assert_eq!(steps, kept, "world size {world_size}");
    }
}

#[test]
fn a_skip_is_kept_across_a_resume_at_another_world_size_and_dropped_at_the_end_of_the_epoch() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let mut unskipped = Job::start(&wish, dir.path(), 12, 1);
    let (first_epoch, second_epoch) = (unskipped.rest(), unskipped.rest());

    let mut job = Job::start(&wish, dir.path(), 12, 3);
    job.take(2);
    job.skip(&(4..8)).unwrap();
    let mut job = Job::resume(&wish, dir.path(), 12, 7, &job.state());
    assert_eq!(job.take(2), first_epoch[2..4]);
    let mut job = Job::resume(&wish, dir.path(), 12, 2, &job.state());
    assert_eq!(job.rest(), first_epoch[8..]);
    assert_eq!(job.loaders[0].state().skips.ranges(), []);
    assert_eq!(job.rest(), second_epoch);
}

#[test]
fn skips_in_batches_of_another_size_leave_every_other_step_alone() {
    // With 8 sequences a step, positions 40..56 are skipped; with 10 a step from 16 on, one step straddles the
    // hole, so that later steps no longer begin at multiples of 10.
    let (dir, data) = some_dir();
    let wish = Wish::default();
    let mut job = Job::start(&wish, dir.path(), 8, 1);
    let model = Model::new(&data, &job.loaders[0], 0);
    job.take(2);
    job.skip(&(5..7)).unwrap();
    let state = job.state();
    let before = Job::resume(&wish, dir.path(), 10, 1, &state).rest();
    let straddling: Vec<u64> = (36..40).chain(56..62).collect();
    assert_eq!(before[2].rows, model.rows(&straddling));
    for (taken, index) in [(0, 2), (0, 3), (2, 3), (3, 3), (3, 4), (3, 6)] {
        let mut job = Job::resume(&wish, dir.path(), 10, 3, &state);
        let mut steps = job.take(taken);
        let number = before[index].number;
        job.skip(&(number..number + 1)).unwrap();
        steps.extend(job.rest());
        let kept: Vec<Step> = before.iter().filter(|step| step.number != number).cloned().collect();
        assert_eq!(steps, kept, "step {number} skipped after {taken} steps");
    }
}

#[test]
fn what_cannot_be_skipped_is_refused_with_the_numbers() {
    let (dir, _) = some_dir();
    let mut loader = Wish::default().builder(dir.path(), 12).build().unwrap();
    let steps = loader.steps_per_epoch();
    for _ in 0..5 {
        loader.next_batch().unwrap();
    }
    let before = loader.state().to_json();
    let refused = |loader: &mut TokenLoader, start: u64, end: u64| match loader.skip(Range { start, end }) {
        Err(Error::Skips(error)) => error,
        other => panic!("{start}..{end}: {other:?}"),
    };
    for (start, end) in [(7, 7), (9, 3), (0, 0), (u64::MAX, 0)] {
        let error = refused(&mut loader, start, end);
        assert_eq!(error, SkipsError::Empty { start, end });
        let message = error.to_string();
        assert!(message.contains(&format!("{start}..{end}")), "{message}");
    }
    for (start, end) in [(0, 1), (0, 5), (4, 5), (steps, steps + 1), (steps + 3, u64::MAX)] {
        let error = refused(&mut loader, start, end);
        assert_eq!(error, SkipsError::OutOfReach { start, end, next: 5, steps });
        let message = error.to_string();
        let numbers = [format!("{start}..{end}"), "step is 5".to_owned(), format!("step {steps}")];
        assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
    }
    assert_eq!(loader.state().to_json(), before, "a refusal changes nothing");
    assert_eq!(loader.next_batch().unwrap().unwrap().step, 5);
}

#[test]
fn a_refused_skip_names_the_step_that_really_comes_next() {
    // One step straddles a hole, so that the next begins in the middle of its nominal range.
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let mut job = Job::start(&wish, dir.path(), 8, 1);
    job.take(2);
    job.skip(&(5..7)).unwrap();
    let mut job = Job::resume(&wish, dir.path(), 10, 1, &job.state());
    job.take(3);
    let next = Job::resume(&wish, dir.path(), 10, 1, &job.state()).next().unwrap().number;
    match job.loaders[0].skip(0..1) {
        Err(Error::Skips(SkipsError::OutOfReach { next: said, .. })) => assert_eq!(said, next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_left_of_a_partly_delivered_range_is_skipped() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let all = Job::start(&wish, dir.path(), 12, 1).rest();
    let mut job = Job::start(&wish, dir.path(), 12, 2);
    assert_eq!(job.take(4), all[..4]);
    job.skip(&(1..7)).unwrap();
    assert_eq!(job.loaders[0].state().skips.ranges(), std::slice::from_ref(&(48..84)));
    assert_eq!(job.rest(), all[7..]);
}

#[test]
fn a_range_that_reaches_past_the_end_skips_to_the_end() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let mut unskipped = Job::start(&wish, dir.path(), 12, 1);
    let (all, second_epoch) = (unskipped.rest(), unskipped.rest());
    for end in [all.len() as u64, all.len() as u64 + 1, 1_000_000, u64::MAX] {
        let mut job = Job::start(&wish, dir.path(), 12, 2);
        job.skip(&(6..end)).unwrap();
        assert_eq!(job.rest(), all[..6], "to {end}");
        assert_eq!(job.rest(), second_epoch);
    }
    // All of it: the end is announced at once.
    let mut job = Job::start(&wish, dir.path(), 12, 2);
    job.skip(&(0..all.len() as u64)).unwrap();
    let mut resumed = Job::resume(&wish, dir.path(), 12, 3, &job.state());
    for job in [&mut job, &mut resumed] {
        assert_eq!(job.next(), None);
        assert_eq!(job.rest(), second_epoch);
    }
}

#[test]
fn a_seventeenth_range_is_refused_and_neighbours_join() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let all = Job::start(&wish, dir.path(), 4, 1).rest();
    assert!(all.len() > 40);
    let mut job = Job::start(&wish, dir.path(), 4, 2);
    for range in 0..16 {
        job.skip(&(2 * range + 1..2 * range + 2)).unwrap();
    }
    let before = job.state();
    let message = job.skip(&(38..39)).unwrap_err();
    assert!(message.contains("16"), "{message}");
    assert_eq!(job.state(), before, "a refusal changes nothing");
    // Between two ranges: three become one, and there is room again.
    job.skip(&(4..5)).unwrap();
    job.skip(&(38..39)).unwrap();
    let kept: Vec<Step> = all
        .into_iter()
        .filter(|step| {
            let number = step.number;
            !(number < 32 && number % 2 == 1 || number == 4 || number == 38)
        })
        .collect();
    assert_eq!(Job::resume(&wish, dir.path(), 4, 3, &job.state()).rest(), kept);
}

#[test]
fn set_epoch_keeps_the_position_within_the_epoch_and_begins_any_other() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let mut unbroken = Job::start(&wish, dir.path(), 12, 1);
    let epochs = [unbroken.rest(), unbroken.rest(), unbroken.rest()];
    let mut job = Job::start(&wish, dir.path(), 12, 2);
    job.set_epoch(0);
    assert_eq!(job.take(4), epochs[0][..4]);
    job.skip(&(6..8)).unwrap();
    job.set_epoch(0);
    assert_eq!(job.take(2), epochs[0][4..6], "as trainers call it after a resume");
    let mut job = Job::resume(&wish, dir.path(), 12, 3, &job.state());
    job.set_epoch(0);
    assert_eq!(job.take(1), epochs[0][8..9]);
    job.set_epoch(2);
    assert_eq!(job.position(), 0);
    assert_eq!(job.take(3), epochs[2][..3]);
    job.set_epoch(0);
    assert_eq!(job.rest(), epochs[0], "with nothing skipped any more");
    assert_eq!(job.rest(), epochs[1]);
}

#[test]
fn after_the_last_step_the_end_is_announced_once_also_to_a_resumed_run() {
    let (dir, _) = some_dir();
    for tail in [Tail::Pad, Tail::Drop, Tail::Wrap] {
        let wish = Wish { tail, ..Wish::default() };
        let mut job = Job::start(&wish, dir.path(), 12, 2);
        let steps = job.loaders[0].steps_per_epoch();
        job.take(steps as usize);
        if tail != Tail::Drop {
            assert_eq!(job.position(), job.sequences());
        }
        assert_eq!((job.loaders[0].state().epoch, job.loaders[0].steps_left()), (0, 0));
        let state = job.state();
        for world_size in [1, 2, 5] {
            let mut resumed = Job::resume(&wish, dir.path(), 12, world_size, &state);
            resumed.set_epoch(0);
            assert_eq!(resumed.next(), None, "the end, which was not yet announced");
            assert_eq!((resumed.loaders[0].state().epoch, resumed.position()), (1, 0));
            let mut unbroken = Job::resume(&wish, dir.path(), 12, 1, &state);
            assert_eq!(unbroken.next(), None);
            assert_eq!(resumed.rest(), unbroken.rest());
            assert_eq!(resumed.loaders[0].state().epoch, 2);
        }
        // Announced, and then saved: the next epoch begins.
        assert_eq!(job.next(), None);
        let mut resumed = Job::resume(&wish, dir.path(), 12, 3, &job.state());
        let step = resumed.next().unwrap();
        assert_eq!((step.epoch, step.number), (1, 0));
    }
}

/// What a trainer sees.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Step(Step),
    EpochEnds(u64),
}

fn next_event(job: &mut Job) -> Event {
    let epoch = job.loaders[0].state().epoch;
    job.next().map_or(Event::EpochEnds(epoch), Event::Step)
}

/// What happens to a job between two steps.
#[derive(Clone, Debug)]
enum Happening {
    Step,
    Save,
    /// All ranks die; the job begins again from what was saved last, on this many ranks.
    Crash(prop::sample::Index),
    /// As trainers do after a resume.
    SetCurrentEpoch,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let happening = prop_oneof![
        8 => Just(Happening::Step),
        4 => Just(Happening::Save),
        3 => any::<prop::sample::Index>().prop_map(Happening::Crash),
        1 => Just(Happening::SetCurrentEpoch),
    ];
    prop::collection::vec(happening, 20..90)
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_run_with_many_crashes_shows_the_same_events_ends_of_iteration_included(
        data in test_data(),
        wish in wish(),
        tail in prop_oneof![Just(Tail::Pad), Just(Tail::Drop), Just(Tail::Wrap)],
        // Small steps and large ones: from many a crash within an epoch to many an epoch between crashes.
        global_batch in prop_oneof![1_u32..8, 8_u32..60],
        happenings in happenings(),
        skip_at in any::<prop::sample::Index>(),
        skipped in (0_u64..12, 1_u64..4),
    ) {
        prop_assume!(has_tokens(&data));
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let wish = Wish { tail, ..wish };
        match wish.builder(dir.path(), global_batch).build() {
            Err(Error::Tail { .. }) => return Ok(()),
            built => built.map(drop).unwrap(),
        }
        let events_wanted = happenings.len();
        let skip_at = skip_at.index(events_wanted);
        let skipped = skipped.0..skipped.0 + skipped.1;
        // Refused where the range is behind or past the end: then in both runs.
        let skip_if_due = |job: &mut Job, events: usize| {
            if events == skip_at {
                let _ = job.skip(&skipped);
            }
        };

        let mut unbroken = Job::start(&wish, dir.path(), global_batch, 1);
        let mut expected = Vec::new();
        while expected.len() < events_wanted {
            skip_if_due(&mut unbroken, expected.len());
            expected.push(next_event(&mut unbroken));
        }

        let mut job = Job::start(&wish, dir.path(), global_batch, 1);
        let (mut saved, mut events) = ((job.state(), 0), Vec::new());
        for happening in &happenings {
            match happening {
                Happening::Step => {
                    skip_if_due(&mut job, events.len());
                    events.push(next_event(&mut job));
                }
                Happening::Save => saved = (job.state(), events.len()),
                Happening::Crash(world_size) => {
                    let world_size = 1 + world_size.index((global_batch as usize).min(5)) as u32;
                    job = Job::resume(&wish, dir.path(), global_batch, world_size, &saved.0);
                    // What came after the save is trained on again.
                    events.truncate(saved.1);
                }
                Happening::SetCurrentEpoch => job.set_epoch(job.loaders[0].state().epoch),
            }
        }
        while events.len() < events_wanted {
            skip_if_due(&mut job, events.len());
            events.push(next_event(&mut job));
        }
        prop_assert_eq!(events, expected);
    }
}

#[test]
fn a_state_brings_the_automatic_settings_it_was_saved_with() {
    let (dir, data) = some_dir();
    let wish = Wish { lanes: None, window: None, ..Wish::default() };
    let mut job = Job::start(&wish, dir.path(), 16, 1);
    let settings = job.loaders[0].settings().clone();
    let fresh = wish.builder(dir.path(), 10).build().unwrap().settings().clone();
    assert_ne!(settings.lanes, fresh.lanes, "another global batch would choose other lanes");
    let model = Model::new(&data, &job.loaders[0], 0);
    job.take(2);
    let mut resumed = Job::resume(&wish, dir.path(), 10, 3, &job.state());
    assert_eq!(*resumed.loaders[0].settings(), settings);
    assert_eq!(resumed.next().unwrap().rows, model.rows(&(32..42).collect::<Vec<_>>()));
    assert_eq!(resumed.rest().last().unwrap().number, 2 + (job.sequences() - 32).div_ceil(10) - 1);
    assert_eq!(*resumed.loaders[0].settings(), settings, "in the next epoch too");

    let state = StreamState::from_json(&job.state()).unwrap();
    let resume = |builder: TokenLoaderBuilder| builder.resume_from(state.clone()).build();
    let builder = || wish.builder(dir.path(), 10);
    resume(builder().lanes(settings.lanes).window(settings.window)).unwrap();
    let refusals = [
        (resume(builder().lanes(fresh.lanes)), "lanes", settings.lanes, fresh.lanes),
        (resume(builder().window(5)), "window", settings.window, 5),
    ];
    for (refused, name, saved, given) in refusals {
        let error = refused.err().expect("an explicit setting that differs");
        assert!(
            matches!(error, Error::State(StateError::OtherSetting { setting, .. }) if setting == name),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains(&saved.to_string()) && message.contains(&given.to_string()), "{message}");
    }
    // A running loader refuses it as well, and stays where it was.
    let mut loader = builder().lanes(20).build().unwrap();
    loader.next_batch().unwrap();
    let before = loader.state().to_json();
    assert!(matches!(loader.load_state(&state), Err(Error::State(StateError::OtherSetting { .. }))));
    assert_eq!(loader.state().to_json(), before);
    assert_eq!(loader.next_batch().unwrap().unwrap().step, 1);
}

fn all_batches(builder: TokenLoaderBuilder) -> Vec<Batch> {
    builder.build().unwrap().batches().collect::<Result<_, _>>().unwrap()
}

#[test]
fn ranks_of_a_replica_group_get_identical_batches() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let of_rank =
        |index| all_batches(wish.builder(dir.path(), 12).rank(Rank::new(index, 5).unwrap()).cu_seqlens(true));
    for index in 0..5 {
        let replica = of_rank(index);
        assert!(!replica.is_empty());
        assert_eq!(replica, of_rank(index));
    }
    assert_ne!(of_rank(0), of_rank(1));
}

#[test]
fn any_number_of_threads_gives_identical_batches() {
    let (dir, _) = some_dir();
    for packing in [Packing::Concat, Packing::Pad] {
        let wish = Wish { packing, eos_id: Some(7), ..Wish::default() };
        let of_threads =
            |threads| all_batches(wish.builder(dir.path(), 12).cu_seqlens(true).threads(threads));
        let expected = of_threads(1);
        assert!(expected.len() > 20);
        for threads in [2, 5] {
            assert_eq!(of_threads(threads), expected, "{threads} threads");
        }
    }
}

#[test]
fn two_loaders_over_one_directory_do_not_disturb_each_other() {
    let (dir, _) = some_dir();
    let one = Wish { eos_id: Some(7), ..Wish::default() };
    let other = Wish { packing: Packing::Pad, seq_len: 10, seed: 99, ..Wish::default() };
    let builders = || [one.builder(dir.path(), 12), other.builder(dir.path(), 7).threads(2)];
    let alone = builders().map(all_batches);
    let mut loaders = builders().map(|builder| builder.build().unwrap());
    let mut together = [Vec::new(), Vec::new()];
    for turn in 0.. {
        if alone.iter().zip(&together).all(|(alone, together)| alone.len() == together.len()) {
            break;
        }
        let which = (mix(turn) % 2) as usize;
        if together[which].len() < alone[which].len() {
            together[which].extend(loaders[which].next_batch().unwrap());
        }
    }
    assert_eq!(together, alone);
}

#[test]
fn loaders_that_start_at_once_share_one_manifest_and_see_the_same() {
    let wish = Wish::default();
    let expected = all_batches(wish.builder(some_dir().0.path(), 12));
    for _ in 0..20 {
        let (dir, _) = some_dir();
        // Beside the data as by default, but nowhere else: what fails must not end up in the user's own cache.
        let cache = CachePolicy::At(dir.path().join(".shardfeed").join("manifest"));
        let builder = || wish.builder(dir.path(), 12).cache(cache.clone());
        let barrier = Barrier::new(6);
        std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                let mut loader = builder().build().unwrap();
                let batches: Vec<Batch> = loader.batches().collect::<Result<_, _>>().unwrap();
                (batches, loader.scan_report().cache_notes.clone())
            };
            let ranks: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
            for rank in ranks {
                let (batches, notes) = rank.join().unwrap();
                assert_eq!(batches, expected);
                assert_eq!(notes, Vec::<String>::new(), "nobody finds or leaves a broken manifest");
            }
        });
        let report = builder().build().unwrap().scan_report().clone();
        assert_eq!((report.files_read, report.files_cached), (0, 4), "{report:?}");
    }
}

/// The tokens that an origin names, taken from the test's own rows.
fn tokens_at(origin: &SequenceOrigin, data: &TestData, wish: &Wish) -> Vec<i64> {
    let eos_id = wish.eos_id.filter(|_| wish.packing == Packing::Concat);
    let mut tokens = Vec::new();
    for part in &origin.parts {
        let file: usize = part.file["part-".len()..][..3].parse().unwrap();
        assert_eq!(part.file, format!("part-{file:03}.parquet"));
        let row_group =
            data.files[file].chunks(data.options.rows_per_group).nth(part.row_group as usize).unwrap();
        let lengths = row_group.iter().map(|row| row.as_ref().map_or(0, Vec::len) as u64);
        let mut row_start: u64 = lengths.take(part.rows.start as usize).sum();
        assert_eq!(row_start + part.first_token_of_row, part.tokens.start, "{part:?}");
        let rows = part.rows.start as usize..part.rows.end as usize;
        for (index, row) in row_group[rows.clone()].iter().enumerate() {
            let row = row.as_deref().unwrap_or_default();
            let row_end = row_start + row.len() as u64;
            let is_outermost = index == 0 || index + 1 == rows.len();
            assert!(!row.is_empty() || !is_outermost, "{part:?} begins and ends with rows that have tokens");
            let from = part.tokens.start.max(row_start) - row_start;
            let to = part.tokens.end.min(row_end) - row_start;
            tokens.extend(&row[from as usize..to as usize]);
            if part.tokens.end >= row_end && !row.is_empty() {
                tokens.extend(eos_id);
            }
            row_start = row_end;
        }
        assert!(part.tokens.end <= row_start, "{part:?} names all rows of its tokens");
    }
    // Where a sequence ends with a row's last token, the id that ends the row begins the next sequence.
    if tokens.len() == wish.seq_len as usize + 1 {
        assert_eq!(tokens.pop(), eos_id);
    }
    tokens.into_iter().map(i64::from).collect()
}

/// The tokens of a batch's row, padding left out.
fn real_tokens(row: &NaiveSequence) -> Vec<i64> {
    let real = row.document_ids.iter().take_while(|&&document| document >= 0).count();
    row.input_ids[..real].to_vec()
}

fn explained_tokens(origin: &StepOrigin, data: &TestData, wish: &Wish) -> Vec<Vec<i64>> {
    origin.sequences.iter().map(|sequence| tokens_at(sequence, data, wish)).collect()
}

fn delivered_tokens(step: &Step) -> Vec<Vec<i64>> {
    step.rows.iter().map(real_tokens).collect()
}

fn is_no_step(result: &Result<StepOrigin, Error>, step: u64) -> bool {
    matches!(result, Err(Error::NoStep { step: named, .. }) if *named == step)
}

#[test]
fn explained_tokens_are_those_of_the_batches_rank_by_rank_and_row_by_row() {
    let (dir, data) = some_dir();
    let orders =
        [(false, None, None), (true, Some(1), Some(8)), (true, Some(10), Some(4)), (true, None, None)];
    for packing in [Packing::Concat, Packing::Pad] {
        for eos_id in [None, Some(7)] {
            for (shuffle, lanes, window) in orders {
                for (tail, world_size) in [(Tail::Pad, 1), (Tail::Pad, 5), (Tail::Wrap, 3)] {
                    let wish = Wish { packing, eos_id, shuffle, lanes, window, tail, ..Wish::default() };
                    let rank = |index| Rank::new(index, world_size).unwrap();
                    let explainer = wish.builder(dir.path(), 12).rank(rank(0)).build().unwrap();
                    let mut explained: BTreeMap<(u64, u32, usize), Vec<i64>> = BTreeMap::new();
                    for step in 0..explainer.steps_per_epoch() {
                        let origin = explainer.explain(step).unwrap();
                        assert_eq!((origin.step, origin.epoch), (step, 0));
                        for sequence in &origin.sequences {
                            let tokens = tokens_at(sequence, &data, &wish);
                            explained.insert((step, sequence.rank, sequence.row), tokens);
                        }
                    }
                    let past = explainer.steps_per_epoch();
                    assert!(is_no_step(&explainer.explain(past), past));
                    let mut delivered = BTreeMap::new();
                    for index in 0..world_size {
                        for batch in all_batches(wish.builder(dir.path(), 12).rank(rank(index))) {
                            for (row, sequence) in rows_of(&batch).iter().take(batch.real_rows).enumerate() {
                                delivered.insert((batch.step, index, row), real_tokens(sequence));
                            }
                        }
                    }
                    assert_eq!(explained, delivered, "{wish:?}, world size {world_size}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn steps_are_explained_after_changes_of_the_global_batch_and_skips(
        data in test_data(),
        wish in wish(),
        legs in legs(1..7, true),
    ) {
        prop_assume!(has_tokens(&data));
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let mut state = Job::start(&wish, dir.path(), legs[0].global_batch, 1).state();
        let mut delivered = Vec::new();
        for leg in &legs {
            let mut job = Job::resume(&wish, dir.path(), leg.global_batch, leg.world_size, &state);
            if let Some((ahead, len)) = leg.skip {
                let next = delivered.last().map_or(0, |step: &Step| step.number + 1);
                // A range with no step in it is refused, and then nothing is skipped.
                let _ = job.skip(&(next + ahead..next + ahead + len));
            }
            if job.loaders[0].steps_left() > leg.take as u64 {
                delivered.extend(job.take(leg.take));
            }
            state = job.state();
        }
        let last = legs.last().expect("at least one");
        let mut job = Job::resume(&wish, dir.path(), last.global_batch, 1, &state);
        let explainer = wish
            .builder(dir.path(), last.global_batch)
            .rank(Rank::new(0, last.world_size).unwrap())
            .resume_from(StreamState::from_json(&state).unwrap())
            .build()
            .unwrap();
        // Those delivered, and those to come.
        let steps: BTreeMap<u64, Step> =
            delivered.into_iter().chain(job.rest()).map(|step| (step.number, step)).collect();
        let last_number = steps.keys().last().copied().unwrap_or(0);
        for number in (0..last_number + 4).chain([1 << 40, u64::MAX]) {
            match (explainer.explain(number), steps.get(&number)) {
                (Ok(origin), Some(step)) => {
                    prop_assert_eq!(explained_tokens(&origin, &data, &wish), delivered_tokens(step));
                }
                (result, None) => prop_assert!(is_no_step(&result, number), "{}: {:?}", number, result),
                (Err(error), Some(_)) => prop_assert!(false, "step {}: {}", number, error),
            }
        }
    }
}

#[test]
fn a_step_that_was_skipped_or_never_was_is_not_explained() {
    let (dir, _) = some_dir();
    let wish = Wish::default();
    let mut job = Job::start(&wish, dir.path(), 12, 2);
    job.take(3);
    job.skip(&(5..7)).unwrap();
    let steps = job.loaders[0].steps_per_epoch();
    for loader in &job.loaders {
        for step in (0..steps + 3).chain([u64::MAX]) {
            let result = loader.explain(step);
            if step < steps && !(5..7).contains(&step) {
                assert_eq!(result.unwrap().step, step);
            } else {
                assert!(is_no_step(&result, step));
                let message = result.unwrap_err().to_string();
                assert!(message.contains(&format!("step {step} is not in epoch 0")), "{message}");
            }
        }
    }
    // A tail that is dropped is no step either.
    let wish = Wish { tail: Tail::Drop, ..wish };
    let loader = wish.builder(dir.path(), 12).build().unwrap();
    assert_ne!(loader.sequences_per_epoch() % 12, 0);
    assert!(loader.explain(loader.steps_per_epoch() - 1).is_ok());
    assert!(is_no_step(&loader.explain(loader.steps_per_epoch()), loader.steps_per_epoch()));
}

#[test]
fn after_more_changes_than_are_remembered_steps_are_explained_right_or_not_at_all() {
    let (dir, data) = some_dir();
    let wish = Wish::default();
    let mut job = Job::start(&wish, dir.path(), 5, 1);
    let mut delivered = Vec::new();
    for change in 0..12 {
        job = Job::resume(&wish, dir.path(), 5 + change % 4, 1, &job.state());
        delivered.extend(job.take(2));
    }
    let explained: Vec<bool> = delivered
        .iter()
        .map(|step| match job.loaders[0].explain(step.number) {
            Ok(origin) => {
                assert_eq!(explained_tokens(&origin, &data, &wish), delivered_tokens(step));
                true
            }
            result => {
                assert!(is_no_step(&result, step.number));
                false
            }
        })
        .collect();
    assert!(explained[8..].iter().all(|&is_explained| is_explained), "the last eight changes: {explained:?}");
}

/// What the system says about the threads of loaders. Other tests of this process have some too, so each test that
/// asks runs again in a process of its own.
#[cfg(target_os = "linux")]
mod threads {
    use std::time::{Duration, Instant};

    use super::*;

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
}
