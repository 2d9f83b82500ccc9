//! monel-llm

pub mod chat;
pub mod tokenizer;
