//! The templates of real models, against texts written by hand from them.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod common;

use common::{GEMMA3, QWEN25, SMOLLM2};
use monel_llm::chat::{ChatError, ChatOptions, ChatTemplate, Message};

fn template(model: &str) -> Option<Result<ChatTemplate, ChatError>> {
    let file = common::model(model)?;
    let tokenizer = common::tokenizer(model)?;
    Some(ChatTemplate::from_gguf(file.metadata(), &tokenizer))
}

fn messages(turns: &[(&str, &str)]) -> Vec<Message> {
    turns.iter().map(|(role, content)| Message::new(*role, *content)).collect()
}

#[test]
fn smollm2() {
    let Some(template) = template(SMOLLM2) else { return };
    let template = template.unwrap();
    let render = |turns, add_generation_prompt| {
        let options = ChatOptions { add_generation_prompt, ..Default::default() };
        template.render(&messages(turns), &options).unwrap()
    };
    assert_eq!(
        render(&[("user", "Hi")], true),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        render(
            &[("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"), ("user", " \"x\" <y>\n")],
            false
        ),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n\
         <|im_start|>user\n \"x\" <y>\n<|im_end|>\n"
    );
}

#[test]
fn smollm2_prompts_become_control_tokens() {
    let (Some(template), Some(tokenizer)) = (template(SMOLLM2), common::tokenizer(SMOLLM2)) else { return };
    let text = template
        .unwrap()
        .render(&messages(&[("system", "S"), ("user", "Hi")]), &ChatOptions::default())
        .unwrap();
    let ids = tokenizer.encode_prompt(&text).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 3);
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 2);
    assert_eq!(ids[0], 1);
}

#[test]
fn qwen25() {
    let Some(template) = template(QWEN25) else { return };
    let template = template.unwrap();
    let default = ChatOptions::default();
    assert_eq!(
        template.render(&messages(&[("user", "Hi")]), &default).unwrap(),
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let tools = serde_json::json!([{"type": "function", "function": {"name": "f", "description": "a < b"}}]);
    let options = ChatOptions {
        variables: vec![("tools".into(), tools)],
        add_generation_prompt: false,
        ..Default::default()
    };
    assert_eq!(
        template
            .render(&messages(&[("system", "S"), ("user", "Hi"), ("tool", "1"), ("tool", "2")]), &options)
            .unwrap(),
        "<|im_start|>system\nS\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
         You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n\
         {\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"a < b\"}}\n</tools>\n\n\
         For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
         XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n\
         </tool_response><|im_end|>\n"
    );
}

#[test]
fn a_base_model_has_none() {
    let Some(template) = template(GEMMA3) else { return };
    assert_eq!(template.unwrap_err(), ChatError::NoTemplate);
}
