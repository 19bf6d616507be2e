//! A shard loader whose samples are leased: what it may hand out comes from a session, and what it did goes there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use shardfeed_plan::lease::{Cut, Done, Ranges, RunId};
use shardfeed_plan::{Assignment, PartitionError, Rank, Stretch};

use super::dataset::Dataset;
use super::loader::Shared;
use super::queue::Snapshot;
use super::stream::ShardStream;
use crate::coordinator::{Session, Standing, Work};
use crate::{Result, foreign};

/// A loader's lease, and what it handed out under it.
pub(super) struct Leased {
    pub session: Arc<Session>,
    /// Samples that the strategy gives each worker.
    pub lens: Vec<u64>,
    /// Samples handed out, and those of them that are committed.
    handed_out: AtomicU64,
    committed: AtomicU64,
    /// One commit at a time, which keeps the last step that was named.
    commits: Mutex<Option<u64>>,
    /// Callers are on their way out with a sample: what they have is neither committed nor lost until they have it.
    hands: RwLock<()>,
    epoch: Mutex<Epoch>,
}

/// The epoch that callers are in, and whether it was found to be done. Both together: who finds an epoch done late says nothing about
/// the next.
struct Epoch {
    number: u64,
    is_over: bool,
}

impl Leased {
    pub fn new(session: Arc<Session>, lens: Vec<u64>, epoch: u64) -> Self {
        Self {
            session,
            lens,
            handed_out: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            commits: Mutex::default(),
            hands: RwLock::default(),
            epoch: Mutex::new(Epoch { number: epoch, is_over: false }),
        }
    }

    /// A sample was handed out.
    pub fn hand_out(&self) {
        self.handed_out.fetch_add(1, Relaxed);
    }

    /// Samples that are handed out and not committed.
    pub fn fresh(&self) -> u64 {
        self.handed_out.load(Relaxed).saturating_sub(self.committed.load(Relaxed))
    }

    /// The same, with those that are on their way out.
    pub fn fresh_in_hand(&self) -> u64 {
        let _nobody = self.hands.write().unwrap_or_else(PoisonError::into_inner);
        self.fresh()
    }

    /// Held from when a sample is taken until it is the caller's.
    pub fn hand(&self) -> RwLockReadGuard<'_, ()> {
        self.hands.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what was handed out, as of a step, or else of the last that was named; nothing, if less than `fresh_min` is fresh: while
    /// somebody waited for a turn, others may have committed it.
    pub fn commit<S, T>(
        &self,
        step: Option<u64>,
        fresh_min: u64,
        snapshot: impl FnOnce() -> S,
        commit: impl FnOnce(S, Option<u64>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut last_step = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        if self.fresh() < fresh_min {
            return Ok(None);
        }
        *last_step = step.or(*last_step);
        let (handed_out, snapshot) = {
            let _nobody = self.hands.write().unwrap_or_else(PoisonError::into_inner);
            (self.handed_out.load(Relaxed), snapshot())
        };
        let done = commit(snapshot, *last_step)?;
        self.committed.store(handed_out, Relaxed);
        Ok(Some(done))
    }

    /// Goes on to another epoch, while nobody commits something of this one, if that is wanted from the epoch that it is by then: others
    /// may have been faster. What was not committed is not done.
    pub fn go_on(&self, to: u64, is_wanted: impl FnOnce(u64) -> bool, go_on: impl FnOnce()) {
        let _turn = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut epoch = self.epoch();
        if !is_wanted(epoch.number) {
            return;
        }
        go_on();
        *epoch = Epoch { number: to, is_over: false };
        self.committed.store(self.handed_out.load(Relaxed), Relaxed);
    }

    /// An epoch was found to be done. False if it is another by now.
    pub fn set_over(&self, number: u64) -> bool {
        let mut epoch = self.epoch();
        epoch.is_over |= epoch.number == number;
        epoch.number == number
    }

    /// The epoch, if it was found to be done.
    pub fn over(&self) -> Option<u64> {
        let epoch = self.epoch();
        epoch.is_over.then_some(epoch.number)
    }

    fn epoch(&self) -> MutexGuard<'_, Epoch> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was handed out, as the session wants to know it.
pub(super) fn done_of(snapshot: &Snapshot<ShardStream>) -> Vec<Done> {
    let Some(assignment) = snapshot.stream.assignment() else { return Vec::new() };
    let ranges = snapshot.done.ranges().into_iter();
    let stretches = ranges.flat_map(|(start, end)| assignment.between(start, end));
    stretches.map(|(at, Stretch { origin, start, end })| Done { origin, at, start, end }).collect()
}

/// What a session does with a loader.
pub(super) struct LoaderWork<D: Dataset> {
    shared: Arc<Shared<D>>,
    /// What is kept at hand, so that it is not fetched again.
    warmed: Arc<Mutex<BTreeMap<RunId, u64>>>,
    is_warming: Arc<AtomicBool>,
}

impl<D: Dataset> LoaderWork<D> {
    pub fn new(shared: Arc<Shared<D>>) -> Self {
        Self { shared, warmed: Arc::default(), is_warming: Arc::default() }
    }

    fn dealt(&self, epoch: u64, assignment: Assignment) -> Result<ShardStream, PartitionError> {
        ShardStream::of_orders(self.shared.config.rank(), epoch, assignment, |rank| {
            self.shared.order(rank, epoch)
        })
    }
}

impl<D: Dataset + 'static> Work for LoaderWork<D> {
    fn standing(&self) -> Standing {
        let (samples, position, epoch) = self.shared.queue.standing(|stream| stream.epoch);
        Standing { samples, epoch, position }
    }

    /// Its own samples after what it has; somebody else's at once, since they are late.
    fn deliver(&self, number: u64, run: RunId, left: &Ranges) -> Result<()> {
        let Shared { config, queue, .. } = &*self.shared;
        let rank = config.rank();
        // Before the queue is locked: it may take long.
        if let Ok(origin) = Rank::new(run.origin, rank.world_size()) {
            self.shared.order(origin, queue.standing(|stream| stream.epoch).2);
        }
        let more = left.as_slice().iter().map(|&(start, end)| Stretch { origin: run.origin, start, end });
        queue.exchange_with(number, |stream, next| {
            let have = stream.assignment().cloned().unwrap_or_default();
            let at = if run.origin == rank.index() { have.len() } else { next };
            self.dealt(stream.epoch, have.with(at, more)).map(Some)
        })?;
        Ok(())
    }

    fn shrink(&self, number: u64, cut: &Cut, end: u64) -> Cut {
        let Shared { config, queue, .. } = &*self.shared;
        let unit = config.unit();
        let mut at = Vec::new();
        let shrunk = queue.exchange_with(number, |stream, next| {
            let Some(have) = stream.assignment() else { return Ok(None) };
            let Some(first) = first_to_give(have, next, cut, end, unit) else { return Ok(None) };
            let of = Stretch { origin: cut.run.origin, start: first, end };
            let stream = self.dealt(stream.epoch, have.without(next, of))?;
            at.push(first);
            at.extend(cut.at.iter().copied().filter(|&point| point > first && point < end));
            Ok::<_, crate::Error>(Some(stream))
        });
        if !matches!(shrunk, Ok(true)) {
            at.clear();
        }
        Cut { run: cut.run, at }
    }

    fn warm(&self, starts: &[(RunId, u64)]) {
        let mut warmed = self.warmed.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: Vec<(RunId, u64)> =
            starts.iter().copied().filter(|(run, start)| warmed.get(run) != Some(start)).collect();
        if wanted.is_empty() || self.is_warming.swap(true, Relaxed) {
            return;
        }
        *warmed = starts.iter().copied().collect();
        let (shared, is_warming) = (Arc::clone(&self.shared), Arc::clone(&self.is_warming));
        // Apart from the session, which must not wait for data.
        let started = std::thread::Builder::new().name("shardfeed-warm".to_owned()).spawn(move || {
            let Shared { dataset, queue, config, .. } = &*shared;
            let epoch = queue.snapshot().stream.epoch;
            for (run, start) in wanted {
                let Ok(origin) = Rank::new(run.origin, config.rank().world_size()) else { continue };
                // Kept, although only this one of them is asked for now: another is with every commit of whoever has them, and to list
                // hashed or stratified samples is to look at all there are.
                let index = shared.order(origin, epoch).index(start);
                // Whoever needs it will see what is wrong with it.
                let _ = foreign::call(|| index.map(|index| dataset.warm(index as usize)));
            }
            is_warming.store(false, Relaxed);
        });
        if started.is_err() {
            self.is_warming.store(false, Relaxed);
        }
    }
}

/// The first sample of a run that can be given up: at the cut or after it, where nobody has a part of the unit.
fn first_to_give(have: &Assignment, next: u64, cut: &Cut, end: u64, unit: u64) -> Option<u64> {
    let run = cut.run;
    let taken = have.between(0, next).into_iter().map(|(_, stretch)| stretch);
    let taken = taken
        .filter(|stretch| stretch.origin == run.origin && stretch.start < end && stretch.end > run.start);
    let taken = taken.map(|stretch| stretch.end).max().unwrap_or(run.start).min(end);
    let unit_end = run.start + (taken - run.start).next_multiple_of(unit.max(1));
    let first = (*cut.at.first()?).max(unit_end).max(run.start + 1);
    (first < end).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_stays_and_its_unit_with_it() {
        let run = RunId { origin: 1, start: 100 };
        let have: Assignment = [(0, 0, 10), (1, 100, 200)]
            .map(|(origin, start, end)| Stretch { origin, start, end })
            .into_iter()
            .collect();
        let first = |next, at| first_to_give(&have, next, &Cut { run, at: vec![at] }, 200, 8);
        assert_eq!(first(5, 150), Some(150));
        assert_eq!(first(10, 101), Some(101));
        assert_eq!(first(11, 101), Some(108));
        assert_eq!(first(18, 101), Some(108));
        assert_eq!(first(19, 101), Some(116));
        assert_eq!(first(110, 101), None);
    }
}
