//! What a plan says that ranks read is what they read when every step of every rank is walked.

mod naive;

use std::collections::BTreeSet;

use naive::{Epoch, among_ranks};
use proptest::prelude::*;
use shardfeed_plan::{
    Basis, DataFile, EpochPlan, IdType, Manifest, Packing, PieceCounts, PlanError, RankLoad, RowGroup,
    StreamSettings, Tail, TokenColumn, fisher_yates, key,
};

/// A row group of this many units and bytes.
type Group = (u64, u64);

fn manifest(groups: &[Group], settings: &StreamSettings) -> Manifest {
    let (units, pieces) = match settings.packing {
        Packing::Concat => (1, vec![]),
        // Rows of two tokens, of which each is a sequence.
        Packing::Pad => {
            let counts = groups.iter().map(|group| group.0).collect();
            (2, vec![PieceCounts { seq_len: settings.seq_len, counts }])
        }
    };
    let column =
        TokenColumn { name: "input_ids".into(), ids: IdType::I32, present_level: 3, nullable_items: true };
    let file = DataFile { name: "a".into(), size: 1 << 20, modified_ns: 0, column, pieces };
    let groups = groups.iter().map(|&(size, bytes)| RowGroup {
        file: 0,
        number: 0,
        rows: size,
        tokens: size * units,
        documents: size,
        chunk_start: 4,
        chunk_len: bytes,
        codec: 1,
    });
    Manifest::new(vec![(file, groups.collect())]).unwrap()
}

/// Walks every step of every rank and writes down all that is read.
fn walk(
    groups: &[Group],
    settings: &StreamSettings,
    global_batch: u32,
    tail: Tail,
    world_size: u32,
) -> Vec<RankLoad> {
    let sizes: Vec<u64> = groups.iter().map(|group| group.0).collect();
    let epoch = Epoch::new(&sizes, settings, 3);
    let block = |position: u64| {
        let lane = epoch.lane_of[position as usize];
        let turn = epoch.lane_of.iter().position(|&other| other == lane).unwrap();
        let of_lane = epoch.order.iter().zip(&epoch.lane_of).filter(|(_, other)| **other == lane);
        let start = *of_lane.map(|(sequence, _)| sequence).min().unwrap();
        let index = epoch.order[position as usize] - start;
        if !settings.shuffle {
            return (lane, index / StreamSettings::auto_window(settings.seq_len) as usize + 1);
        }
        let (window, lanes) = (settings.window as usize, settings.lanes as usize);
        let first = turn * window / lanes;
        (lane, index.checked_sub(first).map_or(0, |after| after / window + 1))
    };
    let blocks: Vec<(usize, usize)> = epoch.positions().map(block).collect();
    let bytes_of_unit = |&(group, unit): &(u32, u64)| {
        let (size, bytes) = groups[group as usize];
        bytes * (unit + 1) / size - bytes * unit / size
    };
    let steps = epoch.steps(0, &[], global_batch, tail);
    let whole_steps = epoch.order.len() / global_batch as usize;
    let rank_load = |rank: usize| {
        let mut load = RankLoad::default();
        let mut lanes = BTreeSet::new();
        let mut read = BTreeSet::new();
        for (number, step) in steps.iter().enumerate() {
            for &position in &among_ranks(step, world_size)[rank] {
                load.sequences += 1;
                read.insert(blocks[position as usize]);
                if number < whole_steps || whole_steps == 0 {
                    lanes.insert(epoch.lane_of[position as usize]);
                }
            }
        }
        let mut row_groups = BTreeSet::new();
        for (position, block) in epoch.positions().zip(&blocks).filter(|(_, block)| read.contains(block)) {
            load.sequences_read += 1;
            load.bytes += epoch.units(position).iter().map(bytes_of_unit).sum::<u64>();
            row_groups.extend(epoch.units(position).iter().map(|unit| (block.0, unit.0)));
        }
        load.lanes = lanes.len() as u64;
        load.blocks = read.len() as u64;
        load.row_groups = row_groups.len() as u64;
        load
    };
    (0..world_size as usize).map(rank_load).collect()
}

prop_compose! {
    fn settings()(
        seq_len in 2_u32..9, is_pad: bool, eos: bool, seed in 0_u64..5, shuffle in prop::bool::weighted(0.9),
        lanes in 1_u32..24, window in 1_u32..9,
    ) -> StreamSettings {
        let packing = if is_pad { Packing::Pad } else { Packing::Concat };
        let eos_id = (eos && is_pad).then_some(2);
        let (lanes, window) = if shuffle { (lanes, window) } else { (1, 1) };
        StreamSettings { seq_len, packing, eos_id, seed, shuffle, lanes, window }
    }
}

fn tails() -> impl Strategy<Value = Tail> {
    prop_oneof![Just(Tail::Pad), Just(Tail::Drop), Just(Tail::Wrap)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_counts_what_ranks_read(
        groups in prop::collection::vec((0_u64..70, 0_u64..2000), 1..12),
        mut settings in settings(),
        global_batch in 1_u32..25,
        is_lane_of_one_rank: bool,
        tail in tails(),
        world in 0_u32..1000,
    ) {
        if is_lane_of_one_rank && settings.shuffle {
            settings.lanes = settings.lanes.div_ceil(8) * global_batch;
        }
        let world_size = 1 + world % global_batch;
        let manifest = manifest(&groups, &settings);
        let plan = match EpochPlan::new(&manifest, &settings, 3, global_batch, tail) {
            Err(PlanError::Empty) => return Ok(()),
            Err(PlanError::Tail { sequences, .. }) => {
                prop_assert!(tail == Tail::Drop && sequences < u64::from(global_batch));
                return Ok(());
            }
            plan => plan.unwrap(),
        };
        let report = plan.report(world_size).unwrap();
        let walked = walk(&groups, &settings, global_batch, tail, world_size);
        prop_assert_eq!(&report.ranks, &walked);
        prop_assert_eq!(report.basis, Basis::Exact);
        let bytes: u64 = groups.iter().filter(|group| group.0 > 0).map(|group| group.1).sum();
        prop_assert_eq!(plan.bytes(), bytes);
        let read: u64 = walked.iter().map(|rank| rank.bytes).sum();
        if bytes > 0 {
            prop_assert!((report.amplification - read as f64 / bytes as f64).abs() < 1e-12);
        }
        // Whoever delivers something of a lane in whole steps is one of its ranks.
        let lanes: usize =
            (0..settings.lanes).map(|lane| plan.ranks_of_lane(lane, world_size).len()).sum();
        if plan.tail_sequences() < plan.order().sequences() {
            prop_assert_eq!(lanes as u64, walked.iter().map(|rank| rank.lanes).sum::<u64>());
        }
    }

    #[test]
    fn shuffle_quality_is_what_its_definition_says(
        sequences_of_groups in prop::collection::vec(1_u64..40, 2..30),
        seed in 0_u64..1000,
        lanes in 1_u32..24,
        window in 1_u32..9,
        global_batch in 1_u32..25,
    ) {
        // As many as fill whole steps, so that no position is left out.
        let mut sizes = sequences_of_groups;
        let rest = sizes.iter().sum::<u64>() % u64::from(global_batch);
        sizes[0] += (u64::from(global_batch) - rest) % u64::from(global_batch);
        let settings = StreamSettings {
            lanes, window, ..StreamSettings::auto(2, Packing::Pad, None, seed, global_batch)
        };
        let groups: Vec<Group> = sizes.iter().map(|&size| (size, 1)).collect();
        let manifest = manifest(&groups, &settings);
        let plan = EpochPlan::new(&manifest, &settings, 0, global_batch, Tail::Pad).unwrap();
        let quality = plan.quality().unwrap();
        let naive = naive_quality(&sizes, &settings, global_batch);
        prop_assert_eq!(quality.steps_measured, quality.whole_steps);
        prop_assert!((quality.distinct_row_groups - naive.0).abs() < 1e-9);
        prop_assert!((quality.correlation - naive.2).abs() < 1e-9, "{} {}", quality.correlation, naive.2);
        if quality.whole_steps > 1 {
            prop_assert!((quality.variance_ratio - naive.1).abs() < 1e-6, "{} {}", quality.variance_ratio, naive.1);
        }
    }
}

/// Distinct row groups a batch, variance ratio and rank correlation with file order.
fn naive_quality(sizes: &[u64], settings: &StreamSettings, global_batch: u32) -> (f64, f64, f64) {
    let epoch = Epoch::new(sizes, settings, 0);
    let units: Vec<naive::Unit> = epoch.positions().map(|position| epoch.units(position)[0]).collect();
    let (all, batch_len) = (units.len() as f64, f64::from(global_batch));
    let share = |group: usize| sizes[group] as f64 / all;
    let (mut distinct, mut variance) = (0, 0.0);
    for batch in units.chunks(global_batch as usize) {
        for group in 0..sizes.len() {
            let n = batch.iter().filter(|unit| unit.0 as usize == group).count();
            distinct += usize::from(n > 0);
            variance += (n as f64 / batch_len - share(group)).powi(2);
        }
    }
    let steps = all / batch_len;
    let at_random = (0..sizes.len()).map(|group| share(group) * (1.0 - share(group))).sum::<f64>();
    let at_random = at_random / batch_len * (all - batch_len) / (all - 1.0);
    let mut in_file_order: Vec<usize> = (0..units.len()).collect();
    in_file_order.sort_by_key(|&position| units[position]);
    let squares: f64 = in_file_order
        .iter()
        .enumerate()
        .map(|(rank, &position)| (rank as f64 - position as f64).powi(2))
        .sum();
    let correlation = 1.0 - 6.0 * squares / (all * (all * all - 1.0));
    (distinct as f64 / steps, variance / steps / at_random, correlation.abs())
}

/// Draws batches at random from row groups of these sizes and counts the row groups of each.
#[test]
fn distinct_row_groups_at_random_are_those_of_random_batches() {
    for (sizes, global_batch) in [(vec![50; 20], 10_u32), (vec![1; 500], 64), ((1..60).collect(), 40)] {
        let groups: Vec<Group> = sizes.iter().map(|&size| (size, 1)).collect();
        let settings = StreamSettings::auto(2, Packing::Pad, None, 7, global_batch);
        let manifest = manifest(&groups, &settings);
        let plan = EpochPlan::new(&manifest, &settings, 0, global_batch, Tail::Pad).unwrap();
        let group_of: Vec<usize> =
            sizes.iter().enumerate().flat_map(|(group, &size)| (0..size).map(move |_| group)).collect();
        let draws = 400;
        let mut distinct = 0;
        for seed in 0..draws {
            let order = fisher_yates(group_of.len() as u32, key(&[seed]));
            let batch = &order[..global_batch as usize];
            distinct +=
                batch.iter().map(|&sequence| group_of[sequence as usize]).collect::<BTreeSet<_>>().len();
        }
        let expected = distinct as f64 / draws as f64;
        let given = plan.quality().unwrap().distinct_row_groups_at_random;
        assert!((given / expected - 1.0).abs() < 0.02, "{given} {expected}");
    }
}

#[test]
fn what_cannot_be_planned_says_why() {
    let settings = StreamSettings::auto(2, Packing::Concat, None, 7, 8);
    let data = manifest(&[(50, 100), (3, 7)], &settings);
    let plan = |settings, global_batch, tail| {
        EpochPlan::new(&data, settings, 0, global_batch, tail).map(|plan| plan.steps())
    };
    let message = |error: Result<u64, PlanError>| error.unwrap_err().to_string();
    assert!(message(plan(&settings, 0, Tail::Pad)).contains("global batch is 0"));
    assert!(message(plan(&settings, u32::MAX, Tail::Pad)).contains("sequences a step"));
    assert!(message(plan(&settings, 8, Tail::Error)).contains("27 sequences and a step takes 8"));
    assert!(message(plan(&settings, 28, Tail::Drop)).contains("tail \"drop\""));
    let pad = StreamSettings { packing: Packing::Pad, ..settings.clone() };
    assert!(message(plan(&pad, 8, Tail::Pad)).contains("seq_len 2"));
    assert!(message(plan(&StreamSettings { lanes: 0, ..settings.clone() }, 8, Tail::Pad)).contains("lanes"));
    let empty = manifest(&[(0, 9)], &settings);
    assert_eq!(EpochPlan::new(&empty, &settings, 0, 8, Tail::Pad).err(), Some(PlanError::Empty));

    let plan = EpochPlan::new(&data, &settings, 0, 8, Tail::Pad).unwrap();
    assert_eq!((plan.steps(), plan.tail_sequences(), plan.report(8).unwrap().ranks.len()), (4, 3, 8));
    let message = |world_size| plan.report(world_size).unwrap_err().to_string();
    assert!(message(0).contains("world size is 0"));
    assert!(message(9).contains("at most 8 ranks"), "{}", message(9));
}
