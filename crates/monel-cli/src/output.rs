//! Results on stdout, messages on stderr.
//!
//! The standard macros panic when the other end is gone. A reader that has seen enough (`monel ... | head`)
//! is an ordinary end, so stdout goes through [`Output`], which tells that case ([`OutputError::Closed`])
//! from a real one such as a full disk. Commands pass both on with `?`; `exit` knows what each means.
//! Nothing is lost at the end either: stdout's own buffer would drop an error when the process ends, so
//! `main` calls [`Output::finish`].
//!
//! What people read may hold names from a file, a driver or a server, and a terminal obeys control characters: tables,
//! lines and messages show them escaped ([`plain`]). Results that are bytes (a model's text, JSON) pass as they are.
//!
//! stderr is best effort ([`note`]): a message that cannot be delivered must not end a run.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::interrupt;

/// Bytes that are written at once: so many go through a pipe whole, and between two of them it shows that a reader is there.
const PIECE: usize = 4096;

/// Why stdout took no more.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The reader closed the pipe: not a failure, the program just stops.
    #[error("the reader closed the output")]
    Closed,
    /// Writing failed for a reason the user should hear.
    #[error("cannot write the result to standard output ({0}): check where it is redirected to")]
    Write(io::Error),
    /// A result could not be put into JSON; a defect of the program.
    #[error("cannot write the result as JSON: {0}")]
    Json(serde_json::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Write(error),
        }
    }
}

/// A writer for results; stdout in the program, a vector in tests.
#[derive(Debug)]
pub struct Output<W: Write = io::Stdout> {
    inner: W,
}

impl Output {
    /// The process's stdout.
    pub fn stdout() -> Self {
        Self { inner: io::stdout() }
    }
}

impl<W: Write> Output<W> {
    /// Results into `inner`.
    pub fn to(inner: W) -> Self {
        Self { inner }
    }

    /// Text as it is, shown at once: for tokens that arrive one by one.
    pub fn text(&mut self, text: &str) -> Result<(), OutputError> {
        self.bytes(text.as_bytes())?;
        self.finish()
    }

    /// Bytes as they are, shown when the buffer is full or at [`finish`](Self::finish).
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        for piece in bytes.chunks(PIECE) {
            let _writing = interrupt::writing();
            self.inner.write_all(piece)?;
        }
        Ok(())
    }

    /// A line, or several, for people: control characters are escaped.
    pub fn line(&mut self, line: impl fmt::Display) -> Result<(), OutputError> {
        self.bytes(escaped(&line.to_string(), "\n\t").as_bytes())?;
        self.bytes(b"\n")
    }

    /// One JSON object and a newline: all that a command with `--json` prints.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        let mut text = serde_json::to_vec(value).map_err(OutputError::Json)?;
        text.push(b'\n');
        self.bytes(&text)?;
        self.finish()
    }

    /// Hands everything written so far to the reader.
    pub fn finish(&mut self) -> Result<(), OutputError> {
        let _writing = interrupt::writing();
        Ok(self.inner.flush()?)
    }
}

/// A message on stderr, of one line or several; control characters are escaped. It never fails, because a lost message is
/// no reason to stop.
pub fn note(message: impl fmt::Display) {
    let line = format!("{}\n", escaped(&message.to_string(), "\n\t"));
    let mut stderr = io::stderr().lock();
    for piece in line.as_bytes().chunks(PIECE) {
        let _writing = interrupt::writing();
        if stderr.write_all(piece).is_err() {
            return;
        }
    }
}

/// A name on one line: no control character, no end of a line, and nothing that turns the direction of writing, reaches
/// the terminal as itself.
pub fn plain(name: &str) -> Cow<'_, str> {
    escaped(name, "")
}

fn escaped<'a>(text: &'a str, but: &str) -> Cow<'a, str> {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let obeyed = |c: char| (c.is_control() || turns(c)) && !but.contains(c);
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match obeyed(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// How a column of a [`Table`] is lined up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A small text table: a head, rows, columns two blanks apart.
#[derive(Debug, Clone)]
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let (head, align) = columns.iter().map(|&(name, align)| (name.to_owned(), align)).unzip();
        Self { align, rows: vec![head] }
    }

    /// Adds a row, with control characters escaped; missing cells stay empty, surplus ones are left out.
    pub fn row<C: fmt::Display>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(|c| plain(&c.to_string()).into_owned()).collect();
        row.resize(self.align.len(), String::new());
        self.rows.push(row);
    }

    /// Number of rows below the head.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Whether there is nothing below the head.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.align.len())
            .map(|c| self.rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0))
            .collect();
        for (r, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.align) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}")),
                    Align::Right => line.push_str(&format!("{cell:>width$}")),
                }
            }
            if r > 0 {
                writeln!(f)?;
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

/// A number of bytes for people: `98.4 MB`; powers of 1000, as file managers and disks count.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    // 999.95 would be printed as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(io::ErrorKind);
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_told_from_a_full_disk() {
        let closed = Output::to(Broken(io::ErrorKind::BrokenPipe)).line("x");
        assert!(matches!(closed, Err(OutputError::Closed)));
        let full = Output::to(Broken(io::ErrorKind::StorageFull)).line("x");
        assert!(matches!(full, Err(OutputError::Write(e)) if e.kind() == io::ErrorKind::StorageFull));
    }

    #[test]
    fn json_is_one_line() {
        let mut text = Vec::new();
        Output::to(&mut text).json(&serde_json::json!({"path": "a\nb"})).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "{\"path\":\"a\\nb\"}\n");
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let evil = "a\u{1b}[31m\u{7}\r\nb\u{9b}2J\u{202e}größe";
        assert_eq!(plain(evil), "a\\u{1b}[31m\\u{7}\\r\\nb\\u{9b}2J\\u{202e}größe");
        assert!(matches!(plain("größe 大"), Cow::Borrowed(_)));
        let mut text = Vec::new();
        Output::to(&mut text).line("two\n\tlines\u{1b}").unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "two\n\tlines\\u{1b}\n");
        let mut table = Table::new([("name", Align::Left), ("n", Align::Right)]);
        table.row(["x\n\u{1b}", "1"]);
        assert_eq!(table.to_string(), "name       n\nx\\n\\u{1b}  1");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("name", Align::Left), ("bytes", Align::Right)]);
        table.row(["größe", "1"]);
        table.row(["b", "100000"]);
        assert_eq!(table.to_string(), "name    bytes\ngröße       1\nb      100000");
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn sizes_read_well() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_949_999, "999.9 MB"),
            (999_950_000, "1.0 GB"),
            (u64::MAX, "18446.7 PB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
