use std::ops::Range;

use proptest::prelude::*;

use crate::common::{TestData, cases, test_data};
use crate::job::{Job, Model, Wish, has_tokens, some_dir, wish};

/// One leg of a run: resumed with this global batch at this world size, perhaps skipping, then taking some steps.
#[derive(Clone, Debug)]
pub struct Leg {
    pub global_batch: u32,
    pub world_size: u32,
    /// Steps from the next one to the first skipped, and how many.
    pub skip: Option<(u64, u64)>,
    pub take: usize,
}

pub fn legs(count: Range<usize>, skips: bool) -> impl Strategy<Value = Vec<Leg>> {
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
pub fn check_legs(data: &TestData, wish: &Wish, legs: &[Leg]) {
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
