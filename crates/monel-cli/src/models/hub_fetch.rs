//! Files of the Hugging Face Hub, over HTTP, resumed by byte range.
//!
//! What has arrived of a file is kept beside a note of what it is a part of ([`Note`]): its identity on the
//! hub and its length. A later request, in this process or the next, asks for the rest only (`Range`), and
//! starts over if the hub's file is another one by then. Large files answer with a redirect to a store that
//! keeps them; the redirect carries their sha256, so they are verified like any other model, and the user's
//! token is not sent along to the other host.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body};

use super::hub::HubFile;
use super::store::Store;
use super::{ModelError, Pulled, cache, wheel};

const ENDPOINT: &str = "https://huggingface.co";
const REDIRECTS: usize = 8;
/// Tries in a row that bring nothing new.
const FRUITLESS: u32 = 3;

/// The hub, as this user reaches it.
#[derive(Debug)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
    agent: Agent,
}

/// What a partial file is a part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The entity tag: for large files their sha256.
    identity: String,
    /// The whole file's length.
    bytes: u64,
}

/// What a complete file should be.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    bytes: u64,
    sha256: String,
}

/// Why an attempt ended early.
enum Broken {
    /// Worth another try.
    Retry(String),
    /// Not worth one.
    Give(ModelError),
}

impl From<ModelError> for Broken {
    fn from(error: ModelError) -> Self {
        Self::Give(error)
    }
}

impl Hub {
    /// `$HF_ENDPOINT` with `$HF_TOKEN`, where they are set.
    pub fn from_env() -> Self {
        let set = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        Self::at(set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()), set("HF_TOKEN"))
    }

    /// The hub at this address.
    pub fn at(endpoint: impl Into<String>, token: Option<String>) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            // Per read, not per file: a slow line is fine, a dead one is not.
            .timeout_per_read(Some(Duration::from_secs(20)))
            .build()
            .new_agent();
        Self { endpoint: endpoint.into().trim_end_matches('/').to_owned(), token, agent }
    }

    /// The file, from the cache or fetched into it.
    ///
    /// # Errors
    /// Whatever keeps it from being fetched.
    pub fn get(&self, store: &Store<'_>, file: &HubFile, verify: bool) -> Result<Pulled, ModelError> {
        let name = file.cache_name();
        let path = store.cache.file(&name);
        let facts_path = store.cache.file(&format!("{name}.json"));
        let present = |tell| -> Result<Option<Pulled>, ModelError> {
            let Some(Facts { bytes, sha256 }) = read_json(&facts_path) else { return Ok(None) };
            let whole = store.is_whole(&path, bytes, &sha256, verify, tell)?;
            Ok(whole.then(|| Pulled { path: path.clone(), bytes, sha256 }))
        };
        if let Some(pulled) = present(false)? {
            return Ok(pulled);
        }
        let _lock = store.cache.lock(&name, store.progress, store.cancel)?;
        if let Some(pulled) = present(true)? {
            return Ok(pulled);
        }
        let part = store.cache.partial(&name);
        for directory in [path.parent(), part.parent()].into_iter().flatten() {
            store.cache.create(directory)?;
        }
        let note = self.transfer(store, file, &part)?;

        store.progress.stage("checking", Some(note.bytes));
        let sha256 = wheel::sha256(&part, store.cancel, |read| store.progress.reached(read))?;
        let is_sha256 = note.identity.len() == 64 && note.identity.bytes().all(|b| b.is_ascii_hexdigit());
        if is_sha256 && !sha256.eq_ignore_ascii_case(&note.identity) {
            cache::remove(&part)?;
            let (what, expected) = (file.to_string(), note.identity);
            return Err(ModelError::Checksum { what, expected, found: sha256 });
        }
        // First what the file should be, then the file: a file without its facts would be fetched again.
        write_json(&facts_path, &Facts { bytes: note.bytes, sha256: sha256.clone() })?;
        let done = File::options().append(true).open(&part).map_err(ModelError::io("open", &part))?;
        cache::place(done, &part, &path)?;
        let _ = cache::remove(&note_path(&part));
        Ok(Pulled { path, bytes: note.bytes, sha256 })
    }

    /// Brings the whole file into `part`, in as many attempts as bring something new.
    fn transfer(&self, store: &Store<'_>, file: &HubFile, part: &Path) -> Result<Note, ModelError> {
        let url = format!("{}/{}", self.endpoint, file.url_path());
        let mut fruitless = 0;
        loop {
            let before = length(part);
            match self.attempt(store, file, &url, part) {
                Ok(note) => return Ok(note),
                Err(Broken::Give(error)) => return Err(error),
                Err(Broken::Retry(reason)) => {
                    let kept = length(part);
                    fruitless = if kept > before { 0 } else { fruitless + 1 };
                    if fruitless == FRUITLESS {
                        return Err(ModelError::HubTransfer { url, reason, kept });
                    }
                    store.progress.note(&format!("{reason}: trying again"));
                    thread::sleep(Duration::from_millis(200 << fruitless));
                }
            }
            if store.cancel.load(Ordering::Acquire) {
                return Err(ModelError::Cancelled {});
            }
        }
    }

    fn attempt(&self, store: &Store<'_>, file: &HubFile, url: &str, part: &Path) -> Result<Note, Broken> {
        let known: Option<Note> = read_json(&note_path(part)).filter(|n: &Note| length(part) <= n.bytes);
        let mut start = if known.is_some() { length(part) } else { 0 };
        if let Some(note) = known.as_ref().filter(|n| start > 0 && n.bytes == start) {
            return Ok(note.clone());
        }
        let mut answer = self.open(url, start)?;
        match answer.status() {
            // The whole file, from a server without ranges: it can be used.
            StatusCode::OK => start = 0,
            // Another file by now, or the part reaches beyond its end.
            status
                if status == StatusCode::RANGE_NOT_SATISFIABLE
                    || (status == StatusCode::PARTIAL_CONTENT && known != answer.note(start)) =>
            {
                start = 0;
                answer = self.open(url, 0)?;
            }
            // The rest of the file, or a refusal, which costs nothing of what is there.
            _ => {}
        }
        let status = answer.status();
        if !status.is_success() {
            let error = ModelError::HubStatus { url: url.into(), status: status.as_u16() };
            let later = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            return Err(if later { Broken::Retry(error.to_string()) } else { error.into() });
        }
        let Some(note) = answer.note(start) else {
            return Err(Broken::Retry(format!("{url} answered {status} without a length")));
        };

        let mut out = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(part)
            .map_err(ModelError::io("create", part))?;
        // The old bytes go before the new note comes, so that they are never taken for a part of it.
        out.set_len(start).map_err(ModelError::io("write", part))?;
        write_json(&note_path(part), &note)?;
        std::io::Seek::seek(&mut out, std::io::SeekFrom::Start(start))
            .map_err(ModelError::io("write", part))?;

        store.progress.stage(&format!("fetching {file}"), Some(note.bytes));
        let mut reader = answer.response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        let mut at = start;
        loop {
            store.progress.reached(at);
            if store.cancel.load(Ordering::Acquire) {
                return Err(ModelError::Cancelled {}.into());
            }
            match reader.read(&mut buffer) {
                Ok(0) if at == note.bytes => return Ok(note),
                Ok(0) => {
                    return Err(Broken::Retry(format!(
                        "the transfer broke off at byte {at} of {}",
                        note.bytes
                    )));
                }
                Ok(n) if at + n as u64 > note.bytes => {
                    cache::remove(part)?;
                    let what = file.to_string();
                    return Err(
                        ModelError::Length { what, expected: note.bytes, found: at + n as u64 }.into()
                    );
                }
                Ok(n) => {
                    out.write_all(&buffer[..n]).map_err(ModelError::io("write", part))?;
                    at += n as u64;
                }
                Err(e) => return Err(Broken::Retry(format!("the transfer broke off at byte {at}: {e}"))),
            }
        }
    }

    /// Asks for the file from byte `start` on, following redirects.
    fn open(&self, url: &str, start: u64) -> Result<Answer, Broken> {
        let mut target = url.to_owned();
        let (mut identity, mut bytes) = (None, None);
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(&target);
            if start > 0 {
                request = request.header(header::RANGE, format!("bytes={start}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| origin(&target) == origin(&self.endpoint)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| match e {
                ureq::Error::BadUri(_) | ureq::Error::Http(_) => Broken::Give(ModelError::HubTransfer {
                    url: url.into(),
                    reason: format!("{e}; is HF_ENDPOINT an address such as {ENDPOINT}?"),
                    kept: 0,
                }),
                e => Broken::Retry(e.to_string()),
            })?;
            identity = identity.or_else(|| text(&response, "x-linked-etag").map(|t| bare_tag(&t)));
            bytes = bytes.or_else(|| text(&response, "x-linked-size").and_then(|t| t.parse().ok()));
            if !response.status().is_redirection() {
                return Ok(Answer { response, identity, bytes });
            }
            match text(&response, "location") {
                Some(next) if next.starts_with('/') => target = format!("{}{next}", origin(&target)),
                Some(next) => target = next,
                None => return Err(Broken::Retry(format!("{target} redirects to nowhere"))),
            }
        }
        Err(Broken::Retry(format!("{url} redirects more than {REDIRECTS} times")))
    }
}

/// A response, with what the redirects before it said about the file.
struct Answer {
    response: Response<Body>,
    identity: Option<String>,
    bytes: Option<u64>,
}

impl Answer {
    fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// What this is a part of; nothing if the answer does not begin at `start` or has no length.
    fn note(&self, start: u64) -> Option<Note> {
        let identity = self.identity.clone();
        let identity = identity.or_else(|| text(&self.response, "etag").map(|t| bare_tag(&t)))?;
        let stated = if self.status() == StatusCode::PARTIAL_CONTENT {
            // bytes FIRST-LAST/TOTAL
            let range = text(&self.response, "content-range")?;
            let (span, total) = range.strip_prefix("bytes ")?.split_once('/')?;
            if span.split_once('-')?.0.parse() != Ok(start) {
                return None;
            }
            total.parse().ok()
        } else {
            text(&self.response, "content-length").and_then(|t| t.parse().ok())
        };
        Some(Note { identity, bytes: self.bytes.or(stated)? })
    }
}

fn text(response: &Response<Body>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// An entity tag without `W/` and quotes.
fn bare_tag(tag: &str) -> String {
    tag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// `https://host:port` of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.len())
}

fn note_path(part: &Path) -> std::path::PathBuf {
    let mut name = part.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Anything unreadable counts as absent: the file is then fetched from its start.
fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ModelError> {
    let text = serde_json::to_vec(value).map_err(|e| ModelError::io("write", path)(e.into()))?;
    fs::write(path, text).map_err(ModelError::io("write", path))
}
