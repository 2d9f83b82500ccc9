//! `monel check`: every op on a device against the slow reference.

use std::collections::BTreeMap;
use std::io::Write;

use monel::DType;
use monel::check::{self, Filter, Report};
use serde_json::{Value, json};

use crate::args::check::Args;
use crate::exit::{Outcome, UsageError};
use crate::interrupt;
use crate::output::{Align, Output, Table, note};
use crate::session;

/// Runs the cases and prints a table of ops and types, or all cases as JSON; after Ctrl-C those that ran.
///
/// # Errors
/// When the device cannot be opened, no case matches the flags, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let dtype = match &args.dtype {
        Some(text) => Some(DType::parse(text).ok_or_else(|| {
            let known = DType::STORAGE.map(|t| t.to_string().to_lowercase()).join(", ");
            UsageError(format!("--type: '{text}' is no tensor type; known are {known}"), "check")
        })?),
        None => None,
    };
    let device = session::device(args.device.device.as_deref(), args.threads.threads)?;
    let filter = Filter { op: args.op.clone(), dtype, max_values: args.max_values };
    let report = check::run_while(&device, &filter, &mut || !interrupt::requested());
    if report.cases == 0 {
        let mut ops: Vec<&str> = monel::ops::cases().iter().map(|c| c.op.name()).collect();
        ops.sort_unstable();
        ops.dedup();
        anyhow::bail!("no case has this op, type and size; ops are {}", ops.join(", "));
    }
    if args.json {
        out.json(&report_json(&report, &device.info().id))?
    } else {
        table(&report, out)?
    }
    note(format_args!("{} passed, {} failed, {} refused", report.passed, report.failed, report.refused));
    if stopped(&report) {
        note(format_args!("[stopped after {} of {} cases]", report.results.len(), report.cases));
        return Ok(Outcome::Interrupted);
    }
    Ok(if report.failed == 0 { Outcome::Done } else { Outcome::Failed })
}

fn stopped(report: &Report) -> bool {
    report.results.len() < report.cases
}

fn report_json(report: &Report, id: &str) -> Value {
    let rows = report.results.iter().map(|r| {
        json!({
            "op": r.op,
            "type": r.dtype.to_string(),
            "shape": r.shape,
            "outcome": r.outcome,
            "error": r.error,
            "tolerance": r.tolerance.to_string(),
            "reason": r.reason,
        })
    });
    json!({
        "device": id,
        "name": report.device,
        "passed": report.passed,
        "failed": report.failed,
        "refused": report.refused,
        "stopped": stopped(report),
        "results": rows.collect::<Vec<_>>(),
    })
}

/// One line per op and type, then every case that failed.
fn table<W: Write>(report: &Report, out: &mut Output<W>) -> anyhow::Result<()> {
    let mut lines: BTreeMap<(&str, String), [usize; 3]> = BTreeMap::new();
    for r in &report.results {
        let counts = lines.entry((r.op, r.dtype.to_string())).or_default();
        counts[match r.outcome {
            "ok" => 0,
            "failed" => 1,
            _ => 2,
        }] += 1;
    }
    let right = Align::Right;
    let mut table = Table::new([
        ("op", Align::Left),
        ("type", Align::Left),
        ("ok", right),
        ("failed", right),
        ("refused", right),
    ]);
    for ((op, dtype), [ok, failed, refused]) in lines {
        let number = |n: usize| if n == 0 { "-".to_string() } else { n.to_string() };
        table.row([op.to_string(), dtype, number(ok), number(failed), number(refused)]);
    }
    out.line(table)?;
    for r in report.results.iter().filter(|r| r.outcome == "failed") {
        let reason = r.reason.as_deref().unwrap_or("wrong values");
        out.line(format_args!("failed: {} {} {}: {reason}", r.op, r.dtype, r.shape))?;
    }
    Ok(())
}
