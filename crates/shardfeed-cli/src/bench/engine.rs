use std::hint::black_box;
use std::time::Instant;

use shardfeed::{Batch, BatchArrays, IdArray, TokenLoaderBuilder};

use super::contest::Pass;
use super::subject::Subject;
use crate::args::Failure;
use crate::stop::Stop;

/// One way to ask for batches.
#[derive(Clone, Copy)]
pub struct Variant {
    pub name: &'static str,
    asks: fn(TokenLoaderBuilder) -> TokenLoaderBuilder,
}

/// What is measured. Add a line for another.
pub const VARIANTS: [Variant; 2] = [
    Variant { name: "input_ids alone", asks: |builder| builder.arrays(BatchArrays::NONE) },
    Variant { name: "all four arrays", asks: |builder| builder },
];

/// An epoch by the engine: shuffled batches of int64, on so many threads, taken by a consumer that hardly looks.
///
/// Opening is not counted: it has a measurement of its own.
pub fn pass(subject: &Subject, variant: Variant, threads: usize, stop: &Stop) -> Result<Pass, Failure> {
    let mut loader = (variant.asks)(subject.builder().threads(threads)).build()?;
    let steps_expected = loader.steps_per_epoch();
    let mut steps = 0;
    let started = Instant::now();
    while let Some(batch) = loader.next_batch()? {
        stop.check()?;
        touch(&batch);
        steps += 1;
    }
    let took = started.elapsed();
    if steps != steps_expected {
        return Err(Failure::Other(format!("the epoch had {steps} steps instead of {steps_expected}")));
    }
    Ok(Pass { tokens: subject.tokens(), took })
}

/// Reads one token of each row.
pub fn touch(batch: &Batch) {
    let sum: i64 = match &batch.input_ids {
        IdArray::I64(ids) => ids.iter().step_by(batch.seq_len).sum(),
        IdArray::I32(ids) => ids.iter().step_by(batch.seq_len).map(|&id| i64::from(id)).sum(),
    };
    black_box(sum);
}
