//! The shard loader: as its users call it, from threads, stopped and restored anywhere.

mod api;
mod checkpoints;
mod orders;
mod prefetch;
mod support;
mod threads;
