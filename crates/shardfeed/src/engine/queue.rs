use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::Result;
use crate::batch::Batch;
use crate::line_reader::{LineReader, Tray};
use crate::slot::Slot;

use super::lane::{Answer, Lane, Wanted};
use super::memory::Limits;
use super::planner::{PlannedStep, Planner, Row};

/// What is to be done, and by whom it is waited for. Decides what a thread does next; does nothing itself.
#[allow(clippy::struct_excessive_bools)] // Each can be true without the others.
pub(super) struct Queue {
    limits: Limits,
    pub(super) steps: VecDeque<OpenStep>,
    /// Ordinal of the first of `steps`, counted from the engine's start.
    first: u64,
    lanes: Vec<Lane>,
    /// Steps whose sequences are all there.
    gathered: BinaryHeap<Reverse<u64>>,
    /// Sequences to be read by themselves.
    alone: VecDeque<Alone>,
    /// Lanes that somebody waits for and nobody is at, those of the earliest step first.
    pub(super) waited_for: BinaryHeap<Reverse<(u64, usize)>>,
    /// Lanes that could go ahead; some of them may have done so since.
    ahead: VecDeque<usize>,
    /// Away while a thread plans.
    planner: Option<Box<Planner>>,
    /// Slots, and lists of rows, to be used again; those used last are taken first.
    free: Vec<Slot>,
    spare_rows: Vec<Vec<Row>>,
    is_epoch_planned: bool,
    pub is_stopped: bool,
    /// A thread panicked.
    pub is_broken: bool,
    /// Threads that sleep, and whether the trainer does: nobody else is woken, which costs a system call.
    pub idle_threads: usize,
    pub trainer_waits: bool,
    /// Since when it does.
    trainer_asked: Instant,
}

pub(super) struct OpenStep {
    number: u64,
    epoch: u64,
    next_position: u64,
    rows: Vec<Row>,
    /// Rows whose sequences are not there yet.
    missing: usize,
    outcome: Option<Result<Batch>>,
}

/// A sequence that is read by itself, for a row of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub step: u64,
    pub row: usize,
    pub sequence: u64,
}

impl From<Wanted> for Alone {
    fn from(Wanted { step, row, sequence, .. }: Wanted) -> Self {
        Self { step, row, sequence }
    }
}

/// What a thread does next.
pub(super) enum Job {
    Fill(FillJob),
    ReadOne(Alone),
    Decode(DecodeJob),
    Plan(PlanJob),
}

/// A batch to be made of sequences that are there.
pub(super) struct FillJob {
    pub ordinal: u64,
    pub step: u64,
    pub epoch: u64,
    pub rows: Vec<Row>,
}

/// A lane to be decoded further, into the slots of a thread's tray.
pub(super) struct DecodeJob {
    pub lane: usize,
    /// To be opened at `from` if there is none.
    pub reader: Option<Box<LineReader>>,
    pub from: u64,
    /// At least, and at most.
    pub to: u64,
    pub last: u64,
}

/// Steps to be opened.
pub(super) struct PlanJob {
    pub planner: Box<Planner>,
    /// How many.
    pub count: usize,
}

/// Steps that are opened in one go: so seldom that it costs nothing, so few that nobody waits for it.
const STEPS_PLANNED_AT_ONCE: usize = 8;

/// A trainer that waited so long is woken for whatever there is.
const WAKE_AFTER: Duration = Duration::from_millis(1);

impl Queue {
    pub fn new(limits: Limits, planner: Planner) -> Self {
        Self {
            limits,
            steps: VecDeque::new(),
            first: 0,
            lanes: Vec::new(),
            gathered: BinaryHeap::new(),
            alone: VecDeque::new(),
            waited_for: BinaryHeap::new(),
            ahead: VecDeque::new(),
            planner: Some(Box::new(planner)),
            free: Vec::new(),
            spare_rows: Vec::new(),
            is_epoch_planned: false,
            is_stopped: false,
            is_broken: false,
            idle_threads: 0,
            trainer_waits: false,
            trainer_asked: Instant::now(),
        }
    }

    /// For the trainer: the next step, and where the stream stands after it, once it is ready.
    pub fn take(&mut self) -> Option<Result<(Batch, u64)>> {
        let step = self.steps.front_mut()?;
        let (outcome, next_position) = (step.outcome.take()?, step.next_position);
        self.steps.pop_front();
        self.first += 1;
        Some(outcome.map(|batch| (batch, next_position)))
    }

    /// Whether the last step was taken.
    pub fn is_over(&self) -> bool {
        self.is_epoch_planned && self.steps.is_empty()
    }

    /// Batches that are ready.
    pub fn depth(&self) -> usize {
        self.steps.iter().take_while(|step| step.outcome.is_some()).count()
    }

    /// Whether a thread that sleeps would find something to do. After each batch there is room for a step, but
    /// nobody is woken for that until there is room for several.
    pub fn wants_a_thread(&self) -> bool {
        let has_jobs = !(self.gathered.is_empty() && self.alone.is_empty() && self.waited_for.is_empty());
        self.idle_threads > 0
            && (has_jobs
                || !self.ahead.is_empty()
                || (self.may_plan() && self.steps.len() <= self.steps_ahead() / 2))
    }

    /// The trainer finds nothing and goes to sleep.
    pub fn trainer_sleeps(&mut self) {
        (self.trainer_waits, self.trainer_asked) = (true, Instant::now());
    }

    /// Whether a trainer that sleeps would find something.
    pub fn has_what_the_trainer_waits_for(&self) -> bool {
        self.trainer_waits && self.steps.front().is_some_and(|step| step.outcome.is_some())
    }

    /// Whether a trainer that sleeps is woken now. To wake it takes longer than to make a small batch, so it is not
    /// woken for each; but where batches take their time it does not wait for a second one.
    pub fn wants_the_trainer(&self, now: Instant) -> bool {
        if !self.trainer_waits {
            return false;
        }
        let Some(next) = self.steps.front() else { return self.is_epoch_planned };
        let is_enough = || {
            self.first == 0
                || self.is_epoch_planned
                || now.duration_since(self.trainer_asked) > WAKE_AFTER
                || self.depth() >= (self.limits.steps_ahead / 2).max(1)
        };
        next.outcome.is_some() && is_enough()
    }

    /// What is most urgent: what is nearest to being delivered.
    pub fn next_job(&mut self, tray: &mut Tray) -> Option<Job> {
        if let Some(Reverse(ordinal)) = self.gathered.pop() {
            let step = self.step(ordinal).expect("it is not taken before it is filled");
            let (number, epoch) = (step.number, step.epoch);
            let rows = std::mem::take(&mut step.rows);
            return Some(Job::Fill(FillJob { ordinal, step: number, epoch, rows }));
        }
        if let Some(alone) = self.alone.pop_front() {
            return Some(Job::ReadOne(alone));
        }
        if let Some(Reverse((_, lane))) = self.waited_for.pop() {
            return Some(Job::Decode(self.decode(lane, tray)));
        }
        if self.may_plan()
            && let Some(mut planner) = self.planner.take()
        {
            let count = (self.steps_ahead() - self.steps.len()).min(STEPS_PLANNED_AT_ONCE);
            let used_last = self.spare_rows.len().saturating_sub(count);
            planner.spare_rows.extend(self.spare_rows.drain(used_last..));
            return Some(Job::Plan(PlanJob { planner, count }));
        }
        while let Some(lane) = self.ahead.pop_front() {
            self.lanes[lane].is_queued_to_go_ahead = false;
            if self.can_go_ahead(lane) {
                return Some(Job::Decode(self.decode(lane, tray)));
            }
        }
        None
    }

    fn steps_ahead(&self) -> usize {
        // Until the first batch is taken, nothing else is prepared: whoever resumes waits for it.
        if self.first == 0 { 1 } else { self.limits.steps_ahead }
    }

    fn may_plan(&self) -> bool {
        self.planner.is_some() && self.steps.len() < self.steps_ahead()
    }

    fn can_go_ahead(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        !lane.is_busy
            && lane.reader.is_some()
            && lane.wanted.is_empty()
            && lane.end() < lane.ahead
            && lane.live() < self.limits.lane_slots
    }

    fn decode(&mut self, number: usize, tray: &mut Tray) -> DecodeJob {
        let lane = &mut self.lanes[number];
        lane.is_busy = true;
        if let Some(next) = lane.wanted.front().copied() {
            // After a long skip, going there is quicker than decoding everything up to it.
            let is_far = next.floor > lane.end() + self.limits.jump_min;
            if is_far || lane.reader.is_none() {
                lane.reader = None;
                lane.restart(next.floor, &mut self.free);
            }
        }
        lane.forget(&mut self.free);
        let from = lane.end();
        let room = self.limits.lane_slots.saturating_sub(lane.live());
        let to = match lane.wanted.front() {
            Some(next) => lane.wanted.iter().fold(next.ceiling, |to, wanted| {
                // What lies behind a long skip is for another turn.
                if wanted.floor > to + self.limits.jump_min { to } else { to.max(wanted.ceiling) }
            }),
            None => lane.ahead.min(from + room as u64),
        };
        let room = room.min(to.saturating_sub(from) as usize + self.limits.slots_beyond);
        tray.free.extend(self.free.drain(self.free.len().saturating_sub(room)..));
        tray.to_make = room.saturating_sub(tray.free.len());
        DecodeJob { lane: number, reader: lane.reader.take(), from, to, last: lane.last }
    }

    /// A lane was decoded as far as the tray has it. Without a reader it could not be decoded further; whoever needs
    /// what comes then will say why.
    pub fn decoded(&mut self, number: usize, reader: Option<Box<LineReader>>, tray: &mut Tray) {
        let Self { lanes, steps, gathered, .. } = self;
        let lane = &mut lanes[number];
        lane.is_busy = false;
        lane.reader = reader;
        lane.add(&mut tray.full, &mut tray.free, |Wanted { step, row, .. }, slot| {
            give(steps, self.first, gathered, step, row, slot);
        });
        let end = lane.end();
        lane.wanted.retain(|wanted| {
            // Nobody asks twice; should it ever happen, it must not be waited for.
            let is_gone = wanted.sequence < end;
            self.alone.extend(is_gone.then(|| Alone::from(*wanted)));
            !is_gone
        });
        if end >= lane.last {
            // Its page is of no more use.
            lane.reader = None;
        }
        if lane.reader.is_none() {
            self.alone.extend(lane.wanted.drain(..).map(Alone::from));
        } else if let Some(next) = lane.wanted.front() {
            self.waited_for.push(Reverse((next.step, number)));
        }
        self.free_slots(tray);
        self.queue_to_go_ahead(number);
    }

    /// A sequence was read by itself.
    pub fn read_one(&mut self, alone: Alone, read: Result<Slot>) {
        let Alone { step, row, .. } = alone;
        match read {
            Ok(slot) => give(&mut self.steps, self.first, &mut self.gathered, step, row, slot),
            Err(error) => {
                if let Some(step) = self.step(step) {
                    step.outcome.get_or_insert(Err(error));
                }
            }
        }
    }

    /// A batch was made, of slots that are free now.
    pub fn filled(&mut self, ordinal: u64, rows: Vec<Row>, outcome: Result<Batch>, tray: &mut Tray) {
        if let Some(step) = self.step(ordinal) {
            step.outcome = Some(outcome);
        }
        self.spare_rows.push(rows);
        self.free_slots(tray);
    }

    /// Steps were planned; without a planner they are the last.
    pub fn planned(&mut self, steps: &mut Vec<PlannedStep>, planner: Option<Box<Planner>>) {
        self.is_epoch_planned = planner.is_none();
        self.planner = planner;
        for step in steps.drain(..) {
            self.open(step);
        }
    }

    fn open(&mut self, planned: PlannedStep) {
        let PlannedStep { number, epoch, next_position, mut rows } = planned;
        let ordinal = self.first + self.steps.len() as u64;
        let mut missing = 0;
        for (index, row) in rows.iter_mut().enumerate() {
            if row.lane >= self.lanes.len() {
                self.lanes.resize_with(row.lane + 1, Lane::default);
            }
            let lane = &mut self.lanes[row.lane];
            lane.ahead = lane.ahead.max(row.ceiling_ahead);
            lane.last = row.lane_end;
            let answer = match lane.ask(row.sequence, row.floor) {
                // The first batch after a start must not wait for whole windows: each of its sequences opens its own row
                // group, or two.
                Answer::Later if ordinal == 0 => Answer::Gone,
                answer => answer,
            };
            missing += usize::from(!matches!(answer, Answer::Here(_)));
            match answer {
                Answer::Here(slot) => row.slot = Some(slot),
                Answer::Gone => {
                    self.alone.push_back(Alone { step: ordinal, row: index, sequence: row.sequence });
                }
                Answer::Later => {
                    if !lane.is_busy && lane.wanted.is_empty() {
                        self.waited_for.push(Reverse((ordinal, row.lane)));
                    }
                    let Row { sequence, floor, ceiling, .. } = *row;
                    lane.wanted.push_back(Wanted { step: ordinal, row: index, sequence, floor, ceiling });
                }
            }
            self.queue_to_go_ahead(row.lane);
        }
        if missing == 0 {
            self.gathered.push(Reverse(ordinal));
        }
        self.steps.push_back(OpenStep { number, epoch, next_position, rows, missing, outcome: None });
    }

    fn queue_to_go_ahead(&mut self, number: usize) {
        if self.can_go_ahead(number) && !self.lanes[number].is_queued_to_go_ahead {
            self.lanes[number].is_queued_to_go_ahead = true;
            self.ahead.push_back(number);
        }
    }

    fn free_slots(&mut self, tray: &mut Tray) {
        self.free.append(&mut tray.free);
    }

    fn step(&mut self, ordinal: u64) -> Option<&mut OpenStep> {
        step_of(&mut self.steps, self.first, ordinal)
    }
}

fn step_of(steps: &mut VecDeque<OpenStep>, first: u64, ordinal: u64) -> Option<&mut OpenStep> {
    // One with an error may be gone before all its sequences are there.
    steps.get_mut(ordinal.checked_sub(first)? as usize)
}

/// A row has its sequence.
fn give(
    steps: &mut VecDeque<OpenStep>,
    first: u64,
    gathered: &mut BinaryHeap<Reverse<u64>>,
    ordinal: u64,
    row: usize,
    slot: Slot,
) {
    if let Some(step) = step_of(steps, first, ordinal) {
        step.rows[row].slot = Some(slot);
        step.missing -= 1;
        if step.missing == 0 {
            gathered.push(Reverse(ordinal));
        }
    }
}
