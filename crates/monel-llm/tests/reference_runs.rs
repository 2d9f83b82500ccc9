//! Greedy runs and first-position log-probabilities against recorded references.
//!
//! `greedy-MODEL.json` was recorded with llama.cpp as shipped, `.norepack-nofa-kvf32` with its other path, and
//! `.dequantized-f32` with all weights in f32: the truth. Rules of comparison:
//! - First position: d is our log-probability minus the truth's, for the truth's first five tokens of every prompt. Its
//!   root mean square is at most 4/3 of the larger of the two quantized runs' (over all prompts), no single |d| is
//!   larger than twice their largest. Two correct quantized paths differ by that much.
//! - Greedy: our ids equal the recorded ones up to the first difference; there the recorded margin between the two best
//!   logits is at most 0.6 (the reference's own runs part at margins up to 0.52). Without a difference the counts agree.

mod common;

use common::{GEMMA3, QWEN25, SMOLLM2, model_path, reference};
use monel::device::{Device, software};
use monel_llm::{Context, ContextOptions, Generated, Model, Request, Sampling, Stop};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

const MARGIN: f64 = 0.6;

struct Recorded {
    shipped: Value,
    other: Value,
    truth: Value,
}

impl Recorded {
    fn of(stem: &str) -> Recorded {
        let read = |suffix: &str| reference(&format!("greedy-{stem}{suffix}.json"));
        Recorded { shipped: read(""), other: read(".norepack-nofa-kvf32"), truth: read(".dequantized-f32") }
    }
}

fn prompts(file: &Value) -> &Vec<Value> {
    file["prompts"].as_array().expect("prompts")
}

fn prompt<'a>(file: &'a Value, id: &Value) -> &'a Value {
    prompts(file).iter().find(|p| &p["id"] == id).expect("the prompt in every file")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Token and log-probability of the recorded top ten.
fn top(prompt: &Value) -> Vec<(u32, f64)> {
    let list = prompt["top10"].as_array().expect("top10");
    list.iter()
        .map(|t| (t[0].as_u64().expect("id") as u32, t[3].as_f64().expect("log-probability")))
        .collect()
}

/// Differences to the truth at its first five tokens, where the other run recorded them.
fn differences(truth: &Value, run: &HashMap<u32, f64>) -> Vec<f64> {
    top(truth).into_iter().take(5).filter_map(|(id, p)| run.get(&id).map(|q| q - p)).collect()
}

fn rms(d: &[f64]) -> f64 {
    (d.iter().map(|x| x * x).sum::<f64>() / d.len() as f64).sqrt()
}

fn largest(d: &[f64]) -> f64 {
    d.iter().fold(0.0, |m, x| x.abs().max(m))
}

fn run(context: &mut Context, prompt: Vec<u32>, tokens: usize, logprobs: usize) -> Generated {
    context.truncate(0);
    let request = Request {
        prompt,
        max_tokens: Some(tokens),
        sampling: Sampling::greedy(),
        logprobs: Some(logprobs),
        ..Request::default()
    };
    context.generate(&request, &mut |_| true).expect("a run")
}

fn check(file: &str, stem: &str, threads: &[usize]) {
    let cpu = |&threads: &usize| {
        let options = software::Options { threads, ..Default::default() };
        (format!("{threads} threads"), software::create(&options).expect("a device"))
    };
    check_on(file, stem, &mut threads.iter().map(cpu));
}

fn check_on(file: &str, stem: &str, devices: &mut dyn Iterator<Item = (String, Device)>) {
    let Some(path) = model_path(file) else { return };
    let recorded = Recorded::of(stem);
    let mut outputs: Vec<Vec<Vec<u32>>> = Vec::new();
    for (name, device) in devices {
        let model = Arc::new(Model::load(&path, &device).expect("a model"));
        let mut context = Context::new(model.clone(), &ContextOptions::default()).expect("a context");
        let (mut ours, mut theirs, mut greedy) = (Vec::new(), [Vec::new(), Vec::new()], Vec::new());
        for p in prompts(&recorded.shipped) {
            let (id, prompt_ids) = (&p["id"], ids(&p["prompt_ids"]));
            // Minutes on a GPU interface that the CPU computes, and nothing that shorter prompts do not show.
            if prompt_ids.len() > 100 && model.device().info().kind == monel::DeviceKind::Software {
                continue;
            }
            let text = p["text"].as_str().expect("a text");
            assert_eq!(
                model.tokenizer.encode(text, true, true).expect("ids"),
                prompt_ids,
                "{stem} {id}: tokens"
            );
            let truth = prompt(&recorded.truth, id);
            let want = ids(&p["greedy_ids"]);
            let out = run(&mut context, prompt_ids, want.len() + 4, 64);
            let step = &out.steps[0];
            let mine: HashMap<u32, f64> = step.top.iter().map(|&(id, p)| (id, f64::from(p))).collect();
            let d = differences(truth, &mine);
            assert_eq!(d.len(), 5, "{stem} {id}: the truth's five best tokens are among our 64 best");
            ours.extend(d);
            for (list, file) in theirs.iter_mut().zip([&recorded.shipped, &recorded.other]) {
                list.extend(differences(truth, &top(prompt(file, id)).into_iter().collect()));
            }
            let got: Vec<u32> = out.steps.iter().map(|s| s.id).collect();
            compare_greedy(&format!("{stem} {id} on {name}"), p, &want, &got, out.stop);
            greedy.push(got);
        }
        let (limit, single) = (
            4.0 / 3.0 * rms(&theirs[0]).max(rms(&theirs[1])),
            2.0 * largest(&theirs[0]).max(largest(&theirs[1])),
        );
        println!(
            "{stem}, {name}: rms {:.4} (limit {limit:.4}), largest {:.3} (limit {single:.3})",
            rms(&ours),
            largest(&ours)
        );
        assert!(rms(&ours) <= limit, "{stem}: rms {} over {limit}", rms(&ours));
        assert!(largest(&ours) <= single, "{stem}: {} over {single}", largest(&ours));
        outputs.push(greedy);
    }
    // Work is split over threads, sums are not: the same text on any number.
    assert!(outputs.windows(2).all(|w| w[0] == w[1]), "{stem}: the text depends on the number of threads");
}

fn compare_greedy(what: &str, recorded: &Value, want: &[u32], got: &[u32], stop: Stop) {
    let margins = recorded["margins"].as_array().expect("margins");
    let ended = recorded["stopped_at_eog"].as_bool().expect("a flag");
    match want.iter().zip(got).position(|(a, b)| a != b) {
        Some(at) => {
            let margin = margins[at].as_f64().expect("a margin");
            println!("{what}: parts at token {at}, margin {margin:.3}");
            assert!(
                margin <= MARGIN,
                "{what}: token {at} is {} and not {}, margin {margin}",
                got[at],
                want[at]
            );
        }
        None if got.len() < want.len() => {
            // We ended where the reference went on: the same rule, the end is a token like any other.
            let margin = margins[got.len()].as_f64().expect("a margin");
            assert!(margin <= MARGIN, "{what}: ended at {} of {}, margin {margin}", got.len(), want.len());
        }
        None if ended => {
            let margin = margins.get(want.len()).and_then(Value::as_f64);
            let same = got.len() == want.len() && stop == Stop::End;
            assert!(
                same || margin.is_some_and(|m| m <= MARGIN),
                "{what}: {} tokens, {} recorded",
                got.len(),
                want.len()
            );
        }
        None => {}
    }
}

#[test]
fn smollm2_matches_its_reference_on_1_2_and_3_threads() {
    check(SMOLLM2, "SmolLM2-135M-Instruct.Q4_1", &[1, 2, 3]);
}

#[test]
fn gemma3_matches_its_reference_on_1_2_and_3_threads() {
    check(GEMMA3, "gemma-3-270m-q4_k_m", &[1, 2, 3]);
}

#[test]
fn qwen25_matches_its_reference_on_1_2_and_3_threads() {
    check(QWEN25, "qwen2.5-coder-0.5b-instruct-q4_k_m", &[1, 2, 3]);
}

/// On a GPU, Mesa's software one included: Q4_1 and Q8_0 weights, prompts and decoding. `MONEL_VULKAN_DEVICE` is its number.
/// The device is the test's own and compiles its kernels itself: no file of the user's is read or written.
#[cfg(feature = "vulkan")]
#[test]
fn smollm2_matches_its_reference_on_vulkan() {
    use monel::device::vulkan;
    let index = std::env::var("MONEL_VULKAN_DEVICE")
        .map_or(0, |n| n.parse().expect("MONEL_VULKAN_DEVICE is a number"));
    let id = format!("vulkan:{index}");
    if vulkan::list().iter().all(|listing| listing.id != id) {
        let required = std::env::var_os("MONEL_REQUIRE_VULKAN").is_some();
        assert!(!required, "no device {id}: {:?}", vulkan::problems());
        return println!("skipped: no device {id}: {:?}", vulkan::problems());
    }
    let options = vulkan::Options { index, cache: None, ..vulkan::Options::default() };
    let (device, _) = vulkan::create(&options).expect("a device");
    check_on(SMOLLM2, "SmolLM2-135M-Instruct.Q4_1", &mut std::iter::once((id, device)));
}
