//! What this machine allows: products and multiply-adds by instruction path, reading from memory, on one thread and on all.
//!
//!     cargo bench -p monel --bench ceilings [-- --json] [--threads 1,2]
//!
//! Takes seconds. Other programs count against the machine: that is the point when a speed is quoted beside it.

use monel::device::software::ceiling::{self, Kind};
use std::process::ExitCode;

/// A ceiling on one number of threads.
struct Row {
    /// `int8`, `f32` or `read`.
    of: &'static str,
    /// The instructions.
    path: &'static str,
    threads: usize,
    /// Operations (a multiply-add is two) or bytes.
    per_second: f64,
}

fn main() -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads = if cores > 1 { vec![1, cores] } else { vec![1] };
    let mut json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = true,
            // what cargo passes to every benchmark
            "--bench" => {}
            "--threads" => {
                let list = args.next().unwrap_or_default();
                match list.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>() {
                    Ok(list) if list.iter().all(|n| (1..=1024).contains(n)) => threads = list,
                    _ => {
                        return usage(&format!(
                            "--threads takes numbers from 1 to 1024 by commas, found {list:?}"
                        ));
                    }
                }
            }
            _ => return usage(&format!("{arg:?} is not known")),
        }
    }
    let rows = measure(&threads);
    if json {
        let row = |r: &Row| {
            let Row { of, path, threads, per_second } = r;
            format!(
                "{{\"of\":\"{of}\",\"path\":\"{path}\",\"threads\":{threads},\"per_second\":{per_second:.0}}}"
            )
        };
        println!("{{\"ceilings\":[{}]}}", rows.iter().map(row).collect::<Vec<_>>().join(","));
        return ExitCode::SUCCESS;
    }
    for r in rows {
        let unit = match r.of {
            "int8" => "GOP/s",
            "f32" => "GFLOP/s",
            _ => "GB/s",
        };
        println!("{:5} {:26} {:3} threads {:8.1} {unit}", r.of, r.path, r.threads, r.per_second / 1e9);
    }
    ExitCode::SUCCESS
}

fn usage(what: &str) -> ExitCode {
    eprintln!("{what}; usage: ceilings [--json] [--threads N,...]");
    ExitCode::from(2)
}

fn measure(threads: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [Kind::Int8, Kind::Float] {
        for path in ceiling::paths().iter().filter(|path| path.kind() == kind) {
            for &threads in threads {
                let per_second = path.measure(threads);
                rows.push(Row { of: kind.name(), path: path.name(), threads, per_second });
            }
        }
    }
    for &threads in threads {
        match ceiling::read(threads) {
            Some(per_second) => rows.push(Row { of: "read", path: "loads", threads, per_second }),
            None => eprintln!("no memory to measure reading with {threads} threads"),
        }
    }
    rows
}
