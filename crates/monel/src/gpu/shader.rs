//! The builder of dispatches: declares operands, sizes and definitions, and writes the head of the kernel's text.

use super::{Dispatch, FaultText, Limits, MAX_IMMEDIATES, MIN_BINDINGS, Memory, Operand, Source};
use crate::quant::BlockType;
use crate::tensor::DType;
use std::fmt::Write;
use std::sync::Arc;

/// Workgroups along x; more go along y. Kernels number them with `group_of`.
pub const WIDE: u32 = 32_768;

/// A dispatch under construction.
///
/// For an operand declared as `a` the kernel's text may use:
/// - `a`: the memory, as an array of the element type (`f32`, `i32`, `vec2<u32>` for I64, `u16` for the rest);
/// - `p.a`: the index of the tensor's first element in it (of its first 16 bits for blocks);
/// - for floats and blocks `get_a(i) -> f32` (floats: any index) and `quad_a(row, q) -> vec4<f32>` (elements 4q to
///   4q + 3 of the row that begins at index `row`);
/// - for results of a float type `put_a(i, value)`.
pub struct Shader {
    name: &'static str,
    body: &'static str,
    /// Declarations of bindings and their accessors.
    head: String,
    fields: String,
    enables: Vec<&'static str>,
    full_subgroups: bool,
    parts: Vec<&'static str>,
    defines: Vec<(&'static str, String)>,
    bindings: Vec<Memory>,
    most_bindings: usize,
    immediates: Vec<u32>,
    table: Vec<u32>,
    table_at: Option<usize>,
    counters: usize,
    counters_at: Option<usize>,
    fault: Option<FaultText>,
    wrong: Option<String>,
}

impl Shader {
    /// A dispatch of the kernel in `body` (a `.wgsl` file without declarations of memory).
    pub fn new(name: &'static str, body: &'static str) -> Shader {
        Shader {
            name,
            body,
            head: String::new(),
            fields: String::new(),
            enables: Vec::new(),
            full_subgroups: false,
            parts: Vec::new(),
            defines: Vec::new(),
            bindings: Vec::new(),
            most_bindings: MIN_BINDINGS,
            immediates: Vec::new(),
            table: Vec::new(),
            table_at: None,
            counters: 0,
            counters_at: None,
            fault: None,
            wrong: None,
        }
    }

    /// Adds a part of the library before the kernel: [`crate::gpu`]'s `.wgsl` files.
    pub fn part(mut self, text: &'static str) -> Shader {
        if !self.parts.contains(&text) {
            self.parts.push(text);
        }
        self
    }

    /// Sums and maxima over the workgroup: `sum_all(x, sg, nsg, lane)` and `max_all`; defines `$THREADS`.
    pub fn reductions(self, threads: u32) -> Shader {
        self.define("THREADS", threads).part(include_str!("reduce.wgsl"))
    }

    /// Lets the kernel use an extension of WGSL: `f16` (only where `Limits::f16`), and `wgpu_cooperative_matrix` (only
    /// where there is `Limits::matrix`).
    pub fn enable(mut self, name: &'static str) -> Shader {
        if !self.enables.contains(&name) {
            self.enables.push(name);
        }
        self
    }

    /// Demands that every subgroup is full and has `Limits::subgroup_fixed` invocations; for devices that have it. The
    /// number of invocations in a workgroup has to be a multiple of that.
    pub fn full_subgroups(mut self) -> Shader {
        self.full_subgroups = true;
        self
    }

    /// As many storage buffers as the device at hand has; otherwise as many as every device has.
    pub fn all_bindings(mut self, limits: &Limits) -> Shader {
        self.most_bindings = limits.bindings as usize;
        self
    }

    /// An operand that is read.
    pub fn input(mut self, name: &'static str, operand: &Operand) -> Shader {
        self = self.accessors(name, operand.desc.dtype, operand.desc.ne[0] / 32, false);
        self.bind(name, "read", element(operand.desc.dtype), operand)
    }

    /// An operand that is written (and may be read).
    pub fn output(mut self, name: &'static str, operand: &Operand) -> Shader {
        self = self.accessors(name, operand.desc.dtype, operand.desc.ne[0] / 32, true);
        self.bind(name, "read_write", element(operand.desc.dtype), operand)
    }

    /// An operand under another element type, without accessors.
    pub fn raw(self, name: &'static str, access: &str, element: &'static str, operand: &Operand) -> Shader {
        self.bind(name, access, element, operand)
    }

    /// An operand under another element type through which workgroups of the dispatch see what others wrote, where atomics
    /// and `storageBarrier` put one before the other. Not in kernels with matrices, whose memory model has no such word.
    pub fn coherent(mut self, name: &'static str, element: &'static str, operand: &Operand) -> Shader {
        if self.enables.contains(&"wgpu_cooperative_matrix") {
            self.fail(format!("{name} without matrices"));
        }
        self = self.bind(name, "read_write", element, operand);
        // The declaration is the last line.
        let at = self.head.rfind("var<storage").unwrap_or(self.head.len());
        self.head.insert_str(at, "@coherent ");
        self
    }

    /// `words` counters, `counters[p.counters + i]`, an array of atomic u32: zero when the kernel starts, and the kernel has
    /// to leave zeros, also where it fails.
    pub fn counters(mut self, words: usize) -> Shader {
        self.counters = words;
        self.counters_at = Some(self.immediates.len());
        self.declare("counters", "read_write", "atomic<u32>", Memory::Counters).word("counters", "u32", 0)
    }

    /// Constants of this dispatch, read as `name[p.name + i]`, an array of u32.
    pub fn table(mut self, name: &'static str, words: Vec<u32>) -> Shader {
        self.table = words;
        self.table_at = Some(self.immediates.len());
        self.declare(name, "read", "u32", Memory::Table).word(name, "u32", 0)
    }

    /// Byte strides of a tensor as elements: `p.NAME1` to `p.NAME3`, and `p.NAME0` where `dense` is false.
    pub fn strides(mut self, name: &'static str, operand: &Operand, dense: bool) -> Shader {
        let unit = unit(operand.desc.dtype);
        for d in usize::from(dense)..4 {
            let bytes = operand.desc.nb[d];
            if !bytes.is_multiple_of(unit) {
                self.fail(format!("strides of {} in whole elements, found {:?}", name, operand.desc.nb));
            }
            self = self.number(&format!("{name}{d}"), bytes / unit);
        }
        self
    }

    /// Byte strides of an operand that is read in vectors of sixteen bytes ([`Operand::in_vectors`]) as vectors: `p.NAME1`
    /// to `p.NAME3`.
    pub fn vector_strides(self, name: &str, operand: &Operand) -> Shader {
        (1..4).fold(self, |s, d| s.number(&format!("{name}{d}"), operand.desc.nb[d] / 16))
    }

    /// Dimensions as `p.NAME0` to `p.NAME3` with the given name before the number.
    pub fn dims(mut self, name: &'static str, ne: [usize; 4]) -> Shader {
        for (d, n) in ne.into_iter().enumerate() {
            self = self.number(&format!("{name}{d}"), n);
        }
        self
    }

    /// A number, `p.NAME`.
    pub fn number(mut self, name: &str, value: usize) -> Shader {
        match u32::try_from(value) {
            Ok(value) => self.word(name, "u32", value),
            Err(_) => {
                self.fail(format!("{name} below 2^32, found {value}"));
                self
            }
        }
    }

    /// A float, `p.NAME`.
    pub fn float(self, name: &str, value: f32) -> Shader {
        self.word(name, "f32", value.to_bits())
    }

    /// Text in place of `$NAME`.
    pub fn define(mut self, name: &'static str, value: impl ToString) -> Shader {
        self.defines.push((name, value.to_string()));
        self
    }

    /// Lets the kernel call `fault(value)`, which makes the submission fail with `text(value)`.
    pub fn can_fail(mut self, text: impl Fn(u32) -> String + Send + Sync + 'static) -> Shader {
        self.fault = Some(Arc::new(text));
        self
    }

    /// The dispatch of `groups` workgroups along one dimension, numbered by `group_of(wg)`.
    pub fn groups(self, groups: usize) -> Result<Dispatch, String> {
        let x = groups.min(WIDE as usize);
        let y = groups.div_ceil(WIDE as usize);
        match u32::try_from(y) {
            Ok(y) if y <= 65_535 => self.finish([x as u32, y, 1]),
            _ => Err(format!("{}: {groups} workgroups are too many", self.name)),
        }
    }

    /// The dispatch of one invocation per item, `threads` to a workgroup (`$THREADS`), numbered by `item_of(wg, li)`.
    pub fn items(self, items: usize, threads: u32) -> Result<Dispatch, String> {
        self.define("THREADS", threads).groups(items.div_ceil(threads as usize))
    }

    /// The dispatch with workgroups as they are.
    pub fn finish(mut self, groups: [u32; 3]) -> Result<Dispatch, String> {
        if self.fault.is_some() {
            self = self.declare("faults", "read_write", "atomic<u32>", Memory::Faults);
            self =
                self.word("fault_at", "u32", 0).word("fault_id", "u32", 0).part(include_str!("fault.wgsl"));
        }
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        if self.bindings.len() > self.most_bindings || self.immediates.len() > MAX_IMMEDIATES {
            return Err(format!(
                "{}: at most {} bindings and {MAX_IMMEDIATES} immediates, found {} and {}",
                self.name,
                self.most_bindings,
                self.bindings.len(),
                self.immediates.len()
            ));
        }
        // `enable` comes first in a WGSL file.
        let mut head = String::from("enable wgpu_int16;\n");
        for name in &self.enables {
            let _ = writeln!(head, "enable {name};");
        }
        if !self.immediates.is_empty() {
            let _ = write!(head, "struct P {{ {} }}\nvar<immediate> p: P;\n", self.fields);
        }
        head.push_str(include_str!("numbers.wgsl"));
        head.push_str(&self.head);
        let mut parts = self.parts;
        parts.push(self.body);
        Ok(Dispatch {
            source: Source::new(self.name, head, parts, self.defines, self.full_subgroups),
            groups,
            bindings: self.bindings,
            immediates: self.immediates,
            table: self.table,
            table_at: self.table_at,
            counters: self.counters,
            counters_at: self.counters_at,
            fault: self.fault,
            beside: false,
        })
    }

    /// Generated text of this specialisation.
    pub(crate) fn text(mut self, text: &str) -> Shader {
        self.head.push_str(text);
        self
    }

    /// The dispatch cannot be made.
    pub(super) fn refuse(mut self, why: String) -> Shader {
        self.fail(why);
        self
    }

    fn bind(mut self, name: &'static str, access: &str, element: &'static str, operand: &Operand) -> Shader {
        let bytes = size_of_element(element);
        if !operand.offset.is_multiple_of(bytes) {
            self.fail(format!("{name} aligned to {bytes} bytes, found offset {}", operand.offset));
        }
        self = self.declare(name, access, element, operand.memory);
        self.number(name, (operand.offset / bytes) as usize)
    }

    fn declare(mut self, name: &str, access: &str, element: &str, memory: Memory) -> Shader {
        let n = self.bindings.len();
        self.bindings.push(memory);
        let _ =
            writeln!(self.head, "@group(0) @binding({n}) var<storage, {access}> {name}: array<{element}>;");
        self
    }

    fn accessors(mut self, name: &str, dtype: DType, groups: usize, write: bool) -> Shader {
        let Some(text) = decode(dtype) else { return self };
        self.head.push_str(&text.replace("NAME", name));
        if let DType::Planar(_) = dtype {
            self = self.number(&format!("{name}_groups"), groups);
        }
        if write {
            let put = match dtype {
                DType::F32 => "fn put_NAME(i: u32, v: f32) { NAME[i] = v; }\n",
                DType::F16 => "fn put_NAME(i: u32, v: f32) { NAME[i] = u16(f16_bits(v)); }\n",
                DType::BF16 => "fn put_NAME(i: u32, v: f32) { NAME[i] = u16(bf16_bits(v)); }\n",
                _ => "",
            };
            self.head.push_str(&put.replace("NAME", name));
        }
        self
    }

    fn word(mut self, name: &str, ty: &str, value: u32) -> Shader {
        let comma = if self.fields.is_empty() { "" } else { ", " };
        let _ = write!(self.fields, "{comma}{name}: {ty}");
        self.immediates.push(value);
        self
    }

    fn fail(&mut self, why: String) {
        self.wrong.get_or_insert(format!("{}: {why}", self.name));
    }
}

/// The element type of a tensor's memory in WGSL: 16 bits for all that is not made of whole words.
fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
        DType::I64 => "vec2<u32>",
        DType::Planar(_) | DType::Q8P => "u32",
        _ => "u16",
    }
}

/// Bytes of what an index counts.
fn unit(dtype: DType) -> usize {
    size_of_element(element(dtype)) as usize
}

fn size_of_element(element: &str) -> u64 {
    match element {
        "u16" | "i16" => 2,
        "vec2<u32>" | "vec2<f32>" => 8,
        "vec4<u32>" | "vec4<f32>" => 16,
        _ => 4,
    }
}

/// Accessors of a type's values.
fn decode(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => include_str!("decode/f32.wgsl"),
        DType::F16 => include_str!("decode/f16.wgsl"),
        DType::BF16 => include_str!("decode/bf16.wgsl"),
        DType::Q4_0 => include_str!("decode/q4_0.wgsl"),
        DType::Q4_1 => include_str!("decode/q4_1.wgsl"),
        DType::Q5_0 => include_str!("decode/q5_0.wgsl"),
        DType::Q5_1 => include_str!("decode/q5_1.wgsl"),
        DType::Q8_0 => include_str!("decode/q8_0.wgsl"),
        DType::Q4_K => include_str!("decode/q4_k.wgsl"),
        DType::Q5_K => include_str!("decode/q5_k.wgsl"),
        DType::Q6_K => include_str!("decode/q6_k.wgsl"),
        DType::Planar(BlockType::Q4_0) => {
            concat!(include_str!("decode/planar_half.wgsl"), include_str!("decode/planar_q4_0.wgsl"))
        }
        DType::Planar(BlockType::Q4_1) => include_str!("decode/planar_q4_1.wgsl"),
        DType::Planar(BlockType::Q5_0) => {
            concat!(include_str!("decode/planar_half.wgsl"), include_str!("decode/planar_q5_0.wgsl"))
        }
        DType::Planar(BlockType::Q5_1) => include_str!("decode/planar_q5_1.wgsl"),
        DType::Planar(BlockType::Q8_0) => {
            concat!(include_str!("decode/planar_half.wgsl"), include_str!("decode/planar_q8_0.wgsl"))
        }
        DType::Planar(BlockType::Q4_K) => {
            concat!(include_str!("decode/planar_heads.wgsl"), include_str!("decode/planar_q4_k.wgsl"))
        }
        DType::Planar(BlockType::Q5_K) => {
            concat!(include_str!("decode/planar_heads.wgsl"), include_str!("decode/planar_q5_k.wgsl"))
        }
        DType::Planar(BlockType::Q6_K) => include_str!("decode/planar_q6_k.wgsl"),
        _ => return None,
    })
}
