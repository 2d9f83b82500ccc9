//! Checking: does a device compute what the ops say?
//!
//! Every op brings cases and a slow reference in f64. A check fills the inputs of a case from a fixed seed, surrounds
//! every tensor with guard bytes, runs the op, and compares: the result against the reference under the case's
//! tolerance, all bytes that are not the result's against what they were before. [`run`] does that on a device through
//! buffers, streams and graphs. [`run_direct`] calls the software device's kernels on plain memory and also checks what
//! the scheduler relies on: that items may be split anywhere and run in any order, and that a row-local op reads only
//! its own row.
//!
//! The check has to be able to fail; its own tests hand it kernels that are wrong in one way each.

mod case;
mod compare;
mod device;
mod direct;
mod fill;
mod memory;
mod setup;
#[cfg(test)]
mod tests;

pub use case::*;
pub use compare::compare;
pub use device::{Filter, Report, Row, run, run_cases, run_while};
pub use direct::run_direct;
pub use setup::Outcome;
