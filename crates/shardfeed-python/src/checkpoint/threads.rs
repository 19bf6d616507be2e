use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use shardfeed::checkpoint::{Checkpoint, Checksums, OpenOptions, PlanReader, ReadOptions, Stop};

use super::reading::{CheckpointRead, Chunk, Handed, PartTo, Wish, described, plan, wishes};
use crate::interruptible;

/// Threads that read parts of a checkpoint's chunks, one lot after another, each lot on one thread. Between lots, files stay open.
///
/// For many lots of some megabytes: to open everything and to start threads for each would take as long as to read it.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct CheckpointThreads {
    checkpoint: Arc<Checkpoint>,
    checksums: Arc<Checksums>,
    stop: Stop,
    /// None once nobody will start anything any more.
    lots: Mutex<Option<Sender<Lot>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What one thread reads at a time, what keeps its memory alive, and who waits for both.
struct Lot {
    wishes: Vec<Wish>,
    keep: Py<PyAny>,
    tell: Sender<Handed>,
}

#[pymethods]
impl CheckpointThreads {
    #[new]
    #[pyo3(signature = (path, files, chunks, *, num_workers, use_parallel=true, verify=false, follow_links=false))]
    #[allow(clippy::too_many_arguments)] // They are keywords there.
    fn new(
        python: Python<'_>,
        path: PathBuf,
        files: Vec<String>,
        chunks: Vec<Chunk>,
        num_workers: usize,
        use_parallel: bool,
        verify: bool,
        follow_links: bool,
    ) -> PyResult<Self> {
        let metadata = described(files, chunks)?;
        let stop = Stop::new();
        let options = ReadOptions {
            use_parallel,
            num_workers: Some(num_workers),
            verify,
            stop: Some(stop.clone()),
            ..ReadOptions::default()
        };
        let opening = OpenOptions { follow_links, ..OpenOptions::default() };
        let open = move || Checkpoint::open_described(path, metadata, &opening);
        let checkpoint = Arc::new(interruptible::run(python, open)?.with_options(options));
        let checksums = Arc::new(Checksums::default());
        let (lots, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::new();
        for _ in 0..num_workers.max(1) {
            let (checkpoint, checksums) = (Arc::clone(&checkpoint), Arc::clone(&checksums));
            let waiting = Arc::clone(&waiting);
            let work = move || work(&mut checkpoint.plan_reader_with(&checksums), &waiting);
            let started = std::thread::Builder::new().name("shardfeed-read".to_owned()).spawn(work);
            threads.push(started.map_err(|error| {
                PyRuntimeError::new_err(format!("cannot start a thread to read with: {error}"))
            })?);
        }
        let (lots, threads) = (Mutex::new(Some(lots)), Mutex::new(threads));
        Ok(Self { checkpoint, checksums, stop, lots, threads })
    }

    /// Has a thread read parts of chunks, as `read_checkpoint` does, after everything that was started before. To stop one stops all.
    fn start(&self, parts: Vec<PartTo>, keep: Py<PyAny>) -> PyResult<CheckpointRead> {
        let wishes = wishes(self.checkpoint.metadata(), parts)?;
        let (tell, result) = channel();
        let lots = self.lots.lock().unwrap_or_else(PoisonError::into_inner);
        let lots = lots.as_ref().ok_or_else(|| PyRuntimeError::new_err("the threads were closed"))?;
        let sent = lots.send(Lot { wishes, keep, tell });
        sent.map_err(|_| {
            PyRuntimeError::new_err("the threads that read have died; this is a bug of Shardfeed")
        })?;
        Ok(CheckpointRead::of(self.stop.clone(), result))
    }

    /// How each of these chunks lies in its file: see `Checkpoint::stored_orders`.
    fn stored_orders(&self, python: Python<'_>, chunks: Vec<usize>) -> PyResult<Vec<Option<Vec<usize>>>> {
        let checkpoint = Arc::clone(&self.checkpoint);
        let chunks: Vec<(usize, usize)> = chunks.into_iter().map(|tensor| (tensor, 0)).collect();
        let looked = interruptible::run(python, move || checkpoint.stored_orders(&chunks));
        // Whoever wants to interrupt does not wait for those that look.
        looked.inspect_err(|_| self.stop.stop())
    }

    /// Compares what is left when everything has been read (see `Checkpoint::compare_rest`), in place of the threads: they end before, with the
    /// memory that they hold.
    fn compare_rest(&self, python: Python<'_>) -> PyResult<()> {
        self.lots.lock().unwrap_or_else(PoisonError::into_inner).take();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let (checkpoint, checksums) = (Arc::clone(&self.checkpoint), Arc::clone(&self.checksums));
        let compared = interruptible::run(python, move || {
            // One that died has told so by what it did not read.
            for thread in threads {
                let _ = thread.join();
            }
            checkpoint.compare_rest(&checksums)
        });
        compared.inspect_err(|_| self.stop.stop())
    }

    /// Ends the threads, and early what they read.
    fn close(&self) {
        self.stop.stop();
        self.lots.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// What each thread does until nobody can start anything any more.
fn work(reader: &mut PlanReader<'_>, waiting: &Mutex<Receiver<Lot>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Lot { wishes, keep, tell }) = next else { return };
        #[allow(unsafe_code)]
        // SAFETY: `keep` keeps the memory alive, and is let go of below, when the plan has been read.
        let plan = unsafe { plan(wishes) };
        let result = reader.read_into(plan).map(|stats| (Vec::new(), stats));
        // What keeps the memory alive goes along, as in `read_checkpoint`. Nobody may be waiting any more.
        let _ = tell.send((result, keep));
    }
}
