use std::collections::BTreeMap;

mod event; // what happens to a worker, and what it wants
mod requests; // what it asks next
mod answers; // what follows from an answer
mod looks; // what follows from a look at everything

pub use event::{Action, Answer, Done, End, Event, Report, Request};

use super::key::{RunId, Scope};
use super::record::{Cut, DealRecord, Generation, Part, Run};
use super::rules;
use crate::CheckpointState;

/// One worker's part in the protocol: what it asks the store, when, and what follows from the answers.
///
/// Pure: time and events come in, actions go out. It has one request on its way at a time. Whoever drives it sends that, and
/// says what became of it; hands out samples of runs that it was given, as long as [`delivers_until`](Self::delivers_until)
/// lies ahead; and tells what was done.
#[derive(Clone, Debug)]
pub struct Worker {
    settings: WorkerSettings,
    scope: Option<Scope>,
    lens: Vec<u64>,
    generation: Option<(Generation, u64)>,
    lease: Option<Lease>,
    /// The change by which the worker is there.
    joined: Option<u64>,
    /// The change by which it was there first: tells what this process did from what others do.
    tag: u64,
    /// The change by which it said last how it does, and the step that it wrote last.
    reported: u64,
    step: Option<u64>,
    /// Another process that has the rank: since when it was seen, and its last change.
    rival: Option<(u64, u64)>,
    held: BTreeMap<RunId, Held>,
    /// Runs of an epoch that was left, to be given back.
    to_release: Vec<(Scope, RunId, u64)>,
    sent: Option<Sent>,
    /// Something may have happened that nobody knows of: to be looked at before anything else is done.
    is_unsure: bool,
    writes: u64,
    commit: Option<Write>,
    cut: Option<Write>,
    wants: Wants,
    asked_to_shrink: Option<RunId>,
    /// The deal that was seen last, and when.
    seen_deal: (u64, u64),
    last_cut: u64,
    report: Report,
    is_over: bool,
    end: Option<End>,
    keep_alive_at: u64,
    report_at: u64,
    look_at: u64,
    looked_at: u64,
    retry_at: u64,
    failures: u32,
}

/// How a worker takes part.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Its rank.
    pub rank: u32,
    /// Tells this process from others that have, or had, the rank.
    pub session: u64,
    /// Where it runs, for people.
    pub name: String,
    /// How many may take over what a worker leaves behind that fails.
    pub replicas: usize,
    /// Deal again when the coefficient of variation of throughputs is above this; `None`: never.
    pub threshold: Option<f64>,
    /// Fewer samples are not moved.
    pub unit: u64,
    /// When things are due.
    pub times: Times,
}

/// When things are due, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A worker that is not heard of for so long has failed.
    pub lease: u64,
    /// How often it makes itself heard.
    pub keep_alive: u64,
    /// So long before its lease may end, it hands out nothing more.
    pub margin: u64,
    /// How often it looks at what others do, unless it is told to.
    pub look: u64,
    /// How often it does if it is told to.
    pub look_again: u64,
    /// How long it waits for an answer.
    pub request: u64,
}

impl Times {
    /// For leases of a length, in a job of a size: with many workers each looks more seldom, so that the store has as much to do
    /// for each worker as before.
    pub fn new(lease: u64, world_size: u32) -> Self {
        let keep_alive = (lease / 5).max(1);
        let look = keep_alive * u64::from(world_size.div_ceil(64).max(1));
        Self {
            lease,
            keep_alive,
            margin: lease / 5,
            look,
            look_again: look / 20,
            request: (lease / 6).clamp(1, 1_500),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: u64,
    /// It cannot have ended before.
    holds_until: u64,
}

/// A run that the worker has.
#[derive(Clone, Debug)]
struct Held {
    /// The change by which it was claimed: the fencing token. `None` while the lease that it was claimed with is gone.
    token: Option<u64>,
    run: Run,
    /// The change that wrote the run last.
    modified: u64,
}

#[derive(Clone, Debug)]
struct Sent {
    at: u64,
    doing: Doing,
}

#[derive(Clone, Debug)]
enum Doing {
    Grant,
    KeepAlive,
    Join,
    Look,
    Report,
    Claim { id: RunId, run: Run, modified: u64 },
    Commit,
    Cut,
    Deal,
    Release,
    Revoke,
}

/// A write of runs that the worker has: the how-manieth of its own, and what it changes.
#[derive(Clone, Debug)]
struct Write {
    seq: u64,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    Commit { done: Vec<Done>, step: Option<u64>, checkpoint: Option<Box<CheckpointState>> },
    Cut(Cut),
}

/// What follows from the last look.
#[derive(Clone, Debug, Default)]
struct Wants {
    claim: Option<(RunId, Run, u64)>,
    deal: Option<(DealRecord, u64)>,
}

impl Worker {
    /// A worker that has not joined yet. What it needs is a [`Event::Tick`].
    pub fn new(settings: WorkerSettings) -> Self {
        Self {
            settings,
            scope: None,
            lens: Vec::new(),
            generation: None,
            lease: None,
            joined: None,
            tag: 0,
            reported: 0,
            step: None,
            rival: None,
            held: BTreeMap::new(),
            to_release: Vec::new(),
            sent: None,
            is_unsure: false,
            writes: 0,
            commit: None,
            cut: None,
            wants: Wants::default(),
            asked_to_shrink: None,
            seen_deal: (0, 0),
            last_cut: 0,
            report: Report::default(),
            is_over: false,
            end: None,
            keep_alive_at: 0,
            report_at: 0,
            look_at: 0,
            looked_at: 0,
            retry_at: 0,
            failures: 0,
        }
    }

    /// Something happened at a time; what is to be done.
    pub fn step(&mut self, now: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.end.is_some() && !matches!(event, Event::Answer(_)) {
            return actions;
        }
        match event {
            Event::Tick => {}
            // When many claim at once, not everybody looks at each of their claims.
            Event::Hint => {
                let soon = now.max(self.looked_at + self.settings.times.look_again);
                self.look_at = self.look_at.min(soon);
            }
            Event::Answer(answer) => self.answered(now, answer, &mut actions),
            Event::Begin { epoch, lens } => self.begin(now, epoch, lens),
            Event::Commit { done, step, checkpoint } => {
                self.prepare_commit(Change::Commit { done, step, checkpoint }, &mut actions);
            }
            Event::Shrunk(cut) => self.prepare_cut(cut),
            Event::Leave => self.out(End::Left, &mut actions),
        }
        if self.sent.is_none()
            && let Some((doing, request)) = self.next_request(now)
        {
            self.sent = Some(Sent { at: now, doing });
            actions.push(Action::Send(request));
        }
        actions
    }

    /// Up to this time samples may be handed out; 0 if none may.
    pub fn delivers_until(&self) -> u64 {
        if !rules::stops_in_time() {
            return u64::MAX;
        }
        let is_whole = self.end.is_none() && self.joined.is_some();
        let lease = self.lease.filter(|_| is_whole && self.held.values().all(|held| held.token.is_some()));
        lease.map_or(0, |lease| lease.holds_until.saturating_sub(self.settings.times.margin))
    }

    /// When it wants to hear of the time, unless something happens before.
    pub fn wakes_at(&self) -> u64 {
        if self.sent.is_some() || self.end.is_some() {
            return u64::MAX;
        }
        if self.failures > 0 {
            return self.retry_at;
        }
        if self.joined.is_none() && self.retry_at > 0 {
            return self.retry_at.min(self.keep_alive_at);
        }
        let looks = self.rival.is_some() || self.scope.is_some() && !self.is_over;
        let look = if looks { self.look_at } else { u64::MAX };
        let report = if self.joined.is_some() { self.report_at } else { u64::MAX };
        self.keep_alive_at.min(report).min(look)
    }

    /// How it does; told to others when that is due.
    pub fn set_report(&mut self, report: Report) {
        self.report = report;
    }

    /// The change by which it is known to the others, if it is.
    pub fn joined(&self) -> Option<u64> {
        self.joined
    }

    /// Whether another process has the rank, as far as it has looked.
    pub fn has_rival(&self) -> bool {
        self.rival.is_some()
    }

    /// Whether the store does not answer at present.
    pub fn is_cut_off(&self) -> bool {
        self.failures > 0
    }

    /// Why it is out, if it is.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The epoch that it is in, of the generation that holds as far as it knows.
    pub fn scope(&self) -> Option<Scope> {
        self.scope
    }

    /// Runs that it has.
    pub fn held(&self) -> impl Iterator<Item = RunId> + '_ {
        self.held.keys().copied()
    }

    fn begin(&mut self, now: u64, epoch: u64, lens: Vec<u64>) {
        let generation = self.generation.map_or(0, |(generation, _)| generation.id);
        let before = self.scope.replace(Scope { generation, epoch });
        for (id, held) in std::mem::take(&mut self.held) {
            if let (Some(scope), Some(token)) = (before, held.token) {
                self.to_release.push((scope, id, token));
            }
        }
        self.lens = lens;
        (self.commit, self.cut, self.asked_to_shrink) = (None, None, None);
        (self.wants, self.is_over) = (Wants::default(), false);
        (self.seen_deal, self.last_cut) = ((0, now), 0);
        (self.look_at, self.report_at) = (now, now);
    }

    fn prepare_commit(&mut self, commit: Change, actions: &mut Vec<Action>) {
        let is_another_step = matches!(
            &commit,
            Change::Commit { step: Some(step), checkpoint: Some(_), .. } if self.step != Some(*step)
        );
        if !is_another_step && self.changed(&commit, 0).0.is_empty() {
            actions.push(Action::Committed);
            return;
        }
        self.writes += 1;
        self.commit = Some(Write { seq: self.writes, change: commit });
    }

    fn prepare_cut(&mut self, cut: Cut) {
        let asked = self.asked_to_shrink.take();
        let change = Change::Cut(cut);
        if self.changed(&change, 0).0.keys().any(|id| asked == Some(*id)) {
            self.writes += 1;
            self.cut = Some(Write { seq: self.writes, change });
        }
    }

    /// The runs that the worker has of what was done, with what of it is theirs.
    fn held_of<'a>(&'a self, done: &'a Done) -> impl Iterator<Item = (RunId, &'a Held, u64, u64)> {
        let first = RunId { origin: done.origin, start: 0 };
        let last = RunId { origin: done.origin, start: u64::MAX };
        self.held.range(first..=last).filter_map(move |(&id, held)| {
            let (start, end) = (done.start.max(id.start), done.end.min(held.run.end));
            (start < end).then_some((id, held, start, end))
        })
    }

    /// Runs as they will be after a change, and runs that come to be by it.
    fn changed(&self, change: &Change, seq: u64) -> (BTreeMap<RunId, Run>, BTreeMap<RunId, Run>) {
        let (mut runs, mut tails) = (BTreeMap::new(), BTreeMap::new());
        match change {
            Change::Commit { done, step, .. } => {
                let (rank, joined) = (self.settings.rank, self.tag);
                for done in done {
                    for (id, held, first, last) in self.held_of(done) {
                        let run: &mut Run = runs.entry(id).or_insert_with(|| held.run.clone());
                        run.step = step.or(run.step);
                        for &(start, end) in run.done.gaps(first, last).as_slice() {
                            run.add(Part { rank, joined, at: done.at + (start - done.start), start, end });
                        }
                    }
                }
                runs.retain(|id, run| run.done != self.held[id].run.done);
            }
            Change::Cut(cut) => {
                let Some(held) = self.held.get(&cut.run) else { return (runs, tails) };
                let (start, end) = (cut.run.start, held.run.end);
                let mut points = vec![start];
                points.extend(cut.at.iter().filter(|&&at| at > start && at < end));
                points.push(end);
                if points.len() > 2 {
                    let mut parts = points.array_windows().map(|&[start, end]| {
                        (RunId { origin: cut.run.origin, start }, held.run.within(start, end))
                    });
                    runs.extend(parts.next());
                    tails.extend(parts);
                }
            }
        }
        for run in runs.values_mut().chain(tails.values_mut()) {
            (run.by, run.seq) = (self.settings.session, seq);
        }
        (runs, tails)
    }

    fn out(&mut self, end: End, actions: &mut Vec<Action>) {
        self.end = Some(end);
        actions.push(Action::End(end));
    }
}
