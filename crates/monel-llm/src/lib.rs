//! Language models on the monel engine.
//!
//! From a GGUF file to text: [`ModelFile`] opens a file and says what it needs, [`Model`] has vocabulary and weights on
//! a device, a [`Context`] is one conversation. Architectures are data plus a short graph builder each ([`arch`]).
//!
//! ```no_run
//! use monel_llm::{Context, ContextOptions, Model, Request, Sampling};
//! use std::sync::Arc;
//! let device = monel::device::open_cpu()?;
//! let model = Arc::new(Model::load("SmolLM2-135M-Instruct.Q4_1.gguf", &device)?);
//! let mut context = Context::new(model.clone(), &ContextOptions::default())?;
//! let prompt = model.tokenizer.encode("The Moon orbits the", true, true)?;
//! let request = Request { prompt, max_tokens: Some(16), sampling: Sampling::greedy(), ..Request::default() };
//! let out = context.generate(&request, &mut |step| {
//!     print!("{}", model.tokenizer.piece(step.id).unwrap_or_default());
//!     true
//! })?;
//! println!("\n{:?}", out.stop);
//! # Ok::<(), monel_llm::Error>(())
//! ```

pub mod arch;
pub mod bench;
pub mod chat;
pub mod context;
mod crossing;
pub mod error;
pub mod generate;
pub mod model;
pub mod perplexity;
pub mod sampling;
pub mod tokenizer;
pub mod weights;
pub mod work;

pub use context::{Context, ContextOptions};
pub use error::{Error, Result};
pub use generate::{Generated, Request, Step, Stop};
pub use model::{Model, ModelFile};
pub use sampling::Sampling;
