//! Timelines: a trace in Chrome's JSON format, which Perfetto opens (contract P5).
//!
//! One track each for every calling thread, every helper and each device queue; spans `plan`, `encode`, `commit`,
//! `execute` and `wait`, named after graph and chunk, with ops below `execute`. A commit and a wait also say of which
//! submission, so that steps of one graph can be told apart. Spans are collected in memory and written at the end.
//! Costs nothing when no trace is set.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A row of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// A host thread, by name.
    Thread(String),
    /// A device's queue, by the device's id.
    Queue(String),
}

impl Track {
    /// The calling thread's track.
    pub fn thread() -> Track {
        let thread = std::thread::current();
        Track::Thread(thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_string))
    }
}

struct Event {
    track: Track,
    category: &'static str,
    name: String,
    submission: Option<u64>,
    start_us: f64,
    duration_us: f64,
}

/// Collects spans.
pub struct Trace {
    began: Instant,
    events: Mutex<Vec<Event>>,
}

impl Trace {
    /// An empty timeline that begins now.
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> Arc<Trace> {
        Arc::new(Trace { began: Instant::now(), events: Mutex::new(Vec::new()) })
    }

    /// A span from now until the guard is dropped, named after graph and chunk.
    pub fn span(
        self: &Arc<Self>,
        track: Track,
        category: &'static str,
        graph: &str,
        chunk: usize,
    ) -> SpanGuard {
        let name = format!("{category} {graph} #{chunk}");
        SpanGuard { trace: self.clone(), track, category, name, submission: None, start: Instant::now() }
    }

    /// A span that is over already.
    pub fn add(&self, track: Track, category: &'static str, name: String, start: Instant, end: Instant) {
        self.push(
            Event { track, category, name, submission: None, start_us: 0.0, duration_us: 0.0 },
            start,
            end,
        );
    }

    fn push(&self, event: Event, start: Instant, end: Instant) {
        let us = |t: Instant| t.saturating_duration_since(self.began).as_nanos() as f64 / 1e3;
        let event = Event { start_us: us(start), duration_us: us(end) - us(start), ..event };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Spans collected so far: category, name, start and duration in microseconds, track.
    pub fn spans(&self) -> Vec<(&'static str, String, f64, f64, Track)> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events
            .iter()
            .map(|e| (e.category, e.name.clone(), e.start_us, e.duration_us, e.track.clone()))
            .collect()
    }

    /// Writes the trace as Chrome's JSON object format.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tracks: BTreeMap<Track, usize> = BTreeMap::new();
        for e in events.iter() {
            let next = tracks.len() + 1;
            tracks.entry(e.track.clone()).or_insert(next);
        }
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let mut first = true;
        for (track, id) in &tracks {
            let name = match track {
                Track::Thread(name) => format!("thread {name}"),
                Track::Queue(name) => format!("queue {name}"),
            };
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            let head = "\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":";
            write!(out, "{comma}{head}{id},\"args\":{{\"name\":{}}}}}", quoted(&name))?;
        }
        for e in events.iter() {
            let args =
                e.submission.map_or_else(String::new, |id| format!(",\"args\":{{\"submission\":{id}}}"));
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"cat\":\"{}\",\"name\":{},\"ts\":{:.3},\"dur\":{:.3}{args}}}",
                tracks.get(&e.track).copied().unwrap_or(0),
                e.category,
                quoted(&e.name),
                e.start_us,
                e.duration_us
            )?;
        }
        writeln!(out, "\n]}}")
    }
}

/// Ends its span on drop.
pub struct SpanGuard {
    trace: Arc<Trace>,
    track: Track,
    category: &'static str,
    name: String,
    submission: Option<u64>,
    start: Instant,
}

impl SpanGuard {
    /// Says which submission the span is about.
    pub fn of(mut self, submission: u64) -> SpanGuard {
        self.submission = Some(submission);
        self
    }
}

impl Drop for SpanGuard {
    fn drop(&mut self) {
        let (track, name) = (self.track.clone(), std::mem::take(&mut self.name));
        let (category, submission) = (self.category, self.submission);
        let event = Event { track, category, name, submission, start_us: 0.0, duration_us: 0.0 };
        self.trace.push(event, self.start, Instant::now());
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_escaped_and_tracks_are_named() {
        let trace = Trace::new();
        drop(trace.span(Track::Queue("cpu".into()), "execute", "a \"b\"\n", 3));
        drop(trace.span(Track::thread(), "commit", "b", 0).of(7));
        let mut out = Vec::new();
        trace.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("queue cpu") && text.contains(r#"execute a \"b\"\u000a #3"#), "{text}");
        assert_eq!(text.matches(r#","args":{"submission":7}}"#).count(), 1, "{text}");
        assert!(text.trim_end().ends_with("]}"));
    }
}
