//! Workers that know of each other: in one process, and on etcd.

mod health; // reports                   -> how workers do
mod leased; // samples leased to threads -> each committed once
mod support;
