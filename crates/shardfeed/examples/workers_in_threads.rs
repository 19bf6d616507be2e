//! Two workers, each shared by three threads; their checkpoints go to one coordinator, from which another worker goes on.
//!
//! `cargo run -p shardfeed --example workers_in_threads`

use std::collections::BTreeSet;
use std::sync::Arc;

use shardfeed::{
    StreamCoordinator, StreamingConfig, StreamingShardIterator, StreamingShardLoader, Tensor, TensorDataset,
};

const SAMPLES: usize = 10_000;
const WORKERS: usize = 2;
const THREADS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let features = Tensor::<u32>::from_vec((0..SAMPLES as u32).collect(), &[SAMPLES])?;
    let labels = Tensor::<u8>::from_vec(vec![0; SAMPLES], &[SAMPLES])?;
    let dataset = TensorDataset::new(features, labels);
    let config = |rank| -> shardfeed::Result<_> {
        Ok(StreamingConfig::new(WORKERS, rank)?.with_shuffle_seed(3).with_checkpointing(1000))
    };
    let coordinator = Arc::new(StreamCoordinator::new(config(0)?)?);

    let mut seen = BTreeSet::new();
    for rank in 0..WORKERS {
        coordinator.register_worker(rank, vec![])?;
        let loader = StreamingShardLoader::new(dataset.clone(), config(rank)?)?;
        let loader = Arc::new(loader.with_coordinator(Arc::clone(&coordinator)));
        let counts = std::thread::scope(|scope| {
            let take = |_| {
                let samples = StreamingShardIterator::new(Arc::clone(&loader));
                scope.spawn(|| {
                    samples.map(|sample| Ok(sample?.0.as_slice()[0])).collect::<shardfeed::Result<Vec<u32>>>()
                })
            };
            let threads: Vec<_> = (0..THREADS).map(take).collect();
            threads
                .into_iter()
                .map(|thread| {
                    let samples = thread.join().expect("it does not panic")?;
                    assert!(samples.iter().all(|sample| seen.insert(*sample)), "no sample comes twice");
                    Ok(samples.len())
                })
                .collect::<shardfeed::Result<Vec<usize>>>()
        })?;
        println!("worker {rank}: its {THREADS} threads took {counts:?} samples");
        assert_eq!(counts.iter().sum::<usize>(), SAMPLES / WORKERS);
    }
    assert_eq!(seen.len(), SAMPLES);

    let state = coordinator.get_checkpoint(1)?.expect("worker 1 took 5,000 samples");
    println!("the coordinator knows that worker 1 handed out {} samples", state.processed_count());
    assert_eq!(state.processed_count(), 5000);
    let other = StreamingShardLoader::new(dataset, config(1)?)?;
    other.restore_from_checkpoint(state)?;
    assert!(other.next()?.is_none(), "nothing is left for whoever goes on in its place");
    println!("whoever goes on in its place repeats nothing");
    Ok(())
}
