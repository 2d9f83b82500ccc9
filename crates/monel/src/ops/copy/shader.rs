//! Copies on a GPU: one invocation an element, four of a block, or a whole block where blocks are written.

use super::Path;
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::tensor::{DType, Desc};

pub(super) fn shader(call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
    let (x, y) = (&call.inputs[0], &call.output);
    let (from, to) = (x.desc.dtype, y.desc.dtype);
    let cpu = |t: DType| matches!(t, DType::Packed(_) | DType::Q8A);
    if cpu(from) || cpu(to) {
        return Err(format!(
            "{from} to {to}: the layout is the CPU's own, no other device has tensors of it"
        ));
    }
    let Some(path) = Path::find(from, to) else { return Err(format!("no copy of {from} to {to}")) };
    if let Path::ToPlanes(block) = path {
        return super::planes::shader(call, block);
    }
    let n = y.desc.ne[0];
    // What one invocation advances in the result, how many invocations a row takes, and what each does.
    let (step, steps, write) = match path {
        Path::Same if to.has_whole_rows() => (1, to.row_bytes(n) / 4, "y[to] = x[row + at.x];".to_string()),
        Path::Same if to.is_quantized() => (1, to.row_bytes(n) / 2, "y[to] = x[row + at.x];".to_string()),
        Path::Same => (1, n, "y[to] = x[row + at.x * p.x0];".to_string()),
        Path::Numbers => (1, n, convert(from, to)),
        _ if to.is_quantized() => {
            let block = to.block_len();
            (to.block_bytes() / 2, n / block, format!("quantize_y(row + at.x * {block}u * p.x0, to);"))
        }
        _ if from.is_quantized() => {
            let put =
                "let v = quad_x(row, at.x);\n  for (var j = 0u; j < 4u; j++) { put_y(to + j * p.y0, v[j]); }";
            (4, n / 4, put.to_string())
        }
        _ => (1, n, "put_y(to, get_x(row + at.x * p.x0));".to_string()),
    };
    let functions = match path {
        Path::Numbers => include_str!("../../gpu/integers.wgsl"),
        Path::Floats if to.is_quantized() => {
            "fn source_y(start: u32, i: u32) -> f32 { return get_x(start + i * p.x0); }"
        }
        _ => "",
    };
    // Elements of blocks follow each other.
    let first = |d: &Desc| match d.dtype {
        t if t.is_quantized() => 1,
        t => d.nb[0] / t.block_bytes(),
    };
    let count = y.desc.rows() * steps;
    let mut shader = Shader::new("copy", include_str!("copy.wgsl"))
        .number("count", count)
        .number("steps", steps)
        .number("n1", y.desc.ne[1])
        .number("n2", y.desc.ne[2])
        .input("x", x)
        .number("x0", first(&x.desc))
        .strides("x", x, true)
        .output("y", y)
        .number("y0", first(&y.desc))
        .strides("y", y, true)
        .define("STEP", step)
        .define("WRITE", write)
        .define("FUNCTIONS", functions);
    if path == Path::Floats && to.is_quantized() {
        shader = shader.quantizer("y", to);
    }
    Ok(vec![shader.items(count, 64)?])
}

/// WGSL that writes a number as another type, integers on at least one side.
fn convert(from: DType, to: DType) -> String {
    let x = match from {
        DType::I32 | DType::I64 => "x[row + at.x * p.x0]",
        _ => "get_x(row + at.x * p.x0)",
    };
    match (from, to) {
        (DType::I32, DType::I64) => format!("y[to] = i32_to_i64({x});"),
        (DType::I64, DType::I32) => format!("y[to] = i64_to_i32({x});"),
        (DType::I32, _) => format!("put_y(to, f32({x}));"),
        (DType::I64, _) => format!("put_y(to, i64_to_f32({x}));"),
        (_, DType::I32) => format!("y[to] = f32_to_i32({x});"),
        _ => format!("y[to] = f32_to_i64({x});"),
    }
}
