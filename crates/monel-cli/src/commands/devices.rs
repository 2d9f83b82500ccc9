//! `monel devices`: what there is to compute on.

use std::io::Write;

use monel::DeviceKind;
use monel::device::software::simd::{Isa, VARIABLE};
use serde_json::json;

use crate::args::devices::Args;
use crate::exit::Outcome;
use crate::output::{Align, Output, Table, bytes, note};
use crate::session;

/// Lists the machine's devices.
///
/// # Errors
/// Stdout's errors, CPU features that are asked for and not there, and other settings that the environment cannot have. A device that cannot be opened is left out and
/// named on stderr, as is what keeps the machine's GPUs from being listed.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let mut list = Vec::new();
    monel::device::environment()?;
    let used = Isa::from_env().map_err(monel::Error::Features)?;
    let allowed: Vec<&str> = Isa::available().map(Isa::name).collect();
    let columns =
        [("id", Align::Left), ("kind", Align::Left), ("memory", Align::Right), ("free", Align::Right)];
    let [id, kind, memory, free] = columns;
    let mut table =
        Table::new([id, kind, memory, free, ("name", Align::Left), ("capabilities", Align::Left)]);
    for listing in monel::device::list() {
        let device = match monel::device::open(Some(&listing.id), session::default_threads()) {
            Ok(device) => device,
            Err(error) => {
                note(format_args!("left out: {} ({}): {error}", listing.id, listing.name));
                continue;
            }
        };
        let (info, memory) = (device.info(), device.memory());
        info.warnings.iter().for_each(|warning| note(format_args!("warning: {}: {warning}", info.id)));
        let mut capabilities: Vec<String> = device.capabilities().iter().map(|c| (*c).to_string()).collect();
        capabilities.extend(info.features.iter().cloned());
        table.row([
            info.id.clone(),
            info.kind.to_string(),
            bytes(memory.total),
            bytes(memory.free),
            info.name.clone(),
            capabilities.join(", "),
        ]);
        let mut entry = json!({
            "name": info.name,
            "id": info.id,
            "kind": info.kind.to_string(),
            "memory_total": memory.total,
            "memory_free": memory.free,
            "capabilities": capabilities,
        });
        if info.kind == DeviceKind::Cpu {
            entry["cpu_features"] = json!({ "used": used.name(), "available": allowed });
        }
        list.push(entry);
    }
    monel::device::problems().iter().for_each(note);
    if args.json {
        out.json(&json!({ "devices": list }))?
    } else {
        out.line(table)?;
        let allowed = allowed.join(", ");
        out.line(format_args!(
            "\nCPU features: {} used; this machine has {allowed} ({VARIABLE} limits them)",
            used.name()
        ))?;
    }
    Ok(Outcome::Done)
}
