//! `monel inspect`: what is in a file.

use super::common::{CacheArgs, DeviceArgs};

/// What `inspect` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Show what is in a GGUF file and what memory it needs", long_about = LONG_ABOUT,
          after_long_help = EXAMPLES)]
pub struct Args {
    /// The path of a GGUF file, or a model's name
    #[arg(value_name = "FILE", required_unless_present = "model")]
    pub file: Option<String>,

    /// The file, as in llama.cpp; instead of the word
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    pub model: Option<String>,

    /// The context's length that the memory is planned for; 0 for the model's own [default: the model's
    /// own, at most 4096]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    pub ctx_size: Option<u32>,

    /// Print one JSON object with the metadata, the tensors and the memory plan
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

const LONG_ABOUT: &str = "\
Shows what is in a GGUF file: its metadata, its tensors with type, shape and place, the bytes of each \
type, and the memory that running it takes on a device. The weights themselves are not read.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel inspect smollm2
  monel inspect smollm2 -c 8192 --device cpu                The memory of a long context
  monel inspect smollm2 --json | jq .bytes_by_type";

impl Args {
    /// The file as it was written; clap has made sure that there is one.
    pub fn spec(&self) -> &str {
        self.model.as_deref().or(self.file.as_deref()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn flags() {
        let args: Args = parse(&["a.gguf", "-c", "100", "--device", "cpu"]).unwrap();
        assert_eq!((args.spec(), args.ctx_size), ("a.gguf", Some(100)));
        assert_eq!(parse::<Args>(&["-m", "b"]).unwrap().spec(), "b");
        assert!(parse::<Args>(&[]).is_err());
    }
}
