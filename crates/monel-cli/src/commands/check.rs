//! `monel check`: every op on a device against the slow reference.

use std::io::Write;

use monel::DType;
use monel::check::{self, Filter};

use crate::args::check::Args;
use crate::exit::Outcome;
use crate::output::{Align, Output, Table, note};
use crate::session;

/// Runs the cases and prints a table of ops and types, or all cases as JSON.
///
/// # Errors
/// When the device cannot be opened, a type or an op is not known, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let device = session::device(args.device.device.as_deref(), args.threads.threads)?;
    let dtype = match &args.dtype {
        Some(text) => Some(
            DType::parse(text)
                .ok_or_else(|| anyhow::anyhow!("'{text}' is no type; known are {:?}", DType::STORAGE))?,
        ),
        None => None,
    };
    let filter = Filter { op: args.op.clone(), dtype };
    let report = check::run(&device, &filter)?;
    if report.results.is_empty() {
        anyhow::bail!("no case matches; known ops are {}", check::op_names().join(", "));
    }
    if args.json {
        out.json(&report_json(&report))?;
    } else {
        table(&report, out)?;
    }
    note(format_args!("{} passed, {} failed, {} refused", report.passed, report.failed, report.refused));
    Ok(if report.failed == 0 { Outcome::Done } else { Outcome::Failed })
}
