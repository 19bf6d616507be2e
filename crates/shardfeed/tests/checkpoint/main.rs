//! The checkpoint reader against torch's, against itself, and against damage.

mod fixtures;
mod support;
mod torch;
