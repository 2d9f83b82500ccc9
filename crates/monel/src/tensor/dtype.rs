//! Element types of tensors.
//!
//! The storage types are GGUF's, each under its own name, so a file's bytes are used as they are. More exist only
//! inside the engine: a weight matrix rearranged once for the matrix kernels (`Packed` on CPUs, `Planar` on GPUs), and
//! rows of activations quantized to eight bits (`Q8A`, `Q8P`). All are ordinary types: an op says which types it takes,
//! and a copy converts.

use crate::quant::BlockType;
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum DType {
    F32,
    F16,
    BF16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
    /// A quantized matrix in tiles of sixteen rows (see `device::software::simd`); two dimensions, rows padded to sixteen.
    Packed(BlockType),
    /// Rows quantized to eight bits in blocks of 32 with f32 scales and sums: the right-hand side of integer products.
    Q8A,
    /// A quantized matrix whose rows lie in planes (see `quant::planar`), without loss.
    Planar(BlockType),
    /// Rows quantized to eight bits in blocks of 32 for GPUs: all codes of a row, then an f32 scale and d times the sum
    /// of the codes for each block, up to a multiple of 16 bytes.
    Q8P,
}

impl DType {
    /// Every storage type, in the order tables show them.
    pub const STORAGE: [DType; 13] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
    ];

    /// The block format of a float or quantized type, `None` for integers and engine types.
    pub fn block(self) -> Option<BlockType> {
        Some(match self {
            DType::F32 => BlockType::F32,
            DType::F16 => BlockType::F16,
            DType::BF16 => BlockType::BF16,
            DType::Q4_0 => BlockType::Q4_0,
            DType::Q4_1 => BlockType::Q4_1,
            DType::Q5_0 => BlockType::Q5_0,
            DType::Q5_1 => BlockType::Q5_1,
            DType::Q8_0 => BlockType::Q8_0,
            DType::Q4_K => BlockType::Q4_K,
            DType::Q5_K => BlockType::Q5_K,
            DType::Q6_K => BlockType::Q6_K,
            _ => return None,
        })
    }

    /// The storage type of a block format.
    pub fn of(block: BlockType) -> DType {
        match block {
            BlockType::F32 => DType::F32,
            BlockType::F16 => DType::F16,
            BlockType::BF16 => DType::BF16,
            BlockType::Q4_0 => DType::Q4_0,
            BlockType::Q4_1 => DType::Q4_1,
            BlockType::Q5_0 => DType::Q5_0,
            BlockType::Q5_1 => DType::Q5_1,
            BlockType::Q8_0 => DType::Q8_0,
            BlockType::Q4_K => DType::Q4_K,
            BlockType::Q5_K => DType::Q5_K,
            BlockType::Q6_K => DType::Q6_K,
        }
    }

    /// Elements in one block: rows are a whole number of blocks.
    pub fn block_len(self) -> usize {
        match self {
            DType::Q8A | DType::Q8P => 32,
            DType::Packed(b) | DType::Planar(b) => DType::of(b).block_len(),
            DType::I32 | DType::I64 => 1,
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
        }
    }

    /// Bytes of one block. For the engine's own types rows are laid out differently: use [`DType::row_bytes`].
    pub fn block_bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::I64 => 8,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::Q4_K => 144,
            DType::Q5_K => 176,
            DType::Q6_K => 210,
            DType::Q8A => crate::device::software::simd::act_row_bytes(32),
            DType::Packed(b) => crate::device::software::simd::packed_bytes(b, self.block_len(), 16) / 16,
            DType::Planar(b) => b.block_bytes(),
            DType::Q8P => 40,
        }
    }

    /// Bytes of a row of `elements`, which is a whole number of blocks. For `Packed` it is a sixteenth of a tile.
    pub fn row_bytes(self, elements: usize) -> usize {
        match self {
            DType::Q8A => crate::device::software::simd::act_row_bytes(elements),
            DType::Packed(b) => crate::device::software::simd::packed_bytes(b, elements, 16) / 16,
            DType::Planar(b) => crate::quant::planar::row_bytes(b, elements),
            DType::Q8P => (elements / 32 * 40).next_multiple_of(16),
            _ => elements / self.block_len() * self.block_bytes(),
        }
    }

    /// Whether elements come in blocks that share a scale.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether rows of the type are whole: what a row's bytes mean depends on its length, so it cannot be cut.
    pub fn has_whole_rows(self) -> bool {
        matches!(self, DType::Packed(_) | DType::Planar(_) | DType::Q8A | DType::Q8P)
    }

    /// Whether the type holds real numbers one by one (F32, F16, BF16).
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether the type holds integers.
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// Parses a type by its name, ignoring case: `q4_k`, `F16`.
    pub fn parse(name: &str) -> Option<DType> {
        DType::STORAGE.into_iter().find(|t| t.to_string().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::I32 => "I32",
            DType::I64 => "I64",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
            DType::Q8A => "Q8A",
            DType::Q8P => "Q8P",
            DType::Packed(b) => return write!(f, "{}:r16", DType::of(*b)),
            DType::Planar(b) => return write!(f, "{}:planar", DType::of(*b)),
        };
        f.pad(name)
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
