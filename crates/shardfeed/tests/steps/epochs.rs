use proptest::prelude::*;
use shardfeed::{Error, StateError, StreamState, Tail, TokenLoaderBuilder};

use crate::common::{cases, test_data};
use crate::job::{Job, Model, Step, Wish, has_tokens, some_dir, wish};

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

#[test]
fn a_loop_after_one_that_stopped_at_the_last_step_is_the_next_epoch() {
    let (dir, _) = some_dir();
    for tail in [Tail::Pad, Tail::Drop, Tail::Wrap] {
        let wish = Wish { tail, ..Wish::default() };
        let mut loader = wish.builder(dir.path(), 12).build().unwrap();
        let steps = loader.steps_per_epoch();
        for epoch in 0..3 {
            // As trainers do that know how many there are: the end is never asked for.
            let taken: Vec<_> = loader.batches().take(steps as usize).map(Result::unwrap).collect();
            let seen: Vec<_> = taken.iter().map(|batch| (batch.epoch, batch.step)).collect();
            assert_eq!(seen, (0..steps).map(|step| (epoch, step)).collect::<Vec<_>>());
        }
        let saved = loader.state().clone();
        assert_eq!((saved.epoch, loader.batches().next().unwrap().unwrap().epoch), (2, 3));
        // Loaded, it is the loop in which it was saved that goes on, and is over.
        loader.load_state(&saved).unwrap();
        assert_eq!(loader.batches().count(), 0);
        assert_eq!(loader.batches().next().unwrap().unwrap().epoch, 3);
        // A loop that was left earlier goes on.
        assert_eq!(loader.batches().next().unwrap().unwrap().step, 1);
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
