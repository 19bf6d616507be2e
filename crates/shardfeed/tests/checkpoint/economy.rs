//! How much is read for what is wanted, and from where.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use shardfeed::checkpoint::{Checkpoint, DirectIo, Dtype, ReadOptions, ReadPlan, ReadStats};

use crate::writer::{Item, Writer};

const ROWS: u64 = 1536;
const COLUMNS: u64 = 1024;

fn elements() -> Vec<u8> {
    (0..ROWS * COLUMNS).flat_map(|number| (number as f32).to_le_bytes()).collect()
}

/// Four tensors of 6 MiB in one file.
fn make(directory: &Path) -> Checkpoint {
    let item = Item::row_major(Dtype::Float32, &[ROWS, COLUMNS], &elements());
    let mut writer = Writer::new();
    for tensor in 0..4 {
        writer.whole("__0_0.distcp", &format!("t{tensor}"), &item);
    }
    writer.write(directory);
    Checkpoint::open(directory).unwrap()
}

fn read(checkpoint: &Checkpoint, rows: std::ops::Range<u64>, columns: std::ops::Range<u64>) -> ReadStats {
    let (height, width) = (rows.end - rows.start, columns.end - columns.start);
    let mut memory = vec![vec![0xa5; (height * width * 4) as usize]; 4];
    let mut plan = ReadPlan::new();
    for (tensor, memory) in memory.iter_mut().enumerate() {
        plan.read_slice(&format!("t{tensor}"), &[rows.clone(), columns.clone()], memory);
    }
    let stats = checkpoint.read_into(plan).unwrap();
    let all = elements();
    for (row, line) in memory[3].chunks((width * 4) as usize).enumerate() {
        let at = (((rows.start + row as u64) * COLUMNS + columns.start) * 4) as usize;
        assert_eq!(line, &all[at..at + line.len()], "row {row}");
    }
    stats
}

#[test]
fn a_third_of_the_rows_reads_a_third_and_a_third_of_the_columns_everything_once() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = make(dir.path());
    let ratio = |stats: ReadStats| stats.bytes_read as f64 / stats.bytes as f64;
    for rows in [0..512, 512..1024, 1024..1536] {
        let ratio = ratio(read(&checkpoint, rows, 0..COLUMNS));
        assert!((1.0..1.1).contains(&ratio), "{ratio}");
    }
    // Rows are 4 KiB: what lies between two pieces is cheaper to read than to leave out.
    let columns = ratio(read(&checkpoint, 0..ROWS, 0..COLUMNS / 3));
    assert!((2.9..3.1).contains(&columns), "{columns}");
    // Whoever says that it is not reads only what is wanted.
    let mut options = ReadOptions::default();
    options.limits.gap = 0;
    let columns = ratio(read(&checkpoint.with_options(options), 0..ROWS, 0..COLUMNS / 3));
    assert!((1.0..1.1).contains(&columns), "{columns}");
}

#[test]
fn what_several_want_of_a_chunk_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = make(dir.path());
    let mut memory = vec![vec![0; (ROWS * COLUMNS * 4) as usize]; 3];
    let mut plan = ReadPlan::new();
    for memory in &mut memory {
        plan.read("t1", memory);
    }
    let stats = checkpoint.read_into(plan).unwrap();
    assert!(stats.bytes_read * 2 < stats.bytes, "{stats:?}");
    assert!(memory.iter().all(|memory| *memory == elements()));
}

/// A file system that was mounted for a test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn the_cache_is_passed_by_where_that_is_possible_and_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let direct = |directory: &Path, direct_io| {
        let options = ReadOptions { direct_io, num_workers: Some(2), ..ReadOptions::default() };
        read(&make(directory).with_options(options), 1..ROWS, 0..COLUMNS).bytes_direct
    };
    assert_eq!(direct(dir.path(), DirectIo::Never), 0);
    // What was just written is in the cache.
    assert_eq!(direct(dir.path(), DirectIo::Auto), 0);
    // Odd places, and the end of the file in the last of them.
    let file = dir.path().join("__0_0.distcp");
    let is_possible = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(file).is_ok();
    let always = direct(dir.path(), DirectIo::Always);
    assert_eq!(always > 20 << 20, is_possible, "{always} bytes past the cache");
    // Keeps everything in memory, and refuses to do without it. Only root may mount it; elsewhere this part is not seen.
    let refusing = dir.path().join("refusing");
    std::fs::create_dir(&refusing).unwrap();
    if Command::new("mount")
        .args(["-t", "ramfs", "ramfs"])
        .arg(&refusing)
        .status()
        .is_ok_and(|status| status.success())
    {
        let _mounted = Mounted(&refusing);
        assert_eq!(direct(&refusing, DirectIo::Always), 0);
    }
}

/// Makes the system forget what it has read of a file.
fn evict(file: &Path) {
    let file = std::fs::File::open(file).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Whether the system says that it would have to wait for a file of which it has forgotten everything.
fn says_what_is_cached(file: &Path) -> bool {
    evict(file);
    let (file, mut byte) = (std::fs::File::open(file).unwrap(), [0]);
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    let look = rustix::io::preadv2(&file, &mut [std::io::IoSliceMut::new(&mut byte)], 0, flags);
    matches!(look, Err(rustix::io::Errno::AGAIN))
}

#[test]
fn what_is_not_cached_is_read_past_the_cache_without_being_told() {
    // Beside what is built, since directories for temporary files may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let other = dir.path().join("other");
    std::fs::write(&other, elements()).unwrap();
    let opened = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&other);
    if opened.is_err() || !says_what_is_cached(&other) {
        println!("NOT seen here: this file system does not say what is cached, or cannot pass the cache by");
        return;
    }
    let checkpoint = make(dir.path());
    evict(&dir.path().join("__0_0.distcp"));
    let stats = read(&checkpoint, 0..ROWS, 0..COLUMNS);
    assert!(stats.bytes_direct * 10 > stats.bytes * 9, "{stats:?}");
    // And then it still is not in the cache, and is read like that again.
    let stats = read(&checkpoint, 0..ROWS, 0..COLUMNS);
    assert!(stats.bytes_direct * 10 > stats.bytes * 9, "{stats:?}");
}

#[test]
fn tensors_are_handed_out_one_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = make(dir.path());
    let mut seen = Vec::new();
    let stats = checkpoint
        .read_each(["t2", "t0"], |name, tensor| {
            assert!(tensor.bytes == elements() && tensor.shape == [ROWS, COLUMNS]);
            seen.push(name.to_owned());
            Ok(())
        })
        .unwrap();
    assert_eq!((seen, stats.bytes), (vec!["t2".to_owned(), "t0".to_owned()], 2 * ROWS * COLUMNS * 4));
    assert!(
        checkpoint.read_each(["t0", "nothing"], |_, _| Ok(())).unwrap_err().to_string().contains("nothing")
    );
}

#[test]
fn a_file_that_is_written_to_while_it_is_read_is_an_error() {
    for use_parallel in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = make(dir.path());
        let file = dir.path().join("__0_0.distcp");
        let progress: shardfeed::checkpoint::TellProgress = std::sync::Arc::new(move |_| {
            // Another save, which has the same length and lies where the old one did.
            let file = std::fs::File::options().write(true).open(&file).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        });
        let options = ReadOptions { use_parallel, progress: Some(progress), ..ReadOptions::default() };
        let checkpoint = checkpoint.with_options(options);
        let mut memory = vec![vec![0; (ROWS * COLUMNS * 4) as usize]; 2];
        let mut plan = ReadPlan::new();
        for (tensor, memory) in memory.iter_mut().enumerate() {
            plan.read(&format!("t{tensor}"), memory);
        }
        let error = checkpoint.read_into(plan).unwrap_err().to_string();
        assert!(error.contains("__0_0.distcp") && error.contains("it changed after"), "{error}");
    }
}

#[test]
fn a_file_that_is_written_to_is_named_and_not_the_one_that_is_read_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let item = Item::row_major(Dtype::Float32, &[ROWS, COLUMNS], &elements());
    let mut writer = Writer::new();
    writer.whole("__0_0.distcp", "first", &item).whole("__1_0.distcp", "second", &item);
    writer.write(dir.path());
    let (first, second) = (dir.path().join("__0_0.distcp"), dir.path().join("__1_0.distcp"));
    let progress: shardfeed::checkpoint::TellProgress = std::sync::Arc::new(move |_| {
        let file = std::fs::File::options().write(true).open(&first).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    });
    let options = ReadOptions { num_workers: Some(1), progress: Some(progress), ..ReadOptions::default() };
    let checkpoint = Checkpoint::open(dir.path()).unwrap().with_options(options);
    let mut memory = vec![vec![0; elements().len()]; 2];
    let mut plan = ReadPlan::new();
    for (name, memory) in ["first", "second"].into_iter().zip(&mut memory) {
        plan.read(name, memory);
    }
    let error = checkpoint.read_into(plan).unwrap_err().to_string();
    assert!(error.contains("__0_0.distcp") && error.contains("it changed after"), "{error}");
    assert!(!error.contains(second.to_str().unwrap()), "{error}");
}
