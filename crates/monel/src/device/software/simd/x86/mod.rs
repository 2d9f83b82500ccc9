//! x86-64: AVX2 (with FMA and F16C, and with AVX-VNNI) and AVX-512 (with and without VNNI, and with AMX beside it).

pub(super) mod avx2;
pub(super) mod avx512;
mod lanes256;
mod lanes512;
mod tiles;
mod word_tiles;
mod words;

pub(super) use lanes256::F32x8;
pub(super) use lanes512::F32x16;
pub(in super::super) use tiles::Tiles;
pub(super) use tiles::granted;
pub(super) use word_tiles::{product as tile_product, rows_of as tile_rows};
