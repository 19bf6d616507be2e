//! One worker of four takes its samples in turn, shuffled.
//!
//! `cargo run -p shardfeed --example round_robin`

use std::collections::BTreeSet;

use shardfeed::{StreamingConfig, StreamingShardLoader, Tensor, TensorDataset};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A thousand samples of two features; the first says which sample it is.
    let features = (0..1000).flat_map(|index| [index as f32, 0.5]).collect();
    let features = Tensor::<f32>::from_vec(features, &[1000, 2])?;
    let labels = Tensor::<i64>::from_vec((0..1000).map(|index| index % 10).collect(), &[1000])?;
    let dataset = TensorDataset::new(features, labels);

    let mut seen = BTreeSet::new();
    for rank in 0..4 {
        let config = StreamingConfig::new(4, rank)?.with_shuffle_seed(42);
        let loader = StreamingShardLoader::new(dataset.clone(), config)?;
        let mut first = Vec::new();
        while let Some((features, label)) = loader.next()? {
            let sample = features.as_slice()[0] as i64;
            assert_eq!(label.as_slice(), [sample % 10], "a sample has its own label");
            assert!(seen.insert(sample), "no sample comes twice");
            first.push(sample);
        }
        println!("worker {rank} of 4: {} samples, the first are {:?}", first.len(), &first[..5]);
        assert_eq!(first.len(), 250);
    }
    assert_eq!(seen.len(), 1000);
    println!("together: every one of {} samples once", seen.len());
    Ok(())
}
