//! Damaged and hostile files, a hundred thousand of them: each gives an error that names it, or the right tokens.
//! Never a panic, a hang, or more memory than a page may take; and where pages carry checksums, no damage inside
//! them gives another token.

#[path = "../common/mod.rs"]
mod common;

mod victims; // good files, and what is in them
mod mutate; // a good file and dice   -> a damaged one
mod read; // a file                   -> its tokens and row starts, by cursor or loader
mod children; // numbered cases       -> outcomes, in processes that may hang, die or take memory

mod mutations; // random damage
mod found; // files that once did harm
