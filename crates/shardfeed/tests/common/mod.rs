//! What the tests of the loaders share: made-up data sets on disk, and a naive version of the stream over them.
#![allow(dead_code)]

pub mod page_bodies; // a file -> where its page bodies lie

use std::path::Path;

use proptest::prelude::*;
use shardfeed::sample::{WriteOptions, write_rows};
use shardfeed::{Batch, EpochOrder, IGNORE_LABEL, IdType, LabelStyle, Manifest, Packing, StreamSettings};

/// `None` is a null row.
pub type Row = Option<Vec<u32>>;

/// Rows of each file, and how the files are written.
#[derive(Clone, Debug)]
pub struct TestData {
    pub files: Vec<Vec<Row>>,
    pub options: WriteOptions,
}

impl TestData {
    pub fn write(&self, dir: &Path) {
        for (index, rows) in self.files.iter().enumerate() {
            write_rows(&dir.join(format!("part-{index:03}.parquet")), rows, &self.options).unwrap();
        }
    }

    /// Rows with tokens, by row group of the manifest.
    pub fn row_groups(&self) -> Vec<Vec<Vec<u32>>> {
        let mut groups = Vec::new();
        for rows in &self.files {
            for rows in rows.chunks(self.options.rows_per_group) {
                groups.push(rows.iter().flatten().filter(|row| !row.is_empty()).cloned().collect());
            }
        }
        groups
    }
}

/// Case counts, twenty times as many in long campaigns.
pub fn cases(default: u32) -> ProptestConfig {
    let factor = if std::env::var_os("SHARDFEED_LONG").is_some() { 20 } else { 1 };
    ProptestConfig { cases: default * factor, ..ProptestConfig::default() }
}

/// Small data sets of every shape: several files, empty and null rows, tiny and long rows, pages of a few tokens.
pub fn test_data() -> impl Strategy<Value = TestData> {
    let row = prop_oneof![
        1 => Just(0_usize),
        1 => Just(usize::MAX),
        6 => 1_usize..12,
        3 => 12_usize..80,
        1 => 80_usize..400,
    ];
    let files = prop::collection::vec(prop::collection::vec(row, 1..30), 1..6);
    let ids = prop_oneof![
        Just(IdType::U16),
        Just(IdType::U32),
        Just(IdType::I32),
        Just(IdType::I64),
        Just(IdType::U64)
    ];
    let options =
        (ids, 1_usize..14, any::<[bool; 3]>(), prop_oneof![Just(16_usize), Just(200), Just(1 << 20)]);
    (files, options).prop_map(
        |(lengths, (ids, rows_per_group, [dictionary, page_v2, statistics], page_bytes))| {
            // Every token is another number, so that none can stand for another; modulo what 16 bits hold.
            // From there on more than 16 bits are needed, which are kept in another way.
            let (mut next, modulo) = if ids == IdType::U16 { (0, 60_000) } else { (65_000, 1 << 20) };
            let files = lengths
                .into_iter()
                .map(|rows| {
                    rows.into_iter()
                        .map(|len| {
                            (len != usize::MAX).then(|| {
                                (0..len)
                                    .map(|_| {
                                        next = (next + 1) % modulo;
                                        next + 100
                                    })
                                    .collect()
                            })
                        })
                        .collect()
                })
                .collect();
            let options = WriteOptions {
                ids,
                rows_per_group,
                dictionary,
                page_v2,
                statistics,
                page_bytes,
                ..WriteOptions::default()
            };
            TestData { files, options }
        },
    )
}

/// One sequence as it must arrive, padding included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NaiveSequence {
    pub input_ids: Vec<i64>,
    pub labels: Vec<i64>,
    pub position_ids: Vec<i64>,
    pub document_ids: Vec<i64>,
}

/// A token of the line, and the row it is in.
#[derive(Clone, Copy)]
struct Unit {
    token: u32,
    row: usize,
}

/// All sequences of an epoch in line order: everything in memory, one token at a time.
pub fn naive_sequences(
    row_groups: &[Vec<Vec<u32>>],
    order: &EpochOrder,
    settings: &StreamSettings,
    labels: LabelStyle,
    pad_id: u32,
) -> Vec<NaiveSequence> {
    let rows: Vec<&Vec<u32>> =
        order.line().row_groups().flat_map(|group| &row_groups[group as usize]).collect();
    let seq_len = settings.seq_len as usize;
    let mut line: Vec<Unit> = Vec::new();
    let mut sequences: Vec<(usize, usize)> = Vec::new();
    for (row, tokens) in rows.iter().enumerate() {
        let start = line.len();
        line.extend(tokens.iter().map(|&token| Unit { token, row }));
        if settings.packing == Packing::Pad {
            let end = line.len();
            sequences.extend((start..end).step_by(seq_len).map(|from| (from, end.min(from + seq_len))));
        }
        // With Pad the end of a document is only a label, so it never begins or fills a sequence.
        line.extend(settings.eos_id.map(|token| Unit { token, row }));
    }
    if settings.packing == Packing::Concat {
        sequences =
            (0..line.len()).step_by(seq_len).map(|from| (from, line.len().min(from + seq_len))).collect();
    }
    sequences
        .into_iter()
        .map(|(from, to)| {
            let mut sequence = NaiveSequence {
                input_ids: vec![i64::from(pad_id); seq_len],
                labels: vec![i64::from(IGNORE_LABEL); seq_len],
                position_ids: vec![0; seq_len],
                document_ids: vec![-1; seq_len],
            };
            for (i, at) in (from..to).enumerate() {
                let is_same_row = |other: usize| line.get(other).is_some_and(|unit| unit.row == line[at].row);
                sequence.input_ids[i] = i64::from(line[at].token);
                match labels {
                    LabelStyle::Shifted if is_same_row(at + 1) => {
                        sequence.labels[i] = i64::from(line[at + 1].token);
                    }
                    LabelStyle::Unshifted if at > 0 && is_same_row(at - 1) => {
                        sequence.labels[i] = i64::from(line[at].token);
                    }
                    _ => {}
                }
                if i > 0 && is_same_row(at - 1) {
                    sequence.position_ids[i] = sequence.position_ids[i - 1] + 1;
                    sequence.document_ids[i] = sequence.document_ids[i - 1];
                } else {
                    sequence.position_ids[i] = 0;
                    sequence.document_ids[i] = if i > 0 { sequence.document_ids[i - 1] + 1 } else { 0 };
                }
            }
            sequence
        })
        .collect()
}

/// A sequence of padding alone.
pub fn padding(seq_len: usize, pad_id: u32) -> NaiveSequence {
    NaiveSequence {
        input_ids: vec![i64::from(pad_id); seq_len],
        labels: vec![i64::from(IGNORE_LABEL); seq_len],
        position_ids: vec![0; seq_len],
        document_ids: vec![-1; seq_len],
    }
}

/// The rows of a batch, one by one, with the batch's own counts checked against them.
pub fn rows_of(batch: &Batch) -> Vec<NaiveSequence> {
    let row = |array: shardfeed::Ids<'_>, row: usize| {
        array.iter().skip(row * batch.seq_len).take(batch.seq_len).collect::<Vec<i64>>()
    };
    let rows: Vec<NaiveSequence> = (0..batch.rows)
        .map(|index| NaiveSequence {
            input_ids: row(batch.input_ids(), index),
            labels: row(batch.labels(), index),
            position_ids: row(batch.position_ids(), index),
            document_ids: row(batch.document_ids(), index),
        })
        .collect();
    let valid =
        rows.iter().flat_map(|row| &row.labels).filter(|&&label| label != i64::from(IGNORE_LABEL)).count();
    assert_eq!(batch.valid_labels, valid as u64);
    let real = rows.iter().filter(|row| row.document_ids[0] == 0).count();
    assert_eq!(batch.real_rows, real);
    if let Some(cu_seqlens) = &batch.cu_seqlens {
        let mut naive = vec![0];
        for (index, row) in rows.iter().enumerate() {
            for i in 1..batch.seq_len {
                if row.document_ids[i] != row.document_ids[i - 1] {
                    naive.push((index * batch.seq_len + i) as i32);
                }
            }
            naive.push(((index + 1) * batch.seq_len) as i32);
        }
        assert_eq!(**cu_seqlens, *naive);
    }
    rows
}

/// The order of an epoch over a manifest.
pub fn order_of(manifest: &Manifest, settings: &StreamSettings, epoch: u64) -> EpochOrder {
    EpochOrder::new(&manifest.sizes(settings).expect("counted"), settings, epoch)
}

/// Throws of dice that are the same for the same seed, everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        shardfeed::mix(self.0)
    }

    /// A number below `end`, which is over 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
