//! `monel run`: one prompt, one answer.

use std::path::PathBuf;

use super::common::{CacheArgs, DeviceArgs, ModelPromptArgs, PromptSource, SamplingArgs, ThreadArgs};
use super::parse::{self, Limit};
use crate::exit::UsageError;

/// What `run` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Answer one prompt", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub input: ModelPromptArgs,

    /// The most tokens to generate; -1 goes on until the model ends or the context is full
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

    /// No chat template: the prompt is continued as it is; special tokens in it are recognised
    #[arg(long)]
    pub raw: bool,

    /// Exactly these token ids instead of a text, as in 1,2,3; implies --raw
    #[arg(long, value_name = "IDS", conflicts_with_all = ["prompt", "file", "second"])]
    pub ids: Option<String>,

    /// With --json: the N likeliest tokens of each step, with their log-probabilities
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub logprobs: Option<u32>,

    /// Write a timeline of the run to FILE: Chrome trace JSON, which Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Print one JSON object with the ids, the text and the timings
    #[arg(long)]
    pub json: bool,

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
Answers one prompt and ends.

The prompt is put into the model's chat template, as one message of the user. With --raw, or when the \
model has no template, the text is continued as it is. It comes from the command line, from a file \
(-f) or from stdin. The text appears on stdout as it is generated; Ctrl-C stops it.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel run smollm2 'What is a monad?'
  monel run smollm2 -n 32 --temp 0 'Name three rivers.'     The same answer every time
  monel run smollm2 --raw -n 20 'Once upon a time'          Continue a text
  echo 'Name a colour.' | monel run smollm2                 The prompt from stdin
  monel run smollm2 --json --logprobs 5 -n 8 'Hello'        Everything about each step
  monel run -m smollm2 --seed 7 -c 2048 -t 2 -p 'Tell me a joke.'";

/// What the model is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Exactly these ids.
    Ids(Vec<u32>),
    /// A text, still to be read.
    Prompt(PromptSource),
}

impl Args {
    /// What the model is given.
    ///
    /// # Errors
    /// When the prompt is given twice or `--ids` is no list of ids.
    pub fn input(&self) -> Result<Input, UsageError> {
        let Some(text) = &self.ids else { return Ok(Input::Prompt(self.input.prompt("run")?)) };
        // With `-m` the first word is the prompt, which clap cannot know.
        if let (Some(_), Some(word)) = (&self.input.model, &self.input.first) {
            let what = format!("both --ids and the prompt '{word}': leave one out");
            return Err(UsageError(what, "run"));
        }
        match parse::ids(text) {
            Ok(ids) if ids.is_empty() => {
                Err(UsageError("--ids is empty: give at least one id".into(), "run"))
            }
            Ok(ids) => Ok(Input::Ids(ids)),
            Err(what) => Err(UsageError(format!("--ids: {what}"), "run")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn defaults() {
        let args: Args = parse(&["smollm2", "hi"]).unwrap();
        assert_eq!(args.input.spec(), "smollm2");
        assert_eq!(args.n_predict, Limit::Unlimited);
        assert_eq!((args.ctx_size, args.logprobs, args.raw, args.json), (None, None, false, false));
        assert_eq!(
            (args.cache.cache_type_k, args.cache.cache_type_v),
            (monel::DType::F16, monel::DType::F16)
        );
        assert_eq!((args.threads.threads, args.device.device), (None, None));
    }

    #[test]
    fn every_flag() {
        let args: Args = parse(&[
            "-m",
            "a.gguf",
            "-p",
            "x",
            "-n",
            "5",
            "-c",
            "128",
            "-t",
            "2",
            "--temp",
            "0",
            "--top-k",
            "1",
            "--top-p",
            "0.5",
            "--min-p",
            "0",
            "--repeat-penalty",
            "1.1",
            "--seed",
            "3",
            "--raw",
            "--logprobs",
            "2",
            "--trace",
            "t.json",
            "--json",
            "--device",
            "vulkan:1",
            "-ctk",
            "f32",
            "-ctv",
            "q8_0",
        ])
        .unwrap();
        assert_eq!(args.input().unwrap(), Input::Prompt(PromptSource::Text("x".into())));
        assert_eq!((args.n_predict, args.ctx_size), (Limit::Tokens(5), Some(128)));
        assert_eq!(args.trace, Some("t.json".into()));
        assert_eq!(args.device.device.as_deref(), Some("vulkan:1"));
        assert_eq!(
            (args.cache.cache_type_k, args.cache.cache_type_v),
            (monel::DType::F32, monel::DType::Q8_0)
        );
        assert!(args.raw && args.json);
    }

    #[test]
    fn ids_stand_alone() {
        let input = |words: &[&str]| parse::<Args>(words).unwrap().input();
        assert_eq!(input(&["m", "--ids", "1,2"]).unwrap(), Input::Ids(vec![1, 2]));
        assert_eq!(input(&["-m", "m", "--ids", "1 2"]).unwrap(), Input::Ids(vec![1, 2]));
        assert!(input(&["-m", "m", "--ids", "1", "text"]).is_err());
        assert!(input(&["m", "--ids", "1,x"]).unwrap_err().to_string().contains("'x'"));
        assert!(input(&["m", "--ids", ""]).is_err());
        assert!(
            input(&["m", "--ids", "1,,2"]).is_err_and(|e| e.to_string().contains("without an id after 1"))
        );
        assert!(parse::<Args>(&["m", "--ids", "1", "text"]).is_err());
        assert!(parse::<Args>(&["m", "--ids", "1", "-p", "text"]).is_err());
    }
}
