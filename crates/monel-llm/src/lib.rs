//! monel-llm
