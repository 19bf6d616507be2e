use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shardfeed::{
    Batch, BatchArrays, CachePolicy, NextBatch, Rank, Source, StateError, StepOrigin, StreamCoordinator,
    StreamState, StreamingConfig, TokenLoader, TokenLoaderBuilder,
};

use crate::failure::raise;
use crate::interruptible::{self, LOOK_EVERY};
use crate::numbers::Numbers;
use crate::process::OfThisProcess;

/// One rank's stream. `shardfeed.TokenLoader` is its face.
#[pyclass(module = "shardfeed._native", name = "Loader", frozen)]
pub(crate) struct Loader {
    /// Shared with a thread that `explain` has left behind.
    loader: OfThisProcess<Arc<Mutex<TokenLoader>>>,
}

/// Where the stream stood before and after a batch was taken, for whoever cannot hand it out.
#[pyclass(module = "shardfeed._native", frozen)]
#[derive(Default)]
pub(crate) struct Taken(Mutex<Option<(StreamState, StreamState)>>);

#[pymethods]
impl Taken {
    /// Nothing yet.
    #[new]
    fn new() -> Self {
        Self::default()
    }
}

/// What the thread says that makes a loader.
enum News {
    Progress(u64, u64),
    Built(Box<shardfeed::Result<TokenLoader>>),
}

/// What `shardfeed.TokenLoader` was given, every item of it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    source: SourceGiven,
    seq_len: u32,
    global_batch: u32,
    seed: Option<u64>,
    shuffle: Option<bool>,
    packing: Option<String>,
    tail: String,
    labels: String,
    eos_id: Option<u32>,
    pad_id: u32,
    rank: u32,
    world_size: u32,
    dtype: String,
    threads: Option<usize>,
    memory_budget: Option<u64>,
    arrays: Vec<String>,
    lanes: Option<u32>,
    window: Option<u32>,
    on_corrupt: String,
    cache: Option<PathBuf>,
    epoch: Option<u64>,
    every: u32,
    coordinator: Option<String>,
    progress: Option<Py<PyAny>>,
}

#[derive(FromPyObject)]
enum SourceGiven {
    One(PathBuf),
    Files(Vec<PathBuf>),
}

#[pymethods]
impl Loader {
    #[new]
    fn new(py: Python<'_>, settings: Settings, state: Option<&str>) -> PyResult<Self> {
        let progress = settings.progress.as_ref().map(|progress| progress.clone_ref(py));
        let cancel = Arc::new(AtomicBool::new(false));
        let mut builder = settings.builder()?.cancel(Arc::clone(&cancel));
        if let Some(state) = state {
            builder = builder.resume_from(parse_state(state)?);
        }
        let (tell, told) = mpsc::channel();
        if progress.is_some() {
            let tell = Mutex::new(tell.clone());
            builder = builder.scan_progress(move |done, total| {
                // Whoever listens may have gone.
                let _ = tell.lock().map(|tell| tell.send(News::Progress(done, total)));
            });
        }
        let coordinator = settings.coordinator()?;
        let is_cancelled = Arc::clone(&cancel);
        let build = std::thread::Builder::new()
            .name("shardfeed-scan".to_owned())
            .spawn(move || {
                // If nobody listens any more, what was built is let go of here.
                let _ = tell.send(News::Built(Box::new(build(builder, coordinator, &is_cancelled))));
            })
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        let told = Mutex::new(told);
        let built = loop {
            let news =
                py.detach(|| told.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK_EVERY));
            let called = match news {
                Ok(News::Built(built)) => break Some(built),
                Ok(News::Progress(done, total)) => {
                    progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (done, total)).map(drop))
                }
                Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
                // It panicked.
                Err(mpsc::RecvTimeoutError::Disconnected) => break None,
            };
            if let Err(interrupted) = called.and_then(|()| py.check_signals()) {
                // Not waited for: it may be in the middle of something that takes long, as asking a file system or a coordinator that does
                // not answer. It has nothing of the interpreter's, and lets go of everything when it comes to look.
                cancel.store(true, Relaxed);
                return Err(interrupted);
            }
        };
        // It has nothing more to do.
        let _ = py.detach(|| build.join());
        let loader = built.ok_or_else(|| PyRuntimeError::new_err("the scan panicked; please report this"))?;
        Ok(Self { loader: OfThisProcess::new(Arc::new(Mutex::new(loader.map_err(raise)?))) })
    }

    /// The next batch, as a dictionary of numbers, `ids` (a buffer with `input_ids`, `labels`, `position_ids` and `document_ids`, those that
    /// were asked for, one after another) and `cu_seqlens` (a buffer, if asked for); `None` at the end of an epoch. `taken` is for
    /// `put_back`.
    fn next_batch<'py>(&self, py: Python<'py>, taken: &Taken) -> PyResult<Option<Bound<'py, PyDict>>> {
        let take = |loader: &mut TokenLoader| {
            let before = loader.state().clone();
            let next = loader.next_batch_within(LOOK_EVERY)?;
            if let NextBatch::Batch(_) = next {
                *taken.0.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((before, loader.state().clone()));
            }
            Ok(next)
        };
        loop {
            // Let go of before signals are looked at: their handlers may ask for the state.
            match self.with(py, take)? {
                NextBatch::Batch(batch) => {
                    // A signal that came meanwhile is heard here, where the caller still puts the batch back.
                    py.check_signals()?;
                    return dictionary(py, batch).map(Some);
                }
                NextBatch::EpochOver => return Ok(None),
                NextBatch::NotYet => py.check_signals()?,
            }
        }
    }

    /// The batch that was taken, if one was, is handed out again, unless somebody went on after it: another thread, with the next one.
    fn put_back(&self, py: Python<'_>, taken: &Taken) -> PyResult<()> {
        let taken = taken.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((before, after)) = taken else { return Ok(()) };
        self.with(py, |loader| if *loader.state() == after { loader.load_state(&before) } else { Ok(()) })
    }

    /// Where the stream stands, as JSON. Also in a child that was forked.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        if self.loader.is_at_home() {
            return Ok(self.lock(py)?.state().to_json());
        }
        // Nobody else runs in this child: it is held for ever, or free.
        match self.loader.try_lock() {
            Ok(loader) => Ok(loader.state().to_json()),
            Err(TryLockError::Poisoned(loader)) => Ok(loader.into_inner().state().to_json()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "this process was forked while another thread was asking the loader for a batch; fork when nobody is, or make \
                 the loader in the child",
            )),
        }
    }

    fn state_after(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.state_after(epoch, step)?.to_json()))
    }

    fn load_state(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        let state = parse_state(state)?;
        self.with(py, |loader| loader.load_state(&state))
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| {
            loader.set_epoch(epoch);
            Ok(())
        })
    }

    fn begin_loop(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |loader| {
            loader.begin_loop();
            Ok(())
        })
    }

    fn skip(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<()> {
        self.with(py, |loader| loader.skip(start..stop))
    }

    fn pass_over(&self, py: Python<'_>, steps: u64) -> PyResult<()> {
        self.with(py, |loader| {
            loader.pass_over(steps);
            Ok(())
        })
    }

    fn explain<'py>(&self, py: Python<'py>, step: u64) -> PyResult<Bound<'py, PyDict>> {
        let loader = Arc::clone(self.at_home()?);
        // It reads files.
        let explain = move || loader.lock().unwrap_or_else(PoisonError::into_inner).explain(step);
        let origin = interruptible::run(py, explain)?;
        explained(py, &origin)
    }

    #[getter]
    fn steps_per_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.steps_per_epoch()))
    }

    #[getter]
    fn steps_left(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.steps_left()))
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.state().epoch))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, masked, trouble) =
            self.with(py, |loader| Ok((loader.stats(), loader.masked(), loader.coordinator_trouble())))?;
        let told = PyDict::new(py);
        told.set_item("batches", stats.batches)?;
        told.set_item("tokens", stats.tokens)?;
        told.set_item("tokens_per_second", stats.tokens_per_second())?;
        told.set_item("elapsed_s", stats.elapsed.as_secs_f64())?;
        told.set_item("stalled_s", stats.stalled.as_secs_f64())?;
        told.set_item("decoding_s", stats.decoding.as_secs_f64())?;
        told.set_item("queue_depth", stats.queue_depth)?;
        told.set_item("row_groups_read", stats.read.row_groups)?;
        told.set_item("bytes_read", stats.read.bytes)?;
        told.set_item("fallbacks", stats.read.fallbacks)?;
        told.set_item("pages_read_again", stats.read.pages_read_again)?;
        told.set_item("masked_row_groups", stats.read.masked_row_groups)?;
        told.set_item("masked", masked)?;
        told.set_item("coordinator_trouble", trouble)?;
        Ok(told)
    }

    #[getter]
    fn is_at_home(&self) -> bool {
        self.loader.is_at_home()
    }
}

impl Drop for Loader {
    /// Threads finish what they are at first, and a coordinator is left, if it answers. Nobody else of the interpreter waits for that.
    fn drop(&mut self) {
        if let Some(loader) = self.loader.take() {
            // Where there is no interpreter any more nobody calls this, and it is dropped with what nobody calls.
            Python::try_attach(move |py| py.detach(move || drop(loader)));
        }
    }
}

impl Loader {
    /// For everything that a child that was forked cannot do with it.
    fn at_home(&self) -> PyResult<&Arc<Mutex<TokenLoader>>> {
        if !self.loader.is_at_home() {
            return Err(PyRuntimeError::new_err(
                "this loader was made by the process that this one was forked from",
            ));
        }
        Ok(&self.loader)
    }

    /// Waits for other threads of the interpreter without the lock that they need to go on.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, TokenLoader>> {
        let loader = self.at_home()?;
        loop {
            match loader.try_lock() {
                Ok(loader) => return Ok(loader),
                Err(TryLockError::Poisoned(loader)) => return Ok(loader.into_inner()),
                Err(TryLockError::WouldBlock) => {
                    py.detach(|| std::thread::sleep(Duration::from_micros(200)));
                    py.check_signals()?;
                }
            }
        }
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut TokenLoader) -> shardfeed::Result<R> + Send,
    ) -> PyResult<R> {
        let mut loader = self.lock(py)?;
        let loader = &mut *loader;
        py.detach(|| work(loader)).map_err(raise)
    }
}

impl Settings {
    fn builder(&self) -> PyResult<TokenLoaderBuilder> {
        let source = match &self.source {
            SourceGiven::One(one) => Source::from(one.as_path()),
            SourceGiven::Files(files) => Source::Files(files.clone()),
        };
        let rank = Rank::new(self.rank, self.world_size).map_err(|error| raise(error.into()))?;
        let mut builder = TokenLoader::builder(source, self.seq_len, self.global_batch)
            .rank(rank)
            .tail(parsed(&self.tail)?)
            .labels(parsed(&self.labels)?)
            .dtype(parsed(&self.dtype)?)
            .on_corrupt(parsed(&self.on_corrupt)?)
            .pad_id(self.pad_id)
            .arrays(self.arrays()?)
            .every(self.every);
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if let Some(shuffle) = self.shuffle {
            builder = builder.shuffle(shuffle);
        }
        if let Some(packing) = &self.packing {
            builder = builder.packing(parsed(packing)?);
        }
        if let Some(eos_id) = self.eos_id {
            builder = builder.eos_id(Some(eos_id));
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(bytes) = self.memory_budget {
            builder = builder.memory_budget(bytes);
        }
        if let Some(lanes) = self.lanes {
            builder = builder.lanes(lanes);
        }
        if let Some(window) = self.window {
            builder = builder.window(window);
        }
        if let Some(epoch) = self.epoch {
            builder = builder.epoch(epoch);
        }
        builder = builder.cache(match &self.cache {
            None => CachePolicy::Auto,
            Some(path) if path == Path::new("auto") => CachePolicy::Auto,
            Some(path) if path == Path::new("off") => CachePolicy::Off,
            Some(path) => CachePolicy::At(path.clone()),
        });
        Ok(builder)
    }

    /// Where it is, and who calls.
    fn coordinator(&self) -> PyResult<Option<(String, StreamingConfig)>> {
        let Some(url) = &self.coordinator else { return Ok(None) };
        let config = StreamingConfig::new(self.world_size as usize, self.rank as usize).map_err(raise)?;
        Ok(Some((url.clone(), config)))
    }

    fn arrays(&self) -> PyResult<BatchArrays> {
        let mut arrays = BatchArrays::NONE;
        for name in &self.arrays {
            let wanted = match name.as_str() {
                "input_ids" => continue,
                "labels" => &mut arrays.labels,
                "position_ids" => &mut arrays.position_ids,
                "document_ids" => &mut arrays.document_ids,
                "cu_seqlens" => &mut arrays.cu_seqlens,
                other => {
                    return Err(PyValueError::new_err(format!(
                        "unknown array {other:?}; there are input_ids, labels, position_ids, document_ids and cu_seqlens"
                    )));
                }
            };
            *wanted = true;
        }
        Ok(arrays)
    }
}

/// What may take long, on a thread of its own.
fn build(
    mut builder: TokenLoaderBuilder,
    coordinator: Option<(String, StreamingConfig)>,
    is_cancelled: &AtomicBool,
) -> shardfeed::Result<TokenLoader> {
    if let Some((url, config)) = coordinator {
        builder = builder.coordinator(Arc::new(StreamCoordinator::connect(&url, config)?));
    }
    if is_cancelled.load(Relaxed) {
        return Err(shardfeed::Error::Invalid("it was interrupted; start it again".to_owned()));
    }
    builder.build()
}

fn parsed<T: std::str::FromStr<Err = String>>(word: &str) -> PyResult<T> {
    word.parse().map_err(PyValueError::new_err)
}

fn parse_state(state: &str) -> PyResult<StreamState> {
    StreamState::from_json(state).map_err(|error: StateError| raise(error.into()))
}

fn dictionary(py: Python<'_>, batch: Batch) -> PyResult<Bound<'_, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("step", batch.step)?;
    told.set_item("epoch", batch.epoch)?;
    told.set_item("rows", batch.rows)?;
    told.set_item("tokens", batch.tokens)?;
    told.set_item("valid_labels", batch.valid_labels)?;
    let (ids, starts) = batch.into_arrays();
    told.set_item("ids", Py::new(py, Numbers::from(ids))?)?;
    if let Some(starts) = starts {
        told.set_item("cu_seqlens", Py::new(py, Numbers::from(starts))?)?;
    }
    Ok(told)
}

fn explained<'py>(py: Python<'py>, origin: &StepOrigin) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("step", origin.step)?;
    told.set_item("epoch", origin.epoch)?;
    let mut sequences = Vec::with_capacity(origin.sequences.len());
    for sequence in &origin.sequences {
        let one = PyDict::new(py);
        one.set_item("rank", sequence.rank)?;
        one.set_item("row", sequence.row)?;
        one.set_item("position", sequence.position)?;
        let mut parts = Vec::with_capacity(sequence.parts.len());
        for part in &sequence.parts {
            let place = PyDict::new(py);
            place.set_item("file", &part.file)?;
            place.set_item("row_group", part.row_group)?;
            place.set_item("rows", (part.rows.start, part.rows.end))?;
            place.set_item("first_token_of_row", part.first_token_of_row)?;
            place.set_item("tokens", (part.tokens.start, part.tokens.end))?;
            parts.push(place);
        }
        one.set_item("parts", parts)?;
        sequences.push(one);
    }
    told.set_item("sequences", sequences)?;
    Ok(told)
}
