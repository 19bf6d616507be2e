//! `shardfeed._native`: Shardfeed for Python. Translates between the two, and decides nothing: what users see is in `python/shardfeed`.
#![deny(unsafe_code)]
// Python hands over what it hands over.
#![allow(clippy::needless_pass_by_value)]

mod failure; // an error of the library -> a Python exception
mod process; // what a fork leaves behind -> nobody waits for threads that are not there
mod interruptible; // work that takes long -> a thread of its own, so that signals are heard
mod numbers; // an array of a batch     -> a buffer of Python
mod token_loader; // a stream           -> batches, without the interpreter lock
mod checkpoint; // a checkpoint         -> its metadata, its bytes in tensors

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    failure::add(python, module)?;
    module.add_class::<numbers::Numbers>()?;
    module.add_class::<token_loader::Loader>()?;
    module.add_class::<token_loader::Taken>()?;
    checkpoint::add(module)
}
