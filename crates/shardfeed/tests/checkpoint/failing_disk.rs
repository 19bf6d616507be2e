//! Reads that bring less than was asked for, are interrupted, or fail: in a process whose `pread` does so.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use shardfeed::checkpoint::{Checkpoint, Dtype, ReadPlan};

use crate::support::{some_bytes, ways};
use crate::writer::{Item, Writer};

const CHILD: &str = "SHARDFEED_TEST_FAILING_DISK";
const FILE: &str = "__0_0.distcp";

/// Large ones that are read in parts and past the cache, small ones that are read together, one that is compressed.
fn tensors() -> Vec<(String, Item)> {
    let lens = [1_500_000, 100, 5_000, 1, 200_001, 40_000];
    let item =
        |(seed, len): (u64, &u64)| Item::row_major(Dtype::Uint8, &[*len], &some_bytes(*len as usize, seed));
    (0..).zip(&lens).map(|numbered| (format!("t{}", numbered.0), item(numbered))).collect()
}

fn make(directory: &Path) {
    let mut writer = Writer::new();
    for (name, item) in tensors() {
        if name == "t5" {
            writer.tensor(&name, item.dtype, &item.sizes).packed_chunk(FILE, &[0], &item);
        } else {
            writer.whole(FILE, &name, &item);
        }
    }
    writer.write(directory);
}

/// Run by the tests below as another process. Every way to read gives what was written, or says why not.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let expected = tensors();
    for way in ways() {
        let mut memory: Vec<Vec<u8>> = expected.iter().map(|(_, item)| vec![0; item.storage.len()]).collect();
        let mut plan = ReadPlan::new();
        for ((name, _), memory) in expected.iter().zip(&mut memory) {
            plan.read(name, memory);
        }
        match Checkpoint::open(&directory).unwrap().with_options(way).read_into(plan) {
            Ok(_) => assert!(expected.iter().zip(&memory).all(|((_, item), memory)| item.storage == *memory)),
            Err(error) => println!("refused: {}", error.to_string().replace('\n', " ")),
        }
    }
}

fn run_child(fault: &str) -> Output {
    // Programs may be loaded from there.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = directory.path().join("failing_disk.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoint/failing_disk.c");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    assert!(made.unwrap().success());
    // Not in memory: there, some systems have no way past the cache.
    let checkpoint = tempfile::tempdir().unwrap();
    make(checkpoint.path());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["failing_disk::child", "--exact", "--nocapture", "--test-threads=1"])
        .envs([(CHILD, checkpoint.path()), ("LD_PRELOAD", &library), ("FAULT", Path::new(fault))])
        .output()
        .unwrap();
    assert!(output.status.success(), "{fault}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
    let faults = text.lines().find_map(|line| line.strip_suffix(" faults")?.parse::<u64>().ok());
    assert_eq!(faults.unwrap() > 0, fault != "none", "{fault}: {text}");
    output
}

fn refusals(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| Some(line.split_once("refused: ")?.1.to_owned())).collect()
}

#[test]
fn what_comes_in_pieces_or_after_signals_is_whole() {
    for fault in ["none", "short", "interrupted"] {
        assert_eq!(refusals(&run_child(fault)), [""; 0], "{fault}");
    }
}

#[test]
fn a_file_system_that_refuses_only_reads_past_its_cache_is_read_in_the_ordinary_way() {
    let probe = tempfile::NamedTempFile::new().unwrap();
    let direct = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(probe.path());
    if direct.is_err() {
        println!("not tested: where temporary files are, the cache cannot be passed by at all");
        return;
    }
    assert_eq!(refusals(&run_child("indirect")), [""; 0]);
}

#[test]
fn a_disk_that_fails_is_told_with_the_place_in_every_way() {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path());
    let opened = Checkpoint::open(directory.path()).unwrap();
    // A large one that is read in parts, a small one that is read with its neighbours, one that is compressed.
    for name in ["t0", "t2", "t5"] {
        let item = &opened.tensor(name).unwrap().chunks[0].item;
        let refusals = refusals(&run_child(&format!("broken={}", item.offset + item.length / 2)));
        assert_eq!(refusals.len(), ways().len(), "{name}: {refusals:#?}");
        for refusal in refusals {
            for part in [FILE, "cannot read", "Input/output error"] {
                assert!(refusal.contains(part), "{part:?} in {refusal}");
            }
            // It, and none that is read with it.
            let place = format!("{name} at byte {}: ", item.offset);
            assert_eq!(refusal.matches(" at byte ").count(), 2, "its place and the read's: {refusal}");
            assert!(refusal.contains(&place), "{place:?} in {refusal}");
        }
    }
}
