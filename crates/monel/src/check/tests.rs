//! All cases with every instruction set of this machine, and kernels that are wrong in one way each.

use super::*;
use crate::device::software::{self, simd::Isa};
use crate::error::{Error, Result};
use crate::kernel::{Call, Kernel, RefTensor};
use crate::ops::{Op, cases};
use crate::tensor::{DType, Desc};

/// Runs every case. Nothing may be refused: the cases say what the ops can do.
fn run_all(isa: Isa) {
    let (mut bad, mut good) = (Vec::new(), 0);
    for case in cases() {
        match run_direct(&case, isa) {
            Outcome::Ok { .. } => good += 1,
            other => bad.push(format!("{case:?}\n  {other:?}")),
        }
    }
    assert!(
        bad.is_empty(),
        "{}: {} of {} cases:\n{}",
        isa.name(),
        bad.len(),
        good + bad.len(),
        bad.join("\n")
    );
    assert!(good > 0);
}

#[test]
fn every_case_portable() {
    run_all(Isa::SCALAR);
}

#[test]
fn every_case_with_every_other_instruction_set() {
    Isa::available().filter(|&isa| isa != Isa::SCALAR).for_each(run_all);
}

/// How the kernel of [`Doubled`] goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    OffByOne,
    OneBitOff,
    Nan,
    PastTheEnd,
    BeforeTheStart,
    WritesInput,
    WritesPastScratch,
    SkipsLastItem,
    DependsOnSplit,
    ReadsOtherRow,
    ReadsScratch,
    TooFewItems,
    Error,
}

/// 2 x, in a row-local kernel that can be broken.
#[derive(Clone, Copy, Debug)]
struct Doubled(Fault);

impl Op for Doubled {
    fn name(&self) -> &'static str {
        "doubled"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        Desc::new(DType::F32, &inputs[0].ne)
    }

    fn supports(&self, inputs: &[Desc], _: &Desc) -> Result<(), String> {
        if inputs[0].has_dense_rows() { Ok(()) } else { Err("dense rows".into()) }
    }

    fn row_local(&self, _: &[Desc], _: &Desc) -> bool {
        true
    }

    fn scratch(&self, _: &[Desc], _: &Desc) -> usize {
        64
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (fault, x, out, scratch) = (self.0, call.inputs[0], call.output, call.scratch);
        let rows = out.desc.rows();
        let items = if fault == Fault::TooFewItems { 1 } else { rows };
        vec![Kernel::new(items, 1, move |range, _| {
            let whole = range.len() == rows;
            for r in range {
                if fault == Fault::SkipsLastItem && r + 1 == rows {
                    continue;
                }
                // SAFETY: row r belongs to item r.
                let row = unsafe { out.row_mut::<f32>(r) };
                let from = x.row::<f32>(r);
                let shift = usize::from(fault == Fault::OffByOne);
                row.iter_mut().enumerate().for_each(|(i, o)| *o = 2.0 * from[(i + shift) % from.len()]);
                row[0] += match fault {
                    Fault::DependsOnSplit if whole => 1.0,
                    Fault::ReadsOtherRow => x.row::<f32>((r + 1) % rows)[0] * 0.0,
                    // SAFETY: scratch has 64 bytes.
                    Fault::ReadsScratch => unsafe { scratch.ptr().cast::<f32>().read() },
                    Fault::Nan => f32::NAN,
                    _ => 0.0,
                };
                let end = out.desc.row_offset(r) + out.desc.dtype.row_bytes(out.desc.ne[0]);
                // Counted up rather than flipped: an even number of faults must not undo itself.
                // SAFETY: called with addresses inside the test's allocations.
                let spoil = |p: *mut u8| unsafe { p.write(p.read().wrapping_add(1)) };
                // SAFETY: the test's memory has guards on both sides; that they are touched is the fault.
                unsafe {
                    match fault {
                        Fault::OneBitOff => spoil(out.ptr().add(end - 4)),
                        Fault::PastTheEnd => spoil(out.ptr().add(end)),
                        Fault::BeforeTheStart => spoil(out.ptr().sub(1)),
                        Fault::WritesInput => spoil(x.ptr().cast_mut()),
                        Fault::WritesPastScratch => spoil(scratch.ptr().add(64)),
                        _ => {}
                    }
                }
            }
            if fault == Fault::Error { Err(Error::Kernel("wrong on purpose".into())) } else { Ok(()) }
        })]
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        RefTensor { ne: output.ne, data: inputs[0].data.iter().map(|x| 2.0 * x).collect() }
    }
}

/// The reason of a failure; `None` where the case passed.
fn fails(case: &Case) -> Option<String> {
    match run_direct(case, Isa::SCALAR) {
        Outcome::Ok { .. } => None,
        Outcome::Failed { reason, .. } => Some(reason),
        Outcome::Refused { reason } => panic!("refused: {reason}"),
    }
}

fn doubled(fault: Fault) -> Case {
    Case::new(Doubled(fault), DType::F32, vec![Operand::normal(DType::F32, &[7, 5])], Tolerance::Exact)
}

#[test]
fn every_fault_is_caught() {
    use Fault::*;
    assert_eq!(fails(&doubled(None)), Option::None);
    for (fault, words) in [
        (OffByOne, "expected"),
        (OneBitOff, "expected"),
        (Nan, "expected"),
        (SkipsLastItem, "expected"),
        (ReadsScratch, "expected"),
        (PastTheEnd, "round the result"),
        (BeforeTheStart, "round the result"),
        (WritesInput, "input 0"),
        (WritesPastScratch, "scratch"),
        (DependsOnSplit, "split in another way"),
        (ReadsOtherRow, "other rows"),
        (TooFewItems, "one item per row"),
        (Error, "wrong on purpose"),
    ] {
        let reason = fails(&doubled(fault)).unwrap_or_else(|| panic!("{fault:?} was not caught"));
        assert!(reason.contains(words), "{fault:?}: {reason}");
    }
}

#[test]
fn the_software_device_computes_every_case() {
    let report = run(&crate::device::open_cpu().unwrap(), &Filter::default());
    let wrong: Vec<&Row> = report.results.iter().filter(|row| row.outcome != "ok").collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), report.results.len());
    assert_eq!((report.passed, report.failed, report.refused), (cases().len(), 0, 0));
}

/// What `monel check --max-values 400` does: for emulated processors, which need half an hour for everything.
#[test]
fn small_cases_with_every_instruction_set() {
    for isa in Isa::available() {
        let options = software::Options { threads: 2, isa: Some(isa), ..software::Options::default() };
        let device = software::create(&options).unwrap();
        let report = run(&device, &Filter { max_values: Some(400), ..Filter::default() });
        let wrong: Vec<&Row> = report.results.iter().filter(|row| row.outcome != "ok").collect();
        assert!(wrong.is_empty(), "{}: {} of {}: {wrong:#?}", isa.name(), wrong.len(), report.results.len());
        assert!(report.passed > 500, "{}", report.passed);
        println!("{}: {} small cases", isa.name(), report.passed);
    }
}

#[test]
fn faults_are_caught_through_a_device_too() {
    let device = crate::device::open_cpu().unwrap();
    let row = |case: &Case| run_cases(&device, [case]).results.remove(0);
    let good = row(&doubled(Fault::None));
    assert_eq!((good.outcome, good.error), ("ok", Some(0.0)), "{:?}", good.reason);
    assert_eq!(good.shape, "Doubled(None) F32[7,5]");
    for (fault, words) in [
        (Fault::OffByOne, "expected"),
        (Fault::Nan, "expected"),
        (Fault::SkipsLastItem, "expected"),
        (Fault::BeforeTheStart, "round the result"),
        (Fault::WritesInput, "input 0"),
        (Fault::Error, "wrong on purpose"),
    ] {
        let bad = row(&doubled(fault));
        assert_eq!(bad.outcome, "failed", "{fault:?}");
        assert!(bad.reason.as_ref().unwrap().contains(words), "{fault:?}: {:?}", bad.reason);
    }
    let strided = Operand::normal(DType::F32, &[7, 5]).permuted([1, 0, 2, 3]);
    let refused = row(&Case::new(Doubled(Fault::None), DType::F32, vec![strided], Tolerance::Exact));
    assert_eq!((refused.outcome, refused.reason.as_deref()), ("refused", Some("dense rows")));
}

#[test]
fn filters_choose_by_op_and_type() {
    let all = cases();
    let count = |filter: Filter| all.iter().filter(|case| filter.accepts(case)).count();
    assert_eq!(count(Filter::default()), all.len());
    let of = |op: &str| Filter { op: Some(op.into()), ..Filter::default() };
    let copies = count(of("COPY"));
    let quantized = count(Filter { dtype: Some(DType::Q4_0), ..of("copy") });
    assert!(0 < quantized && quantized < copies && copies < all.len());
    assert_eq!(count(of("cop")), 0);
    let small = count(Filter { max_values: Some(100), ..of("copy") });
    assert!(0 < small && small < copies);
}

#[test]
fn gaps_of_a_strided_place_are_guarded() {
    let place = Operand::normal(DType::F32, &[12, 5]).slice(0, 2, 7);
    assert_eq!(fails(&doubled(Fault::None).into(place.clone())), None);
    let reason = fails(&doubled(Fault::PastTheEnd).into(place)).unwrap();
    assert!(reason.contains("round the result"), "{reason}");
}

#[test]
fn refusals_and_bad_cases_are_told_apart() {
    let operand = Operand::normal(DType::F32, &[7, 5]).permuted([1, 0, 2, 3]);
    let case = Case::new(Doubled(Fault::None), DType::F32, vec![operand], Tolerance::Exact);
    assert_eq!(run_direct(&case, Isa::SCALAR), Outcome::Refused { reason: "dense rows".into() });
    let case = doubled(Fault::None).into(Operand::normal(DType::F32, &[7, 4]));
    assert!(fails(&case).unwrap().contains("the place is"));
    let bad = Operand::normal(DType::F32, &[7]).slice(0, 5, 3);
    assert!(fails(&Case::new(Doubled(Fault::None), DType::F32, vec![bad], Tolerance::Exact)).is_some());
}

#[test]
fn a_case_is_filled_the_same_each_time() {
    let case = doubled(Fault::None);
    let draw = || {
        let mut rng = fill::Rng::of_case(&case);
        let (base, _, _) = fill::layout(&case.inputs[0]).unwrap();
        fill::bytes(&case.inputs[0], &base, &mut rng).unwrap()
    };
    assert_eq!(draw(), draw());
}

#[test]
fn a_check_that_is_stopped_reports_what_it_has() {
    let device = software::create(&software::Options { threads: 1, ..Default::default() }).unwrap();
    let filter = Filter { max_values: Some(64), ..Filter::default() };
    let whole = run(&device, &filter);
    assert!(whole.cases == whole.results.len() && whole.cases > 3);
    for keep in [0, 3] {
        let mut asked = 0;
        let report = run_while(&device, &filter, &mut || {
            asked += 1;
            asked <= keep
        });
        assert_eq!((report.results.len(), report.cases), (keep, whole.cases));
        assert_eq!(report.passed + report.failed + report.refused, keep);
    }
}
