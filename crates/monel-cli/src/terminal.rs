//! The terminal on stdin. Its mode is remembered before a line editor changes it, put back when the program ends
//! without it.
//!
//! The editor turns off echo and line buffering while it waits for a line, and puts them back when it has one. A signal
//! that ends the program meanwhile leaves no time for that, so [`interrupt`](crate::interrupt) does it.

/// Remembers the mode of the terminal on stdin, to be put back before the process ends in the middle of a line.
#[cfg(unix)]
pub fn keep() {
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

    if let Ok(mode) = tcgetattr(std::io::stdin()) {
        crate::interrupt::on_second(move || {
            // Errors have nobody to hear them. The mode first: a stopped terminal never takes what is written to it.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &mode);
            // The editor asked for pasted text in brackets.
            let _ = rustix::io::write(std::io::stdin(), b"\x1b[?2004l");
        });
    }
}

/// Remembers nothing: elsewhere the system's own Ctrl-C stands, and the editor hears it.
#[cfg(not(unix))]
pub fn keep() {}

/// Drops what was typed at the terminal on stdin and not read yet.
#[cfg(unix)]
pub fn forget_typed() {
    use rustix::termios::{QueueSelector, tcflush};

    // What cannot be dropped is read as the next line.
    let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
}

/// Drops nothing: elsewhere the editor reads characters, not bytes.
#[cfg(not(unix))]
pub fn forget_typed() {}
