//! WGSL to SPIR-V in the process, by naga, and three passes over what it writes.
//!
//! naga declares 16-bit uniform buffers with every 16-bit type ([`strip_uniform`]), puts a stride on every array, which Vulkan forbids on arrays that do not lie in buffers ([`strip_strides`]), and
//! types a cooperative matrix after the memory it is loaded from, although memory declared as words may hold f16
//! ([`retype_matrices`]). The passes look at instruction words only and leave everything else as it is.

use naga::back::{PipelineConstants, pipeline_constants, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use std::collections::{HashMap, HashSet};

/// What the device takes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The version of SPIR-V.
    pub version: (u8, u8),
    /// 8-bit integers; without them bytes are unpacked by shifts.
    pub int8: bool,
    /// The instruction for dot products of packed bytes; without it they are written out.
    pub dot: bool,
    /// Invocations of a workgroup, at most.
    pub invocations: u32,
}

#[cfg(test)]
impl Target {
    /// A device that has everything.
    pub const LARGE: Target = Target { version: (1, 6), int8: true, dot: true, invocations: 1024 };
    /// The same with the smallest workgroups that a device may have.
    pub const NARROW: Target = Target { invocations: 256, ..Target::LARGE };
}

/// Compiles a kernel. The error shows the place in the text.
pub fn compile(text: &str, target: Target) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .subgroup_stages(ShaderStages::all())
        .subgroup_operations(SubgroupOperationSet::all())
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    let entry = (naga::ShaderStage::Compute, "main");
    let (module, info) =
        pipeline_constants::process_overrides(&module, &info, Some(entry), &PipelineConstants::default())
            .map_err(|e| e.to_string())?;
    let size =
        module.entry_points.iter().map(|e| e.workgroup_size.iter().product::<u32>()).max().unwrap_or(0);
    if size > target.invocations {
        return Err(format!("workgroups of at most {} invocations, found {size}", target.invocations));
    }
    // Kernels stay inside their operands, which are inside their blocks; checks in the kernels cost time, and clamping an
    // index would hide a fault.
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        lang_version: target.version,
        capabilities: Some(capabilities(target)),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        use_storage_input_output_16: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: "main".into() };
    let words = spv::write_vec(&module, &info, &options, Some(&pipeline)).map_err(|e| e.to_string())?;
    Ok(retype_matrices(&strip_strides(&strip_uniform(&words))))
}

/// What kernels may declare. What the device lacks beyond this is kept out by the ops, which know the limits.
fn capabilities(target: Target) -> naga::FastHashSet<spv::Capability> {
    use spv::Capability as C;
    let mut set: naga::FastHashSet<C> = [
        C::Shader,
        C::Int16,
        C::Int64,
        C::Float16,
        C::StorageBuffer16BitAccess,
        C::UniformAndStorageBuffer16BitAccess,
        C::GroupNonUniform,
        C::GroupNonUniformVote,
        C::GroupNonUniformArithmetic,
        C::GroupNonUniformBallot,
        C::GroupNonUniformShuffle,
        C::GroupNonUniformShuffleRelative,
        C::GroupNonUniformQuad,
        C::SubgroupBallotKHR,
        C::CooperativeMatrixKHR,
        C::VulkanMemoryModel,
        C::VulkanMemoryModelDeviceScope,
    ]
    .into_iter()
    .collect();
    if target.int8 {
        set.insert(C::Int8);
    }
    if target.dot {
        set.extend([C::DotProduct, C::DotProductInput4x8BitPacked]);
    }
    set
}

/// Words of a module's head.
const HEAD: usize = 5;

// Instructions that the passes look at.
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_ARRAY: u32 = 28;
const OP_TYPE_RUNTIME_ARRAY: u32 = 29;
const OP_TYPE_STRUCT: u32 = 30;
const OP_TYPE_POINTER: u32 = 32;
const OP_FUNCTION: u32 = 54;
const OP_VARIABLE: u32 = 59;
const OP_LOAD: u32 = 61;
const OP_DECORATE: u32 = 71;
const OP_TYPE_MATRIX: u32 = 4456;
const OP_MATRIX_LOAD: u32 = 4457;
const OP_MATRIX_MUL_ADD: u32 = 4459;
const ARRAY_STRIDE: u32 = 6;
const UNIFORM_16_BIT: u32 = 4434;
/// Storage classes with a layout: uniform, push constant, storage buffer.
const LAID_OUT: [u32; 3] = [2, 9, 12];

/// The instructions of a module as (opcode, words).
fn instructions(words: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
    let mut at = HEAD;
    std::iter::from_fn(move || {
        let first = *words.get(at)?;
        let length = (first >> 16).max(1) as usize;
        let instruction = words.get(at..at + length)?;
        at += length;
        Some((first & 0xffff, instruction))
    })
}

/// Takes away that 16-bit uniform buffers are declared: kernels have none, and not every device does.
fn strip_uniform(words: &[u32]) -> Vec<u32> {
    let mut out = words[..HEAD].to_vec();
    for (op, w) in instructions(words) {
        if op != OP_CAPABILITY || w[1..] != [UNIFORM_16_BIT] {
            out.extend(w);
        }
    }
    out
}

/// Takes the stride off arrays that lie only in workgroup, function or private memory.
fn strip_strides(words: &[u32]) -> Vec<u32> {
    let mut arrays = HashSet::new();
    let mut laid_out = HashSet::new();
    for (op, w) in instructions(words) {
        match (op, w) {
            (OP_TYPE_ARRAY, [_, id, ..]) => {
                arrays.insert(*id);
            }
            (OP_TYPE_STRUCT, [_, _, members @ ..]) => laid_out.extend(members),
            (OP_TYPE_RUNTIME_ARRAY, [_, _, element, ..]) => {
                laid_out.insert(*element);
            }
            (OP_TYPE_POINTER, [_, _, class, pointee, ..]) if LAID_OUT.contains(class) => {
                laid_out.insert(*pointee);
            }
            _ => {}
        }
    }
    let mut out = words[..HEAD].to_vec();
    for (op, w) in instructions(words) {
        let superfluous = op == OP_DECORATE
            && matches!(w, [_, id, ARRAY_STRIDE, ..] if arrays.contains(id) && !laid_out.contains(id));
        if !superfluous {
            out.extend(w);
        }
    }
    out
}

/// Turns matrices of u32 into those of f16 with the same shape and use, where the module has such.
fn retype_matrices(words: &[u32]) -> Vec<u32> {
    let (mut half, mut word) = (None, None);
    let mut matrices: Vec<&[u32]> = Vec::new();
    for (op, w) in instructions(words) {
        match (op, w) {
            (OP_TYPE_FLOAT, [_, id, 16, ..]) => half = Some(*id),
            (OP_TYPE_INT, [_, id, 32, 0, ..]) => word = Some(*id),
            (OP_TYPE_MATRIX, [_, rest @ ..]) => matrices.push(rest),
            _ => {}
        }
    }
    let (Some(half), Some(word)) = (half, word) else { return words.to_vec() };
    let mut replace = HashMap::new();
    for m in matrices.iter().filter(|m| m[1] == word) {
        if let Some(same) = matrices.iter().find(|h| h[1] == half && h[2..] == m[2..]) {
            replace.insert(m[0], same[0]);
        }
    }
    let mut out = words[..HEAD].to_vec();
    for (op, w) in instructions(words) {
        if op == OP_TYPE_MATRIX && replace.contains_key(&w[1]) {
            continue;
        }
        let from = out.len();
        out.extend(w);
        // The type is one of the first operands of everything that makes or names such a matrix.
        let typed = [OP_MATRIX_LOAD, OP_MATRIX_MUL_ADD, OP_LOAD, OP_VARIABLE, OP_TYPE_POINTER, OP_FUNCTION];
        if typed.contains(&op) {
            for word in &mut out[from + 1..from + w.len().min(4)] {
                *word = *replace.get(word).unwrap_or(word);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target::LARGE;

    #[test]
    fn what_a_device_lacks_is_written_out() {
        let text = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1)
            fn main() { x[0] = bitcast<u32>(dot4I8Packed(x[1], x[2])) + bitcast<u32>(unpack4xI8(x[3]).y); }";
        // Int8, DotProductInput4x8BitPacked
        let declared = |target| {
            let words = compile(text, target).unwrap();
            let all = instructions(&words).filter(|(op, _)| *op == OP_CAPABILITY).map(|(_, w)| w[1]);
            all.filter(|c| [39, 6018].contains(c)).count()
        };
        assert_eq!(declared(TARGET), 2);
        assert_eq!(declared(Target { version: (1, 5), ..TARGET }), 2);
        assert_eq!(declared(Target { int8: false, ..TARGET }), 1);
        assert_eq!(declared(Target { dot: false, int8: false, ..TARGET }), 0);
    }

    #[test]
    fn a_kernel_becomes_a_module_without_stray_strides() {
        let text = "enable wgpu_int16;
            var<immediate> n: u32;
            var<workgroup> part: array<f32, 32>;
            @group(0) @binding(0) var<storage, read_write> x: array<u16>;
            @compute @workgroup_size(64)
            fn main(@builtin(local_invocation_index) i: u32) {
              part[i % 32u] = f32(x[i]);
              workgroupBarrier();
              if i < n { x[i] = u16(part[i % 32u]); }
            }";
        let words = compile(text, TARGET).unwrap();
        assert_eq!(words[0], 0x0723_0203, "SPIR-V's magic number");
        // The array in the buffer keeps its stride of 2, the one in workgroup memory has none.
        let strides: Vec<u32> = instructions(&words)
            .filter(|(op, w)| *op == OP_DECORATE && w[2] == ARRAY_STRIDE)
            .map(|(_, w)| w[3])
            .collect();
        assert_eq!(strides, [2]);
        let uniform = |(op, w): (u32, &[u32])| op == OP_CAPABILITY && w[1] == UNIFORM_16_BIT;
        assert!(!instructions(&words).any(uniform));
    }

    /// What `gpu::Shader::coherent` and `counters` rely on: workgroups see each other's writes.
    #[test]
    fn coherent_memory_barriers_and_counters_reach_the_whole_device() {
        let text = "@group(0) @binding(0) @coherent var<storage, read_write> x: array<vec4<f32>>;
            @group(0) @binding(1) var<storage, read_write> n: array<atomic<u32>>;
            @compute @workgroup_size(32)
            fn main(@builtin(local_invocation_index) i: u32) {
              x[i] = vec4<f32>(1.0);
              storageBarrier();
              if i == 0u && atomicAdd(&n[0], 1u) == 7u { atomicStore(&n[0], 0u); }
            }";
        let words = compile(text, TARGET).unwrap();
        let all: Vec<(u32, &[u32])> = instructions(&words).collect();
        let of = |op| all.iter().filter(move |i| i.0 == op).map(|i| i.1);
        const COHERENT: u32 = 23;
        let variable = of(OP_DECORATE).find(|w| w[2..] == [COHERENT]).unwrap()[1];
        assert!(of(OP_VARIABLE).any(|w| w[2] == variable));
        // Without the memory model of Vulkan, which has no such decoration.
        assert!(of(OP_CAPABILITY).all(|w| w[1] != spv::Capability::VulkanMemoryModel as u32));
        const OP_CONSTANT: u32 = 43;
        let (barrier, atomic_store, atomic_add) = (224, 228, 234);
        let value = |id: u32| of(OP_CONSTANT).find(|w| w[2] == id).unwrap()[3];
        // Scopes: 1 the device, 2 the workgroup. Semantics: acquire and release (8), of buffers (64).
        let barriers: Vec<_> = of(barrier).map(|w| [value(w[1]), value(w[2]), value(w[3])]).collect();
        assert_eq!(barriers, [[2, 1, 8 | 64]]);
        assert_eq!(of(atomic_add).map(|w| value(w[4])).collect::<Vec<_>>(), [1]);
        assert_eq!(of(atomic_store).map(|w| value(w[2])).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn errors_show_the_place() {
        let error = compile("fn main() { let x = y; }", TARGET).unwrap_err();
        assert!(error.contains('y') && error.contains("wgsl:1"), "{error}");
    }

    #[test]
    fn matrices_loaded_from_words_are_retyped() {
        let inst = |op: u32, w: &[u32]| [&[(w.len() as u32 + 1) << 16 | op], w].concat();
        let mut words = vec![0x0723_0203, 0, 0, 99, 0];
        words.extend(inst(OP_TYPE_FLOAT, &[1, 16]));
        words.extend(inst(OP_TYPE_INT, &[2, 32, 0]));
        words.extend(inst(OP_TYPE_MATRIX, &[3, 1, 7, 8, 9, 10]));
        words.extend(inst(OP_TYPE_MATRIX, &[4, 2, 7, 8, 9, 10]));
        words.extend(inst(OP_MATRIX_LOAD, &[4, 20, 21, 22]));
        let out = retype_matrices(&words);
        let loads: Vec<&[u32]> =
            instructions(&out).filter(|(op, _)| *op == OP_MATRIX_LOAD).map(|(_, w)| w).collect();
        assert_eq!(loads[0][1], 3);
        assert_eq!(instructions(&out).filter(|(op, _)| *op == OP_TYPE_MATRIX).count(), 1);
    }
}
