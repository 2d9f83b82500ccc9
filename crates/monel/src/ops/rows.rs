//! Rows by number: reading them (embeddings) and writing them (the KV cache).

use super::{Cost, Op};
use crate::check::{Case, Fill, Operand, Tolerance};
use crate::device::software::simd::{self, Isa};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, GpuCall, Shader};
use crate::kernel::{Call, Input, Kernel, Output, RefTensor};
use crate::quant;
use crate::tensor::{DType, Desc};

/// The rows of a table (`[n, rows, b2, b3]`, floats, blocks or packed) named by ids (I32 `[m, b2, b3]`), as F32
/// `[n, m, b2, b3]`. A number outside the table is an error of the submission.
#[derive(Clone, Copy, Debug)]
pub struct GetRows;

/// Writes rows (F32 `[n, m, b2, b3]`) into a place (`[n, r, b2, b3]`, floats or blocks) at the row numbers ids (I32 or
/// I64 `[m, c2, c3]`, repeated over dimensions 2 and 3), converting them to its type. Other rows are not touched. Where a
/// number occurs twice, the last row wins. A number outside the place is an error of the submission.
#[derive(Clone, Copy, Debug)]
pub struct SetRows;

impl Op for GetRows {
    fn name(&self) -> &'static str {
        "get_rows"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [table, ids] = inputs else {
            return Err(Error::shape("get_rows", format!("a table and ids, found {} inputs", inputs.len())));
        };
        let [m, b2, b3, one] = ids.ne;
        if ids.dtype != DType::I32 || [b2, b3, one] != [table.ne[2], table.ne[3], 1] {
            return Err(Error::shape(
                "get_rows",
                format!("ids I32[m,{},{}] for {table}, found {ids}", table.ne[2], table.ne[3]),
            ));
        }
        Desc::new(DType::F32, &[table.ne[0], m, b2, b3])
    }

    fn supports(&self, inputs: &[Desc], output: &Desc) -> Result<(), String> {
        let table = &inputs[0];
        let readable =
            table.dtype.block().is_some() || matches!(table.dtype, DType::Packed(_) | DType::Planar(_));
        if !readable || !table.has_dense_rows() {
            return Err(format!("a table of floats or blocks with dense rows, found {table}"));
        }
        super::all_f32_rows(&[], output)
    }

    fn cost(&self, _: &[Desc], output: &Desc) -> Cost {
        // only the named rows are read
        Cost { flops: output.elements() as f64, bytes: output.span() as f64 * 1.5 }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (table, ids, out) = (call.inputs[0], call.inputs[1], call.output);
        vec![Kernel::rows(out.desc.rows(), out.desc.nb[1] * 2, move |r, worker| {
            let [_, m, b2, _] = out.desc.ne;
            let (i, i2, i3) = (r % m, r / m % b2, r / m / b2);
            let row = row_number(i64::from(ids.at::<i32>([i, i2, i3, 0])), &table.desc)?;
            // SAFETY: row r belongs to item r.
            let out = unsafe { out.row_mut::<f32>(r) };
            read_row(worker.isa, &table, [row, i2, i3], out)
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (table, ids, y) = (&call.inputs[0], &call.inputs[1], &call.output);
        if let DType::Packed(_) = table.desc.dtype {
            return Err("packed rows are the CPU's own layout, no other device has tensors of it".into());
        }
        // Blocks are decoded four elements at a time.
        let (step, write) = match table.desc.dtype.is_quantized() {
            true => {
                (4, "let v = quad_table(row, at.x);\n  for (var j = 0u; j < 4u; j++) { y[to + j] = v[j]; }")
            }
            false => (1, "y[to] = get_table(row + at.x);"),
        };
        let [n, m, b2, _] = y.desc.ne;
        let (first, rows) = call.window.unwrap_or((0, table.desc.ne[1]));
        let shader = Shader::new("get_rows", include_str!("get_rows.wgsl"))
            .number("count", y.desc.elements() / step)
            .number("steps", n / step)
            .number("m1", m)
            .number("m2", b2)
            .number("rows", rows)
            .number("first", first)
            .number("seen", table.desc.ne[1])
            .input("table", table)
            .strides("table", table, true)
            .input("ids", ids)
            .strides("ids", ids, false)
            .output("y", y)
            .strides("y", y, true)
            .define("STEP", step)
            .define("WRITE", write)
            .can_fail(move |id| format!("row {} of a table of {rows} rows", id as i32));
        Ok(vec![shader.items(y.desc.elements() / step, 64)?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (table, ids) = (&inputs[0], &inputs[1]);
        let mut out = RefTensor::zeros(output.ne);
        for r in 0..out.rows() {
            let batch = r / output.ne[1];
            let from = table.row(ids.data[r] as usize + batch * table.ne[1]);
            out.row_mut(r).copy_from_slice(from);
        }
        out
    }
}

/// An id as the number of a row, if there is such a row.
fn row_number(id: i64, table: &Desc) -> Result<usize> {
    match usize::try_from(id) {
        Ok(row) if row < table.ne[1] => Ok(row),
        _ => Err(Error::Kernel(format!("row {id} of a table of {} rows", table.ne[1]))),
    }
}

/// One row of a table as floats.
fn read_row(isa: Isa, table: &Input, [i1, i2, i3]: [usize; 3], out: &mut [f32]) -> Result<()> {
    match table.desc.dtype {
        DType::F32 => out.copy_from_slice(table.row3(i1, i2, i3)),
        DType::F16 => simd::f16_to_f32(isa, table.row3(i1, i2, i3), out),
        DType::BF16 => simd::bf16_to_f32(isa, table.row3(i1, i2, i3), out),
        DType::Planar(block) => quant::planar::dequantize_row(block, table.row3(i1, i2, i3), out)
            .map_err(|e| Error::Kernel(e.to_string()))?,
        DType::Packed(block) => {
            // SAFETY: the span of a packed matrix is its bytes without gaps, readable while the step runs.
            let packed = unsafe { std::slice::from_raw_parts(table.ptr(), table.desc.span()) };
            simd::unpack_row(block, table.desc.ne[0], packed, i1, out)
                .map_err(|e| Error::Kernel(e.to_string()))?;
        }
        other => {
            if let Some(block) = other.block() {
                quant::dequantize_row(block, table.row3::<u8>(i1, i2, i3), out)
                    .map_err(|e| Error::Kernel(e.to_string()))?;
            }
        }
    }
    Ok(())
}

impl Op for SetRows {
    fn name(&self) -> &'static str {
        "set_rows"
    }

    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        let [place, rows, ids] = inputs else {
            return Err(Error::shape(
                "set_rows",
                format!("a place, rows and ids, found {} inputs", inputs.len()),
            ));
        };
        let types = rows.dtype == DType::F32 && place.dtype != DType::I32
            || [rows.dtype, place.dtype] == [DType::I32; 2];
        if !types || rows.ne[0] != place.ne[0] || rows.ne[2..] != place.ne[2..] {
            return Err(Error::shape(
                "set_rows",
                format!("F32 rows (I32 for an I32 place) that fit into {place}, found {rows}"),
            ));
        }
        let repeats = |d: usize| ids.ne[d - 1] != 0 && rows.ne[d].is_multiple_of(ids.ne[d - 1]);
        let fits = ids.ne[0] == rows.ne[1] && repeats(2) && repeats(3) && ids.ne[3] == 1;
        if !ids.dtype.is_integer() || !fits {
            return Err(Error::shape(
                "set_rows",
                format!("ids I32 or I64[{}] for {rows}, found {ids}", rows.ne[1]),
            ));
        }
        Ok(*place)
    }

    fn supports(&self, inputs: &[Desc], _: &Desc) -> Result<(), String> {
        let (place, rows) = (&inputs[0], &inputs[1]);
        if place.dtype.block().is_none() && place.dtype != DType::I32 || !place.has_dense_rows() {
            return Err(format!("a place of floats, blocks or I32 with dense rows, found {place}"));
        }
        if !rows.has_dense_rows() {
            return Err(format!("dense rows, found {rows}"));
        }
        Ok(())
    }

    fn cost(&self, inputs: &[Desc], _: &Desc) -> Cost {
        let rows = &inputs[1];
        // quantizing looks for the largest number, divides and rounds
        let each = if inputs[0].dtype.is_float() { 1.0 } else { 10.0 };
        Cost { flops: rows.elements() as f64 * each, bytes: rows.span() as f64 * 1.5 }
    }

    fn kernels(&self, call: &Call<'_>) -> Vec<Kernel> {
        let (rows, ids, place) = (call.inputs[1], call.inputs[2], call.output);
        let count = rows.desc.rows();
        let parts = count.min(call.threads.max(1) * 4);
        vec![Kernel::new(parts, 1, move |items, worker| {
            let [_, m, b2, _] = rows.desc.ne;
            let write = |at: [usize; 3], to: usize| {
                // SAFETY: the row belongs to this item, as said below.
                unsafe { write_row(worker.isa, &rows, at, &place, [to, at[1], at[2]]) }
            };
            let at = |r: usize| [r % m, r / m % b2, r / m / b2];
            let number = |at: [usize; 3]| row_number(id(&ids, at), &place.desc);
            if ascending(&ids) {
                // No destination is named twice: an item writes a run of the rows.
                let run = |i: usize| i * count / parts.max(1);
                let mine = run(items.start)..run(items.end);
                let mut next = if mine.is_empty() { [0; 3] } else { at(mine.start) };
                for _ in mine {
                    write(next, number(next)?)?;
                    // a division for each number of a row would take longer than the row
                    next[0] += 1;
                    if next[0] == m {
                        next =
                            if next[1] + 1 == b2 { [0, 0, next[2] + 1] } else { [0, next[1] + 1, next[2]] };
                    }
                }
                return Ok(());
            }
            // Item p writes the destinations that leave the remainder p, in the order of the ids: a destination named
            // twice belongs to one item, and its last row wins.
            (0..count).try_for_each(|r| {
                let to = number(at(r))?;
                if items.contains(&(to % parts)) { write(at(r), to) } else { Ok(()) }
            })
        })]
    }

    fn shader(&self, call: &GpuCall<'_>) -> Result<Vec<Dispatch>, String> {
        let (x, ids, y) = (&call.inputs[1], &call.inputs[2], &call.output);
        let dtype = y.desc.dtype;
        // A block is written by one invocation.
        let (steps, write) = match dtype {
            DType::I32 => (x.desc.ne[0], "y[to + i] = x[start + i];".to_string()),
            t if t.is_float() => (x.desc.ne[0], "put_y(to + i, get_x(start + i));".to_string()),
            t => {
                let (block, words) = (t.block_len(), t.block_bytes() / 2);
                (x.desc.ne[0] / block, format!("quantize_y(start + i * {block}u, to + i * {words}u);"))
            }
        };
        let load = match ids.desc.dtype {
            DType::I64 => {
                "fn load_id(i: u32) -> u32 { let v = ids[i]; return select(v.x, 0xffffffffu, v.y != 0u); }"
            }
            _ => "fn load_id(i: u32) -> u32 { return u32(ids[i]); }",
        };
        let (first, rows) = call.window.unwrap_or((0, y.desc.ne[1]));
        let mut shader = Shader::new("set_rows", include_str!("set_rows.wgsl"))
            .number("count", x.desc.rows())
            .number("steps", steps)
            .number("m1", x.desc.ne[1])
            .number("m2", x.desc.ne[2])
            .number("m3", x.desc.ne[3])
            .number("c2", ids.desc.ne[1])
            .number("c3", ids.desc.ne[2])
            .number("rows", rows)
            .number("first", first)
            .number("seen", y.desc.ne[1])
            .input("x", x)
            .strides("x", x, true)
            .input("ids", ids)
            .strides("ids", ids, false)
            .output("y", y)
            .strides("y", y, true)
            .define("THREADS", 64)
            .define("WRITE", write)
            .define("LOAD_ID", load)
            .define("SOURCE", "fn source_y(start: u32, i: u32) -> f32 { return f32(x[start + i]); }")
            .can_fail(move |id| format!("row {} of a table of {rows} rows", id as i32));
        if dtype.is_quantized() {
            shader = shader.quantizer("y", dtype);
        }
        Ok(vec![shader.groups(x.desc.rows())?])
    }

    fn reference(&self, inputs: &[RefTensor], output: &Desc) -> RefTensor {
        let (rows, ids) = (&inputs[1], &inputs[2]);
        let mut out = inputs[0].clone();
        let [_, m, b2, _] = rows.ne;
        for r in 0..rows.rows() {
            let (i, i2, i3) = (r % m, r / m % b2, r / m / b2);
            let id = ids.at([i, i2 % ids.ne[1], i3 % ids.ne[2], 0]) as usize;
            let to = id + output.ne[1] * (i2 + output.ne[2] * i3);
            out.row_mut(to).copy_from_slice(&stored(output.dtype, rows.row(r)));
        }
        out
    }
}

/// What a type keeps of a row: numbers rounded from f32, and for blocks what the format's own quantizer stores.
fn stored(dtype: DType, row: &[f64]) -> Vec<f64> {
    let mut out = row.to_vec();
    if let Some(block) = dtype.block().filter(|_| dtype != DType::F32) {
        let floats: Vec<f32> = row.iter().map(|&x| x as f32).collect();
        let mut bytes = vec![0; dtype.row_bytes(row.len())];
        let done = quant::quantize_row(block, &floats, &mut bytes)
            .and_then(|()| quant::dequantize_row_f64(block, &bytes, &mut out));
        if done.is_err() {
            // unreachable for a row of whole blocks; NaN equals nothing
            out.fill(f64::NAN);
        }
    }
    out
}

fn id(ids: &Input, [i, i2, i3]: [usize; 3]) -> i64 {
    let repeated = |i: usize, n: usize| if i < n { i } else { i % n };
    let at = [i, repeated(i2, ids.desc.ne[1]), repeated(i3, ids.desc.ne[2]), 0];
    match ids.desc.dtype {
        DType::I64 => ids.at::<i64>(at),
        _ => i64::from(ids.at::<i32>(at)),
    }
}

/// Whether the ids of each row of ids only rise: the usual positions, and none twice.
fn ascending(ids: &Input) -> bool {
    if !ids.desc.has_dense_rows() {
        return false;
    }
    (0..ids.desc.rows()).all(|r| match ids.desc.dtype {
        DType::I64 => ids.row::<i64>(r).is_sorted_by(|a, b| a < b),
        _ => ids.row::<i32>(r).is_sorted_by(|a, b| a < b),
    })
}

/// Writes a row of floats as a row of a place, each by its indices in dimensions 1, 2, 3.
///
/// # Safety
/// The row belongs to the item being run.
unsafe fn write_row(isa: Isa, rows: &Input, from: [usize; 3], place: &Output, to: [usize; 3]) -> Result<()> {
    let [i1, i2, i3] = from;
    // SAFETY: passed on to the caller.
    unsafe {
        if place.desc.dtype == DType::I32 {
            place.row3_mut::<i32>(to).copy_from_slice(rows.row3(i1, i2, i3));
            return Ok(());
        }
        let row: &[f32] = rows.row3(i1, i2, i3);
        match place.desc.dtype {
            DType::F32 => place.row3_mut::<f32>(to).copy_from_slice(row),
            DType::F16 => simd::f32_to_f16(isa, row, place.row3_mut::<u16>(to)),
            other => {
                if let Some(block) = other.block() {
                    quant::quantize_row(block, row, place.row3_mut::<u8>(to))
                        .map_err(|e| Error::Kernel(e.to_string()))?;
                }
            }
        }
    }
    Ok(())
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = get_cases();
    cases.extend(set_cases());
    cases
}

fn get_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let ids = |ne: &[usize], rows: i64| Operand::normal(DType::I32, ne).fill(Fill::Ints(0, rows));
    let mut get = |dtype, table: Operand, ids: Operand| {
        // Floats are converted exactly. A block's scale times its code is rounded once or twice to f32.
        let rounded = dtype != DType::F32 && table.dtype.is_quantized();
        let tolerance = if rounded { Tolerance::Relative(2e-7) } else { Tolerance::Exact };
        cases.push(Case::new(GetRows, dtype, vec![table, ids], tolerance));
    };
    for dtype in DType::STORAGE.into_iter().filter(|t| t.block().is_some()) {
        let n = dtype.block_len().max(32) * 3;
        for (rows, ne) in [(1, &[1][..]), (100, &[7]), (33, &[0]), (300, &[150])] {
            get(dtype, Operand::normal(dtype, &[n, rows]), ids(ne, rows as i64));
        }
        get(dtype, Operand::normal(dtype, &[n, 9, 2, 3]), ids(&[4, 2, 3], 9));
        get(dtype, Operand::normal(dtype, &[n, 20]).slice(1, 5, 10), ids(&[12], 10));
        if let Some(block) = dtype.block().filter(|_| dtype.is_quantized()) {
            let packed = DType::Packed(block);
            get(packed, Operand::normal(packed, &[n, 37]), ids(&[50], 37));
            let planar = DType::Planar(block);
            get(planar, Operand::normal(planar, &[n, 37]), ids(&[50], 37));
            get(planar, Operand::normal(planar, &[n, 20]).slice(1, 5, 10), ids(&[12], 10));
        }
    }
    get(DType::F32, Operand::normal(DType::F32, &[0, 5]), ids(&[3], 5));
    get(DType::F32, Operand::normal(DType::F32, &[1, 5]), ids(&[3], 5));
    get(DType::F16, Operand::normal(DType::F16, &[77, 5]), ids(&[3], 5));
    get(DType::F32, Operand::normal(DType::F32, &[3, 5, 4]).permuted([0, 2, 1, 3]), ids(&[6, 5], 4));
    get(DType::F32, Operand::normal(DType::F32, &[576, 2000]), ids(&[700], 2000));
    // ids that are not neighbours
    get(DType::F32, Operand::normal(DType::F32, &[9, 8, 2]), ids(&[2, 6], 8).permuted([1, 0, 2, 3]));
    cases
}

fn set_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut set = |place: Operand, rows: Operand, ids: Operand| {
        // the reference rounds or quantizes as the type says
        cases.push(Case::in_place(SetRows, place.dtype, vec![place, rows, ids], Tolerance::Exact));
    };
    let rows = |ne: &[usize]| Operand::normal(DType::F32, ne);
    for dtype in DType::STORAGE.into_iter().filter(|t| t.block().is_some()) {
        let n = dtype.block_len().max(32) * 2;
        for id_type in [DType::I32, DType::I64] {
            let ids = |ne: &[usize], rows: i64| Operand::normal(id_type, ne).fill(Fill::Ints(0, rows));
            let different = |n: usize| Operand::normal(id_type, &[n]).fill(Fill::Shuffled);
            set(Operand::normal(dtype, &[n, 10]), rows(&[n, 1]), ids(&[1], 10));
            set(Operand::normal(dtype, &[n, 40]), rows(&[n, 40]), different(40));
            // the same rows many times
            set(Operand::normal(dtype, &[n, 5]), rows(&[n, 60]), ids(&[60], 5));
            set(Operand::normal(dtype, &[n, 5]), rows(&[n, 0]), ids(&[0], 5));
            set(Operand::normal(dtype, &[n, 8, 2, 3]), rows(&[n, 4, 2, 3]), ids(&[4, 2, 3], 8));
            set(Operand::normal(dtype, &[n, 8, 2, 4]), rows(&[n, 4, 2, 4]), ids(&[4, 1, 2], 8));
            // a part of a longer cache
            set(Operand::normal(dtype, &[n, 30]).slice(1, 3, 20), rows(&[n, 6]), ids(&[6], 20));
        }
    }
    let ids = |m, rows| Operand::normal(DType::I32, &[m]).fill(Fill::Ints(0, rows));
    set(Operand::normal(DType::F16, &[77, 9]), rows(&[80, 6]).slice(0, 2, 77), ids(6, 9));
    set(Operand::normal(DType::F16, &[256, 9]).slice(0, 64, 128), rows(&[128, 6]), ids(6, 9));
    let whole = |ne: &[usize]| Operand::normal(DType::I32, ne).fill(Fill::Ints(-9, 1 << 30));
    set(whole(&[1, 30]), whole(&[1, 7]), Operand::normal(DType::I32, &[7]).fill(Fill::Ints(0, 30)));
    set(Operand::normal(DType::BF16, &[1, 9]), rows(&[1, 6]), ids(6, 9));
    set(Operand::normal(DType::F16, &[192, 2048]), rows(&[192, 512]), ids(512, 2048));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Outcome, run_direct};
    use crate::kernel::Worker;

    #[test]
    fn all_cases_on_every_instruction_set() {
        for (case, isa) in cases().iter().flat_map(|c| Isa::available().map(move |isa| (c, isa))) {
            let outcome = run_direct(case, isa);
            assert!(matches!(outcome, Outcome::Ok { .. }), "{}: {outcome:?}: {case:?}", isa.name());
        }
    }

    /// Runs an op on 32 columns with one id and says what its kernel said.
    fn run(op: &dyn Op, first: DType, id: i64, id_type: DType) -> Result<()> {
        let table = Desc::new(first, &[32, 100])?;
        let (one, id_desc) = (Desc::new(DType::F32, &[32, 1])?, Desc::new(id_type, &[1])?);
        let (mut table_bytes, mut floats, id) = (vec![0u64; 2048], [0f32; 32], [id]);
        // SAFETY: the memories outlive the kernels and are large enough for the descriptions.
        let (operands, output, scratch) = unsafe {
            let input = |desc| Input::new(table_bytes.as_ptr().cast(), desc);
            let ids = Input::new(id.as_ptr().cast(), id_desc);
            let scratch = Output::new([0u8; 0].as_mut_ptr(), Desc::new(DType::I32, &[0])?);
            match op.name() {
                "get_rows" => {
                    (vec![input(table), ids], Output::new(floats.as_mut_ptr().cast(), one), scratch)
                }
                _ => {
                    let rows = Input::new(floats.as_ptr().cast(), one);
                    (
                        vec![input(table), rows, ids],
                        Output::new(table_bytes.as_mut_ptr().cast(), table),
                        scratch,
                    )
                }
            }
        };
        let isa = Isa::detect();
        let kernels = op.kernels(&Call { inputs: &operands, output, scratch, isa, threads: 2 });
        kernels.iter().try_for_each(|k| (k.run)(0..k.items, &mut Worker::new(isa)))
    }

    #[test]
    fn numbers_outside_are_errors() {
        for id in [100, 123, -1, i64::from(i32::MAX), i64::from(i32::MIN)] {
            let expected = format!("row {id} of a table of 100 rows");
            for dtype in [DType::F32, DType::BF16, DType::Q4_0, DType::Packed(quant::BlockType::Q4_0)] {
                assert_eq!(run(&GetRows, dtype, id, DType::I32).unwrap_err().to_string(), expected);
            }
            for (dtype, ids) in
                [(DType::F16, DType::I32), (DType::Q8_0, DType::I64), (DType::F32, DType::I64)]
            {
                assert_eq!(run(&SetRows, dtype, id, ids).unwrap_err().to_string(), expected);
            }
        }
        let expected = format!("row {} of a table of 100 rows", i64::MIN);
        assert_eq!(run(&SetRows, DType::F16, i64::MIN, DType::I64).unwrap_err().to_string(), expected);
        assert!(
            run(&GetRows, DType::F32, 99, DType::I32).is_ok()
                && run(&SetRows, DType::F32, 99, DType::I64).is_ok()
        );
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let desc = |dtype, ne: &[usize]| Desc::new(dtype, ne).unwrap();
        let (table, place) = (desc(DType::Q4_0, &[64, 9, 2]), desc(DType::F16, &[64, 9, 2]));
        assert!(GetRows.output(&[table, desc(DType::I32, &[5, 2])]).is_ok());
        assert!(GetRows.output(&[table, desc(DType::I32, &[5, 3])]).is_err());
        assert!(GetRows.output(&[table, desc(DType::I64, &[5, 2])]).is_err());
        let rows = desc(DType::F32, &[64, 5, 2]);
        assert_eq!(SetRows.output(&[place, rows, desc(DType::I64, &[5])]).unwrap(), place);
        assert!(SetRows.output(&[place, rows, desc(DType::F32, &[5])]).is_err());
        assert!(SetRows.output(&[place, rows, desc(DType::I32, &[4])]).is_err());
        assert!(SetRows.output(&[place, desc(DType::F32, &[32, 5, 2]), desc(DType::I32, &[5])]).is_err());
        let ints = desc(DType::I32, &[64, 9]);
        let out = desc(DType::F32, &[64, 5]);
        assert!(GetRows.supports(&[ints, desc(DType::I32, &[5])], &out).is_err());
    }
}
