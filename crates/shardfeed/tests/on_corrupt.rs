//! With `on_corrupt = mask`, the tokens of damaged row groups become padding in place, and nothing else changes.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::page_bodies::page_bodies;
use shardfeed::sample::{SampleData, WriteOptions, write_sample};
use shardfeed::{
    Batch, CachePolicy, Error, IGNORE_LABEL, OnCorrupt, Packing, Rank, TokenLoader, TokenLoaderBuilder,
};
use shardfeed_plan::{EpochOrder, Skips, Tail};

const PAD_ID: u32 = 49_999;
const GLOBAL_BATCH: u32 = 6;

fn write(dir: &Path) {
    let options = WriteOptions { rows_per_group: 16, ..WriteOptions::default() };
    let sample = SampleData { files: 5, rows_per_file: 48, row_tokens_max: 60, seed: 9, options };
    write_sample(dir, &sample).unwrap();
}

/// Breaks the last page of row groups of a file; all three have a dictionary and a page each.
fn damage(dir: &Path, file: u32, row_groups: &[usize]) {
    let path = dir.join(format!("part-{file:05}.parquet"));
    let bodies = page_bodies(&path);
    assert_eq!(bodies.len(), 6);
    let mut bytes = std::fs::read(&path).unwrap();
    for row_group in row_groups {
        let body = &bodies[row_group * 2 + 1];
        bytes[body.start as usize..body.end as usize].fill(0xff);
    }
    std::fs::write(&path, bytes).unwrap();
}

fn builder(dir: &Path, packing: Packing, eos_id: Option<u32>) -> TokenLoaderBuilder {
    TokenLoader::builder(dir, 32, GLOBAL_BATCH)
        .seed(4)
        .lanes(6)
        .window(4)
        .packing(packing)
        .eos_id(eos_id)
        .pad_id(PAD_ID)
        .cache(CachePolicy::Off)
}

/// The four numbers of each token.
fn numbers(batch: &Batch) -> Vec<[i64; 4]> {
    let arrays = [batch.input_ids(), batch.labels(), batch.position_ids(), batch.document_ids()];
    let [ids, labels, positions, documents] = arrays.map(|array| array.as_i64().unwrap().to_vec());
    (0..ids.len()).map(|at| [ids[at], labels[at], positions[at], documents[at]]).collect()
}

/// What a row must be: that of whole data, with the tokens of damaged row groups taken out.
fn masked(whole: &[[i64; 4]], is_masked: &[bool]) -> Vec<[i64; 4]> {
    let mut gone = BTreeSet::new();
    whole
        .iter()
        .zip(is_masked)
        .map(|(&[id, label, position, document], &is_masked)| {
            if is_masked {
                gone.insert(document);
                return [i64::from(PAD_ID), i64::from(IGNORE_LABEL), 0, -1];
            }
            let document = if document < 0 { document } else { document - gone.len() as i64 };
            [id, label, position, document]
        })
        .collect()
}

#[test]
fn damaged_row_groups_are_masked_in_place_and_nothing_else_changes() {
    let (good, bad) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(good.path());
    write(bad.path());
    damage(bad.path(), 1, &[0, 1]);
    damage(bad.path(), 4, &[2]);
    let damaged = [3, 4, 14];
    let packing = Packing::Concat;
    for eos_id in [None, Some(7)] {
        for world_size in [1, 2, 4, 6] {
            for rank in 0..world_size {
                let rank = Rank::new(rank, world_size).unwrap();
                let mut whole = builder(good.path(), packing, eos_id).rank(rank).build().unwrap();
                let mut holey = builder(bad.path(), packing, eos_id)
                    .rank(rank)
                    .on_corrupt(OnCorrupt::Mask)
                    .build()
                    .unwrap();
                let sizes = whole.manifest().sizes(whole.settings()).unwrap();
                let order = EpochOrder::new(&sizes, whole.settings(), 0);
                let mut steps = 0;
                let mut state = None;
                while let Some(batch) = whole.next_batch().unwrap() {
                    if steps == 5 {
                        // Resumed in the middle of things, it goes on as if nothing had been.
                        holey = builder(bad.path(), packing, eos_id)
                            .rank(rank)
                            .on_corrupt(OnCorrupt::Mask)
                            .resume_from(state.take().unwrap())
                            .build()
                            .unwrap();
                    }
                    let step = order
                        .step_at(steps * u64::from(GLOBAL_BATCH), &Skips::default(), GLOBAL_BATCH, Tail::Pad)
                        .unwrap();
                    let found = holey.next_batch().unwrap().unwrap();
                    state = Some(holey.state().clone());
                    let (whole_rows, found_rows) = (numbers(&batch), numbers(&found));
                    for (row, &position) in step.positions(rank).iter().enumerate() {
                        let spans = order.spans(order.units(order.sequence(position)));
                        let mut is_masked: Vec<bool> = spans
                            .flat_map(|span| {
                                let len = (span.units.end - span.units.start) as usize;
                                std::iter::repeat_n(damaged.contains(&span.row_group), len)
                            })
                            .collect();
                        is_masked.resize(32, false);
                        let at = row * 32..(row + 1) * 32;
                        assert_eq!(
                            found_rows[at.clone()],
                            masked(&whole_rows[at], &is_masked),
                            "step {steps}, row {row}, {world_size} ranks"
                        );
                    }
                    let valid = found_rows.iter().filter(|token| token[1] != i64::from(IGNORE_LABEL)).count();
                    assert_eq!(found.valid_labels, valid as u64);
                    steps += 1;
                }
                assert!(holey.next_batch().unwrap().is_none());
            }
        }
    }
}

#[test]
fn sequences_of_a_damaged_row_group_are_padding_when_rows_are_padded() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let kept = dir.path().join("manifest");
    let builder = |on_corrupt| {
        builder(dir.path(), Packing::Pad, Some(7)).cache(CachePolicy::At(kept.clone())).on_corrupt(on_corrupt)
    };
    let whole: Vec<Batch> =
        builder(OnCorrupt::Error).build().unwrap().batches().collect::<Result<_, _>>().unwrap();
    // The same size and time as before: the kept manifest still holds.
    let path = dir.path().join("part-00001.parquet");
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    damage(dir.path(), 1, &[1]);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
    let mut loader = builder(OnCorrupt::Mask).build().unwrap();
    let sizes = loader.manifest().sizes(loader.settings()).unwrap();
    let order = EpochOrder::new(&sizes, loader.settings(), 0);
    let mut masked_rows = 0;
    for (step, whole) in (0..).zip(&whole) {
        let batch = loader.next_batch().unwrap().unwrap();
        let plan = order
            .step_at(step * u64::from(GLOBAL_BATCH), &Skips::default(), GLOBAL_BATCH, Tail::Pad)
            .unwrap();
        for (row, &position) in plan.positions(Rank::single()).iter().enumerate() {
            let row_group = order.spans(order.units(order.sequence(position))).next().unwrap().row_group;
            let at = row * 32..(row + 1) * 32;
            if row_group == 4 {
                masked_rows += 1;
                let padding = [i64::from(PAD_ID), i64::from(IGNORE_LABEL), 0, -1];
                assert_eq!(numbers(&batch)[at], [padding; 32]);
            } else {
                assert_eq!(numbers(&batch)[at.clone()], numbers(whole)[at]);
            }
        }
    }
    assert_eq!(masked_rows, sizes[4]);
    assert_eq!(loader.stats().read.masked_row_groups, 1);
}

#[test]
fn masked_row_groups_are_counted_and_named_and_by_default_they_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    damage(dir.path(), 2, &[1]);
    let mut loader = builder(dir.path(), Packing::Concat, None).build().unwrap();
    let error = loader.batches().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Damaged { row_group: 1, .. }), "{error}");
    assert!(
        error.to_string().contains("part-00002.parquet") && error.to_string().contains("page 0"),
        "{error}"
    );
    let mut loader = builder(dir.path(), Packing::Concat, None).on_corrupt(OnCorrupt::Mask).build().unwrap();
    let tokens: u64 = loader.batches().map(|batch| batch.unwrap().tokens).sum();
    let lost = loader.manifest().row_groups()[7].tokens;
    assert_eq!(tokens, loader.manifest().tokens() - lost);
    assert_eq!(loader.stats().read.masked_row_groups, 1);
    let masked = loader.masked();
    assert_eq!((masked.len(), masked[0].0), (1, 7));
    assert!(masked[0].1.contains("part-00002.parquet"), "{masked:?}");
}
