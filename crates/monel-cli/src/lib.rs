//! What the `monel` program is made of, apart from the engine.
//!
//! The binary is thin: it parses flags ([`args`]), runs one command ([`commands`]) and turns the outcome
//! into an exit code. Everything else lives here so that tests can call it without starting a process:
//! where models come from ([`models`]), how results reach stdout ([`output`]) and how Ctrl-C is heard
//! ([`interrupt`]).
//!
//! Rules that hold for every command: results go to stdout and nothing else does, messages and progress go
//! to stderr; 0 is success (a reader that closed the pipe early too), 1 an error with one message, 2 wrong
//! usage, 130 Ctrl-C, 143 SIGTERM.

pub mod args;
pub mod commands;
pub mod exit;
pub mod faults;
pub mod input;
pub mod interrupt;
pub mod models;
pub mod output;
pub mod session;
pub mod terminal;
pub mod timeline;
