use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use shardfeed::checkpoint::{Checkpoint, DirectIo, ReadOptions, RunLimits};
use tempfile::TempDir;

use crate::common::Dice;

/// Checkpoints that lie in the repository.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/checkpoints/fixtures")
}

pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Every way to read that must give the same bytes.
pub fn ways() -> Vec<ReadOptions> {
    let mut ways = vec![ReadOptions { use_parallel: false, verify: true, ..ReadOptions::default() }];
    for (workers, block, gap, direct, direct_io) in [
        (1, 4096, 0, 1, DirectIo::Never),
        (2, 1 << 20, 64 << 10, 128 << 10, DirectIo::Auto),
        (8, 32 << 20, u64::MAX, 1 << 20, DirectIo::Always),
        (64, 64, 0, 64, DirectIo::Auto),
        (64, 100, 17, 1, DirectIo::Never),
    ] {
        let limits = RunLimits { block, gap, direct };
        for verify in [false, true] {
            ways.push(ReadOptions {
                num_workers: Some(workers),
                limits,
                direct_io,
                verify,
                ..ReadOptions::default()
            });
        }
    }
    ways.push(ReadOptions { memory_budget: Some(1), num_workers: Some(4), ..ReadOptions::default() });
    ways
}

/// Opens a checkpoint that must be good.
pub fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A directory for one test, in memory where there is such a place.
pub fn scratch() -> TempDir {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    TempDir::new_in(dir).unwrap()
}

/// Bytes that are all different from their neighbours, and the same for the same seed.
pub fn some_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    (0..count.div_ceil(8)).flat_map(|_| dice.word().to_le_bytes()).take(count).collect()
}

/// Copies the files of a fixture.
pub fn copy_of(fixture: &str) -> TempDir {
    let copy = scratch();
    for entry in std::fs::read_dir(fixtures().join(fixture)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Names of all fixtures.
pub fn fixture_names() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures()).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}
