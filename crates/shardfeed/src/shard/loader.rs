use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use shardfeed_plan::lease::{JOB_FORMAT, Meta};
use shardfeed_plan::{
    Assignment, CheckpointError, CheckpointState, Classes, Facts, Needs, Owners, Partition,
    PartitionStrategy, Progress, Rank, SampleOrder, StreamIdentity,
};

use super::checkpoint_file::write_checkpoint;
use super::dataset::Dataset;
use super::leased::{Leased, LoaderWork, done_of};
use super::meter::{Meter, StreamingStats};
use super::queue::{Claim, Done, Pace, Place, Queue, Snapshot, Stale, Stream, Ticket};
use super::stream::ShardStream;
use crate::coordinator::{News, Session, StreamCoordinator};
use crate::streaming_config::StreamingConfig;
use crate::{Error, Result, foreign};

/// One worker's samples of a data set, one after another, in an order that depends on the configuration and the epoch
/// alone.
///
/// Shared by threads: each sample goes to one of them, in order. Some are loaded in the background before they are asked
/// for.
///
/// ```
/// use shardfeed::{StreamingConfig, StreamingShardLoader, Tensor, TensorDataset};
///
/// let features = Tensor::<f32>::from_vec((0..100).map(|i| i as f32).collect(), &[100, 1])?;
/// let labels = Tensor::<i64>::from_vec(vec![0; 100], &[100])?;
/// let config = StreamingConfig::new(4, 1)?.with_shuffle_seed(7);
/// let loader = StreamingShardLoader::new(TensorDataset::new(features, labels), config)?;
/// assert_eq!(loader.len(), 25);
/// while let Some((features, _label)) = loader.next()? {
///     assert_eq!(features.shape(), [1]);
/// }
/// # Ok::<(), shardfeed::Error>(())
/// ```
pub struct StreamingShardLoader<D: Dataset> {
    shared: Arc<Shared<D>>,
    /// Before the coordinator: it leaves the job first.
    session: Option<Arc<Session>>,
    /// Where samples are leased.
    leased: Option<Leased>,
    /// Why it takes no part in the job of its coordinator.
    refused: Option<String>,
    coordinator: Option<Arc<StreamCoordinator>>,
    saved: Mutex<Saved>,
    /// Whoever asks next is told, and loses no sample by it.
    has_complaint: AtomicBool,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share that load ahead.
pub(super) struct Shared<D: Dataset> {
    pub dataset: D,
    pub config: StreamingConfig,
    pub partition: Partition,
    /// What the order depends on besides.
    facts: u64,
    pub queue: Queue<ShardStream, D::Sample>,
    meter: Meter,
    /// Where samples are leased: what the strategy gives workers in this epoch, as far as somebody has asked: this one, those whose
    /// samples it has, and those for whom it stands by.
    orders: Mutex<(u64, BTreeMap<u32, SampleOrder>)>,
}

/// Checkpoints are saved one at a time, and none after one that is further on, or after the stream went elsewhere.
#[derive(Default)]
struct Saved {
    /// The stream since it went elsewhere, as snapshots number it: to those before nobody goes back. An epoch that ends is not
    /// left: what is due of it is saved.
    since: u64,
    /// The snapshot that was saved last: of which stream, and how many samples of it were handed out.
    last: (u64, u64),
    /// Whether the trainer names the steps that are saved.
    is_by_step: bool,
    /// Why a checkpoint could not be saved, if no later one was; and what else went wrong.
    unsaved: Option<Error>,
    complaint: Option<Error>,
}

impl<D: Dataset + 'static> StreamingShardLoader<D> {
    /// The samples of the configuration's worker, from the beginning of epoch 0 on.
    pub fn new(dataset: D, config: StreamingConfig) -> Result<Self> {
        config.validate()?;
        dataset.check()?;
        let rank = config.rank();
        config.partition_strategy().validate_len(dataset.len() as u64)?;
        let facts = facts_of(&dataset, config.partition_strategy(), rank.world_size())?;
        let facts_number = facts.fingerprint();
        let partition = Partition::new(
            config.partition_strategy(),
            dataset.len() as u64,
            rank.world_size(),
            config.shuffle_seed(),
            facts,
        )?;
        let pace = Pace {
            ahead_max: config.prefetch_buffer_size() as u64,
            snapshot_every: config.checkpoint_interval().map(|interval| interval as u64),
        };
        let queue = Queue::new(ShardStream::new(&partition, rank, 0), pace);
        let shared = Arc::new(Shared {
            dataset,
            config,
            partition,
            facts: facts_number,
            queue,
            meter: Meter::default(),
            orders: Mutex::default(),
        });
        let mut loader = Self {
            shared,
            session: None,
            leased: None,
            refused: None,
            coordinator: None,
            saved: Mutex::default(),
            has_complaint: AtomicBool::new(false),
            threads: Vec::new(),
        };
        if pace.ahead_max > 0 {
            loader.start_threads()?;
        }
        Ok(loader)
    }

    /// Takes part in a job: tells how it does, and hands checkpoints on.
    ///
    /// With fault tolerance, or dynamic balancing, samples are leased: the loader hands out what it has a lease for, which may be
    /// others' samples, and begins with the epoch that the others are in; one that was sent elsewhere before, or handed something out, is
    /// refused. [`next`](Self::next) gives `None` when the epoch is done
    /// by all workers that ever came, or, without [`with_checkpointing`](StreamingConfig::with_checkpointing), when nothing is left
    /// but to commit: after that ask again, until [`is_epoch_over`](Self::is_epoch_over). Otherwise the loader never waits for the
    /// coordinator; one that is refused, since it is of another job or its rank is another's, goes on, and says why with each
    /// checkpoint that it cannot hand on.
    pub fn with_coordinator(mut self, coordinator: Arc<StreamCoordinator>) -> Self {
        if let Err(error) = self.join(&coordinator) {
            self.refused = Some(error.to_string());
            self.complain_later(error);
        }
        self.coordinator = Some(coordinator);
        self
    }

    fn join(&mut self, coordinator: &StreamCoordinator) -> Result<()> {
        let Shared { config, partition, queue, .. } = &*self.shared;
        let rank = config.rank();
        if coordinator.world_size() != rank.world_size() {
            return Err(Error::Invalid(format!(
                "a loader of world size {} with a coordinator of world size {}; give both the same",
                rank.world_size(),
                coordinator.world_size()
            )));
        }
        let identity = self.identity();
        let meta = Meta {
            format: JOB_FORMAT,
            world_size: rank.world_size(),
            samples: identity.samples,
            fingerprint: identity.fingerprint,
            facts: identity.facts,
            shuffle_seed: identity.shuffle_seed,
            strategy: Some(identity.strategy.clone()),
        };
        let (mut epoch, mut number) = (0, 0);
        if config.is_leased() {
            let Snapshot { stream, done, .. } = queue.snapshot();
            if stream.epoch != 0 || done.count() > 0 || stream.assignment().is_some() {
                return Err(elsewhere());
            }
            // Nothing is handed out but what is leased.
            epoch = coordinator.first_epoch()?;
            number = queue.restart(ShardStream::dealt(partition, rank, epoch, &Assignment::default())?);
        }
        let work = Arc::new(LoaderWork::new(Arc::clone(&self.shared)));
        let session = coordinator.join(config, meta, config.is_leased(), work)?;
        if config.is_leased() {
            let lens = partition.lens();
            session.begin(epoch, lens.clone(), number);
            self.leased = Some(Leased::new(Arc::clone(&session), lens, epoch));
        }
        self.session = Some(session);
        Ok(())
    }

    fn start_threads(&mut self) -> Result<()> {
        for index in 0..self.shared.config.prefetch_threads() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new()
                .name(format!("shardfeed-load-{index}"))
                .spawn(move || {
                    while let Some(ahead) = shared.queue.next_ahead() {
                        shared.queue.put(ahead, shared.load_ahead(ahead.index));
                    }
                })
                .map_err(|error| Error::Invalid(format!("cannot start loading thread {index}: {error}")))?;
            self.threads.push(thread);
        }
        Ok(())
    }
}

impl<D: Dataset> StreamingShardLoader<D> {
    /// The next sample; `None` when the epoch is over.
    ///
    /// If it cannot be loaded, the next call tries the same one again. A checkpoint that could not be saved is an error
    /// of the call after it: no sample is lost by it.
    pub fn next(&self) -> Result<Option<D::Sample>> {
        if self.has_complaint.load(Relaxed) {
            self.complain()?;
        }
        if let Some(leased) = &self.leased {
            return self.next_leased(leased);
        }
        // Without a lease nothing may be handed out, however often it is asked for.
        if let Some(reason) = &self.refused
            && self.shared.config.is_leased()
        {
            return Err(Error::Invalid(reason.clone()));
        }
        let sample = self.take(Self::save_due)?;
        if sample.is_none() {
            self.shared.meter.end();
        }
        Ok(sample)
    }

    /// Unless a later one was saved, or the trainer says by its steps what is to be.
    #[cold]
    fn save_due(&self, snapshot: &Snapshot<ShardStream>) {
        let mut saved = self.saved();
        let is_late = snapshot.number < saved.since || place(snapshot) < saved.last;
        if is_late || saved.is_by_step {
            return;
        }
        if let Err(error) = self.save(&mut saved, snapshot, None) {
            saved.unsaved = Some(error);
            self.has_complaint.store(true, Relaxed);
        }
    }

    /// The next of the samples that the loader has; where that is due, `save` is told how far it is. Samples are moved as seldom
    /// as may be: each move costs some nanoseconds.
    #[inline]
    fn take(&self, save: impl FnOnce(&Self, &Snapshot<ShardStream>)) -> Result<Option<D::Sample>> {
        let Shared { queue, meter, dataset, .. } = &*self.shared;
        meter.begin();
        let finish = |place: Place, due: Option<Box<Snapshot<ShardStream>>>| {
            if !place.is_foreign && dataset.is_remote(place.index as usize) {
                queue.note_remote();
            }
            if let Some(snapshot) = due {
                save(self, &snapshot);
            }
        };
        if dataset.is_instant()
            && let Some(claimed) = queue.claim_at_once()
        {
            let place = claimed.place;
            let sample = meter
                .load_for_caller(claimed.position, || dataset.get(place.index as usize))
                .inspect_err(|_| meter.note_in_vain())?;
            finish(place, claimed.done());
            return Ok(Some(sample));
        }
        loop {
            let mut waits_since = None;
            let claim = queue.claim(meter.is_slow(), || {
                waits_since.get_or_insert_with(Instant::now);
            });
            if let Some(since) = waits_since {
                meter.waited(since);
            }
            match claim {
                Claim::End => return Ok(None),
                Claim::Ready(place, sample, snapshot) => {
                    finish(place, snapshot);
                    return Ok(Some(sample));
                }
                Claim::Load(ticket) => {
                    // Given back if the data set panics, too.
                    let claimed = Claimed { queue, ticket: Some(ticket) };
                    let index = ticket.place.index as usize;
                    let sample = meter
                        .load_for_caller(ticket.position, || dataset.get(index))
                        .inspect_err(|_| meter.note_in_vain())?;
                    // Somebody may have gone elsewhere meanwhile: then this is not the next sample.
                    if let Ok(snapshot) = claimed.done() {
                        finish(ticket.place, snapshot);
                        return Ok(Some(sample));
                    }
                    meter.note_in_vain();
                }
            }
        }
    }

    fn next_leased(&self, leased: &Leased) -> Result<Option<D::Sample>> {
        let Shared { config, meter, .. } = &*self.shared;
        let interval = config.checkpoint_interval().map(|interval| interval as u64);
        loop {
            leased.session.check()?;
            // Whoever asks for the next is done with those before.
            if let Some(interval) = interval
                && leased.fresh() >= interval
            {
                self.commit_leased(leased, None, interval)?;
            }
            let deliveries = leased.session.deliveries();
            let hand = leased.hand();
            // A commit follows from what was handed out, not from how far the queue is.
            if let Some(sample) = self.take(|_, _| {})? {
                leased.session.wait_for_the_lease(|since| meter.waited(since))?;
                leased.hand_out();
                return Ok(Some(sample));
            }
            drop(hand);
            if leased.fresh() > 0 {
                if interval.is_none() {
                    return Ok(None);
                }
                self.commit_leased(leased, None, 1)?;
                continue;
            }
            if !self.wait_for_more(leased, deliveries)? {
                return Ok(None);
            }
        }
    }

    /// Waits until there is more to hand out than after so many deliveries. False if the epoch is done.
    fn wait_for_more(&self, leased: &Leased, deliveries: u64) -> Result<bool> {
        let (since, epoch) = (Instant::now(), self.epoch());
        let news = leased.session.wait_for_more(deliveries, epoch);
        self.shared.meter.waited(since);
        let is_over = matches!(news?, News::Over);
        if is_over && leased.set_over(epoch) {
            self.shared.meter.end();
        }
        Ok(!is_over)
    }

    /// Waits until there is something to hand out. Not while something is handed out and not committed: until it is, nothing more may
    /// come. False if the epoch is done.
    fn wait_for_some(&self, leased: &Leased) -> Result<bool> {
        loop {
            leased.session.check()?;
            let deliveries = leased.session.deliveries();
            let Snapshot { stream, done, .. } = self.shared.queue.snapshot();
            // After that: what was handed out by then is counted.
            let fresh = leased.fresh_in_hand();
            if fresh > 0 || done.count() < stream.len() {
                return Ok(true);
            }
            if !self.wait_for_more(leased, deliveries)? {
                return Ok(false);
            }
        }
    }

    /// If so many samples are not committed yet.
    fn commit_leased(&self, leased: &Leased, step: Option<u64>, fresh_min: u64) -> Result<()> {
        let commit = |snapshot: Snapshot<ShardStream>, step| {
            let state = self.checkpoint(&snapshot, step);
            leased.session.commit(done_of(&snapshot), step, Box::new(state.clone()))?;
            Ok(state)
        };
        let Some(state) = leased.commit(step, fresh_min, || self.shared.queue.snapshot(), commit)? else {
            return Ok(());
        };
        self.shared.meter.checkpoints.fetch_add(1, Relaxed);
        // It is committed, whatever becomes of the file: whoever is told otherwise would discard it.
        if let Some(path) = self.shared.config.checkpoint_path() {
            match write_checkpoint(path, &state) {
                Ok(()) => self.saved().unsaved = None,
                Err(error) => self.unsaved(error),
            }
        }
        Ok(())
    }

    fn complain_later(&self, error: Error) {
        self.saved().complaint = Some(error);
        self.has_complaint.store(true, Relaxed);
    }

    fn unsaved(&self, error: Error) {
        self.saved().unsaved = Some(error);
        self.has_complaint.store(true, Relaxed);
    }

    /// One at a time, the gravest first.
    fn complain(&self) -> Result<()> {
        let mut saved = self.saved();
        let error = saved.complaint.take().or_else(|| saved.unsaved.take());
        self.has_complaint.store(saved.unsaved.is_some(), Relaxed);
        error.map_or(Ok(()), Err)
    }

    /// Returns when `samples` are loaded, or all that are left: the calls of `next` that follow find them there. One that
    /// cannot be loaded is an error of its own call of `next`.
    ///
    /// Where samples are leased, those are left that the worker has, and if it has none it waits for some, as `next` does; but not while
    /// it has handed out some that are not committed, since none may come before they are.
    pub fn prefetch(&self, samples: usize) -> Result<()> {
        let Shared { queue, meter, .. } = &*self.shared;
        if self.is_epoch_over() {
            // Time goes on counting with the next sample.
            return Ok(());
        }
        meter.begin();
        if let Some(leased) = &self.leased
            && !self.wait_for_some(leased)?
        {
            return Ok(());
        }
        let since = Instant::now();
        queue.fill(samples as u64, |index| self.shared.load_ahead(index));
        meter.waited(since);
        Ok(())
    }

    /// Samples assigned to this worker in the epoch; where they are leased, those that the strategy gives it.
    pub fn len(&self) -> usize {
        if let Some(leased) = &self.leased {
            return leased.lens[self.shared.config.rank().index() as usize] as usize;
        }
        self.shared.queue.snapshot().stream.len() as usize
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all samples of the epoch are done: where they are leased, committed by whoever had them; otherwise, handed out.
    pub fn is_epoch_over(&self) -> bool {
        if let Some(leased) = &self.leased {
            return leased.over().is_some();
        }
        let Snapshot { stream, done, .. } = self.shared.queue.snapshot();
        done.count() == stream.len()
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.shared.queue.snapshot().stream.epoch
    }

    /// Back to the beginning of the epoch; or, if all of it was handed out, on to the beginning of the next. Of several callers
    /// one should do so: one that comes later goes back to the beginning of the new epoch.
    ///
    /// Leased samples that were handed out cannot be begun anew by one worker: that is an error of the next call of `next`.
    pub fn reset(&self) {
        let Shared { partition, config, queue, .. } = &*self.shared;
        if let Some(leased) = &self.leased {
            if let Some(over) = leased.over() {
                self.go_on(leased, over.saturating_add(1), |now| now == over);
            } else if queue.snapshot().done.count() > 0 {
                self.complain_later(Error::Invalid(
                    "samples that are leased to several workers cannot be begun anew by one of them: restore the job with \
                     StreamCoordinator::restore, or go on to the end of the epoch"
                        .to_owned(),
                ));
            }
            return;
        }
        let Snapshot { stream, done, number } = queue.snapshot();
        let is_over = done.count() == stream.len();
        let stream =
            ShardStream::new(partition, config.rank(), stream.epoch.saturating_add(u64::from(is_over)));
        let mut saved = self.saved();
        if let Some(number) = queue.restart_since(number, stream, is_over)
            && !is_over
        {
            saved.since = number;
        }
    }

    /// To the beginning of an epoch; where samples are leased, to where the workers are in it, and nowhere if it is this one.
    pub fn set_epoch(&self, epoch: u64) {
        let Shared { partition, config, queue, .. } = &*self.shared;
        let Some(leased) = &self.leased else {
            let Snapshot { stream: before, done, .. } = queue.snapshot();
            let goes_on = done.count() == before.len() && before.epoch.checked_add(1) == Some(epoch);
            let stream = ShardStream::new(partition, config.rank(), epoch);
            let mut saved = self.saved();
            if goes_on {
                queue.follow(stream);
            } else {
                saved.since = queue.restart(stream);
            }
            return;
        };
        self.go_on(leased, epoch, |now| now != epoch);
    }

    fn go_on(&self, leased: &Leased, epoch: u64, is_wanted: impl FnOnce(u64) -> bool) {
        let Shared { partition, config, queue, .. } = &*self.shared;
        match ShardStream::dealt(partition, config.rank(), epoch, &Assignment::default()) {
            Ok(stream) => leased.go_on(epoch, is_wanted, || {
                let number = queue.restart(stream);
                leased.session.begin(epoch, leased.lens.clone(), number);
            }),
            Err(error) => self.complain_later(error.into()),
        }
    }

    /// Where the stream stands.
    pub fn get_checkpoint(&self) -> CheckpointState {
        self.checkpoint(&self.shared.queue.snapshot(), None)
    }

    /// Continues with exactly the next sample. Refuses the checkpoint of another stream.
    pub fn restore_from_checkpoint(&self, state: impl Borrow<CheckpointState>) -> Result<()> {
        self.refuse_if_leased()?;
        let state = state.borrow();
        let Shared { partition, config, .. } = &*self.shared;
        state.check(&self.identity())?;
        let stream = match state.assignment() {
            None => ShardStream::new(partition, config.rank(), state.epoch),
            Some(assignment) => ShardStream::dealt(partition, config.rank(), state.epoch, assignment)?,
        };
        if let Some(&(_, end)) = state.processed().last().filter(|(_, end)| *end > stream.len()) {
            let reason = format!("{end} positions of {} are processed", stream.len());
            return Err(CheckpointError::Damaged(reason).into());
        }
        let mut saved = self.saved();
        saved.since = self.shared.queue.restore(stream, Done::of_ranges(state.processed()));
        // The model of that step is all that a trainer has until it names another.
        saved.is_by_step |= state.step.is_some();
        Ok(())
    }

    /// Everything handed out so far counts as done: the coordinator and the file know it, if there are any.
    pub fn commit(&self) -> Result<()> {
        self.commit_as(None)
    }

    /// The same, as of a step of the trainer, to be restored together with the model of that step. So, where samples are the worker's
    /// own, none is taken by itself any more from then on, nor after this one was restored: it would replace this one.
    pub fn commit_step(&self, step: u64) -> Result<()> {
        self.commit_as(Some(step))
    }

    fn commit_as(&self, step: Option<u64>) -> Result<()> {
        if let Some(leased) = &self.leased {
            return self.commit_leased(leased, step, 0);
        }
        // The lock first: nobody saves a later one between this snapshot and its saving.
        let mut saved = self.saved();
        saved.is_by_step |= step.is_some();
        self.save(&mut saved, &self.shared.queue.snapshot(), step)
    }

    /// Takes other samples for the rest of `epoch`, since they were dealt again. What was handed out must be in it as it
    /// was.
    pub fn adopt(&self, epoch: u64, assignment: &Assignment) -> Result<()> {
        self.refuse_if_leased()?;
        let Shared { partition, config, queue, .. } = &*self.shared;
        if queue.exchange(ShardStream::dealt(partition, config.rank(), epoch, assignment)?) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "worker {} is in epoch {}, or was dealt other samples of epoch {epoch} than it has handed out; deal again with what it took",
            config.rank().index(),
            self.epoch()
        )))
    }

    fn refuse_if_leased(&self) -> Result<()> {
        self.leased.as_ref().map_or(Ok(()), |_| Err(elsewhere()))
    }

    /// What the loader did so far.
    pub fn get_stats(&self) -> StreamingStats {
        self.shared.meter.stats(self.shared.queue.counts())
    }

    /// Lets go of everything without telling the coordinator, as if the process had been killed: its lease runs out by itself. For
    /// demonstrations and tests of what the others do then.
    pub fn abandon(self) {
        if let Some(session) = &self.session {
            session.abandon();
        }
    }

    /// Why the coordinator does not answer at present, or refuses; `None` if it does answer, or there is none.
    pub fn coordinator_trouble(&self) -> Option<String> {
        self.session.as_ref().and_then(|session| session.trouble())
    }

    /// The data set.
    pub fn dataset(&self) -> &D {
        &self.shared.dataset
    }

    /// The configuration.
    pub fn config(&self) -> &StreamingConfig {
        &self.shared.config
    }

    fn identity(&self) -> StreamIdentity<'_> {
        let Shared { dataset, config, partition, facts, .. } = &*self.shared;
        StreamIdentity {
            rank: config.rank(),
            shuffle_seed: config.shuffle_seed(),
            strategy: config.partition_strategy(),
            samples: partition.len(),
            fingerprint: dataset.fingerprint(),
            facts: *facts,
        }
    }

    fn checkpoint(&self, snapshot: &Snapshot<ShardStream>, step: Option<u64>) -> CheckpointState {
        let Snapshot { stream, done, .. } = snapshot;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let progress = Progress {
            epoch: stream.epoch,
            processed: done.ranges(),
            assignment: stream.assignment().cloned(),
            step,
            timestamp: now.as_secs(),
        };
        CheckpointState::new(&self.identity(), progress, &self.shared.partition)
    }

    /// Hands it on.
    fn save(&self, saved: &mut Saved, snapshot: &Snapshot<ShardStream>, step: Option<u64>) -> Result<()> {
        saved.last = place(snapshot);
        let state = self.checkpoint(snapshot, step);
        // A full disk must not keep it from the coordinator, nor the other way round.
        let written =
            self.shared.config.checkpoint_path().map_or(Ok(()), |path| write_checkpoint(path, &state));
        let registered = self.register(&state);
        written.and(registered)?;
        // An older one that could not be no longer matters.
        saved.unsaved = None;
        self.shared.meter.checkpoints.fetch_add(1, Relaxed);
        Ok(())
    }

    /// In the job's name alone: who has no part in it, or no more, changes nothing of what the others rely on.
    fn register(&self, state: &CheckpointState) -> Result<()> {
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        let Some(session) = &self.session else {
            return Err(Error::Invalid(self.refused.clone().unwrap_or_default()));
        };
        session.check()?;
        if coordinator.is_local() {
            return coordinator.keep(self.shared.config.rank(), session, state);
        }
        // Elsewhere: told when it answers.
        session.post(Box::new(state.clone()));
        Ok(())
    }

    fn saved(&self) -> MutexGuard<'_, Saved> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Dataset> Drop for StreamingShardLoader<D> {
    fn drop(&mut self) {
        self.shared.queue.close();
        for thread in self.threads.drain(..) {
            // Panics of the data set are caught.
            let _ = thread.join();
        }
    }
}

impl<D: Dataset> Shared<D> {
    /// What the strategy gives a worker in an epoch. Where each sample has to be looked at for that, they are once.
    pub fn order(&self, rank: Rank, epoch: u64) -> SampleOrder {
        let orders = || self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let known = Some(orders()).filter(|orders| orders.0 == epoch);
        if let Some(order) = known.and_then(|orders| orders.1.get(&rank.index()).cloned()) {
            return order;
        }
        let order = self.partition.order(rank, epoch);
        let mut orders = orders();
        if orders.0 != epoch {
            *orders = (epoch, BTreeMap::new());
        }
        orders.1.insert(rank.index(), order.clone());
        order
    }

    /// `None` if it cannot be loaded: whoever asks for it will see why.
    fn load_ahead(&self, index: u64) -> Option<D::Sample> {
        foreign::call(|| self.meter.load(|| self.dataset.get(index as usize))).ok()?.ok()
    }
}

/// Somebody says where leased samples stand.
fn elsewhere() -> Error {
    Error::Invalid(
        "these samples are leased to several workers, and where they stand is the coordinator's to say: restore the whole \
         job with StreamCoordinator::restore, or make a loader without a coordinator"
            .to_owned(),
    )
}

/// Tells which of two snapshots is further on.
fn place(snapshot: &Snapshot<ShardStream>) -> (u64, u64) {
    (snapshot.number, snapshot.done.count())
}

/// A position that a caller loads. Goes back unless it is done.
struct Claimed<'a, T> {
    queue: &'a Queue<ShardStream, T>,
    ticket: Option<Ticket>,
}

impl<T> Claimed<'_, T> {
    fn done(mut self) -> Result<Option<Box<Snapshot<ShardStream>>>, Stale> {
        self.ticket.take().map_or(Err(Stale), |ticket| self.queue.done(ticket))
    }
}

impl<T> Drop for Claimed<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue.failed(ticket);
        }
    }
}

/// What the strategy has to know of every sample.
fn facts_of<D: Dataset>(dataset: &D, strategy: &PartitionStrategy, world_size: u32) -> Result<Facts> {
    match (strategy.needs(), strategy.base()) {
        (Needs::Keys, &PartitionStrategy::HashBased { num_partitions, hash_seed }) if dataset.has_keys() => {
            let mut owners = Owners::new(num_partitions, hash_seed, world_size);
            for index in 0..dataset.len() {
                owners.push(dataset.key(index)?.as_deref());
            }
            owners.shrink_to_fit();
            Ok(Facts::Owners(Arc::new(owners)))
        }
        (Needs::Labels, &PartitionStrategy::Stratified { num_classes }) => {
            let mut classes = Classes::new(num_classes);
            for index in 0..dataset.len() {
                classes.push(dataset.label(index)?)?;
            }
            classes.shrink_to_fit();
            Ok(Facts::Classes(Arc::new(classes)))
        }
        _ => Ok(Facts::None),
    }
}

/// The samples of a shard loader up to the end of its epoch.
///
/// Iterators over one loader share its samples: each goes to one of them.
pub struct StreamingShardIterator<D: Dataset> {
    loader: Arc<StreamingShardLoader<D>>,
}

impl<D: Dataset> StreamingShardIterator<D> {
    /// Over what is left of the loader's epoch.
    pub fn new(loader: Arc<StreamingShardLoader<D>>) -> Self {
        Self { loader }
    }

    /// The loader.
    pub fn loader(&self) -> &Arc<StreamingShardLoader<D>> {
        &self.loader
    }
}

impl<D: Dataset> Iterator for StreamingShardIterator<D> {
    type Item = Result<D::Sample>;

    fn next(&mut self) -> Option<Self::Item> {
        self.loader.next().transpose()
    }
}
