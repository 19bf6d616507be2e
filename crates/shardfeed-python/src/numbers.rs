use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use shardfeed::{Array, IdArray};

use crate::process::OfThisProcess;

/// The arrays of a batch, as one buffer of bytes that may be written to. When the last tensor over it is gone, its memory is used for another
/// batch.
#[pyclass(module = "shardfeed._native", frozen)]
pub(crate) struct Numbers {
    memory: OfThisProcess<Memory>,
    /// Where it lies. Taken before anybody shares it.
    address: usize,
    bytes: usize,
}

/// Holds the memory. Never looked at again: what is in it belongs to whoever has the buffer.
#[allow(dead_code)]
enum Memory {
    Ids(IdArray),
    Starts(Array<i32>),
}

impl From<IdArray> for Numbers {
    fn from(mut ids: IdArray) -> Self {
        let (address, bytes) = match &mut ids {
            IdArray::I64(ids) => place(ids),
            IdArray::I32(ids) => place(ids),
        };
        Self { memory: OfThisProcess::new(Memory::Ids(ids)), address, bytes }
    }
}

impl From<Array<i32>> for Numbers {
    fn from(mut starts: Array<i32>) -> Self {
        let (address, bytes) = place(&mut starts);
        Self { memory: OfThisProcess::new(Memory::Starts(starts)), address, bytes }
    }
}

/// Where numbers lie, and how many bytes they take. Arrays keep their numbers in one allocation, which moving them does not move.
fn place<T>(numbers: &mut [T]) -> (usize, usize) {
    (numbers.as_mut_ptr().expose_provenance(), size_of_val(numbers))
}

#[pymethods]
impl Numbers {
    /// Bytes that it takes.
    fn __len__(&self) -> usize {
        self.bytes
    }

    /// Whether this process made it. A child that was forked may read it, and its memory is never used again there.
    #[getter]
    fn is_at_home(&self) -> bool {
        self.memory.is_at_home()
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let (address, bytes) = (slf.get().address, slf.get().bytes);
        let memory = std::ptr::with_exposed_provenance_mut::<c_void>(address);
        // SAFETY: `view` is one that the interpreter made. The memory is `bytes` long and lives as long as `slf`, to which the view holds a
        // reference until it is released. Nobody on our side reads or writes it while `slf` lives: it is a batch that was handed over.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory, bytes as ffi::Py_ssize_t, 0, flags) };
        if filled == -1 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
