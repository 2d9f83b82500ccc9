//! Continues a text greedily: `continue MODEL TEXT [TOKENS]`. The shortest program on the library.

use monel_llm::{Context, ContextOptions, Model, Request, Sampling};
use std::io::Write;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(text)) = (args.next(), args.next()) else {
        return Err("usage: continue MODEL TEXT [TOKENS]".into());
    };
    let tokens = args.next().map_or(Ok(32), |n| n.parse())?;
    let device = monel::device::open_cpu()?;
    let model = Arc::new(Model::load(path, &device)?);
    let mut context = Context::new(model.clone(), &ContextOptions::default())?;
    let prompt = model.tokenizer.encode(&text, true, true)?;
    let request =
        Request { prompt, max_tokens: Some(tokens), sampling: Sampling::greedy(), ..Request::default() };
    print!("{text}");
    let out = context.generate(&request, &mut |step| {
        print!("{}", model.tokenizer.piece(step.id).unwrap_or_default());
        std::io::stdout().flush().is_ok()
    })?;
    let speed = out.steps.len() as f64 / out.predicted_time.as_secs_f64();
    println!("\n[load {:?}, prompt {:?}, {speed:.1} tokens/s]", model.load_time, out.prompt_time);
    Ok(())
}
