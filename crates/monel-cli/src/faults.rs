//! Signals that would end the program without a word.
//!
//! A file over the size that a shell allows (SIGXFSZ) is an error of the write like any other. Touching memory of a file
//! that was cut (SIGBUS) cannot be gone on from: the engine looks at a file's length before each submission, but not at
//! every byte, and drivers map files of their own.

use std::io;

/// Takes the two over. Called once, first thing in `main`.
///
/// # Errors
/// When the system refuses a signal handler.
#[cfg(unix)]
pub fn install() -> io::Result<()> {
    use signal_hook::consts::{SIGBUS, SIGXFSZ};
    use std::io::IsTerminal;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    // With any handler the write fails.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let shown = io::stderr().is_terminal();
    let say = move || {
        if shown {
            let _ = rustix::io::write(rustix::stdio::stderr(), crate::interrupt::RESTORED);
        }
        let _ = rustix::io::write(rustix::stdio::stderr(), CUT);
        signal_hook::low_level::exit(1);
    };
    // SAFETY: `write` and `_exit` are among what a signal handler may call, and nothing is allocated or locked.
    unsafe { signal_hook::low_level::register(SIGBUS, say) }?;
    Ok(())
}

/// Nothing to take over.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn install() -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
const CUT: &[u8] =
    b"error: a file was cut while it was in use, or the disk it lies on is full (SIGBUS): leave a model's \
file as it is while it runs, and make room where drivers keep their caches\n";
