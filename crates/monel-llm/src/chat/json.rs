//! The filter `tojson`, as the trainers' tools define it: JSON as Python writes it (a space behind commas and colons, no
//! escapes for anything but what JSON needs). The engine's own filter writes for web pages, where `<` is escaped; a model
//! that learned from Python's output would see tokens it has never seen there.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

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
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
        Some(indent) => {
            let blanks = [b' '; WIDEST_INDENT];
            let formatter = PrettyFormatter::with_indent(&blanks[..indent]);
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    let failed = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out).map_err(|error| failed(error.to_string()))
}
