//! `monel chat`: a conversation.

use std::path::PathBuf;

use super::common::{CacheArgs, DeviceArgs, ModelPromptArgs, SamplingArgs, ThreadArgs};
use super::parse::Limit;

/// What `chat` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Talk with a model", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub input: ModelPromptArgs,

    /// The most tokens of one answer; -1 goes on until the model ends or the context is full
    #[arg(
        short,
        long,
        alias = "predict",
        value_name = "N",
        default_value = "-1",
        allow_negative_numbers = true
    )]
    pub n_predict: Limit,

    /// The context's length in tokens; 0 for the model's own [default: the model's own, at most 4096]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    pub ctx_size: Option<u32>,

    /// Write a timeline of the conversation to FILE: Chrome trace JSON, which Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

const LONG_ABOUT: &str = "\
Talks with a model: each line of stdin is a message, and the conversation goes on until stdin ends \
(Ctrl-D). Ctrl-C stops an answer; pressed twice it ends the program. A prompt given with the command \
is the first message.

The model needs a chat template; for one without it, `monel run --raw` continues a text.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel chat smollm2
  monel chat gemma3-270m --temp 0.5 -c 2048
  monel chat smollm2 'Hello! Who are you?'                  With a first message";

#[cfg(test)]
mod tests {
    use super::super::common::PromptSource;
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn takes_the_flags_of_run_that_make_sense() {
        let args: Args = parse(&["m", "-n", "9", "-c", "64", "--temp", "0", "--device", "cpu"]).unwrap();
        assert_eq!((args.input.spec(), args.n_predict), ("m", Limit::Tokens(9)));
        assert_eq!(args.input.prompt("chat").unwrap(), PromptSource::Stdin);
        assert!(parse::<Args>(&["m", "--ids", "1"]).is_err());
    }
}
