//! A context's promises: what a stop, a cancel or a full context leaves behind is a context that goes on correctly.

mod common;

use common::{SMOLLM2, model_path};
use monel::device::scripted::{self, Fault, Ran, Script};
use monel::device::software;
use monel::{CancelToken, DType, Settings};
use monel_llm::context::{Pending, Tail};
use monel_llm::{Context, ContextOptions, Error, Generated, Model, Request, Sampling, Stop};
use std::sync::Arc;

fn model() -> Option<Arc<Model>> {
    let path = model_path(SMOLLM2)?;
    let device = software::create(&software::Options { threads: 2, ..Default::default() }).expect("a device");
    Some(Arc::new(Model::load(path, &device).expect("a model")))
}

fn context(model: &Arc<Model>, positions: usize) -> Context {
    let options = ContextOptions { context: Some(positions), ..Default::default() };
    Context::new(model.clone(), &options).expect("a context")
}

fn request(model: &Model, text: &str, tokens: Option<usize>) -> Request {
    let prompt = model.tokenizer.encode(text, true, true).expect("ids");
    Request { prompt, max_tokens: tokens, sampling: Sampling::greedy(), ..Request::default() }
}

fn run(context: &mut Context, request: &Request) -> Generated {
    context.generate(request, &mut |_| true).expect("a run")
}

/// Runs job after job, as they come, until the script's log is as wanted.
fn run_until(script: &Script, wanted: impl Fn(&Script) -> bool) {
    while !wanted(script) {
        if !script.step() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn ids(out: &Generated) -> Vec<u32> {
    out.steps.iter().map(|s| s.id).collect()
}

#[test]
fn a_full_context_ends_with_its_own_word_and_a_longer_prompt_is_an_error_with_both_lengths() {
    let Some(model) = model() else { return };
    let mut context = context(&model, 12);
    let mut request = request(&model, "Once upon a time", None);
    request.ignore_end = true;
    let out = run(&mut context, &request);
    assert_eq!(out.stop, Stop::Context);
    assert_eq!(request.prompt.len() + out.steps.len(), 12);
    request.prompt = vec![5; 13];
    match context.generate(&request, &mut |_| true) {
        Err(Error::PromptTooLong { prompt: 13, context: 12 }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_what_is_new_is_evaluated_and_the_text_is_the_same() {
    let Some(model) = model() else { return };
    let first = request(&model, "The Moon orbits the", Some(6));
    let mut reused = context(&model, 64);
    let out = run(&mut reused, &first);
    let mut second = first.clone();
    second.prompt.extend(ids(&out));
    second.prompt.extend(model.tokenizer.encode(" and then", false, false).expect("ids"));
    let again = run(&mut reused, &second);
    assert!(again.prompt_tokens < second.prompt.len() - first.prompt.len());
    assert_eq!(again.prompt_tokens + reused.evaluated().len(), second.prompt.len() + again.prompt_tokens + 5);
    assert_eq!(ids(&again), ids(&run(&mut context(&model, 64), &second)));
}

#[test]
fn a_cancelled_prompt_leaves_nothing_behind() {
    let Some(model) = model() else { return };
    let mut cancelled = context(&model, 2048);
    let mut long = request(&model, "one two three four five", Some(8));
    long.prompt = long.prompt.iter().copied().cycle().take(1800).collect();
    let cancel = CancelToken::new();
    cancel.cancel();
    let out = run(&mut cancelled, &Request { cancel, ..long.clone() });
    assert_eq!((out.stop, out.steps.len()), (Stop::Cancelled, 0));
    assert!(cancelled.evaluated().is_empty(), "none of it was surely evaluated");
    let short = request(&model, "The Moon orbits the", Some(8));
    assert_eq!(ids(&run(&mut cancelled, &short)), ids(&run(&mut context(&model, 64), &short)));
}

#[test]
fn after_a_stop_in_the_middle_the_cache_holds_what_it_says() {
    let Some(model) = model() else { return };
    let mut stopped = context(&model, 128);
    let mut first = request(&model, "Once upon a time", Some(32));
    first.ignore_end = true;
    let mut seen = 0;
    let cancel = first.cancel.clone();
    let out = stopped
        .generate(&first, &mut |_| {
            seen += 1;
            if seen == 5 {
                cancel.cancel();
            }
            true
        })
        .expect("a run");
    assert_eq!((out.stop, out.steps.len()), (Stop::Cancelled, 5));
    let mut second = Request { cancel: CancelToken::new(), max_tokens: Some(8), ..first.clone() };
    second.prompt.extend(ids(&out));
    second.prompt.extend(model.tokenizer.encode(" But", false, false).expect("ids"));
    // A context that was asked for five tokens has the same in its cache, computed by the same kernels.
    let mut asked = context(&model, 128);
    let five = Request { cancel: CancelToken::new(), max_tokens: Some(5), ..first.clone() };
    assert_eq!(ids(&run(&mut asked, &five)), ids(&out));
    assert_eq!(asked.evaluated(), stopped.evaluated());
    assert_eq!(ids(&run(&mut stopped, &second)), ids(&run(&mut asked, &second)));
}

#[test]
fn seeds_repeat_and_cache_types_work() {
    let Some(model) = model() else { return };
    let mut base = request(&model, "Once upon a time", Some(24));
    base.ignore_end = true;
    let seeded = |seed| Request { sampling: Sampling { seed, ..Sampling::default() }, ..base.clone() };
    let sampled = |seed| ids(&run(&mut context(&model, 64), &seeded(seed)));
    assert_eq!(sampled(1), sampled(1));
    assert_ne!(sampled(1), sampled(2));
    let first = |keys, values| {
        let options = ContextOptions { context: Some(64), keys, values };
        let mut context = Context::new(model.clone(), &options).expect("a context");
        ids(&run(&mut context, &Request { max_tokens: Some(1), ..base.clone() }))
    };
    let exact = first(DType::F32, DType::F32);
    assert_eq!(exact, first(DType::F16, DType::F16));
    assert_eq!(exact, first(DType::Q8_0, DType::Q8_0));
}

#[test]
fn a2_the_host_submits_steps_ahead_of_the_device() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let (device, script) = scripted::create(&software::Options::default());
    let running = script.run_in_background();
    let model = Arc::new(Model::load(path, &device).expect("a model"));
    let mut context = context(&model, 64);
    let request = request(&model, "Once upon a time", Some(6));
    drop(running);
    let before = script.log().len();
    let generating = std::thread::spawn(move || run(&mut context, &request));
    // Nothing runs: what is committed now was submitted without having seen a single token.
    let decode = |script: &Script| {
        script.pending().iter().filter(|(name, chunk)| name == "decode" && *chunk == 0).count()
    };
    while decode(&script) < 2 && !generating.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(
        (decode(&script), script.log().len()),
        (2, before),
        "two steps beyond the prompt's wait, none ran"
    );
    let running = script.run_in_background();
    assert_eq!(generating.join().expect("a run").steps.len(), 6);
    drop(running);
}

#[test]
fn e5_a_cancel_in_the_middle_of_a_long_prompt_leaves_a_context_that_goes_on() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let (device, script) = scripted::create(&software::Options::default());
    let running = script.run_in_background();
    let model = Arc::new(Model::load(path, &device).expect("a model"));
    let mut context = context(&model, 8192);
    let mut long = request(&model, "The sea", Some(4));
    long.prompt = long.prompt.iter().copied().cycle().take(8000).collect();
    let cancel = long.cancel.clone();
    drop(running);
    let before = script.log().len();
    let generating = std::thread::spawn(move || {
        let out = context.generate(&long, &mut |_| true).expect("a run");
        (out, context)
    });
    // In the first of sixteen batches, and between two of its chunks.
    run_until(&script, |script| script.log()[before..].iter().any(|ran| ran.graph == "prefill 512"));
    cancel.cancel();
    let running = script.run_in_background();
    let (out, mut context) = generating.join().expect("a run");
    assert_eq!((out.stop, out.steps.len()), (Stop::Cancelled, 0));
    assert!(out.prompt_tokens < 8000, "{} tokens", out.prompt_tokens);
    let short = request(&model, "The Moon orbits the", Some(6));
    let after = ids(&run(&mut context, &short));
    let mut fresh = self::context(&model, 64);
    assert_eq!(after, ids(&run(&mut fresh, &short)));
    drop(running);
}

/// An upload is refused behind a batch that failed, and a recording may find no memory: none of the prompt's tokens counts
/// as evaluated then, and the context goes on.
#[test]
fn a_prompt_that_fails_on_its_way_leaves_what_was_there_before_it() {
    let Some(path) = model_path(SMOLLM2) else { return };
    // A batch's tokens fill the ring, so its positions wait until the batch before has failed.
    let settings = Settings { staging: 4 * 512, ..Settings::default() };
    let (device, script) = scripted::create(&software::Options { settings, ..Default::default() });
    let _running = script.run_in_background();
    let model = Arc::new(Model::load(path, &device).expect("a model"));
    let mut context = context(&model, 2048);
    let prompt = request(&model, "The Moon orbits the", Some(6)).prompt;
    let long: Vec<u32> = prompt.iter().copied().cycle().take(1024 + 100).collect();
    let evaluate = |context: &mut Context, ids: &[u32]| {
        context.evaluate(ids, Tail::None, None).map(|last| last.wait().expect("the last batch"))
    };
    // The graphs of all but the last batch are there.
    evaluate(&mut context, &long[..512]).expect("a batch");
    let mut fails_after = |kept: usize, fault: Fault, expected: fn(&monel::Error) -> bool| {
        context.truncate(0);
        evaluate(&mut context, &long[..kept]).expect("what was there before");
        script.fault(fault);
        match evaluate(&mut context, &long) {
            Err(Error::Engine(error)) if expected(&error) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(context.evaluated(), &long[..kept]);
        context.stream().recover().expect("a stream that goes on");
    };
    let first_batch = Fault::Kernel { graph: "prefill 512".into(), chunk: 0, op: "one".into() };
    fails_after(3, first_batch, |error| matches!(error, monel::Error::Poisoned { .. }));
    fails_after(5, Fault::Allocation(0), |error| matches!(error, monel::Error::OutOfMemory { .. }));
    let short = request(&model, "The Moon orbits the", Some(6));
    assert_eq!(ids(&run(&mut context, &short)), ids(&run(&mut self::context(&model, 64), &short)));
}

#[test]
fn a_step_behind_the_last_position_is_an_error_of_that_step() {
    let Some(model) = model() else { return };
    let mut full = context(&model, 8);
    let prompt = request(&model, "The Moon orbits the", None).prompt;
    let eight: Vec<u32> = prompt.iter().copied().cycle().take(8).collect();
    full.set_sampling(&Sampling::greedy()).expect("parameters");
    full.prompt(&eight, false, None).expect("a prompt").wait().expect("a token");
    // Heard of here or there, as the device is slow or fast.
    let failed = full.step(false, None).and_then(Pending::wait);
    let Err(Error::Engine(error)) = failed else { panic!("{failed:?}") };
    assert!(matches!(error.root(), monel::Error::Kernel(_)), "{error}");
    assert_eq!(full.evaluated(), eight);
    assert!(full.step(false, None).is_err(), "refused");
    full.stream().recover().expect("a stream that goes on");
    full.truncate(0);
    let short = Request { max_tokens: Some(2), ..request(&model, "The Moon", None) };
    assert_eq!(ids(&run(&mut full, &short)), ids(&run(&mut context(&model, 64), &short)));
}

#[test]
fn perplexity_is_the_same_on_any_number_of_threads() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let of = |threads| {
        let device =
            software::create(&software::Options { threads, ..Default::default() }).expect("a device");
        let model = Arc::new(Model::load(&path, &device).expect("a model"));
        let text = "The Moon orbits the Earth, and the Earth orbits the Sun. ".repeat(12);
        let ids = model.tokenizer.encode(&text, true, false).expect("ids");
        context(&model, 64).perplexity(&ids, 64, &CancelToken::new(), &mut |_, _| ()).expect("perplexity")
    };
    let (one, two) = (of(1), of(2));
    assert!(one.chunks == two.chunks && one.chunks > 1);
    assert!((one.ppl - two.ppl).abs() < 1e-5 * one.ppl, "{} and {}", one.ppl, two.ppl);
}

#[test]
fn e5_a_cancelled_perplexity_is_that_of_the_windows_before_and_leaves_a_context_that_goes_on() {
    let Some(model) = model() else { return };
    let text = "The Moon orbits the Earth, and the Earth orbits the Sun. ".repeat(12);
    let ids = model.tokenizer.encode(&text, true, false).expect("ids");
    let mut context = context(&model, 64);
    let mut cancelled_after = |windows: usize| {
        let cancel = CancelToken::new();
        if windows == 0 {
            cancel.cancel();
        }
        let result = context.perplexity(&ids, 64, &cancel, &mut |so_far, _| {
            if so_far.chunks == windows {
                cancel.cancel();
            }
        });
        assert_eq!(context.evaluated().is_empty(), cancel.is_cancelled());
        result.expect("what is known")
    };
    let none = cancelled_after(0);
    assert!((none.chunks, none.tokens) == (0, 0) && none.ppl.is_nan());
    let one = cancelled_after(1);
    assert_eq!((one.chunks, one.tokens), (1, 31));
    let mut fresh = self::context(&model, 64);
    let first = fresh.perplexity(&ids[..64], 64, &CancelToken::new(), &mut |_, _| ()).expect("a window");
    assert_eq!(one, first);
    assert!(cancelled_after(usize::MAX).chunks > 1, "the context goes on");
}

#[test]
fn e5_of_a_cancelled_prompt_the_batches_that_ran_are_counted_and_kept() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let (device, script) = scripted::create(&software::Options::default());
    let running = script.run_in_background();
    let model = Arc::new(Model::load(path, &device).expect("a model"));
    let mut context = context(&model, 4096);
    // The recordings are made before, so that all batches are submitted as they are.
    let mut long = request(&model, "The sea", Some(1));
    long.prompt = long.prompt.iter().copied().cycle().take(2000).collect();
    let whole = run(&mut context, &long);
    assert_eq!((whole.stop, whole.prompt_tokens), (Stop::Length, 2000));
    context.truncate(0);
    drop(running);
    let (before, cancel) = (script.log().len(), long.cancel.clone());
    let again = long.clone();
    let generating = std::thread::spawn(move || {
        let out = context.generate(&again, &mut |_| true).expect("a run");
        (out, context)
    });
    // Two of the four batches run to their ends; the third is where the cancel finds it.
    let batch = |ran: &Ran| ran.graph == "prefill 512" && ran.chunk == 0;
    run_until(&script, |script| script.log()[before..].iter().filter(|ran| batch(ran)).count() == 3);
    cancel.cancel();
    let running = script.run_in_background();
    let (out, mut context) = generating.join().expect("a run");
    assert_eq!((out.stop, out.steps.len()), (Stop::Cancelled, 0));
    assert!([1024, 1536].contains(&out.prompt_tokens), "{} tokens", out.prompt_tokens);
    assert_eq!(context.evaluated(), &long.prompt[..out.prompt_tokens]);
    // What is kept is right: the same token follows.
    let rest = run(&mut context, &Request { cancel: CancelToken::new(), ..long });
    assert_eq!((rest.prompt_tokens, ids(&rest)), (2000 - out.prompt_tokens, ids(&whole)));
    drop(running);
}
