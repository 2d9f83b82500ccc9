//! A case made ready: its inputs filled, a place for the result, and the verdict afterwards.
//!
//! What runs the op in between is another matter: kernels on this memory, or a device on a copy of it.

use super::memory::Memory;
use super::{Case, compare, fill};
use crate::error::{Error, Result};
use crate::kernel::RefTensor;
use crate::tensor::Desc;

/// What came of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Within the tolerance.
    Ok {
        /// The error, in the tolerance's measure.
        error: f64,
    },
    /// Wrong.
    Failed {
        /// The error, in the tolerance's measure; infinite where nothing could be compared.
        error: f64,
        /// What is wrong.
        reason: String,
    },
    /// The device does not compute this.
    Refused {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    pub(super) fn failed(reason: impl Into<String>) -> Outcome {
        Outcome::Failed { error: f64::INFINITY, reason: reason.into() }
    }

    pub(super) fn changed(what: &str, at: isize) -> Outcome {
        Outcome::failed(format!("{what} changed, {at} bytes from its first byte"))
    }
}

/// The memory of a case.
pub(super) struct Setup {
    /// The inputs.
    pub inputs: Vec<Memory>,
    /// `None` where the first input is the result's place.
    output: Option<Memory>,
}

/// All bytes of a case's memory at one time.
pub(super) struct Snapshot {
    /// Of each input.
    pub inputs: Vec<Vec<u8>>,
    /// Of the result's place.
    pub output: Vec<u8>,
}

impl Setup {
    /// Fills the inputs and finds the result's shape and place.
    pub(super) fn new(case: &Case) -> Result<Setup> {
        let mut rng = fill::Rng::of_case(case);
        let mut inputs = Vec::new();
        for operand in &case.inputs {
            let (base, desc, offset) = fill::layout(operand)?;
            inputs.push(Memory::new(&fill::bytes(operand, &base, &mut rng)?, desc, offset, operand.aligned));
        }
        let descs: Vec<Desc> = inputs.iter().map(|m| m.desc).collect();
        let result = case.op.output(&descs)?;
        let output = match &case.place {
            _ if case.in_place => None,
            None => Some(Memory::blank(result, result, 0, false)),
            Some(place) => {
                let (base, desc, offset) = fill::layout(place)?;
                if desc.dtype != result.dtype || desc.ne != result.ne {
                    let expected = format!("to write {result}, the place is {desc}");
                    return Err(Error::shape(case.op.name(), expected));
                }
                Some(Memory::blank(base, desc, offset, place.aligned))
            }
        };
        if case.in_place && inputs.is_empty() {
            return Err(Error::shape(case.op.name(), "an input to write into, found none"));
        }
        Ok(Setup { inputs, output })
    }

    /// The inputs as the op sees them.
    pub(super) fn descs(&self) -> Vec<Desc> {
        self.inputs.iter().map(|m| m.desc).collect()
    }

    /// The result's memory.
    pub(super) fn output(&self) -> &Memory {
        self.output.as_ref().unwrap_or_else(|| &self.inputs[0])
    }

    /// The result's memory, for writing.
    pub(super) fn output_mut(&mut self) -> &mut Memory {
        self.output.as_mut().unwrap_or_else(|| &mut self.inputs[0])
    }

    /// What the result should be.
    pub(super) fn reference(&self, case: &Case) -> RefTensor {
        let inputs: Vec<RefTensor> = self.inputs.iter().map(Memory::decode).collect();
        case.op.reference(&inputs, &self.output().desc)
    }

    /// All bytes as they are now.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { inputs: self.inputs.iter().map(Memory::all).collect(), output: self.output().all() }
    }

    /// The error of the result, or what is wrong: the result, or memory that is not the result's.
    pub(super) fn judge(&self, case: &Case, want: &RefTensor, before: &Snapshot) -> Result<f64, Outcome> {
        let place = self.output();
        place
            .touched_outside(&before.output)
            .map_err(|at| Outcome::changed("memory round the result", at))?;
        for (i, bytes) in before.inputs.iter().enumerate().skip(usize::from(case.in_place)) {
            self.inputs[i].touched(bytes).map_err(|at| Outcome::changed(&format!("input {i}"), at))?;
        }
        compare(place.desc.dtype, &place.decode(), want, case.tolerance)
            .map_err(|(error, reason)| Outcome::Failed { error, reason })
    }
}
