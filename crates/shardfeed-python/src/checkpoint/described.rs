use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use shardfeed::checkpoint::{Checkpoint, OpenOptions, StoredItem};

use crate::interruptible;

/// The bytes of a checkpoint's metadata, or of a rank's.
#[pyfunction]
#[pyo3(signature = (path, rank=None, follow_links=false))]
pub(crate) fn metadata_bytes(
    python: Python<'_>,
    path: PathBuf,
    rank: Option<u32>,
    follow_links: bool,
) -> PyResult<Bound<'_, PyBytes>> {
    let options = OpenOptions { rank, follow_links };
    let bytes = interruptible::run(python, move || Checkpoint::metadata_bytes(&path, &options))?;
    Ok(PyBytes::new(python, &bytes))
}

/// What a checkpoint holds, as dictionaries and lists. All of its files are looked at; none is read but the metadata.
#[pyfunction]
#[pyo3(signature = (path, rank=None, follow_links=false))]
pub(crate) fn describe_checkpoint(
    python: Python<'_>,
    path: PathBuf,
    rank: Option<u32>,
    follow_links: bool,
) -> PyResult<Bound<'_, PyDict>> {
    let options = OpenOptions { rank, follow_links };
    let checkpoint = interruptible::run(python, move || Checkpoint::open_with(&path, &options))?;
    let metadata = checkpoint.metadata();
    let stored = |item: &StoredItem| -> PyResult<Bound<'_, PyDict>> {
        let values = PyDict::new(python);
        values.set_item("file", &metadata.files[item.file as usize])?;
        values.set_item("offset", item.offset)?;
        values.set_item("length", item.length)?;
        values.set_item("transforms", &item.transforms)?;
        Ok(values)
    };
    let tensors = PyList::empty(python);
    for tensor in checkpoint.tensors() {
        let chunks = PyList::empty(python);
        for chunk in &tensor.chunks {
            let values = stored(&chunk.item)?;
            values.set_item("offsets", &chunk.part.offsets)?;
            values.set_item("sizes", &chunk.part.sizes)?;
            chunks.append(values)?;
        }
        let values = PyDict::new(python);
        values.set_item("name", &tensor.name)?;
        values.set_item("dtype", tensor.dtype.torch_name())?;
        values.set_item("shape", &tensor.shape)?;
        values.set_item("bytes", tensor.bytes())?;
        values.set_item("chunks", chunks)?;
        tensors.append(values)?;
    }
    let objects = PyList::empty(python);
    for object in checkpoint.objects() {
        let values = stored(&object.item)?;
        values.set_item("name", &object.name)?;
        objects.append(values)?;
    }
    let files = PyList::empty(python);
    for (name, (_, len)) in metadata.files.iter().zip(checkpoint.files()) {
        files.append((name, len))?;
    }
    let described = PyDict::new(python);
    described.set_item("tensors", tensors)?;
    described.set_item("objects", objects)?;
    described.set_item("files", files)?;
    described.set_item("version", metadata.version.as_deref())?;
    Ok(described)
}
