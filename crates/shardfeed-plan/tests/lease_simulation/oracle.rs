use std::collections::{BTreeMap, BTreeSet};

use crate::lease::key::{Key, Keys, RunId, Scope};
use crate::lease::kv::{Memory, Txn};
use crate::lease::ranges::Ranges;
use crate::lease::record::Value;

/// Watches what the store takes and what workers believe, and says what may not be.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Samples that a process handed out: of a scope, an origin.
    handed_out: BTreeSet<(u64, Scope, u32, u64)>,
    /// Whose commit each sample is, as the store has it.
    committed_by: BTreeMap<(Scope, u32, u64), u64>,
    /// Samples that a worker was told are committed.
    believed: BTreeSet<(Scope, u32, u64)>,
    /// The generation that holds.
    pub generation: u64,
    pub violation: Option<String>,
}

/// Steps of one process are so far from those of the next.
pub const STEPS: u64 = 1_000_000;

/// The step that a worker's checkpoint names.
fn step_of(kv: &mut Memory, now: u64, rank: u32) -> Option<u64> {
    match kv.read(now, &[Keys::One(Key::Checkpoint(rank))]).1.pop()?.value {
        Value::Checkpoint(state) => state.step,
        _ => None,
    }
}

/// Samples that a write commits.
#[derive(Debug)]
pub struct Added {
    scope: Scope,
    origin: u32,
    by: u64,
    samples: Ranges,
}

impl Oracle {
    fn object(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// A process hands a sample out.
    pub fn hands_out(
        &mut self,
        kv: &mut Memory,
        now: u64,
        session: u64,
        scope: Scope,
        run: RunId,
        sample: u64,
    ) {
        let (_, there) = kv.read(now, &[Keys::One(Key::Owner(scope, run))]);
        let owner = there.first().map(|entry| entry.value.clone());
        if !matches!(&owner, Some(Value::Owner(owner)) if owner.session == session) {
            self.object(format!(
                "handed out without owning it: {run:?} sample {sample}, which has {owner:?}"
            ));
        }
        self.handed_out.insert((session, scope, run.origin, sample));
    }

    /// The store is about to take a write: what it would commit, and what may not be.
    pub fn weighs(&self, kv: &mut Memory, now: u64, txn: &Txn) -> (Vec<Added>, Vec<String>) {
        let (mut added, mut objections) = (Vec::new(), Vec::new());
        for (key, value, _) in &txn.puts {
            if let (Key::Checkpoint(rank), Value::Checkpoint(state)) = (key, value) {
                let before = step_of(kv, now, *rank);
                if state.step < before {
                    objections.push(format!("step undone: {before:?} of {rank} by {:?}", state.step));
                }
            }
            let (Key::Run(scope, id), Value::Run(run)) = (key, value) else { continue };
            // A run may be cut: what is done of it is then in several.
            let mut old = Ranges::default();
            for entry in kv.read(now, &[Keys::Runs(*scope)]).1 {
                if let (Key::Run(_, other), Value::Run(run)) = (entry.key, entry.value)
                    && other.origin == id.origin
                {
                    old.extend(&run.done);
                }
            }
            let all = txn.puts.iter().filter_map(|(key, value, _)| match (key, value) {
                (Key::Run(of, other), Value::Run(run)) if (of, other.origin) == (scope, id.origin) => {
                    Some(run)
                }
                _ => None,
            });
            let mut after = Ranges::default();
            all.for_each(|run| after.extend(&run.done));
            let (_, there) = kv.read(now, &[Keys::One(*key)]);
            if let Some(Value::Run(before)) = there.first().map(|entry| &entry.value)
                && !before.done.without(&after).is_empty()
            {
                objections.push(format!("rewound: {id:?} from {before:?} to {:?}", run.done));
            }
            let new = run.done.without(&old);
            if new.is_empty() {
                continue;
            }
            let (_, owners) = kv.read(now, &[Keys::One(Key::Owner(*scope, *id))]);
            let owner = owners.first().map(|entry| &entry.value);
            if !matches!(owner, Some(Value::Owner(owner)) if owner.session == run.by) {
                objections.push(format!("committed without owning it: {id:?} {new:?}, which has {owner:?}"));
            }
            if scope.generation != self.generation {
                objections.push(format!("committed in a generation that is over: {id:?} {new:?}"));
            }
            added.push(Added { scope: *scope, origin: id.origin, by: run.by, samples: new });
        }
        (added, objections)
    }

    /// It was taken.
    pub fn committed(&mut self, (added, objections): (Vec<Added>, Vec<String>)) {
        for objection in objections {
            self.object(objection);
        }
        for Added { scope, origin, by, samples } in added {
            for sample in samples.as_slice().iter().flat_map(|&(start, end)| start..end) {
                let place = (scope, origin, sample);
                if !self.handed_out.contains(&(by, scope, origin, sample)) {
                    self.object(format!("committed though not handed out: {place:?}"));
                }
                if let Some(other) = self.committed_by.insert(place, by) {
                    self.object(format!("committed twice: {place:?} by {other} and {by}"));
                }
            }
        }
    }

    /// A worker was told that these are committed.
    pub fn believes(&mut self, session: u64, scope: Scope, origin: u32, sample: u64) {
        let place = (scope, origin, sample);
        if scope.generation == self.generation && self.committed_by.get(&place) != Some(&session) {
            self.object(format!("believed to be committed: {place:?} by {session}"));
        }
        if !self.believed.insert(place) {
            self.object(format!("believed twice: {place:?}"));
        }
    }

    /// A worker was told that its step is known. A later one is that of its successor.
    pub fn believes_step(&mut self, kv: &mut Memory, now: u64, rank: u32, step: u64) {
        let known = step_of(kv, now, rank);
        if known < Some(step) {
            self.object(format!("step unknown: {step} of {rank}, which has {known:?}"));
        }
    }

    /// A worker was told that these are not done.
    pub fn discards(&mut self, session: u64, scope: Scope, origin: u32, sample: u64) {
        let place = (scope, origin, sample);
        if scope.generation == self.generation && self.committed_by.get(&place) == Some(&session) {
            self.object(format!("discarded what is committed: {place:?} by {session}"));
        }
    }

    /// The job was restored.
    pub fn restores(&mut self, generation: u64, done: &BTreeMap<(u64, u32), Ranges>) {
        self.generation = generation;
        for (&(of, origin), ranges) in done {
            let scope = Scope { generation, epoch: of };
            for sample in ranges.as_slice().iter().flat_map(|&(start, end)| start..end) {
                self.committed_by.insert((scope, origin, sample), 0);
            }
        }
    }

    /// Everything should be done.
    pub fn ends(&mut self, lens: &[u64], epochs: std::ops::Range<u64>) {
        for epoch in epochs {
            let scope = Scope { generation: self.generation, epoch };
            for (origin, &len) in (0..).zip(lens) {
                let lost = (0..len).find(|&sample| !self.committed_by.contains_key(&(scope, origin, sample)));
                if let Some(sample) = lost {
                    self.object(format!("lost: sample {sample} of {origin} in epoch {epoch}"));
                }
            }
        }
    }
}
