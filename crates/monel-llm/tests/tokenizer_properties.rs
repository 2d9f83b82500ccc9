//! What holds for any text, and for any description of a vocabulary.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use common::{GEMMA3, QWEN25, SMOLLM2};
use monel_gguf::{Metadata, StringArray, Value};
use monel_llm::tokenizer::{
    DecodeOptions, StreamDecoder, Tokenizer, TokenizerError, VocabSource, pretokenize,
};
use proptest::prelude::*;
use std::sync::OnceLock;

/// Special tokens by name, nothing removed: decoding is the inverse of encoding.
const ALL: DecodeOptions = DecodeOptions { remove_special: false, unparse_special: true, continues: true };

/// Each byte in the alphabet of byte-level vocabularies.
fn alphabet() -> Vec<String> {
    let visible = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100..;
    (0..256)
        .map(|byte| char::from_u32(if visible(byte) { byte } else { others.next().unwrap() }).unwrap().into())
        .collect()
}

/// A byte-level vocabulary with every byte, some merges and special tokens.
fn byte_level(pre: &str) -> Tokenizer {
    let mut tokens = alphabet();
    let merges = ["t h", "th e", "Ġ the", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "i n", "a a", "aa aa", "Ã ©", "ð Ł"];
    tokens.extend(merges.iter().map(|rule| rule.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for (text, kind) in [("<|end|>", 3), ("<|e", 3), ("<tool>", 4), ("  ", 4)] {
        tokens.push(text.into());
        types.push(kind);
    }
    Tokenizer::new(&VocabSource {
        model: "gpt2",
        pre: Some(pre),
        tokens: tokens.iter().map(|text| text.as_bytes()).collect(),
        types: Some(types),
        merges: Some(merges.iter().map(|rule| rule.as_bytes()).collect()),
        ..Default::default()
    })
    .unwrap()
}

fn byte_level_all() -> &'static [(&'static str, Tokenizer)] {
    static ALL: OnceLock<Vec<(&'static str, Tokenizer)>> = OnceLock::new();
    ALL.get_or_init(|| pretokenize::names().map(|name| (name, byte_level(name))).collect())
}

/// The real vocabularies that are on this machine.
fn real() -> &'static [Tokenizer] {
    static ALL: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    ALL.get_or_init(|| [SMOLLM2, GEMMA3, QWEN25].into_iter().filter_map(common::tokenizer).collect())
}

/// Texts in which blanks, digits, special tokens and odd characters are frequent.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("the".to_owned()),
        Just("  ".to_owned()),
        Just("<|end|>".to_owned()),
        Just("<tool>".to_owned()),
        "[ \t\r\n]{1,4}",
        "[a-cA-C0-9'.!]{1,5}",
        any::<char>().prop_map(String::from),
        "\\PC{1,3}",
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![prop::collection::vec(any::<u8>(), 0..6), text().prop_map(String::into_bytes)];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn byte_level_gives_any_bytes_back(bytes in bytes(), special in any::<bool>()) {
        for (name, tokenizer) in byte_level_all() {
            let ids = tokenizer.encode(&bytes, true, special).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids, ALL).unwrap(), &bytes, "{}", name);
        }
    }

    #[test]
    fn real_vocabularies_give_back_what_they_express(bytes in bytes(), special in any::<bool>()) {
        // SentencePiece's own sign for a blank comes back as a blank.
        prop_assume!(!bytes.windows(3).any(|window| window == "\u{2581}".as_bytes()));
        for tokenizer in real() {
            let ids = tokenizer.encode(&bytes, false, special).unwrap();
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.len()));
            let spelled: Vec<u8> = bytes.iter().copied().filter(|&byte| tokenizer.expresses(byte)).collect();
            prop_assert_eq!(tokenizer.decode(&ids, ALL).unwrap(), spelled);
        }
    }

    #[test]
    fn streaming_equals_decoding(text in text()) {
        for (_, tokenizer) in byte_level_all().iter().take(2) {
            let ids = tokenizer.encode(&text, true, true).unwrap();
            let mut decoder = StreamDecoder::new(tokenizer, ALL);
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(decoder.push(id).unwrap());
                prop_assert!(text.starts_with(&streamed));
            }
            prop_assert_eq!(decoder.finish(), "");
            prop_assert_eq!(&streamed, &text);
        }
    }

    #[test]
    fn streaming_shows_replacements_as_decoding_does(bytes in bytes()) {
        let tokenizer = &byte_level_all()[0].1;
        let ids = tokenizer.encode(&bytes, true, true).unwrap();
        let mut decoder = StreamDecoder::new(tokenizer, ALL);
        let mut streamed = String::new();
        for &id in &ids {
            streamed.push_str(decoder.push(id).unwrap());
        }
        streamed.push_str(decoder.finish());
        prop_assert_eq!(streamed, String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_description_is_a_tokenizer_or_an_error(
        model in prop_oneof![Just("gpt2"), Just("llama"), Just("bert"), Just("")],
        pre in prop::option::of(prop_oneof![Just("smollm"), Just("llama-bpe"), Just("?")]),
        tokens in prop::collection::vec(prop_oneof!["[ab▁Ġ <>]{0,3}", Just("<0x0A>".to_owned())], 0..8),
        types in prop::option::of(prop::collection::vec(-1i32..8, 0..8)),
        all_types in any::<bool>(),
        scores in prop::option::of(prop::collection::vec(any::<f32>(), 0..8)),
        merges in prop::option::of(prop::collection::vec("[abĠ ]{0,4}", 0..5)),
        special in prop::array::uniform5(prop::option::of(0u32..10)),
        flags in prop::array::uniform3(prop::option::of(any::<bool>())),
        text in bytes(),
    ) {
        // Lengths that fit now and then, or hardly anything gets through.
        let fit = |mut list: Vec<i32>| { list.resize(tokens.len(), 1); list };
        let source = VocabSource {
            model,
            pre,
            tokens: tokens.iter().map(|text| text.as_bytes()).collect(),
            types: if all_types { types.map(fit) } else { types },
            scores: scores.map(|mut list| { if all_types { list.resize(tokens.len(), f32::NAN); } list }),
            merges: merges.as_ref().map(|merges| merges.iter().map(|rule| rule.as_bytes()).collect()),
            bos: special[0], eos: special[1], eot: special[2], eom: special[3], unknown: special[4],
            add_bos: flags[0], add_eos: flags[1], add_space_prefix: flags[2],
        };
        match Tokenizer::new(&source) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(tokenizer) => {
                for parse in [false, true] {
                    let ids = tokenizer.encode(&text, true, parse).unwrap();
                    tokenizer.decode(&ids, DecodeOptions::default()).unwrap();
                }
                let len = tokenizer.len();
                prop_assert_eq!(
                    tokenizer.decode(&[len as u32], ALL),
                    Err(TokenizerError::IdOutOfRange { id: len as u32, len })
                );
                prop_assert!(tokenizer.piece(u32::MAX).is_err());
            }
        }
    }
}

/// A `llama` model that puts a blank in front of texts.
fn prefixing() -> Tokenizer {
    Tokenizer::new(&VocabSource {
        model: "llama",
        tokens: vec!["<unk>", "<s>", "</s>", "▁", "a", "▁a"].into_iter().map(str::as_bytes).collect(),
        types: Some(vec![2, 3, 3, 1, 1, 1]),
        scores: Some(vec![0.0, 0.0, 0.0, -1.0, -2.0, -3.0]),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_eos: Some(true),
        ..Default::default()
    })
    .unwrap()
}

#[test]
fn a_blank_in_front_comes_and_goes() {
    let tokenizer = prefixing();
    let ids = tokenizer.encode("a a", true, true).unwrap();
    assert_eq!(ids, [1, 5, 5, 2]);
    let options = DecodeOptions { remove_special: true, unparse_special: true, continues: false };
    assert_eq!(tokenizer.decode_lossy(&ids, options).unwrap(), "a a");
    assert_eq!(tokenizer.decode_lossy(&[5], DecodeOptions { continues: true, ..options }).unwrap(), " a");
    let mut stream = StreamDecoder::new(&tokenizer, options);
    let streamed: String = ids[..3].iter().map(|&id| stream.push(id).unwrap().to_owned()).collect();
    assert_eq!(streamed, "a a");
    // Behind a special token too.
    assert_eq!(tokenizer.encode("<s>a", false, true).unwrap(), [1, 5]);
    assert_eq!(tokenizer.encode("", true, true).unwrap(), [1, 2]);
    assert_eq!(tokenizer.encode("aé", false, true).unwrap(), [5, 0]);
}

#[test]
fn characters_over_several_tokens_are_held_back() {
    let tokenizer = std::sync::Arc::new(byte_level("gpt-2"));
    let mut decoder = StreamDecoder::new(tokenizer.clone(), ALL);
    let ids = tokenizer.encode("é🙂x", false, false).unwrap();
    let shown: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap().to_owned()).collect();
    assert_eq!(shown, ["é", "", "", "🙂", "x"]);
    // Cut off in the middle: shown as a replacement, once, at the end.
    decoder.push(ids[1]).unwrap();
    assert!(decoder.push(u32::MAX).is_err());
    assert_eq!(decoder.finish(), "\u{FFFD}");
    assert_eq!(decoder.finish(), "");
}

/// Metadata of a small file that is right, to be made wrong.
fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "llama");
    let tokens: StringArray = ["<s>", "a", "b"].into_iter().collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Array(monel_gguf::Array::String(tokens)));
    metadata.insert("tokenizer.ggml.scores", Value::Array(monel_gguf::Array::F32(vec![0.0; 3])));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(monel_gguf::Array::I32(vec![3, 1, 1])));
    metadata.insert("tokenizer.ggml.bos_token_id", Value::U32(0));
    metadata
}

#[test]
fn files_that_are_wrong_are_refused_with_facts() {
    let built = |key: &str, value: Value| {
        let mut metadata = metadata();
        metadata.insert(key, value);
        Tokenizer::from_gguf(&metadata).map(|tokenizer| tokenizer.len())
    };
    assert_eq!(built("tokenizer.ggml.eos_token_id", Value::U32(2)), Ok(3));
    assert_eq!(
        built("tokenizer.ggml.eos_token_id", Value::U32(3)),
        Err(TokenizerError::SpecialOutOfRange { key: "tokenizer.ggml.eos_token_id", id: 3, len: 3 })
    );
    assert_eq!(
        built("tokenizer.ggml.scores", Value::Array(monel_gguf::Array::F32(vec![0.0]))),
        Err(TokenizerError::LengthMismatch { key: "tokenizer.ggml.scores", expected: 3, found: 1 })
    );
    assert_eq!(
        built("tokenizer.ggml.model", Value::String(b"gpt2".to_vec())),
        Err(TokenizerError::Missing { key: "tokenizer.ggml.merges", model: "gpt2".into() })
    );
    assert!(matches!(
        built("tokenizer.ggml.model", Value::String(b"bert".to_vec())),
        Err(TokenizerError::UnsupportedModel { .. })
    ));
    assert_eq!(
        built("tokenizer.ggml.add_eos_token", Value::Bool(true)),
        Err(TokenizerError::NoSuchSpecial {
            flag: "tokenizer.ggml.add_eos_token",
            key: "tokenizer.ggml.eos_token_id"
        })
    );
    let error = built("tokenizer.ggml.tokens", Value::U32(1)).unwrap_err();
    assert!(matches!(error, TokenizerError::Metadata { .. }));
    assert!(error.to_string().contains("tokenizer.ggml.tokens"), "{error}");
    assert_eq!(
        Tokenizer::from_gguf(&Metadata::new()).unwrap_err(),
        TokenizerError::Missing { key: "tokenizer.ggml.model", model: String::new() }
    );
}
