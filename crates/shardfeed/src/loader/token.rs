use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use shardfeed_plan::lease::{JOB_FORMAT, Meta};
use shardfeed_plan::{
    EpochOrder, Fingerprint, Manifest, Packing, Rank, SettingsRequest, SkipsError, StateError,
    StreamSettings, StreamState, Tail,
};

use crate::array::ArrayPool;
use crate::batch::{Batch, BatchArrays, BatchShape, Dtype, LabelStyle};
use crate::coordinator::{Session, Standing, StreamCoordinator, Work};
use crate::engine::{Engine, EngineSettings, Next, plan_memory};
use crate::explain::{StepOrigin, explain_step};
use crate::line_reader::{LineSource, OnCorrupt};
use crate::page_memory::WORK_BYTES_USUAL;
use crate::parallel::default_threads;
use crate::scan::scan;
use crate::slot::SlotPool;
use crate::stats::Counters;
use crate::{CachePolicy, DataSet, Error, LoaderStats, ReadCounts, Result, ScanOptions, ScanReport, Source};

/// One rank's stream of batches.
///
/// Step `s` is the same set of sequences at every world size; [`state`](Self::state) is the same on every rank and
/// resumes the stream at any other world size, with exactly the steps that were left. See the crate's example.
pub struct TokenLoader {
    data: Arc<DataSet>,
    request: SettingsRequest,
    global_batch: u32,
    rank: Rank,
    tail: Tail,
    batch: BatchOptions,
    on_corrupt: OnCorrupt,
    threads: usize,
    memory_budget: u64,
    every: u32,
    scan_report: ScanReport,
    state: StreamState,
    /// Where the stream stood when it left an epoch: the last of which anything was handed out or skipped. Of those since then, all is
    /// known. Nothing is, once a state was loaded.
    before: Option<StreamState>,
    source: Arc<LineSource>,
    /// Runs from the first batch of an epoch to its last; a change of position ends it.
    engine: Option<Engine>,
    pool: ArrayPool,
    slots: SlotPool,
    counters: Arc<Counters>,
    stats: LoaderStats,
    /// When the first batch was asked for.
    began: Option<Instant>,
    /// What the coordinator is told, if there is one: written here, read elsewhere.
    told: Arc<Told>,
    coordinator: Option<Arc<StreamCoordinator>>,
    /// From the first batch on.
    session: Option<Arc<Session>>,
}

/// What [`TokenLoader::next_batch_within`] gives.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A box would be an allocation for each batch.
pub enum NextBatch {
    /// The next batch.
    Batch(Batch),
    /// Once at the end of each epoch, after which the next epoch begins.
    EpochOver,
    /// It takes longer. Nothing is lost: ask again.
    NotYet,
}

/// Gathers what a [`TokenLoader`] is to do; [`build`](Self::build) judges it.
#[derive(Clone, Debug)]
pub struct TokenLoaderBuilder {
    source: Source,
    request: SettingsRequest,
    global_batch: u32,
    rank: Rank,
    tail: Tail,
    batch: BatchOptions,
    on_corrupt: OnCorrupt,
    threads: Option<usize>,
    memory_budget: u64,
    every: u32,
    scan: ScanOptions,
    state: Option<StreamState>,
    epoch: Option<u64>,
    coordinator: Option<Arc<StreamCoordinator>>,
}

/// Sequences handed out, and where the stream stands.
#[derive(Debug, Default)]
struct Told {
    sequences: AtomicU64,
    epoch: AtomicU64,
    position: AtomicU64,
}

impl Told {
    fn stands(&self, state: &StreamState) {
        self.epoch.store(state.epoch, Relaxed);
        self.position.store(state.position, Relaxed);
    }
}

impl Work for Told {
    fn standing(&self) -> Standing {
        let load = |number: &AtomicU64| number.load(Relaxed);
        let Self { sequences, epoch, position } = self;
        Standing { samples: load(sequences), epoch: load(epoch), position: load(position) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct BatchOptions {
    dtype: Dtype,
    labels: LabelStyle,
    pad_id: u32,
    arrays: BatchArrays,
}

/// More are a mistake.
const THREADS_MAX: usize = 1024;
/// Threads beyond this seldom help one rank, and take the trainer's cores.
const THREADS_DEFAULT_MAX: usize = 8;

impl TokenLoader {
    /// Bytes that a loader stays within unless told otherwise. Far more than most settings need: what they do need
    /// is all that is taken.
    pub const MEMORY_BUDGET_DEFAULT: u64 = 8 << 30;

    /// Streams `source` in sequences of `seq_len` tokens, `global_batch` of them a step over all ranks.
    pub fn builder(source: impl Into<Source>, seq_len: u32, global_batch: u32) -> TokenLoaderBuilder {
        TokenLoaderBuilder {
            source: source.into(),
            request: SettingsRequest { seq_len, ..SettingsRequest::default() },
            global_batch,
            rank: Rank::single(),
            tail: Tail::default(),
            batch: BatchOptions::default(),
            on_corrupt: OnCorrupt::default(),
            threads: None,
            memory_budget: TokenLoader::MEMORY_BUDGET_DEFAULT,
            every: 1,
            scan: ScanOptions::default(),
            state: None,
            epoch: None,
            coordinator: None,
        }
    }

    /// The next batch; `None` once at the end of each epoch, after which the next epoch begins.
    ///
    /// After an error the stream stands where it stood: the next call tries again.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        loop {
            match self.next_batch_within(Duration::MAX)? {
                NextBatch::Batch(batch) => return Ok(Some(batch)),
                NextBatch::EpochOver => return Ok(None),
                NextBatch::NotYet => {}
            }
        }
    }

    /// The same for callers who have something else to look after: they wait no longer than `patience`.
    pub fn next_batch_within(&mut self, patience: Duration) -> Result<NextBatch> {
        let asked = Instant::now();
        let began = *self.began.get_or_insert(asked);
        if self.session.is_none()
            && let Some(coordinator) = self.coordinator.clone()
        {
            self.join(&coordinator)?;
        }
        if self.engine.is_none() {
            // An epoch of its own may end otherwise than the rest of the one that was resumed.
            check_tail(&self.source.order, &self.state, self.tail)?;
            self.engine = Some(Engine::start(&self.source, &self.state, &self.engine_settings())?);
        }
        match self.engine.as_ref().expect("just started").next(patience) {
            Ok(Next::Batch(batch, next_position)) => {
                self.state.position = next_position;
                self.told.sequences.fetch_add(batch.real_rows as u64, Relaxed);
                self.told.stands(&self.state);
                let now = Instant::now();
                self.stats.batches += 1;
                self.stats.tokens += batch.tokens;
                self.stats.elapsed = now - began;
                self.stats.stalled += now - asked;
                Ok(NextBatch::Batch(batch))
            }
            Ok(Next::Over) => {
                self.go_to_epoch(self.state.epoch.saturating_add(1));
                Ok(NextBatch::EpochOver)
            }
            Ok(Next::NotYet) => {
                self.stats.stalled += asked.elapsed();
                Ok(NextBatch::NotYet)
            }
            Err(error) => {
                self.engine = None;
                Err(error)
            }
        }
    }

    /// Not before somebody asks for a batch: a loader that others were made from, as in the workers of a DataLoader, would hold its rank
    /// against the one that has the work.
    fn join(&mut self, coordinator: &StreamCoordinator) -> Result<()> {
        let Fingerprint(bytes) = self.data.manifest().fingerprint();
        let (first, _) = bytes.split_at(8);
        let meta = Meta {
            format: JOB_FORMAT,
            world_size: self.rank.world_size(),
            samples: self.source.order.sequences(),
            fingerprint: u64::from_le_bytes(first.try_into().expect("eight bytes")),
            facts: 0,
            shuffle_seed: Some(self.state.settings.seed),
            strategy: None,
        };
        self.told.stands(&self.state);
        let work: Arc<dyn Work> = Arc::clone(&self.told) as Arc<dyn Work>;
        self.session = Some(coordinator.join_reporting(self.rank, meta, work)?);
        Ok(())
    }

    /// Why the coordinator does not answer at present, or refuses; `None` if it does answer, or there is none.
    pub fn coordinator_trouble(&self) -> Option<String> {
        self.session.as_ref().and_then(|session| session.trouble())
    }

    /// The batches of one epoch, from where the stream stands.
    pub fn batches(&mut self) -> impl Iterator<Item = Result<Batch>> + '_ {
        self.begin_loop();
        std::iter::from_fn(|| self.next_batch().transpose())
    }

    /// To be called where a loop over an epoch begins. Trainers that know the number of steps stop at the last and never hear that the
    /// epoch is over: the loop after such a one is the next epoch, not an empty rest of the last. A state that was *loaded* at the end
    /// of an epoch keeps its place, and the loop in which it was saved ends at once.
    pub fn begin_loop(&mut self) {
        let has_delivered = self.engine.is_some();
        if has_delivered && self.steps_left() == 0 {
            self.go_to_epoch(self.state.epoch.saturating_add(1));
        }
    }

    /// Ends its threads and lets go of what they prepared. The next batch starts them again.
    pub fn pause(&mut self) {
        self.engine = None;
    }

    /// Where the stream stands: what was handed out, never what was prepared.
    pub fn state(&self) -> &StreamState {
        &self.state
    }

    /// Where the stream stands once a step was handed out, of this epoch, a later one or the one before: for those whose batches come
    /// from loaders elsewhere, or who ask when the epoch is over. After the last step of an epoch that is over it is the start of the next.
    pub fn state_after(&self, epoch: u64, step: u64) -> Result<StreamState> {
        let sequences = self.source.order.sequences();
        let no_step = || Error::NoStep { step, epoch };
        let mut state = self.state_in(epoch).ok_or_else(no_step)?;
        let is_forgotten = state.steps.changes().first().is_some_and(|first| step < first.step);
        if is_forgotten || step >= state.steps.steps_before(sequences) {
            return Err(no_step());
        }
        state.position = state.steps.position_after(step, sequences, &state.skips);
        let (order, global_batch) = (&self.source.order, state.steps.global_batch());
        let is_last = order.steps_from(state.position, &state.skips, global_batch, self.tail) == 0;
        state.steps.go_back(step);
        if epoch < self.state.epoch && is_last {
            state = self.state_in(epoch + 1).ok_or_else(no_step)?;
            state.position = 0;
        }
        Ok(state)
    }

    /// What is known of an epoch: how its steps are numbered, and which are skipped. `None` if it was forgotten.
    fn state_in(&self, epoch: u64) -> Option<StreamState> {
        let known = [Some(&self.state), self.before.as_ref()].into_iter().flatten();
        if let Some(state) = known.into_iter().find(|state| state.epoch == epoch) {
            return Some(state.clone());
        }
        let is_passed =
            epoch < self.state.epoch && self.before.as_ref().is_none_or(|before| epoch < before.epoch);
        // Nothing was told about a later one, nor about one that was passed over.
        (!is_passed).then(|| {
            let settings = self.state.settings.clone();
            StreamState::start(self.state.fingerprint, settings, epoch, self.global_batch)
        })
    }

    /// Continues where `state` stands. Adopts its settings, and refuses it if anything that was given explicitly
    /// differs, or if it belongs to another data set.
    pub fn load_state(&mut self, state: &StreamState) -> Result<()> {
        state.check()?;
        self.request.check_against(&state.settings)?;
        refuse_eos_without_place(&state.settings, &self.batch)?;
        let manifest = self.data.manifest();
        if state.fingerprint != manifest.fingerprint() {
            let (state, data) = (state.fingerprint, manifest.fingerprint());
            return Err(StateError::OtherData { state, data }.into());
        }
        if state.settings.packing == Packing::Pad && manifest.sizes(&state.settings).is_none() {
            return Err(Error::Invalid(
                "the state was saved with packing \"pad\"; give the loader packing pad, so that it counts rows".to_owned(),
            ));
        }
        let source = line_source(&self.data, &state.settings, state.epoch, self.on_corrupt)?;
        state.check_data(manifest.fingerprint(), source.order.sequences())?;
        let mut state = state.clone();
        state.steps.change(state.position, self.global_batch);
        check_tail(&source.order, &state, self.tail)?;
        plan_memory(&source, &state, &self.engine_settings())?;
        (self.source, self.state, self.engine, self.before) = (source, state, None, None);
        Ok(())
    }

    /// Goes to the beginning of `epoch`; within the current one it keeps the position, since trainers call this
    /// after a resume.
    pub fn set_epoch(&mut self, epoch: u64) {
        if epoch != self.state.epoch {
            self.go_to_epoch(epoch);
        }
    }

    /// Goes on as if so many steps had been handed out; at most to the epoch's end.
    pub fn pass_over(&mut self, steps: u64) {
        self.engine = None;
        self.state.pass_over(steps, self.source.order.sequences());
        self.told.stands(&self.state);
    }

    /// Leaves a range of steps of this epoch out, for example after a loss spike. All other steps stay as they
    /// were, with their numbers. Call it alike on every rank; it is part of the state.
    pub fn skip(&mut self, steps: Range<u64>) -> Result<()> {
        let Range { start, end } = steps;
        if steps.is_empty() {
            return Err(SkipsError::Empty { start, end }.into());
        }
        let sequences = self.source.order.sequences();
        let numbers = &self.state.steps;
        let position_of = |step| numbers.position_of(step, sequences, &self.state.skips);
        let from = position_of(start).max(self.state.position);
        let to = position_of(end);
        if from >= to {
            let steps = numbers.steps_before(sequences);
            let next = numbers.number(self.state.skips.nth_live(self.state.position, 0)).min(steps);
            return Err(SkipsError::OutOfReach { start, end, next, steps }.into());
        }
        let mut state = self.state.clone();
        state.skips.add(from..to)?;
        check_tail(&self.source.order, &state, self.tail)?;
        (self.state, self.engine) = (state, None);
        Ok(())
    }

    /// The files, row groups, rows and tokens of a step of this epoch, delivered or not. Reads levels to tell.
    pub fn explain(&self, step: u64) -> Result<StepOrigin> {
        let no_step = || Error::NoStep { step, epoch: self.state.epoch };
        let order = &self.source.order;
        let found = self.state.steps.find(step, order, &self.state.skips).ok_or_else(no_step)?;
        let plan = order
            .step_at(found.position, &self.state.skips, found.global_batch, self.tail)
            .ok_or_else(no_step)?;
        explain_step(&self.source, self.state.epoch, step, &plan, self.rank.world_size())
    }

    /// Steps of a whole epoch: the same for every rank and every epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.source.order.steps_from(0, &shardfeed_plan::Skips::default(), self.global_batch, self.tail)
    }

    /// Steps from here to the epoch's end.
    pub fn steps_left(&self) -> u64 {
        self.source.order.steps_from(self.state.position, &self.state.skips, self.global_batch, self.tail)
    }

    /// Sequences of a whole epoch.
    pub fn sequences_per_epoch(&self) -> u64 {
        self.source.order.sequences()
    }

    /// What is in the data set.
    pub fn manifest(&self) -> &Manifest {
        self.data.manifest()
    }

    /// The settings that define the order, automatic ones filled in.
    pub fn settings(&self) -> &StreamSettings {
        &self.state.settings
    }

    /// This loader's rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Row groups opened and bytes read so far.
    pub fn read_counts(&self) -> ReadCounts {
        self.data.counts()
    }

    /// What the loader did so far: tokens per second, how long the trainer waited, bytes read, and more.
    pub fn stats(&self) -> LoaderStats {
        LoaderStats {
            decoding: self.counters.decoding(),
            queue_depth: self.engine.as_ref().map_or(0, Engine::queue_depth),
            read: self.data.counts(),
            ..self.stats
        }
    }

    /// Row groups whose tokens are masked, since they are damaged, by their number in the manifest; and why. The first
    /// thousand.
    pub fn masked(&self) -> Vec<(u32, String)> {
        self.data.masked()
    }

    /// What the scan at the start did.
    pub fn scan_report(&self) -> &ScanReport {
        &self.scan_report
    }

    fn go_to_epoch(&mut self, epoch: u64) {
        self.engine = None;
        let settings = self.state.settings.clone();
        let start =
            StreamState::start(self.data.manifest().fingerprint(), settings, epoch, self.global_batch);
        let left = std::mem::replace(&mut self.state, start);
        let is_touched = left != StreamState { epoch: left.epoch, ..self.state.clone() };
        // One that is passed over leaves what is known of an epoch before it, and of no other: it may be the same one, begun anew.
        if is_touched || self.before.as_ref().is_none_or(|before| before.epoch >= left.epoch) {
            self.before = Some(left);
        }
        self.source = line_source(&self.data, &self.state.settings, epoch, self.on_corrupt)
            .expect("it could be made before");
    }

    fn check_budget(&self) -> Result<()> {
        plan_memory(&self.source, &self.state, &self.engine_settings()).map(drop)
    }

    fn engine_settings(&self) -> EngineSettings {
        let share = self.rank.share(u64::from(self.global_batch));
        EngineSettings {
            rank: self.rank,
            every: self.every,
            shape: BatchShape {
                rows: (share.end - share.start) as usize,
                seq_len: self.state.settings.seq_len as usize,
                dtype: self.batch.dtype,
                labels: self.batch.labels,
                pad_id: self.batch.pad_id,
                arrays: self.batch.arrays,
                pool: self.pool.clone(),
            },
            tail: self.tail,
            threads: self.threads,
            memory_budget: self.memory_budget,
            counters: Arc::clone(&self.counters),
            slots: self.slots.clone(),
        }
    }
}

fn line_source(
    data: &Arc<DataSet>,
    settings: &StreamSettings,
    epoch: u64,
    on_corrupt: OnCorrupt,
) -> Result<Arc<LineSource>> {
    let sizes = data.manifest().sizes(settings).ok_or_else(|| {
        Error::Invalid(format!("rows are not counted at seq_len {}; scan with it", settings.seq_len))
    })?;
    let order = EpochOrder::new(&sizes, settings, epoch);
    Ok(Arc::new(LineSource { data: Arc::clone(data), order, settings: settings.clone(), on_corrupt }))
}

/// Padded rows end without the `eos_id`: it is the label after their last token. Labels that are a copy of the tokens have none, and a model would
/// never see it.
fn refuse_eos_without_place(settings: &StreamSettings, batch: &BatchOptions) -> Result<()> {
    match settings.eos_id {
        Some(eos_id) if settings.packing == Packing::Pad && batch.labels == LabelStyle::Unshifted => {
            Err(Error::Invalid(format!(
                "eos_id {eos_id} would be nowhere: with packing \"pad\" it is the label after a row's last token, and \"unshifted\" labels have none \
                 there; take \"shifted\" labels or packing \"concat\", or write it into the data and leave eos_id out"
            )))
        }
        _ => Ok(()),
    }
}

/// A tail that the user forbids is refused before the first step, not after days.
fn check_tail(order: &EpochOrder, state: &StreamState, tail: Tail) -> Result<()> {
    let global_batch = state.steps.global_batch();
    let live = state.skips.live_within(state.position..order.sequences());
    let is_short = |sequences: u64| !sequences.is_multiple_of(u64::from(global_batch));
    let (sequences, of) = match tail {
        Tail::Error if is_short(live) => (live, "are left in the epoch"),
        Tail::Error if is_short(order.sequences()) => (order.sequences(), "are in every later epoch"),
        // At the end of an epoch nothing is left; from its beginning there must be something.
        Tail::Drop if state.position == 0 && live < u64::from(global_batch) => (live, "are in the epoch"),
        _ => return Ok(()),
    };
    Err(Error::Tail { sequences, of, global_batch })
}

impl TokenLoaderBuilder {
    /// Which rank of how many; the only one by default. Ranks that must see the same data pass the same.
    pub fn rank(mut self, rank: Rank) -> Self {
        self.rank = rank;
        self
    }

    /// Another seed, another order. 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.request.seed = Some(seed);
        self
    }

    /// Off: file order, for looking at data. Every rank then reads nearly everything.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.request.shuffle = Some(shuffle);
        self
    }

    /// How rows become sequences; joined by default.
    pub fn packing(mut self, packing: Packing) -> Self {
        self.request.packing = Some(packing);
        self
    }

    /// The id that ends each document: on the line with [`Packing::Concat`], as a label with [`Packing::Pad`].
    pub fn eos_id(mut self, eos_id: Option<u32>) -> Self {
        self.request.eos_id = Some(eos_id);
        self
    }

    /// The token where there is none; 0 by default.
    pub fn pad_id(mut self, pad_id: u32) -> Self {
        self.batch.pad_id = pad_id;
        self
    }

    /// What happens to a row group that is damaged; an error by default.
    pub fn on_corrupt(mut self, on_corrupt: OnCorrupt) -> Self {
        self.on_corrupt = on_corrupt;
        self
    }

    /// What happens to a last step that is not full.
    pub fn tail(mut self, tail: Tail) -> Self {
        self.tail = tail;
        self
    }

    /// What labels hold.
    pub fn labels(mut self, labels: LabelStyle) -> Self {
        self.batch.labels = labels;
        self
    }

    /// Integer type of batches.
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.batch.dtype = dtype;
        self
    }

    /// Also give the starts of documents, as attention with variable lengths takes them.
    pub fn cu_seqlens(mut self, wanted: bool) -> Self {
        self.batch.arrays.cu_seqlens = wanted;
        self
    }

    /// Which arrays batches have besides `input_ids`; those left out are empty. All but `cu_seqlens` by default.
    pub fn arrays(mut self, arrays: BatchArrays) -> Self {
        self.batch.arrays = arrays;
        self
    }

    /// Places of the epoch that are read at once. Set it when the global batch will grow: to a multiple of the
    /// last one.
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.request.lanes = Some(lanes);
        self
    }

    /// Sequences among which a lane shuffles.
    pub fn window(mut self, window: u32) -> Self {
        self.request.window = Some(window);
        self
    }

    /// Threads that decode: the machine's cores by default, at most 8.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Bytes to stay within, [`TokenLoader::MEMORY_BUDGET_DEFAULT`] if not given. Refused if the settings need more.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = bytes;
        self
    }

    /// Hands out one step of every so many and passes over those in between: for loaders that take turns, of which each begins
    /// where [`pass_over`](TokenLoader::pass_over) puts it. The state says where this one continues. 1 by default: every step.
    pub fn every(mut self, steps: u32) -> Self {
        self.every = steps;
        self
    }

    /// Stops the scan, with an error, once the flag is set. For those who want to interrupt it.
    pub fn cancel(mut self, flag: Arc<AtomicBool>) -> Self {
        self.scan.cancel = Some(flag);
        self
    }

    /// Where the manifest is kept for the next start.
    pub fn cache(mut self, cache: CachePolicy) -> Self {
        self.scan.cache = cache;
        self
    }

    /// Called now and then while the data set is scanned, with work done and to do.
    pub fn scan_progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.scan.progress = Some(Arc::new(progress));
        self
    }

    /// Begins with this epoch; 0 by default, or the state's.
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// Continues where this state stands.
    pub fn resume_from(mut self, state: StreamState) -> Self {
        self.state = Some(state);
        self
    }

    /// Tells this coordinator how the rank does and where it stands, from the first batch on. The order needs no coordinator, and no
    /// batch waits for one: when it is away, nothing changes but that nobody hears of it.
    pub fn coordinator(mut self, coordinator: Arc<StreamCoordinator>) -> Self {
        self.coordinator = Some(coordinator);
        self
    }

    /// Scans the data set, checks everything and makes the loader. No data is read before the first batch.
    pub fn build(mut self) -> Result<TokenLoader> {
        if self.global_batch == 0 || self.global_batch < self.rank.world_size() {
            return Err(Error::Invalid(format!(
                "the global batch is {} for {} ranks; each rank needs at least one sequence a step",
                self.global_batch,
                self.rank.world_size()
            )));
        }
        if self.batch.dtype == Dtype::Int32 && i32::try_from(self.batch.pad_id).is_err() {
            return Err(Error::Invalid(format!("pad_id {} does not fit int32", self.batch.pad_id)));
        }
        if self.every == 0 {
            return Err(Error::Invalid(
                "one step of every 0 is handed out; give 1 for every step".to_owned(),
            ));
        }
        if let Some(coordinator) = &self.coordinator
            && coordinator.world_size() != self.rank.world_size()
        {
            return Err(Error::Invalid(format!(
                "a loader of world size {} with a coordinator of world size {}; give both the same",
                self.rank.world_size(),
                coordinator.world_size()
            )));
        }
        let share = self.rank.share(u64::from(self.global_batch));
        if self.batch.arrays.cu_seqlens
            && (share.end - share.start) * u64::from(self.request.seq_len) > i32::MAX as u64
        {
            return Err(Error::Invalid("cu_seqlens has 32 bits; this batch has more tokens".to_owned()));
        }
        if let Some(threads) = self.threads.filter(|threads| !(1..=THREADS_MAX).contains(threads)) {
            return Err(Error::Invalid(format!("threads is {threads}; it goes from 1 to {THREADS_MAX}")));
        }
        let mut settings = self.request.resolve(self.global_batch)?;
        if let Some(state) = &self.state {
            state.check()?;
            self.request.check_against(&state.settings)?;
            if let Some(epoch) = self.epoch.filter(|&epoch| epoch != state.epoch) {
                let (saved, given) = (state.epoch.to_string(), epoch.to_string());
                return Err(StateError::OtherSetting { setting: "epoch", saved, given }.into());
            }
            settings = state.settings.clone();
        }
        refuse_eos_without_place(&settings, &self.batch)?;
        let epoch = self.epoch.unwrap_or(0);
        self.scan.threads = self.scan.threads.or(self.threads);
        // Counting comes before anything else takes memory; a budget that is too small for the rest is refused after.
        self.scan.memory_budget = Some(self.memory_budget.max(WORK_BYTES_USUAL * default_threads() as u64));
        self.scan.pieces_of = (settings.packing == Packing::Pad).then_some(settings.seq_len);
        let (data, scan_report) = scan(&self.source, &self.scan)?;
        let source = line_source(&data, &settings, epoch, self.on_corrupt)?;
        if source.order.sequences() == 0 {
            let (files, rows) = (data.manifest().files().len(), data.manifest().rows());
            return Err(Error::NoTokens { what: self.source.to_string(), files, rows });
        }
        let fingerprint = data.manifest().fingerprint();
        let state = StreamState::start(fingerprint, settings, epoch, self.global_batch);
        let mut loader = TokenLoader {
            data,
            request: self.request,
            global_batch: self.global_batch,
            rank: self.rank,
            tail: self.tail,
            batch: self.batch,
            on_corrupt: self.on_corrupt,
            threads: self.threads.unwrap_or_else(|| default_threads().min(THREADS_DEFAULT_MAX)),
            memory_budget: self.memory_budget,
            every: self.every,
            scan_report,
            state,
            before: None,
            source,
            engine: None,
            pool: ArrayPool::default(),
            slots: SlotPool::default(),
            counters: Arc::default(),
            stats: LoaderStats::default(),
            began: None,
            told: Arc::default(),
            coordinator: self.coordinator,
            session: None,
        };
        match &self.state {
            Some(state) => loader.load_state(state)?,
            None => check_tail(&loader.source.order, &loader.state, loader.tail)?,
        }
        // A budget that is too small is refused here, not at the first batch.
        loader.check_budget()?;
        if let Some(coordinator) = &loader.coordinator {
            coordinator.let_go_of_reporter(loader.rank)?;
        }
        Ok(loader)
    }
}
