//! Flags that several commands share: the model, the device, memory, sampling.
//!
//! A struct in here carries no description of its own: clap would show it as the command's.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use monel::DType;

use super::parse::{self, Seed};
use crate::exit::UsageError;
use crate::input;

// The model: a word of its own or `-m`.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// The path of a GGUF file, or a model's name (`monel pull --help` lists them)
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    pub model_word: Option<String>,

    /// The model, as in llama.cpp; instead of the word
    #[arg(short, long, value_name = "MODEL", conflicts_with = "model_word")]
    pub model: Option<String>,
}

impl ModelArgs {
    /// The model as it was written; clap has made sure that there is one.
    pub fn spec(&self) -> &str {
        self.model.as_deref().or(self.model_word.as_deref()).unwrap_or_default()
    }
}

// The model and the prompt, which may both be words.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
pub struct ModelPromptArgs {
    /// The path of a GGUF file, or a model's name; with -m this word is the prompt
    #[arg(value_name = "MODEL", required_unless_present = "model")]
    pub first: Option<String>,

    /// The prompt
    #[arg(value_name = "PROMPT", conflicts_with = "model")]
    pub second: Option<String>,

    /// The model, as in llama.cpp; instead of the word
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,

    /// The prompt, as in llama.cpp; instead of the word
    #[arg(short, long, value_name = "PROMPT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// Read the prompt from this file, of at most 64 MiB; one final newline is dropped
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Where a prompt comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSource {
    /// It was given on the command line.
    Text(String),
    /// It lies in a file.
    File(PathBuf),
    /// Nothing was given: stdin.
    Stdin,
}

impl ModelPromptArgs {
    /// The model as it was written; clap has made sure that there is one.
    pub fn spec(&self) -> &str {
        self.model.as_deref().or(self.first.as_deref()).unwrap_or_default()
    }

    /// Where the prompt comes from.
    ///
    /// # Errors
    /// When it is given twice; `command` is named in the message.
    pub fn prompt(&self, command: &'static str) -> Result<PromptSource, UsageError> {
        let word = if self.model.is_some() { &self.first } else { &self.second };
        let flag = self.prompt.is_some() || self.file.is_some();
        match (word, &self.prompt, &self.file) {
            (Some(word), ..) if flag => Err(UsageError(
                format!("the prompt is given twice, as '{word}' and with -p or -f: leave one out"),
                command,
            )),
            (Some(text), ..) | (None, Some(text), _) => Ok(PromptSource::Text(text.clone())),
            (None, None, Some(path)) => Ok(PromptSource::File(path.clone())),
            (None, None, None) => Ok(PromptSource::Stdin),
        }
    }
}

impl PromptSource {
    /// The prompt's text. From a file one final newline (`\n` or `\r\n`) is dropped; stdin is taken as it
    /// is, and a terminal is refused, because it would look like a hang.
    ///
    /// # Errors
    /// When the file or stdin cannot be read, is longer than [`input::LONGEST_PROMPT`] or is not UTF-8; a [`UsageError`] when stdin is a terminal.
    pub fn read(&self, command: &'static str) -> anyhow::Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                let bytes = input::file(path, input::LONGEST_PROMPT)
                    .map_err(|e| anyhow::anyhow!("cannot read the prompt from {}: {e}", path.display()))?;
                let mut text = input::utf8(bytes, &format!("the prompt from {}", path.display()))?;
                if text.ends_with('\n') {
                    text.pop();
                    if text.ends_with('\r') {
                        text.pop();
                    }
                }
                Ok(text)
            }
            Self::Stdin if io::stdin().is_terminal() => Err(UsageError(
                "no prompt: write it after the model, give -p PROMPT or -f FILE, or pipe it in".into(),
                command,
            )
            .into()),
            Self::Stdin => {
                let bytes = input::stdin(input::LONGEST_PROMPT)
                    .map_err(|e| anyhow::anyhow!("cannot read the prompt from standard input: {e}"))?;
                input::utf8(bytes, "the prompt from standard input")
            }
        }
    }
}

// The device alone.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// The device: cpu, vulkan, vulkan:N, metal, metal:N or part of a device's name [default: the GPU with
    /// the most memory, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Device and memory")]
    pub device: Option<String>,
}

// The type of the KV cache.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
pub struct CacheArgs {
    /// The type of the keys in the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = parse::cache_type,
          help_heading = "Device and memory")]
    pub cache_type_k: DType,

    /// The type of the values in the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = parse::cache_type,
          help_heading = "Device and memory")]
    pub cache_type_v: DType,
}

// The number of threads, where one number is meant.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
pub struct ThreadArgs {
    /// Threads that compute on the CPU [default: the number of physical cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true,
          help_heading = "Device and memory")]
    pub threads: Option<u32>,
}

// How the next token is chosen.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// The temperature; 0 always takes the likeliest token
    #[arg(long, alias = "temperature", value_name = "T", default_value = "0.8", value_parser = parse::from_zero,
          allow_negative_numbers = true)]
    pub temp: f32,

    /// Choose among the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub top_k: u32,

    /// Choose among the likeliest tokens that together reach this probability; 1 for all
    #[arg(long, value_name = "P", default_value = "0.95", value_parser = parse::probability,
          allow_negative_numbers = true)]
    pub top_p: f32,

    /// Leave out tokens less likely than this share of the likeliest one; 0 for none
    #[arg(long, value_name = "P", default_value = "0.05", value_parser = parse::probability,
          allow_negative_numbers = true)]
    pub min_p: f32,

    /// Divide the logits of recent tokens by this; 1 for no penalty
    #[arg(long, value_name = "X", default_value = "1", value_parser = parse::over_zero,
          allow_negative_numbers = true)]
    pub repeat_penalty: f32,

    /// Take this from the logits of recent tokens; 0 for no penalty
    #[arg(long, value_name = "X", default_value = "0", value_parser = parse::finite,
          allow_negative_numbers = true)]
    pub presence_penalty: f32,

    /// Where the random numbers start; a random seed is printed, so that a run can be repeated
    #[arg(short, long, value_name = "SEED", default_value = "-1", allow_negative_numbers = true)]
    pub seed: Seed,
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn the_model_is_a_word_or_a_flag() {
        assert_eq!(parse::<ModelArgs>(&["a.gguf"]).unwrap().spec(), "a.gguf");
        assert_eq!(parse::<ModelArgs>(&["-m", "a.gguf"]).unwrap().spec(), "a.gguf");
        assert!(parse::<ModelArgs>(&[]).is_err());
        assert!(parse::<ModelArgs>(&["-m", "a", "b"]).is_err());
    }

    #[test]
    fn the_prompt_comes_from_one_place() {
        let source = |words: &[&str]| {
            let args = parse::<ModelPromptArgs>(words).unwrap();
            assert_eq!(args.spec(), "m");
            args.prompt("run")
        };
        let text = |t: &str| PromptSource::Text(t.into());
        assert_eq!(source(&["m", "hi"]).unwrap(), text("hi"));
        assert_eq!(source(&["-m", "m", "hi"]).unwrap(), text("hi"));
        assert_eq!(source(&["m", "-p", "-hi"]).unwrap(), text("-hi"));
        assert_eq!(source(&["m", "-f", "x"]).unwrap(), PromptSource::File("x".into()));
        assert_eq!(source(&["m"]).unwrap(), PromptSource::Stdin);
        assert!(source(&["m", "hi", "-p", "ho"]).unwrap_err().to_string().contains("twice"));
        assert!(source(&["-m", "m", "hi", "-f", "x"]).is_err());
        assert!(parse::<ModelPromptArgs>(&["m", "-p", "a", "-f", "b"]).is_err());
        assert!(parse::<ModelPromptArgs>(&["-m", "m", "a", "b"]).is_err());
    }

    #[test]
    fn a_file_loses_one_final_newline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        for (content, prompt) in [("a\n\n", "a\n"), ("a\r\n", "a"), ("a", "a"), ("\n", "")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(PromptSource::File(path.clone()).read("run").unwrap(), prompt);
        }
        std::fs::write(&path, b"ab\xff").unwrap();
        let message = PromptSource::File(path.clone()).read("run").unwrap_err().to_string();
        assert!(message.contains("byte 2 is 0xff"), "{message}");
        let message = PromptSource::File(dir.path().join("none")).read("run").unwrap_err().to_string();
        assert!(message.contains("none"), "{message}");
    }

    #[test]
    fn sampling_has_the_usual_defaults() {
        let s = parse::<SamplingArgs>(&[]).unwrap();
        assert_eq!((s.temp, s.top_k, s.top_p, s.min_p), (0.8, 40, 0.95, 0.05));
        assert_eq!((s.repeat_penalty, s.presence_penalty, s.seed), (1.0, 0.0, Seed::Random));
        let s = parse::<SamplingArgs>(&["--seed", "7", "--temp", "0", "--presence-penalty", "-1"]).unwrap();
        assert_eq!((s.seed, s.temp, s.presence_penalty), (Seed::Fixed(7), 0.0, -1.0));
        assert!(parse::<SamplingArgs>(&["--top-p", "2"]).is_err());
        assert!(parse::<SamplingArgs>(&["--temp", "-1"]).is_err());
    }

    #[test]
    fn threads_are_at_least_one() {
        assert_eq!(parse::<ThreadArgs>(&["-t", "2"]).unwrap().threads, Some(2));
        assert!(parse::<ThreadArgs>(&["-t", "0"]).is_err());
    }
}
