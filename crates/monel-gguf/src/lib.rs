//! monel-gguf
