use std::ops::Range;
use std::path::{Path, PathBuf};

use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use shardfeed::IdType;
use shardfeed::sample::{WriteOptions, write_rows};

use crate::common::Row;
use crate::common::page_bodies::page_bodies;
use crate::read::{Content, by_cursor};

/// A good file, about to be damaged.
pub struct Victim {
    pub name: String,
    pub bytes: Vec<u8>,
    pub content: Content,
    /// Where the bodies of its pages lie.
    pub bodies: Vec<Range<usize>>,
    pub has_checksums: bool,
}

impl Victim {
    fn read(path: &Path, has_checksums: bool) -> Self {
        let bodies = page_bodies(path).into_iter().map(|body| body.start as usize..body.end as usize);
        Self {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            bytes: std::fs::read(path).unwrap(),
            content: by_cursor(path, usize::MAX).unwrap(),
            bodies: bodies.filter(|body| !body.is_empty()).collect(),
            has_checksums,
        }
    }

    /// Whether the other file is this one but for the bodies of its pages.
    pub fn differs_in_bodies_only(&self, other: &[u8]) -> bool {
        let is_in_body = |at: usize| self.bodies.iter().any(|body| body.contains(&at));
        let mut pairs = self.bytes.iter().zip(other).enumerate();
        self.bytes.len() == other.len() && pairs.all(|(at, (a, b))| a == b || is_in_body(at))
    }
}

pub fn testdata(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder)
}

/// Parquet files in a folder, by name.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "parquet")).collect();
    files.sort();
    files
}

/// Files of every encoding, codec and page version: our own have no checksums, pyarrow's have.
pub fn all() -> Vec<Victim> {
    let with_checksums = files_in(&testdata("checksums"));
    assert!(with_checksums.len() >= 48);
    let mut victims = without_checksums();
    victims.extend(with_checksums.iter().map(|path| Victim::read(path, true)));
    victims
}

fn without_checksums() -> Vec<Victim> {
    let dir = tempfile::tempdir().unwrap();
    let codecs = [
        ("none", Compression::UNCOMPRESSED),
        ("snappy", Compression::SNAPPY),
        ("gzip", Compression::GZIP(GzipLevel::default())),
        ("brotli", Compression::BROTLI(BrotliLevel::default())),
        ("lz4", Compression::LZ4),
        ("zstd", Compression::ZSTD(ZstdLevel::default())),
        ("lz4_raw", Compression::LZ4_RAW),
    ];
    let forms = [
        ("dict", None, 1 << 20),
        ("fallback", None, 24),
        ("plain", Some(Encoding::PLAIN), 0),
        ("delta", Some(Encoding::DELTA_BINARY_PACKED), 0),
        ("bss", Some(Encoding::BYTE_STREAM_SPLIT), 0),
    ];
    let mut victims = Vec::new();
    for (form, encoding, dictionary_page_bytes) in forms {
        for (codec, compression) in codecs {
            for page_v2 in [false, true] {
                let number = victims.len();
                let options = WriteOptions {
                    compression,
                    encoding,
                    dictionary: encoding.is_none(),
                    dictionary_page_bytes,
                    page_v2,
                    page_bytes: 100,
                    rows_per_group: 9,
                    statistics: number % 5 != 0,
                    nullable_rows: number % 4 != 0,
                    nullable_items: number % 3 != 0,
                    ids: [IdType::U32, IdType::I64, IdType::U16, IdType::I32, IdType::U64][number % 5],
                    ..WriteOptions::default()
                };
                let version = if page_v2 { 2 } else { 1 };
                let path = dir.path().join(format!("own_{form}_{codec}_v{version}.parquet"));
                write_rows(&path, &rows(), &options).unwrap();
                victims.push(Victim::read(&path, false));
            }
        }
    }
    victims
}

/// Runs of one id, and ids that differ; null and empty rows among them.
fn rows() -> Vec<Row> {
    let row = |row: u32| {
        let run = std::iter::repeat_n(7, (row * 5 % 23) as usize);
        run.chain((0..=row * 3 % 11).map(|token| (row * 131 + token * 17) % 300)).collect()
    };
    (0..14)
        .map(|number| match number {
            3 => None,
            4 => Some(Vec::new()),
            _ => Some(row(number)),
        })
        .collect()
}

/// With `SHARDFEED_WRITE_CORPUS` set, writes the files instead, from which the fuzzer starts.
#[test]
fn the_fuzzer_starts_from_files_of_every_encoding_codec_and_page_version() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/row_group");
    let is_written = std::env::var_os("SHARDFEED_WRITE_CORPUS").is_some();
    // Each third meets them all.
    for victim in all().into_iter().step_by(3) {
        assert!(victim.bytes.len() < 4096, "{}", victim.name);
        let path = corpus.join(&victim.name);
        if is_written {
            std::fs::write(path, victim.bytes).unwrap();
        } else {
            assert!(std::fs::read(&path).unwrap() == victim.bytes, "{} is another file", path.display());
        }
    }
}
