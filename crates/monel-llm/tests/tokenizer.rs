//! Against the ids that llama.cpp gives for the same strings (`tests/reference/tokenize-*.json`), on the real vocabularies.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use common::{GEMMA3, QWEN25, SMOLLM2};
use monel_llm::tokenizer::{DecodeOptions, StreamDecoder, TokenId, Tokenizer};
use serde_json::Value;

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

fn stem(model: &str) -> &str {
    model.strip_suffix(".gguf").unwrap()
}

/// Text as the reference decodes it: special tokens by name, begin and end left out.
const AS_REFERENCE: DecodeOptions =
    DecodeOptions { remove_special: true, unparse_special: true, continues: false };

fn streamed(tokenizer: &Tokenizer, ids: &[TokenId], options: DecodeOptions) -> String {
    let mut decoder = StreamDecoder::new(tokenizer, options);
    let mut text = String::new();
    for &id in ids {
        text.push_str(decoder.push(id).unwrap());
    }
    text.push_str(decoder.finish());
    text
}

/// Every string of the reference, all ways. Returns how many there were.
fn strings(model: &str, tokenizer: &Tokenizer) -> usize {
    let reference = common::reference(&format!("tokenize-{}.json", stem(model)));
    assert_eq!(tokenizer.len() as u64, reference["n_vocab"].as_u64().unwrap());
    assert_eq!(tokenizer.adds_bos(), reference["add_bos"].as_bool().unwrap());
    assert_eq!(tokenizer.bos().map(u64::from), reference["bos"].as_u64());
    assert_eq!(tokenizer.eos().map(u64::from), reference["eos"].as_u64());
    assert!(tokenizer.is_eog(reference["eot"].as_u64().unwrap() as TokenId));
    assert!(tokenizer.is_eog(tokenizer.eos().unwrap()));
    assert_eq!(tokenizer.warnings(), [""; 0]);
    let strings = reference["strings"].as_array().unwrap();
    let mut wrong = Vec::new();
    for string in strings {
        let (name, text) = (string["id"].as_str().unwrap(), string["text"].as_str().unwrap());
        let expected = ids(&string["ids"]);
        let mut check = |what: &str, found: String, expected: String| {
            if found != expected {
                wrong.push(format!("{name}: {what}: found {found}, expected {expected}"));
            }
        };
        let found = tokenizer.encode(text, true, true).unwrap();
        check("ids", format!("{found:?}"), format!("{expected:?}"));
        let plain = string.get("ids_plain").map_or_else(|| expected.clone(), ids);
        let found = tokenizer.encode(text, false, false).unwrap();
        check("ids_plain", format!("{found:?}"), format!("{plain:?}"));
        let text = string.get("detok").map_or(text, |text| text.as_str().unwrap());
        check("detok", tokenizer.decode_lossy(&expected, AS_REFERENCE).unwrap(), text.to_owned());
        check("stream", streamed(tokenizer, &expected, AS_REFERENCE), text.to_owned());
        // The same ids behind others: a continued text is the same text here (none of the three puts blanks in front).
        let continues = DecodeOptions { continues: true, ..AS_REFERENCE };
        check("continued", tokenizer.decode_lossy(&expected, continues).unwrap(), text.to_owned());
    }
    assert!(wrong.is_empty(), "{model}: {} of {} strings:\n{}", wrong.len(), strings.len(), wrong.join("\n"));
    strings.len()
}

/// The prompts of the generation references.
fn prompts(model: &str, tokenizer: &Tokenizer) {
    let reference = common::reference(&format!("greedy-{}.json", stem(model)));
    for prompt in reference["prompts"].as_array().unwrap() {
        let found = tokenizer.encode(prompt["text"].as_str().unwrap(), true, true).unwrap();
        assert_eq!(found, ids(&prompt["prompt_ids"]), "{model}: prompt {}", prompt["id"]);
        for top in prompt["top10"].as_array().unwrap() {
            let id = top[0].as_u64().unwrap() as TokenId;
            // The reference shows pieces that are no UTF-8 as it likes.
            if let Ok(piece) = std::str::from_utf8(tokenizer.piece_bytes(id).unwrap()) {
                assert_eq!(Some(piece), top[1].as_str(), "{model}: piece {id}");
            }
        }
        // A generation ends before an end-of-generation token, so it has none.
        assert!(ids(&prompt["greedy_ids"]).iter().all(|&id| !tokenizer.is_eog(id)));
    }
}

#[test]
fn smollm2_as_llama_cpp() {
    let Some(tokenizer) = common::tokenizer(SMOLLM2) else { return };
    assert_eq!(strings(SMOLLM2, &tokenizer), 44);
    prompts(SMOLLM2, &tokenizer);
    assert_eq!(tokenizer.eog(), [0, 2]);
    assert_eq!(tokenizer.special_id("<|im_start|>"), Some(1));
}

#[test]
fn gemma3_as_llama_cpp() {
    let Some(tokenizer) = common::tokenizer(GEMMA3) else { return };
    assert_eq!(strings(GEMMA3, &tokenizer), 44);
    prompts(GEMMA3, &tokenizer);
    assert_eq!(tokenizer.eog(), [1, 106]);
}

#[test]
fn qwen25_as_llama_cpp() {
    let Some(tokenizer) = common::tokenizer(QWEN25) else { return };
    assert_eq!(strings(QWEN25, &tokenizer), 44);
    prompts(QWEN25, &tokenizer);
    assert_eq!(tokenizer.eog(), [151643, 151645]);
}

#[test]
fn control_tokens_only_where_asked_for() {
    let Some(tokenizer) = common::tokenizer(SMOLLM2) else { return };
    let text = "a<|im_end|>b";
    let parsed = tokenizer.encode(text, false, true).unwrap();
    assert!(parsed.contains(&2));
    let plain = tokenizer.encode(text, false, false).unwrap();
    assert!(!plain.contains(&2) && plain.len() > parsed.len());
    let without = DecodeOptions::default();
    assert_eq!(tokenizer.decode_lossy(&parsed, without).unwrap(), "ab");
    assert_eq!(tokenizer.decode_lossy(&plain, without).unwrap(), text);
}

#[test]
fn prompts_get_one_begin() {
    let Some(tokenizer) = common::tokenizer(GEMMA3) else { return };
    let hello = tokenizer.encode("Hello", true, false).unwrap();
    assert_eq!(tokenizer.encode_prompt("Hello").unwrap(), hello);
    assert_eq!(tokenizer.encode_prompt("<bos>Hello").unwrap(), hello);
    assert_eq!(tokenizer.encode_prompt("").unwrap(), [2]);
}

#[test]
fn texts_of_one_word_take_no_quadratic_time() {
    // Quadratic time would make this test run for hours, there is no need to measure it.
    let long = "a".repeat(1 << 20);
    let mixed: String = (0..1u64 << 20).map(|i| char::from(b'a' + (i * i % 23) as u8)).collect();
    let blanks = " ".repeat(1 << 20);
    let breaks = "\n".repeat(1 << 20);
    for model in [SMOLLM2, GEMMA3, QWEN25] {
        let Some(tokenizer) = common::tokenizer(model) else { continue };
        for text in [&long, &mixed, &blanks, &breaks] {
            let ids = tokenizer.encode(text, false, true).unwrap();
            assert!(tokenizer.decode(&ids, AS_REFERENCE).unwrap() == text.as_bytes(), "{model}");
        }
    }
}
