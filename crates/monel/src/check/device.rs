//! The check of a real device, through the same calls that every program uses.
//!
//! Each case becomes a graph of one op over leaves in buffers of their own. It is recorded once and submitted twice,
//! since recordings are made to be replayed; then everything is read back and judged.

use super::setup::{Outcome, Setup};
use super::{Case, Tolerance};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::ops;
use crate::stream::Stream;
use crate::tensor::{DType, Tensor};

/// Which cases to run; everything by default.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only ops of this name (as [`ops::Op::name`] gives it), ignoring case.
    pub op: Option<String>,
    /// Only cases about this type.
    pub dtype: Option<DType>,
    /// Only cases whose inputs hold at most so many values together.
    pub max_values: Option<usize>,
}

impl Filter {
    /// Whether a case is wanted.
    pub fn accepts(&self, case: &Case) -> bool {
        self.op.as_ref().is_none_or(|op| op.eq_ignore_ascii_case(case.op.name()))
            && self.dtype.is_none_or(|dtype| dtype == case.dtype)
            && self.max_values.is_none_or(|max| case.values() <= max)
    }
}

/// What came of all cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// Cases within their tolerance.
    pub passed: usize,
    /// Cases that are wrong.
    pub failed: usize,
    /// Cases that the device says it does not compute.
    pub refused: usize,
    /// Cases there were to run; more than there are results where the check was stopped.
    pub cases: usize,
    /// Each case that ran.
    pub results: Vec<Row>,
}

/// What came of one case.
#[derive(Clone, Debug)]
pub struct Row {
    /// The op's name.
    pub op: &'static str,
    /// The type the case is about.
    pub dtype: DType,
    /// The op's parameters and its operands, `*` where they are not contiguous.
    pub shape: String,
    /// `ok`, `failed` or `refused`.
    pub outcome: &'static str,
    /// The error in the tolerance's measure; `None` where nothing was compared.
    pub error: Option<f64>,
    /// How large it may be.
    pub tolerance: Tolerance,
    /// Why it failed or was refused.
    pub reason: Option<String>,
}

/// Runs the cases of all ops that `filter` accepts. What goes wrong, the device's errors included, is in the report.
pub fn run(device: &Device, filter: &Filter) -> Report {
    run_while(device, filter, &mut || true)
}

/// As [`run`], as long as `go_on`, which is asked before each case, says so.
pub fn run_while(device: &Device, filter: &Filter, go_on: &mut dyn FnMut() -> bool) -> Report {
    let cases = ops::cases();
    let wanted: Vec<&Case> = cases.iter().filter(|case| filter.accepts(case)).collect();
    let ran = wanted.iter().take_while(|_| go_on()).copied();
    Report { cases: wanted.len(), ..run_cases(device, ran) }
}

/// Runs these cases.
pub fn run_cases<'a>(device: &Device, cases: impl IntoIterator<Item = &'a Case>) -> Report {
    let results: Vec<Row> = cases.into_iter().map(|case| row(device, case)).collect();
    let count = |outcome| results.iter().filter(|row| row.outcome == outcome).count();
    let (passed, failed, refused) = (count("ok"), count("failed"), count("refused"));
    let device = device.info().name.clone();
    Report { device, passed, failed, refused, cases: results.len(), results }
}

fn row(device: &Device, case: &Case) -> Row {
    let (shape, outcome) = match Setup::new(case) {
        Ok(mut setup) => {
            let mut operands: Vec<String> = setup.descs().iter().map(ToString::to_string).collect();
            if case.place.is_some() {
                operands.push(format!("into {}", setup.output().desc));
            }
            let shape = format!("{:?} {}", case.op, operands.join(" "));
            (shape, run_case(device, &mut setup, case).unwrap_or_else(|outcome| outcome))
        }
        Err(e) => (format!("{:?}", case.op), Outcome::failed(e.to_string())),
    };
    let (outcome, error, reason) = match outcome {
        Outcome::Ok { error } => ("ok", Some(error), None),
        Outcome::Failed { error, reason } => ("failed", error.is_finite().then_some(error), Some(reason)),
        Outcome::Refused { reason } => ("refused", None, Some(reason)),
    };
    Row { op: case.op.name(), dtype: case.dtype, shape, outcome, error, tolerance: case.tolerance, reason }
}

fn run_case(device: &Device, setup: &mut Setup, case: &Case) -> Result<Outcome, Outcome> {
    device
        .supports(case.op.as_ref(), &setup.descs(), &setup.output().desc)
        .map_err(|reason| Outcome::Refused { reason })?;
    let want = setup.reference(case);
    let before = setup.snapshot();
    submit(device, setup, case).map_err(|e| Outcome::failed(format!("the device said: {e}")))?;
    setup.judge(case, &want, &before).map(|error| Outcome::Ok { error })
}

/// Uploads everything, runs the op, downloads everything.
fn submit(device: &Device, setup: &mut Setup, case: &Case) -> Result<()> {
    // A stream of its own, as an error poisons it.
    let stream = device.stream();
    let mut graph = Graph::new(case.op.name());
    let mut leaf = |memory: &super::memory::Memory| -> Result<(Buffer, Value)> {
        let (image, offset) = memory.image();
        let buffer = device.allocate(device.default_storage(), image.len())?;
        drop(stream.upload_bytes(&buffer, 0, image)?);
        let value = graph.leaf(&Tensor::new(&buffer, offset, memory.desc)?);
        Ok((buffer, value))
    };
    let inputs = setup.inputs.iter().map(&mut leaf).collect::<Result<Vec<_>>>()?;
    let place = if case.in_place { inputs[0].clone() } else { leaf(setup.output())? };
    let values: Vec<Value> = inputs.iter().map(|(_, value)| *value).collect();
    graph.apply_arc(case.op.clone(), &values, Some(place.1))?;

    let recording = device.record(&graph)?;
    drop(stream.submit(&recording)?);
    stream.submit(&recording)?.wait()?;
    for (memory, (buffer, _)) in setup.inputs.iter_mut().zip(&inputs) {
        memory.take_image(&download(&stream, buffer)?);
    }
    if !case.in_place {
        let image = download(&stream, &place.0)?;
        setup.output_mut().take_image(&image);
    }
    stream.synchronize()
}

fn download(stream: &Stream, buffer: &Buffer) -> Result<Vec<u8>> {
    stream.download_bytes(buffer, 0, buffer.size())?.wait()
}
