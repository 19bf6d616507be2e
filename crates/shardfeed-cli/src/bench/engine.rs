use std::hint::black_box;
use std::time::Instant;

use shardfeed::{Batch, BatchArrays, Ids, TokenLoader, TokenLoaderBuilder};

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

/// Epoch after epoch by one loader: shuffled batches of int64, on so many threads, taken by a consumer that hardly
/// looks.
///
/// Opening is not counted: it has a measurement of its own.
pub struct Engine {
    loader: TokenLoader,
    tokens: u64,
}

impl Engine {
    pub fn new(subject: &Subject, variant: Variant, threads: usize) -> Result<Self, Failure> {
        let loader = (variant.asks)(subject.builder().threads(threads)).build()?;
        Ok(Self { loader, tokens: subject.tokens() })
    }

    /// The next epoch.
    pub fn pass(&mut self, stop: &Stop) -> Result<Pass, Failure> {
        let steps_expected = self.loader.steps_per_epoch();
        let mut steps = 0;
        let started = Instant::now();
        while let Some(batch) = self.loader.next_batch()? {
            stop.check()?;
            touch(&batch);
            steps += 1;
        }
        let took = started.elapsed();
        if steps != steps_expected {
            return Err(Failure::Other(format!("the epoch had {steps} steps instead of {steps_expected}")));
        }
        Ok(Pass { tokens: self.tokens, took })
    }
}

/// Reads one token of each row.
pub fn touch(batch: &Batch) {
    let sum: i64 = match batch.input_ids() {
        Ids::I64(ids) => ids.iter().step_by(batch.seq_len).sum(),
        Ids::I32(ids) => ids.iter().step_by(batch.seq_len).map(|&id| i64::from(id)).sum(),
    };
    black_box(sum);
}
