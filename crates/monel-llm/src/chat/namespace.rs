//! No value of a template may hold itself.
//!
//! The engine's values are immutable and only grow outwards, but for one: a `namespace`, whose attributes are set later.
//! One that is put into itself is never written to the end, and the engine's recursion over it ends the process. So a
//! template is refused in which a namespace could be put into a namespace; passing one on to macros or to other variables is
//! common and stays.
//!
//! What a variable may hold is followed by its name alone, whatever the place and the order: a name is a *namespace* where
//! one is assigned to it as it is, and *mixed* where something may hold one. This reads the code of a template that the
//! engine has accepted, so it only has to tell tokens apart.

use std::collections::{HashMap, HashSet};

/// A piece of a template's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    /// `{%`
    Begin,
    /// `%}`
    End,
    /// `{{` or `}}`
    Border,
    Name(&'a str),
    /// A number or a string.
    Literal,
    Sign(u8),
}

type Tokens<'s, 'a> = &'s [(Token<'a>, usize)];

/// What an expression may give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    /// No namespace.
    None,
    /// A namespace or something without one.
    Itself,
    /// Something that may have a namespace inside.
    Mixed,
}

/// The line, from 1, of the place in `source` where a namespace could be put into a namespace.
pub(super) fn put_into_another(source: &str) -> Option<usize> {
    let tokens = tokens(source);
    let mut names = Names::new(&tokens);
    // Each round adds a name or is the last.
    let place = loop {
        let known = names.count();
        let place = names.round(&tokens);
        if names.count() == known {
            break place;
        }
    };
    place.map(|place| 1 + source.as_bytes()[..place].iter().filter(|&&byte| byte == b'\n').count())
}

/// What is known of a template's names.
#[derive(Default)]
struct Names<'a> {
    namespaces: HashSet<&'a str>,
    mixed: HashSet<&'a str>,
    /// The parameters of every macro of a name, in their order.
    macros: HashMap<&'a str, Vec<Vec<&'a str>>>,
}

impl<'a> Names<'a> {
    fn new(tokens: Tokens<'_, 'a>) -> Self {
        let mut names = Names::default();
        for (at, (token, _)) in tokens.iter().enumerate() {
            let begins = at >= 1 && tokens[at - 1].0 == Token::Begin;
            match (token, tokens.get(at + 1)) {
                (Token::Name("macro"), Some((Token::Name(name), _))) if begins => {
                    let parameters = parameters(arguments(tokens, at + 2));
                    names.macros.entry(name).or_default().push(parameters);
                }
                // What a caller gives back to such a block is not followed.
                (Token::Name("call"), Some((Token::Sign(b'('), _))) if begins => {
                    names.mixed.extend(parameters(arguments(tokens, at + 1)));
                }
                _ => {}
            }
        }
        // A macro under another name may be called with anything, and so may what takes these names.
        for (at, (token, _)) in tokens.iter().enumerate() {
            let Token::Name(name) = token else { continue };
            let called = tokens.get(at + 1).is_some_and(|(next, _)| *next == Token::Sign(b'('));
            let other = at >= 1 && matches!(tokens[at - 1].0, Token::Sign(b'.' | b'|') | Token::Name("is"));
            if (!called && !other) || matches!(*name, "caller" | "loop") {
                names.mixed.extend(names.macros.remove(name).into_iter().flatten().flatten());
            }
        }
        names
    }

    fn count(&self) -> usize {
        self.namespaces.len() + self.mixed.len()
    }

    fn add(&mut self, name: &'a str, holds: Holds) {
        match holds {
            Holds::None => false,
            Holds::Itself => self.namespaces.insert(name),
            Holds::Mixed => self.mixed.insert(name),
        };
    }

    /// Follows every assignment once; the place of one that puts a namespace into a namespace, if there is any.
    fn round(&mut self, tokens: Tokens<'_, 'a>) -> Option<usize> {
        let mut found = None;
        for (at, &(token, place)) in tokens.iter().enumerate() {
            let refused = match token {
                Token::Begin => self.statement(&tokens[at + 1..]),
                Token::Name("namespace") if is_call(tokens, at) => {
                    arguments(tokens, at + 1).iter().any(|argument| self.holds(argument) != Holds::None)
                }
                Token::Name(name) if self.macros.contains_key(name) && is_call(tokens, at) => {
                    self.call(name, &arguments(tokens, at + 1))
                }
                _ => false,
            };
            if refused && found.is_none() {
                found = Some(place);
            }
        }
        found
    }

    /// What the parameters of a macro are given; true for what can't be followed.
    fn call(&mut self, name: &'a str, arguments: &[Tokens<'_, 'a>]) -> bool {
        let mut spread = false;
        for (index, argument) in arguments.iter().enumerate() {
            let holds = self.holds(argument);
            spread |= matches!(argument.first(), Some((Token::Sign(b'*'), _)));
            if holds == Holds::None {
                continue;
            }
            if spread {
                return true;
            }
            let named = match argument {
                [(Token::Name(name), _), (Token::Sign(b'='), _), ..] => Some(*name),
                _ => None,
            };
            let macros = self.macros.get(name).into_iter().flatten();
            let given: Vec<_> = macros.filter_map(|given| named.or(given.get(index).copied())).collect();
            given.into_iter().for_each(|parameter| self.add(parameter, holds));
        }
        false
    }

    /// The variables that a statement sets; true where it puts a namespace into a namespace.
    fn statement(&mut self, tokens: Tokens<'_, 'a>) -> bool {
        let end = tokens.iter().position(|(token, _)| *token == Token::End).unwrap_or(tokens.len());
        let Some(((keyword, _), rest)) = tokens[..end].split_first() else { return false };
        let divided = |by: Token<'_>| {
            let at = rest.iter().position(|(token, _)| *token == by);
            at.map_or((rest, &rest[rest.len()..]), |at| (&rest[..at], &rest[at + 1..]))
        };
        let (targets, mut holds) = match keyword {
            Token::Name("set") => {
                let (targets, value) = divided(Token::Sign(b'='));
                let holds = self.holds(value);
                if targets.iter().any(|(token, _)| *token == Token::Sign(b'.')) && holds != Holds::None {
                    return true;
                }
                // A block that is kept passes filters.
                (
                    targets,
                    if value.is_empty() && self.holds(targets) != Holds::None { Holds::Mixed } else { holds },
                )
            }
            Token::Name("for") => {
                let (targets, value) = divided(Token::Name("in"));
                // The items of a namespace are names.
                let holds = if self.holds(value) == Holds::Mixed { Holds::Mixed } else { Holds::None };
                self.add("loop", holds);
                let again = value.iter().any(|(token, _)| *token == Token::Name("recursive"));
                (targets, if again { Holds::Mixed } else { holds })
            }
            Token::Name("with") => (rest, self.holds(rest)),
            _ => return false,
        };
        let several = targets.iter().any(|(token, _)| *token == Token::Sign(b','));
        if several && holds == Holds::Itself {
            holds = Holds::Mixed;
        }
        for (at, (token, _)) in targets.iter().enumerate() {
            match token {
                Token::Name(name) if at == 0 || targets[at - 1].0 != Token::Sign(b'.') => {
                    self.add(name, holds)
                }
                _ => {}
            }
        }
        false
    }

    /// What an expression may give.
    fn holds(&self, tokens: Tokens<'_, 'a>) -> Holds {
        let mut holds = Holds::None;
        let mut mixes = false;
        let mut at = 0;
        while let Some((token, _)) = tokens.get(at) {
            let before = at.checked_sub(1).map(|before| tokens[before].0);
            let next = tokens.get(at + 1).map(|&(token, _)| token);
            at += 1;
            match *token {
                Token::Sign(b'(' | b'[' | b'{' | b',' | b'|') => mixes = true,
                // An attribute, or the name of an argument.
                Token::Name(_) if before == Some(Token::Sign(b'.')) || next == Some(Token::Sign(b'=')) => {}
                Token::Name("namespace") if next == Some(Token::Sign(b'(')) => {
                    holds = holds.max(Holds::Itself);
                    at = behind(tokens, at);
                }
                Token::Name("namespace") => holds = Holds::Mixed,
                // A macro gives text.
                Token::Name(name) if self.macros.contains_key(name) && is_call(tokens, at - 1) => {
                    at = behind(tokens, at)
                }
                Token::Name(name) if self.mixed.contains(name) => holds = Holds::Mixed,
                Token::Name(name) if self.namespaces.contains(name) => match next {
                    Some(Token::Sign(b'.' | b'[') | Token::Name("is")) => {}
                    _ => holds = holds.max(Holds::Itself),
                },
                _ => {}
            }
        }
        if holds == Holds::Itself && mixes { Holds::Mixed } else { holds }
    }
}

/// Whether the name at `at` is called, and is no method, filter or test.
fn is_call(tokens: Tokens<'_, '_>, at: usize) -> bool {
    let before = at.checked_sub(1).map(|before| tokens[before].0);
    let other = matches!(before, Some(Token::Sign(b'.' | b'|') | Token::Name("is" | "filter")));
    !other && tokens.get(at + 1).is_some_and(|(next, _)| *next == Token::Sign(b'('))
}

/// The place behind the bracket that closes the one at `at`.
fn behind(tokens: Tokens<'_, '_>, at: usize) -> usize {
    let mut open = 0usize;
    for (further, (token, _)) in tokens[at..].iter().enumerate() {
        match token {
            Token::Sign(b'(' | b'[' | b'{') => open += 1,
            Token::Sign(b')' | b']' | b'}') => open = open.saturating_sub(1),
            _ => {}
        }
        if open == 0 {
            return at + further + 1;
        }
    }
    tokens.len()
}

/// What stands between the commas of the brackets that open at `at`.
fn arguments<'s, 'a>(tokens: Tokens<'s, 'a>, at: usize) -> Vec<Tokens<'s, 'a>> {
    let end = behind(tokens, at).saturating_sub(1);
    let (mut arguments, mut start, mut place) = (Vec::new(), at + 1, at + 1);
    while place < end {
        match tokens[place].0 {
            Token::Sign(b',') => {
                arguments.push(&tokens[start..place]);
                place += 1;
                start = place;
            }
            Token::Sign(b'(' | b'[' | b'{') => place = behind(tokens, place),
            _ => place += 1,
        }
    }
    if start < end {
        arguments.push(&tokens[start..end]);
    }
    arguments
}

/// The names of parameters.
fn parameters<'a>(arguments: Vec<Tokens<'_, 'a>>) -> Vec<&'a str> {
    let first = |argument: &Tokens<'_, 'a>| match argument.first() {
        Some((Token::Name(name), _)) => *name,
        _ => "",
    };
    arguments.iter().map(first).collect()
}

/// The code of a template, without its text, comments and raw parts.
fn tokens(source: &str) -> Vec<(Token<'_>, usize)> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(start) = find(bytes, at, b"{") {
        let inside = start + 2;
        at = match bytes.get(start + 1) {
            Some(b'#') => find(bytes, inside, b"#}").map_or(bytes.len(), |end| end + 2),
            Some(b'%') => match tag(bytes, inside + trims(bytes, inside), b"raw") {
                Some(raw) => after_raw(bytes, raw),
                None => code(source, inside, b"%}", &mut tokens),
            },
            Some(b'{') => code(source, inside, b"}}", &mut tokens),
            _ => start + 1,
        };
    }
    tokens
}

/// Reads code from `at` on to its end, `close`, and gives the place behind it.
fn code<'a>(source: &'a str, mut at: usize, close: &[u8], tokens: &mut Vec<(Token<'a>, usize)>) -> usize {
    let bytes = source.as_bytes();
    let statement = close == b"%}";
    tokens.push((if statement { Token::Begin } else { Token::Border }, at));
    at += trims(bytes, at);
    let mut open = 0usize;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let trim = trims(bytes, at);
        if open == 0 && rest[trim..].starts_with(close) {
            tokens.push((if statement { Token::End } else { Token::Border }, at));
            return at + trim + close.len();
        }
        let (token, length) = match byte {
            b'\'' | b'"' => (Token::Literal, string(rest)),
            b'0'..=b'9' => (Token::Literal, rest.iter().take_while(|b| b.is_ascii_digit()).count()),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let length = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
                (Token::Name(&source[at..at + length]), length)
            }
            // `==` is not the sign that gives a value.
            b'=' | b'!' | b'<' | b'>' if rest.get(1) == Some(&b'=') => (Token::Sign(b'!'), 2),
            _ => (Token::Sign(byte), 1),
        };
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            tokens.push((token, at));
        }
        at += length;
    }
    bytes.len()
}

/// Bytes of a sign at `at` that says what becomes of the blanks outside.
fn trims(bytes: &[u8], at: usize) -> usize {
    usize::from(matches!(bytes.get(at), Some(b'-' | b'+')))
}

/// The length of a string, quotes included.
fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if byte == bytes[0] => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The place behind the `endraw` that ends what begins at `at`.
fn after_raw(bytes: &[u8], mut at: usize) -> usize {
    while let Some(start) = find(bytes, at, b"{%") {
        at = start + 2;
        if let Some(end) = tag(bytes, at + trims(bytes, at), b"endraw") {
            return end;
        }
    }
    bytes.len()
}

/// The place behind a statement that is only `name`, if one goes on so at `at`.
fn tag(bytes: &[u8], at: usize, name: &[u8]) -> Option<usize> {
    let blank = |at: usize| {
        at + bytes.get(at..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_whitespace()).count()
    };
    let at = blank(at);
    let at = bytes[at..].starts_with(name).then(|| blank(at + name.len()))?;
    let at = at + trims(bytes, at);
    bytes[at..].starts_with(b"%}").then_some(at + 2)
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let from = from.min(bytes.len());
    bytes[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::put_into_another;

    #[test]
    fn namespaces_as_templates_use_them_pass() {
        for source in [
            "",
            "no code, namespace {{ 'namespace' }}{# namespace #}{% raw %}{% set ns.a = namespace %}{% endraw %}",
            "{%- set ns = namespace(a=[], b={'c': (1, 2)}) -%}{% set ns.a = ns.a + [ns.b] %}{{- ns | tojson -}}",
            "{% set ns = namespace() %}{% if ns is defined and x.ns == 1 %}{% set ns.a = f(ns=1, namespace=2) %}{% endif %}",
            "{% set a = namespace(\n  x=1,\n  y=(f(2))\n) %}{% set a.b = a.items() %} a {% set a.c = 'a' ~ \"it's a\" ~ '\\'a' %}",
            // A counter that macros share.
            "{%- macro next(state) -%}{%- set state.index = state.index + 1 -%}{%- endmacro -%}
             {%- macro text(t, state) -%}{%- for part in t -%}{{- next(state) -}}{%- endfor -%}{%- endmacro -%}
             {%- set state = namespace(index=0, calls=none) -%}{%- for m in messages -%}{{ text(m.get('a'), state) }}
             {%- set state.calls = m.get('calls') -%}{%- endfor -%}",
            // Under two names, from one macro to another, and text that was made with it.
            "{% macro schema(s, indent='', ref_ns=none) %}{% if ref_ns is none %}{% set r = namespace(chain=[]) %}
             {% else %}{% set r = ref_ns %}{% endif %}{% set r2 = namespace(chain=r.chain + [s]) %}
             {% set parts = namespace(p=[]) %}{% for x in s.any %}{% set t = schema(x, indent, r2) %}
             {% set parts.p = parts.p + ['(' ~ t ~ ')'] %}{% endfor %}{{ schema(s, ref_ns=r) }}{% endmacro %}",
            // A name that is a namespace for a while.
            "{% macro list(tools) %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endmacro %}
             {% if not tools %}{% set tools = namespace(value=[]) %}{% for m in messages %}{% for tool in m.tools %}
             {% set tools.value = tools.value + [tool] %}{% endfor %}{% endfor %}{% set tools = tools.value %}{% endif %}{{ list(tools) }}",
        ] {
            assert_eq!(put_into_another(source), None, "{source}");
        }
    }

    #[test]
    fn a_namespace_that_could_get_into_a_namespace_is_found() {
        for (line, source) in [
            (1, "{% set ns=namespace() %}{% set ns.a=ns %}"),
            (2, "{%- set ns = namespace() -%}\n{%- set ns.a = [1, ns] -%}"),
            (1, "{% set ns = namespace() %}{% set ns.a = {'k': x or ns} %}"),
            (1, "{% set ns = namespace() %}{% set a = ns %}{% set ns.a = a %}"),
            (1, "{% set ns = namespace() %}{% set a = [ns] %}{% set ns.a = a[0] %}"),
            (1, "{% set ns = namespace() %}{% set a = {'k': ns} %}{% set ns.a = a.k %}"),
            (1, "{% set ns = namespace() %}{% set a, b = 1, ns %}{% set ns.a = b %}"),
            (1, "{% set a = namespace(), %}{% set a.0.x = a.0 %}"),
            (1, "{% set ns.a = b %}{% set b = c %}{% set c = namespace() %}"),
            (1, "{% for x in [namespace()] %}{% set x.a = x %}{% endfor %}"),
            (1, "{% for x in [namespace(), 1] %}{% set x.a = loop.previtem %}{% endfor %}"),
            (1, "{% for x in [y] recursive %}{% set x.a = x %}{{ loop([namespace()]) }}{% endfor %}"),
            (1, "{% with a = namespace(), b = 1 %}{% set a.b = a %}{% endwith %}"),
            (1, "{% macro m(x) %}{% set x.a = x %}{% endmacro %}{{ m(namespace()) }}"),
            (1, "{% macro m(y, x=1) %}{% set x.a = x %}{% endmacro %}{{ m(1, x=namespace()) }}"),
            (1, "{% macro m(x=namespace()) %}{% set x.a = x %}{% endmacro %}{{ m() }}"),
            (1, "{% macro m(y, x) %}{% set x.a = x %}{% endmacro %}{{ m(*[1, namespace()]) }}"),
            (1, "{% macro m(x) %}{% set x.a = x %}{% endmacro %}{% set f = m %}{{ f(namespace()) }}"),
            (
                1,
                "{% macro m() %}{{ caller(namespace()) }}{% endmacro %}{% call(x) m() %}{% set x.a = x %}{% endcall %}",
            ),
            (
                1,
                "{% macro caller(x) %}{% endmacro %}{% macro m() %}{{ caller(namespace()) }}{% endmacro %}{% call(x) m() %}{% set x.a = x %}{% endcall %}",
            ),
            (1, "{% set f = namespace %}{% set x.a = f() %}"),
            (1, "{% set ns = namespace() %}{% set x = namespace(a=ns) %}"),
            (1, "{% set ns = namespace(a=namespace()) %}"),
            (1, "{% set ns = namespace() %}{% set ns.a = ns|default(1) %}"),
            (1, "{% set ns = namespace() %}{% set x | replace('a', ns) %}{% endset %}{% set ns.a = x %}"),
            (1, "{% raw %}{{ '{%-endraw%}{% set ns = namespace() %}{% set ns.a = ns %}"),
            (1, "{%-raw%}{% endraw %}{% set ns = namespace() %}{{ {'a': {}} }}{% set ns.a = ns %}"),
            (1, "{# {% #}{% set ns = namespace() %}{{ '\\'' }}{% set ns.a = ns %}"),
        ] {
            assert_eq!(put_into_another(source), Some(line), "{source}");
        }
    }
}
