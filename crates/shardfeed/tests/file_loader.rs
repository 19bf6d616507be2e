//! Files streamed whole, one worker owning each, against a naive version that holds everything in memory.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{Row, TestData, cases, test_data};
use proptest::prelude::*;
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{Error, IdType, LMBatch, Result, ShardConfig, StreamingParquetLoader};

const PAD: u32 = 7_000_000;
const EOS: u32 = 8_000_000;

/// A directory of files whose every token is another number, so that a lost or repeated one is seen.
struct World {
    dir: tempfile::TempDir,
    files: Vec<Vec<Row>>,
}

impl World {
    /// Files of every kind: of no row, of null and empty rows alone, of rows far longer than a sequence of 8.
    fn with_files(count: usize) -> Self {
        let mut tokens = 0_u32..;
        let mut row = |len: usize| Some(tokens.by_ref().take(len).collect::<Vec<u32>>());
        let files = (0..count).map(|file| match file % 7 {
            3 => vec![],
            5 => vec![None, Some(vec![]), None],
            _ => vec![row(1 + file % 5), None, row(8), row(file), row(9 + file), Some(vec![]), row(25)],
        });
        let world = Self { files: files.collect(), dir: tempfile::tempdir().unwrap() };
        for (index, rows) in world.files.iter().enumerate() {
            let options = WriteOptions {
                rows_per_group: 1 + index % 4,
                page_bytes: if index % 2 == 0 { 24 } else { 1 << 20 },
                page_v2: index % 3 == 0,
                statistics: index % 5 != 0,
                ids: [IdType::I32, IdType::U32, IdType::I64, IdType::U64][index % 4],
                ..WriteOptions::default()
            };
            write_rows(&world.path(index), rows, &options).unwrap();
        }
        world
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn path(&self, file: usize) -> PathBuf {
        self.dir().join(format!("part-{file:03}.parquet"))
    }

    fn loader(&self, rank: usize, world_size: usize) -> StreamingParquetLoader {
        self.try_loader(rank, world_size).unwrap()
    }

    fn try_loader(&self, rank: usize, world_size: usize) -> Result<StreamingParquetLoader> {
        let config = ShardConfig { rank, world_size, seed: 42 };
        Ok(StreamingParquetLoader::new(self.dir(), config, 3, 8)?.with_special_tokens(PAD, EOS))
    }

    /// The batches of one of the loader's paths.
    fn naive_batches(&self, path: &Path) -> Vec<LMBatch> {
        let index = (0..self.files.len()).find(|&index| self.path(index) == path).expect("a file of ours");
        naive_batches(&self.files[index], 3, 8)
    }

    /// The batches of each of the loader's files, in its order.
    fn naive_epoch(&self, loader: &StreamingParquetLoader) -> Vec<Vec<LMBatch>> {
        loader.my_files().iter().map(|path| self.naive_batches(path)).collect()
    }

    fn sequences(&self) -> Vec<Vec<u32>> {
        self.files.iter().flat_map(|rows| naive_sequences(rows, 8)).collect()
    }
}

fn naive_sequences(rows: &[Row], seq_len: usize) -> Vec<Vec<u32>> {
    rows.iter().flatten().flat_map(|row| row.chunks(seq_len).map(<[u32]>::to_vec)).collect()
}

fn naive_batches(rows: &[Row], batch_size: usize, seq_len: usize) -> Vec<LMBatch> {
    naive_sequences(rows, seq_len)
        .chunks(batch_size)
        .map(|sequences| LMBatch::from_sequences(sequences, PAD, EOS))
        .collect()
}

/// All that is left of the epoch, file by file.
fn rest(loader: &mut StreamingParquetLoader) -> Vec<Vec<LMBatch>> {
    std::iter::from_fn(|| loader.next_batches().unwrap()).collect()
}

/// The sequences a batch was made of.
fn sequences_of(batch: &LMBatch) -> Vec<Vec<u32>> {
    (0..batch.batch_size)
        .map(|index| {
            let (input, target) = (batch.get_input(index).unwrap(), batch.get_target(index).unwrap());
            // Equal sequences keep their last token as a target only; others are padded after it.
            let last = target.last().filter(|&&last| last != EOS && last != PAD);
            input.iter().chain(last).copied().filter(|&token| token != PAD).collect()
        })
        .collect()
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn over_all_workers_every_row_comes_once_and_every_file_has_one_owner() {
    for files in 1..=20 {
        let world = World::with_files(files);
        let mut expected = world.sequences();
        expected.sort_unstable();
        for world_size in 1..=8.min(files) {
            let mut owners = vec![0; files];
            let mut delivered = Vec::new();
            for rank in 0..world_size {
                let mut loader = world.loader(rank, world_size);
                assert_eq!(loader.total_files(), files);
                assert_eq!(loader.num_files(), loader.my_files().len());
                for path in loader.my_files() {
                    let file = (0..files).find(|&file| world.path(file) == *path).unwrap();
                    assert_eq!(file % world_size, rank);
                    owners[file] += 1;
                }
                let naive = world.naive_epoch(&loader);
                let batches = rest(&mut loader);
                assert_eq!(batches, naive, "{files} files, rank {rank} of {world_size}");
                assert!(loader.is_epoch_exhausted());
                assert_eq!(loader.next_batches().unwrap(), None);
                delivered.extend(batches.iter().flatten().flat_map(sequences_of));
            }
            assert!(owners.iter().all(|&count| count == 1), "{owners:?}");
            delivered.sort_unstable();
            assert_eq!(delivered, expected, "{files} files, {world_size} workers");
        }
    }
}

#[test]
fn the_batches_of_every_file_are_the_same_one_at_a_time() {
    for files in 1..=20 {
        let world = World::with_files(files);
        for world_size in 1..=8.min(files) {
            for rank in 0..world_size {
                let mut loader = world.loader(rank, world_size);
                let naive = world.naive_epoch(&loader).concat();
                let batches: Vec<LMBatch> = loader.batches().collect::<Result<_>>().unwrap();
                assert_eq!(batches, naive, "{files} files, rank {rank} of {world_size}");
                assert!(loader.is_epoch_exhausted());
                assert_eq!(loader.current_file_idx(), loader.num_files());
                assert!(loader.batches().next().is_none());
            }
        }
    }
}

#[test]
fn a_new_loader_stands_where_resetting_to_epoch_zero_goes() {
    let world = World::with_files(11);
    for world_size in 1..=8 {
        let fresh = world.loader(0, world_size);
        let mut reset = world.loader(0, world_size);
        reset.reset_epoch(5);
        reset.reset_epoch(0);
        assert_eq!(fresh.my_files(), reset.my_files());
        assert_eq!((fresh.current_epoch(), fresh.current_file_idx()), (0, 0));
        assert_eq!((reset.current_epoch(), reset.current_file_idx()), (0, 0));
    }
}

#[test]
fn an_epochs_order_follows_from_seed_and_epoch_whatever_came_between() {
    let world = World::with_files(20);
    let mut loader = world.loader(1, 2);
    let all: BTreeSet<PathBuf> = loader.my_files().iter().cloned().collect();
    let mut orders = Vec::new();
    for epoch in 0..20 {
        loader.reset_epoch(epoch);
        assert_eq!((loader.current_epoch(), loader.current_file_idx()), (epoch, 0));
        assert!(!loader.is_epoch_exhausted());
        assert_eq!(loader.my_files().iter().cloned().collect::<BTreeSet<_>>(), all, "the set stays");
        orders.push(loader.my_files().to_vec());
    }
    // Backwards, with work in between: a part of an epoch, an error, another epoch, a resume, the end.
    let whole = |loader: &mut StreamingParquetLoader| rest(loader);
    for epoch in (0..20_u64).rev() {
        loader.reset_epoch(epoch);
        assert_eq!(loader.my_files(), orders[epoch as usize]);
        match epoch % 4 {
            0 => drop(whole(&mut loader)),
            1 => drop(loader.batches().take(3).collect::<Vec<_>>()),
            2 => drop(loader.next_batches().unwrap()),
            _ => loader.resume_from(7),
        }
        loader.reset_epoch(epoch);
        assert_eq!(loader.my_files(), orders[epoch as usize], "twice the same");
        assert_eq!(loader.current_file_idx(), 0);
        let naive = world.naive_epoch(&loader);
        assert_eq!(whole(&mut loader), naive);
    }
    let distinct: BTreeSet<_> = orders.iter().collect();
    assert!(distinct.len() > 15, "of ten files, twenty epochs hardly have an order in common");

    let reseeded =
        StreamingParquetLoader::new(world.dir(), ShardConfig { rank: 1, world_size: 2, seed: 43 }, 3, 8);
    assert_ne!(reseeded.unwrap().my_files(), orders[0], "another seed, another order");
}

#[test]
fn a_restart_at_any_file_of_any_epoch_changes_nothing() {
    let world = World::with_files(17);
    for (rank, world_size) in [(0, 1), (1, 2), (2, 5)] {
        let mut unbroken = world.loader(rank, world_size);
        for epoch in 0..3 {
            unbroken.reset_epoch(epoch);
            let expected = rest(&mut unbroken);
            for file_idx in 0..=unbroken.num_files() {
                let restarted = || {
                    let mut loader = world.loader(rank, world_size);
                    loader.reset_epoch(epoch);
                    loader.resume_from(file_idx);
                    assert_eq!((loader.current_epoch(), loader.current_file_idx()), (epoch, file_idx));
                    loader
                };
                assert_eq!(rest(&mut restarted()), expected[file_idx..], "epoch {epoch}, file {file_idx}");
                let one_by_one: Vec<LMBatch> = restarted().batches().collect::<Result<_>>().unwrap();
                assert_eq!(one_by_one, expected[file_idx..].concat(), "epoch {epoch}, file {file_idx}");
            }
        }
    }
}

#[test]
fn resuming_past_the_last_file_is_the_end_of_the_epoch() {
    let world = World::with_files(6);
    for file_idx in [6, 7, 1000, usize::MAX] {
        let mut loader = world.loader(0, 1);
        loader.resume_from(file_idx);
        assert!(loader.is_epoch_exhausted());
        assert_eq!(loader.current_file_idx(), 6);
        assert_eq!(loader.next_batches().unwrap(), None);
        assert!(loader.batches().next().is_none());
        loader.reset_epoch(1);
        assert!(!loader.is_epoch_exhausted());
        assert_eq!(rest(&mut loader).len(), 6);
    }
}

#[test]
fn a_file_without_sequences_gives_no_batches_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let hollow: Vec<Row> = vec![None, Some(vec![]), None];
    for (index, rows) in [&hollow[..], &[], &hollow[..1]].into_iter().enumerate() {
        let path = dir.path().join(format!("{index}.parquet"));
        write_rows(&path, rows, &WriteOptions::default()).unwrap();
    }
    let mut loader = StreamingParquetLoader::new(dir.path(), ShardConfig::single(), 4, 16).unwrap();
    for file_idx in 0..3 {
        assert_eq!(loader.current_file_idx(), file_idx);
        assert_eq!(loader.next_batches().unwrap(), Some(vec![]));
    }
    assert_eq!(loader.next_batches().unwrap(), None);
    loader.reset_epoch(1);
    assert!(loader.batches().next().is_none());
    assert!(loader.is_epoch_exhausted());
}

#[test]
fn an_iterator_dropped_anywhere_is_continued_by_either_call() {
    let world = World::with_files(9);
    let probe = world.loader(0, 1);
    let files = world.naive_epoch(&probe);
    let all = files.concat();
    for taken in 0..=all.len() {
        let start = || {
            let mut loader = world.loader(0, 1);
            let mut batches = loader.batches();
            let head: Vec<LMBatch> = batches.by_ref().take(taken).collect::<Result<_>>().unwrap();
            drop(batches);
            assert_eq!(head, all[..taken]);
            loader
        };
        let mut by_iterator = start();
        let tail: Vec<LMBatch> = by_iterator.batches().collect::<Result<_>>().unwrap();
        assert_eq!(tail, all[taken..], "after {taken} batches");

        // The rest of the file it was dropped in, then file by file.
        let mut by_file = start();
        let tail = rest(&mut by_file);
        assert_eq!(tail.concat(), all[taken..], "after {taken} batches");
        let files_left = files.len() - start().current_file_idx();
        assert_eq!(tail.len(), files_left);
        assert_eq!(tail[tail.len().min(1)..], files[files.len() - files_left.saturating_sub(1)..]);

        // Dropped again and again, after each batch.
        let mut one_by_one = start();
        let tail: Vec<LMBatch> =
            std::iter::from_fn(|| one_by_one.batches().next().transpose().unwrap()).collect();
        assert_eq!(tail, all[taken..], "after {taken} batches");
        assert!(one_by_one.is_epoch_exhausted());
    }
}

#[test]
fn a_file_is_counted_once_its_last_batch_was_handed_out() {
    let world = World::with_files(9);
    let mut loader = world.loader(0, 1);
    let files = world.naive_epoch(&loader);
    for (file_idx, batches) in files.iter().enumerate() {
        for batch in 0..batches.len() {
            let before = loader.current_file_idx();
            assert!(before <= file_idx, "a file is not counted before its last batch");
            loader.batches().next().unwrap().unwrap();
            let is_last = batch + 1 == batches.len();
            assert_eq!(loader.current_file_idx(), file_idx + usize::from(is_last));
        }
    }
    // What was saved in the middle of a file repeats that file, and loses nothing.
    loader.reset_epoch(0);
    let middle = files.iter().rposition(|batches| batches.len() > 1).unwrap();
    let taken = files[..middle].concat().len() + 1;
    loader.batches().take(taken).for_each(|batch| drop(batch.unwrap()));
    let saved = loader.current_file_idx();
    assert_eq!(saved, middle);
    let mut resumed = world.loader(0, 1);
    resumed.resume_from(saved);
    assert_eq!(rest(&mut resumed), files[middle..]);
    // And so does the loader itself, told to go there.
    loader.resume_from(saved);
    assert_eq!(rest(&mut loader), files[middle..]);
}

/// What is done with a loader, again and again.
#[derive(Clone, Debug)]
enum Call {
    NextBatches,
    Batches(usize),
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_mix_of_calls_gives_the_naive_batches_of_any_data(
        data in test_data(),
        batch_size in 1_usize..9,
        seq_len in 1_usize..90,
        world_size in 1_usize..4,
        calls in prop::collection::vec(
            prop_oneof![Just(Call::NextBatches), (0_usize..6).prop_map(Call::Batches)],
            0..20,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let world_size = world_size.min(data.files.len());
        let mut sequences = 0;
        for rank in 0..world_size {
            let config = ShardConfig { rank, world_size, seed: 3 };
            let mut loader = StreamingParquetLoader::new(dir.path(), config, batch_size, seq_len)
                .unwrap()
                .with_special_tokens(PAD, EOS);
            prop_assert_eq!((loader.batch_size(), loader.seq_len()), (batch_size, seq_len));
            let expected: Vec<LMBatch> = naive_order(&data, &loader)
                .into_iter()
                .flat_map(|file| naive_batches(&data.files[file], batch_size, seq_len))
                .collect();
            let mut found: Vec<LMBatch> = Vec::new();
            for call in &calls {
                match call {
                    Call::NextBatches => found.extend(loader.next_batches().unwrap().unwrap_or_default()),
                    Call::Batches(count) => found.extend(loader.batches().take(*count).map(Result::unwrap)),
                }
            }
            found.extend(loader.batches().map(Result::unwrap));
            prop_assert_eq!(&found, &expected);
            prop_assert!(loader.is_epoch_exhausted());
            sequences += found.iter().map(|batch| batch.batch_size).sum::<usize>();
        }
        let naive: usize = data.files.iter().map(|rows| naive_sequences(rows, seq_len).len()).sum();
        prop_assert_eq!(sequences, naive);
    }
}

/// Indexes of the loader's files, in its order.
fn naive_order(data: &TestData, loader: &StreamingParquetLoader) -> Vec<usize> {
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    loader
        .my_files()
        .iter()
        .map(|path| {
            (0..data.files.len()).find(|file| name(path) == format!("part-{file:03}.parquet")).unwrap()
        })
        .collect()
}

#[test]
fn only_parquet_files_of_the_directory_itself_are_listed_in_the_order_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = vec![Some(vec![1, 2, 3])];
    for name in ["b.parquet", "a.parquet", "B.parquet", "10.parquet", "9.parquet", "ä.parquet"] {
        write_rows(&dir.path().join(name), &rows, &WriteOptions::default()).unwrap();
    }
    for name in ["c.txt", "d.parquet.tmp", "parquet", "_SUCCESS", ".parquet"] {
        std::fs::write(dir.path().join(name), "not mine").unwrap();
    }
    std::fs::create_dir_all(dir.path().join("sub.parquet")).unwrap();
    write_rows(&dir.path().join("sub.parquet/e.parquet"), &rows, &WriteOptions::default()).unwrap();
    // Workers of one file each tell the numbering: sorted by name, as bytes.
    for (rank, name) in
        ["10.parquet", "9.parquet", "B.parquet", "a.parquet", "b.parquet", "ä.parquet"].iter().enumerate()
    {
        let config = ShardConfig { rank, world_size: 6, seed: 1 };
        let mut loader = StreamingParquetLoader::new(dir.path(), config, 2, 4).unwrap();
        assert_eq!(loader.my_files(), [dir.path().join(name)]);
        assert_eq!(rest(&mut loader).concat().len(), 1);
    }
}

#[test]
fn a_directory_that_is_not_there_or_cannot_be_listed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let new = |path: &Path| StreamingParquetLoader::new(path, ShardConfig::single(), 2, 4);
    let nowhere = dir.path().join("nowhere");
    let said = message(new(&nowhere));
    assert!(said.contains(nowhere.to_str().unwrap()) && said.contains("No such file"), "{said}");

    let file = dir.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let said = message(new(&file));
    assert!(said.contains(file.to_str().unwrap()) && said.contains("list the directory"), "{said}");

    let locked = dir.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    let mode = |bits| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(bits);
        std::fs::set_permissions(&locked, permissions).unwrap();
    };
    mode(0o000);
    // Nothing is locked for root.
    if std::fs::read_dir(&locked).is_err() {
        let said = message(new(&locked));
        assert!(said.contains(locked.to_str().unwrap()) && said.contains("ermission denied"), "{said}");
    }
    mode(0o755);
}

#[test]
fn a_directory_without_parquet_files_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data.csv"), "1,2,3").unwrap();
    let result = StreamingParquetLoader::new(dir.path(), ShardConfig::single(), 2, 4);
    let said = message(result);
    assert!(said.contains("no .parquet files"), "{said}");
    assert!(said.contains(dir.path().to_str().unwrap()), "{said}");
}

#[test]
fn fewer_files_than_workers_is_refused_with_both_numbers_and_what_to_do() {
    for files in 1..=7 {
        let world = World::with_files(files);
        for world_size in files + 1..=8 {
            for rank in 0..world_size {
                let said = message(world.try_loader(rank, world_size));
                assert!(said.contains("insufficient files"), "{said}");
                assert!(said.contains(&format!("{files} .parquet files for {world_size} workers")), "{said}");
                assert!(said.contains(&format!("use at most {files} workers")), "{said}");
                assert!(said.contains(world.dir().to_str().unwrap()), "{said}");
            }
        }
    }
}

#[test]
fn ranks_and_sizes_that_cannot_be_are_refused() {
    let world = World::with_files(3);
    for rank in [0, 1, usize::MAX] {
        let said = message(world.try_loader(rank, 0));
        assert!(said.contains("world size is 0"), "{said}");
    }
    for (rank, world_size) in [(1, 1), (2, 2), (3, 2), (7, 3), (usize::MAX, 3), (usize::MAX, usize::MAX)] {
        let said = message(world.try_loader(rank, world_size));
        let both = format!("rank {rank} of world size {world_size}");
        assert!(said.contains(&both) && said.contains("ranks go from 0 to"), "{said}");
    }
    for (batch_size, seq_len) in [(0, 4), (4, 0), (0, 0)] {
        let said =
            message(StreamingParquetLoader::new(world.dir(), ShardConfig::single(), batch_size, seq_len));
        assert!(said.contains("batch_size") && said.contains("seq_len"), "{said}");
        assert!(said.contains("at least 1"), "{said}");
    }
    assert_eq!(ShardConfig::single(), ShardConfig { rank: 0, world_size: 1, seed: 42 });
}

#[test]
fn a_damaged_file_is_reported_when_its_turn_comes_and_what_came_before_was_delivered() {
    let damages: [fn(Vec<u8>) -> Vec<u8>; 5] = [
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |bytes| bytes[..bytes.len() - 1].to_vec(),
        |_| b"this is no Parquet file, whatever its name says".to_vec(),
        |_| Vec::new(),
        // The first page header, which lies after four bytes.
        |mut bytes| {
            bytes[4..14].fill(0xff);
            bytes
        },
    ];
    for damage in damages {
        for turn in 0..9 {
            let world = World::with_files(9);
            let path = world.loader(0, 1).my_files()[turn].clone();
            if world.naive_batches(&path).is_empty() {
                continue;
            }
            let intact = std::fs::read(&path).unwrap();
            std::fs::write(&path, damage(intact.clone())).unwrap();

            let mut loader = world.loader(0, 1);
            let expected = world.naive_epoch(&loader);
            for batches in &expected[..turn] {
                assert_eq!(loader.next_batches().unwrap().as_ref(), Some(batches));
            }
            for _ in 0..2 {
                let said = message(loader.next_batches());
                assert!(said.contains(path.to_str().unwrap()), "{said}");
                assert_eq!(loader.current_file_idx(), turn, "it still stands at the damaged file");
                assert!(!loader.is_epoch_exhausted());
            }

            let mut one_by_one = world.loader(0, 1);
            let mut batches = one_by_one.batches();
            for batch in expected[..turn].concat() {
                assert_eq!(batches.next().unwrap().unwrap(), batch);
            }
            let said = message(batches.next().unwrap());
            assert!(said.contains(path.to_str().unwrap()), "{said}");
            assert!(batches.next().is_none(), "an error ends the iterator, it does not pass over the file");
            drop(batches);
            assert_eq!(one_by_one.current_file_idx(), turn);

            // Mended, it goes on where it stood.
            std::fs::write(&path, &intact).unwrap();
            assert_eq!(rest(&mut loader), expected[turn..]);
            let tail: Vec<LMBatch> = one_by_one.batches().collect::<Result<_>>().unwrap();
            assert_eq!(tail, expected[turn..].concat());
        }
    }
}

#[test]
fn a_file_that_vanishes_after_the_listing_is_named_and_waited_for() {
    let world = World::with_files(5);
    let mut loader = world.loader(0, 1);
    let expected = world.naive_epoch(&loader);
    let path = loader.my_files()[2].clone();
    let aside = world.dir().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    assert_eq!(loader.next_batches().unwrap().unwrap(), expected[0]);
    assert_eq!(loader.next_batches().unwrap().unwrap(), expected[1]);
    let error = loader.next_batches().unwrap_err();
    assert!(matches!(&error, Error::Io { path: named, .. } if *named == path), "{error}");
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(rest(&mut loader), expected[2..]);
}

#[test]
fn a_file_damaged_in_its_middle_gives_the_batches_before_the_damage_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let rows: Vec<Row> =
        (0..200_u32).map(|row| Some((0..10).map(|token| row * 10 + token).collect())).collect();
    let options = WriteOptions {
        rows_per_group: 20,
        dictionary: false,
        page_bytes: 200,
        compression: parquet::basic::Compression::UNCOMPRESSED,
        ..WriteOptions::default()
    };
    write_rows(&path, &rows, &options).unwrap();
    let intact = std::fs::read(&path).unwrap();
    let mut damaged = intact.clone();
    // Row 150's first token, where its 32 bits stand: the highest bit makes it negative.
    let token = 1500_u32.to_le_bytes();
    let at = damaged.windows(4).position(|window| window == token).unwrap();
    damaged[at + 3] |= 0x80;
    std::fs::write(&path, &damaged).unwrap();

    let mut loader = StreamingParquetLoader::new(dir.path(), ShardConfig::single(), 4, 16)
        .unwrap()
        .with_special_tokens(PAD, EOS);
    let expected = naive_batches(&rows, 4, 16);
    let mut found = Vec::new();
    let mut batches = loader.batches();
    let error = loop {
        match batches.next().expect("an error comes first") {
            Ok(batch) => found.push(batch),
            Err(error) => break error,
        }
    };
    drop(batches);
    let said = error.to_string();
    assert!(said.contains(path.to_str().unwrap()), "{said}");
    assert!(said.contains("row group 7, row 10") && said.contains("negative"), "{said}");
    // Rows 0 to 147 are whole batches before the damage; the last may be held back until its successor is known.
    assert!((36..=37).contains(&found.len()), "{} batches", found.len());
    assert_eq!(found, expected[..found.len()]);
    assert_eq!(loader.current_file_idx(), 0);
    assert!(message(loader.next_batches()).contains("row group 7, row 10"));

    std::fs::write(&path, &intact).unwrap();
    found.extend(loader.batches().map(Result::unwrap));
    assert_eq!(found, expected, "nothing twice, nothing lost");
}

#[test]
fn a_budget_too_small_for_batches_is_refused_with_the_number_that_is_enough() {
    let world = World::with_files(4);
    let mut loader = world.loader(0, 1).with_memory_budget(1000);
    let expected = world.naive_epoch(&loader);
    let mut batches = loader.batches();
    let error = batches.next().unwrap().unwrap_err();
    assert!(batches.next().is_none());
    drop(batches);
    let Error::Budget { given: 1000, needed, .. } = error else { panic!("{error}") };
    let said = error.to_string();
    assert!(said.contains("1000 bytes") && said.contains(&needed.to_string()), "{said}");
    assert_eq!(loader.current_file_idx(), 0);
    // Whole files are not under the budget.
    assert_eq!(loader.next_batches().unwrap().unwrap(), expected[0]);

    let mut loader = loader.with_memory_budget(needed - 1);
    assert!(loader.batches().next().unwrap().is_err());
    let mut loader = loader.with_memory_budget(needed);
    let tail: Vec<LMBatch> = loader.batches().collect::<Result<_>>().unwrap();
    assert_eq!(tail, expected[1..].concat());
}

#[test]
fn sizes_past_any_memory_are_refused_with_a_number_not_by_overflow() {
    let world = World::with_files(2);
    let mut loader =
        StreamingParquetLoader::new(world.dir(), ShardConfig::single(), usize::MAX, usize::MAX).unwrap();
    let error = loader.batches().next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Budget { needed: u64::MAX, .. }), "{error}");
    // Held whole, a file is as large as it is.
    let batches = loader.next_batches().unwrap().unwrap();
    assert_eq!(batches.len(), 1);
}

#[test]
fn the_example_of_the_api_page_runs_as_written() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::with_files(5);
    let data_dir = world.dir().to_path_buf();
    let (batch_size, seq_len) = (8, 512);

    let mut loader = StreamingParquetLoader::new(
        &data_dir,
        ShardConfig { rank: 0, world_size: 2, seed: 42 },
        batch_size,
        seq_len,
    )?;
    let mut files = 0;
    while let Some(batches) = loader.next_batches()? {
        let batches: Vec<LMBatch> = batches;
        files += 1;
        for batch in &batches {
            assert!(batch.batch_size <= batch_size && batch.seq_len <= seq_len);
            let input: Option<&[u32]> = batch.get_input(0);
            assert_eq!(input.map(<[u32]>::len), batch.get_target(0).map(<[u32]>::len));
        }
    }
    assert_eq!((files, loader.num_files(), loader.total_files()), (3, 3, 5));
    assert!(loader.is_epoch_exhausted());
    assert_eq!((loader.current_file_idx(), loader.current_epoch()), (3, 0));

    // 0 and 2 stand for padding and the end, unless others are set.
    let batch = LMBatch::from_sequences(&[vec![5, 6], vec![7]], 0, 2);
    assert_eq!((batch.get_input(1), batch.get_target(1)), (Some(&[7, 0][..]), Some(&[2, 0][..])));
    let dir = tempfile::tempdir()?;
    let rows = [Some(vec![5, 6]), Some(vec![7])];
    write_rows(&dir.path().join("a.parquet"), &rows, &WriteOptions::default())?;
    let mut loader = StreamingParquetLoader::new(dir.path(), ShardConfig::single(), 2, 4)?;
    assert_eq!(loader.next_batches()?, Some(vec![batch]));
    let mut loader = loader.with_special_tokens(8, 9);
    loader.reset_epoch(1);
    let batch = loader.next_batches()?.unwrap().remove(0);
    assert_eq!((batch.get_input(1), batch.get_target(1)), (Some(&[7, 8][..]), Some(&[9, 8][..])));
    Ok(())
}

#[test]
fn null_and_empty_rows_are_counted_however_they_are_read() {
    let rows: Vec<Row> =
        (0..50_u32).map(|row| [None, Some(vec![]), Some(vec![row; 3])][row as usize % 3].clone()).collect();
    for statistics in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        for file in 0..2 {
            let options = WriteOptions { rows_per_group: 7, statistics, ..WriteOptions::default() };
            write_rows(&dir.path().join(format!("{file}.parquet")), &rows, &options).unwrap();
        }
        let new = || StreamingParquetLoader::new(dir.path(), ShardConfig::single(), 4, 16).unwrap();
        let mut by_file = new();
        by_file.next_batches().unwrap().unwrap();
        assert_eq!(by_file.rows_skipped(), 34);
        let mut one_by_one = new();
        assert_eq!(one_by_one.batches().map(Result::unwrap).map(|batch| batch.batch_size).sum::<usize>(), 32);
        assert_eq!(one_by_one.rows_skipped(), 68);
    }
}
