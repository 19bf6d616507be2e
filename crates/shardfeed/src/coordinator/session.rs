use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_plan::CheckpointState;
use shardfeed_plan::lease::{
    Action, Answer, Compare, Cut, Done, End, Event, Key, Keys, Meta, Ranges, RateMeter, Report, Request,
    RunId, Times, Txn, Value, Worker, WorkerSettings,
};

use super::clock::{now_ms, unix_ms};
use super::kept::Kept;
use super::store::{Store, StoreError, Watch};
use crate::{Error, Result, foreign};

/// Requests' time for which a worker that leaves tries to hand its last checkpoint on: two thirds of a lease, six seconds at most.
/// Requests that are under way are waited for besides.
const FAREWELL_REQUESTS: u32 = 4;

/// Between two such tries.
const FAREWELL_PAUSE: Duration = Duration::from_millis(20);

/// A worker's place in a job: a thread that drives the [`Worker`] machine, and what others know of it.
pub(crate) struct Session {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a session works for.
pub(crate) trait Work: Send + Sync {
    /// How far it is.
    fn standing(&self) -> Standing;

    /// These samples of what began under a number may be handed out. If something else began since, that is forgotten: the run goes
    /// back.
    fn deliver(&self, _number: u64, _run: RunId, _left: &Ranges) -> Result<()> {
        Ok(())
    }

    /// Nothing beyond the cut may be handed out any more. Returns where it was possible; nowhere, if it was not.
    fn shrink(&self, _number: u64, cut: &Cut, _end: u64) -> Cut {
        Cut { run: cut.run, at: Vec::new() }
    }

    /// These may have to be handed out soon, from there on.
    fn warm(&self, _starts: &[(RunId, u64)]) {}
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// Samples handed out so far.
    pub samples: u64,
    /// Where the stream stands.
    pub epoch: u64,
    /// See `epoch`.
    pub position: u64,
}

/// Who joins what.
pub(crate) struct Place {
    pub meta: Meta,
    pub settings: WorkerSettings,
    /// Whether work is leased; otherwise only health is told, and checkpoints.
    pub is_leased: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Something is in it.
    rings: Condvar,
    seen: Mutex<Seen>,
    /// Something was seen.
    changed: Condvar,
    /// See [`Worker::delivers_until`].
    delivers_until: AtomicU64,
    rank: u32,
    store: String,
}

/// What the thread is told.
#[derive(Default)]
struct Inbox {
    is_hinted: bool,
    begin: Option<Begin>,
    commit: Option<Event>,
    checkpoint: Option<Box<CheckpointState>>,
    /// How it does, if somebody says so.
    reported: Option<f64>,
    leaves: bool,
    /// It ends as if the process had.
    is_abandoned: bool,
}

/// An epoch that begins.
struct Begin {
    epoch: u64,
    lens: Vec<u64>,
    /// Tells it from another time that the same epoch began.
    number: u64,
}

/// What the thread tells.
#[derive(Default)]
struct Seen {
    commits: u64,
    /// The epoch that is done.
    over: Option<u64>,
    /// Changes when there is more to hand out.
    deliveries: u64,
    out: Option<Out>,
    /// See [`Worker::joined`] and [`Worker::has_rival`].
    joined: Option<u64>,
    has_rival: bool,
    /// Why the store does not answer.
    trouble: Option<String>,
}

/// Why a session is over.
#[derive(Clone, Debug)]
enum Out {
    Ended(End),
    Refused(String),
}

/// What a caller waited for.
pub(crate) enum News {
    /// There may be more to hand out.
    More,
    /// The epoch is done.
    Over,
}

impl Session {
    /// Joins, in the background.
    pub fn start(store: Arc<dyn Store>, place: Place, work: Arc<dyn Work>) -> Result<Self> {
        let rank = place.settings.rank;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            rings: Condvar::new(),
            seen: Mutex::default(),
            changed: Condvar::new(),
            delivers_until: AtomicU64::new(0),
            rank,
            store: store.name(),
        });
        let driver = Driver {
            worker: Worker::new(place.settings.clone()),
            shared: Arc::clone(&shared),
            meter: RateMeter::default(),
            watch: None,
            commits: 0,
            number: 0,
            leaves_by: None,
            kept: Kept::default(),
            store,
            place,
            work,
        };
        let thread = std::thread::Builder::new()
            .name(format!("shardfeed-worker-{rank}"))
            .spawn(move || {
                let shared = Arc::clone(&driver.shared);
                // Nobody may wait for a thread that is gone.
                if foreign::call(move || driver.run()).is_err() {
                    let reason = "its thread panicked; please report this".to_owned();
                    shared.note(|seen| seen.out = Some(Out::Refused(reason)));
                }
            })
            .map_err(|error| Error::Invalid(format!("cannot start a thread for worker {rank}: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Begins an epoch, in which the strategy gives each worker so many samples.
    pub fn begin(&self, epoch: u64, lens: Vec<u64>, number: u64) {
        self.shared.seen().over = None;
        self.shared.tell(|inbox| inbox.begin = Some(Begin { epoch, lens, number }));
    }

    /// Returns when these samples are known to be done. An error if they are not, and never will be by this worker.
    pub fn commit(&self, done: Vec<Done>, step: Option<u64>, checkpoint: Box<CheckpointState>) -> Result<()> {
        let before = self.shared.seen().commits;
        let commit = Event::Commit { done, step, checkpoint: Some(checkpoint) };
        self.shared.tell(|inbox| inbox.commit = Some(commit));
        let mut seen = self.shared.seen();
        while seen.commits == before {
            seen = self.wait(seen)?;
        }
        Ok(())
    }

    /// Hands a checkpoint on, without waiting: the last one counts.
    pub fn post(&self, checkpoint: Box<CheckpointState>) {
        self.shared.tell(|inbox| inbox.checkpoint = Some(checkpoint));
    }

    /// How the worker does, by its own account.
    pub fn report(&self, rate: f64) {
        self.shared.tell(|inbox| inbox.reported = Some(rate));
    }

    /// How often there was something new to hand out.
    pub fn deliveries(&self) -> u64 {
        self.shared.seen().deliveries
    }

    /// Waits until there is more to hand out than after so many deliveries, or nothing more will come.
    pub fn wait_for_more(&self, deliveries: u64, epoch: u64) -> Result<News> {
        let mut seen = self.shared.seen();
        loop {
            if seen.deliveries != deliveries {
                return Ok(News::More);
            }
            if seen.over == Some(epoch) {
                return Ok(News::Over);
            }
            seen = self.wait(seen)?;
        }
    }

    /// Returns at once while the lease is sure to hold; otherwise waits until it does, or the worker is out, and tells since when
    /// it waited.
    #[inline]
    pub fn wait_for_the_lease(&self, waited: impl FnOnce(Instant)) -> Result<()> {
        if now_ms() < self.shared.delivers_until.load(Relaxed) {
            return Ok(());
        }
        let since = Instant::now();
        let mut seen = self.shared.seen();
        while now_ms() >= self.shared.delivers_until.load(Relaxed) {
            seen = self.wait(seen)?;
        }
        drop(seen);
        waited(since);
        Ok(())
    }

    /// Tells nobody anything from now on, as if the process had been killed.
    pub fn abandon(&self) {
        self.shared.tell(|inbox| inbox.is_abandoned = true);
    }

    /// Why the worker is out, if it is.
    pub fn check(&self) -> Result<()> {
        self.shared.seen().out.clone().map_or(Ok(()), |out| Err(self.shared.error(&out)))
    }

    /// Why the store does not answer, if it does not, or why the worker is out.
    pub fn trouble(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string()).or_else(|| self.shared.seen().trouble.clone())
    }

    /// The change by which the worker is there, other than one that no longer holds: waits while nobody knows. An error if the rank
    /// is another's, or the worker is out.
    pub fn joined(&self, other_than: u64) -> Result<u64> {
        let mut seen = self.shared.seen();
        loop {
            if let Some(joined) = seen.joined.filter(|joined| *joined != other_than) {
                return seen.out.as_ref().map_or(Ok(joined), |out| Err(self.shared.error(out)));
            }
            if seen.has_rival && seen.out.is_none() {
                let reason = format!(
                    "another worker has rank {}; give each its own, or wait until the lease of one that was killed has ended",
                    self.shared.rank
                );
                return Err(Error::Coordinator { store: self.shared.store.clone(), reason });
            }
            seen = self.wait(seen)?;
        }
    }

    fn wait<'a>(&self, seen: MutexGuard<'a, Seen>) -> Result<MutexGuard<'a, Seen>> {
        if let Some(out) = &seen.out {
            return Err(self.shared.error(out));
        }
        // Not for longer: time passes without anybody telling.
        let waited = self.shared.changed.wait_timeout(seen, Duration::from_millis(50));
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// Hands on the checkpoint that was posted last and leaves the job, if the store answers soon enough: who took part is then free for
/// others at once.
impl Drop for Session {
    fn drop(&mut self) {
        self.shared.tell(|inbox| inbox.leaves = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tell(&self, tell: impl FnOnce(&mut Inbox)) {
        tell(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        self.rings.notify_one();
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, note: impl FnOnce(&mut Seen)) {
        note(&mut self.seen());
        self.changed.notify_all();
    }

    fn error(&self, out: &Out) -> Error {
        let (rank, store) = (self.rank, &self.store);
        match out {
            Out::Refused(reason) => Error::Coordinator { store: store.clone(), reason: reason.clone() },
            Out::Ended(end) => {
                let reason = match end {
                    End::Fenced(run) => format!(
                        "its lease ended and another worker went on with what it had (samples of worker {})",
                        run.origin
                    ),
                    End::Restored => "the job was restored to an earlier position".to_owned(),
                    End::RankTaken => "another process has this rank".to_owned(),
                    End::Left => "it left the job".to_owned(),
                };
                Error::Fenced { rank: rank as usize, store: store.clone(), reason }
            }
        }
    }
}

/// What the thread has.
struct Driver {
    worker: Worker,
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    place: Place,
    work: Arc<dyn Work>,
    meter: RateMeter,
    watch: Option<(Keys, Watch)>,
    commits: u64,
    /// Of what began last.
    number: u64,
    /// Once it is to leave: when it does, though nobody has its checkpoint.
    leaves_by: Option<Instant>,
    kept: Kept,
}

impl Driver {
    fn run(mut self) {
        if let Err(reason) = self.agree() {
            self.shared.note(|seen| seen.out = Some(Out::Refused(reason)));
            return;
        }
        let mut checkpoint = None;
        while self.worker.end().is_none() && !self.is_refused() {
            let inbox = self.wait(self.leaves_by.is_some());
            if inbox.is_abandoned {
                return;
            }
            let mut events = VecDeque::new();
            if let Some(Begin { epoch, lens, number }) = inbox.begin {
                self.number = number;
                events.push_back(Event::Begin { epoch, lens });
            }
            events.extend(inbox.commit);
            events.extend(inbox.is_hinted.then_some(Event::Hint));
            events.push_back(Event::Tick);
            if let Some(rate) = inbox.reported {
                self.meter.report(now_ms(), rate);
            }
            self.step_all(events);
            checkpoint = inbox.checkpoint.or(checkpoint);
            if let Some(state) = checkpoint.take()
                && !self.keep(&state)
            {
                checkpoint = Some(state);
            }
            if inbox.leaves {
                self.leaves_by.get_or_insert(Instant::now() + FAREWELL_REQUESTS * self.patience());
            }
            // Whose rank is another's has nobody to hand it to.
            let is_waited_for = checkpoint.is_some() && !self.worker.has_rival();
            if self.leaves_by.is_some_and(|by| !is_waited_for || Instant::now() >= by) {
                self.step_all(VecDeque::from([Event::Leave]));
            }
        }
    }

    fn step_all(&mut self, mut events: VecDeque<Event>) {
        while let Some(event) = events.pop_front() {
            self.step(event, &mut events);
            if self.is_refused() {
                break;
            }
        }
    }

    fn is_refused(&self) -> bool {
        matches!(self.shared.seen().out, Some(Out::Refused(_)))
    }

    /// Waits until there is something to do; who is to leave tries again soon.
    fn wait(&self, is_leaving: bool) -> Inbox {
        let mut inbox = self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let is_empty = !inbox.is_hinted
                && inbox.begin.is_none()
                && inbox.commit.is_none()
                && inbox.checkpoint.is_none()
                && !inbox.leaves
                && !inbox.is_abandoned;
            let wakes = self.worker.wakes_at().saturating_sub(now_ms());
            if !is_empty || wakes == 0 {
                return std::mem::take(&mut inbox);
            }
            // A machine that slept woke by another clock.
            let wakes = Duration::from_millis(wakes.min(1_000));
            if is_leaving {
                let wakes = wakes.min(FAREWELL_PAUSE);
                let waited = self.shared.rings.wait_timeout(inbox, wakes);
                return std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0);
            }
            inbox = self.shared.rings.wait_timeout(inbox, wakes).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn step(&mut self, event: Event, events: &mut VecDeque<Event>) {
        let now = now_ms();
        let Standing { samples, epoch, position } = self.work.standing();
        let is_busy = !self.place.is_leased || self.worker.held().next().is_some();
        let rate = self.meter.rate(now, samples, is_busy);
        self.worker.set_report(Report { samples, rate, position, epoch, unix_ms: unix_ms() });
        let actions = self.worker.step(now, event);
        let epoch = self.worker.scope().map_or(0, |scope| scope.epoch);
        self.shared.delivers_until.store(self.worker.delivers_until(), Relaxed);
        for action in actions {
            match action {
                Action::Send(request) => {
                    let answer = self.ask(&request);
                    events.push_front(Event::Answer(answer));
                }
                Action::Deliver { run, left } => match self.work.deliver(self.number, run, &left) {
                    Ok(()) => self.shared.note(|seen| seen.deliveries += 1),
                    Err(error) => {
                        self.shared.note(|seen| seen.out = Some(Out::Refused(error.to_string())));
                        events.push_back(Event::Leave);
                    }
                },
                Action::Shrink { cut, end } => {
                    let cut = self.work.shrink(self.number, &cut, end);
                    events.push_back(Event::Shrunk(cut));
                }
                Action::Committed => {
                    self.commits += 1;
                    let commits = self.commits;
                    self.shared.note(|seen| seen.commits = commits);
                }
                Action::Warm(starts) => self.work.warm(&starts),
                Action::Over => self.shared.note(|seen| seen.over = Some(epoch)),
                Action::End(end) => self.shared.note(|seen| {
                    seen.out.get_or_insert(Out::Ended(end));
                }),
            }
        }
        self.watch();
        // Those who wait for the lease look again.
        let (joined, has_rival) = (self.worker.joined(), self.worker.has_rival());
        self.shared.note(|seen| (seen.joined, seen.has_rival) = (joined, has_rival));
    }

    /// Watches who has what in the epoch that the worker is in.
    fn watch(&mut self) {
        let keys = self.worker.scope().filter(|_| self.place.is_leased).map(Keys::Owners);
        if self.watch.as_ref().map(|(keys, _)| *keys) != keys {
            self.watch = keys.map(|keys| {
                let shared = Arc::clone(&self.shared);
                let wake = move || shared.tell(|inbox| inbox.is_hinted = true);
                (keys, self.store.watch(keys, Box::new(wake)))
            });
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.place.settings.times.request)
    }

    fn ask(&self, request: &Request) -> Answer {
        self.heard(self.store.ask(request, self.patience())).unwrap_or_else(|no_answer| no_answer)
    }

    /// Notes how the store does. What is not answered is an answer, too.
    fn heard<T>(&self, answered: Result<T, StoreError>) -> Result<T, Answer> {
        let (answer, trouble) = match answered {
            Ok(answer) => (Ok(answer), None),
            Err(StoreError::NotSent(reason)) => (Err(Answer::NotSent), Some(reason)),
            // Asking again is no use: those who wait are told.
            Err(StoreError::Denied(reason)) => {
                let out = Out::Refused(reason.clone());
                self.shared.note(|seen| {
                    seen.out.get_or_insert(out);
                });
                (Err(Answer::NotSent), Some(reason))
            }
            Err(StoreError::Unknown(reason)) => (Err(Answer::Unknown), Some(reason)),
        };
        self.shared.note(|seen| seen.trouble = trouble);
        answer
    }

    /// Keeps a checkpoint. False if it has to be tried again.
    fn keep(&mut self, state: &CheckpointState) -> bool {
        let rank = self.place.settings.rank;
        let Some(joined) = self.worker.joined() else { return false };
        let mut kept = std::mem::take(&mut self.kept);
        let modified = || self.heard(self.store.modified(&Key::Checkpoint(rank), self.patience())).ok();
        let is_kept = kept.keep(rank, joined, state, modified, |request| self.ask(request));
        self.kept = kept;
        is_kept
    }

    /// Makes sure that the job is the one that is meant: writes down what it is, or compares. Tries until it is answered, or has left: at
    /// once when it is told to, or when its time for the checkpoint is over that it has still to hand on.
    fn agree(&mut self) -> Result<(), String> {
        let patience = self.patience();
        let mut pause = FAREWELL_PAUSE;
        loop {
            match agree(&*self.store, &self.place.meta, patience) {
                Ok(agreed) => return agreed,
                Err(error) => {
                    let denied = matches!(error, StoreError::Denied(_));
                    self.shared.note(|seen| seen.trouble = Some(error.to_string()));
                    if denied {
                        return Err(error.to_string());
                    }
                }
            }
            let mut until = Instant::now() + pause;
            let mut inbox = self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let now = Instant::now();
                if inbox.leaves {
                    let by = *self.leaves_by.get_or_insert(now + FAREWELL_REQUESTS * patience);
                    if inbox.checkpoint.is_none() || inbox.is_abandoned || now >= by {
                        return Err("it left before the store answered".to_owned());
                    }
                    until = until.min(now + FAREWELL_PAUSE);
                }
                let left = until.saturating_duration_since(now);
                if left.is_zero() {
                    break;
                }
                inbox = self.shared.rings.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

/// Writes down what a job is, or compares with what is written. The inner error says what differs.
pub(crate) fn agree(
    store: &dyn Store,
    meta: &Meta,
    patience: Duration,
) -> Result<Result<(), String>, StoreError> {
    let write = Txn {
        compares: vec![Compare::Created(Key::Meta, 0)],
        puts: vec![(Key::Meta, Value::Meta(Box::new(meta.clone())), 0)],
        deletes: Vec::new(),
    };
    if let Answer::Applied(_) = store.ask(&Request::Write(write), patience)? {
        return Ok(Ok(()));
    }
    let Answer::Read(entries) = store.ask(&Request::Read(vec![Keys::One(Key::Meta)]), patience)? else {
        return Err(StoreError::Unknown("no answer".to_owned()));
    };
    let there = entries.into_iter().find_map(|entry| match entry.value {
        Value::Meta(meta) => Some(*meta),
        _ => None,
    });
    let Some(there) = there else { return Err(StoreError::NotSent("the job vanished".to_owned())) };
    Ok(meta.check(&there).map_err(|difference| {
        format!("the job was started otherwise: {difference}; give the same, or another job name")
    }))
}

/// When things are due, for leases of a length.
pub(crate) fn times(lease: Duration, world_size: u32) -> Times {
    Times::new(lease.as_millis() as u64, world_size)
}
