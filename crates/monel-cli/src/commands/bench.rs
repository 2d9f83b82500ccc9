//! `monel bench`: tokens per second.

use std::io::Write;

use monel::DeviceKind;
use monel_llm::bench::{Test, median};
use monel_llm::{Context, ContextOptions, ModelFile};
use serde::Serialize;
use serde_json::json;

use crate::args::bench::Args;
use crate::exit::Outcome;
use crate::output::{Align, Output, Table, note};
use crate::{interrupt, session};

#[derive(Serialize)]
struct Row {
    test: String,
    device: String,
    threads: u32,
    tps: Vec<f64>,
    tps_median: f64,
    ceiling_share: Option<f64>,
}

/// Runs every combination of the flags.
///
/// # Errors
/// Whatever keeps the model from being loaded or run, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let path = session::path(args.model.spec())?;
    let mut rows = Vec::new();
    let mut name = String::new();
    for &threads in &args.threads {
        let device = session::device(args.device.device.as_deref(), Some(threads))?;
        let file = ModelFile::open(&path)?;
        let tests = tests(args);
        let positions = tests.iter().map(Test::positions).max().unwrap_or(1);
        let cache = session::context_options(&file, None, &args.cache);
        let options = ContextOptions { context: Some(positions), ..cache };
        let model = session::load(file, &device, &options)?;
        name.clone_from(&model.name);
        let mut context = session::context(&model, &options)?;
        let bandwidth = match device.info().kind {
            DeviceKind::Cpu => monel::device::software::ceiling::read(threads as usize),
            _ => None,
        };
        for test in tests {
            let Some(tps) = measure(&mut context, test, args.repetitions)? else {
                return Ok(Outcome::Interrupted);
            };
            let tps_median = median(&tps);
            // The share of a decode step that reading the weights once would take.
            let ceiling_share = match (test, bandwidth) {
                (Test::Generate { .. }, Some(b)) => {
                    Some(tps_median * model.weights.bytes_per_token() as f64 / b)
                }
                _ => None,
            };
            let device = device.info().id.clone();
            rows.push(Row { test: test.name(), device, threads, tps, tps_median, ceiling_share });
            note(format_args!("{}: {tps_median:.1} tok/s", test.name()));
        }
    }
    if args.json {
        out.json(&json!({ "model": name, "results": rows }))?;
        return Ok(Outcome::Done);
    }
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new([
        ("test", left),
        ("device", left),
        ("threads", right),
        ("tok/s (median)", right),
        ("min", right),
        ("max", right),
        ("of read ceiling", right),
    ]);
    for r in &rows {
        let low = r.tps.iter().copied().fold(f64::INFINITY, f64::min);
        let high = r.tps.iter().copied().fold(0.0, f64::max);
        let share = r.ceiling_share.map_or_else(|| "-".to_string(), |s| format!("{:.0} %", s * 100.0));
        let number = |v: f64| format!("{v:.1}");
        let threads = r.threads.to_string();
        table.row([
            r.test.clone(),
            r.device.clone(),
            threads,
            number(r.tps_median),
            number(low),
            number(high),
            share,
        ]);
    }
    out.line(name)?;
    out.line(table)?;
    Ok(Outcome::Done)
}

fn tests(args: &Args) -> Vec<Test> {
    let mut tests = Vec::new();
    for &depth in &args.n_depth {
        let depth = depth as usize;
        let prompts = args.n_prompt.iter().filter(|&&n| n > 0);
        tests.extend(prompts.map(|&n| Test::Prompt { tokens: n as usize, depth }));
        let generations = args.n_gen.iter().filter(|&&n| n > 0);
        tests.extend(generations.map(|&n| Test::Generate { tokens: n as usize, depth, sync: args.sync }));
    }
    tests
}

/// A warm-up and the repetitions; `None` after Ctrl-C.
fn measure(context: &mut Context, test: Test, repetitions: u32) -> anyhow::Result<Option<Vec<f64>>> {
    let mut tps = Vec::new();
    for repetition in 0..=repetitions {
        let value = context.bench(test)?;
        if repetition > 0 {
            tps.push(value);
        }
        if interrupt::requested() {
            return Ok(None);
        }
    }
    Ok(Some(tps))
}
