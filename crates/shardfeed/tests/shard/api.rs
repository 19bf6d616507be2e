//! As `API.md` has it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use shardfeed::{
    Dataset, PartitionStrategy, StreamCoordinator, StreamingConfig, StreamingShardIterator,
    StreamingShardLoader, Tensor, TensorDataset, WorkerHealth, WorkerStatus,
};

#[test]
fn the_examples_of_the_interface_run() -> Result<(), Box<dyn std::error::Error>> {
    let coordinator = Arc::new(StreamCoordinator::new(StreamingConfig::new(4, 0)?)?);
    coordinator.register_worker(0, vec![])?;

    let features = Tensor::<f32>::from_vec(vec![1.0; 1000], &[1000, 1])?;
    let labels = Tensor::<f32>::from_vec(vec![1.0; 1000], &[1000])?;
    let dataset = TensorDataset::new(features, labels);
    let config = StreamingConfig::new(4, 0)?
        .with_partition_strategy(PartitionStrategy::HashBased { num_partitions: 16, hash_seed: 42 })
        .with_prefetch_buffer_size(128)
        .with_shuffle_seed(42)
        .with_checkpointing(1000)
        .with_fault_tolerance(2)
        .with_dynamic_balancing(true);
    config.validate()?;
    let loader = StreamingShardLoader::new(dataset.clone(), config)?.with_coordinator(coordinator.clone());
    let mut count = 0;
    while let Some((features, labels)) = loader.next()? {
        assert_eq!((features.shape(), labels.shape()), (&[1][..], &[][..]));
        assert_eq!((features.as_slice(), labels.as_slice()), (&[1.0][..], &[1.0][..]));
        count += 1;
    }
    assert_eq!(count, loader.len());
    assert!((150..350).contains(&count), "{count}");
    loader.reset();
    let loader = Arc::new(loader);
    for sample in StreamingShardIterator::new(Arc::clone(&loader)) {
        let (features, _labels) = sample?;
        assert_eq!(features.len(), 1);
        count -= 1;
    }
    assert_eq!(count, 0);

    let state = loader.get_checkpoint();
    assert_eq!((state.epoch, state.position, state.shuffle_seed, state.rank), (1, loader.len(), Some(42), 0));
    assert!(state.timestamp > 1_700_000_000);
    assert_eq!(state.processed(), [(0, loader.len() as u64)]);
    assert_eq!(state.processed_indices().count(), loader.len());
    let stats = loader.get_stats();
    assert_eq!(stats.samples_loaded as usize, 2 * loader.len());
    assert_eq!((stats.local_samples, stats.remote_samples), (stats.samples_loaded, 0));
    assert_eq!(stats.prefetch_hits + stats.prefetch_misses, stats.samples_loaded);
    loader.prefetch(10)?;
    assert!(loader.next()?.is_none());
    Ok(())
}

#[test]
fn the_examples_of_the_coordinator_run() -> Result<(), Box<dyn std::error::Error>> {
    run_the_examples(StreamCoordinator::new(balanced()?)?)
}

#[cfg(feature = "etcd")]
#[test]
fn the_examples_of_the_coordinator_run_on_etcd() -> Result<(), Box<dyn std::error::Error>> {
    let etcd = crate::etcd::Etcd::start(1);
    run_the_examples(StreamCoordinator::connect(&etcd.url("job"), balanced()?)?)
}

fn balanced() -> shardfeed::Result<StreamingConfig> {
    Ok(StreamingConfig::new(4, 0)?.with_dynamic_balancing(true))
}

fn run_the_examples(coordinator: StreamCoordinator) -> Result<(), Box<dyn std::error::Error>> {
    let loader = StreamingShardLoader::new(
        TensorDataset::new(
            Tensor::<f32>::from_vec(vec![1.0; 100], &[100, 1])?,
            Tensor::<f32>::from_vec(vec![1.0; 100], &[100])?,
        ),
        StreamingConfig::new(4, 0)?,
    )?;
    loader.next()?;
    let (rank, samples, throughput, state) = (0, 500, 120.0, loader.get_checkpoint());

    let coordinator = Arc::new(coordinator);
    coordinator.register_worker(rank, vec![])?;
    coordinator.update_worker_health(rank, samples, throughput)?;
    let WorkerHealth { rank: of, status, last_heartbeat, samples_processed, average_throughput, .. } =
        coordinator.get_worker_health(rank)?.ok_or("it is known")?;
    assert_eq!((of, status, samples_processed), (0, WorkerStatus::Active, 500));
    assert!((average_throughput - 120.0).abs() < 1e-9);
    assert!(last_heartbeat.elapsed()? < Duration::from_mins(1));
    coordinator.register_checkpoint(rank, state)?;
    assert_eq!(coordinator.get_checkpoint(rank)?.ok_or("it was registered")?.position, 1);
    assert!(!coordinator.rebalance_if_needed()?);
    coordinator.update_worker_health(1, 100, 10.0)?;
    assert!(coordinator.rebalance_if_needed()?);
    assert_eq!(coordinator.get_worker_health(1)?.map(|health| health.status), Some(WorkerStatus::Slow));
    // Every status has its name.
    let _ = [
        WorkerStatus::Active,
        WorkerStatus::Idle,
        WorkerStatus::Slow,
        WorkerStatus::Failed,
        WorkerStatus::Unknown,
    ];
    Ok(())
}

#[test]
fn what_does_not_fit_together_is_refused_with_what_to_do() {
    let tensor = |rows: usize| Tensor::<f32>::from_vec(vec![0.5; rows], &[rows]).unwrap();
    let refused = |features: usize, labels: usize, strategy: PartitionStrategy| {
        let dataset = TensorDataset::new(tensor(features), tensor(labels));
        let config = StreamingConfig::new(2, 0).unwrap().with_partition_strategy(strategy);
        StreamingShardLoader::new(dataset, config).err().unwrap().to_string()
    };
    let message = refused(10, 9, PartitionStrategy::RoundRobin);
    assert!(message.contains("10 rows of features and 9 of labels"), "{message}");
    let message = refused(10, 10, PartitionStrategy::Stratified { num_classes: 2 });
    assert!(message.contains("sample 0 is no class"), "{message}");
    let vectors = Tensor::<u8>::from_vec(vec![0; 20], &[10, 2]).unwrap();
    let config = StreamingConfig::new(2, 0).unwrap();
    let config = config.with_partition_strategy(PartitionStrategy::Stratified { num_classes: 2 });
    let message =
        StreamingShardLoader::new(TensorDataset::new(tensor(10), vectors), config.clone()).err().unwrap();
    let message = message.to_string();
    assert!(message.contains("sample 0 has no label, and strata are made of labels"), "{message}");
    assert!(message.contains("give the data set labels, or choose another strategy"), "{message}");
    let message = refused(10, 10, PartitionStrategy::Stratified { num_classes: 0 });
    assert!(message.contains("num_classes is 0; say how many classes the labels have"), "{message}");
    let classes = Tensor::<u8>::from_vec((0..10).collect(), &[10]).unwrap();
    let message = StreamingShardLoader::new(TensorDataset::new(tensor(10), classes), config).err().unwrap();
    assert!(message.to_string().contains("sample 2 has label 2"), "{message}");
}

/// As many as a footer claims. None of them can be looked at.
struct Claimed(usize);

impl Dataset for Claimed {
    type Sample = usize;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _index: usize) -> shardfeed::Result<usize> {
        panic!("a sample is asked for")
    }

    fn label(&self, _index: usize) -> shardfeed::Result<Option<u64>> {
        panic!("a label is asked for")
    }

    fn key(&self, _index: usize) -> shardfeed::Result<Option<Cow<'_, [u8]>>> {
        panic!("a key is asked for")
    }
}

#[test]
fn more_samples_than_a_table_is_kept_of_are_refused_before_one_is_looked_at() {
    let make = |strategy: PartitionStrategy| {
        let config = StreamingConfig::new(2, 0).unwrap().with_partition_strategy(strategy);
        StreamingShardLoader::new(Claimed(1 << 48), config.with_prefetch_buffer_size(0))
    };
    for strategy in [
        PartitionStrategy::HashBased { num_partitions: 2, hash_seed: 1 },
        PartitionStrategy::Stratified { num_classes: 2 },
    ] {
        let message = make(strategy).err().unwrap().to_string();
        assert!(message.contains("281474976710656 samples to be hashed or stratified"), "{message}");
        assert!(message.contains("at most 4294967296") && message.contains("RoundRobin"), "{message}");
    }
    assert_eq!(make(PartitionStrategy::RoundRobin).unwrap().len(), 1 << 47);
}
