//! The rules that make the protocol safe. Here each holds, always; the simulation compiles the same code with one of
//! them broken at a time, and must notice.

/// A commit names the position that it goes on from.
pub const fn compares_positions() -> bool {
    true
}

/// A commit names the claim that it goes back to.
pub const fn fences() -> bool {
    true
}

/// A step alone names the report that it follows on.
pub const fn compares_reports() -> bool {
    true
}

/// Every write names the generation that it is of.
pub const fn checks_the_generation() -> bool {
    true
}

/// Positions outlive the lease of who wrote them.
pub const fn keeps_positions() -> bool {
    true
}

/// An answer that did not come says nothing.
pub const fn doubts() -> bool {
    true
}

/// A write that was refused may be one's own from before, and is looked for.
pub const fn recognizes_its_writes() -> bool {
    true
}

/// A claim whose answer was lost is found again.
pub const fn adopts() -> bool {
    true
}

/// Nothing is handed out once the lease may have ended.
pub const fn stops_in_time() -> bool {
    true
}
