use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use shardfeed::{
    Assignment, Dataset, Error, JobState, PartitionStrategy, StreamCoordinator, StreamingConfig,
    StreamingShardLoader, WorkerStatus,
};

use super::support::{Numbers, config, loader, wait_until, work};

const EVERYTHING: usize = usize::MAX;

fn sorted(mut all: Vec<usize>) -> Vec<usize> {
    all.sort_unstable();
    all
}

fn adaptive(config: StreamingConfig) -> StreamingConfig {
    config
        .with_partition_strategy(PartitionStrategy::Adaptive {
            base_strategy: Box::new(PartitionStrategy::Contiguous),
            rebalance_threshold: 0.1,
        })
        .with_dynamic_balancing(true)
}

/// Runs workers in threads, each with what it is to do; returns what each committed.
fn in_threads(
    workers: usize,
    dataset: &(impl Fn(usize) -> Numbers + Sync),
    make: &(impl Fn(usize) -> StreamingConfig + Sync),
    run: &(impl Fn(usize, &StreamingShardLoader<Numbers>) -> Vec<usize> + Sync),
) -> (Arc<StreamCoordinator>, Vec<Vec<usize>>) {
    let coordinator = Arc::new(StreamCoordinator::new(make(0)).unwrap());
    let barrier = Barrier::new(workers);
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|rank| {
                let (coordinator, barrier) = (&coordinator, &barrier);
                scope.spawn(move || {
                    let loader = loader(&dataset(rank), make(rank), coordinator);
                    coordinator.wait_for_workers(Duration::from_secs(30)).unwrap();
                    barrier.wait();
                    run(rank, &loader)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (coordinator, done)
}

#[test]
fn nobody_fails_and_each_has_its_own() {
    let config = |rank| config(3, rank).with_fault_tolerance(1).with_shuffle_seed(7);
    let numbers = |_| Numbers { len: 100, delay: Duration::ZERO };
    let (coordinator, done) = in_threads(3, &numbers, &config, &|rank, loader| {
        assert_eq!(loader.len(), (100 - rank).div_ceil(3));
        let mut all = work(loader, 7, EVERYTHING).unwrap();
        assert_eq!(all.len(), loader.len());
        // Another epoch, in another order.
        loader.reset();
        assert_eq!(loader.epoch(), 1);
        let again = work(loader, 1, EVERYTHING).unwrap();
        assert_ne!(all, again);
        all.extend(again);
        all
    });
    let expected: Vec<usize> = (0..100).flat_map(|sample| [sample, sample]).collect();
    assert_eq!(sorted(done.concat()), expected);
    // All of it is known, in the order in which it was done.
    for (rank, done) in done.iter().enumerate() {
        let fixed = StreamingShardLoader::new(
            Numbers { len: 100, delay: Duration::ZERO },
            StreamingConfig::new(3, rank).unwrap().with_shuffle_seed(7),
        )
        .unwrap();
        let mut again = Vec::new();
        for epoch in 0..2 {
            fixed.set_epoch(epoch);
            fixed.adopt(epoch, &coordinator.assignment(epoch, rank).unwrap()).unwrap();
            again.extend(std::iter::from_fn(|| fixed.next().unwrap()));
        }
        assert_eq!(&again, done);
    }
}

#[test]
fn several_callers_of_a_loader_commit_what_is_due_once() {
    const THREADS: usize = 4;
    let numbers = |_| Numbers { len: 2000, delay: Duration::ZERO };
    let config = |rank| config(1, rank).with_fault_tolerance(1).with_checkpointing(10);
    in_threads(1, &numbers, &config, &|_, loader| {
        let taken = std::thread::scope(|scope| {
            let take = || std::iter::from_fn(|| loader.next().unwrap()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        // One for every ten samples, and in the end one for what each caller may have been late with.
        let checkpoints = loader.get_stats().num_checkpoints as usize;
        assert!(checkpoints <= 2000 / 10 + THREADS, "{checkpoints}");
        taken
    });
}

#[test]
fn who_waits_for_work_is_not_busy() {
    let config = |rank| config(2, rank).with_fault_tolerance(1);
    // One has nothing to wait for but the other, which takes a second and a half.
    let numbers = |rank| Numbers { len: 60, delay: Duration::from_millis([0, 50][rank]) };
    in_threads(2, &numbers, &config, &|rank, loader| {
        // Few commits: they are work.
        let all = work(loader, 15, EVERYTHING).unwrap();
        let stats = loader.get_stats();
        assert!(rank == 1 || stats.worker_utilization < 0.5, "{stats:?}");
        all
    });
}

#[test]
fn what_a_worker_leaves_behind_is_taken_over_and_done_once() {
    for replicas in [1, 2, 3] {
        let config = |rank| config(4, rank).with_fault_tolerance(replicas);
        let numbers = |_| Numbers { len: 400, delay: Duration::from_micros(500) };
        let (coordinator, done) = in_threads(4, &numbers, &config, &|rank, loader| {
            // Two of them go after a while; what they had not committed is done by others.
            let limit = if rank >= 2 { 10 * rank } else { EVERYTHING };
            let committed = work(loader, 5, limit).unwrap();
            if rank >= 2 {
                loader.next().unwrap();
            }
            committed
        });
        assert_eq!(sorted(done.concat()), (0..400).collect::<Vec<_>>(), "{replicas} replicas");
        // Who did what can be done again.
        let stats: u64 = (0..4).map(|rank| coordinator.assignment(0, rank).unwrap().len()).sum();
        assert_eq!(stats, 400);
        let health = coordinator.get_worker_health(3).unwrap().unwrap();
        assert_eq!(health.status, WorkerStatus::Failed);
        assert_eq!(health.samples_processed, 31);
    }
}

#[test]
fn with_checkpointing_nothing_need_be_committed_by_hand() {
    let config = |rank| config(3, rank).with_fault_tolerance(2).with_checkpointing(10);
    let numbers = |_| Numbers { len: 300, delay: Duration::ZERO };
    let (coordinator, done) = in_threads(3, &numbers, &config, &|rank, loader| {
        let mut all: Vec<usize> = Vec::new();
        while let Some(sample) = loader.next().unwrap() {
            all.push(sample);
            if rank == 0 && all.len() == 35 {
                // It dies here: three times ten are committed, and whoever takes over repeats the rest.
                all.truncate(30);
                break;
            }
        }
        all
    });
    assert_eq!(sorted(done.concat()), (0..300).collect::<Vec<_>>());
    assert_eq!(coordinator.get_checkpoint(0).unwrap().unwrap().position, 30);
    let others: u64 =
        (1..3).map(|rank| coordinator.get_worker_health(rank).unwrap().unwrap().samples_processed).sum();
    assert_eq!(others, 270);
}

#[test]
fn the_slow_are_relieved_by_the_fast() {
    let config = |rank| adaptive(config(4, rank)).with_checkpointing(5);
    // One takes five times as long.
    let numbers =
        |rank| Numbers { len: 1000, delay: Duration::from_micros(if rank == 3 { 10_000 } else { 2_000 }) };
    let (coordinator, done) = in_threads(4, &numbers, &config, &|_, loader| {
        std::iter::from_fn(|| loader.next().unwrap()).collect()
    });
    assert_eq!(sorted(done.concat()), (0..1000).collect::<Vec<_>>());
    let counts: Vec<usize> = done.iter().map(Vec::len).collect();
    assert!(counts[3] < 150, "{counts:?}");
    let deals = coordinator.deals(0).unwrap();
    assert_eq!(deals.last(), coordinator.last_deal().unwrap().as_ref());
    assert_eq!(
        deals.iter().map(|deal| deal.number).collect::<Vec<_>>(),
        (1..=deals.len() as u64).collect::<Vec<_>>()
    );
    assert!(!deals.is_empty());
    for (rank, done) in done.iter().enumerate() {
        let fixed =
            StreamingShardLoader::new(numbers(0), adaptive(StreamingConfig::new(4, rank).unwrap())).unwrap();
        fixed.adopt(0, &coordinator.assignment(0, rank).unwrap()).unwrap();
        let again: Vec<usize> = std::iter::from_fn(|| fixed.next().unwrap()).collect();
        assert_eq!(&again, done, "rank {rank}");
    }
}

#[test]
fn workers_join_and_leave() {
    let coordinator = Arc::new(StreamCoordinator::new(config(4, 0)).unwrap());
    let numbers = Numbers { len: 800, delay: Duration::from_millis(1) };
    let make = |rank| adaptive(config(4, rank)).with_fault_tolerance(3);
    let done = std::thread::scope(|scope| {
        let (coordinator, numbers, make) = (&coordinator, &numbers, &make);
        // Each comes a little later, three of them leave, and two come again.
        let stints =
            [(0, 0, EVERYTHING), (1, 20, 40), (2, 40, 60), (3, 60, 30), (1, 150, EVERYTHING), (3, 250, 50)];
        let workers: Vec<_> = stints
            .into_iter()
            .map(|(rank, after, limit)| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(after));
                    let loader = loader(numbers, make(rank), coordinator);
                    work(&loader, 4, limit).unwrap()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(sorted(done.concat()), (0..800).collect::<Vec<_>>());
}

#[test]
fn the_whole_job_goes_back_to_where_it_was_saved() {
    let make = |rank| config(2, rank).with_fault_tolerance(1).with_shuffle_seed(1);
    let numbers = Numbers { len: 200, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make(0)).unwrap());
    let first: Vec<_> = (0..2).map(|rank| loader(&numbers, make(rank), &coordinator)).collect();
    let before: Vec<Vec<usize>> = first.iter().map(|loader| work(loader, 10, 30).unwrap()).collect();
    let saved = serde_json::to_string(&coordinator.job_state().unwrap()).unwrap();
    // More is done, which the model that is restored never saw.
    for loader in &first {
        assert_eq!(work(loader, 10, 50).unwrap().len(), 50);
    }

    let state: JobState = serde_json::from_str(&saved).unwrap();
    assert_eq!(state.processed_count(), 60);
    coordinator.restore(&state).unwrap();
    for loader in &first {
        loader.next().unwrap();
        let error = loader.commit().unwrap_err();
        assert!(matches!(error, Error::Fenced { .. }) && error.to_string().contains("restored"), "{error}");
        assert!(loader.next().is_err());
    }
    drop(first);
    let after = std::thread::scope(|scope| {
        let (coordinator, numbers, make) = (&coordinator, &numbers, &make);
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || work(&loader(numbers, make(rank), coordinator), 10, EVERYTHING).unwrap())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(sorted([before.concat(), after.concat()].concat()), (0..200).collect::<Vec<_>>());

    // In a job that began otherwise it is refused.
    let other = Arc::new(StreamCoordinator::new(make(0).with_shuffle_seed(2)).unwrap());
    let _joined = loader(&numbers, make(0).with_shuffle_seed(2), &other);
    wait_until("the job begins", || other.job_state().is_ok());
    let error = other.restore(&state).unwrap_err().to_string();
    assert!(error.contains("shuffle seed is Some(2), here it is Some(1)"), "{error}");
}

#[test]
fn an_epoch_that_was_left_is_taken_up_where_it_was() {
    let config = |rank| config(2, rank).with_fault_tolerance(1).with_shuffle_seed(3);
    let numbers = |_| Numbers { len: 120, delay: Duration::ZERO };
    let (_, done) = in_threads(2, &numbers, &config, &|rank, loader| {
        let mut first = work(loader, 5, 20 + 10 * rank).unwrap();
        // Handed out, and left without being committed.
        assert!(loader.next().unwrap().is_some());
        loader.set_epoch(1);
        let second = work(loader, 5, EVERYTHING).unwrap();
        loader.set_epoch(0);
        first.extend(work(loader, 5, EVERYTHING).unwrap());
        first.into_iter().chain(second.into_iter().map(|sample| 1000 + sample)).collect()
    });
    let expected: Vec<usize> = (0..120).chain(1000..1120).collect();
    assert_eq!(sorted(done.concat()), expected);
}

#[test]
fn several_threads_on_each_worker() {
    let config = |rank| config(2, rank).with_fault_tolerance(1).with_prefetch_buffer_size(8);
    let numbers = |_| Numbers { len: 2000, delay: Duration::from_micros(50) };
    let (coordinator, done) = in_threads(2, &numbers, &config, &|_, loader| {
        let all = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut count = 0;
                    loop {
                        let Some(sample) = loader.next().unwrap() else {
                            loader.commit().unwrap();
                            // Nothing is left to commit: it is the end.
                            if loader.next().unwrap().is_none() {
                                return;
                            }
                            panic!("a sample after the end, with nobody failing");
                        };
                        all.lock().unwrap().push(sample);
                        count += 1;
                        if count % 50 == 0 {
                            loader.commit().unwrap();
                        }
                    }
                });
            }
        });
        all.into_inner().unwrap()
    });
    assert_eq!(sorted(done.concat()), (0..2000).collect::<Vec<_>>());
    assert_eq!((0..2).map(|rank| coordinator.assignment(0, rank).unwrap().len()).sum::<u64>(), 2000);
}

#[test]
fn at_the_end_all_callers_reset_and_one_epoch_follows() {
    const CALLERS: usize = 4;
    let make = || config(1, 0).with_fault_tolerance(1).with_checkpointing(5).with_shuffle_seed(2);
    let numbers = Numbers { len: 20, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
    let loader = loader(&numbers, make(), &coordinator);
    for epoch in 0..1000 {
        let done = AtomicUsize::new(0);
        let taken: Vec<usize> = std::thread::scope(|scope| {
            let take = || {
                let taken: Vec<usize> = std::iter::from_fn(|| loader.next().unwrap()).collect();
                assert!(loader.is_epoch_over());
                // Not asleep: they go on at the same moment.
                done.fetch_add(1, Relaxed);
                while done.load(Relaxed) < CALLERS {
                    std::thread::yield_now();
                }
                loader.reset();
                taken
            };
            let threads: Vec<_> = (0..CALLERS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(sorted(taken), (0..20).collect::<Vec<_>>(), "epoch {epoch}");
        assert_eq!((loader.epoch(), loader.is_epoch_over()), (epoch + 1, false));
    }
}

#[test]
fn who_finds_an_epoch_over_too_late_does_not_end_the_next() {
    const EPOCHS: usize = 100;
    let make = || config(1, 0).with_fault_tolerance(1).with_checkpointing(10).with_shuffle_seed(2);
    let numbers = Numbers { len: 30, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
    let loader = loader(&numbers, make(), &coordinator);
    let is_done = AtomicBool::new(false);
    let taken: Vec<usize> = std::thread::scope(|scope| {
        // They ask for more all the time, and find again and again that the epoch is over while another goes on to the next.
        let ask = || {
            let mut taken = Vec::new();
            while !is_done.load(Relaxed) {
                taken.extend(loader.next().unwrap());
            }
            taken
        };
        let others: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        let mut taken = Vec::new();
        loop {
            if !loader.is_epoch_over() {
                taken.extend(loader.next().unwrap());
            } else if loader.epoch() + 1 < EPOCHS as u64 {
                loader.reset();
            } else {
                break;
            }
        }
        is_done.store(true, Relaxed);
        others.into_iter().fold(taken, |taken, other| [taken, other.join().unwrap()].concat())
    });
    let mut counts = [0; 30];
    for sample in taken {
        counts[sample] += 1;
    }
    assert_eq!(counts, [EPOCHS; 30]);
}

#[test]
fn what_is_fetched_before_anything_is_leased_is_waited_for() {
    let make = |rank| config(2, rank).with_fault_tolerance(1).with_prefetch_buffer_size(0);
    let numbers = Numbers { len: 40, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make(0)).unwrap());
    let first = loader(&numbers, make(0), &coordinator);
    let take = |loader: &StreamingShardLoader<Numbers>, count: usize| {
        let taken: Vec<usize> = std::iter::from_fn(|| loader.next().unwrap()).take(count).collect();
        assert_eq!(taken.len(), count);
    };
    let came = |loader: &StreamingShardLoader<Numbers>| {
        let stats = loader.get_stats();
        (stats.prefetch_hits, stats.prefetch_misses)
    };
    first.prefetch(8).unwrap();
    let second = loader(&numbers, make(1), &coordinator);
    take(&second, 5);
    second.commit().unwrap();
    take(&first, 8);
    assert_eq!(came(&first), (8, 0));
    // All that are left.
    first.prefetch(1000).unwrap();
    take(&first, 12);
    assert_eq!(came(&first), (20, 0));
    // Nothing comes before they are committed: nobody waits for it.
    first.prefetch(1).unwrap();
    first.commit().unwrap();
    // What another leaves behind comes.
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| first.prefetch(10).unwrap());
        drop(second);
        fetching.join().unwrap();
    });
    take(&first, 10);
    assert_eq!(came(&first), (30, 0));
    first.prefetch(10).unwrap();
    take(&first, 5);
    assert_eq!(came(&first), (35, 0));
    first.commit().unwrap();
    // The end of the epoch ends that, too.
    first.prefetch(10).unwrap();
    assert!(first.is_epoch_over() && first.next().unwrap().is_none());
    first.reset();
    first.prefetch(3).unwrap();
    take(&first, 3);
    assert_eq!(came(&first), (38, 0));
}

#[test]
fn a_job_restored_in_a_later_epoch_goes_on_there() {
    let make = || config(1, 0).with_fault_tolerance(1).with_shuffle_seed(1);
    let numbers = Numbers { len: 60, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
    let first = loader(&numbers, make(), &coordinator);
    for _ in 0..2 {
        assert_eq!(work(&first, 10, EVERYTHING).unwrap().len(), 60);
        assert!(first.is_epoch_over());
        first.reset();
        assert!(!first.is_epoch_over());
    }
    let before = work(&first, 10, 20).unwrap();
    let saved = coordinator.job_state().unwrap();
    assert_eq!((saved.epoch, saved.processed_count()), (2, 20));
    // It goes on, into the epochs after.
    work(&first, 10, EVERYTHING).unwrap();
    first.reset();
    work(&first, 10, EVERYTHING).unwrap();
    drop(first);
    coordinator.restore(&saved).unwrap();
    assert_eq!(coordinator.job_state().unwrap(), saved);
    let again = loader(&numbers, make(), &coordinator);
    assert_eq!(again.epoch(), 2);
    let after = work(&again, 10, EVERYTHING).unwrap();
    assert_eq!(sorted([before, after].concat()), (0..60).collect::<Vec<_>>());
    // Nothing comes before where it begins.
    again.set_epoch(1);
    assert!(again.next().unwrap_err().to_string().contains("restored"));
}

/// Numbers that remember which of them somebody may ask for soon.
#[derive(Clone)]
struct Warmed {
    len: usize,
    warm: Arc<Mutex<Vec<usize>>>,
}

impl Dataset for Warmed {
    type Sample = usize;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> shardfeed::Result<usize> {
        Ok(index)
    }

    fn warm(&self, index: usize) {
        self.warm.lock().unwrap().push(index);
    }
}

#[test]
fn who_stands_by_keeps_the_next_sample_of_the_other_warm() {
    let make =
        |rank| config(2, rank).with_partition_strategy(PartitionStrategy::Contiguous).with_fault_tolerance(1);
    let coordinator = Arc::new(StreamCoordinator::new(make(0)).unwrap());
    let numbers = || Warmed { len: 100, warm: Arc::default() };
    let data = [numbers(), numbers()];
    let loaders: Vec<_> = (0..2)
        .map(|rank| {
            let loader = StreamingShardLoader::new(data[rank].clone(), make(rank)).unwrap();
            loader.with_coordinator(Arc::clone(&coordinator))
        })
        .collect();
    let is_warm = |rank: usize, index: usize| data[rank].warm.lock().unwrap().contains(&index);
    wait_until("the other's first is warm", || is_warm(0, 50) && is_warm(1, 0));
    for _ in 0..10 {
        loaders[1].next().unwrap();
    }
    loaders[1].commit().unwrap();
    wait_until("what follows the commit is warm", || is_warm(0, 60));
    assert!(!is_warm(1, 60));
}

#[test]
fn a_commit_that_cannot_be_written_to_its_file_is_a_commit() {
    let make = || config(1, 0).with_fault_tolerance(1).with_checkpoint_path("/dev/null/nowhere");
    let numbers = Numbers { len: 10, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
    let loader = loader(&numbers, make(), &coordinator);
    assert_eq!(loader.next().unwrap(), Some(0));
    loader.commit().unwrap();
    assert_eq!(coordinator.job_state().unwrap().processed_count(), 1);
    assert!(loader.next().unwrap_err().to_string().contains("/dev/null/nowhere"));
    assert_eq!(loader.next().unwrap(), Some(1));
}

#[test]
fn a_step_that_was_named_stays() {
    let make = || config(1, 0).with_fault_tolerance(1).with_checkpointing(10);
    let numbers = Numbers { len: 60, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
    let loader = loader(&numbers, make(), &coordinator);
    for _ in 0..7 {
        loader.next().unwrap();
    }
    loader.commit_step(41).unwrap();
    let known = || coordinator.get_checkpoint(0).unwrap().unwrap();
    assert_eq!((known().position, known().step), (7, Some(41)));
    for _ in 0..20 {
        loader.next().unwrap();
    }
    assert_eq!((known().position, known().step), (17, Some(41)));
}

#[test]
fn a_step_is_known_though_nothing_new_is_done() {
    let make = || config(1, 0).with_fault_tolerance(1);
    let numbers = Numbers { len: 20, delay: Duration::ZERO };
    let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
    let loader = loader(&numbers, make(), &coordinator);
    let known = || {
        let state = coordinator.get_checkpoint(0).unwrap().unwrap();
        (state.epoch, state.position, state.step)
    };
    loader.commit_step(1).unwrap();
    assert_eq!(known(), (0, 0, Some(1)));
    for _ in 0..7 {
        loader.next().unwrap().unwrap();
    }
    for step in [2, 3] {
        loader.commit_step(step).unwrap();
        assert_eq!(known(), (0, 7, Some(step)));
    }
    while loader.next().unwrap().is_some() {}
    loader.commit_step(4).unwrap();
    assert!(loader.next().unwrap().is_none() && loader.is_epoch_over());
    for step in [5, 6] {
        loader.commit_step(step).unwrap();
        assert_eq!(known(), (0, 20, Some(step)));
    }
    loader.reset();
    loader.commit_step(7).unwrap();
    assert_eq!(known(), (1, 0, Some(7)));
    assert_eq!(work(&loader, 5, EVERYTHING).unwrap().len(), 20);
}

type Go<'a> = &'a dyn Fn(&StreamingShardLoader<Numbers>);

#[test]
fn who_went_elsewhere_before_its_samples_are_leased_is_told() {
    let numbers = Numbers { len: 100, delay: Duration::ZERO };
    let make = || config(1, 0).with_fault_tolerance(1);
    let saved = StreamingShardLoader::new(numbers.clone(), make()).unwrap();
    for _ in 0..5 {
        saved.next().unwrap().unwrap();
    }
    let state = saved.get_checkpoint();
    let restore: Go = &|loader| loader.restore_from_checkpoint(&state).unwrap();
    let set_epoch: Go = &|loader| loader.set_epoch(1);
    let begin: Go = &|loader| assert_eq!(loader.next().unwrap(), Some(0));
    let adopt: Go = &|loader| loader.adopt(0, &Assignment::whole(0, 10)).unwrap();
    for go in [restore, set_epoch, begin, adopt] {
        let coordinator = Arc::new(StreamCoordinator::new(make()).unwrap());
        let loader = StreamingShardLoader::new(numbers.clone(), make()).unwrap();
        go(&loader);
        let loader = loader.with_coordinator(coordinator);
        for _ in 0..2 {
            let error = loader.next().unwrap_err().to_string();
            assert!(error.contains("where they stand is the coordinator's to say"), "{error}");
        }
    }
}

#[test]
fn what_cannot_be_is_said() {
    let numbers = Numbers { len: 100, delay: Duration::ZERO };
    let make = |rank| config(2, rank).with_fault_tolerance(1);
    let coordinator = Arc::new(StreamCoordinator::new(make(0)).unwrap());
    let first = loader(&numbers, make(0), &coordinator);
    first.next().unwrap().unwrap();

    // Another data set.
    let other = loader(&Numbers { len: 99, ..numbers }, make(1), &coordinator);
    let error = other.next().unwrap_err().to_string();
    assert!(error.contains("number of samples is 100, here it is 99"), "{error}");

    // The same rank.
    let twin = loader(&numbers, make(0), &coordinator);
    let error = twin.next().unwrap_err().to_string();
    assert!(error.contains("another process has this rank"), "{error}");

    // Another world size.
    let wider = loader(&numbers, config(3, 2).with_fault_tolerance(1), &coordinator);
    let error = wider.next().unwrap_err().to_string();
    assert!(error.contains("world size 3 with a coordinator of world size 2"), "{error}");
    // However often it is asked.
    assert!(wider.next().is_err() && wider.next().is_err());

    // One worker alone cannot go back.
    let error = first.restore_from_checkpoint(first.get_checkpoint()).unwrap_err().to_string();
    assert!(error.contains("StreamCoordinator::restore"), "{error}");
    first.reset();
    let error = first.next().unwrap_err().to_string();
    assert!(error.contains("StreamCoordinator::restore"), "{error}");
    first.next().unwrap().unwrap();

    let error = coordinator.wait_for_workers(Duration::from_millis(10)).unwrap_err().to_string();
    assert!(error.contains("workers [1] did not come"), "{error}");
}
