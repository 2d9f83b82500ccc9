//! `monel bench`: tokens per second, and the share of what the machine allows.
//!
//! The share compares a test's work that cannot be avoided ([`Work`]) with ceilings measured just before it: products in
//! prefill, reading of weights and cached keys and values in decode. Only the CPU has measured ceilings.

use std::io::Write;
use std::time::{Duration, Instant};

use monel::device::software::ceiling::{self, Kind};
use monel::device::software::simd::Isa;
use monel::{CancelToken, Device, DeviceKind};
use monel_llm::bench::{Test, median};
use monel_llm::work::Work;
use monel_llm::{Context, ContextOptions, ModelFile};
use serde::Serialize;
use serde_json::json;

use crate::args::bench::Args;
use crate::exit::{Outcome, UsageError};
use crate::output::{Align, Output, Table, note, plain};
use crate::session;

#[derive(Serialize)]
struct Row {
    test: String,
    device: String,
    threads: u32,
    /// Milliseconds from opening the file to weights on the device.
    load_ms: f64,
    tps: Vec<f64>,
    tps_median: f64,
    /// The median's share of the ceiling, 1 for all of it.
    ceiling_share: Option<f64>,
    /// What bounds the test: `int8` or `f32` products, or `read`.
    ceiling_of: Option<&'static str>,
    /// The instructions whose ceiling it is.
    ceiling_path: Option<&'static str>,
    /// The ceiling: operations (a multiply-add is two) or bytes per second.
    ceiling: Option<f64>,
    /// What the median reached of the same.
    reached: Option<f64>,
}

/// What the machine allows a test, as measured just before it.
struct Ceiling {
    of: &'static str,
    path: &'static str,
    per_second: f64,
    /// Units of the test's work.
    units: f64,
    /// Seconds that the test takes at the ceiling.
    seconds: f64,
}

/// The ceiling of a test; `None` where none is measured: on GPUs, and for products of plain Rust.
fn ceiling(device: &Device, threads: usize, test: Test, work: Work) -> Option<Ceiling> {
    let info = device.info();
    if info.kind != DeviceKind::Cpu {
        return None;
    }
    if let Test::Generate { .. } = test {
        let per_second = ceiling::read(threads)?;
        let (units, seconds) = (work.bytes, work.bytes / per_second);
        return Some(Ceiling { of: "read", path: "loads", per_second, units, seconds });
    }
    let isa = info.features.iter().find_map(|feature| Isa::named(feature).ok())?;
    // Most models have quantized weights only; the others' products are counted where they are more.
    let kinds = [(Kind::Int8, work.int8), (Kind::Float, work.float)];
    let measured: Vec<_> = kinds
        .into_iter()
        .filter(|&(_, units)| units > 0.0)
        .map(|(kind, units)| Some((kind, units, ceiling::fastest(isa, kind, threads)?)))
        .collect::<Option<_>>()?;
    let seconds = measured.iter().map(|&(_, units, (_, per_second))| units / per_second).sum();
    let &(kind, units, (path, per_second)) = measured.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Ceiling { of: kind.name(), path: path.name(), per_second, units, seconds })
}

/// Runs every combination of the flags; after Ctrl-C it prints those that were finished.
///
/// # Errors
/// Whatever keeps the model from being loaded or run, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let mut rows = Vec::new();
    let mut name = String::new();
    let tests = tests(args);
    if tests.is_empty() {
        let what = "nothing to measure: give -p or -n a number over 0".to_string();
        return Err(UsageError(what, "bench").into());
    }
    let path = session::path(args.model.spec())?;
    let cancel = session::cancel_on_interrupt();
    let all = tests.len() * args.threads.len();
    'all: for &threads in &args.threads {
        let device = session::device(args.device.device.as_deref(), Some(threads))?;
        let file = ModelFile::open(&path)?;
        let warm_up = match device.info().kind {
            DeviceKind::Cpu | DeviceKind::Software => Duration::ZERO,
            DeviceKind::Integrated | DeviceKind::Discrete => WARM_UP,
        };
        let positions = tests.iter().map(Test::positions).max().unwrap_or(1);
        let cache = session::context_options(&file, None, &args.cache);
        let options = ContextOptions { context: Some(positions), ..cache };
        let model = session::load(file, &device, &options)?;
        name.clone_from(&model.name);
        let mut context = session::context(&model, &options)?;
        for &test in &tests {
            let work = context.work(test)?;
            let ceiling = ceiling(&device, threads as usize, test, work);
            let tps = match measure(&mut context, test, args.repetitions, warm_up, &cancel) {
                Err(error) if error.is_cancelled() => break 'all,
                tps => tps?,
            };
            let tps_median = median(&tps);
            let tests_per_second = tps_median / test.tokens() as f64;
            rows.push(Row {
                test: test.name(),
                device: device.info().id.clone(),
                threads,
                load_ms: model.load_time.as_secs_f64() * 1e3,
                tps,
                tps_median,
                ceiling_share: ceiling.as_ref().map(|c| c.seconds * tests_per_second),
                ceiling_of: ceiling.as_ref().map(|c| c.of),
                ceiling_path: ceiling.as_ref().map(|c| c.path),
                ceiling: ceiling.as_ref().map(|c| c.per_second),
                reached: ceiling.as_ref().map(|c| c.units * tests_per_second),
            });
            note(format_args!("{}: {tps_median:.1} tok/s", test.name()));
        }
    }
    let outcome = if rows.len() < all { Outcome::Interrupted } else { Outcome::Done };
    if outcome == Outcome::Interrupted {
        note(format_args!("[stopped after {} of {all} tests]", rows.len()));
    }
    if args.json {
        out.json(&json!({ "model": name, "results": rows }))?;
        return Ok(outcome);
    }
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new([
        ("test", left),
        ("device", left),
        ("threads", right),
        ("tok/s (median)", right),
        ("min", right),
        ("max", right),
        ("reached", right),
        ("of ceiling", right),
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
            reached(r),
            share,
        ]);
    }
    out.line(plain(&name))?;
    out.line(table)?;
    Ok(outcome)
}

/// `1204 GOP/s int8`, `31.2 GB/s read`; `-` where no ceiling is measured.
fn reached(row: &Row) -> String {
    let (Some(of), Some(reached)) = (row.ceiling_of, row.reached) else { return "-".to_string() };
    match of {
        "read" => format!("{:.1} GB/s {of}", reached / 1e9),
        _ => format!("{:.0} GOP/s {of}", reached / 1e9),
    }
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

/// How long a GPU is kept busy before anything is measured: from idle it takes some 400 ms to its full clock.
const WARM_UP: Duration = Duration::from_millis(600);

/// A warm-up and the repetitions; cancelled by the token.
fn measure(
    context: &mut Context,
    test: Test,
    repetitions: u32,
    warm_up: Duration,
    cancel: &CancelToken,
) -> monel_llm::Result<Vec<f64>> {
    let mut tps = Vec::new();
    let began = Instant::now();
    let mut warm = false;
    while tps.len() < repetitions as usize {
        let value = context.bench(test, cancel)?;
        if warm {
            tps.push(value);
        }
        warm = began.elapsed() >= warm_up;
    }
    Ok(tps)
}
