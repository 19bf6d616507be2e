//! Checkpoints by themselves: to the coordinator, to a file, through kills and full disks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

use shardfeed::{
    Dataset, Error, Result, StreamCoordinator, StreamingShardLoader, read_checkpoint, write_checkpoint,
};

use crate::support::{Numbers, config, rest, take};

#[test]
fn every_so_many_samples_the_coordinator_knows() {
    for interval in [1, 3, 7, 20, 50] {
        for buffer in [0, 5] {
            let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
            let config = config(2, 1).with_checkpointing(interval).with_prefetch_buffer_size(buffer);
            let loader = StreamingShardLoader::new(Numbers::new(80), config).unwrap();
            let loader = loader.with_coordinator(Arc::clone(&coordinator));
            for taken in 1..=40 {
                loader.next().unwrap();
                let held = coordinator.get_checkpoint(1).unwrap().map_or(0, |state| state.position);
                assert_eq!(held, taken / interval * interval);
                assert_eq!(loader.get_stats().num_checkpoints as usize, taken / interval);
            }
            loader.commit_step(17).unwrap();
            let state = coordinator.get_checkpoint(1).unwrap().unwrap();
            assert_eq!((state.position, state.step), (40, Some(17)));
            assert_eq!(coordinator.get_checkpoint(0).unwrap(), None);
            let error = coordinator.register_checkpoint(0, state).unwrap_err().to_string();
            assert!(error.contains("rank 1 as that of rank 0"), "{error}");
            assert!(
                coordinator.get_checkpoint(2).unwrap_err().to_string().contains("rank 2 of world size 2")
            );
        }
    }
}

#[test]
fn every_so_many_samples_are_counted_over_epochs() {
    // Forty samples of an epoch, two hundred and ten in all.
    for (interval, taken, expected) in [(50, 210, (4, 4, 40)), (7, 210, (30, 5, 10)), (300, 310, (1, 7, 20))]
    {
        let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
        let config = config(2, 1).with_checkpointing(interval);
        let loader = StreamingShardLoader::new(Numbers::new(80), config).unwrap();
        let loader = loader.with_coordinator(Arc::clone(&coordinator));
        for _ in 0..taken {
            if loader.is_epoch_over() {
                loader.reset();
            }
            loader.next().unwrap().unwrap();
        }
        let state = coordinator.get_checkpoint(1).unwrap().unwrap();
        assert_eq!((loader.get_stats().num_checkpoints, state.epoch, state.position), expected);
    }
}

#[test]
fn who_goes_elsewhere_counts_anew() {
    let go = [
        |loader: &StreamingShardLoader<Numbers>| loader.reset(),
        |loader: &StreamingShardLoader<Numbers>| loader.set_epoch(0),
        |loader: &StreamingShardLoader<Numbers>| loader.set_epoch(5),
    ];
    for go in go {
        let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
        let loader =
            StreamingShardLoader::new(Numbers::new(80), config(2, 1).with_checkpointing(10)).unwrap();
        let loader = loader.with_coordinator(Arc::clone(&coordinator));
        take(&loader, 7);
        go(&loader);
        for taken in 1..=25 {
            loader.next().unwrap().unwrap();
            let held = coordinator.get_checkpoint(1).unwrap().map_or(0, |state| state.position);
            assert_eq!(held, taken / 10 * 10);
        }
    }
}

#[test]
fn what_belongs_to_a_step_of_the_trainer_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.json");
    let coordinator = Arc::new(StreamCoordinator::new(config(1, 0)).unwrap());
    let config = config(1, 0).with_checkpointing(10).with_checkpoint_path(&path);
    let loader = StreamingShardLoader::new(Numbers::new(200), config).unwrap();
    let loader = loader.with_coordinator(Arc::clone(&coordinator));
    let held = || {
        let state = coordinator.get_checkpoint(0).unwrap().unwrap();
        assert_eq!(read_checkpoint(&path).unwrap(), state);
        (state.position, state.step)
    };
    take(&loader, 25);
    assert_eq!(held(), (20, None));
    loader.commit_step(7).unwrap();
    take(&loader, 40);
    assert_eq!(held(), (25, Some(7)), "the model of step 7 has seen no more");
    loader.commit_step(8).unwrap();
    assert_eq!(held(), (65, Some(8)));
    // Also while others take samples.
    std::thread::scope(|scope| {
        let others = scope.spawn(|| while loader.next().unwrap().is_some() {});
        for step in 9..100 {
            loader.commit_step(step).unwrap();
            assert_eq!(held().1, Some(step));
        }
        others.join().unwrap();
    });
}

#[test]
fn what_belongs_to_a_step_is_not_replaced_after_a_restart_either() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.json");
    let make = || {
        let config = config(1, 0).with_checkpointing(10).with_checkpoint_path(&path);
        let coordinator = Arc::new(StreamCoordinator::new(config.clone()).unwrap());
        let loader = StreamingShardLoader::new(Numbers::new(200), config).unwrap();
        (loader.with_coordinator(Arc::clone(&coordinator)), coordinator)
    };
    let held = || read_checkpoint(&path).map(|state| (state.position, state.step)).unwrap();
    let (loader, _) = make();
    take(&loader, 25);
    loader.commit_step(7).unwrap();
    drop(loader);
    // Twice: what is restored is what was restored before.
    for _ in 0..2 {
        let (loader, coordinator) = make();
        loader.restore_from_checkpoint(read_checkpoint(&path).unwrap()).unwrap();
        assert_eq!(take(&loader, 40), (25..65).collect::<Vec<_>>());
        assert_eq!(held(), (25, Some(7)), "the model of step 7 has seen no more");
        assert_eq!(coordinator.get_checkpoint(0).unwrap(), None);
    }
    let (loader, _) = make();
    loader.restore_from_checkpoint(read_checkpoint(&path).unwrap()).unwrap();
    take(&loader, 40);
    loader.commit_step(8).unwrap();
    assert_eq!(held(), (65, Some(8)));
    // What is of no step goes on as before.
    loader.commit().unwrap();
    assert_eq!(held(), (65, None));
    let (loader, _) = make();
    loader.restore_from_checkpoint(read_checkpoint(&path).unwrap()).unwrap();
    take(&loader, 5);
    assert_eq!(held(), (70, None));
    // Who names steps goes on naming them, whatever is restored.
    loader.commit_step(9).unwrap();
    let no_step = loader.get_checkpoint();
    loader.restore_from_checkpoint(no_step).unwrap();
    take(&loader, 40);
    assert_eq!(held(), (70, Some(9)));
}

#[test]
fn a_commit_does_not_silence_a_coordinator_that_refused_and_nothing_is_handed_to_it() {
    let words = "world size 1 with a coordinator of world size 2";
    let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
    let loader = StreamingShardLoader::new(Numbers::new(80), config(1, 0).with_checkpointing(2)).unwrap();
    let loader = loader.with_coordinator(Arc::clone(&coordinator));
    let refused = |error: Error| assert!(error.to_string().contains(words), "{error}");
    refused(loader.commit().unwrap_err());
    refused(loader.next().unwrap_err());
    assert_eq!(take(&loader, 2), [0, 1]);
    // A checkpoint was due; the samples come all the same.
    refused(loader.next().unwrap_err());
    assert_eq!(take(&loader, 1), [2]);
    refused(loader.commit_step(7).unwrap_err());
    assert_eq!(take(&loader, 77), (3..80).collect::<Vec<_>>());
    assert_eq!(coordinator.get_checkpoint(0).unwrap(), None);
    assert_eq!(loader.get_stats().num_checkpoints, 0);
}

#[test]
fn a_loader_of_another_job_changes_nothing_of_what_its_coordinator_knows() {
    let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
    let join = |len, rank| {
        let config = config(2, rank).with_checkpointing(10);
        StreamingShardLoader::new(Numbers::new(len), config)
            .unwrap()
            .with_coordinator(Arc::clone(&coordinator))
    };
    let held = |rank| coordinator.get_checkpoint(rank).unwrap().map(|state| (state.samples, state.position));
    let first = join(80, 0);
    take(&first, 15);
    assert_eq!(held(0), Some((80, 10)));
    // Another data set, on a rank that is free: what its worker left there is not its own.
    let gone = join(80, 1);
    take(&gone, 25);
    drop(gone);
    assert_eq!(held(1), Some((80, 20)));
    let other = join(90, 1);
    let (mut samples, mut errors) = (Vec::new(), 0);
    while samples.len() < 45 {
        match other.next() {
            Ok(sample) => samples.extend(sample),
            Err(error) => {
                assert!(error.to_string().contains("number of samples is 80, here it is 90"), "{error}");
                errors += 1;
            }
        }
    }
    assert_eq!((samples, errors), ((0..90).skip(1).step_by(2).collect(), 4));
    assert!(other.commit_step(9).unwrap_err().to_string().contains("started otherwise"));
    assert_eq!(held(1), Some((80, 20)));
    // The same data set, on a rank that another has.
    let twin = join(80, 0);
    take(&twin, 5);
    let error = twin.commit().unwrap_err().to_string();
    assert!(error.contains("another worker has rank 0; give each its own"), "{error}");
    assert_eq!(held(0), Some((80, 10)));
    take(&twin, 4);
    assert_eq!(held(0), Some((80, 10)));
    first.commit().unwrap();
    assert_eq!(held(0), Some((80, 15)));
    // Once the first has left, the rank is free for whoever comes.
    drop((first, twin));
    let next = join(80, 0);
    next.restore_from_checkpoint(coordinator.get_checkpoint(0).unwrap().unwrap()).unwrap();
    take(&next, 5);
    assert_eq!(held(0), Some((80, 20)));
}

#[test]
fn of_many_threads_the_last_checkpoint_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.json");
    let coordinator = Arc::new(StreamCoordinator::new(config(1, 0)).unwrap());
    let config = config(1, 0).with_checkpointing(10).with_checkpoint_path(&path);
    let loader = StreamingShardLoader::new(Numbers::new(995), config).unwrap();
    let loader = loader.with_coordinator(Arc::clone(&coordinator));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| while loader.next().unwrap().is_some() {});
        }
    });
    let state = coordinator.get_checkpoint(0).unwrap().unwrap();
    assert_eq!(state.processed_count(), 990);
    assert_eq!(read_checkpoint(&path).unwrap(), state);
    loader.restore_from_checkpoint(&state).unwrap();
    assert_eq!(rest(&loader).len(), 5);
}

/// Numbers whose caller is held back after it has one of them, before anything is saved of it.
struct Held {
    len: usize,
    index: usize,
    has_it: Barrier,
    goes_on: Barrier,
    /// Only the first time.
    is_first: AtomicBool,
}

impl Held {
    fn new(len: usize, index: usize) -> Self {
        let (has_it, goes_on) = (Barrier::new(2), Barrier::new(2));
        Self { len, index, has_it, goes_on, is_first: AtomicBool::new(true) }
    }
}

impl Dataset for Held {
    type Sample = usize;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<usize> {
        Ok(index)
    }

    /// Asked for after a sample was handed out.
    fn is_remote(&self, index: usize) -> bool {
        if index == self.index && self.is_first.swap(false, Relaxed) {
            self.has_it.wait();
            self.goes_on.wait();
        }
        false
    }
}

/// What the coordinator holds when a caller saves what was due with its tenth sample, of thirty or of ten, after another went on:
/// epoch, position, and checkpoints that were taken.
fn saved_late(
    len: usize,
    buffer: usize,
    meanwhile: impl FnOnce(&StreamingShardLoader<Held>),
) -> (u64, usize, u64) {
    let coordinator = Arc::new(StreamCoordinator::new(config(1, 0)).unwrap());
    let config = config(1, 0).with_checkpointing(10).with_prefetch_buffer_size(buffer);
    let loader = StreamingShardLoader::new(Held::new(len, 9), config).unwrap();
    let loader = loader.with_coordinator(Arc::clone(&coordinator));
    take(&loader, 9);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| loader.next().unwrap());
        loader.dataset().has_it.wait();
        meanwhile(&loader);
        loader.dataset().goes_on.wait();
        assert_eq!(late.join().unwrap(), Some(9));
    });
    let state = coordinator.get_checkpoint(0).unwrap();
    let (epoch, position) = state.map_or((0, 0), |state| (state.epoch, state.position));
    (epoch, position, loader.get_stats().num_checkpoints)
}

#[test]
fn what_is_due_at_the_end_of_an_epoch_is_saved_though_another_caller_began_the_next() {
    for buffer in [0, 4] {
        let go_on = |loader: &StreamingShardLoader<Held>, count| {
            assert_eq!(loader.next().unwrap(), None);
            loader.reset();
            take(loader, count);
        };
        assert_eq!(saved_late(10, buffer, |loader| go_on(loader, 0)), (0, 10, 1));
        assert_eq!(saved_late(10, buffer, |loader| go_on(loader, 9)), (0, 10, 1));
        // Not over what is further on.
        assert_eq!(saved_late(10, buffer, |loader| go_on(loader, 10)), (1, 10, 1));
        let commit = |loader: &StreamingShardLoader<Held>| {
            go_on(loader, 3);
            loader.commit().unwrap();
        };
        assert_eq!(saved_late(10, buffer, commit), (1, 3, 1));
        let commit_at_once = |loader: &StreamingShardLoader<Held>| {
            go_on(loader, 0);
            loader.commit().unwrap();
        };
        assert_eq!(saved_late(10, buffer, commit_at_once), (1, 0, 1));
    }
}

#[test]
fn what_was_due_before_a_stream_went_elsewhere_is_not_saved_after_it() {
    for buffer in [0, 4] {
        assert_eq!(saved_late(30, buffer, |_| ()), (0, 10, 1));
        assert_eq!(saved_late(30, buffer, |loader| drop(take(loader, 5))), (0, 10, 1));
        assert_eq!(saved_late(30, buffer, |loader| drop(take(loader, 10))), (0, 20, 1));
        assert_eq!(saved_late(30, buffer, |loader| loader.set_epoch(3)), (0, 0, 0));
        assert_eq!(saved_late(30, buffer, StreamingShardLoader::reset), (0, 0, 0));
        let restore = |loader: &StreamingShardLoader<Held>| {
            let state = loader.get_checkpoint();
            loader.restore_from_checkpoint(state).unwrap();
        };
        assert_eq!(saved_late(30, buffer, restore), (0, 0, 0));
        // Also from the end of an epoch, but for the one that follows.
        assert_eq!(saved_late(10, buffer, |loader| loader.set_epoch(2)), (0, 0, 0));
        assert_eq!(saved_late(10, buffer, |loader| loader.set_epoch(0)), (0, 0, 0));
        assert_eq!(saved_late(10, buffer, |loader| loader.set_epoch(1)), (0, 10, 1));
    }
}

#[test]
fn a_file_is_restored_and_a_damaged_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.json");
    let config = || config(1, 0).with_shuffle_seed(3).with_checkpointing(10).with_checkpoint_path(&path);
    let loader = StreamingShardLoader::new(Numbers::new(100), config()).unwrap();
    take(&loader, 25);
    assert_eq!(read_checkpoint(&path).unwrap().position, 20);
    loader.commit().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    let restored = StreamingShardLoader::new(Numbers::new(100), config()).unwrap();
    restored.restore_from_checkpoint(read_checkpoint(&path).unwrap()).unwrap();
    assert_eq!(rest(&restored), rest(&loader));

    let bytes = std::fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        // Cut short, and with another byte. Without its last byte, an end of line, it is still whole.
        for damaged in [bytes[..at].to_vec(), [&bytes[..at], &[bytes[at] ^ 4], &bytes[at + 1..]].concat()] {
            std::fs::write(&path, &damaged).unwrap();
            match read_checkpoint(&path) {
                Ok(state) => assert!(at == bytes.len() - 1 && state.position == 100, "byte {at}"),
                Err(error) => assert!(error.to_string().contains("rank0.json"), "{error}"),
            }
        }
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_told_and_loses_no_sample() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a file");
    std::fs::write(&file, "in the way").unwrap();
    let config = config(1, 0).with_checkpointing(5).with_checkpoint_path(file.join("rank0.json"));
    let loader = StreamingShardLoader::new(Numbers::new(12), config.clone()).unwrap();
    let coordinator = Arc::new(StreamCoordinator::new(config).unwrap());
    let loader = loader.with_coordinator(Arc::clone(&coordinator));
    let (mut samples, mut errors) = (Vec::new(), 0);
    while samples.len() < 12 {
        match loader.next() {
            Ok(sample) => samples.extend(sample),
            Err(error) => {
                assert!(error.to_string().contains("rank0.json: cannot write the checkpoint"), "{error}");
                errors += 1;
            }
        }
    }
    assert_eq!((samples, errors), ((0..12).collect(), 2));
    assert!(loader.commit().is_err());
    assert_eq!(loader.get_stats().num_checkpoints, 0);
    // The coordinator knows all the same.
    assert_eq!(coordinator.get_checkpoint(0).unwrap().unwrap().position, 12);
}

const CHILD: &str = "SHARDFEED_TEST_CHECKPOINT";

/// Run by the tests below as another process: writes a checkpoint over an old one.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let old = read_checkpoint(&path).unwrap();
    let loader = StreamingShardLoader::new(Numbers::new(1000), config(1, 0)).unwrap();
    loader.restore_from_checkpoint(old).unwrap();
    loader.next().unwrap();
    if write_checkpoint(&path, &loader.get_checkpoint()).is_err() {
        std::process::exit(7);
    }
}

/// The child, with at most so many bytes in a file. Without the signal that would kill it, so that it sees the error.
fn run_child(path: &Path, bytes_max: u64) -> std::process::ExitStatus {
    Command::new("prlimit")
        .arg(format!("--fsize={bytes_max}"))
        .args(["sh", "-c", r#"trap '' XFSZ; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["checkpoints::child", "--exact", "--test-threads=1"])
        .env(CHILD, path)
        .output()
        .unwrap()
        .status
}

fn old_checkpoint(path: &Path) {
    let loader = StreamingShardLoader::new(Numbers::new(1000), config(1, 0)).unwrap();
    take(&loader, 41);
    write_checkpoint(path, &loader.get_checkpoint()).unwrap();
}

/// A disk that is full after any number of bytes: the limit on the size of files is as good as one.
#[test]
fn on_a_full_disk_the_old_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.json");
    old_checkpoint(&path);
    let len = std::fs::metadata(&path).unwrap().len();
    let (mut refused, mut written) = (0, 0);
    for limit in (0..=len + 8).step_by(7) {
        old_checkpoint(&path);
        let status = run_child(&path, limit);
        let position = read_checkpoint(&path).unwrap().position;
        match status.code() {
            Some(0) => {
                assert_eq!(position, 42);
                written += 1;
            }
            code => {
                assert_eq!((code, position), (Some(7), 41), "at {limit} of {len} bytes");
                refused += 1;
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left behind");
    }
    assert!(refused > 20 && written > 0, "{refused} {written}");
}
