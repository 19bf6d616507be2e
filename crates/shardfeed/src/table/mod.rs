//! Rows of Parquet files with any columns, by their index: [`ParquetDataset`] and what it is made of.

mod value; // what a column has in a row
mod guarded; // a file                -> headers and pages that claim nothing impossible
mod column; // pages of a column      -> its values, row by row
mod row_group; // a row group         -> its columns
mod cache; // row groups              -> those used last, within bounds
mod dataset; // a source              -> rows

pub use dataset::{ParquetDataset, ParquetDatasetBuilder};
pub use value::{Record, Value};
