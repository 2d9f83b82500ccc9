//! The execution contract (its promises are O1 to P5), test by test, on every device.
//!
//! A test's name begins with the promise it holds. Tests of order, bytes and errors run on all devices of
//! [`harness::rigs`]; those about exact interleavings and time run on the scripted device, whose clock the test holds.

#![allow(clippy::unwrap_used, reason = "a test's way to fail")]
#![allow(clippy::single_range_in_vec_init, reason = "a list of one byte range is what is meant")]

mod asynchrony;
mod capability;
mod errors;
mod graphs;
mod harness;
mod lifetimes;
mod memory;
mod order;
mod schedule;
mod transfers;
