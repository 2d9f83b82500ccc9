//! How a command ends, as an exit code.
//!
//! Commands return `anyhow::Result<Outcome>`. An [`Outcome`] is an end that the command chose; an error is
//! turned into a code here, in one place, so that no command has to know that a reader which closed the
//! pipe is not a failure, or that a cancelled download ends like any other Ctrl-C.

use std::process::ExitCode;

use crate::interrupt;
use crate::models::ModelError;
use crate::output::OutputError;

/// The end of a command that ran to where it wanted to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// What was asked for is done: code 0.
    Done,
    /// The command worked and found something wrong (`check` with failing ops): code 1.
    Failed,
    /// The user stopped it: code 130, or 143 by SIGTERM.
    Interrupted,
}

/// Wrong usage that only shows once the flags are looked at together: code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}\n\nFor more information, try 'monel {1} --help'.")]
pub struct UsageError(
    /// What is wrong and what to write instead.
    pub String,
    /// The command whose help explains it.
    pub &'static str,
);

/// The process's end: its exit code and, for failures, the message for stderr.
#[derive(Debug, PartialEq, Eq)]
pub struct End {
    /// 0 done, 1 error, 2 wrong usage, 130 stopped by Ctrl-C, 143 by SIGTERM.
    pub code: u8,
    /// One message; `None` when there is nothing to say.
    pub message: Option<String>,
}

impl End {
    /// What a command's result means for the process.
    pub fn of(result: anyhow::Result<Outcome>) -> Self {
        let error = match result {
            Ok(Outcome::Done) => return Self { code: 0, message: None },
            Ok(Outcome::Failed) => return Self { code: 1, message: None },
            Ok(Outcome::Interrupted) => return Self { code: interrupt::exit_code(), message: None },
            Err(error) => error,
        };
        let closed = |e: &OutputError| matches!(e, OutputError::Closed);
        if error.chain().filter_map(|e| e.downcast_ref()).any(closed) {
            return Self { code: 0, message: None };
        }
        let cancelled = |e: &ModelError| matches!(e, ModelError::Cancelled { .. });
        let code = if error.chain().filter_map(|e| e.downcast_ref()).any(cancelled) {
            interrupt::exit_code()
        } else if error.chain().any(|e| e.is::<UsageError>()) {
            2
        } else {
            1
        };
        // `{:#}` joins the chain of reasons into one message. What the user wanted is no error.
        let label = if code > 2 { "" } else { "error: " };
        Self { code, message: Some(format!("{label}{error:#}")) }
    }
}

impl From<&End> for ExitCode {
    fn from(end: &End) -> Self {
        Self::from(end.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_code() {
        assert_eq!(End::of(Ok(Outcome::Done)).code, 0);
        assert_eq!(End::of(Ok(Outcome::Failed)).code, 1);
        assert_eq!(End::of(Ok(Outcome::Interrupted)).code, 130);
        assert_eq!(End::of(Err(anyhow::anyhow!("no"))).message.as_deref(), Some("error: no"));
        assert_eq!(End::of(Err(UsageError("two prompts".into(), "run").into())).code, 2);
    }

    #[test]
    fn a_closed_pipe_is_quiet_however_deep_it_lies() {
        let end = End::of(Err(anyhow::Error::from(OutputError::Closed).context("printing the result")));
        assert_eq!(end, End { code: 0, message: None });
    }

    #[test]
    fn reasons_are_joined_into_one_message() {
        let end = End::of(Err(anyhow::anyhow!("disk on fire").context("cannot write x")));
        assert_eq!(end.message.as_deref(), Some("error: cannot write x: disk on fire"));
    }
}
