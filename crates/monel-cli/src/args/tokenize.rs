//! `monel tokenize`: text to ids.

use super::common::ModelArgs;

/// What `tokenize` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Turn text from stdin into token ids", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArgs,

    /// No beginning-of-sequence token, and special tokens in the text are plain text
    #[arg(long)]
    pub no_special: bool,

    /// Print one JSON object: {"ids": [...]}
    #[arg(long)]
    pub json: bool,
}

const LONG_ABOUT: &str = "\
Turns the text on stdin into the model's token ids, on one line. Every byte counts, a final newline \
too: printf leaves it out, echo does not. The text may have up to 256 MiB.

The ids are those that `monel run --raw` would feed: with a beginning-of-sequence token if the model \
wants one, and with special tokens such as <|im_start|> recognised; --no-special leaves both out.";

const EXAMPLES: &str = "\
EXAMPLES:
  printf 'Hello, world' | monel tokenize smollm2
  printf '<|im_start|>' | monel tokenize smollm2 --no-special
  printf 'There and back' | monel tokenize smollm2 | monel detokenize smollm2";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn flags() {
        let args: Args = parse(&["m", "--no-special", "--json"]).unwrap();
        assert!(args.no_special && args.json && args.model.spec() == "m");
        assert!(parse::<Args>(&["m", "text"]).is_err(), "the text comes from stdin");
    }
}
