//! The shard loader: as its users call it, from threads, stopped and restored anywhere.

mod api;
mod checkpoints;
#[cfg(feature = "etcd")]
#[allow(dead_code)] // One server is enough here.
#[path = "../common/etcd.rs"]
mod etcd;
mod orders;
mod prefetch;
mod support;
mod threads;
