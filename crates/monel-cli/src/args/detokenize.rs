//! `monel detokenize`: ids to text.

use super::common::ModelArgs;

/// What `detokenize` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Turn token ids from stdin into text", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Print one JSON object: {"text": "..."}
    #[arg(long)]
    pub json: bool,
}

const LONG_ABOUT: &str = "\
Turns the model's token ids on stdin, separated by commas or blanks, into text. Special tokens are \
written out, as in <|im_start|>.";

const EXAMPLES: &str = "\
EXAMPLES:
  echo 1,2,3 | monel detokenize smollm2
  printf 'There and back' | monel tokenize smollm2 | monel detokenize smollm2";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn flags() {
        let args: Args = parse(&["-m", "m", "--json"]).unwrap();
        assert!(args.json && args.model.spec() == "m");
    }
}
