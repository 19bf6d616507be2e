use std::collections::BTreeMap;

use proptest::prelude::*;
use shardfeed::{Error, Packing, Rank, SequenceOrigin, StepOrigin, StreamState, Tail};

use crate::changes::legs;
use crate::common::{NaiveSequence, TestData, cases, rows_of, test_data};
use crate::job::{Job, Step, Wish, all_batches, has_tokens, some_dir, wish};

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
