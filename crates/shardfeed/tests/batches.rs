//! What a batch holds, above all where documents end exactly where something else does.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{NaiveSequence, Row, TestData, cases, naive_sequences, order_of, padding, rows_of, test_data};
use proptest::prelude::*;
use shardfeed::sample::WriteOptions;
use shardfeed::{
    Batch, CachePolicy, Dtype, IGNORE_LABEL, IdType, LabelStyle, Packing, Rank, Tail, TokenLoader,
};

const PAD_ID: u32 = 9;
const EOS_ID: u32 = 7;

/// What a stream is asked to do.
#[derive(Clone, Debug)]
struct Wish {
    seq_len: u32,
    global_batch: u32,
    world_size: u32,
    seed: u64,
    packing: Packing,
    eos: bool,
    lanes: u32,
    window: u32,
    labels: LabelStyle,
    dtype: Dtype,
    cu_seqlens: bool,
}

impl Wish {
    fn loader(&self, dir: &Path, index: u32) -> TokenLoader {
        TokenLoader::builder(dir, self.seq_len, self.global_batch)
            .rank(Rank::new(index, self.world_size).unwrap())
            .seed(self.seed)
            .packing(self.packing)
            .eos_id(self.eos_id())
            .lanes(self.lanes)
            .window(self.window)
            .labels(self.labels)
            .dtype(self.dtype)
            .cu_seqlens(self.cu_seqlens)
            .pad_id(PAD_ID)
            .tail(Tail::Pad)
            .threads(1)
            .cache(CachePolicy::Auto)
            .build()
            .unwrap()
    }

    /// Where it has a place.
    fn eos_id(&self) -> Option<u32> {
        let has_place = self.packing == Packing::Concat || self.labels == LabelStyle::Shifted;
        (self.eos && has_place).then_some(EOS_ID)
    }

    /// The ids that follow a row on the line.
    fn eos_units(&self) -> usize {
        usize::from(self.eos && self.packing == Packing::Concat)
    }
}

fn wish() -> impl Strategy<Value = Wish> {
    let size = (1_u32..12, 1_u32..9, any::<prop::sample::Index>(), any::<u64>());
    let order = (prop_oneof![Just(Packing::Concat), Just(Packing::Pad)], any::<bool>(), 1_u32..9, 1_u32..6);
    let shape = (
        prop_oneof![Just(LabelStyle::Shifted), Just(LabelStyle::Unshifted)],
        prop_oneof![Just(Dtype::Int64), Just(Dtype::Int32)],
        prop::bool::weighted(0.8),
    );
    (size, order, shape).prop_map(
        |(
            (seq_len, global_batch, world_size, seed),
            (packing, eos, lanes, window),
            (labels, dtype, cu_seqlens),
        )| Wish {
            seq_len,
            global_batch,
            world_size: 1 + world_size.index(global_batch as usize) as u32,
            seed,
            packing,
            eos,
            lanes,
            window,
            labels,
            dtype,
            cu_seqlens,
        },
    )
}

/// How long a row is, in sequences and tokens beside them.
#[derive(Clone, Copy, Debug)]
enum RowLen {
    Null,
    Empty,
    OneToken,
    /// With what follows it, exactly this many sequences.
    Whole(usize),
    OneOver(usize),
    OneUnder(usize),
    Tokens(usize),
}

impl RowLen {
    fn tokens(self, wish: &Wish) -> Option<usize> {
        let whole = |sequences: usize| (sequences * wish.seq_len as usize - wish.eos_units()).max(1);
        match self {
            Self::Null => None,
            Self::Empty => Some(0),
            Self::OneToken => Some(1),
            Self::Whole(sequences) => Some(whole(sequences)),
            Self::OneOver(sequences) => Some(whole(sequences) + 1),
            Self::OneUnder(sequences) => Some((whole(sequences) - 1).max(1)),
            Self::Tokens(tokens) => Some(tokens),
        }
    }
}

/// Data sets whose documents end where sequences, and so windows, lanes, row groups, steps and the epoch end; or
/// one token before or after.
fn border_lengths() -> impl Strategy<Value = Vec<Vec<RowLen>>> {
    let files = |row: BoxedStrategy<RowLen>| prop::collection::vec(prop::collection::vec(row, 1..16), 1..4);
    let whole = (1_usize..5).prop_map(RowLen::Whole);
    let any_row = prop_oneof![
        1 => Just(RowLen::Null),
        1 => Just(RowLen::Empty),
        2 => Just(RowLen::OneToken),
        4 => whole.clone(),
        2 => (1_usize..4).prop_map(RowLen::OneOver),
        2 => (1_usize..4).prop_map(RowLen::OneUnder),
        1 => (8_usize..20).prop_map(RowLen::Whole),
        2 => (1_usize..40).prop_map(RowLen::Tokens),
    ];
    prop_oneof![
        // Every border of the stream is the end of a document.
        4 => files(whole.boxed()),
        4 => files(any_row.boxed()),
        1 => files(Just(RowLen::OneToken).boxed()),
        // One document over all lanes and steps, alone in the data set.
        1 => (20_usize..60, 0_usize..4)
            .prop_map(|(sequences, over)| vec![vec![if over == 0 {
                RowLen::Whole(sequences)
            } else {
                RowLen::OneOver(sequences)
            }]]),
        // Not even one sequence.
        1 => Just(vec![vec![RowLen::OneUnder(1)]]),
    ]
}

fn write_options() -> impl Strategy<Value = WriteOptions> {
    let ids = prop_oneof![Just(IdType::U16), Just(IdType::I32), Just(IdType::I64)];
    (ids, 1_usize..6, any::<bool>(), any::<bool>(), prop_oneof![Just(16_usize), Just(1 << 20)]).prop_map(
        |(ids, rows_per_group, dictionary, page_v2, page_bytes)| WriteOptions {
            ids,
            rows_per_group,
            dictionary,
            page_v2,
            page_bytes,
            ..WriteOptions::default()
        },
    )
}

/// Rows of these lengths in which no token occurs twice.
fn rows_with(lengths: &[Vec<Option<usize>>]) -> Vec<Vec<Row>> {
    let mut ids = 100_u32..;
    lengths
        .iter()
        .map(|rows| rows.iter().map(|len| len.map(|len| ids.by_ref().take(len).collect())).collect())
        .collect()
}

fn border_data() -> impl Strategy<Value = (TestData, Wish)> {
    (border_lengths(), write_options(), wish()).prop_map(|(lengths, options, wish)| {
        let lengths: Vec<Vec<Option<usize>>> =
            lengths.iter().map(|rows| rows.iter().map(|row| row.tokens(&wish)).collect()).collect();
        (TestData { files: rows_with(&lengths), options }, wish)
    })
}

fn has_tokens(data: &TestData) -> bool {
    data.files.iter().flatten().flatten().any(|row| !row.is_empty())
}

/// All batches of an epoch, by rank.
fn epoch(wish: &Wish, dir: &Path) -> Vec<Vec<Batch>> {
    (0..wish.world_size)
        .map(|index| wish.loader(dir, index).batches().collect::<Result<Vec<_>, _>>().unwrap())
        .collect()
}

/// What each rank must get at each step, naively, padding included.
fn naive_epoch(wish: &Wish, data: &TestData, loader: &TokenLoader) -> Vec<Vec<Vec<NaiveSequence>>> {
    let order = order_of(loader.manifest(), loader.settings(), 0);
    let line = naive_sequences(&data.row_groups(), &order, loader.settings(), wish.labels, PAD_ID);
    let (batch, ranks) = (wish.global_batch as usize, wish.world_size as usize);
    let positions: Vec<u64> = (0..line.len() as u64).collect();
    let mut by_rank = vec![Vec::new(); ranks];
    for step in positions.chunks(batch) {
        let mut step = step.to_vec();
        step.sort_by_key(|&position| (order.place(position).lane, position));
        let mut sequences = step.iter().map(|&position| line[order.sequence(position) as usize].clone());
        for (rank, steps) in by_rank.iter_mut().enumerate() {
            let share_of = |n: usize| n / ranks + usize::from(rank < n % ranks);
            let mut rows: Vec<_> = sequences.by_ref().take(share_of(step.len())).collect();
            rows.resize(share_of(batch), padding(wish.seq_len as usize, PAD_ID));
            steps.push(rows);
        }
    }
    by_rank
}

fn check_against_the_naive_epoch(wish: &Wish, data: &TestData) {
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    let expected = naive_epoch(wish, data, &wish.loader(dir.path(), 0));
    for (rank, (batches, expected)) in epoch(wish, dir.path()).iter().zip(&expected).enumerate() {
        assert_eq!(batches.len(), expected.len(), "steps of rank {rank}");
        for (batch, expected) in batches.iter().zip(expected) {
            assert_eq!(&rows_of(batch), expected, "rank {rank}, step {}", batch.step);
            assert_eq!(batch.cu_seqlens.is_some(), wish.cu_seqlens);
            for array in [batch.input_ids(), batch.labels(), batch.position_ids(), batch.document_ids()] {
                assert_eq!(array.as_i32().is_some(), wish.dtype == Dtype::Int32);
                assert_eq!(array.as_i64().is_some(), wish.dtype == Dtype::Int64);
                assert_eq!(array.len(), batch.rows * batch.seq_len);
            }
        }
    }
}

/// How often each id occurs.
type Multiset = BTreeMap<i64, usize>;

fn counted(ids: impl IntoIterator<Item = i64>) -> Multiset {
    let mut counts = Multiset::new();
    ids.into_iter().for_each(|id| *counts.entry(id).or_default() += 1);
    counts
}

/// The inputs and the labels of a whole epoch over all ranks, masked ones left out.
fn delivered(wish: &Wish, dir: &Path) -> (Multiset, Multiset) {
    let batches: Vec<Batch> = epoch(wish, dir).into_iter().flatten().collect();
    let rows: Vec<NaiveSequence> = batches.iter().flat_map(rows_of).collect();
    let is_real = |(input, document): (&i64, &i64)| (*document >= 0).then_some(*input);
    let inputs = rows.iter().flat_map(|row| row.input_ids.iter().zip(&row.document_ids).filter_map(is_real));
    let labels = rows.iter().flat_map(|row| &row.labels).copied();
    (counted(inputs), counted(labels.filter(|&label| label != i64::from(IGNORE_LABEL))))
}

/// What the rows of the data say must be delivered, whatever the order.
fn owed(wish: &Wish, data: &TestData) -> (Multiset, Multiset) {
    let rows: Vec<&Vec<u32>> = data.files.iter().flatten().flatten().filter(|row| !row.is_empty()).collect();
    let ends = |wanted: bool| std::iter::repeat_n(i64::from(EOS_ID), if wanted { rows.len() } else { 0 });
    let tokens = |from: usize| rows.iter().flat_map(move |row| &row[from..]).map(|&id| i64::from(id));
    let ends_are_inputs = wish.eos_units() == 1;
    let ends_are_labels = match wish.labels {
        LabelStyle::Shifted => wish.eos,
        // A copy of the inputs.
        LabelStyle::Unshifted => ends_are_inputs,
    };
    (counted(tokens(0).chain(ends(ends_are_inputs))), counted(tokens(1).chain(ends(ends_are_labels))))
}

fn check_conservation(wish: &Wish, data: &TestData) {
    let dir = tempfile::tempdir().unwrap();
    data.write(dir.path());
    let (inputs, labels) = delivered(wish, dir.path());
    let (inputs_owed, labels_owed) = owed(wish, data);
    assert_eq!(inputs, inputs_owed, "every token is an input exactly once");
    assert_eq!(labels, labels_owed, "every token but the first of its row is a label exactly once");
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn batches_are_those_of_the_naive_version_where_documents_end_at_borders((data, wish) in border_data()) {
        prop_assume!(has_tokens(&data));
        check_against_the_naive_epoch(&wish, &data);
    }

    #[test]
    fn batches_are_those_of_the_naive_version_over_any_documents(data in test_data(), wish in wish()) {
        prop_assume!(has_tokens(&data));
        check_against_the_naive_epoch(&wish, &data);
    }

    #[test]
    fn an_epoch_delivers_each_token_once_and_each_but_the_first_of_a_row_as_a_label_once(
        data in test_data(),
        wish in wish(),
    ) {
        prop_assume!(has_tokens(&data));
        check_conservation(&Wish { labels: LabelStyle::Shifted, ..wish.clone() }, &data);
        check_conservation(&Wish { labels: LabelStyle::Unshifted, ..wish }, &data);
    }

    #[test]
    fn an_epoch_conserves_tokens_where_documents_end_at_borders((data, wish) in border_data()) {
        prop_assume!(has_tokens(&data));
        check_conservation(&wish, &data);
    }
}

/// Streams rows in file order on one rank, and gives all rows of the epoch.
fn stream(rows: &[&[u32]], wish: &Wish) -> (Vec<NaiveSequence>, Vec<Batch>) {
    let dir = tempfile::tempdir().unwrap();
    let files = vec![rows.iter().map(|row| Some(row.to_vec())).collect()];
    TestData { files, options: WriteOptions::default() }.write(dir.path());
    let mut loader = TokenLoader::builder(dir.path(), wish.seq_len, wish.global_batch)
        .shuffle(false)
        .packing(wish.packing)
        .eos_id(wish.eos_id())
        .labels(wish.labels)
        .cu_seqlens(true)
        .pad_id(PAD_ID)
        .build()
        .unwrap();
    let batches: Vec<Batch> = loader.batches().collect::<Result<_, _>>().unwrap();
    (batches.iter().flat_map(rows_of).collect(), batches)
}

/// Sequences of four tokens, three a step.
fn small(packing: Packing, eos: bool, labels: LabelStyle) -> Wish {
    Wish {
        seq_len: 4,
        global_batch: 3,
        world_size: 1,
        seed: 0,
        packing,
        eos,
        lanes: 1,
        window: 1,
        labels,
        dtype: Dtype::Int64,
        cu_seqlens: true,
    }
}

/// A row of three, one as long as a sequence, one of a single token, and one longer than a sequence.
const ROWS: [&[u32]; 4] = [&[11, 12, 13], &[21, 22, 23, 24], &[31], &[41, 42, 43, 44, 45]];
const NONE: i64 = IGNORE_LABEL as i64;

#[derive(Debug, PartialEq)]
struct Expected {
    input_ids: Vec<Vec<i64>>,
    labels: Vec<Vec<i64>>,
    position_ids: Vec<Vec<i64>>,
    document_ids: Vec<Vec<i64>>,
}

fn columns(rows: Vec<NaiveSequence>) -> Expected {
    let mut all = Expected { input_ids: vec![], labels: vec![], position_ids: vec![], document_ids: vec![] };
    for row in rows {
        all.input_ids.push(row.input_ids);
        all.labels.push(row.labels);
        all.position_ids.push(row.position_ids);
        all.document_ids.push(row.document_ids);
    }
    all
}

#[test]
fn joined_rows_are_predicted_within_themselves_alone() {
    let (rows, batches) = stream(&ROWS, &small(Packing::Concat, false, LabelStyle::Shifted));
    let expected = Expected {
        input_ids: vec![
            vec![11, 12, 13, 21],
            vec![22, 23, 24, 31],
            vec![41, 42, 43, 44],
            vec![45, 9, 9, 9],
            vec![9; 4],
            vec![9; 4],
        ],
        labels: vec![
            vec![12, 13, NONE, 22],
            vec![23, 24, NONE, NONE],
            vec![42, 43, 44, 45],
            vec![NONE; 4],
            vec![NONE; 4],
            vec![NONE; 4],
        ],
        position_ids: vec![
            vec![0, 1, 2, 0],
            vec![0, 1, 2, 0],
            vec![0, 1, 2, 3],
            vec![0; 4],
            vec![0; 4],
            vec![0; 4],
        ],
        document_ids: vec![
            vec![0, 0, 0, 1],
            vec![0, 0, 0, 1],
            vec![0; 4],
            vec![0, -1, -1, -1],
            vec![-1; 4],
            vec![-1; 4],
        ],
    };
    assert_eq!(columns(rows), expected);
    let counts: Vec<_> = batches.iter().map(|batch| (batch.valid_labels, batch.real_rows)).collect();
    assert_eq!(counts, [(9, 3), (0, 1)], "the last batch has a token, and no label");
    assert_eq!(batches[0].cu_seqlens.as_deref(), Some(&[0, 3, 4, 7, 8, 12][..]));
    assert_eq!(batches[1].cu_seqlens.as_deref(), Some(&[0, 1, 4, 8, 12][..]));
}

#[test]
fn the_end_of_a_joined_document_is_a_label_once_and_predicts_nothing() {
    let (rows, batches) = stream(&ROWS, &small(Packing::Concat, true, LabelStyle::Shifted));
    let all = columns(rows);
    let inputs = [[11, 12, 13, 7], [21, 22, 23, 24], [7, 31, 7, 41], [42, 43, 44, 45], [7, 9, 9, 9], [9; 4]];
    assert_eq!(all.input_ids, inputs);
    let labels = [
        [12, 13, 7, NONE],
        [22, 23, 24, 7],
        [NONE, 7, NONE, 42],
        [43, 44, 45, 7],
        [NONE, NONE, NONE, NONE],
        [NONE; 4],
    ];
    assert_eq!(all.labels, labels);
    let documents = [[0; 4], [0; 4], [0, 1, 1, 2], [0; 4], [0, -1, -1, -1], [-1; 4]];
    assert_eq!(all.document_ids, documents);
    let positions = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 0], [0, 1, 2, 3], [0; 4], [0; 4]];
    assert_eq!(all.position_ids, positions);
    assert_eq!(batches.iter().map(|batch| batch.valid_labels).collect::<Vec<_>>(), [9, 4]);
}

#[test]
fn an_unshifted_copy_leaves_out_the_first_token_of_each_row_and_no_other() {
    let (rows, batches) = stream(&ROWS, &small(Packing::Concat, true, LabelStyle::Unshifted));
    let labels = [
        [NONE, 12, 13, 7],
        [NONE, 22, 23, 24],
        [7, NONE, 7, NONE],
        [42, 43, 44, 45],
        [7, NONE, NONE, NONE],
        [NONE; 4],
    ];
    assert_eq!(columns(rows).labels, labels);
    assert_eq!(batches.iter().map(|batch| batch.valid_labels).collect::<Vec<_>>(), [8, 5]);
}

#[test]
fn a_padded_row_is_a_sequence_of_its_own_and_its_end_is_a_label_alone() {
    let (rows, batches) = stream(&ROWS, &small(Packing::Pad, true, LabelStyle::Shifted));
    let all = columns(rows);
    let inputs = [[11, 12, 13, 9], [21, 22, 23, 24], [31, 9, 9, 9], [41, 42, 43, 44], [45, 9, 9, 9], [9; 4]];
    assert_eq!(all.input_ids, inputs);
    let labels = [
        [12, 13, 7, NONE],
        [22, 23, 24, 7],
        [7, NONE, NONE, NONE],
        [42, 43, 44, 45],
        [7, NONE, NONE, NONE],
        [NONE; 4],
    ];
    assert_eq!(all.labels, labels);
    let documents = [[0, 0, 0, -1], [0; 4], [0, -1, -1, -1], [0; 4], [0, -1, -1, -1], [-1; 4]];
    assert_eq!(all.document_ids, documents);
    assert_eq!(batches.iter().map(|batch| batch.valid_labels).collect::<Vec<_>>(), [8, 5]);
    assert_eq!(batches[0].cu_seqlens.as_deref(), Some(&[0, 3, 4, 8, 9, 12][..]));

    let (rows, batches) = stream(&ROWS, &small(Packing::Pad, false, LabelStyle::Shifted));
    let labels =
        [[12, 13, NONE, NONE], [22, 23, 24, NONE], [NONE; 4], [42, 43, 44, 45], [NONE; 4], [NONE; 4]];
    assert_eq!(columns(rows).labels, labels);
    assert_eq!(batches.iter().map(|batch| batch.valid_labels).collect::<Vec<_>>(), [5, 4]);

    let (rows, _) = stream(&ROWS, &small(Packing::Pad, false, LabelStyle::Unshifted));
    let labels = [
        [NONE, 12, 13, NONE],
        [NONE, 22, 23, 24],
        [NONE; 4],
        [NONE, 42, 43, 44],
        [45, NONE, NONE, NONE],
        [NONE; 4],
    ];
    assert_eq!(columns(rows).labels, labels);
}

/// It would be in no input and in no label: a model would never learn to end.
#[test]
fn an_eos_that_would_be_nowhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    TestData { files: vec![vec![Some(vec![1, 2, 3])]], options: WriteOptions::default() }.write(dir.path());
    let loader = |packing, labels, eos_id| {
        TokenLoader::builder(dir.path(), 4, 1).packing(packing).labels(labels).eos_id(eos_id).build()
    };
    for (packing, labels) in [
        (Packing::Pad, LabelStyle::Shifted),
        (Packing::Concat, LabelStyle::Shifted),
        (Packing::Concat, LabelStyle::Unshifted),
    ] {
        let batch = loader(packing, labels, Some(EOS_ID)).unwrap().next_batch().unwrap().unwrap();
        let all = columns(rows_of(&batch));
        assert!([all.input_ids, all.labels].concat().concat().contains(&i64::from(EOS_ID)));
    }
    let nowhere = "eos_id 7 would be nowhere";
    let error = loader(Packing::Pad, LabelStyle::Unshifted, Some(EOS_ID)).map(drop).unwrap_err();
    assert!(error.to_string().contains(nowhere), "{error}");
    // Also where it comes with a state.
    let state = loader(Packing::Pad, LabelStyle::Shifted, Some(EOS_ID)).unwrap().state().clone();
    let unshifted =
        || TokenLoader::builder(dir.path(), 4, 1).packing(Packing::Pad).labels(LabelStyle::Unshifted);
    let error = unshifted().resume_from(state.clone()).build().map(drop).unwrap_err();
    assert!(error.to_string().contains(nowhere), "{error}");
    let error = unshifted().build().unwrap().load_state(&state).unwrap_err();
    assert!(error.to_string().contains(nowhere), "{error}");
}

#[test]
fn a_data_set_shorter_than_a_sequence_is_one_short_masked_sequence() {
    for packing in [Packing::Concat, Packing::Pad] {
        let wish = Wish { seq_len: 8, ..small(packing, false, LabelStyle::Shifted) };
        let (rows, batches) = stream(&[&[11, 12, 13]], &wish);
        assert_eq!(batches.len(), 1);
        assert_eq!((batches[0].rows, batches[0].real_rows, batches[0].valid_labels), (3, 1, 2));
        let all = columns(rows);
        assert_eq!(all.input_ids, [[11, 12, 13, 9, 9, 9, 9, 9], [9; 8], [9; 8]]);
        assert_eq!(all.labels, [[12, 13, NONE, NONE, NONE, NONE, NONE, NONE], [NONE; 8], [NONE; 8]]);
        assert_eq!(all.document_ids, [[0, 0, 0, -1, -1, -1, -1, -1], [-1; 8], [-1; 8]]);
        assert_eq!(batches[0].cu_seqlens.as_deref(), Some(&[0, 3, 8, 16, 24][..]));
    }
}

#[test]
fn one_document_over_all_lanes_is_predicted_across_every_border() {
    let tokens = 4 * 16 * 6;
    let options = WriteOptions { page_bytes: 64, ..WriteOptions::default() };
    let data = TestData { files: rows_with(&[vec![Some(tokens)]]), options };
    for lanes in [1, 4, 16] {
        let wish = Wish {
            global_batch: 8,
            world_size: 3,
            lanes,
            window: 3,
            ..small(Packing::Concat, false, LabelStyle::Shifted)
        };
        check_against_the_naive_epoch(&wish, &data);
        check_conservation(&wish, &data);
        let dir = tempfile::tempdir().unwrap();
        data.write(dir.path());
        let valid: u64 = epoch(&wish, dir.path()).iter().flatten().map(|batch| batch.valid_labels).sum();
        assert_eq!(valid, tokens as u64 - 1, "all but the first are predicted, at lane borders too");
    }
}

#[test]
fn a_batch_without_any_valid_label_says_0() {
    // Rows of one token have nothing to predict; and rank 1 of 2 has nothing but padding.
    for packing in [Packing::Concat, Packing::Pad] {
        let wish = Wish { global_batch: 4, world_size: 2, ..small(packing, false, LabelStyle::Shifted) };
        let dir = tempfile::tempdir().unwrap();
        let ones = TestData { files: rows_with(&[vec![Some(1); 8]]), options: WriteOptions::default() };
        ones.write(dir.path());
        for batch in epoch(&wish, dir.path()).iter().flatten() {
            assert_eq!(batch.valid_labels, 0);
            assert!(batch.labels().iter().all(|label| label == NONE));
            assert!(batch.real_rows > 0);
        }

        let dir = tempfile::tempdir().unwrap();
        let one_row = TestData { files: rows_with(&[vec![Some(4)]]), options: WriteOptions::default() };
        one_row.write(dir.path());
        let by_rank = epoch(&wish, dir.path());
        let counts: Vec<_> =
            by_rank.iter().flatten().map(|batch| (batch.rows, batch.real_rows, batch.valid_labels)).collect();
        assert_eq!(counts, [(2, 1, 3), (2, 0, 0)]);
    }
}
