use std::ops::Range;
use std::path::Path;

use proptest::prelude::*;
use shardfeed::sample::WriteOptions;
use shardfeed::{
    Batch, EpochOrder, LabelStyle, Packing, Rank, StreamState, Tail, TokenLoader, TokenLoaderBuilder, mix,
};

use crate::common::{NaiveSequence, Row, TestData, naive_sequences, order_of, padding, rows_of};

const PAD_ID: u32 = 9;

/// What a stream is asked to do, whatever the size of the job.
#[derive(Clone, Debug)]
pub struct Wish {
    pub seq_len: u32,
    pub packing: Packing,
    pub eos_id: Option<u32>,
    pub seed: u64,
    pub shuffle: bool,
    pub lanes: Option<u32>,
    pub window: Option<u32>,
    pub tail: Tail,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            seq_len: 16,
            packing: Packing::Concat,
            eos_id: None,
            seed: 3,
            shuffle: true,
            lanes: Some(10),
            window: Some(4),
            tail: Tail::Pad,
        }
    }
}

impl Wish {
    pub fn builder(&self, dir: &Path, global_batch: u32) -> TokenLoaderBuilder {
        let mut builder = TokenLoader::builder(dir, self.seq_len, global_batch)
            .seed(self.seed)
            .shuffle(self.shuffle)
            .packing(self.packing)
            .eos_id(self.eos_id)
            .tail(self.tail)
            .pad_id(PAD_ID)
            .threads(1);
        if let Some(lanes) = self.lanes {
            builder = builder.lanes(lanes);
        }
        if let Some(window) = self.window {
            builder = builder.window(window);
        }
        builder
    }
}

pub fn wish() -> impl Strategy<Value = Wish> {
    let order = (any::<u64>(), prop::bool::weighted(0.85), 1_u32..30, 1_u32..12);
    let line = (1_u32..40, prop_oneof![Just(Packing::Concat), Just(Packing::Pad)], any::<bool>());
    (order, line).prop_map(|((seed, shuffle, lanes, window), (seq_len, packing, eos))| Wish {
        seq_len,
        packing,
        eos_id: eos.then_some(7),
        seed,
        shuffle,
        lanes: shuffle.then_some(lanes),
        window: shuffle.then_some(window),
        tail: Tail::Pad,
    })
}

/// One global batch, put together from all ranks, without padding.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub epoch: u64,
    pub number: u64,
    pub rows: Vec<NaiveSequence>,
}

/// All ranks of a job, one loader each, taking their steps together.
pub struct Job {
    pub global_batch: u32,
    pub loaders: Vec<TokenLoader>,
}

impl Job {
    pub fn start(wish: &Wish, dir: &Path, global_batch: u32, world_size: u32) -> Self {
        Self::build(|| wish.builder(dir, global_batch), global_batch, world_size)
    }

    pub fn resume(wish: &Wish, dir: &Path, global_batch: u32, world_size: u32, state: &str) -> Self {
        let state = StreamState::from_json(state).unwrap();
        Self::build(|| wish.builder(dir, global_batch).resume_from(state.clone()), global_batch, world_size)
    }

    fn build(builder: impl Fn() -> TokenLoaderBuilder, global_batch: u32, world_size: u32) -> Self {
        let loaders = (0..world_size)
            .map(|index| builder().rank(Rank::new(index, world_size).unwrap()).build().unwrap())
            .collect();
        Self { global_batch, loaders }
    }

    /// The next step, `None` at the end of the epoch: on all ranks at once.
    pub fn next(&mut self) -> Option<Step> {
        let batches: Vec<Option<Batch>> =
            self.loaders.iter_mut().map(|loader| loader.next_batch().unwrap()).collect();
        let batches: Vec<Batch> = match batches.iter().flatten().count() {
            0 => return None,
            some => {
                assert_eq!(some, batches.len(), "all ranks end together");
                batches.into_iter().flatten().collect()
            }
        };
        let (epoch, number) = (batches[0].epoch, batches[0].step);
        assert!(batches.iter().all(|batch| (batch.epoch, batch.step) == (epoch, number)));
        assert_eq!(batches.iter().map(|batch| batch.rows).sum::<usize>(), self.global_batch as usize);
        let nothing = padding(batches[0].seq_len, PAD_ID);
        let rows = batches.iter().flat_map(rows_of).filter(|row| *row != nothing).collect();
        Some(Step { epoch, number, rows })
    }

    pub fn take(&mut self, steps: usize) -> Vec<Step> {
        (0..steps).map(|_| self.next().expect("the epoch has more steps")).collect()
    }

    /// What is left of the epoch.
    pub fn rest(&mut self) -> Vec<Step> {
        std::iter::from_fn(|| self.next()).collect()
    }

    pub fn skip(&mut self, steps: &Range<u64>) -> Result<(), String> {
        let results: Vec<Result<(), String>> = self
            .loaders
            .iter_mut()
            .map(|loader| loader.skip(steps.clone()).map_err(|error| error.to_string()))
            .collect();
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        results[0].clone()
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.loaders.iter_mut().for_each(|loader| loader.set_epoch(epoch));
    }

    /// The state: the same bytes on every rank, and small.
    pub fn state(&self) -> String {
        let states: Vec<String> = self.loaders.iter().map(|loader| loader.state().to_json()).collect();
        assert!(states.iter().all(|state| *state == states[0]) && states[0].len() < 1024, "{states:?}");
        states[0].clone()
    }

    pub fn position(&self) -> u64 {
        self.loaders[0].state().position
    }

    pub fn sequences(&self) -> u64 {
        self.loaders[0].sequences_per_epoch()
    }
}

/// Which positions an epoch still has to deliver, naively: a list of them.
pub struct Model {
    order: EpochOrder,
    line: Vec<NaiveSequence>,
    pub left: Vec<u64>,
}

impl Model {
    pub fn new(data: &TestData, loader: &TokenLoader, epoch: u64) -> Self {
        let order = order_of(loader.manifest(), loader.settings(), epoch);
        let line =
            naive_sequences(&data.row_groups(), &order, loader.settings(), LabelStyle::Shifted, PAD_ID);
        let left = (0..line.len() as u64).collect();
        Self { order, line, left }
    }

    /// The steps to come with this global batch, as positions.
    pub fn steps(&self, global_batch: u32) -> Vec<Vec<u64>> {
        self.left.chunks(global_batch as usize).map(<[u64]>::to_vec).collect()
    }

    pub fn rows(&self, positions: &[u64]) -> Vec<NaiveSequence> {
        let mut positions = positions.to_vec();
        positions.sort_by_key(|&position| (self.order.place(position).lane, position));
        positions.iter().map(|&position| self.line[self.order.sequence(position) as usize].clone()).collect()
    }

    pub fn remove(&mut self, positions: &[u64]) {
        self.left.retain(|position| !positions.contains(position));
    }
}

/// A few hundred sequences of 16 tokens, with null and empty rows among the others.
fn some_data() -> TestData {
    let mut ids = 100_u32..;
    let files = (0..4_u64)
        .map(|file| {
            (0..60_u64)
                .map(|row| match mix(file << 32 | row) % 40 {
                    0 => None,
                    len => Some(ids.by_ref().take(len as usize - 1).collect()),
                })
                .collect::<Vec<Row>>()
        })
        .collect();
    TestData {
        files,
        options: WriteOptions { rows_per_group: 7, page_bytes: 200, ..WriteOptions::default() },
    }
}

/// [`some_data`] on disk.
pub fn some_dir() -> (tempfile::TempDir, TestData) {
    let (dir, data) = (tempfile::tempdir().unwrap(), some_data());
    data.write(dir.path());
    (dir, data)
}

pub fn has_tokens(data: &TestData) -> bool {
    data.files.iter().flatten().flatten().any(|row| !row.is_empty())
}

pub fn all_batches(builder: TokenLoaderBuilder) -> Vec<Batch> {
    builder.build().unwrap().batches().collect::<Result<_, _>>().unwrap()
}
