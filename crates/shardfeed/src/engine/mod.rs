use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_plan::{Rank, StreamState, Tail};

use crate::batch::{Batch, BatchShape};
use crate::line_reader::{LineReader, LineSource, Tray};
use crate::page_memory::PageMemory;
use crate::slot::{Slot, SlotPool};
use crate::stats::Counters;
use crate::{Error, Result, foreign};

mod lane; // a lane: what is decoded of it, who waits for more
mod memory; // a budget           -> how much is prepared
mod planner; // an epoch          -> steps, rows, sequences
mod queue; // what there is to do -> what a thread does next

use memory::MemoryPlan;
pub(crate) use memory::plan_memory;
use planner::{PlannedStep, Planner, Row};
use queue::{DecodeJob, FillJob, Job, PlanJob, Queue};

/// Makes one rank's batches of one epoch, in order, some steps ahead of the trainer.
///
/// Two kinds of work, each done by one thread at a time in memory that nobody else touches: decoding a lane, a page or
/// so in one go; and making a batch of sequences that are decoded. Between them sequences lie in slots, which go from
/// hand to hand under the lock of the queue. Nobody polls: threads sleep until there is something to do, the trainer
/// until its batch is ready.
pub(crate) struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What an engine needs to know.
pub(crate) struct EngineSettings {
    pub rank: Rank,
    /// Of so many steps one is made.
    pub every: u32,
    pub shape: BatchShape,
    pub tail: Tail,
    pub threads: usize,
    /// Bytes to stay within.
    pub memory_budget: u64,
    pub counters: Arc<Counters>,
    pub slots: SlotPool,
}

/// What a trainer gets that asks for a batch.
#[allow(clippy::large_enum_variant)] // A box would be an allocation for each batch.
pub(crate) enum Next {
    /// A batch, and where the stream stands once it is taken.
    Batch(Batch, u64),
    /// The epoch is over.
    Over,
    NotYet,
}

struct Shared {
    source: Arc<LineSource>,
    shape: BatchShape,
    page_memory: Arc<PageMemory>,
    counters: Arc<Counters>,
    slots: SlotPool,
    queue: Mutex<Queue>,
    /// There is something to do.
    work: Condvar,
    /// The first open step is ready, or there is none any more.
    ready: Condvar,
}

impl Engine {
    /// Starts threads that prepare the steps from `state` on.
    pub fn start(source: &Arc<LineSource>, state: &StreamState, settings: &EngineSettings) -> Result<Self> {
        let MemoryPlan { limits, page_memory } = plan_memory(source, state, settings)?;
        settings.slots.fit(limits.slots_max);
        settings.shape.pool.keep_batches(limits.steps_ahead + 1);
        let planner = Planner::new(source, state, settings);
        let shared = Arc::new(Shared {
            source: Arc::clone(source),
            shape: settings.shape.clone(),
            page_memory: Arc::new(page_memory),
            counters: Arc::clone(&settings.counters),
            slots: settings.slots.clone(),
            queue: Mutex::new(Queue::new(limits, planner)),
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
                        shared.lock().is_broken = true;
                        shared.ready.notify_all();
                    }
                })
                .map_err(|error| Error::Invalid(format!("cannot start decoding thread {index}: {error}")))?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// The next batch, once it is there, or nothing after `patience`.
    pub fn next(&self, patience: Duration) -> Result<Next> {
        let mut queue = self.shared.lock();
        let mut until = None;
        let next = loop {
            if let Some(batch) = queue.take() {
                break batch.map(|(batch, next_position)| Next::Batch(batch, next_position));
            }
            if queue.is_over() {
                break Ok(Next::Over);
            }
            if queue.is_broken {
                break Err(Error::Invalid("a decoding thread panicked; please report this".to_owned()));
            }
            let now = Instant::now();
            let left = until.get_or_insert_with(|| now.checked_add(patience)).map(|until| until - now);
            if left.is_some_and(|left| left.is_zero()) {
                break Ok(Next::NotYet);
            }
            queue.trainer_sleeps();
            queue = match left {
                Some(left) => {
                    let woken = self.shared.ready.wait_timeout(queue, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
            queue.trainer_waits = false;
        };
        let wants_a_thread = queue.wants_a_thread();
        drop(queue);
        if wants_a_thread {
            self.shared.work.notify_one();
        }
        next
    }

    /// Batches that are ready.
    pub fn queue_depth(&self) -> usize {
        self.shared.lock().depth()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was already turned into an error of its step.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does until the engine stops.
    fn work(&self) {
        let mut tray = Tray { pool: self.slots.clone(), ..Tray::default() };
        let mut planned = Vec::new();
        let mut queue = self.lock();
        while !queue.is_stopped {
            let job = queue.next_job(&mut tray);
            let is_away = job.as_ref().is_none_or(|job| matches!(job, Job::Decode(_) | Job::ReadOne(_)));
            if is_away && queue.has_what_the_trainer_waits_for() {
                self.ready.notify_all();
            }
            let Some(job) = job else {
                queue.idle_threads += 1;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle_threads -= 1;
                continue;
            };
            // One wakes the next, as long as there is something to do.
            let wants_a_thread = queue.wants_a_thread();
            drop(queue);
            if wants_a_thread {
                self.work.notify_one();
            }
            let since = Instant::now();
            queue = match job {
                Job::Fill(job) => self.fill(job, &mut tray),
                Job::Decode(job) => self.decode(job, &mut tray),
                Job::ReadOne(alone) => {
                    let read = foreign::call(|| {
                        LineReader::read_one(&self.source, alone.sequence, &self.page_memory, &self.slots)
                    });
                    let mut queue = self.lock();
                    queue.read_one(alone, read.unwrap_or_else(|panic| Err(Error::Invalid(panic))));
                    queue
                }
                Job::Plan(job) => self.plan(job, &mut planned),
            };
            let now = Instant::now();
            self.counters.add_decoding(now - since);
            if queue.wants_the_trainer(now) {
                self.ready.notify_all();
            }
        }
    }

    fn decode(&self, job: DecodeJob, tray: &mut Tray) -> MutexGuard<'_, Queue> {
        let DecodeJob { lane, reader, from, to, last } = job;
        let open = || Box::new(LineReader::open(&self.source, from, &self.page_memory));
        let decoded = foreign::call(|| -> Result<_> {
            let mut reader = reader.unwrap_or_else(open);
            reader.read_to(to, last, tray)?;
            reader.park();
            Ok(reader)
        });
        let mut queue = self.lock();
        queue.decoded(lane, decoded.ok().and_then(Result::ok), tray);
        queue
    }

    fn fill(&self, job: FillJob, tray: &mut Tray) -> MutexGuard<'_, Queue> {
        let FillJob { ordinal, step, epoch, mut rows } = job;
        // Should anything here ever panic, the trainer gets an error, not a hang.
        let batch = foreign::call(|| self.batch(step, epoch, &rows));
        tray.free.extend(rows.iter_mut().filter_map(|row| row.slot.take()));
        let mut queue = self.lock();
        queue.filled(ordinal, rows, batch.unwrap_or_else(|panic| Err(Error::Invalid(panic))), tray);
        queue
    }

    fn batch(&self, step: u64, epoch: u64, rows: &[Row]) -> Result<Batch> {
        let mut batch = self.shape.begin(step, epoch, rows.len());
        rows.iter().filter_map(|row| row.slot.as_ref()).for_each(Slot::fetch);
        for (index, row) in rows.iter().enumerate() {
            let slot = row.slot.as_ref().expect("all sequences are there");
            self.shape.fill(&mut batch, index, &slot.sequence(), row.position)?;
        }
        self.shape.finish(&mut batch);
        Ok(batch)
    }

    fn plan(&self, job: PlanJob, planned: &mut Vec<PlannedStep>) -> MutexGuard<'_, Queue> {
        let PlanJob { mut planner, count } = job;
        planned.extend(std::iter::from_fn(|| planner.next()).take(count));
        let is_over = planned.len() < count;
        let mut queue = self.lock();
        queue.planned(planned, (!is_over).then_some(planner));
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::ArrayPool;
    use crate::sample::{SampleData, write_sample};
    use crate::{BatchArrays, Dtype, EpochOrder, LabelStyle, ScanOptions, StreamSettings, scan};

    /// Batches of sequences of 64 tokens.
    fn settings_of(rows: usize, threads: usize, slots: SlotPool) -> EngineSettings {
        EngineSettings {
            rank: Rank::single(),
            every: 1,
            shape: BatchShape {
                rows,
                seq_len: 64,
                dtype: Dtype::Int64,
                labels: LabelStyle::Shifted,
                pad_id: 0,
                arrays: BatchArrays::default(),
                pool: ArrayPool::default(),
            },
            tail: Tail::Pad,
            threads,
            memory_budget: 1 << 30,
            counters: Arc::default(),
            slots,
        }
    }

    /// Whether there was another batch.
    fn take(engine: &Engine) -> bool {
        match engine.next(Duration::MAX).unwrap() {
            Next::Batch(..) => true,
            Next::Over => false,
            Next::NotYet => unreachable!("patience has no end"),
        }
    }

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
        for threads in [1, 2, 4] {
            let before = data.counts().row_groups;
            let settings = settings_of(16, threads, SlotPool::default());
            let engine = Engine::start(&source, &state, &settings).unwrap();
            let mut queue = engine.shared.lock();
            while queue.depth() == 0 {
                queue.trainer_sleeps();
                queue = engine.shared.ready.wait(queue).unwrap();
            }
            assert_eq!((queue.steps.len(), queue.waited_for.len()), (1, 0));
            drop(queue);
            assert!(data.counts().row_groups - before <= 2 * 16);
            assert!(take(&engine) && take(&engine));
        }
    }

    #[test]
    fn epochs_resumes_and_skips_use_the_same_slots_again() {
        let dir = tempfile::tempdir().unwrap();
        write_sample(dir.path(), &SampleData { files: 8, ..SampleData::default() }).unwrap();
        let (data, _) = scan(&dir.path().into(), &ScanOptions::default()).unwrap();
        let settings = StreamSettings::auto(64, crate::Packing::Concat, None, 3, 8);
        let slots = SlotPool::default();
        let mut cut = Vec::new();
        for epoch in 0..40 {
            let order = EpochOrder::new(&data.manifest().sizes(&settings).unwrap(), &settings, epoch);
            let mut state = StreamState::start(data.manifest().fingerprint(), settings.clone(), epoch, 8);
            // From the beginning, and from somewhere else; to the end, and not.
            state.position = if epoch % 2 == 0 { 0 } else { order.sequences() / 16 * 8 };
            let (data, settings) = (Arc::clone(&data), settings.clone());
            let source = Arc::new(LineSource { data, order, settings, on_corrupt: crate::OnCorrupt::Error });
            let settings = settings_of(8, 2, slots.clone());
            let engine = Engine::start(&source, &state, &settings).unwrap();
            let mut left = if epoch % 3 == 0 { 5 } else { usize::MAX };
            while left > 0 && take(&engine) {
                left -= 1;
            }
            drop(engine);
            cut.push(slots.cut());
        }
        // Threads are not always equally fast, so that an epoch may need a few more than those before.
        assert!(cut[39] <= cut[9] + cut[9] / 10, "{cut:?}");
    }
}
