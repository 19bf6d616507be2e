//! What a worker's view of a billion samples takes, and what a checkpoint does that somebody made by hand.

use std::sync::{Mutex, PoisonError};

use shardfeed::{CheckpointState, Dataset, PartitionStrategy, Result, StreamingConfig, StreamingShardLoader};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Memory is counted for one test at a time.
static COUNTS: Mutex<()> = Mutex::new(());

struct Indexes(usize);

impl Dataset for Indexes {
    type Sample = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<usize> {
        Ok(index)
    }
}

#[test]
fn a_view_of_a_billion_samples_takes_kilobytes() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let _profiler = dhat::Profiler::builder().testing().build();
    let cut = |worker: usize| 1_000_000 * worker;
    let ranges = (0..1000).map(|worker| (cut(worker), cut(worker + 1))).collect();
    for strategy in [
        PartitionStrategy::RoundRobin,
        PartitionStrategy::Contiguous,
        PartitionStrategy::RangeBased { ranges },
    ] {
        let config = StreamingConfig::new(1000, 500).unwrap().with_partition_strategy(strategy.clone());
        let config = config.with_shuffle_seed(7).with_prefetch_buffer_size(0);
        let before = dhat::HeapStats::get();
        let loader = StreamingShardLoader::new(Indexes(1_000_000_000), config).unwrap();
        for _ in 0..1000 {
            loader.next().unwrap().unwrap();
        }
        let taken = dhat::HeapStats::get().curr_bytes - before.curr_bytes;
        assert!(taken < 40 << 10, "{taken} bytes for {strategy:?}");
        assert_eq!(loader.len(), 1_000_000);
    }
}

#[test]
fn a_checkpoint_made_by_hand_takes_as_much_as_it_is_long() {
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let config = |strategy| StreamingConfig::new(4, 1).unwrap().with_partition_strategy(strategy);
    let adaptive = PartitionStrategy::Adaptive {
        base_strategy: Box::new(PartitionStrategy::RoundRobin),
        rebalance_threshold: 0.1,
    };
    let hashed = PartitionStrategy::HashBased { num_partitions: 4, hash_seed: 1 };
    for (strategy, seed) in [
        (PartitionStrategy::RoundRobin, None),
        (PartitionStrategy::Contiguous, Some(3)),
        (adaptive, None),
        (hashed, Some(3)),
    ] {
        let config = config(strategy.clone()).with_prefetch_buffer_size(0);
        let config = seed.map_or(config.clone(), |seed| config.with_shuffle_seed(seed));
        let loader = StreamingShardLoader::new(Indexes(1000), config).unwrap();
        loader.next().unwrap();
        let json = loader.get_checkpoint().to_json();
        let made_up = json.replace("\"world_size\":4", "\"world_size\":4294967295");
        let dealt = made_up
            .replace("\"assignment\":null", "\"assignment\":[{\"origin\":4294967294,\"start\":0,\"end\":1}]");
        assert!(made_up != json && made_up != dealt, "{json}");
        let as_many_as_can_be = |json: &str| {
            json.replace("\"samples\":1000", "\"samples\":18446744073709551615")
                .replace("\"end\":1}", "\"end\":4294967296}")
        };
        // For one worker that has all of very many, which somebody could look at in seconds.
        let alone = json.replace("\"world_size\":4", "\"world_size\":1").replace("\"rank\":1", "\"rank\":0");
        let alone = alone.replace("\"samples\":1000", "\"samples\":268435456");
        for json in [as_many_as_can_be(&made_up), as_many_as_can_be(&dealt), made_up, dealt, alone] {
            let _profiler = dhat::Profiler::builder().testing().build();
            let state = CheckpointState::from_json(&json).unwrap();
            let indices = state.try_processed_indices().map(|indices| indices.take(3).count());
            let taken = dhat::HeapStats::get().max_bytes;
            assert!(taken < 40 << 10, "{taken} bytes for {strategy:?}");
            if let Ok(count) = indices {
                assert!(count <= 1);
            }
        }
    }
}
