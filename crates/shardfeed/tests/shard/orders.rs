//! Which samples come, and in which order: whatever is loaded ahead, and wherever a stream is stopped.

use proptest::prelude::*;
use shardfeed::{
    CheckpointState, Dataset, Deals, PartitionStrategy, StreamingConfig, StreamingShardLoader, mix,
};

use crate::support::{Numbers, config, rest, strategies, take};

fn loader(len: usize, config: StreamingConfig) -> StreamingShardLoader<Numbers> {
    StreamingShardLoader::new(Numbers::new(len), config).unwrap()
}

fn with(strategy: &PartitionStrategy, config: StreamingConfig, seed: Option<u64>) -> StreamingConfig {
    let config = config.with_partition_strategy(strategy.clone());
    seed.into_iter().fold(config, StreamingConfig::with_shuffle_seed)
}

#[test]
fn together_workers_have_every_sample_once() {
    for len in [0, 1, 7, 100] {
        for strategy in strategies(len, 3) {
            for seed in [None, Some(7)] {
                let mut all = Vec::new();
                for rank in 0..3 {
                    let loader = loader(len, with(&strategy, config(3, rank), seed));
                    let samples = rest(&loader);
                    assert_eq!((samples.len(), samples.is_empty()), (loader.len(), loader.is_empty()));
                    all.extend(samples);
                }
                all.sort_unstable();
                assert_eq!(all, (0..len).collect::<Vec<_>>(), "{strategy:?}");
            }
        }
    }
}

#[test]
fn samples_with_the_same_key_have_the_same_worker() {
    let strategy = PartitionStrategy::HashBased { num_partitions: 16, hash_seed: 1 };
    let of = |rank| {
        let numbers = Numbers { has_keys: true, ..Numbers::new(300) };
        rest(&StreamingShardLoader::new(numbers, with(&strategy, config(3, rank), Some(4))).unwrap())
    };
    let parts = [of(0), of(1), of(2)];
    assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), 300);
    for part in parts {
        assert!(
            part.iter().all(|index| (index / 3 * 3..index / 3 * 3 + 3).all(|other| part.contains(&other)))
        );
    }
}

#[test]
fn loading_ahead_changes_nothing() {
    for strategy in strategies(200, 2) {
        let expected =
            rest(&loader(200, with(&strategy, config(2, 1), Some(3)).with_prefetch_buffer_size(0)));
        for (buffer, threads) in [(1, 1), (2, 3), (16, 1), (16, 4), (1000, 2)] {
            let config = with(&strategy, config(2, 1), Some(3));
            let config = config.with_prefetch_buffer_size(buffer).with_prefetch_threads(threads);
            assert_eq!(rest(&loader(200, config)), expected, "{buffer} {threads}");
        }
    }
}

#[test]
fn epochs_differ_and_come_again() {
    let loader = loader(50, config(2, 0).with_shuffle_seed(9));
    let first = rest(&loader);
    assert_eq!((loader.epoch(), loader.next().unwrap()), (0, None));
    loader.reset();
    let second = rest(&loader);
    assert_eq!(loader.epoch(), 1);
    assert_ne!(first, second);
    loader.set_epoch(0);
    assert_eq!(loader.next().unwrap(), Some(first[0]));
    // In the middle of an epoch: back to its beginning.
    loader.reset();
    assert_eq!((loader.epoch(), rest(&loader)), (0, first));
    loader.set_epoch(1);
    assert_eq!(rest(&loader), second);
}

#[test]
fn restored_at_every_position_the_rest_is_what_it_would_have_been() {
    for strategy in strategies(60, 3) {
        for (seed, buffer, has_keys) in
            [(None, 0, false), (Some(5), 0, false), (Some(5), 4, false), (None, 0, true), (Some(5), 4, true)]
        {
            let config = || with(&strategy, config(3, 1), seed).with_prefetch_buffer_size(buffer);
            let loader = |len: usize, config: StreamingConfig| {
                StreamingShardLoader::new(Numbers { has_keys, ..Numbers::new(len) }, config).unwrap()
            };
            let whole: Vec<Vec<usize>> = (0..2)
                .map(|epoch| {
                    let loader = loader(60, config());
                    loader.set_epoch(epoch);
                    rest(&loader)
                })
                .collect();
            for epoch in 0..2 {
                for position in 0..=whole[epoch].len() {
                    let stopped = loader(60, config());
                    stopped.set_epoch(epoch as u64);
                    take(&stopped, position);
                    let state = stopped.get_checkpoint();
                    assert_eq!((state.epoch, state.position), (epoch as u64, position));
                    assert!(state.processed_indices().eq(whole[epoch][..position].iter().copied()));
                    let stored = CheckpointState::from_json(&state.to_json()).unwrap();
                    assert_eq!(stored, state);
                    let restored = loader(60, config());
                    restored.restore_from_checkpoint(&stored).unwrap();
                    assert_eq!(rest(&restored), whole[epoch][position..], "{strategy:?} {epoch} {position}");
                    // And the epoch after it.
                    restored.reset();
                    if epoch == 0 {
                        assert_eq!(rest(&restored), whole[1]);
                    }
                }
            }
        }
    }
}

#[test]
fn indexes_are_told_from_a_stored_checkpoint_where_the_data_is_not_needed() {
    for strategy in strategies(60, 3) {
        let loader = loader(60, with(&strategy, config(3, 1), Some(5)));
        let taken: Vec<usize> = (0..7).map(|_| loader.next().unwrap().unwrap()).collect();
        let stored = CheckpointState::from_json(&loader.get_checkpoint().to_json()).unwrap();
        match stored.try_processed_indices() {
            Ok(indices) => assert_eq!(indices.collect::<Vec<_>>(), taken),
            Err(error) => {
                assert!(matches!(strategy.base(), PartitionStrategy::Stratified { .. }));
                assert!(error.to_string().contains("labels of the data set"), "{error}");
                loader.restore_from_checkpoint(stored).unwrap();
                assert_eq!(loader.get_checkpoint().processed_indices().collect::<Vec<_>>(), taken);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Workers of all speeds, dealt again and again, each stopped and restored at any time: every sample once.
    #[test]
    fn dealt_again_and_restored_every_sample_comes_once(
        len in 0_usize..120,
        base in 0_usize..5,
        seed: Option<u64>,
        turns in proptest::collection::vec((0_usize..3, 0_usize..9, 0.1_f64..10.0, any::<bool>()), 0..40),
    ) {
        let strategy = PartitionStrategy::Adaptive {
            base_strategy: Box::new(strategies(len, 3)[base].clone()),
            rebalance_threshold: 0.1,
        };
        let open = |rank| loader(len, with(&strategy, config(3, rank), seed).with_prefetch_buffer_size(3));
        let mut workers: Vec<_> = (0..3).map(open).collect();
        let lens: Vec<u64> = workers.iter().map(|worker| worker.len() as u64).collect();
        let mut deals = Deals::new(&lens, 0.1);
        let mut taken = vec![Vec::new(); 3];
        for (who, count, throughput, is_stopped) in turns {
            taken[who].extend((0..count).map_while(|_| workers[who].next().unwrap()));
            if is_stopped {
                let stored = CheckpointState::from_json(&workers[who].get_checkpoint().to_json()).unwrap();
                workers[who] = open(who);
                workers[who].restore_from_checkpoint(stored).unwrap();
            }
            deals.report(who, taken[who].len() as u64, throughput).unwrap();
            if deals.rebalance().is_some() {
                for (rank, worker) in workers.iter().enumerate() {
                    worker.adopt(0, deals.assignment(rank)).unwrap();
                    prop_assert_eq!(worker.len() as u64, deals.assignment(rank).len());
                }
            }
        }
        for (worker, taken) in workers.iter().zip(&mut taken) {
            let before = taken.len() as u64;
            taken.extend(rest(worker));
            let checkpoint = worker.get_checkpoint();
            prop_assert!(checkpoint.processed_indices().eq(taken.iter().copied()));
            prop_assert_eq!(checkpoint.processed_count(), taken.len() as u64);
            prop_assert!(before <= taken.len() as u64);
        }
        let mut all: Vec<usize> = taken.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn samples_of_others_are_counted_and_a_deal_that_forgets_what_was_taken_is_refused() {
    let strategy = PartitionStrategy::Adaptive {
        base_strategy: Box::new(PartitionStrategy::Contiguous),
        rebalance_threshold: 0.1,
    };
    let worker = loader(100, with(&strategy, config(2, 0), None));
    let mut deals = Deals::new(&[50, 50], 0.1);
    take(&worker, 10);
    deals.report(0, 10, 3.0).unwrap();
    deals.report(1, 10, 1.0).unwrap();
    assert_eq!(deals.rebalance().unwrap().shares, [60, 20]);
    worker.adopt(0, deals.assignment(0)).unwrap();
    let samples = rest(&worker);
    assert_eq!(samples, (10..50).chain(80..100).collect::<Vec<_>>());
    let stats = worker.get_stats();
    assert_eq!((stats.samples_loaded, stats.local_samples, stats.remote_samples), (70, 50, 20));
    let error = worker.adopt(0, deals.assignment(1)).unwrap_err().to_string();
    assert!(error.contains("other samples of epoch 0 than it has handed out"), "{error}");
    // A deal that comes too late is not one of the next epoch.
    worker.reset();
    let error = worker.adopt(0, deals.assignment(0)).unwrap_err().to_string();
    assert!(error.contains("is in epoch 1"), "{error}");
    assert_eq!(rest(&worker), (0..50).collect::<Vec<_>>());
    assert_eq!(worker.dataset().len(), 100);
}

/// The same samples in two stretches.
const TWICE: &str = r#""assignment":[{"origin":0,"start":0,"end":10},{"origin":0,"start":0,"end":10}]"#;

#[test]
fn every_threshold_is_restored() {
    for seed in 0..2000 {
        let strategy = PartitionStrategy::Adaptive {
            base_strategy: Box::new(PartitionStrategy::RoundRobin),
            rebalance_threshold: mix(seed) as f64 / u64::MAX as f64,
        };
        let loader = loader(10, with(&strategy, config(1, 0), None).with_prefetch_buffer_size(0));
        let stored = CheckpointState::from_json(&loader.get_checkpoint().to_json()).unwrap();
        loader.restore_from_checkpoint(stored).unwrap();
    }
}

#[test]
fn a_checkpoint_of_another_stream_is_refused_with_both_numbers() {
    let state = loader(60, config(3, 1).with_shuffle_seed(5)).get_checkpoint();
    let refused = |len: usize, config: StreamingConfig| {
        loader(len, config).restore_from_checkpoint(&state).unwrap_err().to_string()
    };
    for (message, words) in [
        (refused(60, config(3, 2).with_shuffle_seed(5)), "its rank is 1, here it is 2"),
        (refused(60, config(4, 1).with_shuffle_seed(5)), "its world size is 3, here it is 4"),
        (refused(60, config(3, 1).with_shuffle_seed(6)), "its shuffle seed is Some(5), here it is Some(6)"),
        (refused(61, config(3, 1).with_shuffle_seed(5)), "its number of samples is 60, here it is 61"),
        (
            refused(60, with(&PartitionStrategy::Contiguous, config(3, 1), Some(5))),
            "its strategy is RoundRobin, here it is Contiguous",
        ),
    ] {
        assert!(message.contains(words), "{message}");
    }
    let json = state.to_json();
    for (from, to, words) in [
        ("\"format\":1", "\"format\":2", "format 2"),
        ("\"processed\":[]", "\"processed\":[[0,5]]", "position 0 is not where"),
        ("\"processed\":[]", "\"processed\":[[5,5]]", "5..5 cannot follow"),
        ("\"processed\":[]", "\"processed\":[[5,7],[6,9]]", "6..9 cannot follow"),
        ("\"processed\":[]", "\"processed\":[[70000,70001]]", "70000 positions between"),
        (
            "\"processed\":[]",
            "\"processed\":[[18446744073709551614,18446744073709551615]]",
            "positions between",
        ),
        ("\"assignment\":null", TWICE, "0..10 of worker 0 are given twice"),
        ("{", "[", "not a checkpoint"),
    ] {
        let error = CheckpointState::from_json(&json.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let past =
        CheckpointState::from_json(&json.replace("\"processed\":[]", "\"processed\":[[5,21]]")).unwrap();
    let error = loader(60, config(3, 1).with_shuffle_seed(5)).restore_from_checkpoint(past).unwrap_err();
    assert!(error.to_string().contains("21 positions of 20"), "{error}");
}
