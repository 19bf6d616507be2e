//! A coordinator that is away: loaders whose order needs none go on as if it had never been.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use shardfeed::sample::{SampleData, write_sample};
use shardfeed::{StreamCoordinator, StreamingConfig, StreamingShardLoader, TokenLoader, WorkerStatus};

use super::etcd::Etcd;
use super::support::{Numbers, wait_until};

fn config() -> StreamingConfig {
    StreamingConfig::new(1, 0).unwrap().with_lease(Duration::from_secs(2))
}

/// Runs something that must not wait for anybody, and says so if it does.
fn without_waiting<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    // Far longer than the work takes, and shorter than anybody's patience with a store that is gone adds up to.
    told.recv_timeout(Duration::from_mins(1)).unwrap_or_else(|_| panic!("{what} waits"))
}

/// The tokens of an epoch, summed up so that order counts.
fn digest(loader: &mut TokenLoader) -> u64 {
    let mut sum = 0_u64;
    while let Some(batch) = loader.next_batch().unwrap() {
        for &id in batch.input_ids().as_i64().unwrap() {
            sum = sum.wrapping_mul(31).wrapping_add(id as u64);
        }
    }
    sum
}

#[test]
fn a_token_loader_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    write_sample(dir.path(), &SampleData::default()).unwrap();
    let build = {
        let data = dir.path().to_owned();
        move |coordinator: Option<&Arc<StreamCoordinator>>| {
            let builder = TokenLoader::builder(&data, 128, 16).seed(7);
            match coordinator {
                Some(coordinator) => builder.coordinator(Arc::clone(coordinator)),
                None => builder,
            }
            .build()
            .unwrap()
        }
    };
    // A whole epoch, the second half of the next, a whole one.
    let take_half = |loader: &mut TokenLoader| {
        let half = loader.steps_left() / 2;
        (0..half).for_each(|_| drop(loader.next_batch().unwrap().unwrap()));
    };
    let mut alone = build(None);
    let expected_first = digest(&mut alone);
    take_half(&mut alone);
    let expected_later = [digest(&mut alone), digest(&mut alone)];
    let mut etcd = Etcd::start(1);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("tokens"), config()).unwrap());

    // There: it is heard of, and so is where it stands.
    let mut loader = build(Some(&coordinator));
    assert_eq!(digest(&mut loader), expected_first);
    take_half(&mut loader);
    let stands = (loader.state().epoch, loader.state().position);
    wait_until("it is heard of", || {
        let rows = coordinator.workers().unwrap();
        rows.first().is_some_and(|row| {
            (row.epoch, row.position) == stands && row.health.status == WorkerStatus::Active
        })
    });
    assert_eq!(loader.coordinator_trouble(), None);

    // It goes away: the same batches, and the trouble is told to those who ask.
    etcd.kill(0);
    wait_until("its absence is noticed", || loader.coordinator_trouble().is_some());
    let mut fresh = build(Some(&coordinator));
    let digests = without_waiting("a loader", move || {
        let later = [digest(&mut loader), digest(&mut loader)];
        // One that begins while it is away.
        (later, digest(&mut fresh))
    });
    assert_eq!(digests, (expected_later, expected_first));

    // It comes back: so does the worker.
    let mut loader = build(Some(&coordinator));
    take_half(&mut loader);
    // Back to the beginning: within an epoch it would stay where it is.
    loader.set_epoch(1);
    loader.set_epoch(0);
    etcd.run(0);
    wait_until("it is heard of again", || {
        coordinator.workers().is_ok_and(|rows| rows.first().is_some_and(|row| row.lease_ms.is_some()))
    });
    assert_eq!(digest(&mut loader), expected_first);
}

#[test]
fn a_token_loader_that_hands_nothing_out_leaves_its_rank_to_who_does() {
    let dir = tempfile::tempdir().unwrap();
    write_sample(dir.path(), &SampleData::default()).unwrap();
    let etcd = Etcd::start(1);
    // Each with a coordinator of its own, as in the processes of a DataLoader.
    let build = || {
        let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("workers"), config()).unwrap());
        TokenLoader::builder(dir.path(), 128, 16).coordinator(coordinator).build().unwrap()
    };
    let made_first = build();
    let mut worker = build();
    drop(worker.next_batch().unwrap().unwrap());
    let coordinator = StreamCoordinator::connect(&etcd.url("workers"), config()).unwrap();
    wait_until("the worker is heard of", || {
        let rows = coordinator.workers().unwrap();
        rows.first().is_some_and(|row| row.position == 16 && row.health.status == WorkerStatus::Active)
    });
    assert_eq!((worker.coordinator_trouble(), made_first.coordinator_trouble()), (None, None));
}

#[test]
fn a_shard_loader_whose_samples_are_its_own_goes_on_and_tells_later() {
    let mut etcd = Etcd::start(1);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("shards"), config()).unwrap());
    let loader = StreamingShardLoader::new(
        Numbers { len: 1000, delay: Duration::ZERO },
        config().with_checkpointing(100),
    )
    .unwrap()
    .with_coordinator(Arc::clone(&coordinator));
    assert_eq!((0..150).map(|_| loader.next().unwrap().unwrap()).sum::<usize>(), (0..150).sum::<usize>());
    wait_until("a checkpoint is known", || {
        coordinator.get_checkpoint(0).unwrap().is_some_and(|state| state.position == 100)
    });
    etcd.kill(0);
    let loader = without_waiting("a loader", move || {
        (150..950).for_each(|index| assert_eq!(loader.next().unwrap(), Some(index)));
        loader
    });
    etcd.run(0);
    // The last one is, none of those between.
    wait_until("the last checkpoint is known", || {
        coordinator.get_checkpoint(0).is_ok_and(|state| state.is_some_and(|state| state.position == 900))
    });
    assert!(loader.next().unwrap().is_some());
}

#[test]
fn without_a_majority_leased_work_goes_on_while_the_lease_holds_then_waits_and_nothing_is_lost() {
    const SAMPLES: usize = 9000;
    const LEASE: Duration = Duration::from_secs(3);
    // A leader renews leases alone until it notices that nobody follows: it looks once an election timeout (etcd's
    // default), so within two. Whoever leads next gives every lease its full time again, so this is safe.
    const UNNOTICED: Duration = Duration::from_secs(2);
    let mut etcd = Etcd::start(3);
    let config = config().with_fault_tolerance(1).with_lease(LEASE);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("majority"), config.clone()).unwrap());
    let numbers = Numbers { len: SAMPLES, delay: Duration::from_millis(1) };
    let loader = StreamingShardLoader::new(numbers, config).unwrap().with_coordinator(coordinator);
    let handed_out = Arc::new(Mutex::new(Vec::new()));
    let worker = {
        let handed_out = Arc::clone(&handed_out);
        std::thread::spawn(move || {
            while let Some(sample) = loader.next().unwrap() {
                handed_out.lock().unwrap().push((sample, Instant::now()));
            }
            loader.commit().unwrap();
            assert!(loader.next().unwrap().is_none() && loader.is_epoch_over());
        })
    };
    let count = || handed_out.lock().unwrap().len();
    wait_until("it works", || count() > 100);
    // The followers: the leader stays, which is the longest that a lease can last.
    let leader = etcd.leader().unwrap();
    let followers: Vec<usize> = (0..3).filter(|&node| node != leader).collect();
    for &node in &followers {
        etcd.kill(node);
    }
    let (gone, at_the_loss) = (Instant::now(), count());
    while gone.elapsed() < LEASE + UNNOTICED + Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let waiting = count();
    assert!(waiting > at_the_loss + 100, "{waiting} after {at_the_loss}");
    assert!(waiting < SAMPLES, "it went on without a lease");
    let (_, last) = *handed_out.lock().unwrap().last().unwrap();
    assert!(last < gone + LEASE + UNNOTICED, "handed out {:?} after the majority was gone", last - gone);
    for &node in &followers {
        etcd.run(node);
    }
    worker.join().unwrap();
    let all: Vec<usize> = handed_out.lock().unwrap().iter().map(|(sample, _)| *sample).collect();
    assert_eq!(all, (0..SAMPLES).collect::<Vec<_>>());
}

#[test]
fn who_commits_and_leaves_at_once_has_handed_its_checkpoint_on() {
    let etcd = Etcd::start(1);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("short"), config()).unwrap());
    for round in 1..=20_u64 {
        // Another store's client each time: some have not even joined when they end.
        let own = Arc::new(StreamCoordinator::connect(&etcd.url("short"), config()).unwrap());
        let numbers = Numbers { len: 1000, delay: Duration::ZERO };
        let loader = StreamingShardLoader::new(numbers, config()).unwrap().with_coordinator(own);
        for _ in 0..round {
            loader.next().unwrap().unwrap();
        }
        loader.commit_step(round).unwrap();
        drop(loader);
        let state = coordinator.get_checkpoint(0).unwrap().expect("it was handed on");
        assert_eq!((state.position as u64, state.step), (round, Some(round)));
    }
}

#[test]
fn who_commits_and_leaves_before_it_could_join_hands_its_checkpoint_on_when_the_coordinator_is_back() {
    // It waits for an answer for 1.5 s, and four times as long to hand its checkpoint on.
    let config = || config().with_lease(Duration::from_secs(9));
    let etcd = Etcd::start(1);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("late"), config()).unwrap());
    let signal = |signal| kill_process(Pid::from_raw(etcd.pid(0).unwrap() as i32).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    let numbers = Numbers { len: 1000, delay: Duration::ZERO };
    let loader = StreamingShardLoader::new(numbers, config()).unwrap();
    let loader = loader.with_coordinator(Arc::clone(&coordinator));
    loader.next().unwrap().unwrap();
    wait_until("it is not answered", || loader.coordinator_trouble().is_some());
    loader.commit_step(7).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        drop(loader);
        tell.send(()).unwrap();
    });
    // Its last question is unanswered by then, and it asks again.
    assert!(told.recv_timeout(Duration::from_secs(2)).is_err(), "it gave up");
    signal(Signal::CONT);
    told.recv_timeout(Duration::from_mins(1)).expect("it leaves");
    let state = coordinator.get_checkpoint(0).unwrap().expect("it was handed on");
    assert_eq!((state.position, state.step), (1, Some(7)));
}

#[test]
fn who_leaves_while_the_coordinator_is_away_does_not_wait_for_it() {
    let mut etcd = Etcd::start(1);
    let coordinator = Arc::new(StreamCoordinator::connect(&etcd.url("away"), config()).unwrap());
    let numbers = Numbers { len: 1000, delay: Duration::ZERO };
    let loader = StreamingShardLoader::new(numbers, config()).unwrap().with_coordinator(coordinator);
    loader.next().unwrap().unwrap();
    etcd.kill(0);
    wait_until("it is away", || loader.coordinator_trouble().is_some());
    loader.commit().unwrap();
    without_waiting("who leaves", move || drop(loader));
}
