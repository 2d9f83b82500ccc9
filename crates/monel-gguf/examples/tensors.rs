//! Opens a model, says how long that took, and lists its tensors.
//!
//! `cargo run --release -p monel-gguf --example tensors -- FILE [REPETITIONS]`

use monel_gguf::Gguf;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("give a .gguf file")?;
    let repetitions = match arguments.next() {
        Some(text) => text.to_str().ok_or("the number of repetitions is not a number")?.parse()?,
        None => 1usize,
    };
    let mut times = Vec::new();
    for _ in 1..repetitions {
        let start = Instant::now();
        Gguf::open(&path)?;
        times.push(start.elapsed());
    }
    let start = Instant::now();
    let model = Gguf::open(&path)?;
    times.push(start.elapsed());
    times.sort();

    for tensor in model.tensors() {
        println!("{:40} {:8} {:?}", tensor.name, tensor.ty.name(), tensor.shape());
    }
    let (entries, tensors) = (model.metadata().len(), model.tensors().len());
    println!("version {}, {entries} metadata entries, {tensors} tensors", model.version());
    println!("opened in {:?} (fastest), {:?} (median)", times[0], times[times.len() / 2]);
    Ok(())
}
