//! Checkpoints by themselves: to the coordinator, to a file, through kills and full disks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use shardfeed::{StreamCoordinator, StreamingShardLoader, read_checkpoint, write_checkpoint};

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
fn a_commit_does_not_silence_a_coordinator_that_refused() {
    let coordinator = Arc::new(StreamCoordinator::new(config(2, 0)).unwrap());
    let loader = StreamingShardLoader::new(Numbers::new(80), config(1, 0)).unwrap();
    let loader = loader.with_coordinator(coordinator);
    loader.commit().unwrap();
    let error = loader.next().unwrap_err().to_string();
    assert!(error.contains("world size 1 with a coordinator of world size 2"), "{error}");
    assert_eq!(take(&loader, 2), [0, 1]);
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
