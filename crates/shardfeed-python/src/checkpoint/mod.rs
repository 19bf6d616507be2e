//! Checkpoints: their metadata as Python's values, and reads into memory that belongs to Python.

mod pickled; // a pickle                 -> values that do nothing
mod described; // a directory            -> what it holds, as plain values
mod memory; // addresses                 -> slices
mod reading; // items and places         -> a read on threads of its own
mod threads; // many of them, one after another -> threads that stay

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shardfeed::checkpoint::{
    Dtype, ReadOptions, default_read_workers, memory_aware_workers, object_bytes_max, optimal_workers,
};

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // What native code can write into a tensor of the same type.
    let dtypes: Vec<&str> = Dtype::all().map(Dtype::torch_name).collect();
    module.add("CHECKPOINT_DTYPES", PyTuple::new(module.py(), dtypes)?)?;
    module.add_class::<pickled::PickledGlobal>()?;
    module.add_class::<pickled::PickledCall>()?;
    module.add_class::<reading::CheckpointRead>()?;
    module.add_class::<threads::CheckpointThreads>()?;
    module.add_function(wrap_pyfunction!(pickled::read_pickle, module)?)?;
    module.add_function(wrap_pyfunction!(described::describe_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(described::metadata_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(reading::read_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint_object_bytes_max, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint_memory_budget, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint_read_workers, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint_workers, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint_workers_within_memory, module)?)
}

#[pyfunction]
fn checkpoint_object_bytes_max(stored: u64) -> u64 {
    object_bytes_max(stored)
}

#[pyfunction]
fn checkpoint_memory_budget() -> u64 {
    ReadOptions::default().memory_bytes()
}

#[pyfunction]
fn checkpoint_read_workers() -> usize {
    default_read_workers()
}

#[pyfunction]
#[pyo3(signature = (files, max_workers=None))]
fn checkpoint_workers(files: usize, max_workers: Option<usize>) -> usize {
    optimal_workers(files, max_workers)
}

#[pyfunction]
#[pyo3(signature = (file_bytes, max_workers=None))]
fn checkpoint_workers_within_memory(file_bytes: u64, max_workers: Option<usize>) -> usize {
    memory_aware_workers(file_bytes, max_workers)
}
