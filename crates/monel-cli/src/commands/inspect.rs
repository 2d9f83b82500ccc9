//! `monel inspect`: what is in a model file, and what it would need.

use std::collections::BTreeMap;
use std::io::Write;

use monel_gguf::{Array, Gguf, Value};
use monel_llm::ModelFile;
use serde_json::{Map, Value as Json, json};

use crate::args::inspect::Args;
use crate::exit::Outcome;
use crate::output::{Align, Output, Table, bytes};
use crate::session;

/// Arrays up to this length are shown whole.
const SHORT: usize = 16;

/// Prints metadata, tensors and the memory plan. A file that is no language model has no plan.
///
/// # Errors
/// When the file cannot be read, and stdout's errors.
pub fn run<W: Write>(args: &Args, out: &mut Output<W>) -> anyhow::Result<Outcome> {
    let path = session::path(args.spec())?;
    let gguf = Gguf::open(&path)?;
    let device = session::device(args.device.device.as_deref(), None)?;
    let plan = ModelFile::open(&path).map_err(anyhow::Error::from).and_then(|file| {
        let options = session::context_options(&file, args.ctx_size, &args.cache);
        Ok((file.needs(&device, &options)?, options.positions(file.hyper())))
    });
    let mut by_type: BTreeMap<String, u64> = BTreeMap::new();
    for t in gguf.tensors() {
        *by_type.entry(t.ty.name().to_string()).or_default() += t.bytes;
    }
    if args.json {
        let metadata: Map<String, Json> =
            gguf.metadata().iter().map(|(k, v)| (k.to_string(), value(v))).collect();
        let tensor = |t: &monel_gguf::TensorInfo| json!({ "name": t.name, "type": t.ty.name(), "shape": t.shape(), "offset": t.offset, "bytes": t.bytes });
        let memory = match &plan {
            Ok((needs, context)) => {
                let line =
                    |l: &monel::device::Need| json!({ "what": l.what, "bytes": l.bytes, "mapped": l.mapped });
                json!({
                    "device": device.info().id,
                    "context": context,
                    "resident": needs.resident(),
                    "free": device.memory().free,
                    "lines": needs.lines.iter().map(line).collect::<Vec<_>>(),
                })
            }
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        out.json(&json!({
            "version": gguf.version(),
            "metadata": metadata,
            "tensors": gguf.tensors().iter().map(tensor).collect::<Vec<_>>(),
            "bytes_by_type": by_type,
            "memory": memory,
        }))?;
        return Ok(Outcome::Done);
    }
    out.line(format_args!(
        "{}: GGUF version {}, {} tensors",
        path.display(),
        gguf.version(),
        gguf.tensors().len()
    ))?;
    let mut table = Table::new([("key", Align::Left), ("value", Align::Left)]);
    for (key, v) in gguf.metadata().iter() {
        table.row([key.to_string(), short(&value(v).to_string())]);
    }
    out.line(format_args!("\n{table}\n"))?;
    let mut table = Table::new([
        ("tensor", Align::Left),
        ("type", Align::Left),
        ("shape", Align::Right),
        ("bytes", Align::Right),
    ]);
    for t in gguf.tensors() {
        let shape: Vec<String> = t.shape().iter().map(u64::to_string).collect();
        table.row([t.name.clone(), t.ty.name().to_string(), shape.join(" x "), bytes(t.bytes)]);
    }
    out.line(format_args!("{table}\n"))?;
    let mut table = Table::new([("type", Align::Left), ("bytes", Align::Right)]);
    by_type.iter().for_each(|(ty, n)| table.row([ty.clone(), bytes(*n)]));
    out.line(format_args!("{table}\n"))?;
    match plan {
        Ok((needs, context)) => {
            let free = bytes(device.memory().free);
            out.line(format_args!(
                "memory on {} with a context of {context} ({free} free):\n{needs}",
                device.info().id
            ))?;
        }
        Err(error) => out.line(format_args!("no memory plan: {error:#}"))?,
    }
    Ok(Outcome::Done)
}

fn value(v: &Value) -> Json {
    match v {
        Value::U8(n) => json!(n),
        Value::I8(n) => json!(n),
        Value::U16(n) => json!(n),
        Value::I16(n) => json!(n),
        Value::U32(n) => json!(n),
        Value::I32(n) => json!(n),
        Value::U64(n) => json!(n),
        Value::I64(n) => json!(n),
        Value::F32(n) => json!(n),
        Value::F64(n) => json!(n),
        Value::Bool(b) => json!(b),
        Value::String(s) => json!(String::from_utf8_lossy(s)),
        Value::Array(a) => array(a),
    }
}

fn array(a: &Array) -> Json {
    if a.len() > SHORT {
        return json!({ "type": a.element_type().name(), "length": a.len() });
    }
    match a {
        Array::U8(v) => json!(v),
        Array::I8(v) => json!(v),
        Array::U16(v) => json!(v),
        Array::I16(v) => json!(v),
        Array::U32(v) => json!(v),
        Array::I32(v) => json!(v),
        Array::U64(v) => json!(v),
        Array::I64(v) => json!(v),
        Array::F32(v) => json!(v),
        Array::F64(v) => json!(v),
        Array::Bool(v) => json!(v),
        Array::String(v) => Json::Array(v.iter().map(|s| json!(String::from_utf8_lossy(s))).collect()),
        Array::Array(v) => Json::Array(v.iter().map(array).collect()),
    }
}

/// A value on one line of a table.
fn short(text: &str) -> String {
    const WIDTH: usize = 100;
    if text.chars().count() <= WIDTH {
        return text.to_string();
    }
    let head: String = text.chars().take(WIDTH).collect();
    format!("{head}...")
}
