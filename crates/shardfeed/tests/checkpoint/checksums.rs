//! Checksums of items that are read in parts: every changed byte of an item is found by whoever wants some of it, and no byte is read twice
//! for that.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use shardfeed::checkpoint::{Checkpoint, Checksums, Dtype, ReadOptions, ReadPlan, RunLimits};
use shardfeed::{Error, Result};

use crate::common::{Dice, cases};
use crate::support::{scratch, some_bytes};
use crate::writer::{Item, Writer};

/// A chunk of rows of a tensor, in a file, and where the bytes of its elements lie there.
struct Chunk {
    tensor: usize,
    rows: Range<u64>,
    file: String,
    offset: u64,
    data: Range<usize>,
}

const TENSORS: usize = 4;

/// Tensors of some rows, their shapes and chunks.
fn written(directory: &Path, dice: &mut Dice) -> (Vec<[u64; 2]>, Vec<Chunk>) {
    let mut writer = Writer::new();
    let (mut shapes, mut chunks) = (Vec::new(), Vec::new());
    for tensor in 0..TENSORS {
        // From what is read as a whole, with its neighbours, to what never is.
        let shape = match dice.below(3) {
            0 => [1 + dice.below(20) as u64, 1 + dice.below(20) as u64],
            1 => [100 + dice.below(100) as u64, 100 + dice.below(100) as u64],
            _ => [2 + dice.below(4) as u64, 100_000 + dice.below(50_000) as u64],
        };
        writer.tensor(&format!("t{tensor}"), Dtype::Int16, &shape);
        let cut = dice.below(shape[0] as usize + 1) as u64;
        for rows in [0..cut, cut..shape[0]].into_iter().filter(|rows| !rows.is_empty()) {
            let sizes = [rows.end - rows.start, shape[1]];
            let elements = some_bytes((sizes[0] * sizes[1] * 2) as usize, dice.word());
            let order = dice.pick(&[[0, 1], [1, 0]]);
            let item = Item::permuted(Dtype::Int16, &sizes, &elements, &order);
            let file = format!("__{}_0.distcp", dice.below(2));
            let offset = writer.files.get(&file).map_or(0, Vec::len);
            let data = item.placed().records["data/0"].clone();
            writer.chunk(&file, &[rows.start, 0], &item);
            let data = offset + data.start..offset + data.end;
            chunks.push(Chunk { tensor, rows, file, offset: offset as u64, data });
        }
        shapes.push(shape);
    }
    writer.write(directory);
    (shapes, chunks)
}

/// A part of one of the tensors.
struct Wish {
    tensor: usize,
    part: [Range<u64>; 2],
}

impl Wish {
    fn of(shapes: &[[u64; 2]], dice: &mut Dice) -> Self {
        let tensor = dice.below(TENSORS);
        let mut range = |size: u64| {
            let start = dice.below(size as usize) as u64;
            start..start + 1 + dice.below((size - start) as usize) as u64
        };
        Self { tensor, part: shapes[tensor].map(&mut range) }
    }

    fn memory(&self) -> Vec<u8> {
        vec![0; self.part.iter().map(|range| range.end - range.start).product::<u64>() as usize * 2]
    }

    fn wants(&self, chunk: &Chunk) -> bool {
        let rows = &self.part[0];
        self.tensor == chunk.tensor && rows.start < chunk.rows.end && chunk.rows.start < rows.end
    }
}

/// All of them, by one plan or each by its own.
fn read(
    wishes: &[Wish],
    mut one: impl FnMut(ReadPlan<'_>) -> Result<()>,
    is_one: bool,
) -> Result<Vec<Vec<u8>>> {
    let mut memory: Vec<Vec<u8>> = wishes.iter().map(Wish::memory).collect();
    let mut both: Vec<(&Wish, &mut Vec<u8>)> = wishes.iter().zip(&mut memory).collect();
    for together in both.chunks_mut(if is_one { wishes.len() } else { 1 }) {
        let mut plan = ReadPlan::new();
        for (wish, memory) in together {
            plan.read_slice(&format!("t{}", wish.tensor), &wish.part, memory);
        }
        one(plan)?;
    }
    Ok(memory)
}

/// Pieces by four threads that share what they see of the checksums, and then the rest.
fn read_shared(checkpoint: &Checkpoint, wishes: &[Wish]) -> Result<Vec<Vec<u8>>> {
    let checksums = Arc::new(Checksums::default());
    let left: Mutex<Vec<usize>> = Mutex::new((0..wishes.len()).collect());
    let done = Mutex::new(vec![Vec::new(); wishes.len()]);
    let work = || -> Result<()> {
        let mut reader = checkpoint.plan_reader_with(&checksums);
        loop {
            let Some(number) = left.lock().unwrap().pop() else { return Ok(()) };
            let one = |plan: ReadPlan<'_>| reader.read_into(plan).map(drop);
            let [memory] = &mut read(&wishes[number..=number], one, true)?[..] else { unreachable!() };
            done.lock().unwrap()[number] = std::mem::take(memory);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    checkpoint.compare_rest(&checksums)?;
    Ok(done.into_inner().unwrap())
}

#[test]
fn a_changed_byte_of_an_item_is_found_by_whoever_wants_some_of_it() {
    for seed in 0..u64::from(cases(60).cases) {
        let mut dice = Dice::new(seed);
        let directory = scratch();
        let (shapes, chunks) = written(directory.path(), &mut dice);
        let wishes: Vec<Wish> = (0..=dice.below(6)).map(|_| Wish::of(&shapes, &mut dice)).collect();
        let limits = RunLimits {
            block: dice.pick(&[64, 1000, 5000, 1 << 20]),
            gap: dice.pick(&[0, 500, 64 << 10]),
            direct: dice.pick(&[64, 1000, 128 << 10]),
        };
        let options = ReadOptions {
            num_workers: Some(1 + dice.below(3)),
            limits,
            verify: true,
            ..ReadOptions::default()
        };
        let expected = {
            let checkpoint = Checkpoint::open(directory.path()).unwrap();
            read(&wishes, |plan| checkpoint.read_into(plan).map(drop), true).unwrap()
        };
        let all_ways = || {
            let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options.clone());
            let mut reader = checkpoint.plan_reader();
            [
                read(&wishes, |plan| checkpoint.read_into(plan).map(drop), true),
                read(&wishes, |plan| reader.read_into(plan).map(drop), false),
                read_shared(&checkpoint, &wishes),
            ]
        };
        for read in all_ways() {
            assert!(read.unwrap() == expected, "seed {seed}");
        }
        let damaged = &chunks[dice.below(chunks.len())];
        let path = directory.path().join(&damaged.file);
        let mut bytes = std::fs::read(&path).unwrap();
        let ends = [damaged.data.start, damaged.data.end - 1];
        let place = if dice.one_in(2) { dice.pick(&ends) } else { ends[0] + dice.below(damaged.data.len()) };
        bytes[place] ^= 1 << dice.below(8);
        std::fs::write(&path, bytes).unwrap();
        let is_wanted = wishes.iter().any(|wish| wish.wants(damaged));
        for read in all_ways() {
            match read {
                Ok(read) => {
                    assert!(!is_wanted && read == expected, "seed {seed}: byte {place} was not missed");
                }
                Err(Error::CheckpointDamaged(failures)) => {
                    assert!(is_wanted, "seed {seed}: {failures}");
                    let tensor = format!("t{}", damaged.tensor);
                    let is_it = |failure: &shardfeed::checkpoint::ItemFailure| {
                        failure.path.ends_with(&damaged.file)
                            && (&failure.item, failure.offset) == (&tensor, damaged.offset)
                            && failure.reason.contains("checksum")
                    };
                    assert!(failures.0.iter().all(is_it), "seed {seed}: {failures}");
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}

#[test]
fn what_is_compared_is_read_once() {
    const ROW: u64 = 4096;
    let directory = scratch();
    let mut writer = Writer::new();
    let bytes = some_bytes(1 << 20, 3);
    for number in 0..3 {
        let item = Item::row_major(Dtype::Uint8, &[(1 << 20) / ROW, ROW], &bytes);
        writer.whole("__0_0.distcp", &format!("t{number}"), &item);
    }
    writer.write(directory.path());
    let limits = RunLimits { block: 100_000, ..RunLimits::default() };
    let options = ReadOptions { limits, verify: true, num_workers: Some(2), ..ReadOptions::default() };
    let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
    // What says where the elements lie: two reads of a kilobyte for each item and plan.
    let is_once =
        |read: u64, items: u64, plans: u64| (items << 20..(items << 20) + plans * 2048 + 1).contains(&read);

    let mut memory = vec![vec![0; 1 << 20]; 3];
    let mut plan = ReadPlan::new();
    for (number, memory) in memory.iter_mut().enumerate() {
        plan.read(&format!("t{number}"), memory);
    }
    let stats = checkpoint.read_into(plan).unwrap();
    assert!(memory.iter().all(|memory| *memory == bytes));
    assert!(is_once(stats.bytes_read, 3, 3), "{stats:?}");

    // Of a few rows, the item that they are in.
    let mut rows = vec![0; 10 * ROW as usize];
    let mut plan = ReadPlan::new();
    plan.read_slice("t1", &[100..110, 0..ROW], &mut rows);
    let stats = checkpoint.read_into(plan).unwrap();
    assert_eq!(rows, bytes[100 * ROW as usize..110 * ROW as usize]);
    assert!(is_once(stats.bytes_read, 1, 1), "{stats:?}");

    // In many plans that share what they see, last rows first.
    let checksums = Arc::new(Checksums::default());
    let mut reader = checkpoint.plan_reader_with(&checksums);
    let mut bytes_read = 0;
    for row in (0..(1 << 20) / ROW).rev() {
        let mut plan = ReadPlan::new();
        let memory = &mut rows[..ROW as usize];
        plan.read_slice("t2", &[row..row + 1, 0..ROW], memory);
        bytes_read += reader.read_into(plan).unwrap().bytes_read;
    }
    checkpoint.compare_rest(&checksums).unwrap();
    assert!(is_once(bytes_read, 1, (1 << 20) / ROW), "{bytes_read}");
}

/// Who tries again what failed is not told that it is right now.
#[test]
fn what_was_found_to_be_damaged_stays_so() {
    let directory = scratch();
    let mut writer = Writer::new();
    let item = Item::row_major(Dtype::Uint8, &[2, 500_000], &some_bytes(1_000_000, 3));
    writer.whole("__0_0.distcp", "t", &item);
    writer.files.get_mut("__0_0.distcp").unwrap()[item.placed().records["data/0"].end - 1] ^= 1;
    writer.write(directory.path());
    let options = ReadOptions { verify: true, ..ReadOptions::default() };
    let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
    let checksums = Arc::new(Checksums::default());
    let mut reader = checkpoint.plan_reader_with(&checksums);
    let mut read = |row: u64| {
        let mut memory = vec![0; 500_000];
        let mut plan = ReadPlan::new();
        plan.read_slice("t", &[row..row + 1, 0..500_000], &mut memory);
        reader.read_into(plan).map(drop).map_err(|error| error.to_string())
    };
    assert!(read(0).is_ok(), "nobody can know yet");
    for row in [1, 1, 0] {
        let error = read(row).unwrap_err();
        assert!(error.contains("__0_0.distcp: t at byte 0: its bytes have the checksum"), "{error}");
    }
    let error = checkpoint.compare_rest(&checksums).unwrap_err().to_string();
    assert!(error.contains("__0_0.distcp: t at byte 0: its bytes have the checksum"), "{error}");
}

/// A limit that nobody reaches is none.
#[test]
fn blocks_may_be_as_large_as_numbers_are() {
    let mut dice = Dice::new(1);
    let directory = scratch();
    let (shapes, _) = written(directory.path(), &mut dice);
    let limits = RunLimits { block: u64::MAX, ..RunLimits::default() };
    let options = ReadOptions { limits, verify: true, ..ReadOptions::default() };
    let checkpoint = Checkpoint::open(directory.path()).unwrap().with_options(options);
    for _ in 0..20 {
        let wishes = [Wish::of(&shapes, &mut dice)];
        read(&wishes, |plan| checkpoint.read_into(plan).map(drop), true).unwrap();
    }
}
