//! What every HTTP request of a cloud store passes: counting, a stall timeout, and a concurrency
//! limit that halves when the store throttles and grows again by one for every round of successes.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, StatusCode};
use http_body::{Body, Frame};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::metrics::{Metrics, Request};
use crate::clock::Clock;

/// Requests of one store that may be under way at once while nothing throttles.
const MAX_CONCURRENT: usize = 64;
/// The slowest upload that still counts as progress.
const MIN_UPLOAD_BYTES_PER_SECOND: u64 = 64 * 1024;

/// Makes clients whose requests are counted, limited and never hang.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stall_timeout: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service {
            inner: ReqwestConnector::default().connect(options)?,
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
            limit: Arc::new(Limit::default()),
        }))
    }
}

#[derive(Debug)]
struct Service {
    inner: HttpClient,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stall_timeout: Duration,
    limit: Arc<Limit>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, req: HttpRequest) -> Result<HttpResponse, HttpError> {
        let permit = self.limit.acquire().await;
        let sent = req.body().content_length() as u64;
        self.metrics.request(kind_of(&req), sent);
        // The whole body counts as progress at the slowest rate: the client does not show less.
        let patience = self.stall_timeout + Duration::from_secs(sent / MIN_UPLOAD_BYTES_PER_SECOND);
        let answer = tokio::select! {
            answer = self.inner.execute(req) => answer,
            () = self.clock.sleep(patience) => Err(stalled(patience)),
        };
        let response = answer.inspect_err(|_| self.metrics.failed_attempt())?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            self.metrics.failed_attempt();
        }
        let throttled =
            status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS;
        self.limit.answered(throttled);
        let (parts, body) = response.into_parts();
        let body = WatchedBody {
            inner: body,
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
            alarm: Mutex::new(None),
            _permit: permit,
        };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

fn kind_of(req: &HttpRequest) -> Request {
    let query = req.uri().query().unwrap_or_default();
    match *req.method() {
        Method::GET
            if query.contains("list-type=")
                || query.contains("comp=list")
                || query.contains("delimiter=") =>
        {
            Request::List
        }
        Method::GET => Request::Get,
        Method::HEAD => Request::Head,
        Method::PUT
            if req
                .headers()
                .keys()
                .any(|h| h.as_str().ends_with("copy-source")) =>
        {
            Request::Copy
        }
        Method::PUT => Request::Put,
        Method::DELETE => Request::Delete,
        _ => Request::Post,
    }
}

#[derive(Debug)]
struct Stalled(Duration);

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no progress for {:.1} s", self.0.as_secs_f32())
    }
}

impl std::error::Error for Stalled {}

fn stalled(patience: Duration) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, Stalled(patience))
}

/// A semaphore whose size follows the store's answers (additive increase, halving decrease).
#[derive(Debug)]
struct Limit {
    slots: Arc<Semaphore>,
    size: AtomicUsize,
    successes: AtomicUsize,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            size: AtomicUsize::new(MAX_CONCURRENT),
            successes: AtomicUsize::new(0),
        }
    }
}

impl Limit {
    async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed, so a permit always comes.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    fn answered(&self, throttled: bool) {
        let size = self.size.load(Ordering::Relaxed);
        if throttled {
            self.successes.store(0, Ordering::Relaxed);
            let taken = self
                .slots
                .forget_permits(size.saturating_sub((size / 2).max(1)));
            self.size.fetch_sub(taken, Ordering::Relaxed);
        } else if size < MAX_CONCURRENT
            && self.successes.fetch_add(1, Ordering::Relaxed) + 1 >= size
        {
            self.successes.store(0, Ordering::Relaxed);
            self.size.fetch_add(1, Ordering::Relaxed);
            self.slots.add_permits(1);
        }
    }
}

/// A response body that is counted and fails when nothing arrives for too long.
struct WatchedBody {
    inner: HttpResponseBody,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stall_timeout: Duration,
    /// Behind a lock only because bodies must be `Sync`; it is never contended.
    alarm: Mutex<Option<BoxFuture<'static, ()>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            self.alarm = Mutex::new(None);
            if let Some(bytes) = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()) {
                self.metrics.received(bytes.len() as u64);
            }
            return Poll::Ready(frame);
        }
        let patience = self.stall_timeout;
        let clock = Arc::clone(&self.clock);
        let Ok(alarm) = self.alarm.get_mut() else {
            return Poll::Pending;
        };
        let alarm = alarm.get_or_insert_with(|| async move { clock.sleep(patience).await }.boxed());
        match alarm.poll_unpin(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(stalled(patience)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttling_halves_and_successes_restore() {
        let limit = Limit::default();
        limit.answered(true);
        assert_eq!(limit.slots.available_permits(), MAX_CONCURRENT / 2);
        for _ in 0..10 {
            limit.answered(true);
        }
        assert_eq!(limit.slots.available_permits(), 1);
        for _ in 0..10_000 {
            limit.answered(false);
        }
        assert_eq!(limit.slots.available_permits(), MAX_CONCURRENT);
    }
}
