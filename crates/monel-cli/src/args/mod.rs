//! The flags of every command, one file each, under llama.cpp's names.
//!
//! A command's file holds its `Args`: what clap parses, with the help that teaches it (each help ends with
//! examples that work) and the few checks that need more than one flag at a time. Nothing in here knows the
//! engine; `commands` reads these structs. What several commands share is in [`common`].

pub mod bench;
pub mod chat;
pub mod check;
pub mod common;
pub mod detokenize;
pub mod devices;
pub mod inspect;
pub mod parse;
pub mod perplexity;
pub mod pull;
pub mod run;
pub mod tokenize;

use std::ffi::OsString;

/// The program's command line.
#[derive(Debug, clap::Parser)]
#[command(name = "monel", version, about = "Run GGUF language models", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
#[allow(missing_docs)] // The texts are the structs', which clap shows.
pub enum Command {
    Run(run::Args),
    Chat(chat::Args),
    Tokenize(tokenize::Args),
    Detokenize(detokenize::Args),
    Bench(bench::Args),
    Perplexity(perplexity::Args),
    Inspect(inspect::Args),
    Devices(devices::Args),
    Check(check::Args),
    Pull(pull::Args),
}

const LONG_ABOUT: &str = "\
Runs GGUF language models on the CPU and on GPUs (Vulkan, Metal).

A MODEL is the path of a GGUF file, or the name of a model that is fetched when it is first used: \
`smollm2` (98 MB) and `gemma3-270m` (253 MB).

Results go to stdout, messages and progress to stderr. With --json the result is one JSON object. \
Exit codes: 0 done, 1 an error, 2 wrong usage, 130 stopped by Ctrl-C.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel run smollm2 \"Why is the sky blue?\"    Answer a question (fetches the model first)
  monel chat smollm2                           Talk
  monel bench smollm2                          Tokens per second on this machine
  monel run --help                             How a command is used, with examples";

/// llama.cpp's short names of more than one letter, which clap would read as `-c tk`.
const LONG_SHORTS: [(&str, &str); 3] =
    [("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"), ("-dev", "--device")];

/// The arguments with llama.cpp's `-ctk`, `-ctv` and `-dev` spelt out, up to a `--`.
pub fn spell_out(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    arguments
        .into_iter()
        .map(|argument| {
            literal |= argument == "--";
            match LONG_SHORTS.iter().find(|(short, _)| !literal && argument == *short) {
                Some((_, long)) => OsString::from(long),
                None => argument,
            }
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::{Args as _, CommandFactory};

    /// Parses one command's arguments as the program would; for the tests beside each struct.
    pub(crate) fn parse<A: clap::Args>(arguments: &[&str]) -> Result<A, clap::Error> {
        let command = A::augment_args(clap::Command::new("monel").subcommand_required(false));
        let words = std::iter::once("monel").chain(arguments.iter().copied()).map(OsString::from);
        A::from_arg_matches(&command.try_get_matches_from(spell_out(words))?)
    }

    fn all() -> Vec<clap::Command> {
        let command = clap::Command::new;
        vec![
            run::Args::augment_args(command("run")),
            chat::Args::augment_args(command("chat")),
            tokenize::Args::augment_args(command("tokenize")),
            detokenize::Args::augment_args(command("detokenize")),
            bench::Args::augment_args(command("bench")),
            perplexity::Args::augment_args(command("perplexity")),
            inspect::Args::augment_args(command("inspect")),
            devices::Args::augment_args(command("devices")),
            check::Args::augment_args(command("check")),
            pull::Args::augment_args(command("pull")),
        ]
    }

    #[test]
    fn definitions_hold_together() {
        Cli::command().debug_assert();
        all().into_iter().for_each(clap::Command::debug_assert);
    }

    #[test]
    fn every_command_teaches() {
        for mut command in all() {
            let name = command.get_name().to_owned();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && !about.contains('\n'), "{name}: {about:?}");
            assert!(long.len() > about.len(), "{name}: {long:?}");
            let help = command.render_long_help().to_string();
            let examples = help.split("EXAMPLES:").nth(1).unwrap_or_default();
            assert!(examples.contains(&format!("monel {name}")), "{name}: {help}");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name}: {} has no help", argument.get_id());
            }
        }
    }

    /// A negative number is a value, not an unknown flag: the message says what is allowed.
    #[test]
    fn numbers_below_the_range_are_told_the_range() {
        let mut seen = 0;
        for command in all() {
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default();
                if !names
                    .iter()
                    .any(|name| ["N", "N,...", "T", "K", "P", "X", "SEED"].contains(&name.as_str()))
                {
                    continue;
                }
                let flag = format!("--{}", argument.get_long().unwrap());
                if flag == "--presence-penalty" {
                    // Any number will do.
                    continue;
                }
                let words = [command.get_name(), flag.as_str(), "-7"];
                let error = command.clone().try_get_matches_from(words).unwrap_err();
                let message = error.to_string();
                assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation, "{words:?}: {message}");
                let first = message.lines().next().unwrap_or_default();
                let range = ["expected a", "is not in "].iter().any(|says| first.contains(says));
                assert!(first.contains("'-7'") && range && !message.contains("tip:"), "{words:?}: {message}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen} numbers");
    }

    /// The examples in the help are commands, so they must parse.
    #[test]
    fn examples_parse() {
        let program = || all().into_iter().fold(clap::Command::new("monel"), clap::Command::subcommand);
        let mut seen = 0;
        for mut command in all() {
            let help = command.render_long_help().to_string();
            let examples = help.split("EXAMPLES:").nth(1).unwrap_or_default();
            for line in examples.lines().flat_map(|l| l.split('|')).map(str::trim) {
                let Some(at) = line.find("monel ") else { continue };
                let words = shell_words(&line[at..]);
                let result = program().try_get_matches_from(spell_out(words));
                assert!(result.is_ok(), "{line}: {}", result.unwrap_err());
                seen += 1;
            }
        }
        assert!(seen >= 10, "{seen} examples");
    }

    /// Splits an example as a shell would; two blanks or a `#`, `<`, `>`, `;` end it.
    fn shell_words(line: &str) -> Vec<OsString> {
        let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
        let mut last = ' ';
        for c in line.chars() {
            match (quote, c) {
                (None, ' ') if last == ' ' && !words.is_empty() => break,
                (None, '<' | '>' | '#' | ';') => break,
                (None, ' ') => words.push(OsString::from(std::mem::take(&mut word))),
                (None, '\'' | '"') => quote = Some(c),
                (Some(q), c) if q == c => quote = None,
                _ => word.push(c),
            }
            last = c;
        }
        if !word.is_empty() {
            words.push(word.into());
        }
        words
    }

    #[test]
    fn llama_cpp_shorts_are_spelt_out_up_to_the_dashes() {
        let words = ["monel", "-ctk", "f32", "--", "-ctk"].map(OsString::from);
        assert_eq!(spell_out(words), ["monel", "--cache-type-k", "f32", "--", "-ctk"].map(OsString::from));
    }
}
