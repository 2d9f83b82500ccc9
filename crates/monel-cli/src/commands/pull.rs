//! `monel pull`: fetches a model and says where it is.

use std::io::Write;

use crate::args::pull::Args;
use crate::exit::Outcome;
use crate::models;
use crate::output::Output;

/// Fetches the model unless it is there; prints its path, or path, length and checksum as JSON.
///
/// # Errors
/// Whatever keeps the model from being fetched, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let progress = models::progress::stderr();
    let pulled = models::pull(&args.name, args.verify, progress.as_ref())?;
    if args.json {
        out.json(&pulled)?;
    } else {
        // For a program that opens it: as it is.
        out.bytes(format!("{}\n", pulled.path.display()).as_bytes())?;
    }
    Ok(Outcome::Done)
}
