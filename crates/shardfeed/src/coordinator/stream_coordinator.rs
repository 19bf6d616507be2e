use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use shardfeed_plan::lease::{
    Answer, Compare, DealRecord, Entry, Generation, JobState, Key, Keys, Meta, Owner, RateMeter, Request,
    Scope, Table, Txn, Value, WorkerRecord, WorkerSettings,
};
use shardfeed_plan::{Assignment, CheckpointState, Deals, Rank};

use super::clock::{now_ms, unix_ms};
use super::health::{WorkerHealth, WorkerRow, health_of, unknown};
use super::local::LocalStore;
use super::session::{Place, Session, Work, times};
use super::store::{Store, StoreError};
use super::url::EtcdUrl;
use crate::streaming_config::StreamingConfig;
use crate::{Error, Result};

/// Knows the workers of a job: how they do, where each of them stands, and who takes over.
///
/// Lives in the process, or, for workers on several machines, on etcd.
///
/// ```
/// use shardfeed::{StreamCoordinator, StreamingConfig, WorkerStatus};
///
/// let coordinator = StreamCoordinator::new(StreamingConfig::new(2, 0)?)?;
/// coordinator.register_worker(0, vec![])?;
/// coordinator.update_worker_health(0, 500, 120.0)?; // 500 samples so far, 120 a second
/// let health = coordinator.get_worker_health(0)?.expect("it is registered");
/// assert_eq!((health.status, health.samples_processed), (WorkerStatus::Active, 500));
/// assert!(coordinator.get_worker_health(1)?.is_none());
/// # Ok::<(), shardfeed::Error>(())
/// ```
pub struct StreamCoordinator {
    config: StreamingConfig,
    store: Arc<dyn Store>,
    /// Of loaders in this process.
    sessions: Mutex<BTreeMap<u32, Weak<Session>>>,
    /// Workers that report by themselves.
    reporters: Mutex<BTreeMap<u32, Reporter>>,
}

/// A worker that reports by itself.
struct Reporter {
    session: u64,
    /// Its lease, and the change by which it has the rank.
    place: Option<(u64, u64)>,
    meter: RateMeter,
}

/// How long a call waits for a store that does not answer.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// How long connecting does.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Leases on etcd are of whole seconds, and must outlast the choice of another leader.
const ETCD_LEASE_MIN: Duration = Duration::from_secs(2);

/// Workers that never came are shown up to this rank.
const MISSING_MAX: u32 = 1 << 16;

/// Writes of one transaction, fewer than etcd's limit.
const WRITES_MAX: usize = 100;

impl fmt::Debug for StreamCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCoordinator").field("store", &self.store.name()).finish_non_exhaustive()
    }
}

impl StreamCoordinator {
    /// For workers in this process.
    pub fn new(config: StreamingConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self::over(config, Arc::new(LocalStore::default())))
    }

    /// For workers anywhere: `etcd://[user:password@]host:2379[,host2:2379]/job[?ca=FILE&cert=FILE&key=FILE]`. Needs the cargo
    /// feature `etcd`.
    ///
    /// An error if nobody answers within five seconds, or refuses.
    pub fn connect(url: &str, config: StreamingConfig) -> Result<Self> {
        config.validate()?;
        let url = EtcdUrl::parse(url)?;
        if config.lease() < ETCD_LEASE_MIN {
            let (given, min) = (config.lease().as_millis(), ETCD_LEASE_MIN.as_secs());
            return Err(Error::Invalid(format!("a lease of {given} ms; on etcd it takes {min} s at least")));
        }
        let coordinator = Self::over(config, etcd_store(&url)?);
        coordinator.ask_within(&Request::Read(vec![Keys::One(Key::Meta)]), CONNECT_MAX)?;
        Ok(coordinator)
    }

    pub(super) fn over(config: StreamingConfig, store: Arc<dyn Store>) -> Self {
        Self { config, store, sessions: Mutex::default(), reporters: Mutex::default() }
    }

    /// A worker is there, with the samples that it is to take; none: those that the strategy gives.
    pub fn register_worker(&self, rank: usize, indices: Vec<usize>) -> Result<()> {
        let rank = self.check_rank(rank)?;
        self.put(Key::Indices(rank), Value::Indices(indices))
    }

    /// What a worker was registered with. `None`: nobody registered it.
    pub fn registered_indices(&self, rank: usize) -> Result<Option<Vec<usize>>> {
        let rank = self.check_rank(rank)?;
        Ok(self.get(Key::Indices(rank))?.and_then(|value| match value {
            Value::Indices(indices) => Some(indices),
            _ => None,
        }))
    }

    /// A worker says how it does: samples so far, and how many a second. It is taken for failed when it says nothing for as long
    /// as a lease. Workers whose loaders have this coordinator say so by themselves.
    pub fn update_worker_health(&self, rank: usize, samples: u64, throughput: f64) -> Result<()> {
        let rank = self.check_rank(rank)?;
        if !(0.0..f64::INFINITY).contains(&throughput) {
            return Err(Error::Invalid(format!(
                "worker {rank} says that its throughput is {throughput}; it must be a number, and not negative"
            )));
        }
        if let Some(session) = self.session(rank) {
            session.report(throughput);
            return Ok(());
        }
        let mut reporters = lock(&self.reporters);
        let reporter = reporters.entry(rank).or_insert_with(|| Reporter {
            session: random(),
            place: None,
            meter: RateMeter::default(),
        });
        reporter.meter.report(now_ms(), throughput);
        let record = WorkerRecord {
            session: reporter.session,
            rank,
            name: worker_name(),
            samples,
            rate: reporter.meter.mean_of_reports(),
            position: samples,
            heartbeat_ms: unix_ms(),
            ..WorkerRecord::default()
        };
        let place = match reporter.place {
            Some(place) if matches!(self.ask(&Request::KeepAlive(place.0))?, Answer::Alive) => place,
            _ => self.take_rank(rank, reporter.session)?,
        };
        reporter.place = Some(place);
        // Late, it changes nothing: the rank may be another's by then.
        let txn = Txn {
            compares: vec![Compare::Created(Key::Alive(rank), place.1)],
            puts: vec![(Key::Worker(rank), Value::Worker(Box::new(record)), 0)],
            deletes: Vec::new(),
        };
        match self.ask(&Request::Write(txn))? {
            Answer::Applied(_) => Ok(()),
            _ => {
                reporter.place = None;
                Err(self.rank_is_taken(rank))
            }
        }
    }

    /// A lease with which the rank is this process's, and the change that made it so.
    fn take_rank(&self, rank: u32, session: u64) -> Result<(u64, u64)> {
        let ttl = self.config.lease().as_millis() as u64;
        let Answer::Granted(lease) = self.ask(&Request::Grant(ttl))? else {
            return Err(self.error("it grants no lease"));
        };
        let alive = Key::Alive(rank);
        let txn = Txn {
            compares: vec![Compare::Created(alive, 0)],
            puts: vec![(alive, Value::Owner(Owner { session, rank }), lease)],
            deletes: Vec::new(),
        };
        if let Answer::Applied(change) = self.ask(&Request::Write(txn))? {
            return Ok((lease, change));
        }
        // An answer may have been lost: then it is this process's all the same.
        let there = self.read(vec![Keys::One(alive)])?.pop();
        if let Some(Entry { value: Value::Owner(owner), created, lease, .. }) = there
            && owner.session == session
        {
            return Ok((lease, created));
        }
        self.ask(&Request::Revoke(lease))?;
        Err(self.rank_is_taken(rank))
    }

    fn rank_is_taken(&self, rank: u32) -> Error {
        self.error(&format!(
            "another process has rank {rank}; give each its own, or wait until the lease of one that was killed has ended"
        ))
    }

    /// How a worker does. `None`: nobody registered it, and it was never heard of.
    pub fn get_worker_health(&self, rank: usize) -> Result<Option<WorkerHealth>> {
        let rank = self.check_rank(rank)?;
        if let Some(health) = health_of(&self.workers_table()?, rank) {
            return Ok(Some(health));
        }
        Ok(self.get(Key::Indices(rank))?.map(|_| unknown(rank)))
    }

    /// All workers of the job, by rank: those that are known, and, once the job has begun, those that never came.
    pub fn workers(&self) -> Result<Vec<WorkerRow>> {
        let (scope, _) = self.scope()?;
        let table = self.table(scope)?;
        let mut rows = Vec::new();
        for (&rank, record) in &table.records {
            let Some(health) = health_of(&table, rank) else { continue };
            let there = table.workers.get(&rank);
            let lease_ms = match there {
                Some(there) => {
                    self.patiently(PATIENCE_MAX, |patience| self.store.time_to_live(there.lease, patience))?
                }
                None => None,
            };
            let owned = table.owners.iter().filter(|(_, (owner, _))| owner.session == record.session);
            let mut took_over: Vec<usize> =
                owned.map(|(id, _)| id.origin as usize).filter(|&origin| origin != rank as usize).collect();
            took_over.dedup();
            rows.push(WorkerRow {
                health,
                name: record.name.clone(),
                has_left: record.has_left,
                epoch: record.epoch,
                position: record.position,
                lease_ms,
                took_over,
            });
        }
        if let Some(Value::Meta(meta)) = self.get(Key::Meta)? {
            let missing =
                (0..meta.world_size.min(MISSING_MAX)).filter(|rank| !table.records.contains_key(rank));
            rows.extend(missing.map(|rank| WorkerRow { health: unknown(rank), ..WorkerRow::default() }));
            rows.sort_by_key(|row| row.health.rank);
        }
        Ok(rows)
    }

    /// Returns when every worker of the job was there at least once: from then on, what one of them leaves behind is taken over. An
    /// error, with those that are missing, when that takes longer than `patience`.
    pub fn wait_for_workers(&self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            let known = self.workers_table()?.records;
            let missing = (0..self.config.rank().world_size()).filter(|rank| !known.contains_key(rank));
            let missing: Vec<u32> = missing.take(10).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(self.error(&format!(
                    "workers {missing:?} did not come within {} s; start them, or wait longer",
                    patience.as_secs()
                )));
            }
            std::thread::sleep(
                Duration::from_millis(50).min(until.saturating_duration_since(Instant::now())),
            );
        }
    }

    /// A worker stands there.
    pub fn register_checkpoint(&self, rank: usize, state: CheckpointState) -> Result<()> {
        let at = self.check_rank(rank)?;
        if state.rank != rank {
            return Err(Error::Invalid(format!(
                "a checkpoint of rank {} as that of rank {rank}",
                state.rank
            )));
        }
        let (key, value) = (Key::Checkpoint(at), Value::Checkpoint(Box::new(state)));
        loop {
            // After the one that is there: a request that is held up does not come after a later one.
            let last = self.patiently(PATIENCE_MAX, |patience| self.store.modified(&key, patience))?;
            let compares = vec![Compare::Modified(key, last)];
            let puts = vec![(key, value.clone(), 0)];
            let txn = Txn { compares, puts, ..Txn::default() };
            if let Answer::Applied(_) = self.ask(&Request::Write(txn))? {
                return Ok(());
            }
        }
    }

    /// Where a worker stood last.
    pub fn get_checkpoint(&self, rank: usize) -> Result<Option<CheckpointState>> {
        let rank = self.check_rank(rank)?;
        Ok(self.get(Key::Checkpoint(rank))?.and_then(|value| match value {
            Value::Checkpoint(state) => Some(*state),
            _ => None,
        }))
    }

    /// Deals what is left again, in proportion to throughput, if workers turn out to be unequally fast. Workers whose loaders have
    /// this coordinator see to that by themselves. False if nothing was dealt: it is not worth it, or not asked for by
    /// [`with_dynamic_balancing`](StreamingConfig::with_dynamic_balancing).
    pub fn rebalance_if_needed(&self) -> Result<bool> {
        let Some(threshold) = self.config.threshold() else { return Ok(false) };
        let (scope, _) = self.scope()?;
        let table = self.table(scope)?;
        let deal = if table.owners.is_empty() {
            shares_alone(&table, threshold)
        } else {
            table.deal(threshold, self.config.unit(), scope.epoch)
        };
        let Some(deal) = deal else { return Ok(false) };
        let txn = Txn {
            compares: vec![Compare::Modified(Key::Deal(scope), table.deal.1)],
            puts: vec![
                (Key::Dealt(scope, deal.number), Value::Deal(Box::new(deal.clone())), 0),
                (Key::Deal(scope), Value::Deal(Box::new(deal)), 0),
                (Key::Bell(scope), Value::Bell, 0),
            ],
            deletes: Vec::new(),
        };
        Ok(matches!(self.ask(&Request::Write(txn))?, Answer::Applied(_)))
    }

    /// How the epoch's work was dealt last, if it was: with what throughputs, and how much each worker had before and after.
    pub fn last_deal(&self) -> Result<Option<DealRecord>> {
        let (scope, _) = self.scope()?;
        let (deal, change) = self.table(scope)?.deal;
        Ok((change > 0).then_some(deal))
    }

    /// All deals of an epoch, in their order.
    pub fn deals(&self, epoch: u64) -> Result<Vec<DealRecord>> {
        let (scope, _) = self.scope()?;
        let found = self.read(vec![Keys::Dealt(Scope { epoch, ..scope })])?;
        Ok(found
            .into_iter()
            .filter_map(|entry| match entry.value {
                Value::Deal(deal) => Some(*deal),
                _ => None,
            })
            .collect())
    }

    /// What a worker did in an epoch, in the order in which it did it: committed by it, whoever's it was at first. A loader of that
    /// rank that [adopts](crate::StreamingShardLoader::adopt) it does the same again.
    pub fn assignment(&self, epoch: u64, rank: usize) -> Result<Assignment> {
        let rank = self.check_rank(rank)?;
        let (scope, _) = self.scope()?;
        Ok(self.table(Scope { epoch, ..scope })?.assignment(rank))
    }

    /// Where the whole job stands: to be saved with the model, once all workers committed a step.
    pub fn job_state(&self) -> Result<JobState> {
        let Some(Value::Meta(meta)) = self.get(Key::Meta)? else {
            return Err(self.error("the job has not begun; give its loaders this coordinator first"));
        };
        let (scope, _) = self.scope()?;
        Ok(JobState::new(*meta, scope.epoch, &self.table(scope)?))
    }

    /// Goes back to where the whole job stood. One worker does so, before the others join; those that are there already are told by
    /// their next call, and have to join anew.
    pub fn restore(&self, state: &JobState) -> Result<()> {
        let patience = self.patience();
        let agreed =
            self.patiently(PATIENCE_MAX, |_| super::session::agree(&*self.store, &state.job, patience))?;
        agreed.map_err(|difference| self.error(&difference))?;
        let (_, (before, change)) = self.scope()?;
        let generation = Generation { id: random(), number: before.number + 1, epoch: state.epoch };
        let scope = Scope { generation: generation.id, epoch: state.epoch };
        // Nobody reads these until the generation is written.
        for runs in state.runs().chunks(WRITES_MAX) {
            let puts = runs.iter().map(|(id, run)| (Key::Run(scope, *id), Value::Run(run.clone()), 0));
            let txn = Txn { puts: puts.collect(), ..Txn::default() };
            self.ask(&Request::Write(txn))?;
        }
        let txn = Txn {
            compares: vec![Compare::Modified(Key::Generation, change)],
            puts: vec![(Key::Generation, Value::Generation(generation), 0)],
            deletes: Vec::new(),
        };
        if let Answer::Applied(_) = self.ask(&Request::Write(txn))? {
            return Ok(());
        }
        // An answer may have been lost: then it is restored all the same.
        if self.scope()?.1.0.id == generation.id {
            return Ok(());
        }
        Err(self.error("somebody else restored the job at the same time; let one worker do so"))
    }

    /// Keeps the checkpoint of a loader that joined, in the process: of nobody else, and no longer than it has its rank.
    pub(crate) fn keep(&self, rank: Rank, session: &Session, state: &CheckpointState) -> Result<()> {
        let mut joined = 0;
        loop {
            joined = session.joined(joined)?;
            if let Answer::Applied(_) = self.ask(&super::kept::write(rank.index(), joined, None, state))? {
                return Ok(());
            }
        }
    }

    /// Joins for a loader.
    pub(crate) fn join(
        &self,
        config: &StreamingConfig,
        meta: Meta,
        is_leased: bool,
        work: Arc<dyn Work>,
    ) -> Result<Arc<Session>> {
        let settings = WorkerSettings {
            replicas: config.replicas(),
            threshold: config.threshold(),
            unit: config.unit(),
            ..self.reporting(config.rank())
        };
        self.let_go_of_reporter(config.rank())?;
        self.start(Place { meta, settings, is_leased }, work)
    }

    /// Joins for a loader whose order needs no coordinator: it only tells how it does. Waits for nobody, since a batch waits for this. Who
    /// reported by itself meanwhile is asked for nothing any more, and its lease ends by itself.
    pub(crate) fn join_reporting(&self, rank: Rank, meta: Meta, work: Arc<dyn Work>) -> Result<Arc<Session>> {
        self.start(Place { meta, settings: self.reporting(rank), is_leased: false }, work)
    }

    /// A worker that only tells how it does.
    fn reporting(&self, rank: Rank) -> WorkerSettings {
        WorkerSettings {
            rank: rank.index(),
            session: random(),
            name: worker_name(),
            replicas: 0,
            threshold: None,
            unit: 1,
            times: times(self.config.lease(), rank.world_size()),
        }
    }

    /// Who reported by itself is a loader now.
    pub(crate) fn let_go_of_reporter(&self, rank: Rank) -> Result<()> {
        let reporter = lock(&self.reporters).remove(&rank.index());
        if let Some((lease, _)) = reporter.and_then(|reporter| reporter.place) {
            self.ask(&Request::Revoke(lease))?;
        }
        Ok(())
    }

    fn start(&self, place: Place, work: Arc<dyn Work>) -> Result<Arc<Session>> {
        let rank = place.settings.rank;
        let session = Arc::new(Session::start(Arc::clone(&self.store), place, work)?);
        lock(&self.sessions).insert(rank, Arc::downgrade(&session));
        Ok(session)
    }

    /// Whether it answers at once.
    pub(crate) fn is_local(&self) -> bool {
        self.store.is_local()
    }

    /// Workers of the job.
    pub(crate) fn world_size(&self) -> u32 {
        self.config.rank().world_size()
    }

    fn session(&self, rank: u32) -> Option<Arc<Session>> {
        lock(&self.sessions).get(&rank).and_then(Weak::upgrade)
    }

    fn workers_table(&self) -> Result<Table> {
        Ok(Table::new(self.read(vec![Keys::Alive, Keys::Workers])?, &[]))
    }

    fn table(&self, scope: Scope) -> Result<Table> {
        Ok(Table::new(self.read(Table::keys(scope).to_vec())?, &[]))
    }

    /// The epoch that the job is in, and the generation that holds.
    fn scope(&self) -> Result<(Scope, (Generation, u64))> {
        let keys = vec![Keys::One(Key::Generation), Keys::Alive, Keys::Workers];
        let table = Table::new(self.read(keys)?, &[]);
        let (generation, _) = table.generation;
        let of_this = table.records.values().filter(|record| record.generation == generation.id);
        let epochs = of_this.map(|record| record.epoch);
        let epoch = epochs.max().unwrap_or(0).max(generation.epoch);
        Ok((Scope { generation: generation.id, epoch }, table.generation))
    }

    /// The epoch that a worker begins with: where the others are, or where the job begins.
    pub(crate) fn first_epoch(&self) -> Result<u64> {
        let keys = vec![Keys::One(Key::Generation), Keys::Alive, Keys::Workers];
        let table = Table::new(self.read(keys)?, &[]);
        let (generation, _) = table.generation;
        let there = table.workers.values().map(|there| &there.record);
        let epochs = there.filter(|record| record.generation == generation.id).map(|record| record.epoch);
        Ok(epochs.max().unwrap_or(0).max(generation.epoch))
    }

    fn read(&self, keys: Vec<Keys>) -> Result<Vec<Entry>> {
        match self.ask(&Request::Read(keys))? {
            Answer::Read(entries) => Ok(entries),
            other => Err(self.error(&format!("it answers {other:?} to a read"))),
        }
    }

    fn get(&self, key: Key) -> Result<Option<Value>> {
        Ok(self.read(vec![Keys::One(key)])?.pop().map(|entry| entry.value))
    }

    fn put(&self, key: Key, value: Value) -> Result<()> {
        self.ask(&Request::Write(Txn { puts: vec![(key, value, 0)], ..Txn::default() }))?;
        Ok(())
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(times(self.config.lease(), self.config.rank().world_size()).request)
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        self.ask_within(request, PATIENCE_MAX)
    }

    /// Asks until there is an answer. What is asked here may happen twice: it is the same then, or refused.
    fn ask_within(&self, request: &Request, max: Duration) -> Result<Answer> {
        self.patiently(max, |patience| self.store.ask(request, patience))
    }

    fn patiently<T>(
        &self,
        max: Duration,
        mut ask: impl FnMut(Duration) -> Result<T, StoreError>,
    ) -> Result<T> {
        let until = Instant::now() + max;
        let mut pause = Duration::from_millis(10);
        loop {
            match ask(self.patience()) {
                Ok(answer) => return Ok(answer),
                Err(StoreError::Denied(reason)) => return Err(self.error(&reason)),
                Err(StoreError::NotSent(reason) | StoreError::Unknown(reason)) => {
                    if Instant::now() + pause >= until {
                        let waited = max.as_secs();
                        return Err(self.error(&format!(
                            "it does not answer ({reason}), tried for {waited} s; check that etcd runs there and can be reached"
                        )));
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    fn error(&self, reason: &str) -> Error {
        Error::Coordinator { store: self.store.name(), reason: reason.to_owned() }
    }

    fn check_rank(&self, rank: usize) -> Result<u32> {
        let world_size = self.config.rank().world_size() as usize;
        if rank < world_size {
            return Ok(rank as u32);
        }
        Err(shardfeed_plan::RankError::OutOfRange { index: rank, world_size }.into())
    }
}

#[cfg(feature = "etcd")]
fn etcd_store(url: &EtcdUrl) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(super::etcd::EtcdStore::new(url.clone())?))
}

#[cfg(not(feature = "etcd"))]
fn etcd_store(url: &EtcdUrl) -> Result<Arc<dyn Store>> {
    Err(Error::Coordinator {
        store: url.to_string(),
        reason: "this build knows no etcd; build shardfeed with the cargo feature etcd, which needs protoc"
            .to_owned(),
    })
}

/// What follows from throughputs where nobody has any work yet: how it would be shared.
fn shares_alone(table: &Table, threshold: f64) -> Option<DealRecord> {
    const EACH: u64 = 1_000_000;
    let there: Vec<&WorkerRecord> = table.workers.values().map(|there| &there.record).collect();
    let rates: Vec<(u32, Option<f64>)> = there.iter().map(|worker| (worker.rank, worker.rate)).collect();
    if table.deal.0.rates == rates {
        return None;
    }
    let mut deals = Deals::new(&vec![EACH; there.len()], threshold);
    for (index, worker) in there.iter().enumerate() {
        deals.report(index, 0, worker.rate?).ok()?;
    }
    let shares = deals.rebalance()?.shares.clone();
    let left = rates.iter().zip(shares).map(|((rank, _), share)| (*rank, EACH, share)).collect();
    Some(DealRecord { number: table.deal.0.number.saturating_add(1), rates, left, cuts: Vec::new() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that nobody else has.
fn random() -> u64 {
    RandomState::new().build_hasher().finish() | 1
}

/// Where a worker runs, for people.
fn worker_name() -> String {
    let host = rustix::system::uname();
    format!("{} {}", host.nodename().to_string_lossy(), std::process::id())
}
