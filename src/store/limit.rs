//! When a request may be sent, and how often: checked where bytes leave, immediately before each send.
//!
//! A call of a [`Store::limited`] store runs with a [`Sending`] of its own in a task-local, which the HTTP service
//! reads before every send, those of `object_store`'s own retries included. Stores that do not speak HTTP are asked
//! before the call. At the deadline the call is dropped, which closes its connection.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, Uri};
use object_store::client::{HttpClient, HttpError, HttpErrorKind};

use super::{Store, lock};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// When a request may be sent, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendLimit {
    /// The time on the store's [`Clock::monotonic`] from which on nothing is sent; what is under way is cut off.
    pub deadline: Option<Duration>,
    /// Nothing is sent a second time.
    pub once: bool,
}

/// One call's sends.
#[derive(Debug)]
pub(super) struct Sending {
    limit: SendLimit,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sent: u32,
    refused: bool,
    /// What the last send met, if it was no answer that settles the call.
    failure: Option<String>,
}

/// Where a request would go, learned without sending it.
pub(super) struct Target {
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) client: HttpClient,
}

tokio::task_local! {
    static SENDING: Arc<Sending>;
    static HEADERS: HeaderMap;
    static CAPTURED: Arc<Mutex<Option<Target>>>;
}

/// A send that its limit does not allow.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not sent: the request's time or number of sends is used up")
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for HttpError {
    fn from(refused: Refused) -> Self {
        // A kind that is not retried.
        Self::new(HttpErrorKind::Unknown, refused)
    }
}

impl Sending {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(&self) -> Result<(), Refused> {
        let mut state = self.state();
        let late = self
            .limit
            .deadline
            .is_some_and(|d| self.clock.monotonic() >= d);
        if late || (self.limit.once && state.sent > 0) {
            state.refused = true;
            return Err(Refused);
        }
        state.sent += 1;
        Ok(())
    }

    /// The error of a call that its limit ended.
    fn error(&self, path: &str) -> Error {
        let state = self.state();
        if state.sent == 0 {
            let message = "the deadline passed before the request was sent; nothing has happened";
            return Error::new(ErrorKind::Expired, message).with_path(path);
        }
        let met = state.failure.as_deref().unwrap_or("no answer came");
        let why = if self.limit.once && state.refused {
            "it must not be sent again"
        } else {
            "the deadline passed"
        };
        let message = format!(
            "the request was sent {} time(s), {met}, and {why}; whether it was carried out is not known",
            state.sent
        );
        Error::new(ErrorKind::Unavailable, message).with_path(path)
    }
}

/// Asks whether one more send is allowed, and counts it.
pub(super) fn permit() -> Result<(), Refused> {
    SENDING
        .try_with(|sending| sending.permit())
        .unwrap_or(Ok(()))
}

/// Whether the call's limit has refused a send.
pub(super) fn is_refused() -> bool {
    SENDING
        .try_with(|sending| sending.state().refused)
        .unwrap_or(false)
}

/// Keeps what a send met for the message of the error.
pub(super) fn note_failure(text: impl FnOnce() -> String) {
    let _ = SENDING.try_with(|sending| {
        let mut state = sending.state();
        // A refusal tells nothing of the send before it.
        if !state.refused {
            state.failure = Some(text());
        }
    });
}

/// Runs `work`, whose requests get `headers` on top of their own, unsigned.
pub(super) async fn with_headers<T>(headers: HeaderMap, work: impl Future<Output = T>) -> T {
    HEADERS.scope(headers, work).await
}

/// Adds the headers of [`with_headers`].
pub(super) fn add_headers(to: &mut HeaderMap) {
    let _ = HEADERS.try_with(|headers| {
        for (name, value) in headers {
            to.insert(name, value.clone());
        }
    });
}

/// The target of the request that `work` makes, which is not sent.
pub(super) async fn capture<T>(
    work: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<Target> {
    let captured = Arc::new(Mutex::new(None));
    let done = CAPTURED.scope(Arc::clone(&captured), work).await;
    let target = captured
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match (target, done) {
        (Some(target), _) => Ok(target),
        (None, Err(e)) => Err(e),
        (None, Ok(_)) => Err(object_store::Error::Generic {
            store: "http",
            source: "the store made no request whose address could be used".into(),
        }),
    }
}

/// Hands a request's target to [`capture`]; true where one waits for it.
pub(super) fn hand_over(target: impl FnOnce() -> Target) -> bool {
    let put = |slot: &Arc<Mutex<Option<Target>>>| {
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(target());
    };
    CAPTURED.try_with(put).is_ok()
}

impl Store {
    /// The same store, whose every call obeys `limit`: a call is what one method does, retries included.
    ///
    /// [`ErrorKind::Expired`]: nothing was sent. [`ErrorKind::Unavailable`]: it was sent, and no answer came in time.
    #[must_use]
    pub fn limited(&self, limit: SendLimit) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// Whether calls may send something more than once.
    pub(super) fn may_repeat(&self) -> bool {
        !self.limit.once
    }

    /// Runs one call under the store's limit.
    pub(super) async fn bounded<T>(
        &self,
        path: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let work = Box::pin(lock::keep(self.lock.clone(), work));
        if self.limit == SendLimit::default() {
            return work.await;
        }
        if let Some(versions) = &self.inner.versions {
            // Requests for credentials are not this call's.
            versions.warm_up().await.map_err(|e| self.error(e, path))?;
        }
        let sending = Arc::new(Sending {
            limit: self.limit,
            clock: Arc::clone(&self.inner.clock),
            state: Mutex::default(),
        });
        let work = SENDING.scope(Arc::clone(&sending), work);
        let done = match self.limit.deadline {
            Some(deadline) => until(self.inner.clock.as_ref(), deadline, work).await,
            None => Some(work.await),
        };
        match done {
            None => Err(sending.error(path)),
            Some(Err(_)) if sending.state().refused => Err(sending.error(path)),
            Some(done) => done,
        }
    }

    /// Runs one request of `object_store`; the HTTP service asks for leave itself.
    pub(super) async fn send<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        if !self.inner.http {
            permit().map_err(|refused| object_store::Error::Generic {
                store: self.inner.name,
                source: refused.into(),
            })?;
        }
        let done = request.await;
        if let Err(e) = &done {
            note_failure(|| format!("met {}", crate::error::chain(e)));
        }
        done
    }
}

/// The result of `work`, which is not polled from the deadline on.
async fn until<T>(
    clock: &dyn Clock,
    deadline: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let left = deadline.saturating_sub(clock.monotonic());
    let (mut work, mut alarm) = (pin!(work), pin!(clock.sleep(left)));
    poll_fn(|cx| {
        if clock.monotonic() >= deadline {
            return Poll::Ready(None);
        }
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        alarm.as_mut().poll(cx).map(|()| None)
    })
    .await
}
