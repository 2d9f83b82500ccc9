//! Writes small valid files into a directory, for a fuzzer to start from.
//!
//! `cargo run -p monel-gguf --example seeds -- DIRECTORY`

use monel_gguf::{Array, GgmlType, GgufWriter, StringArray};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("give a directory")?;
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory)?;
    let mut version_2 = language_model()?;
    version_2[4] = 2;
    let seeds = [
        ("empty", GgufWriter::new().start(Vec::new())?.finish()?),
        ("every_value", every_value()?),
        ("every_type", every_type()?),
        ("language_model", language_model()?),
        ("version_2", version_2),
        ("split_first", split_part(0)?),
        ("split_second", split_part(1)?),
    ];
    for (name, bytes) in seeds {
        std::fs::write(directory.join(name), bytes)?;
    }
    Ok(())
}

/// A metadata entry of every type, and an array of every type.
fn every_value() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut file = GgufWriter::new();
    file.set("u8", 1u8)?.set("i8", -1i8)?.set("u16", 2u16)?.set("i16", -2i16)?.set("u32", 3u32)?;
    file.set("i32", -3i32)?.set("u64", 4u64)?.set("i64", -4i64)?.set("f32", 0.5f32)?.set("f64", 0.25f64)?;
    file.set("bool", true)?.set("string", "text")?;
    file.set("u8s", vec![1u8])?.set("i8s", vec![1i8])?.set("u16s", vec![1u16])?.set("i16s", vec![1i16])?;
    file.set("u32s", vec![1u32])?
        .set("i32s", vec![1i32])?
        .set("u64s", vec![1u64])?
        .set("i64s", vec![1i64])?;
    file.set("f32s", vec![1f32])?.set("f64s", vec![1f64])?.set("bools", vec![true, false])?;
    file.set("strings", strings(&["a", "", "bc"]))?;
    file.set(
        "arrays",
        Array::Array(vec![Array::U8(vec![1]), Array::Array(vec![Array::String(strings(&["x"]))])]),
    )?;
    Ok(file.start(Vec::new())?.finish()?)
}

/// One block of every tensor type.
fn every_type() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut file = GgufWriter::new();
    file.set("general.alignment", 8u32)?;
    for ty in GgmlType::ALL {
        file.tensor(ty.name(), *ty, &[ty.block_len()])?;
    }
    let mut data = file.start(Vec::new())?;
    for ty in GgmlType::ALL {
        data.tensor(ty.name(), &vec![0; ty.block_bytes() as usize])?;
    }
    Ok(data.finish()?)
}

/// The keys and tensors of a language model, tiny.
fn language_model() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut file = GgufWriter::new();
    file.set("general.architecture", "llama")?.set("llama.block_count", 1u32)?;
    file.set("llama.rope.freq_base", 10000f32)?.set("tokenizer.ggml.tokens", strings(&["<s>", "a", "b"]))?;
    file.set("tokenizer.ggml.scores", vec![0f32, -1.0, -2.0])?;
    file.tensor("token_embd.weight", GgmlType::Q8_0, &[32, 3])?;
    file.tensor("blk.0.attn_norm.weight", GgmlType::F32, &[32])?;
    file.tensor("blk.0.ffn_up_exps.weight", GgmlType::F16, &[4, 2, 2])?;
    let mut data = file.start(Vec::new())?;
    data.tensor("token_embd.weight", &[1; 102])?;
    data.tensor("blk.0.attn_norm.weight", &[2; 128])?;
    data.tensor("blk.0.ffn_up_exps.weight", &[3; 32])?;
    Ok(data.finish()?)
}

fn split_part(number: u16) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut file = GgufWriter::new();
    file.set("split.no", number)?.set("split.count", 2u16)?.set("split.tensors.count", 2i32)?;
    let name = format!("part{number}");
    file.tensor(&name, GgmlType::I8, &[3])?;
    let mut data = file.start(Vec::new())?;
    data.tensor(&name, &[7; 3])?;
    Ok(data.finish()?)
}

fn strings(texts: &[&str]) -> StringArray {
    texts.iter().collect()
}
