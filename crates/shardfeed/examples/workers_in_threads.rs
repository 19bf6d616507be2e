//! Two workers at the same time, each shared by three threads; their checkpoints go to one coordinator, from which another worker goes on.
//!
//! `cargo run -p shardfeed --example workers_in_threads`

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

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

    let mut loaders = Vec::new();
    for rank in 0..WORKERS {
        coordinator.register_worker(rank, vec![])?;
        let loader = StreamingShardLoader::new(dataset.clone(), config(rank)?)?;
        loaders.push(Arc::new(loader.with_coordinator(Arc::clone(&coordinator))));
    }
    // Each takes one sample, and no second one before all threads of all workers have theirs: so all are at work at the same time.
    let all_have_one = Barrier::new(WORKERS * THREADS);
    let take = |loader: Arc<StreamingShardLoader<TensorDataset<u32, u8>>>| -> shardfeed::Result<Vec<u32>> {
        let first = loader.next()?;
        all_have_one.wait();
        let first = first.into_iter().map(|sample| Ok(sample.0.as_slice()[0]));
        first.chain(StreamingShardIterator::new(loader).map(|sample| Ok(sample?.0.as_slice()[0]))).collect()
    };
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| -> shardfeed::Result<()> {
        let start = |loader| {
            let loaders = std::iter::repeat_n(loader, THREADS).map(Arc::clone);
            loaders.map(|loader| scope.spawn(|| take(loader))).collect::<Vec<_>>()
        };
        // All begin before the first is waited for.
        let workers: Vec<_> = loaders.iter().map(start).collect();
        for (rank, threads) in workers.into_iter().enumerate() {
            let mut counts = Vec::new();
            for thread in threads {
                let samples = thread.join().expect("it does not panic")?;
                assert!(!samples.is_empty(), "every thread was at work");
                assert!(samples.iter().all(|sample| seen.insert(*sample)), "no sample comes twice");
                counts.push(samples.len());
            }
            println!("worker {rank}, at work with the other: its {THREADS} threads took {counts:?} samples");
            assert_eq!(counts.iter().sum::<usize>(), SAMPLES / WORKERS);
        }
        Ok(())
    })?;
    assert_eq!(seen.len(), SAMPLES);

    let state = coordinator.get_checkpoint(1)?.expect("worker 1 took 5,000 samples");
    println!("the coordinator knows that worker 1 handed out {} samples", state.processed_count());
    assert_eq!(state.processed_count(), 5000);
    drop(loaders);
    let other = StreamingShardLoader::new(dataset, config(1)?)?;
    other.restore_from_checkpoint(state)?;
    assert!(other.next()?.is_none(), "nothing is left for whoever goes on in its place");
    println!("whoever goes on in its place repeats nothing");
    Ok(())
}
