//! The `monel` program.
fn main() {}
