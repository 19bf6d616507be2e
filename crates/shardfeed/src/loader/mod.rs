//! Two faces of one engine: a token stream that knows no files, and whole files for those who shard by file.

mod lm_batch; // sequences    -> inputs and targets that share one buffer
mod file; // whole files      -> LMBatches
mod token; // a token stream  -> batches

pub use file::{LMBatches, MEMORY_BUDGET_DEFAULT, ShardConfig, StreamingParquetLoader};
pub use lm_batch::LMBatch;
pub use token::{NextBatch, TokenLoader, TokenLoaderBuilder};
