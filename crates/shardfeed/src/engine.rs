use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use shardfeed_plan::{Rank, StepPlan, StreamState, Tail, steps_ahead};

use crate::batch::{Batch, BatchShape};
use crate::lane::{Lane, lane_bytes};
use crate::page_memory::{PageMemory, WORK_BYTES_USUAL};
use crate::stats::Counters;
use crate::window::LineSource;
use crate::{Error, Result, foreign};

/// Makes one rank's batches of one epoch, in order, some steps ahead of the trainer.
///
/// Work is divided by lane: a lane is decoded by one thread at a time and writes its rows into whichever batches
/// are open, so threads share nothing but the queue. Nobody polls: threads sleep until a lane has work or a step
/// may be opened, the trainer until its batch is ready.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What an engine needs to know.
pub(crate) struct EngineSettings {
    pub rank: Rank,
    pub shape: BatchShape,
    pub tail: Tail,
    pub threads: usize,
    /// Bytes to stay within.
    pub memory_budget: u64,
    pub counters: Arc<Counters>,
}

struct Shared {
    source: Arc<LineSource>,
    rank: Rank,
    shape: BatchShape,
    steps_ahead: usize,
    steps_to_wake_for: usize,
    page_memory: Arc<PageMemory>,
    counters: Arc<Counters>,
    queue: Mutex<Queue>,
    /// A lane has work, or a step may be opened.
    work: Condvar,
    /// The first open step is ready, or there is none any more.
    ready: Condvar,
}

#[allow(clippy::struct_excessive_bools)] // Each can be true without the others.
struct Queue {
    steps: VecDeque<OpenStep>,
    /// Ordinal of the first of `steps`, counted from the engine's start.
    first: u64,
    lanes: HashMap<u32, LaneSlot>,
    /// Lanes with work that nobody is at, those of the earliest step first.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Lanes that could go ahead; some of them may have done so since.
    ahead: VecDeque<u32>,
    /// Opens steps; away while a thread does so.
    planner: Option<Planner>,
    /// Of steps that were taken, to be used again.
    spare: Vec<Arc<Filling>>,
    epoch_planned: bool,
    stopped: bool,
    /// A thread panicked.
    broken: bool,
    /// Threads that sleep, and whether the trainer does: nobody else is woken, which costs a system call.
    idle_threads: usize,
    trainer_waits: bool,
}

struct OpenStep {
    filling: Arc<Filling>,
    next_position: u64,
    ready: bool,
}

/// A batch that threads write into.
#[derive(Default)]
struct Filling {
    batch: Mutex<Option<Batch>>,
    /// The position in the epoch of each row that is not padding.
    positions: Vec<u64>,
    rows_left: AtomicUsize,
    error: Mutex<Option<Error>>,
}

#[derive(Default)]
struct LaneSlot {
    /// Away while a thread is at it; `None` before the first.
    lane: Option<Box<Lane>>,
    busy: bool,
    jobs: VecDeque<Job>,
    /// What it delivered last, if it could go ahead from there.
    ahead_from: Option<u64>,
}

/// Rows of one step that come from one lane.
struct Job {
    step: u64,
    lane: u32,
    /// Rows of the batch.
    rows: Range<usize>,
    filling: Arc<Filling>,
}

struct Planner {
    state: StreamState,
    tail: Tail,
    next_ordinal: u64,
    plan: StepPlan,
    jobs: Vec<Job>,
}

/// Once the trainer has to wait, tokens to be ready before it is woken: a thread takes longer to wake than a small
/// batch to make, so it is not woken for each.
const TOKENS_TO_WAKE_FOR: usize = 1 << 16;
/// One being taken, one being made.
const STEPS_AHEAD_MIN: u64 = 2;

impl Engine {
    /// Starts threads that prepare the steps from `state` on.
    pub fn start(source: &Arc<LineSource>, state: &StreamState, settings: &EngineSettings) -> Result<Self> {
        let MemoryPlan { steps_ahead, page_memory } = plan_memory(source, state, settings)?;
        let planner = Planner {
            state: state.clone(),
            tail: settings.tail,
            next_ordinal: 0,
            plan: StepPlan::default(),
            jobs: Vec::new(),
        };
        let shared = Arc::new(Shared {
            source: Arc::clone(source),
            rank: settings.rank,
            shape: settings.shape.clone(),
            steps_ahead,
            steps_to_wake_for: steps_to_wake_for(&settings.shape, steps_ahead),
            page_memory: Arc::new(page_memory),
            counters: Arc::clone(&settings.counters),
            queue: Mutex::new(Queue {
                steps: VecDeque::new(),
                first: 0,
                lanes: HashMap::new(),
                waiting: BinaryHeap::new(),
                ahead: VecDeque::new(),
                planner: Some(planner),
                spare: Vec::new(),
                epoch_planned: false,
                stopped: false,
                broken: false,
                idle_threads: 0,
                trainer_waits: false,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut engine = Self { shared, threads: Vec::with_capacity(settings.threads) };
        for index in 0..settings.threads.max(1) {
            let shared = Arc::clone(&engine.shared);
            let thread = std::thread::Builder::new()
                .name(format!("shardfeed-{index}"))
                .spawn(move || {
                    // Jobs catch their own panics; should the queue itself have one, nobody must wait for ever.
                    if foreign::call(|| shared.work()).is_err() {
                        shared.lock().broken = true;
                        shared.ready.notify_all();
                    }
                })
                .map_err(|error| Error::Invalid(format!("cannot start decoding thread {index}: {error}")))?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// The next batch, and where the stream stands once it is taken. `None` when the epoch is over.
    pub fn next(&self) -> Result<Option<(Batch, u64)>> {
        let mut queue = self.shared.lock();
        loop {
            match queue.steps.front() {
                Some(step) if step.ready => break,
                _ if queue.broken => {
                    return Err(Error::Invalid("a decoding thread panicked; please report this".to_owned()));
                }
                None if queue.epoch_planned => return Ok(None),
                _ => {
                    queue.trainer_waits = true;
                    queue = self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.trainer_waits = false;
                }
            }
        }
        let step = queue.steps.pop_front().expect("just seen");
        queue.first += 1;
        let has_idle_threads = queue.idle_threads > 0;
        drop(queue);
        if has_idle_threads {
            // One place is free for a step; after the first batch, several.
            self.shared.work.notify_one();
        }
        if let Some(error) = lock(&step.filling.error).take() {
            return Err(error);
        }
        let batch = lock(&step.filling.batch).take().expect("taken once");
        self.shared.lock().spare.push(step.filling);
        Ok(Some((batch, step.next_position)))
    }

    /// Batches that are ready.
    pub fn queue_depth(&self) -> usize {
        self.shared.lock().steps.iter().take_while(|step| step.ready).count()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was already turned into an error of its step.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// What each thread does until the engine stops.
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return;
            }
            if let Some((mut lane, job)) = queue.next_job(|lane| self.new_lane(lane)) {
                drop(queue);
                let is_step_ready = self.run(&mut lane, &job);
                let last = job.filling.positions[job.rows.end - 1];
                let index = self.source.order.place(last).index;
                // Whoever resumes waits for the first batch, not for what comes after it.
                let ahead_from = (job.step > 0 && lane.can_go_ahead(index)).then_some(index);
                queue = self.lock();
                queue.lane_is_free(lane, job.lane, ahead_from);
                if is_step_ready {
                    let index = (job.step - queue.first) as usize;
                    queue.steps[index].ready = true;
                    if queue.trainer_waits && queue.may_wake(self.steps_to_wake_for) {
                        self.ready.notify_all();
                    }
                }
            } else if queue.may_plan(self.steps_ahead)
                && let Some(mut planner) = queue.planner.take()
            {
                let filling = queue.spare.pop().unwrap_or_default();
                drop(queue);
                let planned = self.plan(&mut planner, filling);
                queue = self.lock();
                match planned {
                    Some(step) => {
                        let ready = step.ready;
                        queue.steps.push_back(step);
                        for job in planner.jobs.drain(..) {
                            queue.add(job);
                        }
                        queue.planner = Some(planner);
                        if queue.idle_threads > 0 {
                            self.work.notify_all();
                        }
                        if ready {
                            self.ready.notify_all();
                        }
                    }
                    None => {
                        queue.epoch_planned = true;
                        self.ready.notify_all();
                    }
                }
            } else if let Some((mut lane, number, index)) = queue.next_ahead() {
                drop(queue);
                let since = Instant::now();
                let done = foreign::call(|| lane.go_ahead(index));
                if !matches!(done, Ok(Ok(()))) {
                    // Whoever needs what could not be decoded will say why.
                    lane = self.new_lane(number);
                }
                lane.park();
                self.counters.add_decoding(since);
                queue = self.lock();
                queue.lane_is_free(lane, number, None);
            } else {
                queue.idle_threads += 1;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle_threads -= 1;
            }
        }
    }

    fn new_lane(&self, lane: u32) -> Box<Lane> {
        Box::new(Lane::new(&self.source, lane, &self.page_memory))
    }

    /// Writes a job's rows. True if they were the last of their step.
    fn run(&self, lane: &mut Box<Lane>, job: &Job) -> bool {
        let since = Instant::now();
        // Should anything here ever panic, the trainer gets an error, not a hang.
        let filled =
            foreign::call(|| self.fill(lane, job)).unwrap_or_else(|panic| Err(Error::Invalid(panic)));
        if let Err(error) = filled {
            lock(&job.filling.error).get_or_insert(error);
            // Its window is somewhere in the middle of something: steps behind this one begin anew.
            *lane = self.new_lane(job.lane);
        }
        lane.park();
        let rows = job.rows.len();
        let is_last = job.filling.rows_left.fetch_sub(rows, AcqRel) == rows;
        if is_last && let Some(batch) = lock(&job.filling.batch).as_mut() {
            self.shape.finish(batch);
        }
        self.counters.add_decoding(since);
        is_last
    }

    fn fill(&self, lane: &mut Lane, job: &Job) -> Result<()> {
        for row in job.rows.clone() {
            let position = job.filling.positions[row];
            let place = self.source.order.place(position);
            lane.deliver(place.index, job.step == 0, |sequence| {
                let mut batch = lock(&job.filling.batch);
                let batch = batch.as_mut().expect("not taken before it is ready");
                self.shape.fill(batch, row, sequence, position)
            })??;
        }
        Ok(())
    }

    /// Opens the next step, in a filling that nobody else has; its jobs are left with the planner.
    fn plan(&self, planner: &mut Planner, mut filling: Arc<Filling>) -> Option<OpenStep> {
        let Planner { state, plan, jobs, .. } = planner;
        let global_batch = state.steps.global_batch();
        if !self.source.order.step_into(plan, state.position, &state.skips, global_batch, planner.tail) {
            return None;
        }
        state.position = plan.next();
        let positions = plan.positions(self.rank);
        let batch = self.shape.begin(state.steps.number(plan.first()), state.epoch, positions.len());
        // The thread that filled it last may not have let go of it yet.
        if Arc::get_mut(&mut filling).is_none() {
            filling = Arc::default();
        }
        let fresh = Arc::get_mut(&mut filling).expect("nobody else has it");
        fresh.positions.clear();
        fresh.positions.extend_from_slice(positions);
        *fresh.rows_left.get_mut() = positions.len();
        *fresh.batch.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(batch);
        *fresh.error.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        for (row, &position) in positions.iter().enumerate() {
            let lane = self.source.order.place(position).lane;
            match jobs.last_mut() {
                Some(job) if job.lane == lane => job.rows.end += 1,
                _ => {
                    let (step, filling) = (planner.next_ordinal, Arc::clone(&filling));
                    jobs.push(Job { step, lane, rows: row..row + 1, filling });
                }
            }
        }
        planner.next_ordinal += 1;
        let ready = jobs.is_empty();
        if ready {
            // A rank with nothing but padding at the tail.
            self.shape.finish(lock(&filling.batch).as_mut().expect("not taken"));
        }
        Some(OpenStep { filling, next_position: plan.next(), ready })
    }
}

impl Queue {
    /// Until the first batch is taken, nothing else is prepared: whoever resumes waits for it.
    fn may_plan(&self, steps_ahead: usize) -> bool {
        let steps_ahead = if self.first == 0 { 1 } else { steps_ahead };
        self.steps.len() < steps_ahead
    }

    /// Whether enough is ready for a trainer that waits; at the first step and at an epoch's end anything is.
    fn may_wake(&self, steps: usize) -> bool {
        let wanted = if self.first == 0 || self.epoch_planned { 1 } else { steps.min(self.steps.len()) };
        self.steps.iter().take(wanted.max(1)).all(|step| step.ready) && !self.steps.is_empty()
    }

    fn add(&mut self, job: Job) {
        let (step, lane) = (job.step, job.lane);
        let slot = self.lanes.entry(lane).or_default();
        if !slot.busy && slot.jobs.is_empty() {
            self.waiting.push(Reverse((step, lane)));
        }
        slot.jobs.push_back(job);
    }

    /// The job of the earliest step whose lane nobody is at.
    fn next_job(&mut self, new_lane: impl FnOnce(u32) -> Box<Lane>) -> Option<(Box<Lane>, Job)> {
        let Reverse((_, lane)) = self.waiting.pop()?;
        let slot = self.lanes.get_mut(&lane).expect("it has a job");
        slot.busy = true;
        let job = slot.jobs.pop_front().expect("it has a job");
        Some((slot.lane.take().unwrap_or_else(|| new_lane(lane)), job))
    }

    /// A lane that could go ahead and that nobody is at, and from where.
    fn next_ahead(&mut self) -> Option<(Box<Lane>, u32, u64)> {
        while let Some(number) = self.ahead.pop_front() {
            let slot = self.lanes.get_mut(&number).expect("it was at work");
            if let Some(index) = slot.ahead_from.take()
                && !slot.busy
                && let Some(lane) = slot.lane.take()
            {
                slot.busy = true;
                return Some((lane, number, index));
            }
        }
        None
    }

    fn lane_is_free(&mut self, lane: Box<Lane>, number: u32, ahead_from: Option<u64>) {
        let slot = self.lanes.get_mut(&number).expect("it was busy");
        slot.lane = Some(lane);
        slot.busy = false;
        if ahead_from.is_some() && slot.ahead_from.is_none() {
            self.ahead.push_back(number);
        }
        slot.ahead_from = ahead_from;
        if let Some(job) = slot.jobs.front() {
            self.waiting.push(Reverse((job.step, number)));
        }
    }
}

fn steps_to_wake_for(shape: &BatchShape, steps_ahead: usize) -> usize {
    // Half of what can be ready, so that threads always have room to go on.
    (TOKENS_TO_WAKE_FOR / (shape.rows * shape.seq_len).max(1)).clamp(1, (steps_ahead / 2).max(1))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an engine divides its memory.
pub(crate) struct MemoryPlan {
    /// Steps that may be open at once.
    steps_ahead: usize,
    page_memory: PageMemory,
}

/// Divides the budget among windows, pages and batches; an error if it is too small for the settings.
pub(crate) fn plan_memory(
    source: &LineSource,
    state: &StreamState,
    settings: &EngineSettings,
) -> Result<MemoryPlan> {
    let (budget, threads) = (settings.memory_budget, settings.threads.max(1));
    let lanes = lanes_of(source, state, settings);
    let window_bytes: u64 = lanes.iter().map(|&lane| lane_bytes(source, lane)).sum();
    let page_bytes = threads as u64 * WORK_BYTES_USUAL;
    let batch_bytes = settings.shape.bytes().max(1);
    // The trainer's own comes on top.
    let needed = window_bytes + page_bytes + (STEPS_AHEAD_MIN + 1) * batch_bytes;
    if budget < needed {
        return Err(Error::Budget {
            given: budget,
            needed,
            because: format!(
                "{} lanes take {window_bytes} for their windows, {threads} threads {page_bytes} for their pages, and \
                 {} batches {batch_bytes} each; allow more, use more ranks, or choose a smaller window or fewer lanes \
                 where a run begins",
                lanes.len(),
                STEPS_AHEAD_MIN + 1
            ),
        });
    }
    let wanted = steps_ahead(settings.shape.rows as u64, settings.shape.seq_len as u64);
    let steps_ahead = ((budget - window_bytes - page_bytes) / batch_bytes - 1).min(wanted);
    let for_pages = budget - window_bytes - (steps_ahead + 1) * batch_bytes;
    let page_memory = PageMemory::within(budget, for_pages, threads);
    Ok(MemoryPlan { steps_ahead: steps_ahead as usize, page_memory })
}

/// The lanes that the rank visits as the epoch goes on. Steps repeat their lanes after a while.
fn lanes_of(source: &LineSource, state: &StreamState, settings: &EngineSettings) -> BTreeSet<u32> {
    let (lanes, batch) = (u64::from(source.settings.lanes), u64::from(state.steps.global_batch()));
    let steps_until_repeat = lanes / gcd(lanes, batch);
    if steps_until_repeat * batch > 1 << 18 || settings.rank.world_size() == 1 {
        return (0..source.settings.lanes.min(source.order.sequences().min(1 << 20) as u32)).collect();
    }
    let mut visited = BTreeSet::new();
    let mut position = state.position;
    for _ in 0..steps_until_repeat {
        let step = source.order.step_at(position, &state.skips, state.steps.global_batch(), settings.tail);
        let Some(step) = step else { break };
        visited
            .extend(step.positions(settings.rank).iter().map(|&position| source.order.place(position).lane));
        position = step.next();
    }
    visited
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::ArrayPool;
    use crate::sample::{SampleData, write_sample};
    use crate::{BatchArrays, Dtype, EpochOrder, LabelStyle, ScanOptions, StreamSettings, scan};

    #[test]
    fn until_the_first_batch_is_taken_nothing_is_opened_but_for_it() {
        let dir = tempfile::tempdir().unwrap();
        write_sample(dir.path(), &SampleData { files: 20, ..SampleData::default() }).unwrap();
        let (data, _) = scan(&dir.path().into(), &ScanOptions::default()).unwrap();
        let settings = StreamSettings::auto(64, crate::Packing::Concat, None, 3, 16);
        let order = EpochOrder::new(&data.manifest().sizes(&settings).unwrap(), &settings, 0);
        let mut state = StreamState::start(data.manifest().fingerprint(), settings.clone(), 0, 16);
        state.position = order.sequences() / 32 * 16;
        let source = Arc::new(LineSource {
            data: Arc::clone(&data),
            order,
            settings,
            on_corrupt: crate::OnCorrupt::Error,
        });
        let shape = BatchShape {
            rows: 16,
            seq_len: 64,
            dtype: Dtype::Int64,
            labels: LabelStyle::Shifted,
            pad_id: 0,
            arrays: BatchArrays::default(),
            pool: ArrayPool::default(),
        };
        for threads in [1, 2, 4] {
            let before = data.counts().row_groups;
            let settings = EngineSettings {
                rank: Rank::single(),
                shape: shape.clone(),
                tail: Tail::Pad,
                threads,
                memory_budget: 1 << 30,
                counters: Arc::default(),
            };
            let engine = Engine::start(&source, &state, &settings).unwrap();
            let mut queue = engine.shared.lock();
            while !queue.steps.front().is_some_and(|step| step.ready) {
                queue.trainer_waits = true;
                queue = engine.shared.ready.wait(queue).unwrap();
            }
            assert_eq!((queue.steps.len(), queue.waiting.len()), (1, 0));
            drop(queue);
            assert!(data.counts().row_groups - before <= 2 * 16);
            engine.next().unwrap().unwrap();
            engine.next().unwrap().unwrap();
        }
    }
}
