//! Runs a case with the software device's kernels on plain memory, without queue, planner or threads.
//!
//! What the scheduler relies on is checked along the way: items are handed out in odd ranges from the last to the
//! first, then once more as one range, and both have to give the same bytes; a row-local op is run on single rows with
//! all other rows of its inputs poisoned.

use super::memory::Memory;
use super::setup::Setup;
use super::{Case, Outcome};
use crate::device::software::simd::Isa;
use crate::error::Result;
use crate::kernel::{Call, Input, Kernel, Output, Worker};
use crate::tensor::{DType, Desc};

/// Runs one case with the kernels of one instruction set.
pub fn run_direct(case: &Case, isa: Isa) -> Outcome {
    match Setup::new(case) {
        Ok(mut setup) => run(&mut setup, case, isa).unwrap_or_else(|outcome| outcome),
        Err(e) => Outcome::failed(e.to_string()),
    }
}

fn run(setup: &mut Setup, case: &Case, isa: Isa) -> Result<Outcome, Outcome> {
    let (descs, result) = (setup.descs(), setup.output().desc);
    if let Err(reason) = case.op.supports(&descs, &result) {
        return Err(Outcome::Refused { reason });
    }
    let want = setup.reference(case);
    let before = setup.snapshot();
    let scratch = Desc::new(DType::I32, &[case.op.scratch(&descs, &result).div_ceil(4)]);
    let mut scratch = Memory::scratch(scratch.map_err(|e| Outcome::failed(e.to_string()))?);
    let scratch_before = scratch.all();
    let kernels = kernels(setup, case, isa, &mut scratch);
    let local = case.op.row_local(&descs, &result);
    if local && (kernels.len() != 1 || kernels[0].items != result.rows()) {
        return Err(Outcome::failed("a row-local op has one kernel with one item per row of the result"));
    }

    run_split(&kernels, isa).map_err(|e| Outcome::failed(format!("the kernel said: {e}")))?;
    let error = setup.judge(case, &want, &before)?;
    scratch
        .touched_outside(&scratch_before)
        .map_err(|at| Outcome::changed("memory round the scratch memory", at))?;

    let first = setup.output().all();
    setup.output_mut().restore(&before.output);
    run_whole(&kernels, isa).map_err(|e| Outcome::failed(format!("the second run said: {e}")))?;
    setup.output().touched(&first).map_err(|at| Outcome::changed("split in another way, the result", at))?;
    if local && !case.in_place {
        check_rows(setup, &kernels[0], isa, &before.inputs, &first)?;
    }
    Ok(Outcome::Ok { error })
}

fn kernels(setup: &mut Setup, case: &Case, isa: Isa, scratch: &mut Memory) -> Vec<Kernel> {
    // SAFETY: the memories outlive the kernels (both live in `run`), hold the spans of their descriptions and are
    // aligned to the element; nothing reads or writes them while a kernel runs.
    let input = |m: &mut Memory| unsafe { Input::new(m.ptr(), m.desc) };
    let inputs: Vec<Input> = setup.inputs.iter_mut().map(input).collect();
    let (desc, scratch_desc) = (setup.output().desc, scratch.desc);
    // SAFETY: as above.
    let output = unsafe { Output::new(setup.output_mut().ptr(), desc) };
    // SAFETY: as above.
    let scratch = unsafe { Output::new(scratch.ptr(), scratch_desc) };
    case.op.kernels(&Call { inputs: &inputs, output, scratch, isa, threads: 2 })
}

/// A row of a row-local op, with every other row of the inputs poisoned, has to come out the same.
fn check_rows(
    setup: &mut Setup,
    kernel: &Kernel,
    isa: Isa,
    inputs: &[Vec<u8>],
    want: &[u8],
) -> Result<(), Outcome> {
    let rows = setup.output().desc.rows();
    for r in [0, rows / 2, rows.saturating_sub(1)].into_iter().filter(|&r| r < rows) {
        setup.output_mut().restore(want);
        let expected = setup.output().row_bytes(r);
        for (memory, before) in setup.inputs.iter_mut().zip(inputs) {
            memory.restore(before);
            if memory.desc.rows() == rows {
                memory.poison_rows_but(r);
            }
        }
        let run = (kernel.run)(r..r + 1, &mut Worker::new(isa));
        run.map_err(|e| Outcome::failed(format!("row {r} said: {e}")))?;
        if setup.output().row_bytes(r) != expected {
            return Err(Outcome::failed(format!("row {r} of a row-local op depends on other rows")));
        }
    }
    Ok(())
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
