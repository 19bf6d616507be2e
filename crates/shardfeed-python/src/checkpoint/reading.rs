use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use shardfeed::Error;
use shardfeed::checkpoint::{
    Checkpoint, Dtype, Metadata, OpenOptions, Part, PlacedPart, Placement, RawItem, ReadOptions, ReadPlan,
    ReadProgress, ReadStats, Stop, StoredChunk, StoredItem, StoredTensor,
};

use super::memory;
use crate::failure;

/// How often whoever waits looks for Ctrl-C, and tells how far the read is.
const LOOK: Duration = Duration::from_millis(50);

/// How long threads are waited for that were asked to stop because somebody wants to interrupt: what they have asked the system for, some
/// megabytes each, comes within it from any disk that answers.
const STOPPING: Duration = Duration::from_millis(40);

/// How long they are if something else went wrong, for which nobody is in a hurry.
const STOPPING_UNHURRIED: Duration = Duration::from_secs(5);

/// `(file, offset, length, transforms)`
#[derive(FromPyObject)]
pub(crate) struct Stored(u32, u64, u64, Vec<String>);

/// `(name, dtype, offsets, sizes, stored)`
#[derive(FromPyObject)]
pub(crate) struct Chunk(String, String, Vec<u64>, Vec<u64>, Stored);

/// `(chunk, offsets, sizes, address, strides)`: strides in bytes.
#[derive(FromPyObject)]
pub(crate) struct PartTo(usize, Vec<u64>, Vec<u64>, usize, Vec<u64>);

/// `(name, bytes_max, stored)`
#[derive(FromPyObject)]
pub(crate) struct Raw(String, u64, Stored);

/// A read that is under way on threads of its own.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct CheckpointRead {
    stop: Stop,
    state: Arc<State>,
    result: Mutex<Option<Receiver<Handed>>>,
}

pub(super) type Finished = Result<(Vec<Vec<u8>>, ReadStats), Error>;

/// What the thread hands over: the result, and what kept the memory alive.
pub(super) type Handed = (Finished, Py<PyAny>);

/// How far a read is.
#[derive(Default)]
struct State {
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    bytes: u64,
    bytes_total: u64,
    finished: Vec<String>,
}

/// Starts to read parts of chunks into memory, and items as bytes.
///
/// Every address must be that of elements of the chunk's type, in memory that `keep` keeps alive and that nobody else uses until the
/// read has ended, or, if it was stopped, until `keep` is let go of.
#[pyfunction]
#[pyo3(signature = (path, files, chunks, parts, items, keep, *, use_parallel=true, num_workers=None, verify=false, memory_budget=None, follow_links=false))]
#[allow(clippy::too_many_arguments)] // They are keywords there.
pub(crate) fn read_checkpoint(
    path: PathBuf,
    files: Vec<String>,
    chunks: Vec<Chunk>,
    parts: Vec<PartTo>,
    items: Vec<Raw>,
    keep: Py<PyAny>,
    use_parallel: bool,
    num_workers: Option<usize>,
    verify: bool,
    memory_budget: Option<u64>,
    follow_links: bool,
) -> PyResult<CheckpointRead> {
    let metadata = described(files, chunks)?;
    let wishes = wishes(&metadata, parts)?;
    let items: Vec<RawItem> = items
        .into_iter()
        .map(|Raw(name, bytes_max, stored)| RawItem { name, item: stored.into(), bytes_max })
        .collect();
    let (stop, state) = (Stop::new(), Arc::<State>::default());
    let telling = Arc::clone(&state);
    let options = ReadOptions {
        use_parallel,
        num_workers,
        verify,
        memory_budget,
        progress: Some(Arc::new(move |progress| telling.note(progress))),
        stop: Some(stop.clone()),
        ..ReadOptions::default()
    };
    let (sender, receiver) = channel();
    let work = move || {
        let opening = OpenOptions { follow_links, ..OpenOptions::default() };
        let result = read(path, metadata, wishes, &items, options, &opening);
        // Along with what keeps the memory alive: this thread has no interpreter to let go of it with, and would leave that for whoever
        // comes next, perhaps never. Nobody may be waiting any more.
        let _ = sender.send((result, keep));
    };
    let started = std::thread::Builder::new().name("shardfeed-read".to_owned()).spawn(work);
    started
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread to read with: {error}")))?;
    Ok(CheckpointRead { stop, state, result: Mutex::new(Some(receiver)) })
}

/// A piece of memory, its name for progress, and what goes to it.
pub(super) struct Wish {
    name: String,
    range: Range<usize>,
    parts: Vec<PlacedPart>,
}

fn read(
    path: PathBuf,
    metadata: Metadata,
    wishes: Vec<Wish>,
    items: &[RawItem],
    options: ReadOptions,
    opening: &OpenOptions,
) -> Finished {
    let checkpoint = Checkpoint::open_described(path, metadata, opening)?.with_options(options);
    let mut stats = ReadStats::default();
    if !wishes.is_empty() {
        #[allow(unsafe_code)]
        // SAFETY: the thread that runs this owns what keeps the memory alive, and lets go of it after the read (`read_checkpoint`).
        let plan = unsafe { plan(wishes) };
        stats = checkpoint.read_into(plan)?;
    }
    Ok((checkpoint.read_items(items)?, stats))
}

/// A plan of what goes where.
///
/// # Safety
/// Whoever reads it keeps the memory alive until the plan is gone.
#[allow(unsafe_code)] // See `memory::slice`.
pub(super) unsafe fn plan(wishes: Vec<Wish>) -> ReadPlan<'static> {
    let mut plan = ReadPlan::new();
    for Wish { name, range, parts } in wishes {
        // SAFETY: who asked in Python said that these are elements of tensors, so each part lies in one allocation; ranges are joined only
        // where they reach into each other, that is within one allocation; and so no two slices share a byte. Python's side waits for
        // the end of the read before it uses them, and by the caller's word they are there until then.
        let memory = unsafe { memory::slice(range) };
        plan.read_parts(&name, parts, memory);
    }
    plan
}

pub(super) fn described(files: Vec<String>, chunks: Vec<Chunk>) -> PyResult<Metadata> {
    let mut tensors = Vec::with_capacity(chunks.len());
    for Chunk(name, dtype, offsets, sizes, stored) in chunks {
        let known = Dtype::of_torch(&dtype);
        let dtype =
            known.ok_or_else(|| PyValueError::new_err(format!("{name}: the dtype {dtype} is not known")))?;
        let part = Part { offsets, sizes };
        let shape: Option<Vec<u64>> =
            part.offsets.iter().zip(&part.sizes).map(|(offset, size)| offset.checked_add(*size)).collect();
        let bytes = shape.as_ref().filter(|shape| shape.len() == part.sizes.len()).and_then(|shape| {
            let sizes = shape.iter().chain(&part.sizes);
            sizes.map(|size| *size.max(&1)).try_fold(dtype.bytes(), u64::checked_mul).map(|_| shape.clone())
        });
        let shape =
            bytes.ok_or_else(|| PyValueError::new_err(format!("{name}: {part:?} is no part of a tensor")))?;
        tensors.push(StoredTensor {
            name,
            dtype,
            shape,
            chunks: vec![StoredChunk { part, item: stored.into() }],
        });
    }
    Ok(Metadata { tensors, files, ..Metadata::default() })
}

pub(super) fn wishes(metadata: &Metadata, parts: Vec<PartTo>) -> PyResult<Vec<Wish>> {
    let refused = || PyValueError::new_err("a part that lies in no memory");
    let mut spans = Vec::with_capacity(parts.len());
    for PartTo(chunk, _, sizes, address, strides) in &parts {
        let tensor = metadata.tensors.get(*chunk).ok_or_else(refused)?;
        let mut steps =
            sizes.iter().zip(strides).map(|(size, stride)| size.checked_sub(1)?.checked_mul(*stride));
        let reach = steps.try_fold(tensor.dtype.bytes(), |reach, step| reach.checked_add(step?));
        let end = reach.and_then(|reach| address.checked_add(usize::try_from(reach).ok()?));
        let end = end.filter(|_| *address != 0 && sizes.len() == strides.len()).ok_or_else(refused)?;
        spans.push(*address..end);
    }
    let mut placed: HashMap<usize, (String, usize, PlacedPart)> = HashMap::with_capacity(parts.len());
    for (number, PartTo(tensor, offsets, sizes, address, strides)) in parts.into_iter().enumerate() {
        let placement = Placement { start: 0, strides };
        let part = PlacedPart { tensor, chunk: 0, part: Part { offsets, sizes }, placement };
        placed.insert(number, (metadata.tensors[tensor].name.clone(), address, part));
    }
    let merged = memory::apart(&spans).into_iter().map(|(range, members)| {
        let members: Vec<_> = members.iter().filter_map(|member| placed.remove(member)).collect();
        let name = members.first().map_or_else(String::new, |(name, ..)| name.clone());
        let parts = members.into_iter().map(|(_, address, mut part)| {
            part.placement.start = (address - range.start) as u64;
            part
        });
        Wish { name, parts: parts.collect(), range }
    });
    Ok(merged.collect())
}

#[pymethods]
impl CheckpointRead {
    /// Waits until everything is where it belongs; returns the items' bytes, and what was done. Ctrl-C stops the read. `progress` is
    /// called on this thread, with bytes that are there, bytes there will be, and names of what has been finished since.
    #[pyo3(signature = (progress=None))]
    fn wait<'py>(
        &self,
        python: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, Bound<'py, PyDict>)> {
        let receiver = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut receiver =
            receiver.ok_or_else(|| PyRuntimeError::new_err("this read was waited for already"))?;
        let finished = loop {
            let received;
            (received, receiver) = python.detach(move || (receiver.recv_timeout(LOOK), receiver));
            match received {
                Ok((finished, keep)) => {
                    drop(keep);
                    break finished;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err(
                        "the thread that read has died; this is a bug of Shardfeed",
                    ));
                }
            }
            let heard = python.check_signals();
            let is_signal = heard.is_err();
            if let Err(error) = heard.and_then(|()| self.tell(progress)) {
                self.stop.stop();
                let is_hurried = is_signal || error.is_instance_of::<PyKeyboardInterrupt>(python);
                // Nobody begins anything more. A disk that does not answer in time may still fill what each thread has asked it for, 4 MiB
                // at most: the memory is kept alive for it until then.
                let patience = if is_hurried { STOPPING } else { STOPPING_UNHURRIED };
                drop(python.detach(move || receiver.recv_timeout(patience)));
                return Err(error);
            }
        };
        let (items, stats) = finished.map_err(failure::raise)?;
        self.tell(progress)?;
        let done = PyDict::new(python);
        done.set_item("bytes", stats.bytes)?;
        done.set_item("bytes_read", stats.bytes_read)?;
        done.set_item("bytes_direct", stats.bytes_direct)?;
        done.set_item("reads", stats.reads)?;
        done.set_item("workers", stats.workers)?;
        Ok((items.iter().map(|bytes| PyBytes::new(python, bytes)).collect(), done))
    }

    /// Ends it early. It must still be waited for before the memory is used.
    fn stop(&self) {
        self.stop.stop();
    }
}

impl CheckpointRead {
    /// One whose result comes from somewhere else, and is not told of before it does.
    pub(super) fn of(stop: Stop, result: Receiver<Handed>) -> Self {
        Self { stop, state: Arc::default(), result: Mutex::new(Some(result)) }
    }

    fn tell(&self, progress: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(progress) = progress else { return Ok(()) };
        let (bytes, bytes_total, finished) = {
            let mut told = self.state.told.lock().unwrap_or_else(PoisonError::into_inner);
            (told.bytes, told.bytes_total, std::mem::take(&mut told.finished))
        };
        progress.call1((bytes, bytes_total, finished)).map(drop)
    }
}

impl Drop for CheckpointRead {
    /// Nobody can wait for it any more. Once somebody has, there is nothing to end, and others may read on with the same wish to stop.
    fn drop(&mut self) {
        if self.result.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.stop.stop();
        }
    }
}

impl State {
    fn note(&self, progress: ReadProgress<'_>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.bytes = progress.bytes;
        told.bytes_total = progress.bytes_total;
        told.finished.extend(progress.finished.map(str::to_owned));
    }
}

impl From<Stored> for StoredItem {
    fn from(Stored(file, offset, length, transforms): Stored) -> Self {
        Self { file, offset, length, transforms }
    }
}
