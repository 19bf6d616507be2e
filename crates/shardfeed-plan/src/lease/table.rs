use std::collections::BTreeMap;

use super::key::{Key, Keys, RunId, Scope};
use super::kv::Entry;
use super::record::{Cut, DealRecord, Generation, Owner, Run, Value, WorkerRecord};
use crate::{Deals, key};

/// Everything that is kept about one epoch, read at one moment: what a worker decides by.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The generation that holds, and the change that wrote it.
    pub generation: (Generation, u64),
    /// Runs, those included that nobody began, and the change that wrote them last; 0 if none did.
    pub runs: BTreeMap<RunId, (Run, u64)>,
    /// Who has which, and the change that gave it to them.
    pub owners: BTreeMap<RunId, (Owner, u64)>,
    /// Workers that are there.
    pub workers: BTreeMap<u32, Present>,
    /// What is known of all that ever were.
    pub records: BTreeMap<u32, WorkerRecord>,
    /// How the epoch was dealt again, and the change that wrote it.
    pub deal: (DealRecord, u64),
}

/// A worker that is there.
#[derive(Clone, Debug)]
pub struct Present {
    /// What it says.
    pub record: WorkerRecord,
    /// The change by which it came.
    pub created: u64,
    /// The change by which it said so.
    pub modified: u64,
    /// The lease that it is there by.
    pub lease: u64,
}

impl Table {
    /// What to read for the table of a scope.
    pub fn keys(scope: Scope) -> [Keys; 6] {
        [
            Keys::One(Key::Generation),
            Keys::Alive,
            Keys::Workers,
            Keys::One(Key::Deal(scope)),
            Keys::Owners(scope),
            Keys::Runs(scope),
        ]
    }

    /// From what was read. `lens`: samples that the strategy gives each worker.
    pub fn new(entries: Vec<Entry>, lens: &[u64]) -> Self {
        let mut table = Self::default();
        let (mut alive, mut changes) = (BTreeMap::new(), BTreeMap::new());
        for Entry { key, value, created, modified, lease } in entries {
            match (key, value) {
                (_, Value::Generation(generation)) => table.generation = (generation, modified),
                (Key::Alive(rank), Value::Owner(owner)) => {
                    alive.insert(rank, (owner, created, lease));
                }
                (Key::Worker(rank), Value::Worker(record)) => {
                    changes.insert(rank, modified);
                    table.records.insert(rank, *record);
                }
                (_, Value::Deal(deal)) => table.deal = (*deal, modified),
                (Key::Owner(_, run), Value::Owner(owner)) => {
                    table.owners.insert(run, (owner, created));
                }
                (Key::Run(_, id), Value::Run(run)) => {
                    table.runs.insert(id, (run, modified));
                }
                _ => {}
            }
        }
        for (rank, (owner, created, lease)) in alive {
            // Of one that was there before it says nothing.
            let record = table.records.get(&rank).filter(|record| record.session == owner.session).cloned();
            let modified = record.as_ref().map_or(0, |_| changes[&rank]);
            let nothing = || WorkerRecord { session: owner.session, rank, ..WorkerRecord::default() };
            let record = record.unwrap_or_else(nothing);
            table.workers.insert(rank, Present { record, created, modified, lease });
        }
        for (origin, &len) in (0..).zip(lens) {
            if len > 0 {
                table.runs.entry(RunId { origin, start: 0 }).or_insert_with(|| (Run::new(len), 0));
            }
        }
        table
    }

    /// Whether nothing is left to do, for anybody. What belongs to a worker that never came, and that nobody began, is left to
    /// that worker.
    pub fn is_done(&self) -> bool {
        self.open().next().is_none()
    }

    /// Runs that are not done.
    fn open(&self) -> impl Iterator<Item = RunId> + '_ {
        let expected =
            self.runs.iter().filter(|(id, (_, change))| *change > 0 || self.records.contains_key(&id.origin));
        expected.filter(|(id, (run, _))| !run.is_done(id.start)).map(|(id, _)| *id)
    }

    /// Runs that nobody has and that are not done.
    fn free(&self) -> impl Iterator<Item = RunId> + '_ {
        self.open().filter(|id| !self.owners.contains_key(id))
    }

    /// Whether a worker is there, and has not gone past this epoch.
    fn is_there(&self, rank: u32, epoch: u64) -> bool {
        self.workers.get(&rank).is_some_and(|worker| worker.record.epoch <= epoch)
    }

    /// Who takes over what is `origin`'s, in this order: those of the workers there are that come first by a hash of both
    /// numbers, so that few of them change when one comes or goes, and the work of one is spread over many.
    pub fn candidates(&self, origin: u32, count: usize, epoch: u64) -> Vec<u32> {
        let there = self.workers.keys().copied().filter(|&rank| rank != origin && self.is_there(rank, epoch));
        let mut ranks: Vec<u32> = there.collect();
        ranks.sort_by_cached_key(|&rank| std::cmp::Reverse(key(&[origin as u64, rank as u64])));
        ranks.truncate(count);
        ranks
    }

    /// What a worker should claim next, if anything.
    pub fn claimable(&self, me: &Claimer) -> Option<RunId> {
        let own = |id: &RunId| id.origin == me.rank && (id.start == 0 || me.is_idle);
        let orphaned = |id: &RunId| {
            id.origin != me.rank
                && !self.is_there(id.origin, me.epoch)
                && self.candidates(id.origin, me.replicas, me.epoch).contains(&me.rank)
        };
        // What somebody gave up is for those who have nothing to do.
        let given_up = |id: &RunId| me.is_idle && me.takes_tails && id.start > 0;
        let first = |wanted: &dyn Fn(&RunId) -> bool| self.free().find(wanted);
        first(&own).or_else(|| first(&orphaned)).or_else(|| first(&given_up))
    }

    /// Runs that the worker would take over if their owners failed, each with what is left of it: to be kept warm.
    pub fn standing_by(&self, me: &Claimer) -> Vec<RunId> {
        let owned = self.owners.iter().filter(|(_, (owner, _))| owner.rank != me.rank);
        let mine = owned.filter(|(id, (owner, _))| {
            self.candidates(id.origin, me.replicas + 1, me.epoch)
                .iter()
                .filter(|&&rank| rank != owner.rank)
                .take(me.replicas)
                .any(|&rank| rank == me.rank)
        });
        mine.map(|(id, _)| *id).collect()
    }

    /// Runs that each worker has, by its session, each with its record.
    fn owned(&self) -> BTreeMap<u64, Vec<(RunId, &Run)>> {
        let mut owned = BTreeMap::<u64, Vec<_>>::new();
        for (&id, (owner, _)) in &self.owners {
            if let Some((run, _)) = self.runs.get(&id) {
                owned.entry(owner.session).or_default().push((id, run));
            }
        }
        owned
    }

    /// What is left, dealt again in proportion to speed, if that is worth it. Nothing of fewer than `unit` samples is moved.
    pub fn deal(&self, threshold: f64, unit: u64, epoch: u64) -> Option<DealRecord> {
        let here: Vec<&WorkerRecord> = self
            .workers
            .values()
            .map(|worker| &worker.record)
            .filter(|worker| worker.epoch == epoch)
            .collect();
        let owned = self.owned();
        let runs_of = |worker: &WorkerRecord| owned.get(&worker.session).map_or(&[][..], Vec::as_slice);
        let left_of =
            |worker: &&WorkerRecord| runs_of(worker).iter().map(|(id, run)| run.left(id.start).count()).sum();
        let left: Vec<u64> = here.iter().map(left_of).collect();
        let mut deals = Deals::new(&left, threshold);
        for (index, worker) in here.iter().enumerate() {
            if let Some(rate) = worker.rate {
                deals.report(index, 0, rate).ok()?;
            }
        }
        let idle = (0..here.len()).find(|&index| here[index].is_waiting && left[index] == 0);
        let deal = match idle {
            Some(idle) => deals.rebalance_for(idle),
            None => deals.rebalance(),
        }?;
        let shares = deal.shares.clone();
        let mut missing: Vec<u64> =
            left.iter().zip(&shares).map(|(&left, &share)| share.saturating_sub(left)).collect();
        missing.retain(|&missing| missing > 0);
        missing.sort_unstable_by_key(|&missing| std::cmp::Reverse(missing));
        let mut cuts = Vec::new();
        for (worker, (&left, &share)) in here.iter().zip(left.iter().zip(&shares)) {
            let mut over = left.saturating_sub(share);
            for &(run, record) in runs_of(worker).iter().rev() {
                let cut = cut_off(run, record, over, unit, &mut missing);
                over = over.saturating_sub(cut.as_ref().map_or(0, |cut| record.end - cut.at[0]));
                cuts.extend(cut);
            }
        }
        if cuts.is_empty() {
            return None;
        }
        let ranks = || here.iter().map(|worker| worker.rank);
        Some(DealRecord {
            number: self.deal.0.number.saturating_add(1),
            rates: here.iter().map(|worker| (worker.rank, worker.rate)).collect(),
            left: ranks()
                .zip(left.iter().zip(&shares))
                .map(|(rank, (&left, &share))| (rank, left, share))
                .collect(),
            cuts,
        })
    }

    /// Whether everything that the last deal wants cut is cut, done, or in other hands.
    pub fn is_dealt(&self) -> bool {
        self.deal.0.cuts.iter().all(|cut| {
            let (Some((run, _)), Some(&at)) = (self.runs.get(&cut.run), cut.at.first()) else { return true };
            run.end <= at || run.is_done(cut.run.start) || !self.owners.contains_key(&cut.run)
        })
    }
}

/// Takes up to `over` samples off a run's end, in pieces as large as others miss.
fn cut_off(run: RunId, record: &Run, over: u64, unit: u64, missing: &mut Vec<u64>) -> Option<Cut> {
    let unit = unit.max(1);
    let first_left = record.left(run.start).as_slice().first()?.0;
    let round_up = |at: u64| run.start + (at - run.start).next_multiple_of(unit);
    // Its owner keeps the unit that it is at.
    let earliest = round_up(first_left + 1);
    let mut from = round_up(record.end.saturating_sub(over).max(run.start)).max(earliest);
    if over == 0 || from >= record.end {
        return None;
    }
    let mut at = vec![from];
    while let Some(wanted) = missing.first_mut() {
        let there = record.end - from;
        if *wanted >= there {
            *wanted -= there;
            break;
        }
        from = round_up(from + *wanted);
        missing.remove(0);
        if from >= record.end || missing.is_empty() {
            break;
        }
        at.push(from);
    }
    missing.retain(|&missing| missing > 0);
    Some(Cut { run, at })
}

/// A worker, as far as it matters for what it may claim.
#[derive(Clone, Copy, Debug)]
pub struct Claimer {
    /// Its rank.
    pub rank: u32,
    /// The epoch that it is in.
    pub epoch: u64,
    /// How many may take over what a worker leaves behind.
    pub replicas: usize,
    /// Whether it has nothing to do.
    pub is_idle: bool,
    /// Whether work is dealt again.
    pub takes_tails: bool,
}
