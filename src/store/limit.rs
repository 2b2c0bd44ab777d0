//! Send limits: until when a request may be sent, and whether more than once.
//!
//! A call of a [`Store::with_send_limit`] store runs with a [`SendTracker`] of its own in a task-local. The HTTP
//! service asks it immediately before every send, those of `object_store`'s own retries included; for stores that do
//! not speak HTTP it is asked before the call. At the deadline the call is dropped, which closes its connection.
//!
//! [`ErrorKind::Expired`] means that nothing was sent, [`ErrorKind::Unavailable`] that the outcome is unknown. Any other
//! error of a call that sends once is the answer to its only send.
//!
//! Other task-locals reach the HTTP service the same way: [`with_headers`] adds headers to the requests of a call, and
//! [`capture`] takes a request instead of sending it, for its address and client.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, Uri};
use object_store::client::{HttpClient, HttpError, HttpErrorKind};

use super::Store;
use super::local::lock;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::mutex;

/// The resends that every store gets, however short its timeout is.
const MIN_RESENDS: u32 = 4;
/// The pause before the first resend is twice this; it doubles with each further one, …
const RESEND_DELAY: Duration = Duration::from_millis(50);
/// … up to this.
const MAX_RESEND_DELAY: Duration = Duration::from_secs(15);

/// Until when a request may be sent, and whether more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendLimit {
    /// The time of the store's [`Clock::monotonic`] at which requests in flight are dropped and no more are sent.
    pub deadline: Option<Duration>,
    /// No request is sent a second time.
    pub once: bool,
}

/// How often a conditional request whose outcome is unknown is sent again by the code that can read the state back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resends {
    /// The most resends; there are always [`MIN_RESENDS`].
    pub(super) max: u32,
    /// How long after the first send there are more than [`MIN_RESENDS`].
    pub(super) timeout: Duration,
}

impl Default for Resends {
    fn default() -> Self {
        Self {
            max: MIN_RESENDS,
            timeout: Duration::ZERO,
        }
    }
}

/// The limit of one call, and what the call has sent.
#[derive(Debug)]
pub(super) struct SendTracker {
    limit: SendLimit,
    clock: Arc<dyn Clock>,
    state: Mutex<SendState>,
}

#[derive(Debug, Default)]
struct SendState {
    sent: u32,
    refused: bool,
    /// How the last send ended if its answer does not settle the call: a predicate of "the last attempt".
    failure: Option<String>,
}

/// The address, headers and client of a request that was not sent.
pub(super) struct CapturedRequest {
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) client: HttpClient,
}

tokio::task_local! {
    static SEND_TRACKER: Arc<SendTracker>;
    static HEADERS: HeaderMap;
    static CAPTURED: Arc<Mutex<Option<CapturedRequest>>>;
}

/// A send that the limit of its call does not allow.
#[derive(Debug)]
pub(super) struct SendRefused;

impl fmt::Display for SendRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not sent: the deadline passed, or the request must not be sent twice")
    }
}

impl std::error::Error for SendRefused {}

impl From<SendRefused> for HttpError {
    fn from(refused: SendRefused) -> Self {
        // `object_store` does not retry this kind.
        Self::new(HttpErrorKind::Unknown, refused)
    }
}

impl SendTracker {
    fn lock_state(&self) -> MutexGuard<'_, SendState> {
        mutex::lock(&self.state)
    }

    fn permit(&self) -> Result<(), SendRefused> {
        let mut state = self.lock_state();
        let late = self
            .limit
            .deadline
            .is_some_and(|d| self.clock.monotonic() >= d);
        if late || (self.limit.once && state.sent > 0) {
            state.refused = true;
            return Err(SendRefused);
        }
        state.sent += 1;
        Ok(())
    }

    /// The error of a call that was ended by its limit.
    fn error(&self, path: &str) -> Error {
        let state = self.lock_state();
        if state.sent == 0 {
            let message = "the deadline passed before the request was sent; nothing has happened";
            return Error::new(ErrorKind::Expired, message).with_path(path);
        }
        let failure = state.failure.as_deref().unwrap_or("got no answer");
        let reason = if self.limit.once && state.refused {
            "it must not be sent twice"
        } else {
            "the deadline passed"
        };
        let message = format!(
            "the outcome of the request is unknown: it was sent {} time(s), the last attempt {failure}, and {reason}",
            state.sent
        );
        Error::new(ErrorKind::Unavailable, message).with_path(path)
    }
}

/// Asks whether one more send is allowed, and counts it.
pub(super) fn permit() -> Result<(), SendRefused> {
    SEND_TRACKER
        .try_with(|tracker| tracker.permit())
        .unwrap_or(Ok(()))
}

/// Whether the call's limit has refused a send.
pub(super) fn is_refused() -> bool {
    SEND_TRACKER
        .try_with(|tracker| tracker.lock_state().refused)
        .unwrap_or(false)
}

/// Whether the call must not send a request again, so that nobody needs to wait for another send.
pub(super) fn is_sent_once() -> bool {
    SEND_TRACKER
        .try_with(|tracker| tracker.limit.once)
        .unwrap_or(false)
}

/// Records how a send failed, for the message of the call's error; `text` is a predicate of "the last attempt".
pub(super) fn note_failure(text: impl FnOnce() -> String) {
    let _ = SEND_TRACKER.try_with(|tracker| {
        let mut state = tracker.lock_state();
        // An error after a refusal says nothing about the send before it.
        if !state.refused {
            state.failure = Some(text());
        }
    });
}

/// Runs `work`, whose requests get `headers` in addition to their own. The signature does not cover them.
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

/// Runs `work` until it makes a request, and returns that request instead of sending it.
pub(super) async fn capture<T>(
    work: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<CapturedRequest> {
    let captured = Arc::new(Mutex::new(None));
    let result = CAPTURED.scope(Arc::clone(&captured), work).await;
    let target = mutex::lock(&captured).take();
    match (target, result) {
        (Some(target), _) => Ok(target),
        (None, Err(e)) => Err(e),
        (None, Ok(_)) => Err(object_store::Error::Generic {
            store: "http",
            source: "internal error: no request was made that could be captured".into(),
        }),
    }
}

/// Hands a request to the [`capture`] around the call; false if there is none.
pub(super) fn deliver_captured(target: impl FnOnce() -> CapturedRequest) -> bool {
    let put = |slot: &Arc<Mutex<Option<CapturedRequest>>>| {
        *mutex::lock(slot) = Some(target());
    };
    CAPTURED.try_with(put).is_ok()
}

impl Store {
    /// The same store, whose every call obeys `limit`: a call is what one method does, retries included.
    ///
    /// A call that its limit ends fails with [`ErrorKind::Expired`] if nothing was sent, and with
    /// [`ErrorKind::Unavailable`] if a request was sent whose outcome is unknown.
    #[must_use]
    pub fn with_send_limit(&self, limit: SendLimit) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// The same store, whose every call sends one request at most: a call that fails otherwise than with
    /// [`ErrorKind::Unavailable`] was answered so, and none of its requests lands later.
    pub(super) fn sending_once(&self) -> Self {
        self.with_send_limit(SendLimit {
            once: true,
            ..self.limit
        })
    }

    /// Waits before a conditional request is sent once more, after `sends` of which the first began at `begun_at`. False
    /// if it was sent often enough: [`Resends`] says how often.
    pub(crate) async fn wait_before_resend(&self, sends: u32, begun_at: Duration) -> bool {
        let (clock, resends) = (&self.inner.clock, &self.inner.resends);
        let is_in_time = clock.monotonic().saturating_sub(begun_at) < resends.timeout;
        if sends > MIN_RESENDS && (sends > resends.max || !is_in_time) {
            return false;
        }
        let delay = RESEND_DELAY.saturating_mul(2_u32.saturating_pow(sends));
        clock.sleep(delay.min(MAX_RESEND_DELAY)).await;
        true
    }

    /// Whether calls may send a request more than once.
    pub(super) fn may_retry(&self) -> bool {
        !self.limit.once
    }

    /// Runs one call under the store's limit, with the store's lock.
    pub(super) async fn run_limited<T>(
        &self,
        path: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let guarded_work = Box::pin(lock::with_lock(self.lock.clone(), work));
        if self.limit == SendLimit::default() {
            return guarded_work.await;
        }
        if let Some(conditional_store) = &self.inner.conditional_store {
            // Requests for credentials are not sends of this call.
            conditional_store
                .warm_up()
                .await
                .map_err(|e| self.map_error(e, path))?;
        }
        let tracker = Arc::new(SendTracker {
            limit: self.limit,
            clock: Arc::clone(&self.inner.clock),
            state: Mutex::default(),
        });
        let limited_work = SEND_TRACKER.scope(Arc::clone(&tracker), guarded_work);
        let outcome = match self.limit.deadline {
            Some(deadline) => run_until(self.inner.clock.as_ref(), deadline, limited_work).await,
            None => Some(limited_work.await),
        };
        match outcome {
            None => Err(tracker.error(path)),
            Some(Err(_)) if tracker.lock_state().refused => Err(tracker.error(path)),
            Some(result) => result,
        }
    }

    /// Runs one request of `object_store`, if the limit allows it. The HTTP service asks the limit itself.
    pub(super) async fn send<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        if !self.inner.is_http {
            permit().map_err(|refused| object_store::Error::Generic {
                store: self.inner.name,
                source: refused.into(),
            })?;
        }
        let result = request.await;
        if let Err(e) = &result {
            note_failure(|| format!("failed: {}", crate::error::format_error_chain(e)));
        }
        result
    }
}

/// The result of `work`; None at the deadline, from which on `work` is not polled.
async fn run_until<T>(
    clock: &dyn Clock,
    deadline: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let remaining = deadline.saturating_sub(clock.monotonic());
    let (mut work, mut timeout) = (pin!(work), pin!(clock.sleep(remaining)));
    poll_fn(|cx| {
        if clock.monotonic() >= deadline {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        timeout.as_mut().poll(cx).map(|()| None)
    })
    .await
}
