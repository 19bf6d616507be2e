//! Checksums that a scan recorded: once they are there, no damaged byte of a page goes unnoticed.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::Dice;
use common::page_bodies::page_bodies;
use parquet::basic::Compression;
use shardfeed::sample::{SampleData, WriteOptions, write_rows, write_sample};
use shardfeed::{
    CachePolicy, DataSet, Error, OnCorrupt, Result, ScanOptions, ScanReport, TokenLoader, VerifyOptions,
    VerifyReport, scan, verify,
};

/// A directory of data, whose manifest is kept elsewhere.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    /// One file: a dictionary and several pages, none of which has a checksum.
    fn of_pages(options: &WriteOptions) -> (Self, Vec<u32>) {
        let world = Self::empty();
        let rows: Vec<_> =
            (0..24_u32).map(|row| Some((0..10).map(|at| (row * 7 + at) % 40).collect())).collect();
        write_rows(&world.path(0), &rows, options).unwrap();
        (world, rows.into_iter().flatten().flatten().collect())
    }

    /// Files of three row groups.
    fn of_files(files: u32) -> Self {
        let world = Self::empty();
        let options = WriteOptions { rows_per_group: 16, ..WriteOptions::default() };
        let sample = SampleData { files, rows_per_file: 48, row_tokens_max: 60, seed: 9, options };
        write_sample(&world.data(), &sample).unwrap();
        world
    }

    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        Self { dir }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn path(&self, file: u32) -> PathBuf {
        self.data().join(format!("part-{file:05}.parquet"))
    }

    fn cache(&self) -> CachePolicy {
        CachePolicy::At(self.dir.path().join("manifest"))
    }

    fn options(&self, checksum: bool) -> ScanOptions {
        ScanOptions { checksum, cache: self.cache(), threads: Some(2), ..ScanOptions::default() }
    }

    fn scan(&self, checksum: bool) -> (Arc<DataSet>, ScanReport) {
        scan(&self.data().into(), &self.options(checksum)).unwrap()
    }

    fn verify(&self) -> VerifyReport {
        let options = VerifyOptions { cache: self.cache(), ..VerifyOptions::default() };
        verify(&self.data().into(), &options).unwrap()
    }

    /// Row groups with checksums, and how many of them this scan recorded.
    fn recorded(&self, checksum: bool) -> (usize, usize) {
        let (data, report) = self.scan(checksum);
        (data.manifest().row_groups_with_checksums(), report.row_groups_recorded)
    }
}

/// Changes bytes in place; the file's size and time stay, as when a disk does it.
fn change(path: &Path, at: u64, change: impl Fn(u8) -> u8) {
    let time = std::fs::metadata(path).unwrap().modified().unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[change(byte[0])], at).unwrap();
    file.set_times(std::fs::FileTimes::new().set_modified(time)).unwrap();
}

fn read(data: &Arc<DataSet>) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    for row_group in 0..data.manifest().row_groups().len() as u32 {
        let mut cursor = data.open_row_group(row_group)?;
        while let Some(segment) = cursor.segment(1000)? {
            cursor.read(segment.tokens, &mut tokens)?;
        }
    }
    Ok(tokens)
}

/// Tokens from the middle on, in file order: pages before it are passed over by their headers.
fn read_from_the_middle(world: &World, from: usize) -> Result<Vec<u32>> {
    const SEQ_LEN: usize = 20;
    let mut loader = TokenLoader::builder(world.data(), SEQ_LEN as u32, 1)
        .shuffle(false)
        .threads(1)
        .cache(world.cache())
        .build()?;
    loader.skip(0..(from / SEQ_LEN) as u64)?;
    let mut tokens = Vec::new();
    while let Some(batch) = loader.next_batch()? {
        tokens.extend(batch.input_ids().iter().map(|id| id as u32));
    }
    Ok(tokens)
}

/// Versions of pages, and compressions.
fn layouts() -> Vec<WriteOptions> {
    let mut layouts = Vec::new();
    for page_v2 in [false, true] {
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
            layouts.push(WriteOptions { page_v2, compression, page_bytes: 48, ..WriteOptions::default() });
        }
    }
    layouts
}

#[test]
fn every_damaged_byte_is_an_error_that_names_file_row_group_and_page() {
    let mut dice = Dice::new(1);
    for options in layouts() {
        let (world, tokens) = World::of_pages(&options);
        let path = world.path(0);
        assert!(page_bodies(&path).len() >= 4, "a dictionary and several pages");
        let (data, _) = world.scan(true);
        assert_eq!(read(&data).unwrap(), tokens);
        for at in data.manifest().row_groups()[0].chunk() {
            for flip in [0xff, 1 << dice.below(8)] {
                change(&path, at, |byte| byte ^ flip);
                let (data, report) = world.scan(false);
                assert_eq!((report.files_read, data.manifest().row_groups_with_checksums()), (0, 1));
                let error = read(&data).expect_err("a byte is another").to_string();
                for part in ["part-00000.parquet", "row group 0 is damaged", "page"] {
                    assert!(error.contains(part), "byte {at} of {options:?}: {error}");
                }
                change(&path, at, |byte| byte ^ flip);
            }
        }
        assert_eq!(read(&world.scan(false).0).unwrap(), tokens);
    }
}

#[test]
fn from_the_middle_of_a_damaged_row_group_there_are_right_tokens_or_an_error() {
    for options in layouts() {
        let (world, tokens) = World::of_pages(&options);
        let (data, _) = world.scan(true);
        let from = tokens.len() / 2;
        assert_eq!(read_from_the_middle(&world, from).unwrap(), tokens[from..]);
        let (mut right, mut refused) = (0, 0);
        for at in data.manifest().row_groups()[0].chunk() {
            change(&world.path(0), at, |byte| !byte);
            match read_from_the_middle(&world, from) {
                Ok(found) => {
                    assert_eq!(found, tokens[from..], "byte {at} of {options:?}");
                    right += 1;
                }
                Err(error) => {
                    assert!(matches!(error, Error::Damaged { row_group: 0, .. }), "{error}");
                    refused += 1;
                }
            }
            change(&world.path(0), at, |byte| !byte);
        }
        // Bodies that were passed over are not looked at; everything else is.
        assert!(right > 0 && refused > right, "{right} right, {refused} refused of {options:?}");
    }
}

#[test]
fn without_recorded_checksums_some_damage_goes_unnoticed() {
    let options =
        WriteOptions { compression: Compression::UNCOMPRESSED, page_bytes: 48, ..WriteOptions::default() };
    let (world, tokens) = World::of_pages(&options);
    world.scan(false);
    // The first byte of the dictionary: another token, and nothing else is wrong.
    let dictionary = &page_bodies(&world.path(0))[0];
    change(&world.path(0), dictionary.start, |byte| byte ^ 1);
    assert_ne!(read(&world.scan(false).0).unwrap(), tokens);
}

#[test]
fn checksums_are_kept_while_files_stay_and_recorded_again_only_when_asked_for() {
    let world = World::of_files(4);
    let fingerprint = world.scan(false).0.manifest().fingerprint();
    assert_eq!(world.recorded(false), (0, 0));
    assert_eq!(world.recorded(true), (12, 12));
    assert_eq!(world.recorded(false), (12, 0));
    assert_eq!(world.recorded(true), (12, 0));
    assert_eq!(world.scan(false).0.manifest().fingerprint(), fingerprint);
    // A file that was written to has none, and the others keep theirs.
    let bytes = std::fs::read(world.path(1)).unwrap();
    std::fs::write(world.path(1), bytes).unwrap();
    let time = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    File::options().write(true).open(world.path(1)).unwrap().set_modified(time).unwrap();
    assert_eq!(world.recorded(false), (9, 0));
    assert_eq!(world.recorded(false), (9, 0));
    assert_eq!(world.recorded(true), (12, 3));
    // One that is gone takes its own along, and no others.
    std::fs::remove_file(world.path(0)).unwrap();
    assert_eq!(world.recorded(false), (9, 0));
    assert_eq!(world.recorded(true), (9, 0));
    assert!(read(&world.scan(false).0).is_ok());
}

#[test]
fn only_files_without_checksums_are_read_to_record_them() {
    let world = World::of_files(3);
    world.scan(true);
    std::fs::copy(world.path(2), world.path(3)).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&done);
    let progress = move |_, total| {
        noted.fetch_max(total, Relaxed);
    };
    let options = ScanOptions { progress: Some(Arc::new(progress)), ..world.options(true) };
    // Those that have them hold nothing but zeroes by now, which only reading them would tell.
    for file in 0..3 {
        let time = std::fs::metadata(world.path(file)).unwrap().modified().unwrap();
        let len = std::fs::metadata(world.path(file)).unwrap().len();
        std::fs::write(world.path(file), vec![0; len as usize]).unwrap();
        File::options().write(true).open(world.path(file)).unwrap().set_modified(time).unwrap();
    }
    let (data, report) = scan(&world.data().into(), &options).unwrap();
    assert_eq!((report.files_read, report.row_groups_recorded, done.load(Relaxed)), (1, 3, 3));
    assert_eq!(data.manifest().row_groups_with_checksums(), 12);
    assert!(data.open_row_group(0).unwrap().segment(1).is_err());
}

#[test]
fn every_damaged_page_is_named_by_verify_also_behind_damaged_headers() {
    let options = WriteOptions { page_bytes: 48, ..WriteOptions::default() };
    let (world, _) = World::of_pages(&options);
    let (data, _) = world.scan(true);
    let whole = world.verify();
    assert_eq!((whole.damages.len(), whole.row_groups_with_checksums), (0, 1));
    let pages = data.manifest().checksums().of(0).to_vec();
    assert!(pages.len() >= 4);
    for page in &pages {
        // A size in the header, behind the type.
        change(&world.path(0), page.at + 3, |byte| byte ^ 2);
    }
    let report = world.verify();
    let named: Vec<Option<u32>> = report.damages.iter().map(|damage| damage.page).collect();
    let expected: Vec<Option<u32>> =
        std::iter::once(None).chain((0..pages.len() as u32 - 1).map(Some)).collect();
    assert_eq!(named, expected, "{:?}", report.damages);
    assert!(report.damages[0].reason.contains("dictionary page: its header"), "{:?}", report.damages[0]);
    for page in &pages {
        change(&world.path(0), page.at + 3, |byte| byte ^ 2);
    }
    for body in page_bodies(&world.path(0)).iter().skip(1).step_by(2) {
        change(&world.path(0), body.start, |byte| !byte);
    }
    let report = world.verify();
    let named: Vec<Option<u32>> = report.damages.iter().map(|damage| damage.page).collect();
    assert_eq!(named, (0..pages.len() as u32 - 1).step_by(2).map(Some).collect::<Vec<_>>());
    assert!(report.damages.iter().all(|damage| damage.reason.contains("not those that were recorded")));
}

#[test]
fn a_footer_that_is_another_than_when_checksums_were_recorded_is_damage() {
    let world = World::of_files(1);
    world.scan(true);
    let (path, other) = (world.path(0), World::of_files(1));
    // Of the same size, but with row groups in other places.
    let rows: Vec<_> = (0..48_u32).map(|row| Some(vec![row; 5])).collect();
    let options = WriteOptions { rows_per_group: 24, ..WriteOptions::default() };
    write_rows(&other.path(0), &rows, &options).unwrap();
    let (mut bytes, len) = (std::fs::read(other.path(0)).unwrap(), std::fs::metadata(&path).unwrap().len());
    assert!(bytes.len() < len as usize);
    // Zeroes between the pages and the footer are nobody's.
    let footer_len = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize + 8;
    let footer = bytes.split_off(bytes.len() - footer_len);
    bytes.resize(len as usize - footer_len, 0);
    bytes.extend(footer);
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    std::fs::write(&path, bytes).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let [damage] = &world.verify().damages[..] else { panic!("one damage") };
    assert!(damage.reason.contains("its footer is not the one"), "{}", damage.reason);
    assert!(read(&world.scan(false).0).is_err());
}

#[test]
fn damage_that_only_checksums_show_is_masked() {
    let world = World::of_files(3);
    let (data, _) = world.scan(true);
    // Another token in the dictionary of the second file's last row group.
    let page = data.manifest().checksums().of(5)[1];
    change(&world.path(1), page.at - 1, |byte| byte ^ 1);
    let builder = || TokenLoader::builder(world.data(), 32, 6).seed(4).cache(world.cache());
    let error = builder().build().unwrap().batches().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Damaged { row_group: 2, .. }), "{error}");
    let mut loader = builder().on_corrupt(OnCorrupt::Mask).build().unwrap();
    let tokens: u64 = loader.batches().map(|batch| batch.unwrap().tokens).sum();
    assert_eq!(tokens, data.manifest().tokens() - data.manifest().row_groups()[5].tokens);
    let masked = loader.masked();
    assert_eq!((masked.len(), masked[0].0), (1, 5));
    assert!(masked[0].1.contains("dictionary page: its"), "{masked:?}");
}

#[test]
fn pages_that_are_read_again_for_want_of_memory_are_found_where_they_were_recorded() {
    let world = World::of_files(4);
    let (data, _) = world.scan(true);
    let build = |budget| {
        let builder = TokenLoader::builder(world.data(), 16, 4).lanes(8).window(2).threads(1);
        builder.cache(world.cache()).memory_budget(budget).build()
    };
    let Err(Error::Budget { needed, .. }) = build(1) else { panic!("a byte is not enough") };
    let mut loader = build(needed).unwrap();
    let tokens: u64 = loader.batches().map(|batch| batch.unwrap().tokens).sum();
    assert_eq!(tokens, data.manifest().tokens());
    assert!(loader.stats().read.pages_read_again > 0);
}

#[test]
fn what_is_known_to_be_damaged_is_not_recorded() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/checksums");
    for name in ["dict_snappy_v1.parquet", "plain_none_v2.parquet"] {
        let world = World::empty();
        let path = world.data().join(name);
        std::fs::copy(testdata.join(name), &path).unwrap();
        let bodies = page_bodies(&path);
        change(&path, bodies[1].start, |byte| !byte);
        let error = scan(&world.data().into(), &world.options(true)).unwrap_err();
        assert!(matches!(&error, Error::Damaged { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(name) && error.contains("page") && error.contains("checksum"), "{error}");
        // A header that has no end.
        let world = World::of_files(1);
        let (data, _) = world.scan(false);
        let chunk = data.manifest().row_groups()[1].chunk();
        change(&world.path(0), chunk.start, |_| 0x0f);
        let error = scan(&world.data().into(), &world.options(true)).unwrap_err().to_string();
        assert!(error.contains("row group 1") && error.contains("page 0: its header"), "{error}");
    }
}

#[test]
fn files_by_other_writers_are_recorded_and_read() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    for folder in ["writers", "checksums"] {
        let mut files: Vec<PathBuf> = std::fs::read_dir(testdata.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
            .collect();
        files.sort();
        for path in files {
            let plain = ScanOptions { cache: CachePolicy::Off, ..ScanOptions::default() };
            let Ok((data, _)) = scan(&(&path).into(), &plain) else { continue };
            let Ok(right) = read(&data) else { continue };
            let (data, _) = scan(&(&path).into(), &ScanOptions { checksum: true, ..plain }).unwrap();
            assert_eq!(read(&data).unwrap(), right, "{}", path.display());
            assert_eq!(data.manifest().row_groups_with_checksums(), data.manifest().row_groups().len());
        }
    }
}
