//! Every strategy: disjoint, complete, what its promise says, and the same for ever.

use std::sync::Arc;

use proptest::prelude::*;
use shardfeed_plan::{
    Classes, Deals, DealtOrder, Facts, Owners, Partition, PartitionError, PartitionStrategy, Permutation,
    Rank, SampleOrder, hash_of_index, hash_of_key, key, mix,
};

/// Samples, each of some class.
struct Samples {
    labels: Vec<u64>,
    num_classes: usize,
}

impl Samples {
    fn new(len: u64, num_classes: usize, skewed: bool) -> Self {
        let label = |row| match mix(row ^ 0x1abe1) % 100 {
            dice if skewed && dice < 95 => 0,
            dice => dice % num_classes as u64,
        };
        Self { labels: (0..len).map(label).collect(), num_classes }
    }

    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn key_of(row: u64) -> Vec<u8> {
        format!("row {}", row / 2).into_bytes()
    }

    fn facts(&self, kind: Kind, world_size: u32) -> Facts {
        match kind {
            Kind::Keyed => {
                let mut owners = Owners::new(HASH_PARTITIONS, HASH_SEED, world_size);
                (0..self.len()).for_each(|row| owners.push(Some(&Self::key_of(row))));
                Facts::Owners(Arc::new(owners))
            }
            Kind::Stratified => {
                let mut classes = Classes::new(self.num_classes);
                self.labels.iter().for_each(|&label| classes.push(Some(label)).unwrap());
                Facts::Classes(Arc::new(classes))
            }
            _ => Facts::None,
        }
    }
}

const HASH_PARTITIONS: usize = 8;
const HASH_SEED: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    RoundRobin,
    Contiguous,
    Hashed,
    Keyed,
    Ranges,
    Stratified,
    Adaptive,
}

const KINDS: [Kind; 7] = [
    Kind::RoundRobin,
    Kind::Contiguous,
    Kind::Hashed,
    Kind::Keyed,
    Kind::Ranges,
    Kind::Stratified,
    Kind::Adaptive,
];

impl Kind {
    fn strategy(self, samples: &Samples, world_size: u32) -> PartitionStrategy {
        match self {
            Self::RoundRobin => PartitionStrategy::RoundRobin,
            Self::Contiguous => PartitionStrategy::Contiguous,
            Self::Hashed | Self::Keyed => {
                PartitionStrategy::HashBased { num_partitions: HASH_PARTITIONS, hash_seed: HASH_SEED }
            }
            Self::Ranges => PartitionStrategy::RangeBased { ranges: ranges(samples.len(), world_size) },
            Self::Stratified => PartitionStrategy::Stratified { num_classes: samples.num_classes },
            Self::Adaptive => PartitionStrategy::Adaptive {
                base_strategy: Box::new(PartitionStrategy::Contiguous),
                rebalance_threshold: 0.2,
            },
        }
    }
}

/// Uneven ranges, the first worker's last.
fn ranges(len: u64, world_size: u32) -> Vec<(usize, usize)> {
    let cut = |worker: u32| (len * u64::from(worker).pow(2) / u64::from(world_size).pow(2)) as usize;
    let mut ranges: Vec<_> = (0..world_size).map(|worker| (cut(worker), cut(worker + 1))).collect();
    ranges.rotate_left(1);
    ranges
}

fn orders(kind: Kind, samples: &Samples, world_size: u32, seed: Option<u64>, epoch: u64) -> Vec<Vec<u64>> {
    let strategy = kind.strategy(samples, world_size);
    let facts = samples.facts(kind, world_size);
    let partition = Partition::new(&strategy, samples.len(), world_size, seed, facts).unwrap();
    (0..world_size)
        .map(|index| {
            let order = partition.order(Rank::new(index, world_size).unwrap(), epoch);
            assert_eq!((order.index(order.len()), order.index(u64::MAX)), (None, None));
            let all: Vec<u64> = order.iter().collect();
            assert_eq!(all.len() as u64, order.len());
            let from = all.len() / 3;
            let mut rest = vec![0; all.len() - from];
            order.indexes(from as u64, &mut rest);
            assert_eq!(rest, all[from..], "asked for several at once");
            all
        })
        .collect()
}

/// The promises, said once more, with arrays of everything.
fn naive(kind: Kind, samples: &Samples, world_size: u32, seed: Option<u64>, epoch: u64) -> Vec<Vec<u64>> {
    let (len, workers) = (samples.len(), u64::from(world_size));
    let shuffled = |len: u64, key: u64| -> Vec<u64> {
        let shuffle = Permutation::new(len, key);
        (0..len).map(|place| shuffle.at(place)).collect()
    };
    let all = seed.map_or((0..len).collect(), |seed| shuffled(len, key(&[seed, epoch, 16])));
    let mut parts = vec![Vec::new(); world_size as usize];
    let mut seen = vec![0; samples.num_classes];
    for (place, &row) in (0..).zip(&all) {
        let hashed = |hash: u64| hash % (HASH_PARTITIONS as u64).max(workers) % workers;
        let worker = match kind {
            Kind::RoundRobin => place % workers,
            Kind::Contiguous | Kind::Adaptive => (0..workers)
                .find(|w| Rank::new(*w as u32, world_size).unwrap().share(len).contains(&place))
                .unwrap(),
            Kind::Hashed => hashed(hash_of_index(row, HASH_SEED)),
            Kind::Keyed => hashed(hash_of_key(&Samples::key_of(row), HASH_SEED)),
            Kind::Ranges => break,
            Kind::Stratified => {
                let label = samples.labels[row as usize];
                let of_classes_before = samples.labels.iter().filter(|&&other| other < label).count() as u64;
                seen[label as usize] += 1;
                (of_classes_before + seen[label as usize] - 1) % workers
            }
        };
        parts[worker as usize].push(row);
    }
    if kind == Kind::Ranges {
        for (worker, (part, (start, end))) in (0..).zip(parts.iter_mut().zip(ranges(len, world_size))) {
            let len = (end - start) as u64;
            let within =
                seed.map_or((0..len).collect(), |seed| shuffled(len, key(&[seed, epoch, 17, worker])));
            part.extend(within.iter().map(|row| start as u64 + row));
        }
    }
    parts
}

fn assert_disjoint_and_complete(parts: &[Vec<u64>], len: u64) {
    let mut seen = vec![false; len as usize];
    for &row in parts.iter().flatten() {
        assert!(!std::mem::replace(&mut seen[row as usize], true), "{row} twice");
    }
    assert!(seen.iter().all(|&seen| seen));
}

fn assert_fair(kind: Kind, samples: &Samples, parts: &[Vec<u64>]) {
    let sizes = parts.iter().map(Vec::len);
    if matches!(kind, Kind::RoundRobin | Kind::Contiguous | Kind::Stratified) {
        assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{kind:?}: {parts:?}");
    }
    if kind == Kind::Stratified {
        for class in 0..samples.num_classes as u64 {
            let of_class =
                |rows: &[u64]| rows.iter().filter(|&&row| samples.labels[row as usize] == class).count();
            let exact =
                samples.labels.iter().filter(|&&label| label == class).count() as f64 / parts.len() as f64;
            for part in parts {
                assert!((of_class(part) as f64 - exact).abs() < 1.0, "class {class}: {parts:?}");
            }
        }
    }
}

#[test]
fn all_lengths_and_world_sizes_exhaustively() {
    for len in 0..=200 {
        for (num_classes, skewed) in [(3, false), (11, true)] {
            let samples = Samples::new(len, num_classes, skewed);
            for world_size in 1..=17 {
                for kind in KINDS {
                    if skewed && kind != Kind::Stratified {
                        continue;
                    }
                    for seed in [None, Some(len)] {
                        let parts = orders(kind, &samples, world_size, seed, 3);
                        assert_disjoint_and_complete(&parts, len);
                        assert_fair(kind, &samples, &parts);
                        if len % 9 == 0 || len < 20 {
                            assert_eq!(
                                parts,
                                naive(kind, &samples, world_size, seed, 3),
                                "{kind:?} {len} {world_size}"
                            );
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn large_ones_too(
        len in 0_u64..60_000, world_size in 1_u32..200, seed: Option<u64>, epoch in 0_u64..5,
        kind in proptest::sample::select(&KINDS[..]), num_classes in 1_usize..300, skewed: bool,
    ) {
        let samples = Samples::new(len, num_classes, skewed);
        let parts = orders(kind, &samples, world_size, seed, epoch);
        assert_disjoint_and_complete(&parts, len);
        assert_fair(kind, &samples, &parts);
        prop_assert_eq!(&parts, &orders(kind, &samples, world_size, seed, epoch));
    }

    #[test]
    fn very_large_ones_are_asked_one_by_one(
        len in 1_u64 << 32..1 << 62, world_size in 1_u32..5000, seed: u64, positions: [u64; 8],
    ) {
        for strategy in [PartitionStrategy::RoundRobin, PartitionStrategy::Contiguous] {
            let partition = Partition::new(&strategy, len, world_size, Some(seed), Facts::None).unwrap();
            let shuffle = Permutation::new(len, key(&[seed, 0, 16]));
            let mut total = 0;
            for index in 0..world_size {
                let rank = Rank::new(index, world_size).unwrap();
                let order = partition.order(rank, 0);
                total += order.len();
                let position = positions[index as usize % 8] % order.len();
                let place = shuffle.place_of(order.index(position).unwrap());
                let expected = match strategy {
                    PartitionStrategy::RoundRobin => position * u64::from(world_size) + u64::from(index),
                    _ => rank.share(len).start + position,
                };
                prop_assert_eq!(place, expected);
            }
            prop_assert_eq!(total, len);
        }
    }
}

#[test]
fn a_view_of_a_billion_samples_takes_no_more_than_its_own_bytes() {
    // Where there are so many, a shuffle has no table: nothing lies elsewhere but for what is counted here.
    assert!(size_of::<SampleOrder>() + size_of::<Partition>() < 1024);
}

/// Made by another program, from the words of `docs/formats.md`.
#[test]
fn golden_values_of_version_1() {
    let samples = Samples { labels: (0..20).map(|i| i * i % 7 % 3).collect(), num_classes: 3 };
    let given = PartitionStrategy::RangeBased { ranges: vec![(12, 20), (0, 5), (5, 12)] };
    let parts = |strategy: &PartitionStrategy, facts: Facts, seed| {
        let partition = Partition::new(strategy, 20, 3, seed, facts).unwrap();
        (0..3).map(|index| partition.order(Rank::new(index, 3).unwrap(), 1).iter().collect()).collect()
    };
    let of = |kind: Kind, seed| -> Vec<Vec<u64>> {
        parts(&kind.strategy(&samples, 3), samples.facts(kind, 3), seed)
    };
    assert_eq!(
        of(Kind::RoundRobin, Some(42)),
        [&[12, 2, 19, 14, 13, 11, 15][..], &[5, 10, 3, 4, 9, 8, 18], &[0, 16, 7, 6, 17, 1]]
    );
    assert_eq!(
        of(Kind::Contiguous, Some(42)),
        [&[12, 5, 0, 2, 10, 16, 19][..], &[3, 7, 14, 4, 6, 13, 9], &[17, 11, 8, 1, 15, 18]]
    );
    assert_eq!(
        of(Kind::Hashed, None),
        [&[5, 7, 8, 10, 14][..], &[2, 4, 11, 12, 18, 19], &[0, 1, 3, 6, 9, 13, 15, 16, 17]]
    );
    assert_eq!(
        of(Kind::Hashed, Some(42)),
        [&[5, 10, 7, 14, 8][..], &[12, 2, 19, 4, 11, 18], &[0, 16, 3, 6, 13, 9, 17, 1, 15]]
    );
    assert_eq!(
        of(Kind::Stratified, None),
        [&[0, 1, 4, 6, 12, 16, 17][..], &[2, 7, 8, 10, 13, 18, 19], &[3, 5, 9, 11, 14, 15]]
    );
    assert_eq!(
        of(Kind::Stratified, Some(42)),
        [&[12, 0, 16, 3, 13, 11, 1][..], &[5, 19, 7, 4, 9, 15, 18], &[2, 10, 14, 6, 17, 8]]
    );
    assert_eq!(
        of(Kind::Keyed, None),
        [&[2, 3, 8, 9][..], &[0, 1, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19], &[6, 7, 10, 11]]
    );
    assert_eq!(
        of(Kind::Keyed, Some(42)),
        [&[2, 3, 9, 8][..], &[12, 5, 0, 16, 19, 14, 4, 13, 17, 1, 15, 18], &[10, 7, 6, 11]]
    );
    assert_eq!(
        of(Kind::Adaptive, Some(42)),
        [&[12, 5, 0, 2, 10, 16, 19][..], &[3, 7, 14, 4, 6, 13, 9], &[17, 11, 8, 1, 15, 18]]
    );
    let ranges: Vec<Vec<u64>> = parts(&given, Facts::None, Some(42));
    assert_eq!(ranges, [&[17, 16, 13, 18, 19, 12, 15, 14][..], &[1, 0, 2, 4, 3], &[7, 6, 11, 5, 10, 9, 8]]);
}

#[test]
fn golden_values_of_samples_that_were_dealt_again() {
    // Twenty samples, seven, seven and six; the second worker is four times as fast.
    let mut deals = Deals::new(&[7, 7, 6], 0.1);
    deals.report(0, 1, 1.0).unwrap();
    deals.report(1, 4, 4.0).unwrap();
    deals.report(2, 1, 1.0).unwrap();
    deals.rebalance().unwrap();
    let strategy = PartitionStrategy::Adaptive {
        base_strategy: Box::new(PartitionStrategy::RoundRobin),
        rebalance_threshold: 0.1,
    };
    let partition = Partition::new(&strategy, 20, 3, Some(42), Facts::None).unwrap();
    let dealt = (0..3).map(|worker| {
        let order = DealtOrder::new(&partition, 1, deals.assignment(worker).clone()).unwrap();
        (0..).map_while(|position| order.index(position).map(|(index, _)| index)).collect()
    });
    let dealt: Vec<Vec<u64>> = dealt.collect();
    assert_eq!(dealt, [&[12, 2, 19][..], &[5, 10, 3, 4, 9, 8, 18, 6, 17, 1, 14, 13, 11, 15], &[0, 16, 7]]);
    let mut all = dealt.concat();
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<u64>>());
    let replayed = Deals::replay(&[7, 7, 6], 0.1, deals.made()).unwrap();
    assert!((0..3).all(|worker| replayed.assignment(worker) == deals.assignment(worker)));
}

#[test]
fn lens_are_those_of_the_orders() {
    for kind in KINDS {
        for len in [0, 1, 2, 7, 50, 333] {
            for world_size in [1, 2, 3, 8, 17] {
                let samples = Samples::new(len, 4, len % 2 == 0);
                let (strategy, facts) =
                    (kind.strategy(&samples, world_size), samples.facts(kind, world_size));
                let partition = Partition::new(&strategy, samples.len(), world_size, Some(5), facts).unwrap();
                let ranks = (0..world_size).map(|rank| Rank::new(rank, world_size).unwrap());
                let of_orders: Vec<u64> = ranks.map(|rank| partition.order(rank, 3).len()).collect();
                assert_eq!(partition.lens(), of_orders, "{kind:?}, {len} samples, {world_size} workers");
            }
        }
    }
}

#[test]
fn epochs_differ_and_keys_stay_together() {
    let samples = Samples::new(1000, 4, false);
    for kind in KINDS {
        let (first, second) = (orders(kind, &samples, 4, Some(1), 0), orders(kind, &samples, 4, Some(1), 1));
        assert_ne!(first, second, "{kind:?}");
        let still = (orders(kind, &samples, 4, None, 0), orders(kind, &samples, 4, None, 1));
        assert_eq!(still.0, still.1, "{kind:?}");
    }
    for part in orders(Kind::Keyed, &samples, 4, Some(1), 0) {
        // Two rows share each key.
        assert!(part.iter().all(|row| part.contains(&(row ^ 1))));
    }
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_do() {
    let refused = |strategy: PartitionStrategy| {
        Partition::new(&strategy, 10, 2, None, Facts::None).unwrap_err().to_string()
    };
    let adaptive = |base, rebalance_threshold| PartitionStrategy::Adaptive {
        base_strategy: Box::new(base),
        rebalance_threshold,
    };
    for (strategy, words) in [
        (PartitionStrategy::HashBased { num_partitions: 0, hash_seed: 1 }, "num_partitions is 0"),
        (PartitionStrategy::Stratified { num_classes: 0 }, "num_classes is 0"),
        (PartitionStrategy::Stratified { num_classes: usize::MAX }, "at most 16777216"),
        (
            PartitionStrategy::Stratified { num_classes: 3 },
            "sample 0 has no label, and strata are made of labels; give the data set labels, or choose another strategy",
        ),
        (adaptive(PartitionStrategy::RoundRobin, -0.1), "-0.1"),
        (adaptive(PartitionStrategy::RoundRobin, f64::NAN), "NaN"),
        (adaptive(adaptive(PartitionStrategy::RoundRobin, 0.1), 0.1), "adaptive itself"),
        (adaptive(PartitionStrategy::RangeBased { ranges: vec![(0, 10)] }, 0.1), "1 ranges for 2 workers"),
        (PartitionStrategy::RangeBased { ranges: vec![(0, 10), (9, 3)] }, "worker 1 is reversed: 9..3"),
    ] {
        let message = refused(strategy);
        assert!(message.contains(words), "{message}");
    }
    let mut classes = Classes::new(3);
    classes.push(Some(2)).unwrap();
    assert_eq!(classes.push(Some(3)), Err(PartitionError::Label { row: 1, label: 3, num_classes: 3 }));
    let message = classes.push(Some(3)).unwrap_err().to_string();
    assert!(message.contains("sample 1 has label 3") && message.contains("0 to 2"), "{message}");
    assert_eq!(classes.push(None), Err(PartitionError::NoLabel { row: 1 }));
    let message = Classes::new(0).push(Some(3)).unwrap_err().to_string();
    assert!(message.contains("num_classes is 0; say how many"), "{message}");
}

#[test]
fn owners_and_classes_of_another_division_are_refused_with_both_numbers() {
    let hashed = |num_partitions, hash_seed| PartitionStrategy::HashBased { num_partitions, hash_seed };
    let owners = |num_partitions, hash_seed, world_size| {
        let mut owners = Owners::new(num_partitions, hash_seed, world_size);
        (0..10).for_each(|_| owners.push(None));
        Facts::Owners(Arc::new(owners))
    };
    let classes = || {
        let mut classes = Classes::new(4);
        (0..10).for_each(|row| classes.push(Some(row % 2)).unwrap());
        Facts::Classes(Arc::new(classes))
    };
    let stratified = |num_classes| PartitionStrategy::Stratified { num_classes };
    let refused = |strategy: &PartitionStrategy, len, facts| {
        Partition::new(strategy, len, 2, None, facts).map(|_| ()).unwrap_err().to_string()
    };
    for (message, words) in [
        // Samples of workers 2 and 3 would be nobody's.
        (refused(&hashed(8, 1), 10, owners(8, 1, 4)), "their world size is 4, here it is 2"),
        (refused(&hashed(8, 1), 10, owners(6, 1, 2)), "their number of partitions is 6, here it is 8"),
        (refused(&hashed(8, 1), 10, owners(8, 3, 2)), "their hash seed is 3, here it is 1"),
        (refused(&hashed(8, 1), 11, owners(8, 1, 2)), "their number of samples is 10, here it is 11"),
        (refused(&stratified(3), 10, classes()), "their number of classes is 4, here it is 3"),
        (refused(&stratified(4), 9, classes()), "their number of samples is 10, here it is 9"),
    ] {
        assert!(message.contains(words), "{message}");
    }
    assert!(Partition::new(&hashed(8, 1), 10, 2, None, owners(8, 1, 2)).is_ok());
    assert!(Partition::new(&stratified(4), 10, 2, None, classes()).is_ok());
}

#[test]
fn more_samples_than_a_table_is_kept_of_are_refused_where_there_is_one() {
    let new = |strategy: &PartitionStrategy, len| Partition::new(strategy, len, 2, Some(1), Facts::None);
    let hashed = PartitionStrategy::HashBased { num_partitions: 8, hash_seed: 1 };
    let adaptive =
        PartitionStrategy::Adaptive { base_strategy: Box::new(hashed.clone()), rebalance_threshold: 0.1 };
    for strategy in [hashed, adaptive, PartitionStrategy::Stratified { num_classes: 2 }] {
        let message = new(&strategy, 1 << 48).unwrap_err().to_string();
        assert!(
            message.contains("281474976710656 samples") && message.contains("at most 4294967296"),
            "{message}"
        );
        assert!(message.contains("RoundRobin, Contiguous or RangeBased"), "{message}");
        assert_eq!(strategy.validate_len(1 << 32), Ok(()));
        let too_many = PartitionError::TooManySamples { len: (1 << 32) + 1 };
        assert_eq!(strategy.validate_len((1 << 32) + 1), Err(too_many));
    }
    let len = 1_u64 << 48;
    let ranges = PartitionStrategy::RangeBased { ranges: vec![(0, 7), (7, len as usize)] };
    for strategy in [PartitionStrategy::RoundRobin, PartitionStrategy::Contiguous, ranges] {
        let last = new(&strategy, len).unwrap().order(Rank::new(1, 2).unwrap(), 0);
        assert!(last.index(last.len() - 1).is_some_and(|index| index < len));
    }
}
