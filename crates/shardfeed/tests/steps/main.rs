//! Steps as a job meets them: numbered, skipped, explained, resumed at another size, and prepared by threads that
//! nobody notices.

#[path = "../common/mod.rs"]
mod common;

mod job; // all ranks of a job, and what they should deliver

mod alike; // replicas, thread counts, loaders side by side
mod changes; // legs of a run, each with its own global batch
mod epochs; // ends and beginnings, crashes, settings that a state brings
mod explain; // where the tokens of a step come from
mod skips; // steps left out
mod turns; // loaders that take turns; callers without patience
#[cfg(target_os = "linux")]
mod threads; // what the system sees of them
