//! The token stream over real files against a naive version of it, at every world size, stopped anywhere.

mod common;

use common::{NaiveSequence, TestData, cases, naive_sequences, order_of, padding, rows_of, test_data};
use proptest::prelude::*;
use shardfeed::{
    CachePolicy, Dtype, LabelStyle, Packing, Rank, StreamState, Tail, TokenLoader, TokenLoaderBuilder,
};

/// What a stream is asked to do.
#[derive(Clone, Debug)]
struct Wish {
    seq_len: u32,
    global_batch: u32,
    seed: u64,
    shuffle: bool,
    packing: Packing,
    eos_id: Option<u32>,
    lanes: Option<u32>,
    window: Option<u32>,
    labels: LabelStyle,
    dtype: Dtype,
    tail: Tail,
    threads: usize,
}

fn wish() -> impl Strategy<Value = Wish> {
    let size = (1_u32..40, 1_u32..20, any::<u64>(), prop::bool::weighted(0.85));
    let shape = (
        prop_oneof![Just(Packing::Concat), Just(Packing::Pad)],
        prop::option::of(Just(7_u32)),
        prop::option::of(1_u32..40),
        prop::option::of(1_u32..20),
    );
    let rest = (
        prop_oneof![Just(LabelStyle::Shifted), Just(LabelStyle::Unshifted)],
        prop_oneof![Just(Dtype::Int64), Just(Dtype::Int32)],
        prop_oneof![Just(Tail::Pad), Just(Tail::Drop), Just(Tail::Wrap)],
        1_usize..4,
    );
    (size, shape, rest).prop_map(
        |(
            (seq_len, global_batch, seed, shuffle),
            (packing, eos_id, lanes, window),
            (labels, dtype, tail, threads),
        )| {
            let (lanes, window) = if shuffle { (lanes, window) } else { (None, None) };
            // It has no place in padded rows whose labels are a copy.
            let eos_id = eos_id.filter(|_| packing == Packing::Concat || labels == LabelStyle::Shifted);
            Wish {
                seq_len,
                global_batch,
                seed,
                shuffle,
                packing,
                eos_id,
                lanes,
                window,
                labels,
                dtype,
                tail,
                threads,
            }
        },
    )
}

impl Wish {
    fn loader(&self, dir: &std::path::Path, index: u32, world_size: u32) -> TokenLoaderBuilder {
        let mut builder = TokenLoader::builder(dir, self.seq_len, self.global_batch)
            .rank(Rank::new(index, world_size).unwrap())
            .seed(self.seed)
            .shuffle(self.shuffle)
            .packing(self.packing)
            .eos_id(self.eos_id)
            .labels(self.labels)
            .dtype(self.dtype)
            .tail(self.tail)
            .threads(self.threads)
            .pad_id(9)
            .cu_seqlens(true)
            .cache(CachePolicy::Auto);
        if let Some(lanes) = self.lanes {
            builder = builder.lanes(lanes);
        }
        if let Some(window) = self.window {
            builder = builder.window(window);
        }
        builder
    }
}

/// The steps of an epoch, each a list of sequences, put together from all ranks; and the states after each.
fn run(
    wish: &Wish,
    dir: &std::path::Path,
    world_size: u32,
    from: Option<&StreamState>,
) -> (Vec<Vec<NaiveSequence>>, Vec<String>) {
    let mut steps: Vec<Vec<NaiveSequence>> = Vec::new();
    let mut states: Vec<String> = Vec::new();
    for index in 0..world_size {
        let mut builder = wish.loader(dir, index, world_size);
        if let Some(state) = from {
            builder = builder.resume_from(state.clone());
        }
        let mut loader = builder.build().unwrap();
        let announced = loader.steps_left();
        let mut step = 0;
        while let Some(batch) = loader.next_batch().unwrap() {
            if index == 0 {
                steps.push(Vec::new());
                states.push(loader.state().to_json());
            }
            // The state is the same on every rank, small, and counts what was handed out.
            assert_eq!(states[step], loader.state().to_json());
            assert!(states[step].len() < 1024);
            steps[step].extend(rows_of(&batch));
            step += 1;
        }
        assert_eq!((step, step as u64), (steps.len(), announced), "every rank has equally many steps");
    }
    (steps, states)
}

/// The same, naively: everything in memory, one world size.
fn naive_steps(wish: &Wish, data: &TestData, loader: &TokenLoader, epoch: u64) -> Vec<Vec<NaiveSequence>> {
    let order = order_of(loader.manifest(), loader.settings(), epoch);
    let line = naive_sequences(&data.row_groups(), &order, loader.settings(), wish.labels, 9);
    assert_eq!(line.len() as u64, order.sequences());
    let positions: Vec<u64> = (0..order.sequences()).collect();
    let batch = wish.global_batch as usize;
    let mut steps = Vec::new();
    for chunk in positions.chunks(batch) {
        let mut chunk = chunk.to_vec();
        if chunk.len() < batch {
            match wish.tail {
                Tail::Drop => break,
                Tail::Wrap => {
                    let missing = batch - chunk.len();
                    chunk.extend(positions.iter().cycle().take(missing));
                }
                Tail::Pad | Tail::Error => {}
            }
        }
        chunk.sort_by_key(|&position| (order.place(position).lane, position));
        steps.push(
            chunk.into_iter().map(|position| line[order.sequence(position) as usize].clone()).collect(),
        );
    }
    steps
}

fn without_padding(steps: &[Vec<NaiveSequence>], wish: &Wish) -> Vec<Vec<NaiveSequence>> {
    let nothing = padding(wish.seq_len as usize, 9);
    steps
        .iter()
        .map(|step| {
            assert_eq!(step.len(), wish.global_batch as usize, "constant shapes");
            step.iter().filter(|row| **row != nothing).cloned().collect()
        })
        .collect()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn every_world_size_sees_the_same_steps_and_a_stop_anywhere_changes_nothing(
        data in test_data(),
        wish in wish(),
        world_sizes in prop::collection::vec(1_u32..=16, 2..4),
        stop in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let probe = match wish.loader(dir.path(), 0, 1).build() {
            Ok(probe) => probe,
            // Nothing to stream, or fewer sequences than a dropped step takes: said before the first step.
            Err(shardfeed::Error::NoTokens { .. } | shardfeed::Error::Tail { .. }) => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        let expected = naive_steps(&wish, &data, &probe, 0);
        let mut states = Vec::new();
        for world_size in world_sizes.iter().map(|&size| size.min(wish.global_batch)) {
            let (steps, after) = run(&wish, dir.path(), world_size, None);
            prop_assert_eq!(&without_padding(&steps, &wish), &expected, "world size {}", world_size);
            states = after;
        }
        if !states.is_empty() {
            let stop = stop.index(states.len());
            let state = StreamState::from_json(&states[stop]).unwrap();
            let world_size = world_sizes[0].min(wish.global_batch);
            let (steps, _) = run(&wish, dir.path(), world_size, Some(&state));
            prop_assert_eq!(without_padding(&steps, &wish), &expected[stop + 1..]);
        }
    }

    #[test]
    fn the_next_epoch_follows_by_itself_in_another_order(data in test_data(), wish in wish()) {
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let Ok(mut loader) = wish.loader(dir.path(), 0, 1).epoch(3).build() else { return Ok(()) };
        for epoch in 3..6 {
            let expected = naive_steps(&wish, &data, &loader, epoch);
            let mut steps = Vec::new();
            while let Some(batch) = loader.next_batch().unwrap() {
                prop_assert_eq!((batch.epoch, batch.step), (epoch, steps.len() as u64));
                steps.push(rows_of(&batch));
            }
            prop_assert_eq!(without_padding(&steps, &wish), expected);
            prop_assert_eq!((loader.state().epoch, loader.state().position), (epoch + 1, 0));
        }
    }
}
