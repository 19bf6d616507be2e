use std::time::Instant;

use shardfeed::TokenLoader;

use super::engine::touch;
use super::spread::Spread;
use super::subject::Subject;
use crate::args::Failure;
use crate::stop::Stop;

/// How long it takes to begin, in milliseconds.
pub struct Starts {
    /// From a kept manifest to a loader, every file checked for changes.
    pub open: Spread,
    /// From a loader to its first batch.
    pub first_batch: Spread,
    /// The same, resumed at parts of the epoch: per cent, times.
    pub resumed: Vec<(u64, Spread)>,
}

const RESUMED_AT_PERCENT: [u64; 2] = [50, 90];
/// A start is short: fewer tell little.
const TIMES_MIN: usize = 5;

impl Starts {
    /// Opens and resumes the data set several times.
    pub fn measure(subject: &Subject, threads: usize, rounds: usize, stop: &Stop) -> Result<Self, Failure> {
        let mut open = Vec::new();
        let mut first_batch = Vec::new();
        let mut resumed = RESUMED_AT_PERCENT.map(|percent| (percent, Vec::new()));
        for _ in 0..rounds.max(TIMES_MIN) {
            stop.check()?;
            let started = Instant::now();
            let mut loader = subject.builder().threads(threads).build()?;
            open.push(ms_since(started));
            let (steps, mut state) = (loader.steps_per_epoch(), loader.state().clone());
            first_batch.push(first_batch_ms(&mut loader)?);
            drop(loader);
            for (percent, times) in &mut resumed {
                state.position = steps * *percent / 100 * u64::from(subject.global_batch);
                let mut loader = subject.builder().threads(threads).resume_from(state.clone()).build()?;
                times.push(first_batch_ms(&mut loader)?);
            }
        }
        Ok(Self {
            open: Spread::of_times(open),
            first_batch: Spread::of_times(first_batch),
            resumed: resumed.into_iter().map(|(percent, times)| (percent, Spread::of_times(times))).collect(),
        })
    }
}

fn first_batch_ms(loader: &mut TokenLoader) -> Result<f64, Failure> {
    let started = Instant::now();
    let batch = loader.next_batch()?;
    let ms = ms_since(started);
    batch.iter().for_each(touch);
    Ok(ms)
}

fn ms_since(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}
