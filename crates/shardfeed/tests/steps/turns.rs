use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use proptest::prelude::*;
use shardfeed::{Batch, NextBatch, Rank, StreamState, Tail, TokenLoader};

use crate::common::{cases, test_data};
use crate::job::{Wish, has_tokens, some_dir, wish};

fn rest(loader: &mut TokenLoader) -> Vec<Batch> {
    loader.batches().map(Result::unwrap).collect()
}

/// Whose turn each step is, put together again.
fn interleaved(mut parts: Vec<Vec<Batch>>) -> Vec<Batch> {
    for part in &mut parts {
        part.reverse();
    }
    let workers = parts.len();
    (0..).map_while(|turn: usize| parts[turn % workers].pop()).collect()
}

proptest! {
    #![proptest_config(cases(40))]

    /// Loaders that take turns hand out together what one does, from anywhere, after any of them was resumed.
    #[test]
    fn loaders_that_take_turns_hand_out_what_one_does(
        data in test_data().prop_filter("tokens", has_tokens),
        wish in wish(),
        global_batch in 1_u32..9,
        workers in 1_u32..5,
        start in 0_u64..6,
        stop in 0_usize..5,
        skip in prop::option::of((0_u64..8, 1_u64..4)),
    ) {
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let rank = Rank::new(global_batch / 2 % 2, global_batch.min(2)).unwrap();
        let mut one = wish.builder(dir.path(), global_batch).rank(rank).build().unwrap();
        if let Some((first, len)) = skip {
            // Some data have fewer steps.
            let _ = one.skip(first..first + len);
        }
        one.pass_over(start);
        let state = one.state().clone();
        let expected = rest(&mut one);
        prop_assert_eq!(expected.len() as u64, {
            let loader = wish.builder(dir.path(), global_batch).rank(rank).resume_from(state.clone()).build().unwrap();
            loader.steps_left()
        });
        for batch in &expected {
            // Where one stands after a batch can be told from elsewhere.
            let before = wish.builder(dir.path(), global_batch).rank(rank).resume_from(state.clone()).build().unwrap();
            let mut after = wish.builder(dir.path(), global_batch).rank(rank).build().unwrap();
            after.load_state(&before.state_after(batch.epoch, batch.step).unwrap()).unwrap();
            let next = after.next_batch().unwrap().map(|batch| batch.step);
            let follows = expected.iter().map(|batch| batch.step).find(|step| *step > batch.step);
            prop_assert_eq!(next, follows);
            // Also by one who is in the next epoch already: it begins after the last step.
            let told = one.state_after(batch.epoch, batch.step).unwrap();
            let expected = match follows {
                Some(_) => before.state_after(batch.epoch, batch.step).unwrap(),
                None => one.state().clone(),
            };
            prop_assert_eq!(told.to_json(), expected.to_json());
        }
        let parts = (0..workers).map(|turn| {
            let builder = || wish.builder(dir.path(), global_batch).rank(rank).every(workers);
            let mut loader = builder().resume_from(state.clone()).build().unwrap();
            loader.pass_over(turn.into());
            let mut taken = Vec::new();
            while taken.len() < stop && let Some(batch) = loader.next_batch().unwrap() {
                taken.push(batch);
            }
            if taken.len() < stop {
                // It has come to the end.
                return taken;
            }
            let stored = loader.state().to_json();
            let mut again = builder().resume_from(StreamState::from_json(&stored).unwrap()).build().unwrap();
            taken.extend(rest(&mut again));
            taken
        });
        prop_assert_eq!(interleaved(parts.collect()), expected);
    }
}

#[test]
fn the_next_epoch_is_begun_by_all_of_them() {
    let (dir, _) = some_dir();
    let wish = Wish { tail: Tail::Drop, ..Wish::default() };
    let mut one = wish.builder(dir.path(), 12).build().unwrap();
    let epochs = [rest(&mut one), rest(&mut one)];
    let parts = (0..3).map(|turn| {
        let mut loader = wish.builder(dir.path(), 12).every(3).build().unwrap();
        [0, 1].map(|epoch| {
            assert_eq!((loader.state().epoch, loader.state().position), (epoch, 0));
            loader.pass_over(turn);
            rest(&mut loader)
        })
    });
    let parts: Vec<[Vec<Batch>; 2]> = parts.collect();
    for (number, epoch) in epochs.into_iter().enumerate() {
        assert_eq!(interleaved(parts.iter().map(|part| part[number].clone()).collect()), epoch);
    }
}

#[test]
fn steps_that_are_not_there_have_no_state_after_them() {
    let (dir, _) = some_dir();
    let loader = Wish::default().builder(dir.path(), 12).epoch(1).build().unwrap();
    let steps = loader.steps_per_epoch();
    assert!(loader.state_after(1, steps - 1).is_ok() && loader.state_after(9, 0).is_ok());
    for (epoch, step) in [(1, steps), (0, 0), (2, u64::MAX)] {
        let refused = loader.state_after(epoch, step).unwrap_err().to_string();
        assert!(refused.contains(&format!("step {step} is not in epoch {epoch}")), "{refused}");
    }
    let none = Wish::default().builder(dir.path(), 12).every(0).build().map(drop).unwrap_err().to_string();
    assert!(none.contains("every 0"), "{none}");
}

#[test]
fn the_epoch_before_is_remembered_with_its_skips_and_changes_of_the_global_batch() {
    let (dir, _) = some_dir();
    let build = |global_batch| Wish::default().builder(dir.path(), global_batch).build().unwrap();
    let mut first = build(12);
    first.skip(1..3).unwrap();
    let mut seen = vec![first.next_batch().unwrap().unwrap(), first.next_batch().unwrap().unwrap()];
    let mut loader = build(8);
    loader.load_state(first.state()).unwrap();
    let steps = seen.last().unwrap().step + 1;
    loader.skip(steps + 2..steps + 3).unwrap();
    let mut states = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        states.push(loader.state_after(0, batch.step).unwrap());
        seen.push(batch);
    }
    let (start, first_of_next) = (loader.state().clone(), loader.next_batch().unwrap().unwrap());
    assert!(seen.len() > 6 && (start.epoch, start.position, first_of_next.epoch) == (1, 0, 1));
    *states.last_mut().unwrap() = start;
    for (batch, state) in seen[2..].iter().zip(&states) {
        assert_eq!(loader.state_after(0, batch.step).unwrap(), *state, "step {}", batch.step);
    }
    // Before the change steps were larger.
    for pair in seen[..3].windows(2) {
        let state = loader.state_after(0, pair[0].step).unwrap();
        state.check().unwrap();
        let global_batch = if pair[1].step < steps { 12 } else { 8 };
        let mut resumed = build(global_batch);
        resumed.load_state(&state).unwrap();
        let next = resumed.next_batch().unwrap().unwrap();
        assert_eq!((next.step, next.input_ids()), (pair[1].step, pair[1].input_ids()));
    }
    // What is skipped of the next epoch is skipped by who resumes there.
    loader.skip(4..6).unwrap();
    let last = seen.last().unwrap().step;
    assert_eq!(loader.state_after(0, last).unwrap().skips, loader.state().skips);
    // Epochs that were passed over are known, those before are not.
    loader.set_epoch(5);
    assert_eq!(loader.state_after(1, 0).unwrap().skips.ranges().len(), 1);
    assert!(loader.state_after(3, 0).unwrap().skips.ranges().is_empty());
    assert!(loader.state_after(0, last).is_err());
}

#[test]
fn an_epoch_that_is_begun_anew_has_forgotten_what_was_skipped_of_it() {
    let (dir, _) = some_dir();
    let build = || Wish::default().builder(dir.path(), 8).build().unwrap();
    let mut loader = build();
    loader.skip(1..3).unwrap();
    loader.set_epoch(1);
    assert_eq!(loader.state_after(0, 0).unwrap().skips.ranges().len(), 1);
    // Its batches come from loaders elsewhere: nothing is asked of this one.
    loader.set_epoch(0);
    loader.set_epoch(1);
    assert_eq!(loader.state_after(0, 0).unwrap(), build().state_after(0, 0).unwrap());
    // The one before is known, also after somebody went back.
    loader.set_epoch(5);
    loader.set_epoch(3);
    loader.set_epoch(4);
    assert_eq!(loader.state_after(3, 0).unwrap().epoch, 3);
}

#[test]
fn a_step_before_the_changes_of_the_global_batch_that_are_remembered_has_no_state_after_it() {
    let (dir, _) = some_dir();
    let build = |global_batch| Wish::default().builder(dir.path(), global_batch).build().unwrap();
    let mut loader = build(2);
    let mut steps = Vec::new();
    for change in 0..12_u32 {
        let mut next = build(2 + change % 2);
        next.load_state(loader.state()).unwrap();
        loader = next;
        steps.push(loader.next_batch().unwrap().unwrap().step);
    }
    let first = loader.state().steps.changes()[0].step;
    assert!(first > 0, "some were forgotten: {:?}", loader.state().steps);
    for step in steps {
        assert_eq!(loader.state_after(0, step).is_ok(), step >= first, "step {step}");
    }
}

#[test]
fn who_has_no_patience_gets_nothing_and_loses_nothing() {
    let (dir, _) = some_dir();
    let expected = rest(&mut Wish::default().builder(dir.path(), 12).build().unwrap());
    let mut loader = Wish::default().builder(dir.path(), 12).build().unwrap();
    let (mut taken, mut asked_in_vain) = (Vec::new(), 0);
    loop {
        match loader.next_batch_within(Duration::ZERO).unwrap() {
            NextBatch::Batch(batch) => taken.push(batch),
            NextBatch::EpochOver => break,
            NextBatch::NotYet => asked_in_vain += 1,
        }
    }
    assert!(asked_in_vain > 0, "nobody can have the first batch at once");
    assert_eq!(taken, expected);
    assert_eq!(loader.stats().batches, expected.len() as u64);
}

#[test]
fn a_scan_that_is_interrupted_says_so() {
    let (dir, _) = some_dir();
    let flag = Arc::new(AtomicBool::new(true));
    let builder = Wish::default().builder(dir.path(), 12).cache(shardfeed::CachePolicy::Off);
    let refused = builder.cancel(flag).build().map(drop).unwrap_err().to_string();
    assert!(refused.contains("interrupted"), "{refused}");
}
