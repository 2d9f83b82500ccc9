//! What the software device makes of weights and graphs: tiles of sixteen rows, and integer products.

use crate::error::Result;
use crate::graph::Graph;
use crate::tensor::DType;

/// Two-dimensional quantized weights are kept in tiles of sixteen rows.
pub fn weight_type(dtype: DType, ne: [usize; 4]) -> DType {
    match dtype.block() {
        Some(block) if dtype.is_quantized() && ne[2] == 1 && ne[3] == 1 => DType::Packed(block),
        _ => dtype,
    }
}

/// The graph with quantizing made explicit, or `None` if there is nothing to change.
pub fn lower(graph: &Graph) -> Result<Option<Graph>> {
    crate::device::lower::lower(graph, |weights, x| {
        (weights.dtype.is_quantized() && x.dtype == DType::F32).then_some(DType::Q8A)
    })
}
