use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use parquet::basic::{Compression, Encoding, ZstdLevel};
use serde_json::Value;
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{
    CachePolicy, LMBatch, Packing, Result, ScanOptions, ShardConfig, Source, StreamingParquetLoader, scan,
};

use crate::common::Row;
use crate::common::page_bodies::page_bodies;
use crate::world::{assert_names, in_file_order, rest, without_a_hang};

/// All tokens of a file, or why not.
fn read(path: &Path) -> Result<Vec<u32>> {
    let options = ScanOptions { cache: CachePolicy::Off, threads: Some(1), ..ScanOptions::default() };
    let (data, _) = scan(&Source::Files(vec![path.to_owned()]), &options)?;
    let mut tokens = Vec::new();
    for group in 0..data.manifest().row_groups().len() {
        let mut cursor = data.open_row_group(group as u32)?;
        while let Some(segment) = cursor.segment(50)? {
            cursor.read(segment.tokens, &mut tokens)?;
        }
    }
    Ok(tokens)
}

type Read = fn(&Path) -> Result<Vec<u32>>;

/// The same through the loaders, which must also not call a panic an error.
const LOADERS: [Read; 4] = [
    |path| read_by_steps(path, Packing::Concat),
    |path| read_by_steps(path, Packing::Pad),
    |path| read_by_file(path, |loader| Ok(loader.next_batches()?.expect("one file"))),
    |path| {
        read_by_file(path, |loader| {
            let batches = loader.batches().collect::<Result<Vec<LMBatch>>>()?;
            assert!(loader.is_epoch_exhausted(), "batches() ended without an error before the epoch's end");
            Ok(batches)
        })
    },
];

fn read_by_steps(path: &Path, packing: Packing) -> Result<Vec<u32>> {
    let builder = in_file_order(path.parent().unwrap()).threads(1).packing(packing);
    rest(&mut builder.cache(CachePolicy::Off).build()?)
}

fn read_by_file(
    path: &Path,
    read: impl FnOnce(&mut StreamingParquetLoader) -> Result<Vec<LMBatch>>,
) -> Result<Vec<u32>> {
    let mut loader = StreamingParquetLoader::new(path.parent().unwrap(), ShardConfig::single(), 1, 4096)?;
    let batches = read(&mut loader)?;
    let tokens = batches.iter().flat_map(|batch| {
        let (input, target) = (batch.get_input(0).unwrap(), batch.get_target(0).unwrap());
        // The last token of several is a target only; a single one has the end as its target.
        let last = target.last().filter(|_| batch.seq_len > 1 || target != [2]);
        input.iter().chain(last).copied().collect::<Vec<u32>>()
    });
    Ok(tokens.collect())
}

struct Victim {
    dir: tempfile::TempDir,
    file: std::fs::File,
    bytes: Vec<u8>,
    tokens: Vec<u32>,
    /// The byte that differs from `bytes`.
    damaged: usize,
}

impl Victim {
    fn new(bytes: Vec<u8>, tokens: Vec<u32>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("victim.parquet")).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let victim = Self { dir, file, bytes, tokens, damaged: 0 };
        assert_eq!(read(&victim.path()).unwrap(), victim.tokens);
        for read in LOADERS {
            assert_eq!(read(&victim.path()).unwrap(), victim.tokens);
        }
        victim
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("victim.parquet")
    }

    /// Changes one byte by exclusive or, and mends the one changed before.
    fn damage(&mut self, at: usize, change: u8) {
        let mended = std::mem::replace(&mut self.damaged, at);
        self.file.write_all_at(&self.bytes[mended..=mended], mended as u64).unwrap();
        self.file.write_all_at(&[self.bytes[at] ^ change], at as u64).unwrap();
    }

    /// Right tokens, or an error that names the file.
    fn assert_right_or_named(&self, read: Result<Vec<u32>>, at: usize, change: u8) {
        match read {
            Ok(tokens) => assert_eq!(tokens, self.tokens, "byte {at} changed by {change:#04x}, not noticed"),
            Err(error) => assert_names(&error.to_string(), &self.path()),
        }
    }
}

/// What is wrong with how a damaged file is read: a panic, or an error that does not name the file.
fn complaint(read: impl FnOnce() -> Result<Vec<u32>>) -> Option<String> {
    match std::panic::catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => {
            let said = error.to_string();
            // A decoder of the `parquet` crate may panic inside: it is caught, and named like any other damage.
            (!said.contains("victim.parquet")).then_some(said)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Some(text.or(panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
        }
    }
}

fn with_checksums() -> Vec<Victim> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/writers");
    let expected: Value =
        serde_json::from_slice(&std::fs::read(testdata.join("expected.json")).unwrap()).unwrap();
    let victims: Vec<Victim> = expected["files"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|file| file["note"] == "page checksums")
        .map(|file| {
            let rows: Vec<Row> =
                serde_json::from_value(expected["rowsets"][file["rowset"].as_str().unwrap()].clone())
                    .unwrap();
            let bytes = std::fs::read(testdata.join(file["file"].as_str().unwrap())).unwrap();
            Victim::new(bytes, rows.into_iter().flatten().flatten().collect())
        })
        .collect();
    assert_eq!(victims.len(), 2);
    victims
}

#[test]
fn with_page_checksums_no_flipped_bit_of_a_page_gives_other_tokens() {
    without_a_hang(|| {
        for mut victim in with_checksums() {
            let bodies = page_bodies(&victim.path());
            assert!(bodies.len() > 20);
            let mut flips = 0;
            for at in bodies.into_iter().flatten() {
                for bit in 0..8 {
                    let (at, change) = (at as usize, 1 << bit);
                    victim.damage(at, change);
                    victim.assert_right_or_named(read(&victim.path()), at, change);
                    flips += 1;
                    if flips % 16 == 0 {
                        for read in LOADERS {
                            victim.assert_right_or_named(read(&victim.path()), at, change);
                        }
                    }
                }
            }
            assert!(flips > 5_000, "{flips}");
        }
    });
}

#[test]
fn with_page_checksums_no_other_byte_anywhere_panics_or_hangs() {
    without_a_hang(|| {
        damage_every_byte(&mut with_checksums());
    });
}

/// Small files of every page version, codec and encoding, without checksums.
fn without_checksums() -> Vec<Victim> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.parquet");
    let rows: Vec<Row> = (0..16_u32)
        .map(|row| match row % 8 {
            3 => None,
            4 => Some(vec![]),
            _ => Some((0..=row % 7).map(|token| (row * 31 + token) % 40).collect()),
        })
        .collect();
    let tokens: Vec<u32> = rows.iter().flatten().flatten().copied().collect();
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
    ];
    let encodings = [None, Some(Encoding::PLAIN), Some(Encoding::DELTA_BINARY_PACKED)];
    let mut victims = Vec::new();
    for (index, page_v2) in [false, true].into_iter().cycle().take(12).enumerate() {
        let options = WriteOptions {
            compression: codecs[index % 4],
            encoding: encodings[index % 3],
            dictionary: encodings[index % 3].is_none(),
            page_v2,
            page_bytes: 100,
            rows_per_group: 9,
            statistics: index % 5 != 0,
            ids: if index % 4 < 2 { shardfeed::IdType::I32 } else { shardfeed::IdType::U64 },
            ..WriteOptions::default()
        };
        write_rows(&path, &rows, &options).unwrap();
        victims.push(Victim::new(std::fs::read(&path).unwrap(), tokens.clone()));
    }
    victims
}

#[test]
fn without_page_checksums_no_damaged_byte_panics_or_hangs() {
    without_a_hang(|| {
        damage_every_byte(&mut without_checksums());
    });
}

/// Footer, headers and bodies: right tokens, wrong ones or an error with the file's name, and nothing else.
fn damage_every_byte(victims: &mut [Victim]) {
    let mut complaints: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (number, victim) in victims.iter_mut().enumerate() {
        for at in 0..victim.bytes.len() {
            // One bit, several, all, and the sign of a number.
            for (turn, change) in [1_u8 << (at % 8), 0x55, 0xff, 0x80].into_iter().enumerate() {
                victim.damage(at, change);
                let path = victim.path();
                let mut found = vec![complaint(|| read(&path))];
                if (at + turn) % 16 == 0 {
                    found.extend(LOADERS.map(|read| complaint(|| read(&path))));
                }
                for complaint in found.into_iter().flatten() {
                    let example = format!("file {number}, byte {at} changed by {change:#04x}");
                    complaints.entry(complaint).or_insert((0, example)).0 += 1;
                }
            }
        }
    }
    assert!(complaints.is_empty(), "complaint, how often, and where first: {complaints:#?}");
}

#[test]
fn file_by_file_no_damaged_page_header_ends_the_epoch_early_without_an_error() {
    without_a_hang(|| {
        let mut early = Vec::new();
        for (number, victim) in without_checksums().iter_mut().take(4).enumerate() {
            // The first page's header lies after four bytes of magic.
            for (at, change) in (4..34).flat_map(|at| (1..=u8::MAX).map(move |change| (at, change))) {
                victim.damage(at, change);
                let mut loader =
                    StreamingParquetLoader::new(victim.dir.path(), ShardConfig::single(), 1, 4096).unwrap();
                let refused = loader.batches().any(|batch| batch.is_err());
                if !refused && !loader.is_epoch_exhausted() {
                    early.push(format!("file {number}, byte {at} changed by {change:#04x}"));
                }
            }
        }
        assert!(early.is_empty(), "{} times, first with {}", early.len(), early[0]);
    });
}
