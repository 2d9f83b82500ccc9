//! What the commands do, one file each.
//!
//! A command takes its parsed flags and a writer for results, calls the libraries, and returns how it
//! ended; it has no logic of its own that a library could hold.

pub mod bench;
pub mod chat;
pub mod check;
pub mod detokenize;
pub mod devices;
pub mod inspect;
pub mod perplexity;
pub mod pull;
pub mod run;
pub mod tokenize;
