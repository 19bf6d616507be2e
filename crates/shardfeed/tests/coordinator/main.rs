//! Workers that know of each other: in one process, and on etcd.

mod health; // reports                   -> how workers do
#[cfg(feature = "etcd")]
mod away; // no etcd                     -> loaders that go on
#[cfg(feature = "etcd")]
#[allow(dead_code)] // Each test uses some of it.
#[path = "../common/etcd.rs"]
mod etcd; // real servers
mod leased; // samples leased to threads -> each committed once
#[cfg(feature = "etcd")]
mod processes; // killed, stopped and cut off -> each sample committed once
#[cfg(feature = "etcd")]
mod refused; // wrong URLs, passwords, data -> messages
mod support;
