//! Templates in the styles of well-known families, written for these tests. The models' own templates are tested where
//! their files are.

use super::*;
use std::time::Duration;

fn render(source: &str, messages: &[(&str, &str)], options: &ChatOptions) -> Result<String, ChatError> {
    let messages: Vec<Message> =
        messages.iter().map(|(role, content)| Message::new(*role, *content)).collect();
    ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, options)
}

/// Headers with the role's name, in the style of Llama 3.
const HEADERS: &str = "{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'].strip() %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%Y') %}
{%- endif %}
{%- if tools is not none %}{{- 'Tools: ' + (tools | tojson) + '\\n' }}{%- endif %}
{{- '<|h|>system<|/h|>\\n\\nToday: ' + date_string + '\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|h|>' + message.role + '<|/h|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant<|/h|>\\n\\n' }}
{%- endif %}
";

/// Turns have to alternate, in the style of Mistral.
const ALTERNATING: &str = "{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate: ' ~ message['role']) }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}
{{ ' ' + message['content'] + eos_token }}{% endif %}
{% endfor %}";

#[test]
fn headers() {
    // The middle of a year is in the same year everywhere.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_720_000_000);
    let options = ChatOptions { now: Some(now), ..Default::default() };
    assert_eq!(
        render(HEADERS, &[("system", " Be brief. "), ("user", "Hi\n")], &options).unwrap(),
        "<s><|h|>system<|/h|>\n\nToday: 2024\nBe brief.<|eot_id|><|h|>user<|/h|>\n\nHi<|eot_id|><|h|>assistant<|/h|>\n\n"
    );
    let options = ChatOptions {
        add_generation_prompt: false,
        now: None,
        variables: vec![
            ("date_string".into(), "1 May".into()),
            ("tools".into(), serde_json::json!([{"name": "f", "a": [1, 2.5, null, true, "<é\""]}])),
        ],
    };
    assert_eq!(
        render(HEADERS, &[("user", "Hi"), ("assistant", "Ho")], &options).unwrap(),
        "<s>Tools: [{\"name\": \"f\", \"a\": [1, 2.5, null, true, \"<é\\\"\"]}]\n<|h|>system<|/h|>\n\nToday: 1 May\n<|eot_id|>\
         <|h|>user<|/h|>\n\nHi<|eot_id|><|h|>assistant<|/h|>\n\nHo<|eot_id|>"
    );
}

#[test]
fn alternating() {
    let options = ChatOptions::default();
    assert_eq!(
        render(ALTERNATING, &[("user", "a"), ("assistant", "b"), ("user", "c")], &options).unwrap(),
        "<s>[INST] a [/INST] b</s>[INST] c [/INST]"
    );
    assert_eq!(
        render(ALTERNATING, &[("user", "a"), ("user", "b")], &options).unwrap_err(),
        ChatError::Refused { line: 3, message: "Roles must alternate: user".into() }
    );
}

#[test]
fn mistakes_name_their_line() {
    let error = |source| render(source, &[("user", "a")], &ChatOptions::default()).unwrap_err();
    assert!(matches!(error("a\n{% if %}"), ChatError::Syntax { line: 2, .. }));
    assert!(matches!(error("a\nb\n{{ messages[0].x.y }}"), ChatError::Render { line: 3, .. }));
    assert!(matches!(error("\n{{ no_such_function() }}"), ChatError::Render { line: 2, .. }));
    assert!(matches!(error("{{ strftime_now('%') }}"), ChatError::Render { line: 1, .. }));
    assert!(error("a\n{% if %}").to_string().contains("line 2"));
}

#[test]
fn templates_cannot_run_away() {
    let error = |source| render(source, &[], &ChatOptions::default()).unwrap_err();
    for source in [
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ] {
        assert!(matches!(error(source), ChatError::Render { .. }), "{source}");
    }
}

/// Each of these ended the process: the engine follows nesting by recursion.
#[test]
fn nesting_has_an_end_and_a_stack_that_holds_it() {
    let new = |source: &str| ChatTemplate::new(source, "", "");
    for source in [
        "{% set ns=namespace() %}{% set ns.a=ns %}{{ ns }}",
        "{% set ns=namespace() %}{% set ns.a=[ns] %}{{ ns.a|tojson }}",
        "{% macro m(x) %}{% set x.a = x %}{{ x }}{% endmacro %}{% set ns=namespace() %}{{ m(ns) }}",
        "{% macro m(x) %}{% set x.a = x %}{{ x }}{% endmacro %}{{ m(namespace()) }}",
        "{% import 'chat_template' as t %}{% set ns=namespace() %}{% set ns.a=t %}{{ ns.a }}",
        "{% include 'chat_template' %}",
    ] {
        assert!(matches!(new(source).unwrap_err(), ChatError::Syntax { line: 1, .. }), "{source}");
    }
    // As deep as the length allows. Not as long as it may be: the engine takes quadratic time to read such a chain.
    for step in ["-", "+x", ".a", "|e", "()", "not ", "{% elif x %}"] {
        let steps = step.repeat((8 << 10) / step.len());
        let source = match step {
            "{% elif x %}" => format!("{{% if x %}}{steps}{{% endif %}}"),
            "-" | "not " => format!("{{{{ {steps}x }}}}"),
            _ => format!("{{{{ x{steps} }}}}"),
        };
        assert!(new(&source).is_ok(), "{step}");
        assert!(matches!(
            render(&source, &[], &ChatOptions::default()),
            Ok(_) | Err(ChatError::Render { .. })
        ));
    }
    assert!(new(&" ".repeat(LONGEST + 1)).unwrap_err().to_string().contains("expected at most"));
    // As deep as the steps allow.
    for level in [
        "[[[[[[[[[[[[[[[[ns.a]]]]]]]]]]]]]]]]",
        "((((ns.a,),),),)",
        "{'k':{'k':{'k':ns.a}}}",
        "[ns.a]|batch(1)",
    ] {
        for end in [
            "{{ ns.a|length }}",
            "{{ ns.a }}",
            "{{ ns.a|tojson }}",
            "{{ ns.a|tojson(indent=1) }}",
            "{{ raise_exception(ns.a) }}",
        ] {
            for levels in [1_000, 100_000] {
                let source = format!(
                    "{{% set ns=namespace(a=[]) %}}{{% for i in range({levels}) %}}{{% set ns.a={level} %}}{{% endfor %}}{end}"
                );
                let text = render(&source, &[], &ChatOptions::default());
                assert!(levels < 100_000 || text.is_err(), "{level} {end}");
            }
        }
        let loops = "{% for i in range(4000) %}";
        for end in [
            "ns.a == b",
            "ns.a < b",
            "[ns.a, b]|sort|length",
            "[ns.a, b]|unique|list|length",
            "{(ns.a,): 1, (b,): 2}|length",
        ] {
            let source = format!(
                "{{% set ns=namespace(a=[]) %}}{loops}{{% set ns.a={level} %}}{{% endfor %}}{{% set b = ns.a %}}\
                 {{% set ns.a=[] %}}{loops}{{% set ns.a={level} %}}{{% endfor %}}{{{{ {end} }}}}"
            );
            let text = render(&source, &[], &ChatOptions::default());
            assert!(matches!(text, Ok(_) | Err(ChatError::Render { .. })), "{level} {end} {text:?}");
        }
    }
    let deep = "{% set ns=namespace(a=[]) %}{% for i in range(DEPTH) %}{% set ns.a=[ns.a] %}{% endfor %}{{ ns.a|tojson }}";
    assert!(render(&deep.replace("DEPTH", "999"), &[], &ChatOptions::default()).is_ok());
    let error = render(&deep.replace("DEPTH", "1000"), &[], &ChatOptions::default()).unwrap_err();
    assert!(error.to_string().contains("nested more than 1000 deep"), "{error}");
}

#[test]
fn long_conversations_have_the_steps_they_need() {
    let long = "word ".repeat(1 << 20);
    let text = render(HEADERS, &[("system", &long), ("user", &long)], &ChatOptions::default()).unwrap();
    assert!(text.len() > 2 * long.len() - 16);
    let many: Vec<_> = (0..10_000).map(|_| ("user", "Hi")).collect();
    assert!(render(HEADERS, &many, &ChatOptions::default()).is_ok());
}

#[test]
fn python_ways() {
    let render = |source| render(source, &[("user", "  Hi ho ")], &ChatOptions::default()).unwrap();
    assert_eq!(render("{{ messages[0]['content'].strip().split(' ')[-1].upper() }}"), "HO");
    assert_eq!(render("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}"), "a=1");
    assert_eq!(
        render(
            "{% set n = namespace(x=0) %}{% for i in [1, 2, 3] %}{% if i == 3 %}{% break %}{% endif %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"
        ),
        "3"
    );
    assert_eq!(
        render("{{ {'b': [], 'a': {'c': 1}} | tojson(indent=2) }}"),
        "{\n  \"b\": [],\n  \"a\": {\n    \"c\": 1\n  }\n}"
    );
    // Blocks on lines of their own leave nothing behind; one line break at the end goes.
    assert_eq!(render("  {% if true %}\n  x\n  {% endif %}\ny\n"), "  x\ny");
}
