use std::collections::HashMap;
use std::sync::Arc;

use shardfeed_plan::{LaneWalk, Rank, StepPlan, StreamState, Tail};

use super::EngineSettings;
use crate::line_reader::LineSource;
use crate::slot::Slot;

/// Opens steps one after the other: which sequences, from which lanes.
pub(super) struct Planner {
    source: Arc<LineSource>,
    state: StreamState,
    rank: Rank,
    every: u32,
    tail: Tail,
    plan: StepPlan,
    /// Lanes that were visited, numbered as they came.
    numbers: HashMap<u32, usize>,
    walks: Vec<LaneWalk>,
    /// Lists of rows to be used again.
    pub spare_rows: Vec<Vec<Row>>,
}

/// A step whose rows are to be gathered.
pub(super) struct PlannedStep {
    pub number: u64,
    pub epoch: u64,
    /// Where the stream stands after it, and after those that others make.
    pub next_position: u64,
    /// Those that are not padding.
    pub rows: Vec<Row>,
}

/// A row of a step.
#[derive(Debug)]
pub(super) struct Row {
    /// In the epoch.
    pub position: u64,
    /// By the planner's number.
    pub lane: usize,
    /// On the line.
    pub sequence: u64,
    /// No later row of the lane asks for anything below.
    pub floor: u64,
    /// How far to decode so that the next rows find theirs as well; and how far that will be soon.
    pub ceiling: u64,
    pub ceiling_ahead: u64,
    /// One past the last sequence of the lane.
    pub lane_end: u64,
    /// Its sequence, once it is decoded.
    pub slot: Option<Slot>,
}

impl Planner {
    pub fn new(source: &Arc<LineSource>, state: &StreamState, settings: &EngineSettings) -> Self {
        let &EngineSettings { rank, every, tail, .. } = settings;
        Self {
            source: Arc::clone(source),
            state: state.clone(),
            rank,
            every,
            tail,
            plan: StepPlan::default(),
            numbers: HashMap::new(),
            walks: Vec::new(),
            spare_rows: Vec::new(),
        }
    }

    /// The next step; `None` at the epoch's end.
    pub fn next(&mut self) -> Option<PlannedStep> {
        let Self { source, state, plan, numbers, walks, .. } = self;
        let order = &source.order;
        if !order.step_into(plan, state.position, &state.skips, state.steps.global_batch(), self.tail) {
            return None;
        }
        state.position = plan.next();
        // Those in between are others' to make.
        state.pass_over(u64::from(self.every) - 1, order.sequences());
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        rows.clear();
        for &position in plan.positions(self.rank) {
            let place = order.place(position);
            let lane = *numbers.entry(place.lane).or_insert_with(|| {
                walks.push(order.walk(place.lane));
                walks.len() - 1
            });
            let walk = &mut walks[lane];
            rows.push(Row {
                position,
                lane,
                sequence: walk.sequence(place.index),
                floor: walk.floor(place.index),
                ceiling: walk.ceiling(place.index),
                ceiling_ahead: walk.ceiling_ahead(place.index),
                lane_end: walk.end(),
                slot: None,
            });
        }
        Some(PlannedStep {
            number: state.steps.number(plan.first()),
            epoch: state.epoch,
            next_position: state.position,
            rows,
        })
    }
}
