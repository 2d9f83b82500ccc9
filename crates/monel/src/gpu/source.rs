//! A kernel's text before it is compiled: the declarations, the library parts it uses, its own file, and what is put in
//! place of `$NAME`.

use std::fmt::Write;
use std::sync::Arc;

/// A specialised kernel; equal sources are compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    inner: Arc<Inner>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Inner {
    name: &'static str,
    /// Generated for this specialisation.
    head: String,
    /// Files, in order.
    parts: Vec<&'static str>,
    defines: Vec<(&'static str, String)>,
    /// Whether every subgroup is full and of the device's fixed size.
    full_subgroups: bool,
}

impl Source {
    pub(super) fn new(
        name: &'static str,
        head: String,
        parts: Vec<&'static str>,
        defines: Vec<(&'static str, String)>,
        full_subgroups: bool,
    ) -> Source {
        Source { inner: Arc::new(Inner { name, head, parts, defines, full_subgroups }) }
    }

    /// Whether every subgroup has to be full and of the size `Limits::subgroup_fixed`.
    pub fn full_subgroups(&self) -> bool {
        self.inner.full_subgroups
    }

    /// The kernel's name, for timelines and errors.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// The text that is compiled, or the name that nothing was defined for.
    pub fn text(&self) -> Result<String, String> {
        let mut out = String::new();
        for part in [self.inner.head.as_str()].iter().chain(&self.inner.parts) {
            self.expand(part, &mut out)?;
        }
        Ok(out)
    }

    /// What was specialised, in one line.
    pub fn variant(&self) -> String {
        let mut out = String::from(self.inner.name);
        for (name, value) in &self.inner.defines {
            // Writing to a string cannot fail.
            let _ = write!(out, " {name}={value}");
        }
        out
    }

    fn expand(&self, mut text: &str, out: &mut String) -> Result<(), String> {
        while let Some(at) = text.find('$') {
            out.push_str(&text[..at]);
            let rest = &text[at + 1..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
            // Names are in capitals, so that a number may be followed by its suffix: `$THREADSu`.
            let end = end.unwrap_or(rest.len());
            let name = &rest[..end];
            match self.inner.defines.iter().find(|(n, _)| *n == name) {
                // Definitions may use other definitions; a definition of itself would not end, so depth is one.
                Some((_, value)) if value.contains('$') => {
                    return Err(format!("the definition of ${name} contains another"));
                }
                Some((_, value)) => out.push_str(value),
                None => return Err(format!("{}: nothing is defined for ${name}", self.inner.name)),
            }
            text = &rest[end..];
        }
        out.push_str(text);
        out.push('\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_whole_and_unknown_ones_are_errors() {
        let source = |parts, defines| Source::new("test", String::new(), parts, defines, false);
        let defines = vec![("N", "4".to_string()), ("NAME", "x".to_string())];
        let text = source(vec!["let $NAME = $Nu;$N"], defines.clone()).text().unwrap();
        assert_eq!(text.trim(), "let x = 4u;4");
        let error = source(vec!["$MISSING"], defines).text().unwrap_err();
        assert!(error.contains("$MISSING"), "{error}");
    }
}
