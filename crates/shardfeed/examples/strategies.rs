//! The same samples divided by every strategy, and how many of each class each worker has.
//!
//! `cargo run -p shardfeed --example strategies`

use std::collections::BTreeSet;

use shardfeed::{PartitionStrategy, StreamingConfig, StreamingShardLoader, Tensor, TensorDataset};

const SAMPLES: usize = 1000;
const WORKERS: usize = 3;
const CLASSES: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Sorted by class, and most of them of the first: what makes dividing hard.
    let class_of = |index: usize| i64::from(index >= 900) + i64::from(index >= 990);
    let features = Tensor::<u32>::from_vec((0..SAMPLES as u32).collect(), &[SAMPLES])?;
    let labels = Tensor::<i64>::from_vec((0..SAMPLES).map(class_of).collect(), &[SAMPLES])?;
    let dataset = TensorDataset::new(features, labels);

    let strategies = [
        ("round robin", PartitionStrategy::RoundRobin),
        ("contiguous", PartitionStrategy::Contiguous),
        ("hashed", PartitionStrategy::HashBased { num_partitions: 64, hash_seed: 7 }),
        ("given ranges", PartitionStrategy::RangeBased { ranges: vec![(0, 500), (500, 900), (900, 1000)] }),
        ("stratified", PartitionStrategy::Stratified { num_classes: CLASSES }),
        (
            "adaptive",
            PartitionStrategy::Adaptive {
                base_strategy: Box::new(PartitionStrategy::RoundRobin),
                rebalance_threshold: 0.2,
            },
        ),
    ];
    println!("{:>14} | samples of class 0, 1 and 2 for each of {WORKERS} workers", "strategy");
    for (name, strategy) in strategies {
        let mut seen = BTreeSet::new();
        let mut shares = Vec::new();
        for rank in 0..WORKERS {
            let config = StreamingConfig::new(WORKERS, rank)?.with_partition_strategy(strategy.clone());
            let loader = StreamingShardLoader::new(dataset.clone(), config)?;
            let mut classes = [0; CLASSES];
            while let Some((sample, class)) = loader.next()? {
                classes[class.as_slice()[0] as usize] += 1;
                assert!(seen.insert(sample.as_slice()[0]), "{name}: no sample comes twice");
            }
            shares.push(classes);
        }
        assert_eq!(seen.len(), SAMPLES, "{name}: none is left out");
        if name == "stratified" {
            // 300, 30 and 3 1/3: within one sample of exact.
            assert!(
                shares.iter().all(|share| share[0] == 300 && share[1] == 30 && (3..=4).contains(&share[2]))
            );
        }
        println!("{name:>14} | {shares:?}");
    }
    Ok(())
}
