//! `hf:` names against a server in this process: redirects, byte ranges, transfers that break off.
#![cfg(all(feature = "hf", unix))]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{monel, stderr, stdout, until};
use monel_cli::models::wheel::hex;
use sha2::{Digest, Sha256};

/// How the server answers one request; when the list is used up it closes connections unanswered.
#[derive(Debug, Clone)]
enum Answer {
    /// The file, as asked for: 206 for a range, else 200. At most this many bytes of it are sent.
    File {
        content: Arc<Vec<u8>>,
        etag: String,
        at_most: usize,
    },
    /// The whole file with 200, whatever was asked for.
    Whole(Arc<Vec<u8>>, String),
    /// A redirect, with what the hub says about large files.
    Redirect {
        to: String,
        etag: String,
        bytes: usize,
    },
    Status(u16),
    /// A head that promises a body, and then nothing until the client is gone.
    Stall,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    path: String,
    range: Option<String>,
    authorization: Option<String>,
}

/// A server that lives as long as the test process; every request it saw.
struct Server {
    address: String,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (queue, seen) = (Arc::clone(&answers), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read_request(&stream) else { continue };
                let range = request.range.clone();
                seen.lock().unwrap().push(request);
                let answer = queue.lock().unwrap().pop_front();
                if let Some(answer) = answer {
                    // A client that has hung up is the test's business, not the server's.
                    let _ = reply(stream, &answer, range.as_deref());
                }
            }
        });
        Self { address, answers, requests }
    }

    fn push(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().unwrap().extend(answers);
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.requests().into_iter().map(|r| r.range).collect()
    }

    fn pull(&self, cache: &Path) -> Output {
        self.command(cache).output().unwrap()
    }

    fn command(&self, cache: &Path) -> Command {
        let mut command = monel(cache);
        command.args(["pull", "hf:some/thing/dir/model.gguf", "--json"]).env("HF_ENDPOINT", &self.address);
        command.env("NO_PROXY", "127.0.0.1");
        command
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, range: None, authorization: None };
    for line in lines.take_while(|l| !l.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.into()),
            "authorization" => request.authorization = Some(value.into()),
            _ => {}
        }
    }
    Some(request)
}

fn reply(mut out: TcpStream, answer: &Answer, range: Option<&str>) -> std::io::Result<()> {
    let end = "Connection: close\r\n\r\n";
    match answer {
        Answer::File { content, etag, at_most } => {
            let total = content.len();
            let from = range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
            let start: usize = from.unwrap_or(0);
            match from {
                Some(_) => write!(
                    out,
                    "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{total}\r\n",
                    total - 1
                )?,
                None => write!(out, "HTTP/1.1 200 OK\r\n")?,
            }
            write!(out, "ETag: \"{etag}\"\r\nContent-Length: {}\r\n{end}", total - start)?;
            out.write_all(&content[start..start.saturating_add(*at_most).min(total)])
        }
        Answer::Whole(content, etag) => {
            write!(out, "HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: {}\r\n{end}", content.len())?;
            out.write_all(content)
        }
        Answer::Redirect { to, etag, bytes } => write!(
            out,
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nX-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {bytes}\r\n\
             Content-Length: 0\r\n{end}"
        ),
        Answer::Status(code) => write!(out, "HTTP/1.1 {code} Status\r\nContent-Length: 0\r\n{end}"),
        Answer::Stall => {
            write!(out, "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 1000\r\n{end}")?;
            thread::spawn(move || std::io::copy(&mut &out, &mut std::io::sink()));
            Ok(())
        }
    }
}

fn content() -> Arc<Vec<u8>> {
    Arc::new((0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect())
}

fn sha(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

fn file(content: &Arc<Vec<u8>>, etag: &str, at_most: usize) -> Answer {
    Answer::File { content: Arc::clone(content), etag: etag.into(), at_most }
}

fn assert_pulled(output: &Output, cache: &Path, content: &[u8]) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    let json: serde_json::Value = serde_json::from_str(&stdout(output)).unwrap();
    let path = cache.join("hf/some/thing/dir/model.gguf");
    assert_eq!(json["path"], path.to_str().unwrap());
    assert_eq!(json["bytes"], content.len());
    assert_eq!(json["sha256"], sha(content));
    assert!(fs::read(path).unwrap() == content);
}

#[test]
fn a_large_file_is_fetched_through_its_redirect_and_once() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let store = Server::new([file(&content, "another tag", usize::MAX)]);
    let (to, etag) = (format!("{}/blob?sig=1", store.address), sha(&content));
    let hub = Server::new([Answer::Redirect { to, etag, bytes: content.len() }]);
    let output = hub.command(dir.path()).env("HF_TOKEN", "secret").output().unwrap();
    assert_pulled(&output, dir.path(), &content);
    let asked = hub.requests();
    assert_eq!(asked[0].path, "/some/thing/resolve/main/dir/model.gguf");
    assert_eq!(asked[0].authorization.as_deref(), Some("Bearer secret"));
    assert_eq!(store.requests()[0].authorization, None, "the token goes to the hub alone");
    assert!(!dir.path().join("partial/hf/some/thing/dir/model.gguf").exists());

    assert_pulled(&hub.pull(dir.path()), dir.path(), &content);
    assert_eq!(hub.requests().len(), 1, "what is there is not asked for");
}

#[test]
fn the_next_run_asks_for_the_rest_only() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let server = Server::new([file(&content, "v1", 100_000)]);
    let output = server.pull(dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("100.0 kB so far are kept"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert!(!dir.path().join("hf/some/thing/dir/model.gguf").exists());

    let before = server.requests().len();
    server.push([file(&content, "v1", usize::MAX)]);
    assert_pulled(&server.pull(dir.path()), dir.path(), &content);
    assert_eq!(server.ranges()[before..], [Some("bytes=100000-".to_owned())]);
}

#[test]
fn a_transfer_that_breaks_off_goes_on_in_the_same_run() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let server = Server::new([
        file(&content, "v1", 1000),
        Answer::Status(503),
        file(&content, "v1", 50_000),
        file(&content, "v1", usize::MAX),
    ]);
    assert_pulled(&server.pull(dir.path()), dir.path(), &content);
    let range = |at: u32| Some(format!("bytes={at}-"));
    assert_eq!(server.ranges(), [None, range(1000), range(1000), range(51_000)]);
}

#[test]
fn another_file_by_then_is_fetched_from_its_start() {
    let (dir, old) = (tempfile::tempdir().unwrap(), content());
    let new: Arc<Vec<u8>> = Arc::new(old.iter().map(|b| !b).collect());
    let server = Server::new([file(&old, "v1", 100_000), file(&new, "v2", usize::MAX)]);
    server.push([file(&new, "v2", usize::MAX)]);
    assert_pulled(&server.pull(dir.path()), dir.path(), &new);
    assert_eq!(server.ranges(), [None, Some("bytes=100000-".into()), None]);
}

#[test]
fn a_server_without_ranges_is_good_enough() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let server = Server::new([file(&content, "v1", 100), Answer::Whole(Arc::clone(&content), "v1".into())]);
    assert_pulled(&server.pull(dir.path()), dir.path(), &content);
    assert_eq!(server.ranges().len(), 2);
}

#[test]
fn wrong_bytes_are_refused() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let etag = "0".repeat(64);
    let server = Server::new([file(&content, &etag, usize::MAX)]);
    let output = server.pull(dir.path());
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains(&format!("expected sha256 {etag}, found {}", sha(&content))), "{said}");
    assert!(!dir.path().join("hf/some/thing/dir/model.gguf").exists());
    assert!(!dir.path().join("partial/hf/some/thing/dir/model.gguf").exists());
}

#[test]
fn a_short_file_in_the_cache_is_fetched_again() {
    let (dir, content) = (tempfile::tempdir().unwrap(), content());
    let server = Server::new([file(&content, "v1", usize::MAX), file(&content, "v1", usize::MAX)]);
    assert_pulled(&server.pull(dir.path()), dir.path(), &content);
    fs::write(dir.path().join("hf/some/thing/dir/model.gguf"), &content[..10]).unwrap();
    let output = server.pull(dir.path());
    assert_pulled(&output, dir.path(), &content);
    let said = stderr(&output);
    assert_eq!(said.matches("has 10 bytes, expected 300000").count(), 1, "{said}");
}

#[test]
fn refusals_say_what_to_do() {
    for (status, advice) in [(404, "check the owner"), (401, "HF_TOKEN"), (403, "HF_TOKEN")] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::new([Answer::Status(status)]);
        let output = server.pull(dir.path());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(advice), "{}", stderr(&output));
        assert_eq!(server.requests().len(), 1, "asking again would not help");
    }
    let dir = tempfile::tempdir().unwrap();
    let output = Server::new([]).command(dir.path()).env("HF_ENDPOINT", "not an address").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("HF_ENDPOINT"), "{}", stderr(&output));
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_a_dead_line() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::new([Answer::Stall]);
    let mut child = server.command(dir.path()).stderr(Stdio::piped()).spawn().unwrap();
    until("the transfer to begin", || dir.path().join("partial/hf/some/thing/dir/model.gguf").exists());
    until("the program to end", || {
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).stderr(Stdio::null()).status();
        child.try_wait().unwrap().is_some()
    });
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    // The orderly end, which the first one asked for, would have said so.
    assert!(!stderr(&output).contains("stopped"), "{}", stderr(&output));
}
