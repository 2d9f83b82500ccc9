//! A plan as text: one line per step, for people and for tests that compare plans.

use super::{Place, Plan};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan {}: {} steps in {} chunks, {} bytes of scratch, {:.3} Gflop, {:.1} MB",
            self.name,
            self.steps.len(),
            self.chunks.len(),
            self.scratch,
            self.cost.flops / 1e9,
            self.cost.bytes / 1e6
        )?;
        for (c, chunk) in self.chunks.iter().enumerate() {
            writeln!(f, "chunk {c}: about {:.1} µs", chunk.estimate.nominal_ns() / 1e3)?;
            for step in &self.steps[chunk.steps.clone()] {
                for (i, op) in step.ops.iter().enumerate() {
                    let mark = match (i, step.barrier) {
                        (0, true) => "|",
                        (0, false) => " ",
                        _ => "+",
                    };
                    let inputs: Vec<String> = op.inputs.iter().map(show).collect();
                    writeln!(f, " {mark} {} {} <- {}", op.op.name(), show(&op.output), inputs.join(", "))?;
                }
            }
        }
        Ok(())
    }
}

fn show(place: &Place) -> String {
    match &place.buffer {
        Some(b) => format!("b{}+{} {}", b.id(), place.offset, place.desc),
        None => format!("s+{} {}", place.offset, place.desc),
    }
}
