//! Several callers on one loader.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardfeed::{
    CheckpointState, Dataset, StreamingShardIterator, StreamingShardLoader, Tensor, TensorDataset,
};

use crate::support::{Numbers, config, rest};

/// What each caller got.
fn shared_by<D: Dataset + 'static>(callers: usize, loader: StreamingShardLoader<D>) -> Vec<Vec<D::Sample>> {
    let loader = Arc::new(loader);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|_| {
                let samples = StreamingShardIterator::new(Arc::clone(&loader));
                scope.spawn(move || samples.map(Result::unwrap).collect())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_million_samples_go_to_one_of_eight_callers_each_in_order() {
    for (buffer, threads) in [(0, 1), (64, 1), (64, 3)] {
        let config = config(1, 0).with_prefetch_buffer_size(buffer).with_prefetch_threads(threads);
        let loader = StreamingShardLoader::new(Numbers::new(1_000_000), config).unwrap();
        let mut seen = vec![false; 1_000_000];
        for samples in shared_by(8, loader) {
            assert!(samples.is_sorted(), "a caller gets its samples in order");
            for sample in samples {
                assert!(!std::mem::replace(&mut seen[sample], true), "{sample} twice");
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}

#[test]
fn a_million_samples_in_memory_go_to_one_of_eight_callers_each_in_order() {
    let numbers = Tensor::<u32>::from_vec((0..1_000_000).collect(), &[1_000_000]).unwrap();
    let config = config(1, 0).with_prefetch_buffer_size(0);
    let loader = StreamingShardLoader::new(TensorDataset::new(numbers.clone(), numbers), config).unwrap();
    let mut seen = vec![false; 1_000_000];
    for samples in shared_by(8, loader) {
        let samples: Vec<usize> = samples.iter().map(|(number, _)| number.as_slice()[0] as usize).collect();
        assert!(samples.is_sorted(), "a caller gets its samples in order");
        for sample in samples {
            assert!(!std::mem::replace(&mut seen[sample], true), "{sample} twice");
        }
    }
    assert!(seen.into_iter().all(|seen| seen));
}

#[test]
fn who_is_told_that_nothing_is_left_finds_the_epoch_over() {
    let numbers = Numbers { delay: Duration::from_micros(300), ..Numbers::new(7) };
    let config = config(1, 0).with_prefetch_buffer_size(1);
    let loader = StreamingShardLoader::new(numbers, config).unwrap();
    for epoch in 0..100 {
        loader.set_epoch(epoch);
        let taken: usize = std::thread::scope(|scope| {
            let take = || {
                let taken = rest(&loader).len();
                // Alone, and at once: others may still be on their way with what they got, but with nothing else.
                assert!(loader.is_epoch_over());
                taken
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 7);
    }
}

#[test]
fn a_checkpoint_taken_while_samples_are_on_their_way_is_continued_with_the_others() {
    for buffer in [0, 3] {
        let make = || {
            // While one takes long, others overtake it.
            let (delay, slow_every) = (Duration::from_micros(50), Some(50));
            let numbers = Numbers { delay, slow_every, ..Numbers::new(2_000) };
            let config = config(1, 0).with_shuffle_seed(9).with_prefetch_buffer_size(buffer);
            StreamingShardLoader::new(numbers, config.with_prefetch_threads(2)).unwrap()
        };
        let loader = make();
        let (had, is_over) = (Mutex::new(HashSet::new()), AtomicBool::new(false));
        let states: Vec<(HashSet<usize>, CheckpointState)> = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(sample) = loader.next().unwrap() {
                        had.lock().unwrap().insert(sample);
                    }
                    is_over.store(true, Relaxed);
                });
            }
            let look = || {
                // Whatever the machine does meanwhile, not more of them than it can hold.
                std::thread::sleep(Duration::from_millis(1));
                let before = had.lock().unwrap().clone();
                (!is_over.load(Relaxed)).then(|| (before, loader.get_checkpoint()))
            };
            std::iter::from_fn(look).collect()
        });
        let with_gaps = states.iter().filter(|(_, state)| state.processed().len() > 1).count();
        assert!(buffer > 0 || with_gaps > 0, "of {} checkpoints none was taken in the middle", states.len());
        for (before, state) in states.iter().step_by(states.len().div_ceil(40).max(1)) {
            let done: HashSet<usize> = state.processed_indices().collect();
            assert!(before.is_subset(&done), "what somebody had is done");
            let restored = make();
            restored.restore_from_checkpoint(CheckpointState::from_json(&state.to_json()).unwrap()).unwrap();
            let after: HashSet<usize> = rest(&restored).into_iter().collect();
            assert!(done.is_disjoint(&after));
            assert_eq!(done.len() + after.len(), 2_000);
        }
    }
}

#[test]
fn a_checkpoint_taken_after_threads_were_at_work_loses_and_repeats_nothing() {
    for round in 0..20 {
        let config =
            || config(1, 0).with_shuffle_seed(round).with_prefetch_buffer_size(round as usize % 3 * 4);
        let loader = StreamingShardLoader::new(Numbers::new(5_000), config()).unwrap();
        let stop = AtomicBool::new(false);
        let (state, before) = std::thread::scope(|scope| {
            let take = || {
                let mut taken = Vec::new();
                while !stop.load(Relaxed) {
                    taken.extend(loader.next().unwrap());
                }
                taken
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            while loader.get_stats().samples_loaded < 500 {
                std::thread::yield_now();
            }
            stop.store(true, Relaxed);
            let before: Vec<usize> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            (loader.get_checkpoint(), before)
        });
        let before: HashSet<usize> = before.into_iter().collect();
        assert_eq!(state.processed_indices().collect::<HashSet<_>>(), before);
        let restored = StreamingShardLoader::new(Numbers::new(5_000), config()).unwrap();
        restored.restore_from_checkpoint(CheckpointState::from_json(&state.to_json()).unwrap()).unwrap();
        let after: HashSet<usize> = rest(&restored).into_iter().collect();
        assert!(before.is_disjoint(&after));
        assert_eq!(before.len() + after.len(), 5_000);
    }
}

#[test]
fn a_checkpoint_with_gaps_is_continued_with_the_gaps() {
    let loader = StreamingShardLoader::new(Numbers::new(20), config(1, 0)).unwrap();
    let json = loader.get_checkpoint().to_json();
    let json = json.replace("\"processed\":[]", "\"processed\":[[0,3],[5,6],[8,10]]");
    let state = CheckpointState::from_json(&json.replace("\"position\":0", "\"position\":3")).unwrap();
    loader.restore_from_checkpoint(&state).unwrap();
    assert_eq!(loader.get_checkpoint().processed(), [(0, 3), (5, 6), (8, 10)]);
    assert_eq!(rest(&loader), [3, 4, 6, 7].into_iter().chain(10..20).collect::<Vec<_>>());
}

#[test]
fn at_the_end_all_callers_reset_and_one_epoch_follows() {
    let loader = StreamingShardLoader::new(Numbers::new(300), config(1, 0).with_shuffle_seed(2)).unwrap();
    for round in 0..50 {
        let epoch = loader.epoch();
        let taken: Vec<usize> = std::thread::scope(|scope| {
            let take = || rest(&loader);
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.into_iter().collect::<HashSet<_>>().len(), 300, "round {round}");
        // Nobody is told that the epoch is over while somebody still has a part of it, so each of them goes on.
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| loader.reset())));
        });
        assert_eq!(loader.epoch(), epoch + 1);
    }
}

#[test]
fn what_others_were_faster_than_is_loaded_ahead_too() {
    let loader =
        StreamingShardLoader::new(Numbers::new(20), config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    let json = loader.get_checkpoint().to_json().replace("\"processed\":[]", "\"processed\":[[2,5],[6,9]]");
    loader.restore_from_checkpoint(CheckpointState::from_json(&json).unwrap()).unwrap();
    loader.prefetch(5).unwrap();
    assert_eq!((0..5).map(|_| loader.next().unwrap().unwrap()).collect::<Vec<_>>(), [0, 1, 5, 9, 10]);
    let stats = loader.get_stats();
    assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (5, 0));
}

#[test]
fn a_restart_in_the_middle_of_everything_is_one() {
    const SAMPLES: usize = 1_000;
    const EPOCHS: u64 = 300;
    const CALLERS: usize = 3;
    let make = || {
        let config = config(1, 0).with_shuffle_seed(5).with_prefetch_buffer_size(8);
        StreamingShardLoader::new(Numbers::new(SAMPLES), config).unwrap()
    };
    let (loader, alone) = (make(), make());
    // By epoch and index, where it comes.
    let places: Vec<Vec<usize>> = (0..EPOCHS)
        .map(|epoch| {
            alone.set_epoch(epoch);
            let mut places = vec![0; SAMPLES];
            (0..).zip(rest(&alone)).for_each(|(place, index)| places[index] = place);
            places
        })
        .collect();
    let stop = AtomicBool::new(false);
    // Samples of each caller, each with the epochs before and after the call: it is of one of them, or of one between.
    let taken: Vec<Vec<(u64, usize, u64)>> = std::thread::scope(|scope| {
        let take = || {
            let mut taken = Vec::new();
            while !stop.load(Relaxed) {
                let before = loader.epoch();
                let sample = loader.next().unwrap();
                taken.extend(sample.map(|sample| (before, sample, loader.epoch())));
            }
            taken
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(take)).collect();
        for epoch in 1..=EPOCHS {
            while loader.get_checkpoint().processed_count() < 20 {
                std::thread::yield_now();
            }
            loader.set_epoch(epoch);
        }
        stop.store(true, Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    for (epoch, places) in (0..).zip(&places) {
        let of = |caller: &Vec<(u64, usize, u64)>| -> Vec<usize> {
            let sure = caller.iter().filter(|(before, _, after)| (*before, *after) == (epoch, epoch));
            sure.map(|(_, sample, _)| places[*sample]).collect()
        };
        let of_callers: Vec<Vec<usize>> = taken.iter().map(of).collect();
        assert!(of_callers.iter().all(|places| places.is_sorted()), "a caller gets its samples in order");
        let all: Vec<usize> = of_callers.concat();
        let distinct: HashSet<usize> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len(), "epoch {epoch}");
        // The first ones of the epoch, but for those of which it is not sure, or that callers were at when it was left.
        let perhaps = taken.iter().flatten().filter(|(before, _, after)| (*before..=*after).contains(&epoch));
        let end = all.iter().max().map_or(0, |last| last + 1);
        assert!(end <= perhaps.count() + CALLERS, "epoch {epoch}: {end} of {all:?}");
    }
    let sure = taken.iter().flatten().filter(|(before, _, after)| before == after).count();
    assert!(sure > 10 * EPOCHS as usize, "of {sure} samples it is sure whose they are");
    loader.set_epoch(7);
    assert_eq!(
        (0..SAMPLES).zip(rest(&loader)).filter(|(at, index)| places[7][*index] == *at).count(),
        SAMPLES
    );
}
