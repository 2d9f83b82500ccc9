//! Runs a case with the software device's kernels on plain memory, without queue, planner or threads.
//!
//! What the scheduler relies on is checked along the way: items are handed out in odd ranges from the last to the
//! first, then once more as one range, and both have to give the same bytes; a row-local op is run on single rows with
//! all other rows of its inputs poisoned.

use super::memory::Memory;
use super::{Case, compare, fill};
use crate::device::software::simd::Isa;
use crate::error::{Error, Result};
use crate::kernel::{Call, Input, Kernel, Output, Worker};
use crate::tensor::{DType, Desc};

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
}

/// Runs one case with the kernels of one instruction set.
pub fn run_direct(case: &Case, isa: Isa) -> Outcome {
    match Direct::new(case) {
        Ok(mut direct) => direct.run(case, isa).unwrap_or_else(|outcome| outcome),
        Err(e) => Outcome::failed(e.to_string()),
    }
}

/// The memory of a case.
struct Direct {
    inputs: Vec<Memory>,
    /// `None` where the first input is the result's place.
    output: Option<Memory>,
}

impl Direct {
    fn new(case: &Case) -> Result<Direct> {
        let mut rng = fill::Rng::of_case(case);
        let mut inputs = Vec::new();
        for operand in &case.inputs {
            let (base, desc, offset) = fill::layout(operand)?;
            inputs.push(Memory::new(&fill::bytes(operand, &base, &mut rng)?, desc, offset));
        }
        let descs: Vec<Desc> = inputs.iter().map(|m| m.desc).collect();
        let result = case.op.output(&descs)?;
        let output = match &case.place {
            _ if case.in_place => None,
            None => Some(Memory::blank(result, result, 0)),
            Some(place) => {
                let (base, desc, offset) = fill::layout(place)?;
                if desc.dtype != result.dtype || desc.ne != result.ne {
                    return Err(Error::shape(
                        case.op.name(),
                        format!("to write {result}, the place is {desc}"),
                    ));
                }
                Some(Memory::blank(base, desc, offset))
            }
        };
        Ok(Direct { inputs, output })
    }

    fn output(&mut self) -> &mut Memory {
        self.output.as_mut().unwrap_or(&mut self.inputs[0])
    }

    fn run(&mut self, case: &Case, isa: Isa) -> Result<Outcome, Outcome> {
        let descs: Vec<Desc> = self.inputs.iter().map(|m| m.desc).collect();
        let result = self.output().desc;
        if let Err(reason) = case.op.supports(&descs, &result) {
            return Err(Outcome::Refused { reason });
        }
        let want = case.op.reference(&self.inputs.iter().map(Memory::decode).collect::<Vec<_>>(), &result);
        let inputs_before: Vec<Vec<u8>> = self.inputs.iter().map(Memory::all).collect();
        let output_before = self.output().all();

        let scratch_desc = Desc::new(DType::I32, &[case.op.scratch(&descs, &result).div_ceil(4)])
            .map_err(|e| Outcome::failed(e.to_string()))?;
        let mut scratch = Memory::scratch(scratch_desc);
        let scratch_before = scratch.all();
        let kernels = self.kernels(case, isa, &mut scratch);
        let local = case.op.row_local(&descs, &result);
        if local && (kernels.len() != 1 || kernels[0].items != result.rows()) {
            return Err(Outcome::failed("a row-local op has one kernel with one item per row of the result"));
        }

        run_split(&kernels, isa).map_err(|e| Outcome::failed(format!("the kernel said: {e}")))?;
        let place = self.output();
        let outside = |what: &str| {
            let what = what.to_owned();
            move |at: isize| Outcome::failed(format!("{what} changed, {at} bytes from its first byte"))
        };
        place.touched_outside(&output_before).map_err(outside("memory round the result"))?;
        let error = compare(result.dtype, &place.decode(), &want, case.tolerance)
            .map_err(|(error, reason)| Outcome::Failed { error, reason })?;
        let first = place.all();
        scratch.touched_outside(&scratch_before).map_err(outside("memory round the scratch memory"))?;
        for (i, before) in inputs_before.iter().enumerate().skip(usize::from(case.in_place)) {
            self.inputs[i].touched(before).map_err(outside(&format!("input {i}")))?;
        }

        self.output().restore(&output_before);
        run_whole(&kernels, isa).map_err(|e| Outcome::failed(format!("the second run said: {e}")))?;
        self.output().touched(&first).map_err(outside("split in another way, the result"))?;
        if local && !case.in_place {
            self.check_rows(&kernels[0], isa, &inputs_before, &first)?;
        }
        Ok(Outcome::Ok { error })
    }

    fn kernels(&mut self, case: &Case, isa: Isa, scratch: &mut Memory) -> Vec<Kernel> {
        // SAFETY: the memories outlive the kernels (both live in `run`), hold the spans of their descriptions and are
        // aligned to the element; nothing reads or writes them while a kernel runs.
        let inputs: Vec<Input> =
            self.inputs.iter_mut().map(|m| unsafe { Input::new(m.ptr(), m.desc) }).collect();
        let (desc, scratch_desc) = (self.output().desc, scratch.desc);
        // SAFETY: as above.
        let output = unsafe { Output::new(self.output().ptr(), desc) };
        // SAFETY: as above.
        let scratch = unsafe { Output::new(scratch.ptr(), scratch_desc) };
        case.op.kernels(&Call { inputs: &inputs, output, scratch, isa, threads: 2 })
    }

    /// A row of a row-local op, with every other row of the inputs poisoned, has to come out the same.
    fn check_rows(
        &mut self,
        kernel: &Kernel,
        isa: Isa,
        inputs: &[Vec<u8>],
        want: &[u8],
    ) -> Result<(), Outcome> {
        let rows = self.output().desc.rows();
        for r in [0, rows / 2, rows.saturating_sub(1)].into_iter().filter(|&r| r < rows) {
            self.output().restore(want);
            let expected = self.output().row_bytes(r);
            for (memory, before) in self.inputs.iter_mut().zip(inputs) {
                memory.restore(before);
                if memory.desc.rows() == rows {
                    memory.poison_rows_but(r);
                }
            }
            (kernel.run)(r..r + 1, &mut Worker::new(isa))
                .map_err(|e| Outcome::failed(format!("row {r} said: {e}")))?;
            if self.output().row_bytes(r) != expected {
                return Err(Outcome::failed(format!("row {r} of a row-local op depends on other rows")));
            }
        }
        Ok(())
    }
}

/// Items in ranges of 1, 3, 5, 7, 1 .. from the last to the first.
fn run_split(kernels: &[Kernel], isa: Isa) -> Result<()> {
    for kernel in kernels {
        let mut worker = Worker::new(isa);
        worker.floats(1024).fill(f32::NAN);
        let (mut end, mut len) = (kernel.items, 1);
        while end > 0 {
            let start = end.saturating_sub(len);
            (kernel.run)(start..end, &mut worker)?;
            (end, len) = (start, if len >= 7 { 1 } else { len + 2 });
        }
    }
    Ok(())
}

/// All items of each kernel at once.
fn run_whole(kernels: &[Kernel], isa: Isa) -> Result<()> {
    let mut worker = Worker::new(isa);
    kernels.iter().try_for_each(|kernel| (kernel.run)(0..kernel.items, &mut worker))
}
