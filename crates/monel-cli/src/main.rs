//! The `monel` program: flags in, exit code out. Everything else is in the library.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use monel_cli::args::{self, Cli, Command};
use monel_cli::exit::{End, Outcome};
use monel_cli::output::{Output, note};
use monel_cli::{commands, faults, interrupt};

fn main() -> ExitCode {
    if let Err(error) = interrupt::install() {
        note(format_args!("warning: Ctrl-C ends the program without tidying up: {error}"));
    }
    if let Err(error) = faults::install() {
        note(format_args!(
            "warning: a file that is cut while it is in use ends the program without a message: {error}"
        ));
    }
    let mut out = Output::stdout();
    let result = match Cli::try_parse_from(args::spell_out(std::env::args_os())) {
        Ok(cli) => run(&cli.command, &mut out),
        Err(answer) => match answer.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => show(&answer, &mut out),
            _ => {
                // On stderr, with code 2.
                let _writing = interrupt::writing();
                let _ = answer.print();
                return ExitCode::from(2);
            }
        },
    };
    // What is still in stdout's buffer may be what fails.
    let result = result.and_then(|outcome| Ok(out.finish().map(|()| outcome)?));
    let end = End::of(result);
    if let Some(message) = &end.message {
        note(message);
    }
    ExitCode::from(&end)
}

fn run(command: &Command, out: &mut Output) -> anyhow::Result<Outcome> {
    match command {
        Command::Run(args) => commands::run::run(args, out),
        Command::Chat(args) => commands::chat::run(args, out),
        Command::Tokenize(args) => commands::tokenize::run(args, out),
        Command::Detokenize(args) => commands::detokenize::run(args, out),
        Command::Bench(args) => commands::bench::run(args, out),
        Command::Perplexity(args) => commands::perplexity::run(args, out),
        Command::Inspect(args) => commands::inspect::run(args, out),
        Command::Devices(args) => commands::devices::run(args, out),
        Command::Check(args) => commands::check::run(args, out),
        Command::Pull(args) => commands::pull::run(args, out),
    }
}

/// Help that was asked for is a result: it goes to stdout, where a closed pipe or a full disk counts.
fn show(help: &clap::Error, out: &mut Output) -> anyhow::Result<Outcome> {
    let text = help.render();
    let styled = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    out.bytes(if styled { text.ansi().to_string() } else { text.to_string() }.as_bytes())?;
    Ok(Outcome::Done)
}
