//! Resuming is a seek: what the first batch reads, counted, wherever the stream stands.
//!
//! Loaders prepare steps ahead on threads, so reads are counted where there is nothing ahead: all steps after the
//! first are skipped, which leaves an epoch of exactly one.

mod common;

use std::path::Path;

use common::{NaiveSequence, TestData, cases, naive_sequences, order_of, rows_of};
use proptest::prelude::*;
use shardfeed::sample::WriteOptions;
use shardfeed::{
    Batch, LabelStyle, Packing, Rank, ReadCounts, StreamState, Tail, TokenLoader, TokenLoaderBuilder, mix,
};

const PAD_ID: u32 = 9;

#[derive(Clone, Copy, Debug)]
struct Setting {
    seq_len: u32,
    packing: Packing,
    eos_id: Option<u32>,
    lanes: u32,
    window: u32,
}

impl Setting {
    fn builder(&self, dir: &Path, global_batch: u32) -> TokenLoaderBuilder {
        TokenLoader::builder(dir, self.seq_len, global_batch)
            .seed(5)
            .packing(self.packing)
            .eos_id(self.eos_id)
            .lanes(self.lanes)
            .window(self.window)
            .pad_id(PAD_ID)
            .threads(2)
    }

    /// A state that stands at `position`: what a job with a global batch of 1 saves there.
    fn state_at(&self, dir: &Path, position: u64) -> StreamState {
        let mut state = self.builder(dir, 1).build().unwrap().state().clone();
        state.position = position;
        state
    }
}

/// All sequences of the epoch, by position, with the lane they are in.
fn naive_epoch(data: &TestData, loader: &TokenLoader) -> Vec<(u32, NaiveSequence)> {
    let order = order_of(loader.manifest(), loader.settings(), 0);
    let line = naive_sequences(&data.row_groups(), &order, loader.settings(), LabelStyle::Shifted, PAD_ID);
    (0..order.sequences())
        .map(|position| (order.place(position).lane, line[order.sequence(position) as usize].clone()))
        .collect()
}

/// The first batch after a resume, and what was read for it and nothing else.
fn first_batch(builder: TokenLoaderBuilder, state: StreamState) -> (Batch, ReadCounts) {
    let position = state.position;
    let mut loader = builder.resume_from(state).build().unwrap();
    // The state's global batch was 1, so this step has the number of its position.
    if loader.steps_left() > 1 {
        loader.skip(position + 1..u64::MAX).unwrap();
    }
    assert_eq!(loader.steps_left(), 1);
    assert_eq!(loader.read_counts(), ReadCounts::default(), "nothing is read before the first batch");
    let batch = loader.next_batch().unwrap().unwrap();
    let counts = loader.read_counts();
    assert_eq!(batch.step, position);
    assert!(loader.next_batch().unwrap().is_none());
    assert_eq!(loader.read_counts(), counts, "there was nothing to prepare ahead");
    (batch, counts)
}

/// Row groups of 24 to 48 tokens each, in rows of 6 to 12: never less than a sequence of 8.
fn many_row_groups(row_groups_per_file: u64) -> TestData {
    let mut next = 100;
    let files = (0..3)
        .map(|file| {
            (0..row_groups_per_file * 4)
                .map(|row| {
                    let len = 6 + mix(file << 32 | row) % 7;
                    next += len as u32;
                    Some((next - len as u32..next).collect())
                })
                .collect()
        })
        .collect();
    let options = WriteOptions { rows_per_group: 4, page_bytes: 64, ..WriteOptions::default() };
    TestData { files, options }
}

/// Resumes at each position on every rank, and checks the batch and what was opened for it.
fn check_seeks(setting: Setting, data: &TestData, global_batch: u32, world_sizes: &[u32]) {
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    let probe = setting.builder(dir.path(), 1).build().unwrap();
    let sequences = probe.sequences_per_epoch();
    let epoch = naive_epoch(data, &probe);
    let batch = u64::from(global_batch);
    let last_step = (sequences - 1) / batch * batch;
    for position in
        [0, 1, sequences / 3, sequences / 2, sequences * 3 / 4, last_step.saturating_sub(batch), last_step]
    {
        let step = position..sequences.min(position + batch);
        let mut expected = epoch[step.start as usize..step.end as usize].to_vec();
        expected.sort_by_key(|(lane, _)| *lane);
        for &world_size in world_sizes {
            let mut delivered = Vec::new();
            for index in 0..world_size {
                let builder =
                    setting.builder(dir.path(), global_batch).rank(Rank::new(index, world_size).unwrap());
                let (batch, counts) = first_batch(builder, setting.state_at(dir.path(), position));
                let row_groups_max = 2 * batch.real_rows as u64;
                assert!(
                    counts.row_groups <= row_groups_max,
                    "{setting:?}, global batch {global_batch}, rank {index} of {world_size}, position \
                     {position} of {sequences}: {} row groups opened for {} sequences",
                    counts.row_groups,
                    batch.real_rows
                );
                delivered.extend(rows_of(&batch).into_iter().take(batch.real_rows));
            }
            assert!(expected.iter().map(|(_, sequence)| sequence).eq(&delivered), "position {position}");
        }
    }
}

/// Both packings, with and without an id after each document.
fn line_kinds() -> impl Iterator<Item = (Packing, Option<u32>)> {
    [Packing::Concat, Packing::Pad].into_iter().flat_map(|packing| [(packing, None), (packing, Some(7))])
}

#[test]
fn the_first_batch_after_a_resume_opens_at_most_two_row_groups_per_sequence() {
    let data = many_row_groups(40);
    for (packing, eos_id) in line_kinds() {
        // Windows from one sequence to many times a row group, lanes from as many as a step takes to far more.
        for (lanes, window) in [(6, 1), (6, 64), (16, 5), (48, 16)] {
            let setting = Setting { seq_len: 8, packing, eos_id, lanes, window };
            check_seeks(setting, &data, 6, &[1, 2, 6]);
        }
    }
}

#[test]
fn several_sequences_of_one_lane_open_no_more_than_two_row_groups_each() {
    let data = many_row_groups(40);
    for (packing, eos_id) in line_kinds() {
        for (lanes, window) in [(1, 64), (3, 32), (8, 16), (4, 2)] {
            let setting = Setting { seq_len: 8, packing, eos_id, lanes, window };
            check_seeks(setting, &data, 12, &[1, 5]);
        }
    }
}

#[test]
fn a_tail_filled_from_the_beginning_opens_no_more_than_two_row_groups_per_sequence() {
    let data = many_row_groups(40);
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    for (packing, eos_id) in line_kinds() {
        for (lanes, window) in [(4, 64), (16, 5), (32, 16)] {
            let setting = Setting { seq_len: 8, packing, eos_id, lanes, window };
            let sequences = setting.builder(dir.path(), 1).build().unwrap().sequences_per_epoch();
            for left in [1, 5, 15] {
                let state = setting.state_at(dir.path(), sequences - left);
                let builder = setting.builder(dir.path(), 16).tail(Tail::Wrap);
                let (batch, counts) = first_batch(builder, state);
                assert_eq!(batch.real_rows, 16);
                assert!(counts.row_groups <= 32, "{setting:?}, {left} left: {counts:?}");
            }
        }
    }
}

#[test]
fn a_step_that_straddles_a_skipped_range_opens_no_more_than_two_row_groups_per_sequence() {
    // A row group for each sequence, so that whatever is decoded on the way is seen.
    let mut ids = 100_u32..;
    let rows = (0..200).map(|_| Some(ids.by_ref().take(8).collect())).collect();
    let options = WriteOptions { rows_per_group: 1, ..WriteOptions::default() };
    let data = TestData { files: vec![rows], options };
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    for (packing, eos_id) in [(Packing::Concat, None), (Packing::Pad, None)] {
        let setting = Setting { seq_len: 8, packing, eos_id, lanes: 1, window: 64 };
        let builder = |global_batch| setting.builder(dir.path(), global_batch);
        let probe = builder(1).build().unwrap();
        let mut walk = order_of(probe.manifest(), probe.settings(), 0).walk(0);
        // Where a window begins with the very sequence that is delivered: it is opened rather than the sequence.
        let begins_window: Vec<u64> =
            (0..200).filter(|&position| walk.clone().sequence(position) == walk.floor(position)).collect();
        for (at, &first) in begins_window.iter().enumerate() {
            for &second in &begins_window[at + 1..] {
                let mut loader = builder(1).resume_from(setting.state_at(dir.path(), first)).build().unwrap();
                if second > first + 1 {
                    loader.skip(first + 1..second).unwrap();
                }
                let (batch, counts) = first_batch(builder(2), loader.state().clone());
                assert_eq!(batch.real_rows, 2);
                assert!(counts.row_groups <= 4, "{packing:?}, positions {first} and {second}: {counts:?}");
            }
        }
    }
}

/// A row group for each sequence, 2,000 of them, in two lanes with windows of 4.
fn long_lanes(dir: &Path) -> Setting {
    let mut ids = 100_u32..;
    let rows = (0..2000).map(|_| Some(ids.by_ref().take(8).collect())).collect();
    let options = WriteOptions { rows_per_group: 1, ..WriteOptions::default() };
    TestData { files: vec![rows], options }.write(dir);
    Setting { seq_len: 8, packing: Packing::Concat, eos_id: None, lanes: 2, window: 4 }
}

#[test]
fn a_skip_that_begins_some_steps_ahead_is_jumped_over_and_not_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let setting = long_lanes(dir.path());
    for ahead in 0..8 {
        let mut loader = setting.builder(dir.path(), 2).build().unwrap();
        let steps = loader.steps_per_epoch();
        loader.next_batch().unwrap().unwrap();
        loader.skip(1 + ahead..steps - 3).unwrap();
        let before = loader.read_counts().row_groups;
        assert_eq!(
            loader.batches().map(|batch| batch.unwrap().step).filter(|step| *step >= steps - 3).count(),
            3
        );
        // Windows on both sides of the gap, and what was read alone.
        let opened = loader.read_counts().row_groups - before;
        assert!(opened < 100, "{ahead} steps ahead: {opened} row groups of 2,000");
    }
}

#[test]
fn a_tail_that_wraps_around_soon_after_a_resume_does_not_decode_what_lies_between() {
    let dir = tempfile::tempdir().unwrap();
    let setting = long_lanes(dir.path());
    for left in [13, 20, 25] {
        let state = setting.state_at(dir.path(), 2000 - left);
        let builder = setting.builder(dir.path(), 12).tail(Tail::Wrap).resume_from(state);
        let mut loader = builder.build().unwrap();
        let before = loader.read_counts().row_groups;
        assert!(loader.batches().all(|batch| batch.unwrap().real_rows == 12));
        let opened = loader.read_counts().row_groups - before;
        assert!(opened < 150, "{left} left: {opened} row groups of 2,000");
    }
}

#[test]
fn without_shuffling_a_resume_opens_the_row_groups_of_its_step_alone() {
    let data = many_row_groups(40);
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    for (packing, eos_id) in line_kinds() {
        let builder = |global_batch| {
            TokenLoader::builder(dir.path(), 8, global_batch).shuffle(false).packing(packing).eos_id(eos_id)
        };
        let probe = builder(1).build().unwrap();
        for position in [0, 1, 77, probe.sequences_per_epoch() - 3] {
            let mut state = probe.state().clone();
            state.position = position;
            let (batch, counts) = first_batch(builder(12), state);
            assert!(counts.row_groups <= 2 * batch.real_rows as u64, "position {position}: {counts:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_seek_is_bounded_for_any_lanes_and_windows(
        seq_len in 1_u32..=24,
        (packing, eos_id) in prop::sample::select(line_kinds().collect::<Vec<_>>()),
        global_batch in 1_u32..10,
        more_lanes in 0_u32..40,
        window in 1_u32..100,
        world_size in any::<prop::sample::Index>(),
    ) {
        let lanes = global_batch + more_lanes;
        let world_size = 1 + world_size.index(global_batch as usize) as u32;
        let setting = Setting { seq_len, packing, eos_id, lanes, window };
        check_seeks(setting, &many_row_groups(20), global_batch, &[world_size]);
    }
}

/// One row group of many pages: rows of 10 to 50 tokens, 400,000 tokens or so, which no encoding makes small.
fn huge_row_group(page_v2: bool) -> TestData {
    let rows = (0..13_000)
        .map(|row| Some((0..10 + mix(row) % 41).map(|at| (mix(row << 32 | at) % 60_000) as u32).collect()))
        .collect();
    let options = WriteOptions {
        rows_per_group: 13_000,
        dictionary: false,
        page_v2,
        page_bytes: 8 << 10,
        ..WriteOptions::default()
    };
    TestData { files: vec![rows], options }
}

#[test]
fn inside_a_row_group_a_seek_goes_to_the_page() {
    // Pages of the second version say how many rows they hold, which an id after each document asks for.
    for (eos_id, page_v2) in [(None, false), (None, true), (Some(7), true)] {
        let data = huge_row_group(page_v2);
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        for (lanes, window) in [(1, 1), (4, 64)] {
            let setting = Setting { seq_len: 64, packing: Packing::Concat, eos_id, lanes, window };
            let probe = setting.builder(dir.path(), 1).build().unwrap();
            let chunk_bytes = probe.manifest().row_groups()[0].chunk_len;
            let epoch = naive_epoch(&data, &probe);
            for twentieths in [0, 1, 10, 13, 19] {
                let position = epoch.len() * twentieths / 20;
                let state = setting.state_at(dir.path(), position as u64);
                let (batch, counts) = first_batch(setting.builder(dir.path(), 1), state);
                assert_eq!(rows_of(&batch), [epoch[position].1.clone()]);
                assert_eq!(counts.row_groups, 1);
                assert!(
                    counts.bytes * 16 < chunk_bytes,
                    "{setting:?}, position {position}: {} bytes of {chunk_bytes} read for 64 tokens",
                    counts.bytes
                );
            }
        }
    }
}
