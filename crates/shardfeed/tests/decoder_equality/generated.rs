use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use proptest::prelude::*;
use shardfeed::IdType;
use shardfeed::sample::{WriteOptions, write_rows};

use crate::common::{Dice, Row, cases};
use crate::compare::{Move, assert_equal, open, take};
use crate::reference;

const ID_TYPES: [IdType; 5] = [IdType::U16, IdType::U32, IdType::I32, IdType::I64, IdType::U64];

/// How ids are written. A dictionary of a few bytes is full at once, and what follows is plain.
const FORMS: [Form; 5] = [
    Form { encoding: None, dictionary_page_bytes: 1 << 24 },
    Form { encoding: None, dictionary_page_bytes: 256 },
    Form { encoding: Some(Encoding::PLAIN), dictionary_page_bytes: 0 },
    Form { encoding: Some(Encoding::DELTA_BINARY_PACKED), dictionary_page_bytes: 0 },
    Form { encoding: Some(Encoding::BYTE_STREAM_SPLIT), dictionary_page_bytes: 0 },
];

#[derive(Clone, Copy, Debug)]
struct Form {
    encoding: Option<Encoding>,
    dictionary_page_bytes: usize,
}

impl Form {
    fn options(self) -> WriteOptions {
        WriteOptions {
            encoding: self.encoding,
            dictionary: self.encoding.is_none(),
            dictionary_page_bytes: self.dictionary_page_bytes,
            ..WriteOptions::default()
        }
    }
}

fn codecs() -> [Compression; 7] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
    ]
}

fn id_max(ids: IdType) -> u32 {
    match ids {
        IdType::U16 => u32::from(u16::MAX),
        IdType::I32 => i32::MAX.cast_unsigned(),
        IdType::U32 | IdType::I64 | IdType::U64 => u32::MAX,
    }
}

/// The words of a made-up language: `count` of them, all different if there are that many ids.
#[derive(Clone, Copy, Debug)]
struct Vocabulary {
    count: u32,
    id_max: u32,
    from_the_top: bool,
}

impl Vocabulary {
    fn word(self, number: u64) -> u32 {
        let number = (number % u64::from(self.count)) as u32 % self.id_max.max(1);
        // Spread by an odd factor, which leaves different numbers different; the limit itself is among them.
        match (self.from_the_top, self.id_max) {
            (true, top) => top - number,
            (false, u32::MAX) => number.wrapping_mul(0x9e37_79b1),
            (false, top) => number.wrapping_mul(0x9e37_79b1) & top,
        }
    }
}

/// A stretch of a row.
#[derive(Clone, Debug)]
enum Stretch {
    /// One word again and again: a run.
    Same { word: u64, times: usize },
    /// Any words: packed.
    Any { seed: u64, count: usize },
    /// One after the other, so that deltas are alike.
    Rising { from: u64, count: usize },
    /// First and last words in turn, so that deltas are as large as can be.
    Extremes { count: usize },
}

impl Stretch {
    fn extend(&self, row: &mut Vec<u32>, vocabulary: Vocabulary) {
        match *self {
            Self::Same { word, times } => row.extend(std::iter::repeat_n(vocabulary.word(word), times)),
            Self::Any { seed, count } => {
                let mut dice = Dice::new(seed);
                row.extend((0..count).map(|_| vocabulary.word(dice.word())));
            }
            Self::Rising { from, count } => {
                row.extend((0..count as u64).map(|step| vocabulary.word(from.wrapping_add(step))));
            }
            Self::Extremes { count } => {
                row.extend((0..count).map(|step| if step % 2 == 0 { 0 } else { vocabulary.id_max }));
            }
        }
    }
}

fn stretch() -> impl Strategy<Value = Stretch> {
    let count = || prop_oneof![6 => 1_usize..20, 3 => 20_usize..300, 1 => 300_usize..3000];
    prop_oneof![
        (any::<u64>(), count()).prop_map(|(word, times)| Stretch::Same { word, times }),
        (any::<u64>(), count()).prop_map(|(seed, count)| Stretch::Any { seed, count }),
        (any::<u64>(), count()).prop_map(|(from, count)| Stretch::Rising { from, count }),
        (1_usize..70).prop_map(|count| Stretch::Extremes { count }),
    ]
}

/// `None` is a null row, no stretch an empty one.
fn rows() -> impl Strategy<Value = Vec<Option<Vec<Stretch>>>> {
    let row = prop_oneof![
        1 => Just(None),
        1 => Just(Some(Vec::new())),
        8 => prop::collection::vec(stretch(), 1..5).prop_map(Some),
    ];
    let gaps = prop::collection::vec(prop_oneof![Just(None), Just(Some(Vec::new()))], 1..200);
    let rows = prop_oneof![1 => gaps, 12 => prop::collection::vec(row, 1..50)];
    prop::collection::vec(rows, 1..3).prop_map(|parts| parts.concat())
}

/// 2^k − 1, 2^k or 2^k + 1 words.
fn vocabulary(ids: IdType) -> impl Strategy<Value = Vocabulary> {
    (0_u32..=21, 0_u32..3, any::<bool>()).prop_map(move |(width, more, from_the_top)| Vocabulary {
        count: ((1_u32 << width) + more - 1).max(1),
        id_max: id_max(ids),
        from_the_top,
    })
}

fn options() -> impl Strategy<Value = WriteOptions> {
    let page_bytes = prop_oneof![Just(1_usize), 2_usize..64, 64_usize..4096, Just(1 << 20)];
    let rows_per_group = prop_oneof![1_usize..10, 10_usize..60, Just(usize::MAX)];
    let form = prop::sample::select(FORMS.to_vec());
    let codec = prop::sample::select(codecs().to_vec());
    let ids = prop::sample::select(ID_TYPES.to_vec());
    (form, codec, ids, page_bytes, rows_per_group, any::<[bool; 5]>()).prop_map(
        |(form, compression, ids, page_bytes, rows_per_group, flags)| {
            let [page_v2, statistics, page_statistics, nullable_rows, nullable_items] = flags;
            WriteOptions {
                ids,
                compression,
                page_bytes,
                rows_per_group,
                page_v2,
                statistics,
                page_statistics,
                nullable_rows,
                nullable_items,
                ..form.options()
            }
        },
    )
}

fn written(rows: &[Option<Vec<Stretch>>], vocabulary: Vocabulary) -> Vec<Row> {
    let row = |stretches: &Vec<Stretch>| {
        let mut row = Vec::new();
        for stretch in stretches {
            stretch.extend(&mut row, vocabulary);
        }
        row
    };
    rows.iter().map(|stretches| stretches.as_ref().map(row)).collect()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn any_file_is_read_as_the_crates_own_reader_reads_it(
        (options, vocabulary) in options().prop_flat_map(|options| {
            let vocabulary = vocabulary(options.ids);
            (Just(options), vocabulary)
        }),
        rows in rows(),
        seed in any::<u64>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("any.parquet");
        write_rows(&path, &written(&rows, vocabulary), &options).unwrap();
        assert_equal(&path, seed).unwrap();
    }
}

/// Runs and packed values in turn, nulls and empty rows, a long row and single tokens.
fn mixed_rows(vocabulary: Vocabulary) -> Vec<Row> {
    let mut dice = Dice::new(u64::from(vocabulary.count));
    (0..60)
        .map(|row| {
            let mut tokens = Vec::new();
            match row % 12 {
                3 => return None,
                4 => {}
                5 => Stretch::Same { word: row, times: 1 }.extend(&mut tokens, vocabulary),
                11 => Stretch::Any { seed: dice.word(), count: 700 }.extend(&mut tokens, vocabulary),
                _ => {
                    Stretch::Same { word: dice.word(), times: dice.below(40) }
                        .extend(&mut tokens, vocabulary);
                    Stretch::Any { seed: dice.word(), count: dice.below(40) }.extend(&mut tokens, vocabulary);
                }
            }
            Some(tokens)
        })
        .collect()
}

#[test]
fn every_encoding_codec_page_version_and_id_type_is_read_as_the_crates_own_reader_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cross.parquet");
    for ids in ID_TYPES {
        let vocabulary = Vocabulary { count: 300, id_max: id_max(ids), from_the_top: false };
        let rows = mixed_rows(vocabulary);
        for (number, form) in FORMS.into_iter().enumerate() {
            for compression in codecs() {
                for page_v2 in [false, true] {
                    let options = WriteOptions {
                        ids,
                        compression,
                        page_v2,
                        page_bytes: 300,
                        rows_per_group: 25,
                        ..form.options()
                    };
                    write_rows(&path, &rows, &options).unwrap();
                    assert_equal(&path, number as u64).unwrap_or_else(|error| panic!("{options:?}: {error}"));
                }
            }
        }
    }
}

#[test]
fn a_dictionary_that_is_full_is_followed_by_plain_pages_in_the_same_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full.parquet");
    let vocabulary = Vocabulary { count: 3000, id_max: u32::MAX, from_the_top: false };
    for ids in [IdType::U32, IdType::U64] {
        for page_v2 in [false, true] {
            let options = WriteOptions { ids, page_v2, page_bytes: 500, ..FORMS[1].options() };
            write_rows(&path, &mixed_rows(vocabulary), &options).unwrap();
            let encodings = &reference::encodings(&path)[0];
            // In pages of the second version, the crate falls back to deltas.
            let plain = if page_v2 { Encoding::DELTA_BINARY_PACKED } else { Encoding::PLAIN };
            assert!(
                encodings.contains(&Encoding::RLE_DICTIONARY) && encodings.contains(&plain),
                "{encodings:?}"
            );
            for seed in 0..10 {
                assert_equal(&path, seed).unwrap();
            }
        }
    }
}

/// Every word once, so that the last index has its full width, with runs between.
fn rows_of_every_word(vocabulary: Vocabulary) -> Vec<Row> {
    let numbers: Vec<u64> = (0..u64::from(vocabulary.count)).collect();
    let mut rows: Vec<Row> = Vec::new();
    for numbers in numbers.chunks(1 << 14) {
        rows.push(Some(numbers.iter().map(|&number| vocabulary.word(number)).collect()));
        rows.push(Some(vec![vocabulary.word(numbers[0]); 100]));
    }
    let mut dice = Dice::new(7);
    rows.push(Some((0..2000).map(|_| vocabulary.word(dice.word())).collect()));
    rows
}

#[test]
fn dictionaries_of_every_bit_width_are_read_as_the_crates_own_reader_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("width.parquet");
    for width in 0..=20_u32 {
        for count in [(1 << width) - 1, 1 << width, (1 << width) + 1_u32].map(|count| count.max(1)) {
            // The widest take a second each: one of either type.
            let ids = if width % 2 == 0 { IdType::U32 } else { IdType::I64 };
            let vocabulary = Vocabulary { count, id_max: id_max(ids), from_the_top: false };
            let options = WriteOptions {
                ids,
                page_v2: count % 2 == 0,
                page_bytes: if width < 12 { 200 } else { 1 << 20 },
                rows_per_group: usize::MAX,
                ..FORMS[0].options()
            };
            write_rows(&path, &rows_of_every_word(vocabulary), &options).unwrap();
            let encodings = &reference::encodings(&path)[0];
            assert!(encodings.contains(&Encoding::RLE_DICTIONARY), "{encodings:?}");
            assert_equal(&path, u64::from(count)).unwrap();
        }
    }
}

/// Ids that differ by one and the same large number, modulo 2^32: deltas of no bits, whose sum passes the type's
/// limit. Passing over them failed in the `parquet` crate 60.1 ("delta*n overflow in skip"), reading them did not.
#[test]
fn deltas_that_wrap_around_are_passed_over_as_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrapping.parquet");
    let row: Vec<u32> = (0..300_u32).map(|number| number.wrapping_mul(0x9e37_79b1)).collect();
    let options = WriteOptions { ids: IdType::U32, ..FORMS[3].options() };
    write_rows(&path, &[Some(row.clone())], &options).unwrap();
    let data = open(&path).unwrap();
    for portion in [1, 2, 31, 33, 150] {
        let mut moves = 0;
        let cursor = data.open_row_group(0).unwrap();
        let taken = take(cursor, || {
            moves += 1;
            Move { max: usize::MAX, portion, skip: moves % 4 == 2 }
        });
        let taken = taken.unwrap_or_else(|error| panic!("in portions of {portion}: {error}")).tokens;
        assert_eq!(taken.len(), row.len());
        assert!(taken.iter().zip(&row).all(|(taken, id)| taken.is_none_or(|taken| taken == *id)));
    }
}
