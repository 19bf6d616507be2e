use std::ops::Range;

use proptest::prelude::*;
use shardfeed::{Error, SkipsError, TokenLoader};

use crate::changes::{check_legs, legs};
use crate::common::{cases, test_data};
use crate::job::{Job, Model, Step, Wish, has_tokens, some_dir, wish};

proptest! {
    #![proptest_config(cases(32))]

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
