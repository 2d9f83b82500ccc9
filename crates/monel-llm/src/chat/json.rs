//! The filter `tojson`, as the trainers' tools define it: JSON as Python writes it (a space behind commas and colons, no
//! escapes for anything but what JSON needs). The engine's own filter writes for web pages, where `<` is escaped; a model
//! that learned from Python's output would see tokens it has never seen there.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// How deep lists and mappings may lie in each other: Python gives up at as many.
const DEEPEST: usize = 1000;

/// A formatter that knows how deep it is. With a line break and blanks before every value, what is deeper would soon fill
/// the memory.
struct Bounded<F> {
    inner: F,
    depth: usize,
}

impl<F> Bounded<F> {
    fn new(inner: F) -> Self {
        Self { inner, depth: 0 }
    }

    fn deeper(&mut self) -> io::Result<()> {
        self.depth += 1;
        if self.depth <= DEEPEST {
            return Ok(());
        }
        Err(io::Error::other(format!("the value is nested more than {DEEPEST} deep")))
    }
}

impl<F: Formatter> Formatter for Bounded<F> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.deeper()?;
        self.inner.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        self.inner.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.inner.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.deeper()?;
        self.inner.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        self.inner.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.inner.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.inner.end_object_value(writer)
    }
}

/// Python's separators.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// `value | tojson`, `value | tojson(indent=4)`. Other arguments that Python takes (`ensure_ascii`, `sort_keys` ...) are not looked at.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    /// More would be a mistake, or an attempt to fill the memory.
    const WIDEST_INDENT: usize = 16;
    let indent = options.get::<Option<usize>>("indent")?.map(|indent| indent.min(WIDEST_INDENT));
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Bounded::new(Spaced))),
        Some(indent) => {
            let blanks = [b' '; WIDEST_INDENT];
            let formatter = PrettyFormatter::with_indent(&blanks[..indent]);
            value.serialize(&mut Serializer::with_formatter(&mut out, Bounded::new(formatter)))
        }
    };
    let failed = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out).map_err(|error| failed(error.to_string()))
}
