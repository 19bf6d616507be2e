//! The command line of Shardfeed.
#![deny(unsafe_code)]

fn main() {}
