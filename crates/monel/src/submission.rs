//! What was handed over: a future, and a `wait()`, for its result (contract E2, T2).

use crate::device::Core;
use crate::device::driver::Landing;
use crate::error::{Error, Result};
use crate::queue::SubmissionId;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

/// Work that was handed over. Resolves once it is finished, failed or cancelled; dropping it cancels nothing.
#[must_use = "a failure is reported here and by the stream's synchronize"]
pub struct Submission {
    pub(crate) core: Arc<Core>,
    pub(crate) ids: Vec<SubmissionId>,
    next: usize,
    failure: Option<Error>,
}

impl Submission {
    pub(crate) fn new(core: Arc<Core>, ids: Vec<SubmissionId>) -> Submission {
        Submission { core, ids, next: 0, failure: None }
    }

    /// Sleeps until it is finished.
    pub fn wait(mut self) -> Result<()> {
        while let Some(&id) = self.ids.get(self.next) {
            let result = self.core.queue.wait_for(id);
            self.note(result);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Whether the outcome is known.
    pub fn is_done(&self) -> bool {
        self.core.queue.look(|s| self.ids.iter().all(|&id| s.outcome(id).is_some()))
    }

    fn note(&mut self, result: Result<()>) {
        self.next += 1;
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }
}

impl Future for Submission {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(&id) = self.ids.get(self.next) {
            match self.core.queue.poll(id, cx.waker()) {
                Some(result) => self.note(result),
                None => return Poll::Pending,
            }
        }
        Poll::Ready(self.failure.take().map_or(Ok(()), Err))
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        if !ids.is_empty() {
            self.core.queue.look(|s| ids.iter().for_each(|&id| s.release(id)));
        }
    }
}

/// A download under way; resolves to the bytes.
#[must_use = "a download does nothing useful when its bytes are not awaited"]
pub struct Download {
    pub(crate) submission: Submission,
    pub(crate) landing: Landing,
}

impl Download {
    /// Sleeps until the bytes are there.
    pub fn wait(self) -> Result<Vec<u8>> {
        let Download { submission, landing } = self;
        submission.wait()?;
        Ok(take(&landing))
    }

    /// Whether the outcome is known.
    pub fn is_done(&self) -> bool {
        self.submission.is_done()
    }
}

impl Future for Download {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        match Pin::new(&mut self.submission).poll(cx) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| take(&self.landing))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn take(landing: &Landing) -> Vec<u8> {
    std::mem::take(&mut landing.lock().unwrap_or_else(PoisonError::into_inner))
}
