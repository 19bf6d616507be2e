//! What a worker's view of a billion samples takes.

use shardfeed::{Dataset, PartitionStrategy, Result, StreamingConfig, StreamingShardLoader};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

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
