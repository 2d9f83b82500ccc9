//! `monel perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use super::common::{CacheArgs, DeviceArgs, ModelArgs, ThreadArgs};
use super::parse;

/// What `perplexity` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Measure how well a model predicts a text", long_about = LONG_ABOUT,
          after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArgs,

    /// The text, of at most 256 MiB
    #[arg(short, long, value_name = "TEXT")]
    pub file: PathBuf,

    /// The length of a chunk in tokens, an even number; its second half is predicted
    #[arg(short, long, value_name = "N", default_value_t = 512,
          value_parser = parse::window, allow_negative_numbers = true)]
    pub ctx_size: u32,

    /// Print one JSON object: ppl, stderr, chunks, tokens
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

const LONG_ABOUT: &str = "\
Measures how well a model predicts a text: the exponential of the mean negative log-likelihood of a \
token, with its standard error. Lower is better; a change of quantization or device shows in it.

The text is cut into chunks of -c tokens; in each the first half is context, the second is predicted. \
It must have at least one chunk. Ctrl-C stops it; what is printed then is the perplexity of the chunks \
that were finished.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel perplexity smollm2 -f book.txt
  monel perplexity gemma3-270m -f book.txt -c 256 -t 2 --json";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn needs_a_text() {
        let args: Args = parse(&["m", "-f", "t.txt"]).unwrap();
        assert_eq!((args.ctx_size, args.file), (512, "t.txt".into()));
        assert!(parse::<Args>(&["m"]).is_err());
        assert!(parse::<Args>(&["m", "-f", "t.txt", "-c", "1"]).is_err());
    }
}
