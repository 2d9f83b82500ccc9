//! A pseudo-terminal with the program in it, as a shell would start it: a session of its own whose controlling terminal
//! it is, so that Ctrl-C typed at it becomes SIGINT.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use super::until;

pub struct Terminal {
    pub child: Child,
    keyboard: File,
    /// Our own hold on the program's side, to look at its mode also when the program is gone.
    line: File,
    shown: Arc<Mutex<String>>,
    /// How much of what was shown has been expected already.
    seen: usize,
    before: Termios,
}

impl Terminal {
    /// Starts a command in a terminal of 80 x 24.
    pub fn start(command: &mut Command) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let line = File::options()
            .read(true)
            .write(true)
            .custom_flags(OpenptFlags::NOCTTY.bits() as i32)
            .open(std::ffi::OsStr::from_bytes(name.as_bytes()))
            .unwrap();
        tcsetwinsize(&line, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = tcgetattr(&line).unwrap();
        let end = || line.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
        // SAFETY: between fork and exec only two system calls are made, which need no lock and no memory.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
            });
        }
        let child = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let screen = shown.clone();
        let mut reader = File::from(ours);
        let keyboard = reader.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The other side being gone is the end, however it is said.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                screen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Terminal { child, keyboard, line, shown, seen: 0, before }
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) {
        self.bytes(keys.as_bytes());
    }

    /// Types what need not be text.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.keyboard.write_all(bytes).unwrap();
    }

    /// Waits until this is shown, after what was waited for before.
    pub fn shows(&mut self, text: &str) {
        let (shown, child) = (&self.shown, &mut self.child);
        let rest = |at: usize| shown.lock().unwrap()[at..].find(text);
        let (mut found, mut gone) = (None, 0);
        until(format_args!("`{text}` to be shown after {:?}", Tail(shown)), || {
            // What was shown last may arrive a moment after the end.
            gone += usize::from(child.try_wait().unwrap().is_some());
            found = rest(self.seen);
            found.is_some() || gone > 100
        });
        let Some(at) = found else { panic!("the program ended without `{text}` after {:?}", Tail(shown)) };
        self.seen += at + text.len();
    }

    /// Everything shown so far.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// Waits until the program takes keys one by one, as an editor of lines does.
    pub fn is_ready(&mut self) {
        self.shows("> ");
        until("the line editor", || {
            !tcgetattr(&self.line).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
        });
    }

    /// Waits until nothing new is shown.
    pub fn is_still(&self) {
        let (mut length, mut times) = (0, 0);
        until("the output to stop", || {
            let now = self.shown.lock().unwrap().len();
            times = if now == length { times + 1 } else { 0 };
            length = now;
            times > 20
        });
    }

    /// Sends a signal to the program alone, by its name.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end, returns the exit code, and holds that the terminal's mode is what it was.
    pub fn ends(&mut self) -> i32 {
        until("the program to end", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        let (before, after) = (&self.before, tcgetattr(&self.line).unwrap());
        assert_eq!(before.local_modes, after.local_modes);
        assert_eq!(before.input_modes, after.input_modes);
        assert_eq!(before.output_modes, after.output_modes);
        assert_eq!(before.control_modes, after.control_modes);
        assert_eq!(format!("{:?}", before.special_codes), format!("{:?}", after.special_codes));
        code.expect("ended by itself, not by the signal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Shows the end of a terminal's contents at the moment of a failure.
struct Tail<'a>(&'a Mutex<String>);

impl std::fmt::Debug for Tail<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.0.lock().unwrap();
        let from = shown.char_indices().rev().nth(500).map_or(0, |(at, _)| at);
        write!(f, "{:?}", &shown[from..])
    }
}
