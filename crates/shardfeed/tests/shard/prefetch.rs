//! Loading ahead: what it promises, and what the statistics say of it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use shardfeed::{CheckpointState, Dataset, Error, PartitionStrategy, Result, StreamingShardLoader};
use shardfeed_plan::Stretch;

use crate::support::{Numbers, config, rest};

/// What a sample takes at least.
const DELAY: Duration = Duration::from_millis(4);

fn slow(len: usize) -> Numbers {
    Numbers { delay: DELAY, ..Numbers::new(len) }
}

#[test]
fn without_it_every_sample_is_loaded_when_it_is_asked_for() {
    let loader = StreamingShardLoader::new(slow(20), config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    assert!(loader.get_stats().worker_utilization >= 1.0);
    let started = Instant::now();
    assert_eq!(rest(&loader).len(), 20);
    let at_most_us = started.elapsed().as_secs_f64() * 1e6;
    let stats = loader.get_stats();
    let elapsed_us = started.elapsed().as_secs_f64() * 1e6;
    assert_eq!((stats.samples_loaded, stats.prefetch_hits, stats.prefetch_misses), (20, 0, 20));
    // Each took as long as it sleeps, or longer; all of them no longer than everything.
    let delay_us = DELAY.as_secs_f64() * 1e6;
    assert!((delay_us..=at_most_us / 20.0).contains(&stats.avg_load_time_us), "{stats:?}");
    // All of that was waiting.
    let busy = 1.0 - 20.0 * stats.avg_load_time_us / elapsed_us;
    assert!((0.0..=busy + 1e-9).contains(&stats.worker_utilization), "{stats:?} {busy}");
    assert_eq!((stats.num_checkpoints, loader.dataset().loads.load(Relaxed)), (0, 20));
}

#[test]
fn where_a_stream_is_restored_its_first_sample_is_timed() {
    let make = || StreamingShardLoader::new(slow(300), config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    let json = make().get_checkpoint().to_json();
    for position in [1, 7, 150] {
        let json = json.replace("\"position\":0", &format!("\"position\":{position}"));
        let json = json.replace("\"processed\":[]", &format!("\"processed\":[[0,{position}]]"));
        let loader = make();
        loader.restore_from_checkpoint(CheckpointState::from_json(&json).unwrap()).unwrap();
        let started = Instant::now();
        for taken in 0..3 {
            assert_eq!(loader.next().unwrap(), Some(position + taken));
            let stats = loader.get_stats();
            let busy =
                1.0 - stats.samples_loaded as f64 * DELAY.as_secs_f64() / started.elapsed().as_secs_f64();
            assert!(stats.avg_load_time_us >= DELAY.as_secs_f64() * 1e6, "from {position} on: {stats:?}");
            assert!((0.0..=busy + 1e-9).contains(&stats.worker_utilization), "{stats:?} {busy}");
        }
    }
}

#[test]
fn what_was_fetched_is_a_hit() {
    for buffer in [0, 4, 100] {
        let loader =
            StreamingShardLoader::new(slow(12), config(1, 0).with_prefetch_buffer_size(buffer)).unwrap();
        loader.prefetch(8).unwrap();
        assert!(loader.dataset().loads.load(Relaxed) >= 8);
        (0..8).for_each(|expected| assert_eq!(loader.next().unwrap(), Some(expected)));
        let stats = loader.get_stats();
        assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (8, 0), "{buffer}");
        // More than there are: all that are left.
        loader.prefetch(1000).unwrap();
        assert_eq!(rest(&loader), [8, 9, 10, 11]);
        let stats = loader.get_stats();
        assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (12, 0), "{buffer}");
        assert_eq!(loader.dataset().loads.load(Relaxed), 12);
    }
}

#[test]
fn what_was_fetched_stays_when_what_comes_after_it_is_dealt_again() {
    let stretch = |origin, start, end| Stretch { origin, start, end };
    // The whole of ten, longer, then shorter than what was fetched, then with something else from the third on.
    let longer = [stretch(0, 0, 10), stretch(1, 5, 10)];
    let shorter = [stretch(0, 0, 6), stretch(1, 5, 10)];
    let other = [stretch(0, 0, 3), stretch(1, 5, 10)];
    for (dealt, hits) in [(&[longer][..], 8), (&[longer, shorter], 6), (&[longer, shorter, other], 3)] {
        let config = config(2, 0).with_prefetch_buffer_size(0);
        let config = config.with_partition_strategy(PartitionStrategy::Contiguous);
        let loader = StreamingShardLoader::new(Numbers::new(20), config).unwrap();
        loader.prefetch(8).unwrap();
        for stretches in dealt {
            loader.adopt(0, &stretches.iter().copied().collect()).unwrap();
        }
        let own = dealt.last().unwrap()[0].end as usize;
        assert_eq!(rest(&loader), (0..own).chain(15..20).collect::<Vec<_>>());
        let (stats, loads) = (loader.get_stats(), loader.dataset().loads.load(Relaxed));
        assert_eq!((stats.prefetch_hits, stats.samples_loaded), (hits, own as u64 + 5));
        // Eight before, and afterwards those that are not among them.
        assert_eq!(loads, 8 + stats.samples_loaded - hits);
    }
}

#[test]
fn while_the_consumer_works_the_next_samples_are_loaded() {
    let loader = StreamingShardLoader::new(slow(25), config(1, 0).with_prefetch_buffer_size(4)).unwrap();
    for taken in 1..=25 {
        // The consumer works, and calls nothing: all that there is room for comes by itself. When one has begun to load, the
        // one before it is there.
        while loader.dataset().loads.load(Relaxed) < (taken + 3).min(25) {
            std::thread::yield_now();
        }
        assert_eq!(loader.next().unwrap(), Some(taken as usize - 1));
    }
    assert_eq!(loader.next().unwrap(), None);
    let stats = loader.get_stats();
    assert_eq!(stats.prefetch_hits + stats.prefetch_misses, 25);
    // The last ones may still be on their way when they are asked for.
    assert!(stats.prefetch_hits >= 22, "{stats:?}");
    assert!(stats.avg_load_time_us >= DELAY.as_secs_f64() * 1e6);
}

#[test]
fn a_consumer_that_works_for_as_long_as_loading_takes_never_waits() {
    let started = Instant::now();
    let loader = StreamingShardLoader::new(slow(30), config(1, 0).with_prefetch_buffer_size(2)).unwrap();
    for taken in 0..20 {
        // It works until the next sample but one is begun: then the next is there.
        while loader.dataset().loads.load(Relaxed) < taken + 2 {
            std::thread::yield_now();
        }
        assert_eq!(loader.next().unwrap(), Some(taken as usize));
    }
    let stats = loader.get_stats();
    assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (20, 0));
    // Twenty loads took all of that time, as one thread did them, and nobody waited for any of them.
    assert!(started.elapsed() >= 20 * DELAY && stats.avg_load_time_us >= DELAY.as_secs_f64() * 1e6);
    assert!(stats.worker_utilization >= 1.0, "{stats:?}");
}

/// The first sample is held back until somebody has loaded the second.
#[derive(Default)]
struct HeldBack {
    is_begun: (Mutex<bool>, Condvar),
    is_free: (Mutex<bool>, Condvar),
}

fn open((is_open, changed): &(Mutex<bool>, Condvar)) {
    *is_open.lock().unwrap() = true;
    changed.notify_all();
}

fn pass((is_open, changed): &(Mutex<bool>, Condvar)) {
    drop(changed.wait_while(is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
}

impl Dataset for HeldBack {
    type Sample = usize;

    fn len(&self) -> usize {
        10
    }

    fn get(&self, index: usize) -> Result<usize> {
        if index == 0 {
            open(&self.is_begun);
            pass(&self.is_free);
        } else {
            std::thread::sleep(DELAY);
            open(&self.is_free);
        }
        Ok(index)
    }
}

#[test]
fn consumers_of_samples_that_are_held_back_wait_and_it_is_counted() {
    let config = config(1, 0).with_prefetch_buffer_size(1);
    let loader = StreamingShardLoader::new(HeldBack::default(), config).unwrap();
    pass(&loader.dataset().is_begun);
    let started = Instant::now();
    // Whoever comes first waits for the first sample, which is being loaded; the other has to load the second meanwhile.
    let mut taken: Vec<usize> = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| loader.next().unwrap().unwrap()));
        threads.map(|thread| thread.join().unwrap()).to_vec()
    });
    taken.sort_unstable();
    assert_eq!(taken, [0, 1]);
    let stats = loader.get_stats();
    assert_eq!((stats.samples_loaded, stats.prefetch_hits, stats.prefetch_misses), (2, 0, 2));
    // Both waited, for as long as the second took.
    let busy = 1.0 - 2.0 * DELAY.as_secs_f64() / started.elapsed().as_secs_f64();
    assert!((0.0..=busy.max(0.0) + 1e-9).contains(&stats.worker_utilization), "{stats:?} {busy}");
}

#[test]
fn what_was_waited_for_beforehand_counts_as_waiting() {
    let loader = StreamingShardLoader::new(slow(10), config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    let started = Instant::now();
    loader.prefetch(10).unwrap();
    assert_eq!(rest(&loader).len(), 10);
    let stats = loader.get_stats();
    assert_eq!((stats.prefetch_hits, stats.prefetch_misses), (10, 0));
    let busy = 1.0 - 10.0 * DELAY.as_secs_f64() / started.elapsed().as_secs_f64();
    assert!((0.0..=busy + 1e-9).contains(&stats.worker_utilization), "{stats:?} {busy}");
    // Nothing happens after the end, and nothing is counted.
    let before = loader.get_stats();
    std::thread::sleep(DELAY);
    assert_eq!(loader.get_stats(), before);
}

#[test]
fn a_consumer_that_works_for_long_waited_for_little() {
    let loader =
        StreamingShardLoader::new(Numbers::new(20), config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    for _ in 0..2 {
        while loader.next().unwrap().is_some() {
            std::thread::sleep(DELAY);
        }
        let stats = loader.get_stats();
        // Each sample takes some nanoseconds, and the consumer milliseconds.
        assert!(stats.worker_utilization > 0.9, "{stats:?}");
        loader.reset();
    }
}

#[test]
fn what_is_fetched_between_epochs_counts_as_waiting_and_as_time() {
    let loader = StreamingShardLoader::new(slow(5), config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    // By a clock outside, which sees more: the calls around the waits, and the time between epochs.
    let (mut waited, mut total) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..2 {
        let since = Instant::now();
        loader.prefetch(5).unwrap();
        waited += since.elapsed();
        while loader.next().unwrap().is_some() {
            std::thread::sleep(2 * DELAY);
        }
        total += since.elapsed();
        loader.reset();
    }
    let utilization = loader.get_stats().worker_utilization;
    // Ten samples take that long at least, and so does the consumer.
    let (loading, consuming) = (10.0 * DELAY.as_secs_f64(), 20.0 * DELAY.as_secs_f64());
    let (least, most) = (consuming / (waited.as_secs_f64() + consuming), 1.0 - loading / total.as_secs_f64());
    assert!((least - 1e-9..=most + 1e-9).contains(&utilization), "{least} {utilization} {most}");
}

#[test]
fn waiting_for_samples_that_cannot_be_loaded_is_waiting() {
    let numbers = Numbers { broken: Some(0), is_broken: true.into(), ..slow(3) };
    let loader = StreamingShardLoader::new(numbers, config(1, 0).with_prefetch_buffer_size(0)).unwrap();
    let started = Instant::now();
    for _ in 0..5 {
        loader.next().unwrap_err();
    }
    let utilization = loader.get_stats().worker_utilization;
    let busy = 1.0 - 5.0 * DELAY.as_secs_f64() / started.elapsed().as_secs_f64();
    assert!((0.0..=busy + 1e-9).contains(&utilization), "{utilization} {busy}");
}

#[test]
fn who_asks_for_what_there_is_no_more_of_does_not_work() {
    let loader = StreamingShardLoader::new(Numbers::new(3), config(1, 0)).unwrap();
    assert_eq!(rest(&loader).len(), 3);
    let before = loader.get_stats();
    loader.prefetch(5).unwrap();
    std::thread::sleep(DELAY);
    assert_eq!(loader.get_stats(), before);
}

#[test]
fn a_consumer_that_asks_too_soon_waits_for_the_sample_that_is_being_loaded() {
    let loader = StreamingShardLoader::new(slow(10), config(1, 0).with_prefetch_buffer_size(1)).unwrap();
    while loader.dataset().loads.load(Relaxed) < 1 {
        std::thread::yield_now();
    }
    assert_eq!(rest(&loader), (0..10).collect::<Vec<_>>());
    let stats = loader.get_stats();
    assert_eq!(stats.prefetch_hits + stats.prefetch_misses, 10);
    assert!(stats.worker_utilization < 1.0 && stats.prefetch_misses > 0, "{stats:?}");
    assert_eq!(loader.dataset().loads.load(Relaxed), 10, "nothing is loaded twice");
}

#[test]
fn no_more_is_held_than_the_buffer_has_room_for() {
    let loader =
        StreamingShardLoader::new(Numbers::new(1000), config(1, 0).with_prefetch_buffer_size(7)).unwrap();
    for taken in 1..=50 {
        loader.next().unwrap();
        loader.prefetch(7).unwrap();
        assert!(loader.dataset().loads.load(Relaxed) <= taken + 7);
    }
}

#[test]
fn samples_from_elsewhere_are_counted() {
    let numbers = Numbers { remote_every: Some(4), ..Numbers::new(100) };
    let loader = StreamingShardLoader::new(numbers, config(1, 0)).unwrap();
    assert_eq!(rest(&loader).len(), 100);
    let stats = loader.get_stats();
    assert_eq!((stats.local_samples, stats.remote_samples), (75, 25));
}

#[test]
fn a_sample_that_cannot_be_loaded_is_asked_for_again() {
    for buffer in [0, 8] {
        let numbers = Numbers { broken: Some(5), is_broken: true.into(), ..Numbers::new(10) };
        let loader =
            StreamingShardLoader::new(numbers, config(1, 0).with_prefetch_buffer_size(buffer)).unwrap();
        assert_eq!((0..5).map(|_| loader.next().unwrap().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for _ in 0..3 {
            assert!(loader.next().unwrap_err().to_string().contains("sample 5 is broken"));
            assert_eq!(loader.get_checkpoint().position, 5);
        }
        loader.dataset().is_broken.store(false, Relaxed);
        assert_eq!(rest(&loader), [5, 6, 7, 8, 9]);
        assert_eq!(loader.get_stats().samples_loaded, 10);
    }
}

/// Panics where others return an error.
struct Panicking;

impl Dataset for Panicking {
    type Sample = usize;

    fn len(&self) -> usize {
        3
    }

    fn get(&self, index: usize) -> Result<usize> {
        if index == 1 { panic!("no such thing") } else { Err(Error::Invalid("broken".to_owned())) }
    }
}

#[test]
fn a_data_set_that_panics_does_not_take_the_loader_with_it() {
    for buffer in [0, 8] {
        let loader =
            StreamingShardLoader::new(Panicking, config(3, 1).with_prefetch_buffer_size(buffer)).unwrap();
        for _ in 0..2 {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loader.next())).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"no such thing"));
        }
        assert_eq!(loader.get_checkpoint().position, 0);
    }
}
