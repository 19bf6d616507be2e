//! One plan after another on threads of one's own.

use std::fs::File;
use std::time::SystemTime;

use shardfeed::checkpoint::{Checkpoint, DirectIo, Dtype, PlanReader, ReadOptions, ReadPlan, Stop};

use crate::support::{copy_of, fixture_names, open, some_bytes, ways};
use crate::writer::{Item, Writer};

/// Every tensor by itself, twice, in an order that goes back and forth between files, is what a single read brings.
#[test]
fn plan_after_plan_brings_what_one_read_brings() {
    for fixture in fixture_names() {
        let dir = copy_of(&fixture);
        let mut checkpoint = open(dir.path());
        for options in ways() {
            checkpoint = checkpoint.with_options(options);
            let mut reader = checkpoint.plan_reader();
            let names: Vec<&str> = checkpoint.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
            for name in names.iter().chain(names.iter().rev()) {
                let expected = checkpoint.read(name).unwrap().bytes;
                let mut memory = vec![0xa5; expected.len()];
                let mut plan = ReadPlan::new();
                plan.read(name, &mut memory);
                let stats = reader.read_into(plan).unwrap();
                assert_eq!(memory, expected, "{fixture}: {name}");
                assert!(stats.workers <= 1, "{stats:?}");
                assert!(
                    expected.is_empty() || stats.bytes_read > 0,
                    "what a read asked for is counted with it"
                );
            }
        }
    }
}

/// Two tensors of 1 MiB in a file each.
fn two(directory: &std::path::Path) -> Vec<u8> {
    let bytes = some_bytes(1 << 20, 7);
    let mut writer = Writer::new();
    for tensor in 0..2 {
        let item = Item::row_major(Dtype::Uint8, &[1024, 1024], &bytes);
        writer.whole(&format!("__{tensor}_0.distcp"), &format!("t{tensor}"), &item);
    }
    writer.write(directory);
    bytes
}

/// One of them, by a plan of its own.
fn read(reader: &mut PlanReader<'_>, name: &str) -> shardfeed::Result<Vec<u8>> {
    let mut memory = vec![0; 1 << 20];
    let mut plan = ReadPlan::new();
    plan.read(name, &mut memory);
    reader.read_into(plan).map(|_| memory)
}

#[test]
fn a_file_that_changes_between_two_plans_is_told_with_the_second() {
    for direct_io in [DirectIo::Auto, DirectIo::Never] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = two(dir.path());
        let options = ReadOptions { direct_io, ..ReadOptions::default() };
        let checkpoint = Checkpoint::open(dir.path()).unwrap().with_options(options);
        let mut reader = checkpoint.plan_reader();
        let mut read = |name: &str| read(&mut reader, name);
        assert_eq!(read("t0").unwrap(), bytes);
        let file = dir.path().join("__0_0.distcp");
        // Written again, the same bytes: nobody can know that they are.
        let written = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, written).unwrap();
        // The file that is open is still the old one, whole; somebody else's is not.
        assert_eq!(read("t1").unwrap(), bytes);
        let error = read("t0").map(drop).unwrap_err().to_string();
        assert!(error.contains("__0_0.distcp") && error.contains("changed after"), "{error}");
        assert_eq!(read("t1").unwrap(), bytes, "others are read on");
        // While it is open: what was read may be a mixture. A clock that stands still for milliseconds must not hide it.
        let file = File::options().write(true).open(dir.path().join("__1_0.distcp")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let error = read("t1").map(drop).unwrap_err().to_string();
        assert!(error.contains("__1_0.distcp") && error.contains("changed after"), "{error}");
    }
}

/// A file that a plan has nothing from is not its business, also if it is the one that is still open.
#[test]
fn a_plan_does_not_fail_for_the_file_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = two(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut reader = checkpoint.plan_reader();
    let mut read = |name: &str| read(&mut reader, name);
    assert_eq!(read("t0").unwrap(), bytes);
    let file = File::options().write(true).open(dir.path().join("__0_0.distcp")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(read("t1").unwrap(), bytes);
    assert!(read("t0").is_err());
}

#[test]
fn chunks_are_said_to_lie_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = some_bytes(4 * 3 * 5 * 2, 3);
    let mut writer = Writer::new();
    let orders: [&[usize]; 6] = [&[0, 1, 2], &[2, 1, 0], &[1, 0, 2], &[0, 2, 1], &[1, 2, 0], &[2, 0, 1]];
    for (number, order) in orders.iter().enumerate() {
        let item = Item::permuted(Dtype::Int16, &[4, 3, 5], &bytes, order);
        writer.whole("__0_0.distcp", &format!("t{number}"), &item);
    }
    writer.write(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let mut chunks: Vec<(usize, usize)> = (0..orders.len()).map(|tensor| (tensor, 0)).collect();
    chunks.push((99, 0));
    chunks.push((0, 1));
    let expected: Vec<Option<Vec<usize>>> = orders.iter().map(|order| Some(order.to_vec())).collect();
    let found = checkpoint.stored_orders(&chunks).unwrap();
    assert_eq!(found[0], None, "its own order");
    assert_eq!(found[1..6], expected[1..]);
    assert_eq!(found[6..], [None, None], "there are none");
    // Of what cannot be looked at nobody can tell; whoever reads it is told why.
    std::fs::write(dir.path().join("__0_0.distcp"), b"something else").unwrap();
    assert_eq!(checkpoint.stored_orders(&chunks).unwrap(), vec![None; 8]);
    let stop = Stop::new();
    stop.stop();
    let stopped = checkpoint.with_options(ReadOptions { stop: Some(stop), ..ReadOptions::default() });
    assert!(stopped.stored_orders(&chunks).unwrap_err().to_string().contains("stopped"));
}
