//! Three epochs of training that breaks off twice, and goes on from its checkpoint file with exactly the next sample.
//!
//! `cargo run -p shardfeed --example epochs_with_checkpoints`

use shardfeed::{StreamingConfig, StreamingShardLoader, Tensor, TensorDataset, read_checkpoint};

const SAMPLES: usize = 500;
const EPOCHS: u64 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("worker-0.checkpoint");
    let features = Tensor::<u32>::from_vec((0..SAMPLES as u32).collect(), &[SAMPLES])?;
    let labels = Tensor::<u8>::from_vec(vec![0; SAMPLES], &[SAMPLES])?;
    let dataset = TensorDataset::new(features, labels);
    let open = || -> shardfeed::Result<_> {
        let config = StreamingConfig::new(1, 0)?
            .with_shuffle_seed(7)
            .with_checkpointing(100) // by itself, every 100 samples
            .with_checkpoint_path(&path);
        StreamingShardLoader::new(dataset.clone(), config)
    };

    // What training sees that nobody disturbs.
    let undisturbed = open()?;
    let mut expected = Vec::new();
    for epoch in 0..EPOCHS {
        undisturbed.set_epoch(epoch);
        while let Some((sample, _)) = undisturbed.next()? {
            expected.push(sample.as_slice()[0]);
        }
    }
    std::fs::remove_file(&path)?;

    // The same, broken off after 330 and after 901 samples.
    let mut seen = Vec::new();
    let mut breaks = vec![901, 330];
    'runs: loop {
        let loader = open()?;
        if path.exists() {
            let state = read_checkpoint(&path)?;
            loader.restore_from_checkpoint(&state)?;
            let done = state.epoch as usize * SAMPLES + state.position;
            println!("goes on in epoch {} at sample {}", state.epoch, state.position);
            // The model was saved with the checkpoint: what came after it is forgotten.
            seen.truncate(done);
        }
        while loader.epoch() < EPOCHS {
            while let Some((sample, _)) = loader.next()? {
                seen.push(sample.as_slice()[0]);
                if breaks.last() == Some(&seen.len()) {
                    breaks.pop();
                    println!("breaks off after {} samples", seen.len());
                    continue 'runs;
                }
            }
            println!("epoch {} is over", loader.epoch());
            loader.reset();
        }
        break;
    }
    assert_eq!(seen, expected);
    println!("{} samples, in the order of a run that nobody disturbed", seen.len());
    Ok(())
}
