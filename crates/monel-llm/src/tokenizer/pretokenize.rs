//! Cutting a text into words before byte pair encoding; merges never cross the cuts.
//!
//! Each family of models was trained with its own cutting rules, which a file names in `tokenizer.ggml.pre`. With other rules
//! the model still answers, only worse, so a name that is not in the table is an error; [`names`] lists them.
//!
//! The rules are regular expressions, run by the `regex` crate over bytes: text that is not UTF-8 matches nothing, becomes
//! pieces of its own and survives. The crate has no look-ahead, and the rules need exactly one, `\s+(?!\S)`: a run of blanks
//! leaves its last one to the word behind it. Here `\s+` stands for it, as the last alternative, and `Step::end_of` gives
//! the last blank back. An engine that has look-ahead needs no such step, but cuts 1 MB of English at 14 MB/s where this one
//! takes it at 47 to 57 (one Zen 5 core, the rules of `gpt-2` and `qwen2`); as encoding as a whole then runs at 25 MB/s, a
//! scanner by hand would win too little to be worth its errors.

use super::TokenizerError;
use regex::bytes::{Regex, RegexBuilder};
use std::ops::Range;

/// What to do with a match that ends with a blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blanks {
    /// Nothing: the pattern has no `\s+` alternative.
    Keep,
    /// Only the `\s+` alternative ends with a blank: give back the last one.
    GiveBack,
    /// The same, but a match that ends with a line break comes from another alternative.
    GiveBackUnlessNewline,
}

/// Pieces are cut by each step in turn; what a step does not match stays a piece.
type Rules = &'static [(&'static str, Blanks)];

/// One set of rules and the models that use it.
struct Family {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    rules: Rules,
    /// A word that is a token as a whole is that token, whatever the merges say.
    whole_words: bool,
    /// Begin of sequence is added where the file doesn't say.
    adds_bos: bool,
}

/// The pieces of GPT-2: contractions, words, numbers, punctuation, blanks.
const GPT2: (&str, Blanks) =
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", Blanks::GiveBack);
/// Punctuation first, as Falcon has it.
const FALCON_PUNCTUATION: (&str, Blanks) = (r"[\p{P}$+<=>^~|`]+", Blanks::Keep);

const TABLE: &[Family] = &[
    Family {
        names: &["gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2"],
        rules: &[GPT2],
        whole_words: false,
        adds_bos: false,
    },
    Family {
        names: &["default"],
        rules: &[
            (r"[\p{P}$+<=>^~|]+", Blanks::Keep),
            GPT2,
            (r"\p{N}+", Blanks::Keep),
            (r"[0-9][0-9][0-9]", Blanks::Keep),
        ],
        whole_words: false,
        adds_bos: false,
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell"],
        rules: &[(r"\p{N}", Blanks::Keep), GPT2],
        whole_words: false,
        adds_bos: false,
    },
    Family {
        names: &["falcon"],
        rules: &[FALCON_PUNCTUATION, GPT2, (r"[0-9][0-9][0-9]", Blanks::Keep)],
        whole_words: false,
        adds_bos: false,
    },
    Family {
        names: &["qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"],
        rules: &[(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            Blanks::GiveBackUnlessNewline,
        )],
        whole_words: false,
        adds_bos: false,
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3"],
        rules: &[LLAMA3],
        whole_words: true,
        adds_bos: true,
    },
    Family { names: &["dbrx", "smaug-bpe", "glm4"], rules: &[LLAMA3], whole_words: false, adds_bos: false },
    Family {
        names: &["gpt-4o", "llama4"],
        rules: &[(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
            Blanks::GiveBackUnlessNewline,
        )],
        whole_words: false,
        adds_bos: false,
    },
    Family {
        names: &["tekken"],
        rules: &[(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
            Blanks::GiveBackUnlessNewline,
        )],
        whole_words: true,
        adds_bos: true,
    },
    Family {
        names: &["deepseek-v3"],
        rules: &[
            (r"\p{N}{1,3}", Blanks::Keep),
            (r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", Blanks::Keep),
            (
                r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+",
                Blanks::GiveBackUnlessNewline,
            ),
        ],
        whole_words: false,
        adds_bos: false,
    },
];

/// Llama 3: like GPT-2, but numbers in threes, and line breaks end a piece.
const LLAMA3: (&str, Blanks) = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    Blanks::GiveBackUnlessNewline,
);

/// The supported values of `tokenizer.ggml.pre`.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|family| family.names.iter().copied())
}

/// The rules of one family of models, ready to cut.
#[derive(Debug, Clone)]
pub(super) struct PreTokenizer {
    steps: Vec<Step>,
    pub(super) whole_words: bool,
    pub(super) adds_bos: bool,
}

#[derive(Debug, Clone)]
struct Step {
    pattern: Regex,
    blanks: Blanks,
}

impl PreTokenizer {
    /// By its name in a file.
    pub(super) fn new(name: &str) -> Result<PreTokenizer, TokenizerError> {
        let family = TABLE.iter().find(|family| family.names.contains(&name));
        let family = family.ok_or_else(|| TokenizerError::UnsupportedPreTokenizer {
            found: name.to_owned(),
            supported: names().collect::<Vec<_>>().join(", "),
        })?;
        let step = |&(pattern, blanks): &(&str, Blanks)| match RegexBuilder::new(pattern).build() {
            Ok(pattern) => Ok(Step { pattern, blanks }),
            Err(error) => Err(TokenizerError::Build { part: "pre-tokenizer", reason: error.to_string() }),
        };
        Ok(PreTokenizer {
            steps: family.rules.iter().map(step).collect::<Result<_, _>>()?,
            whole_words: family.whole_words,
            adds_bos: family.adds_bos,
        })
    }

    /// Cuts `text` and gives the pieces in order; together they are the text.
    pub(super) fn split(&self, text: &[u8]) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for step in &self.steps {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                step.split(&text[piece.clone()], piece.start, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

impl Step {
    /// Cuts one piece that starts at `offset` in the whole text.
    fn split(&self, piece: &[u8], offset: usize, out: &mut Vec<Range<usize>>) {
        let mut at = 0;
        while let Some(found) = self.pattern.find_at(piece, at).filter(|found| !found.is_empty()) {
            if found.start() > at {
                out.push(offset + at..offset + found.start());
            }
            at = self.end_of(piece, found.range());
            out.push(offset + found.start()..offset + at);
        }
        if at < piece.len() {
            out.push(offset + at..offset + piece.len());
        }
    }

    /// Where the match really ends: before its last blank, if it is a run of several blanks and something follows.
    fn end_of(&self, piece: &[u8], found: Range<usize>) -> usize {
        if self.blanks == Blanks::Keep || found.end == piece.len() {
            return found.end;
        }
        match last_blank(&piece[found.clone()]) {
            Some('\r' | '\n') if self.blanks == Blanks::GiveBackUnlessNewline => found.end,
            Some(blank) if blank.len_utf8() < found.len() => found.end - blank.len_utf8(),
            _ => found.end,
        }
    }
}

/// The last character of a match, if it is a blank.
fn last_blank(text: &[u8]) -> Option<char> {
    let &last = text.last()?;
    if last.is_ascii() {
        return Some(char::from(last)).filter(|c| c.is_whitespace());
    }
    // A match is whole characters: the last one starts at the last byte that doesn't continue another.
    let start = text.iter().rposition(|byte| byte & 0xC0 != 0x80)?;
    std::str::from_utf8(&text[start..]).ok()?.chars().next().filter(|c| c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let cuts = PreTokenizer::new(name).unwrap().split(text.as_bytes());
        cuts.into_iter().map(|cut| text[cut].to_owned()).collect()
    }

    #[test]
    fn all_patterns_compile_and_names_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name} is listed twice");
            PreTokenizer::new(name).unwrap();
        }
    }

    #[test]
    fn a_run_of_blanks_leaves_its_last_one() {
        for name in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
            assert_eq!(pieces(name, "a   b"), ["a", "  ", " b"], "{name}");
            assert_eq!(pieces(name, "a   "), ["a", "   "], "{name}");
            assert_eq!(pieces(name, " a"), [" a"], "{name}");
        }
        // A wide blank in front of a letter joins it where any character may, and stands alone where only a space may.
        assert_eq!(pieces("qwen2", "a \u{3000}b"), ["a", " ", "\u{3000}b"]);
        assert_eq!(pieces("gpt-2", "a \u{3000}b"), ["a", " ", "\u{3000}", "b"]);
        assert_eq!(pieces("gpt-2", "\t\tx"), ["\t", "\t", "x"]);
    }

    #[test]
    fn line_breaks() {
        assert_eq!(pieces("qwen2", "a \n \n  b"), ["a", " \n \n", " ", " b"]);
        assert_eq!(pieces("qwen2", "a !\n\nb"), ["a", " !\n\n", "b"]);
        assert_eq!(pieces("gpt-2", "a\n\n b"), ["a", "\n\n", " b"]);
        assert_eq!(pieces("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
    }

    #[test]
    fn digits() {
        assert_eq!(pieces("smollm", "a 12  3"), ["a", " ", "1", "2", "  ", "3"]);
        assert_eq!(pieces("qwen2", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(pieces("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(pieces("gpt-2", "a 12345"), ["a", " 12345"]);
        assert_eq!(pieces("default", "x12345."), ["x", "123", "45", "."]);
    }

    #[test]
    fn contractions_and_case() {
        assert_eq!(pieces("gpt-2", "it's IT'S"), ["it", "'s", " IT", "'", "S"]);
        assert_eq!(pieces("qwen2", "IT'S it'd"), ["IT", "'S", " it", "'d"]);
        assert_eq!(pieces("gpt-4o", "HelloWorld's"), ["Hello", "World's"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let text = b"ab\xFF\xFE cd\xC3";
        let cuts = PreTokenizer::new("qwen2").unwrap().split(text);
        let joined: Vec<u8> = cuts.iter().flat_map(|cut| text[cut.clone()].iter().copied()).collect();
        assert_eq!(joined, text);
        assert_eq!(cuts[0], 0..2);
    }

    #[test]
    fn unknown_names_say_what_is_known() {
        let error = PreTokenizer::new("no-such-model").unwrap_err().to_string();
        assert!(error.contains("no-such-model") && error.contains("smollm, "), "{error}");
    }
}
