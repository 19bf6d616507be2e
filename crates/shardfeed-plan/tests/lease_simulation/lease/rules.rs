//! The rules of the protocol, one of which can be broken.

use std::cell::Cell;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    ComparesPositions,
    Fences,
    ComparesReports,
    ChecksTheGeneration,
    KeepsPositions,
    Doubts,
    RecognizesItsWrites,
    Adopts,
    StopsInTime,
}

impl Rule {
    pub const ALL: [Self; 9] = [
        Self::ComparesPositions,
        Self::Fences,
        Self::ComparesReports,
        Self::ChecksTheGeneration,
        Self::KeepsPositions,
        Self::Doubts,
        Self::RecognizesItsWrites,
        Self::Adopts,
        Self::StopsInTime,
    ];
}

thread_local! {
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// On this thread, from now on.
pub fn set_broken(rule: Option<Rule>) {
    BROKEN.set(rule);
}

fn holds(rule: Rule) -> bool {
    BROKEN.get() != Some(rule)
}

pub fn compares_positions() -> bool {
    holds(Rule::ComparesPositions)
}

pub fn fences() -> bool {
    holds(Rule::Fences)
}

pub fn compares_reports() -> bool {
    holds(Rule::ComparesReports)
}

pub fn checks_the_generation() -> bool {
    holds(Rule::ChecksTheGeneration)
}

pub fn keeps_positions() -> bool {
    holds(Rule::KeepsPositions)
}

pub fn doubts() -> bool {
    holds(Rule::Doubts)
}

pub fn recognizes_its_writes() -> bool {
    holds(Rule::RecognizesItsWrites)
}

pub fn adopts() -> bool {
    holds(Rule::Adopts)
}

pub fn stops_in_time() -> bool {
    holds(Rule::StopsInTime)
}
