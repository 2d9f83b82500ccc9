//! `monel bench`: how fast a model runs.

use super::common::{CacheArgs, DeviceArgs, ModelArgs};

/// What `bench` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Measure how fast a model runs", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArgs,

    /// Lengths of the prompts to process, in tokens; 0 for none
    #[arg(
        short = 'p',
        long,
        value_name = "N,...",
        value_delimiter = ',',
        allow_negative_numbers = true,
        default_value = "512"
    )]
    pub n_prompt: Vec<u32>,

    /// Numbers of tokens to generate; 0 for none
    #[arg(
        short,
        long,
        value_name = "N,...",
        value_delimiter = ',',
        allow_negative_numbers = true,
        default_value = "128"
    )]
    pub n_gen: Vec<u32>,

    /// Numbers of tokens that are in the context before each test starts
    #[arg(
        short = 'd',
        long,
        value_name = "N,...",
        value_delimiter = ',',
        allow_negative_numbers = true,
        default_value = "0"
    )]
    pub n_depth: Vec<u32>,

    /// How often each test is repeated
    #[arg(short, long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub repetitions: u32,

    /// Numbers of threads that compute on the CPU
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', allow_negative_numbers = true, default_value = "2",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Vec<u32>,

    /// Wait for every token and read its logits, as llama-bench does, instead of running ahead
    #[arg(long)]
    pub sync: bool,

    /// Print one JSON object with every repetition
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

const LONG_ABOUT: &str = "\
Measures tokens per second, and the share of what the machine allows.

ppN processes a prompt of N random tokens and reads the logits of the last one. tgN generates N tokens \
one by one, the likeliest each time, as `monel run` does; `@ dN` starts with N tokens in the context. \
On the CPU the ceiling is measured just before each test: the rate of integer products for prompts, \
reading weights and cached keys and values for generation. Flags that take several values by commas measure every combination. Ctrl-C stops; the tests that were \
finished are printed.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel bench smollm2
  monel bench smollm2 -p 32,512 -n 128 -t 1,2               Two prompts, one and two threads
  monel bench smollm2 -p 0 -n 32 -d 2048 -r 3               Generation deep in the context
  monel bench gemma3-270m --device vulkan --sync --json     As llama-bench measures it";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn defaults() {
        let args: Args = parse(&["m"]).unwrap();
        assert_eq!((args.n_prompt, args.n_gen, args.n_depth), (vec![512], vec![128], vec![0]));
        assert_eq!((args.repetitions, args.threads, args.sync), (5, vec![2], false));
    }

    #[test]
    fn lists() {
        let args: Args = parse(&["m", "-p", "32,512", "-n", "0", "-d", "0,2048", "-t", "1,2"]).unwrap();
        assert_eq!((args.n_prompt, args.n_gen), (vec![32, 512], vec![0]));
        assert_eq!((args.n_depth, args.threads), (vec![0, 2048], vec![1, 2]));
        for wrong in [["-p", "a"], ["-r", "0"], ["-t", "0"], ["-p", "1,,2"]] {
            assert!(parse::<Args>(&["m", wrong[0], wrong[1]]).is_err(), "{wrong:?}");
        }
    }
}
