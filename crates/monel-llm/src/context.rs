//! A context: one conversation's cache and its recordings.
//!
//! The graph of a batch is recorded once per batch size and replayed; what changes (tokens, positions, sampling
//! parameters) lies in small device tensors that the kernels read. A decode step leaves the sampled token and the next
//! position where the next step reads them, so the host can submit step k+1 before it has seen token k.

use crate::arch::{self, Cache, Hyper, Inputs};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampling::Sampling;
use monel::ops::BinaryKind;
use monel::{
    CancelToken, DType, Desc, Device, DeviceKind, Download, Graph, Needs, Recording, Stream, Submission,
    Tensor, Value, ops,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens in one batch of a prompt.
pub const BATCH: usize = 512;
/// Recordings of odd batch sizes that are kept beside the two usual ones.
const ODD_SIZES: usize = 4;

/// What the cached keys and values can be.
pub const CACHE_TYPES: [DType; 8] =
    [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q5_1, DType::Q5_0, DType::Q4_1, DType::Q4_0];

/// How a context is made.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextOptions {
    /// Positions it holds; `None` is the model's own, at most 4096.
    pub context: Option<usize>,
    /// Type of the cached keys.
    pub keys: DType,
    /// Type of the cached values.
    pub values: DType,
}

impl Default for ContextOptions {
    fn default() -> Self {
        ContextOptions { context: None, keys: DType::F16, values: DType::F16 }
    }
}

impl ContextOptions {
    /// Positions for a model.
    pub fn positions(&self, hyper: &Hyper) -> usize {
        self.context.unwrap_or_else(|| hyper.context.min(4096))
    }

    fn shapes(&self, h: &Hyper) -> Result<[Desc; 2]> {
        let context = self.positions(h);
        if context == 0 || context > 1 << 28 {
            let expected = "a number of tokens from 1 to 268435456";
            return Err(Error::Setting { name: "the context", found: context.to_string(), expected });
        }
        for dtype in [self.keys, self.values] {
            if !CACHE_TYPES.contains(&dtype) {
                let expected = "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0 or q5_1";
                return Err(Error::Setting { name: "the cache type", found: dtype.to_string(), expected });
            }
        }
        let keys = Desc::new(self.keys, &[h.key_head, context, h.kv_heads])?;
        Ok([keys, Desc::new(self.values, &[h.value_head, context, h.kv_heads])?])
    }

    /// Adds what a context needs.
    ///
    /// # Errors
    /// [`Error::Setting`] for a number of positions out of range or a type that no cache can have, and
    /// [`Error::Engine`] for types whose blocks a head does not divide into.
    pub fn needs(&self, h: &Hyper, needs: &mut Needs) -> Result<()> {
        let [keys, values] = self.shapes(h)?;
        needs.add("KV cache", ((keys.span() + values.span()) * h.layers) as u64, false);
        // The residual stream, its norm, q, k, v and attention's result, gate, up and their product, and logits: what
        // the planner keeps at once is about half of it.
        let batch = BATCH.min(self.positions(h));
        let per_token = 4 * h.width + (2 * h.heads + 2 * h.kv_heads) * h.key_head + 3 * h.ffn;
        needs.add("scratch", (4 * (per_token * batch + 3 * h.vocabulary)) as u64, false);
        Ok(())
    }
}

/// What follows the layers of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Nothing: a batch in the middle of a prompt.
    None,
    /// The last token's logits.
    Logits,
    /// The last token's logits, and a token drawn from them.
    Sample,
    /// The hidden states of all tokens, for [`Context::logits_of`].
    Hidden,
}

/// A conversation on a model.
pub struct Context {
    model: Arc<Model>,
    stream: Stream,
    cache: Cache,
    positions: usize,
    tokens: Tensor,
    places: Tensor,
    history: Tensor,
    params: Tensor,
    one: Tensor,
    logits: Tensor,
    hidden: Option<Tensor>,
    recordings: HashMap<(usize, Tail), Recording>,
    heads: HashMap<usize, Head>,
    odd: Vec<(usize, Tail)>,
    /// The tokens whose keys and values are in the cache.
    evaluated: Vec<u32>,
}

/// The output head for a number of rows, with the places of its operands.
struct Head {
    recording: Recording,
    input: Tensor,
    output: Tensor,
}

/// A step that was submitted: the token it draws, and its logits where they were asked for.
pub struct Pending {
    submission: Submission,
    token: Download,
    logits: Option<Download>,
}

impl Pending {
    /// The token, and the logits where they were asked for: one float for each token of the vocabulary.
    ///
    /// # Errors
    /// The device's, and a cancel ([`Error::is_cancelled`]).
    pub fn wait(self) -> Result<(u32, Option<Vec<f32>>)> {
        let Pending { submission, token, logits } = self;
        submission.wait()?;
        let token = token.wait()?;
        let logits = logits.map(Download::wait).transpose()?.map(|b| floats(&b));
        Ok((ints(&token).first().copied().unwrap_or_default() as u32, logits))
    }
}

/// A tensor of the cache for each layer. On a CPU small ones share a buffer, which is then large enough for large pages: at
/// depth a step goes through all of them, and with small pages waits for table walks.
fn layers(device: &Device, desc: Desc, count: usize) -> Result<Vec<Tensor>> {
    const SMALL: usize = 2 << 20;
    const APART: usize = 256;
    let each = desc.span().next_multiple_of(APART);
    if device.info().kind != DeviceKind::Cpu || desc.span() >= SMALL {
        return Ok((0..count).map(|_| device.tensor(desc.dtype, &desc.ne)).collect::<monel::Result<_>>()?);
    }
    let buffer = device.allocate(device.default_storage(), each * count)?;
    let tensors = (0..count).map(|layer| Tensor::new(&buffer, layer * each, desc));
    Ok(tensors.collect::<monel::Result<_>>()?)
}

impl Context {
    /// An empty context.
    ///
    /// # Errors
    /// Those of [`ContextOptions::needs`], and the device's, which may have no memory for the cache.
    pub fn new(model: Arc<Model>, options: &ContextOptions) -> Result<Context> {
        let hyper = model.hyper().clone();
        let device = model.device().clone();
        let [keys, values] = options.shapes(&hyper)?;
        let cache = Cache {
            keys: layers(&device, keys, hyper.layers)?,
            values: layers(&device, values, hyper.layers)?,
        };
        let positions = options.positions(&hyper);
        let stream = device.stream();
        let one = device.tensor(DType::I32, &[1])?;
        drop(stream.upload(&one, &1i32.to_le_bytes())?);
        let history = device.tensor(DType::I32, &[1, positions])?;
        drop(stream.clear(history.buffer(), 0xff)?);
        let params = device.tensor(DType::F32, &[16])?;
        Ok(Context {
            stream,
            cache,
            positions,
            tokens: device.tensor(DType::I32, &[BATCH])?,
            places: device.tensor(DType::I32, &[BATCH])?,
            history,
            params,
            one,
            logits: device.tensor(DType::F32, &[hyper.vocabulary])?,
            hidden: None,
            recordings: HashMap::new(),
            heads: HashMap::new(),
            odd: Vec::new(),
            evaluated: Vec::new(),
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The stream its work goes through.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Positions it holds.
    pub fn capacity(&self) -> usize {
        self.positions
    }

    /// The tokens in the cache, those of submitted batches included: where one of them fails or is cancelled,
    /// [`Context::truncate`] has to forget its tokens and those behind them ([`Context::generate`] does).
    pub fn evaluated(&self) -> &[u32] {
        &self.evaluated
    }

    /// Forgets all tokens after the first `keep`.
    pub fn truncate(&mut self, keep: usize) {
        self.evaluated.truncate(keep);
    }

    /// Notes tokens that decode steps have put into the cache.
    pub(crate) fn note(&mut self, ids: &[u32]) {
        self.evaluated.extend_from_slice(ids);
    }

    /// Sampling parameters for the steps that follow.
    ///
    /// # Errors
    /// [`Error::Setting`] for one out of its range, and the stream's, which refuses work after a failure.
    pub fn set_sampling(&mut self, sampling: &Sampling) -> Result<()> {
        let bytes: Vec<u8> = sampling.params()?.to_values().iter().flat_map(|v| v.to_le_bytes()).collect();
        drop(self.stream.upload(&self.params, &bytes)?);
        Ok(())
    }

    /// Evaluates tokens after those in the cache, in batches; `tail` follows the last one. Returns the last batch's
    /// submission; nothing is waited for except the stream's in-flight budget.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] for no tokens, [`Error::PromptTooLong`] for more than there is room for, [`Error::Token`]
    /// for one that is not in the vocabulary, and the engine's: no memory for a graph, a stream that refuses work after
    /// a failure. None of the tokens counts as evaluated then.
    pub fn evaluate(&mut self, ids: &[u32], tail: Tail, cancel: Option<&CancelToken>) -> Result<Submission> {
        self.submit_batches(ids, tail, cancel, &mut Vec::new())
    }

    /// As [`Context::evaluate`]; `earlier` gets the batches before the last one, with the tokens of each.
    pub(crate) fn submit_batches(
        &mut self,
        ids: &[u32],
        tail: Tail,
        cancel: Option<&CancelToken>,
        earlier: &mut Vec<(usize, Submission)>,
    ) -> Result<Submission> {
        let (past, size) = (self.evaluated.len(), self.model.hyper().vocabulary);
        if past + ids.len() > self.positions {
            return Err(Error::PromptTooLong { prompt: past + ids.len(), context: self.positions });
        }
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= size) {
            return Err(Error::Token { id, size });
        }
        // Of the batches before one that fails, some may never run either.
        self.submit_each(ids, tail, cancel, earlier).inspect_err(|_| self.evaluated.truncate(past))
    }

    /// Hands batch after batch over, and notes the tokens of each as it is submitted.
    fn submit_each(
        &mut self,
        ids: &[u32],
        tail: Tail,
        cancel: Option<&CancelToken>,
        earlier: &mut Vec<(usize, Submission)>,
    ) -> Result<Submission> {
        let batches = ids.chunks(BATCH);
        let last = batches.len().checked_sub(1).ok_or(Error::EmptyPrompt)?;
        for (i, batch) in batches.enumerate() {
            let at = self.evaluated.len();
            let bytes = |values: &mut dyn Iterator<Item = i32>| {
                values.flat_map(i32::to_le_bytes).collect::<Vec<u8>>()
            };
            let tokens = bytes(&mut batch.iter().map(|&id| id as i32));
            let places = bytes(&mut (at..at + batch.len()).map(|p| p as i32));
            drop(self.stream.upload(&self.tokens.slice(0, 0, batch.len())?, &tokens)?);
            drop(self.stream.upload(&self.places.slice(0, 0, batch.len())?, &places)?);
            let recording = self.recording(batch.len(), if i == last { tail } else { Tail::None })?;
            let submission = self.stream.submit_with(&recording, cancel)?;
            self.evaluated.extend_from_slice(batch);
            if i == last {
                return Ok(submission);
            }
            earlier.push((batch.len(), submission));
        }
        Err(Error::EmptyPrompt)
    }

    /// Evaluates a prompt and draws the token that follows it.
    ///
    /// # Errors
    /// Those of [`Context::evaluate`].
    pub fn prompt(&mut self, ids: &[u32], logits: bool, cancel: Option<&CancelToken>) -> Result<Pending> {
        let past = self.evaluated.len();
        let submission = self.evaluate(ids, Tail::Sample, cancel)?;
        self.pending(submission, logits).inspect_err(|_| self.evaluated.truncate(past))
    }

    /// Evaluates the token drawn by the step before and draws the next one. The host has not seen either, so neither is
    /// among [`Context::evaluated`]. How many steps there is room for is for the caller to count: one that would put its
    /// token at the position [`Context::capacity`] or behind it fails as it runs, with [`monel::Error::Kernel`] at the
    /// root, and the stream refuses work until [`Stream::recover`].
    ///
    /// # Errors
    /// [`Error::Engine`]: no memory for the graph, a stream that refuses work after a failure, which may be that of this
    /// step already. Whatever fails later is an error of [`Pending::wait`].
    pub fn step(&mut self, logits: bool, cancel: Option<&CancelToken>) -> Result<Pending> {
        let recording = self.recording(1, Tail::Sample)?;
        let submission = self.stream.submit_with(&recording, cancel)?;
        self.pending(submission, logits)
    }

    pub(crate) fn pending(&self, submission: Submission, logits: bool) -> Result<Pending> {
        let token = self.stream.download(&self.tokens.slice(0, 0, 1)?)?;
        let logits = if logits { Some(self.stream.download(&self.logits)?) } else { None };
        Ok(Pending { submission, token, logits })
    }

    /// The logits of the last evaluated token (after a tail that has them): one float for each token of the vocabulary.
    /// Waits for them.
    ///
    /// # Errors
    /// The device's, and those of a stream that refuses work after a failure.
    pub fn logits(&self) -> Result<Vec<f32>> {
        Ok(floats(&self.stream.download(&self.logits)?.wait()?))
    }

    /// Logits of tokens `first..first + count` of the last batch, which was evaluated with [`Tail::Hidden`] and the same
    /// cancel token: `count` rows, each of as many floats as the vocabulary has tokens. Waits for them.
    ///
    /// # Errors
    /// [`Error::Engine`] for tokens that no batch has, without memory for the rows, where the device fails, and after a
    /// cancel ([`Error::is_cancelled`]), when what the rows would be made of may never have run.
    pub fn logits_of(
        &mut self,
        first: usize,
        count: usize,
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<f32>> {
        let hidden = self.hidden_tensor()?;
        if !self.heads.contains_key(&count) {
            let (hyper, device) = (self.model.hyper(), self.model.device());
            let input = device.tensor(DType::F32, &[hyper.width, count])?;
            let output = device.tensor(DType::F32, &[hyper.vocabulary, count])?;
            let mut graph = Graph::new(format!("head {count}"));
            let (x, place) = (graph.leaf(&input), graph.leaf(&output));
            arch::head(&mut graph, &self.model.weights, x, place)?;
            let recording = device.record(&graph)?;
            self.heads.insert(count, Head { recording, input, output });
        }
        let Some(head) = self.heads.get(&count) else { return Err(Error::EmptyPrompt) };
        drop(self.stream.copy(&hidden.slice(1, first, count)?, &head.input)?);
        drop(self.stream.submit_with(&head.recording, cancel)?);
        let logits = floats(&self.stream.download(&head.output)?.wait()?);
        // The batch may have stopped half-way, but then the token says so by now.
        match cancel.is_some_and(CancelToken::is_cancelled) {
            true => Err(monel::Error::Cancelled.into()),
            false => Ok(logits),
        }
    }

    fn hidden_tensor(&mut self) -> Result<Tensor> {
        if self.hidden.is_none() {
            let width = self.model.hyper().width;
            self.hidden = Some(self.model.device().tensor(DType::F32, &[width, BATCH])?);
        }
        self.hidden.clone().ok_or(Error::EmptyPrompt)
    }

    /// The recording for a batch size, made when it is needed first.
    ///
    /// # Errors
    /// Those of [`Context::graph`], and the engine's: no memory for what lies between the graph's nodes.
    pub fn recording(&mut self, count: usize, tail: Tail) -> Result<Recording> {
        let key = (count, tail);
        if let Some(recording) = self.recordings.get(&key) {
            return Ok(recording.clone());
        }
        let graph = self.graph(count, tail)?;
        let recording = self.model.device().record(&graph)?;
        if count != 1 && count != BATCH {
            self.odd.push(key);
            if self.odd.len() > ODD_SIZES {
                let old = self.odd.remove(0);
                self.recordings.remove(&old);
            }
        }
        self.recordings.insert(key, recording.clone());
        Ok(recording)
    }

    /// The graph of a batch of `count` tokens, at most [`BATCH`].
    ///
    /// # Errors
    /// The engine's: more tokens than a batch has, no memory for the hidden states.
    pub fn graph(&mut self, count: usize, tail: Tail) -> Result<Graph> {
        let hidden_place = if tail == Tail::Hidden { Some(self.hidden_tensor()?) } else { None };
        let name = if count == 1 { "decode".to_string() } else { format!("prefill {count}") };
        let mut graph = Graph::new(name);
        let g = &mut graph;
        let tokens = g.leaf(&self.tokens.slice(0, 0, count)?);
        let positions = g.leaf(&self.places.slice(0, 0, count)?);
        let history = g.leaf(&self.history);
        let rows = g.reshape(tokens, &[1, count])?;
        let history = g.set_rows(history, rows, positions)?;
        let inputs = Inputs { tokens, positions, count };
        let hidden = (self.model.architecture.layers)(g, &self.model.weights, &inputs, &self.cache)?;
        if let Some(place) = hidden_place {
            let place = g.leaf(&place.slice(1, 0, count)?);
            g.copy_into(hidden, place)?;
        }
        if !matches!(tail, Tail::Logits | Tail::Sample) {
            return Ok(graph);
        }
        let last = g.slice(hidden, 1, count - 1, 1)?;
        let place = g.leaf(&self.logits);
        let place = g.reshape(place, &[self.model.hyper().vocabulary, 1])?;
        let logits = arch::head(g, &self.model.weights, last, place)?;
        let logits = g.reshape(logits, &[self.model.hyper().vocabulary])?;
        if tail == Tail::Sample {
            self.sample(g, logits, history, positions, count)?;
        }
        Ok(graph)
    }

    /// Draws a token and puts it, and its position, where the next step reads them.
    fn sample(
        &self,
        g: &mut Graph,
        logits: Value,
        history: Value,
        positions: Value,
        count: usize,
    ) -> Result<()> {
        let params = g.leaf(&self.params);
        let history = g.reshape(history, &[self.positions])?;
        let position = g.slice(positions, 0, count - 1, 1)?;
        let place = g.leaf(&self.tokens.slice(0, 0, 1)?);
        g.apply_into(ops::Sample, &[logits, history, params, position], place)?;
        let one = g.leaf(&self.one);
        let place = g.leaf(&self.places.slice(0, 0, 1)?);
        g.apply_into(ops::Binary { kind: BinaryKind::Add }, &[position, one], place)?;
        Ok(())
    }
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
