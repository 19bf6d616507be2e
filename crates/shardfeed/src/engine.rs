use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use shardfeed_plan::{Rank, StepPlan, StreamState, Tail};

use crate::batch::{Batch, BatchShape};
use crate::lane::{Lane, lane_bytes};
use crate::page_limit::{PAGE_BYTES_USUAL, PageLimit};
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
}

struct Shared {
    source: Arc<LineSource>,
    rank: Rank,
    shape: BatchShape,
    steps_ahead: usize,
    page_limit: PageLimit,
    queue: Mutex<Queue>,
    /// A lane has work, or a step may be opened.
    work: Condvar,
    /// The first open step is ready, or there is none any more.
    ready: Condvar,
}

struct Queue {
    steps: VecDeque<OpenStep>,
    /// Ordinal of the first of `steps`, counted from the engine's start.
    first: u64,
    lanes: HashMap<u32, LaneSlot>,
    /// Lanes with work that nobody is at, those of the earliest step first.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Opens steps; away while a thread does so.
    planner: Option<Planner>,
    epoch_planned: bool,
    stopped: bool,
    /// A thread panicked.
    broken: bool,
}

struct OpenStep {
    filling: Arc<Filling>,
    next_position: u64,
    ready: bool,
}

/// A batch that threads write into.
struct Filling {
    batch: Mutex<Option<Batch>>,
    rows_left: AtomicUsize,
    error: Mutex<Option<Error>>,
}

#[derive(Default)]
struct LaneSlot {
    /// Away while a thread is at it; `None` before the first.
    lane: Option<Box<Lane>>,
    busy: bool,
    jobs: VecDeque<Job>,
}

/// Rows of one step that come from one lane.
struct Job {
    step: u64,
    lane: u32,
    /// Row of the batch, and position in the epoch.
    rows: Vec<(usize, u64)>,
    filling: Arc<Filling>,
}

struct Planner {
    state: StreamState,
    tail: Tail,
    next_ordinal: u64,
}

/// Steps that are prepared ahead when memory allows.
const STEPS_AHEAD: u64 = 4;
/// One being taken, one being made.
const STEPS_AHEAD_MIN: u64 = 2;

impl Engine {
    /// Starts threads that prepare the steps from `state` on.
    pub fn start(source: &Arc<LineSource>, state: &StreamState, settings: &EngineSettings) -> Result<Self> {
        let MemoryPlan { steps_ahead, page_limit } = plan_memory(source, state, settings)?;
        let planner = Planner { state: state.clone(), tail: settings.tail, next_ordinal: 0 };
        let shared = Arc::new(Shared {
            source: Arc::clone(source),
            rank: settings.rank,
            shape: settings.shape,
            steps_ahead,
            page_limit,
            queue: Mutex::new(Queue {
                steps: VecDeque::new(),
                first: 0,
                lanes: HashMap::new(),
                waiting: BinaryHeap::new(),
                planner: Some(planner),
                epoch_planned: false,
                stopped: false,
                broken: false,
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
                _ => queue = self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
        let step = queue.steps.pop_front().expect("just seen");
        queue.first += 1;
        drop(queue);
        // One place is free for a step; after the first batch, several.
        self.shared.work.notify_all();
        if let Some(error) = lock(&step.filling.error).take() {
            return Err(error);
        }
        let batch = lock(&step.filling.batch).take().expect("taken once");
        Ok(Some((batch, step.next_position)))
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
                queue = self.lock();
                queue.lane_is_free(lane, job.lane);
                if is_step_ready {
                    let index = (job.step - queue.first) as usize;
                    queue.steps[index].ready = true;
                    if index == 0 {
                        self.ready.notify_all();
                    }
                }
            } else if queue.may_plan(self.steps_ahead)
                && let Some(mut planner) = queue.planner.take()
            {
                drop(queue);
                let planned = self.plan(&mut planner);
                queue = self.lock();
                match planned {
                    Some((step, jobs)) => {
                        queue.planner = Some(planner);
                        let ready = step.ready;
                        queue.steps.push_back(step);
                        for job in jobs {
                            queue.add(job);
                        }
                        self.work.notify_all();
                        if ready {
                            self.ready.notify_all();
                        }
                    }
                    None => {
                        queue.epoch_planned = true;
                        self.ready.notify_all();
                    }
                }
            } else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn new_lane(&self, lane: u32) -> Box<Lane> {
        Box::new(Lane::new(&self.source, lane, self.page_limit))
    }

    /// Writes a job's rows. True if they were the last of their step.
    fn run(&self, lane: &mut Box<Lane>, job: &Job) -> bool {
        // Should anything here ever panic, the trainer gets an error, not a hang.
        let filled =
            foreign::call(|| self.fill(lane, job)).unwrap_or_else(|panic| Err(Error::Invalid(panic)));
        if let Err(error) = filled {
            lock(&job.filling.error).get_or_insert(error);
            // Its window is somewhere in the middle of something: steps behind this one begin anew.
            *lane = self.new_lane(job.lane);
        }
        let rows = job.rows.len();
        let is_last = job.filling.rows_left.fetch_sub(rows, AcqRel) == rows;
        if is_last && let Some(batch) = lock(&job.filling.batch).as_mut() {
            self.shape.finish(batch);
        }
        is_last
    }

    fn fill(&self, lane: &mut Lane, job: &Job) -> Result<()> {
        for &(row, position) in &job.rows {
            let place = self.source.order.place(position);
            let sequence = lane.sequence(place.index, job.step == 0)?;
            let mut batch = lock(&job.filling.batch);
            let batch = batch.as_mut().expect("not taken before it is ready");
            self.shape.fill(batch, row, &sequence, position)?;
        }
        Ok(())
    }

    fn plan(&self, planner: &mut Planner) -> Option<(OpenStep, Vec<Job>)> {
        let state = &mut planner.state;
        let global_batch = state.steps.global_batch();
        let plan = self.source.order.step_at(state.position, &state.skips, global_batch, planner.tail)?;
        state.position = plan.next();
        let batch = self.shape.empty(state.steps.number(plan.first()), state.epoch);
        let positions = plan.positions(self.rank);
        let filling = Arc::new(Filling {
            batch: Mutex::new(Some(batch)),
            rows_left: AtomicUsize::new(positions.len()),
            error: Mutex::new(None),
        });
        let jobs = self.jobs(&plan, planner.next_ordinal, &filling);
        planner.next_ordinal += 1;
        let mut ready = false;
        if jobs.is_empty() {
            // A rank with nothing but padding at the tail.
            self.shape.finish(lock(&filling.batch).as_mut().expect("not taken"));
            ready = true;
        }
        Some((OpenStep { filling, next_position: plan.next(), ready }, jobs))
    }

    fn jobs(&self, plan: &StepPlan, step: u64, filling: &Arc<Filling>) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        for (row, &position) in plan.positions(self.rank).iter().enumerate() {
            let lane = self.source.order.place(position).lane;
            match jobs.last_mut() {
                Some(job) if job.lane == lane => job.rows.push((row, position)),
                _ => jobs.push(Job { step, lane, rows: vec![(row, position)], filling: Arc::clone(filling) }),
            }
        }
        jobs
    }
}

impl Queue {
    /// Until the first batch is taken, nothing else is prepared: whoever resumes waits for it.
    fn may_plan(&self, steps_ahead: usize) -> bool {
        let steps_ahead = if self.first == 0 { 1 } else { steps_ahead };
        self.steps.len() < steps_ahead
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

    fn lane_is_free(&mut self, lane: Box<Lane>, number: u32) {
        let slot = self.lanes.get_mut(&number).expect("it was busy");
        slot.lane = Some(lane);
        slot.busy = false;
        if let Some(job) = slot.jobs.front() {
            self.waiting.push(Reverse((job.step, number)));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an engine divides its memory.
pub(crate) struct MemoryPlan {
    /// Steps that may be open at once.
    steps_ahead: usize,
    page_limit: PageLimit,
}

/// Divides the budget among windows, pages and batches; an error if it is too small for the settings.
pub(crate) fn plan_memory(
    source: &LineSource,
    state: &StreamState,
    settings: &EngineSettings,
) -> Result<MemoryPlan> {
    let budget = settings.memory_budget;
    let lanes = lanes_of(source, state, settings);
    let window_bytes: u64 = lanes.iter().map(|&lane| lane_bytes(source, lane)).sum();
    let page_bytes = lanes.len() as u64 * PAGE_BYTES_USUAL;
    let batch_bytes = settings.shape.bytes().max(1);
    let needed = window_bytes + page_bytes + STEPS_AHEAD_MIN * batch_bytes;
    if budget < needed {
        return Err(Error::Budget {
            given: budget,
            needed,
            because: format!(
                "{} lanes take {window_bytes} for their windows and {page_bytes} for their pages, and \
                 {STEPS_AHEAD_MIN} batches {batch_bytes} each; allow more, use more ranks, or choose a smaller window \
                 or fewer lanes where a run begins",
                lanes.len()
            ),
        });
    }
    let steps_ahead = ((budget - window_bytes - page_bytes) / batch_bytes).min(STEPS_AHEAD);
    let for_pages = budget - window_bytes - steps_ahead * batch_bytes;
    let page_limit = PageLimit::within(budget, for_pages, lanes.len() as u64);
    Ok(MemoryPlan { steps_ahead: steps_ahead as usize, page_limit })
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
    use crate::sample::{SampleData, write_sample};
    use crate::{Dtype, EpochOrder, LabelStyle, ScanOptions, StreamSettings, scan};

    #[test]
    fn until_the_first_batch_is_taken_nothing_is_opened_but_for_it() {
        let dir = tempfile::tempdir().unwrap();
        write_sample(dir.path(), &SampleData { files: 20, ..SampleData::default() }).unwrap();
        let (data, _) = scan(&dir.path().into(), &ScanOptions::default()).unwrap();
        let settings = StreamSettings::auto(64, crate::Packing::Concat, None, 3, 16);
        let order = EpochOrder::new(&data.manifest().sizes(&settings).unwrap(), &settings, 0);
        let mut state = StreamState::start(data.manifest().fingerprint(), settings.clone(), 0, 16);
        state.position = order.sequences() / 32 * 16;
        let source = Arc::new(LineSource { data: Arc::clone(&data), order, settings });
        let shape = BatchShape {
            rows: 16,
            seq_len: 64,
            dtype: Dtype::Int64,
            labels: LabelStyle::Shifted,
            pad_id: 0,
            cu_seqlens: false,
        };
        for threads in [1, 2, 4] {
            let before = data.counts().row_groups;
            let settings = EngineSettings {
                rank: Rank::single(),
                shape,
                tail: Tail::Pad,
                threads,
                memory_budget: 1 << 30,
            };
            let engine = Engine::start(&source, &state, &settings).unwrap();
            let mut queue = engine.shared.lock();
            while !queue.steps.front().is_some_and(|step| step.ready) {
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
