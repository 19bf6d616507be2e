use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::fmt;

use shardfeed_plan::{CheckpointState, Facts, Partition, PartitionStrategy, Progress, Rank, StreamIdentity};

use crate::lease::key::{Key, Keys, RunId, Scope};
use crate::lease::kv::{Compare, Memory, Txn};
use crate::lease::ranges::Ranges;
use crate::lease::record::{Cut, Generation, Run, Value, WorkerRecord};
use crate::lease::worker::{
    Action, Answer, Done, End, Event, Report, Request, Times, Worker, WorkerSettings,
};
use crate::network::Dice;
use crate::oracle::{Oracle, STEPS};
use crate::schedule::{Fault, LEASE_MS, Schedule, WORKERS_MAX};

/// What came of a schedule.
pub struct Outcome {
    pub faults: Faults,
    pub violation: Option<String>,
}

/// Faults that happened, by kind.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    counts: BTreeMap<&'static str, u64>,
}

const KINDS: [&str; 15] = [
    "crashes",
    "stops",
    "partitions",
    "slow workers",
    "store outages",
    "restores",
    "workers that left",
    "lost requests",
    "lost answers",
    "late messages",
    "doubled requests",
    "answers unknown",
    "takeovers",
    "fenced workers",
    "cuts",
];

impl Faults {
    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
    }

    pub fn all_happened(&self) -> bool {
        KINDS.iter().all(|kind| self.counts.get(kind).is_some_and(|&count| count > 0))
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.counts.iter().map(|(kind, count)| format!("{kind} {count}"));
        f.write_str(&all.collect::<Vec<_>>().join(", "))
    }
}

/// A process that has a rank.
struct Process {
    session: u64,
    worker: Worker,
    epoch: u64,
    request: u64,
    /// Samples to hand out, then those that are not committed.
    todo: VecDeque<(RunId, u64)>,
    fresh: Vec<(RunId, u64, u64)>,
    /// Those that are being committed, and all that ever were in this epoch.
    sent: Vec<(RunId, u64, u64)>,
    history: Vec<(RunId, u64, u64)>,
    position: u64,
    /// The step that was named last.
    step: u64,
    is_committing: bool,
    /// The epoch is over, and it goes on once that is committed.
    goes_on: bool,
    slower: u64,
    /// When it is told the time next.
    wakes_at: u64,
    is_finished: bool,
}

impl Process {
    /// All that it has sent so far, as of another step.
    fn commit(&mut self, rank: usize) -> Event {
        self.step += 1;
        let done = ranges_of(&mut self.history);
        Event::Commit { done, step: Some(self.step), checkpoint: Some(Box::new(checkpoint(rank, self.step))) }
    }
}

/// One that names a step.
fn checkpoint(rank: usize, step: u64) -> CheckpointState {
    let strategy = &PartitionStrategy::RoundRobin;
    let rank = Rank::new(rank as u32, WORKERS_MAX).expect("a rank");
    let stream = StreamIdentity { rank, shuffle_seed: None, strategy, samples: 0, fingerprint: 0, facts: 0 };
    let progress =
        Progress { epoch: 0, processed: Vec::new(), assignment: None, step: Some(step), timestamp: 0 };
    let partition = Partition::new(strategy, 0, WORKERS_MAX, None, Facts::None).expect("it divides nothing");
    CheckpointState::new(&stream, progress, &partition)
}

#[derive(Debug)]
enum What {
    Tick { rank: usize, session: u64 },
    Consume { rank: usize, session: u64 },
    Hint { rank: usize, session: u64 },
    Arrive { rank: usize, session: u64, request: u64, what: Request, answers: Option<u64> },
    Answer { rank: usize, session: u64, request: u64, answer: Answer },
    Shrunk { rank: usize, session: u64, cut: Cut },
    Start { rank: usize },
    Fault(Fault),
    StoreIsBack { extends: bool },
}

struct World {
    schedule: Schedule,
    dice: Dice,
    now: u64,
    kv: Memory,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, What>,
    numbered: u64,
    processes: Vec<Option<Process>>,
    sessions: u64,
    frozen_until: Vec<u64>,
    cut_off_until: Vec<u64>,
    is_out: bool,
    saved: BTreeMap<(u64, u32), Ranges>,
    saved_epoch: u64,
    /// Where the job began, or was restored to.
    first_epoch: u64,
    oracle: Oracle,
    faults: Faults,
}

thread_local! {
    static TELLS: Cell<bool> = const { Cell::new(false) };
}

/// From now on everything that happens on this thread is printed.
pub fn tell() {
    TELLS.set(true);
}

pub fn run(seed: u64) -> Outcome {
    let mut dice = Dice::new(seed);
    let schedule = Schedule::new(&mut dice);
    let workers = schedule.lens.len();
    let mut world = World {
        schedule,
        dice,
        now: 0,
        kv: Memory::default(),
        queue: BinaryHeap::new(),
        events: HashMap::new(),
        numbered: 0,
        processes: (0..workers).map(|_| None).collect(),
        sessions: 0,
        frozen_until: vec![0; workers],
        cut_off_until: vec![0; workers],
        is_out: false,
        saved: BTreeMap::new(),
        saved_epoch: 0,
        first_epoch: 0,
        oracle: Oracle::default(),
        faults: Faults::default(),
    };
    world.run();
    Outcome { faults: world.faults, violation: world.oracle.violation }
}

impl World {
    fn run(&mut self) {
        // All were there once before the first began, as `wait_for_workers` makes sure: who never came has no heirs.
        let known = |rank: usize| {
            let record = WorkerRecord { rank: rank as u32, ..WorkerRecord::default() };
            (Key::Worker(rank as u32), Value::Worker(Box::new(record)), 0)
        };
        let puts = (0..self.processes.len()).map(known).collect();
        self.kv.apply(0, &Txn { puts, ..Txn::default() }).expect("no lease").expect("no condition");
        for rank in 0..self.processes.len() {
            let at = self.dice.below(500);
            self.at(at, What::Start { rank });
        }
        for (at, fault) in self.schedule.faults.clone() {
            self.at(at, What::Fault(fault));
        }
        let work: u64 = self.schedule.lens.iter().sum::<u64>() * 250 * 8 * self.schedule.epochs;
        let patience = self.schedule.calm_from + work + 40 * LEASE_MS;
        while let Some(Reverse((at, number))) = self.queue.pop() {
            self.now = at;
            if self.oracle.violation.is_some() {
                return;
            }
            if at > patience {
                let held: Vec<_> = self
                    .processes
                    .iter()
                    .flatten()
                    .map(|p| {
                        (
                            p.session,
                            p.epoch,
                            p.todo.len(),
                            p.fresh.len(),
                            p.is_committing,
                            p.worker.held().collect::<Vec<_>>(),
                        )
                    })
                    .collect();
                self.oracle.violation = Some(format!("no progress: {held:?}"));
                return;
            }
            let what = self.events.remove(&number).expect("numbered");
            if TELLS.get() {
                println!("{at:6} {what:?}");
            }
            self.happen(what);
            let is_finished = self
                .processes
                .iter()
                .all(|process| process.as_ref().is_none_or(|process| process.is_finished));
            let somebody = self.processes.iter().flatten().next().is_some();
            if at > self.schedule.calm_from + 2 * LEASE_MS && is_finished && somebody {
                break;
            }
        }
        self.oracle.ends(&self.schedule.lens.clone(), self.first_epoch..self.schedule.epochs);
    }

    fn at(&mut self, at: u64, what: What) {
        self.numbered += 1;
        self.queue.push(Reverse((at, self.numbered)));
        self.events.insert(self.numbered, what);
    }

    fn happen(&mut self, what: What) {
        // Whoever stands still notices nothing until it goes on.
        let whom = match &what {
            What::Tick { rank, .. }
            | What::Consume { rank, .. }
            | What::Hint { rank, .. }
            | What::Shrunk { rank, .. }
            | What::Answer { rank, .. } => Some(*rank),
            _ => None,
        };
        if let Some(until) = whom.map(|rank| self.frozen_until[rank]).filter(|&until| until > self.now) {
            let jitter = self.dice.below(5);
            return self.at(until + jitter, what);
        }
        match what {
            What::Tick { rank, session } => self.step(rank, session, Event::Tick),
            What::Hint { rank, session } => self.step(rank, session, Event::Hint),
            What::Shrunk { rank, session, cut } => self.step(rank, session, Event::Shrunk(cut)),
            What::Consume { rank, session } => self.consume(rank, session),
            What::Arrive { rank, session, request, what, answers } => {
                if self.is_out {
                    return;
                }
                let answer = self.serve(what);
                if let Some(after) = answers {
                    self.at(self.now + after, What::Answer { rank, session, request, answer });
                }
            }
            What::Answer { rank, session, request, answer } => {
                let is_wanted = self.process(rank, session).is_some_and(|process| process.request == request);
                if is_wanted {
                    if matches!(answer, Answer::Unknown) {
                        self.faults.count("answers unknown");
                    }
                    self.process(rank, session).expect("it is there").request += 1;
                    self.step(rank, session, Event::Answer(answer));
                }
            }
            What::Start { rank } => self.start(rank),
            What::StoreIsBack { extends } => {
                self.is_out = false;
                if extends {
                    self.kv.extend_leases(self.now);
                }
            }
            What::Fault(fault) => self.fault(fault),
        }
    }

    fn process(&mut self, rank: usize, session: u64) -> Option<&mut Process> {
        self.processes[rank].as_mut().filter(|process| process.session == session)
    }

    fn start(&mut self, rank: usize) {
        let has_left = self.now >= self.schedule.calm_from && !self.schedule.stay[rank];
        if self.processes[rank].is_some() || has_left {
            return;
        }
        self.sessions += 1;
        let session = self.sessions;
        let mut worker = Worker::new(WorkerSettings {
            rank: rank as u32,
            session,
            name: String::new(),
            replicas: self.schedule.replicas,
            threshold: self.schedule.threshold,
            unit: self.schedule.unit,
            times: Times::new(LEASE_MS, self.processes.len() as u32),
        });
        let epoch = self.first_epoch;
        let lens = self.schedule.lens.clone();
        let actions = worker.step(self.now, Event::Begin { epoch, lens });
        self.processes[rank] = Some(Process {
            session,
            worker,
            epoch,
            request: 0,
            todo: VecDeque::new(),
            fresh: Vec::new(),
            sent: Vec::new(),
            history: Vec::new(),
            position: 0,
            step: session * STEPS,
            is_committing: false,
            goes_on: false,
            slower: 1,
            wakes_at: 0,
            is_finished: false,
        });
        self.act(rank, session, actions);
        self.at(self.now, What::Consume { rank, session });
    }

    fn step(&mut self, rank: usize, session: u64, event: Event) {
        let (now, pace) = (self.now, self.schedule.pace[rank]);
        let Some(process) = self.process(rank, session) else { return };
        let rate = (process.position > 0).then(|| 1000.0 / (pace * process.slower) as f64);
        process.worker.set_report(Report {
            samples: process.position,
            rate,
            position: process.position,
            epoch: process.epoch,
            unix_ms: now,
        });
        let actions = process.worker.step(now, event);
        self.act(rank, session, actions);
    }

    fn act(&mut self, rank: usize, session: u64, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(request) => self.send(rank, session, &request),
                Action::Deliver { run, left } => {
                    let is_foreign = run.origin as usize != rank;
                    let Some(process) = self.process(rank, session) else { return };
                    let samples = left.as_slice().iter().flat_map(|&(start, end)| start..end);
                    process.todo.extend(samples.map(|sample| (run, sample)));
                    if is_foreign {
                        self.faults.count("takeovers");
                    }
                }
                Action::Shrink { cut, .. } => self.shrink(rank, session, cut),
                Action::Committed => {
                    let Some(process) = self.process(rank, session) else { return };
                    process.is_committing = false;
                    let (scope, sent) =
                        (process.worker.scope().expect("begun"), std::mem::take(&mut process.sent));
                    let (step, goes_on) = (process.step, std::mem::take(&mut process.goes_on));
                    for (run, sample, _) in sent {
                        self.oracle.believes(session, scope, run.origin, sample);
                    }
                    self.oracle.believes_step(&mut self.kv, self.now, rank as u32, step);
                    if goes_on {
                        self.over(rank, session);
                    }
                }
                Action::Warm(_) => {}
                Action::Over => self.over(rank, session),
                Action::End(end) => self.end(rank, session, end),
            }
        }
        let now = self.now;
        let Some(process) = self.process(rank, session) else { return };
        let wakes = process.worker.wakes_at().max(now + 1);
        if wakes < process.wakes_at || process.wakes_at <= now {
            process.wakes_at = wakes;
            if wakes < u64::MAX {
                self.at(wakes, What::Tick { rank, session });
            }
        }
    }

    fn over(&mut self, rank: usize, session: u64) {
        let (now, epochs, lens) = (self.now, self.schedule.epochs, self.schedule.lens.clone());
        let Some(process) = self.process(rank, session) else { return };
        // Whoever goes on has committed what it named.
        process.goes_on = process.is_committing;
        if process.goes_on || process.is_finished {
            return;
        }
        let is_left_over = !process.fresh.is_empty() || !process.sent.is_empty() || !process.todo.is_empty();
        process.epoch += 1;
        process.history.clear();
        if is_left_over {
            self.oracle.violation = Some("over: with samples in hand".to_owned());
            return;
        }
        if process.epoch >= epochs {
            process.is_finished = true;
            return;
        }
        let epoch = process.epoch;
        let actions = process.worker.step(now, Event::Begin { epoch, lens });
        self.act(rank, session, actions);
    }

    /// The consumer of a worker that is out makes another.
    fn end(&mut self, rank: usize, session: u64, end: End) {
        let Some(process) = self.process(rank, session) else { return };
        let (scope, mut fresh) = (process.worker.scope().expect("begun"), std::mem::take(&mut process.fresh));
        fresh.append(&mut process.sent);
        process.todo.clear();
        if matches!(end, End::Fenced(_)) {
            self.faults.count("fenced workers");
        }
        if end != End::Restored {
            for (run, sample, _) in fresh {
                self.oracle.discards(session, scope, run.origin, sample);
            }
        }
        self.processes[rank] = None;
        let after = self.dice.between(1, 1000);
        self.at(self.now + after, What::Start { rank });
    }

    fn shrink(&mut self, rank: usize, session: u64, mut cut: Cut) {
        let unit = self.schedule.unit;
        let Some(process) = self.process(rank, session) else { return };
        let handed = process.todo.iter().filter(|(run, _)| *run == cut.run).map(|(_, sample)| *sample).min();
        // What is handed out stays, and the unit that it is in.
        let first = handed.map(|first| cut.run.start + (first - cut.run.start).next_multiple_of(unit));
        let first = first.unwrap_or(u64::MAX).max(cut.run.start + 1);
        let at = cut.at.first().copied().unwrap_or(u64::MAX).max(first);
        cut.at.retain(|&point| point > at);
        cut.at.insert(0, at);
        let has_more = process.todo.iter().any(|(run, sample)| *run == cut.run && *sample >= at);
        if has_more {
            process.todo.retain(|(run, sample)| *run != cut.run || *sample < at);
        } else {
            cut.at.clear();
        }
        if has_more {
            self.faults.count("cuts");
        }
        let after = self.dice.below(20);
        self.at(self.now + after, What::Shrunk { rank, session, cut });
    }

    /// The consumer takes a sample, and commits now and then.
    fn consume(&mut self, rank: usize, session: u64) {
        let (now, every) = (self.now, self.schedule.commit_every as usize);
        let pace = self.schedule.pace[rank];
        let mut dice = Dice::new(self.dice.roll());
        let Some(process) = self.process(rank, session) else { return };
        let wait = if process.is_finished { 1_000 } else { pace * process.slower };
        let mut commit = None;
        let (seldom, often) = (50, 500);
        if !process.is_committing && dice.permille(if process.is_finished { often } else { seldom }) {
            // A step with which nothing new is done.
            process.is_committing = true;
            commit = Some(process.commit(rank));
        } else if !process.is_committing {
            let may = now < process.worker.delivers_until();
            if process.fresh.len() < every
                && may
                && let Some((run, sample)) = process.todo.pop_front()
            {
                let (scope, at) = (process.worker.scope().expect("begun"), process.position);
                process.fresh.push((run, sample, at));
                process.position += 1;
                self.oracle.hands_out(&mut self.kv, now, session, scope, run, sample);
            } else if !process.fresh.is_empty() && (process.todo.is_empty() || process.fresh.len() >= every) {
                process.is_committing = true;
                // Other threads may be at some of them still; but for the last they are not waited for.
                let is_last = process.todo.is_empty();
                let keep = |_: &Handed| !is_last && dice.permille(150);
                let (kept, sent) = split(std::mem::take(&mut process.fresh), keep);
                (process.fresh, process.sent) = (kept, sent);
                process.history.extend(&process.sent);
                commit = Some(process.commit(rank));
            }
        }
        if let Some(commit) = commit {
            self.step(rank, session, commit);
        }
        self.at(now + wait, What::Consume { rank, session });
    }

    fn send(&mut self, rank: usize, session: u64, what: &Request) {
        let is_calm = self.now >= self.schedule.calm_from;
        let mut fate = self.schedule.weather.fate(&mut self.dice);
        if is_calm {
            fate.arrives = fate.arrives.map_or(Some(3), |after| Some(after.min(8)));
            fate.answers = Some(3);
            fate.again = None;
        } else {
            for (kind, happens) in [
                ("lost requests", fate.arrives.is_none()),
                ("lost answers", fate.answers.is_none()),
                ("late messages", fate.is_late),
                ("doubled requests", fate.again.is_some()),
            ] {
                if happens {
                    self.faults.count(kind);
                }
            }
        }
        let Some(process) = self.process(rank, session) else { return };
        let request = process.request;
        let is_cut_off = self.cut_off_until[rank] > self.now;
        if is_cut_off && self.dice.permille(500) {
            // Some of what is not sent is known not to be.
            return self.at(self.now + 1, What::Answer { rank, session, request, answer: Answer::NotSent });
        }
        let timeout = Times::new(LEASE_MS, 1).request;
        self.at(self.now + timeout, What::Answer { rank, session, request, answer: Answer::Unknown });
        if is_cut_off {
            return;
        }
        let copies = [fate.arrives.map(|after| (after, fate.answers)), fate.again.map(|after| (after, None))];
        for (after, answers) in copies.into_iter().flatten() {
            self.at(self.now + after, What::Arrive { rank, session, request, what: what.clone(), answers });
        }
    }

    /// What the store does.
    fn serve(&mut self, request: Request) -> Answer {
        let now = self.now;
        if self.kv.expire(now) {
            self.hint();
        }
        match request {
            Request::Grant(ttl) => Answer::Granted(self.kv.grant(now, ttl)),
            Request::KeepAlive(lease) => {
                self.kv.keep_alive(now, lease).map_or(Answer::LeaseGone, |()| Answer::Alive)
            }
            Request::Revoke(lease) => {
                self.kv.revoke(now, lease);
                self.hint();
                Answer::Alive
            }
            Request::Read(keys) => Answer::Read(self.kv.read(now, &keys).1),
            Request::Write(txn) => {
                let weighed = self.oracle.weighs(&mut self.kv, now, &txn);
                match self.kv.apply(now, &txn) {
                    Ok(Some(change)) => {
                        self.oracle.committed(weighed);
                        let concerns = |key: &Key| matches!(key, Key::Owner(..) | Key::Bell(_));
                        if txn.deletes.iter().any(concerns) || txn.puts.iter().any(|(key, ..)| concerns(key))
                        {
                            self.hint();
                        }
                        Answer::Applied(change)
                    }
                    Ok(None) => Answer::Refused,
                    Err(_) => Answer::LeaseGone,
                }
            }
        }
    }

    /// Some of the workers hear that something changed.
    fn hint(&mut self) {
        for rank in 0..self.processes.len() {
            let Some(session) = self.processes[rank].as_ref().map(|process| process.session) else {
                continue;
            };
            if self.dice.permille(700) {
                let after = self.dice.between(1, 30);
                self.at(self.now + after, What::Hint { rank, session });
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::Crash { rank, for_ms } => {
                self.faults.count("crashes");
                if !self.schedule.stay[rank] {
                    self.faults.count("workers that left");
                }
                self.processes[rank] = None;
                self.at(now + for_ms, What::Start { rank });
            }
            Fault::Stop { rank, for_ms } => {
                self.faults.count("stops");
                self.frozen_until[rank] = now + for_ms;
            }
            Fault::CutOff { rank, for_ms } => {
                self.faults.count("partitions");
                self.cut_off_until[rank] = now + for_ms;
            }
            Fault::Slow { rank, times } => {
                self.faults.count("slow workers");
                if let Some(process) = &mut self.processes[rank] {
                    process.slower = times;
                }
            }
            Fault::Outage { for_ms, extends } => {
                self.faults.count("store outages");
                self.is_out = true;
                self.at(now + for_ms, What::StoreIsBack { extends });
            }
            Fault::Save => self.save(),
            Fault::Restore => self.restore(),
        }
    }

    fn save(&mut self) {
        self.saved.clear();
        // The epoch that the job is in: those before it are done.
        let epochs = self.processes.iter().flatten().map(|process| process.epoch);
        let epoch = epochs.max().unwrap_or(self.first_epoch).min(self.schedule.epochs - 1);
        self.saved_epoch = epoch;
        let scope = Scope { generation: self.oracle.generation, epoch };
        for entry in self.kv.read(self.now, &[Keys::Runs(scope)]).1 {
            if let (Key::Run(_, id), Value::Run(run)) = (entry.key, entry.value) {
                self.saved.entry((epoch, id.origin)).or_default().extend(&run.done);
            }
        }
    }

    fn restore(&mut self) {
        self.faults.count("restores");
        let id = self.oracle.generation + 1;
        self.first_epoch = self.saved_epoch;
        let generation = Generation { id, number: id, epoch: self.first_epoch };
        let (_, there) = self.kv.read(self.now, &[Keys::One(Key::Generation)]);
        let modified = there.first().map_or(0, |entry| entry.modified);
        let mut txn = Txn { compares: vec![Compare::Modified(Key::Generation, modified)], ..Txn::default() };
        for (&(epoch, origin), done) in &self.saved {
            let scope = Scope { generation: id, epoch };
            let mut run = Run::new(self.schedule.lens[origin as usize]);
            run.done = done.clone();
            txn.puts.push((Key::Run(scope, RunId { origin, start: 0 }), Value::Run(run), 0));
        }
        txn.puts.push((Key::Generation, Value::Generation(generation), 0));
        self.kv.apply(self.now, &txn).expect("no lease").expect("nobody else restores");
        let saved = self.saved.clone();
        self.oracle.restores(id, &saved);
        self.hint();
    }
}

type Handed = (RunId, u64, u64);

/// Those that are kept, and the others.
fn split(all: Vec<Handed>, keep: impl FnMut(&Handed) -> bool) -> (Vec<Handed>, Vec<Handed>) {
    let (kept, others): (Vec<_>, Vec<_>) = all.into_iter().partition(keep);
    if others.is_empty() { (others, kept) } else { (kept, others) }
}

/// As a loader tells it: all that was handed out so far, in ranges.
fn ranges_of(history: &mut [Handed]) -> Vec<Done> {
    history.sort_by_key(|(_, _, at)| *at);
    let mut done: Vec<Done> = Vec::new();
    for &(run, sample, at) in history.iter() {
        match done.last_mut() {
            Some(last)
                if (last.origin, last.end) == (run.origin, sample)
                    && last.at + (last.end - last.start) == at =>
            {
                last.end += 1;
            }
            _ => done.push(Done { origin: run.origin, at, start: sample, end: sample + 1 }),
        }
    }
    done
}
