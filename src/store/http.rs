//! What every HTTP request of a cloud store passes: counting, a stall timeout, and a concurrency
//! limit that halves when the store throttles and grows again by one for every round of successes.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, StatusCode};
use http_body::{Body, Frame};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, PutPayload};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limit;
use super::metrics::{Metrics, RequestKind};
use crate::clock::Clock;

/// Requests of one store that may be under way at once while nothing throttles.
const MAX_CONCURRENT: usize = 64;
/// Bodies are handed to the socket in frames of this size, each of which is progress.
const FRAME_BYTES: usize = 64 << 10;
/// What sockets take without the network having taken it, at most, …
const MAX_SOCKET_BYTES: u64 = 4 << 20;
/// … and the slowest network that empties them in time.
const MIN_UPLOAD_BYTES_PER_SECOND: u64 = 64 << 10;

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
            options: options.clone(),
            client: Arc::default(),
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
            limit: Arc::new(Limit::default()),
        }))
    }
}

#[derive(Debug, Clone)]
struct Service {
    options: ClientOptions,
    /// Made at the first request: it reads the certificates of the machine.
    client: Arc<OnceLock<HttpClient>>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stall_timeout: Duration,
    limit: Arc<Limit>,
}

impl Service {
    fn client(&self) -> Result<&HttpClient, HttpError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let made = ReqwestConnector::default().connect(&self.options);
        let client = made.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        Ok(self.client.get_or_init(|| client))
    }
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, req: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut req = req;
        let target = || limit::CapturedRequest {
            uri: req.uri().clone(),
            headers: req.headers().clone(),
            client: HttpClient::new(self.clone()),
        };
        if limit::deliver_captured(target) {
            return Err(limit::SendRefused.into());
        }
        limit::add_headers(req.headers_mut());
        let permit = self.limit.acquire().await;
        limit::permit()?;
        let sent = req.body().content_length() as u64;
        let (client, kind) = (self.client()?, kind_of(&req));
        self.metrics.count_request(kind, sent);
        let progress = Arc::new(Progress::new(&self.clock, sent));
        let req = watch_body(req, &progress);
        let answer = tokio::select! {
            answer = client.execute(req) => answer,
            waited = progress.stall(self.stall_timeout) => Err(stalled(waited)),
        };
        let response = answer.inspect_err(|e| {
            self.metrics.count_retry();
            limit::note_failure(|| format!("met {}", crate::error::chain(e)));
        })?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            self.metrics.count_retry();
            limit::note_failure(|| format!("was answered {status}"));
        }
        let throttled =
            status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS;
        self.limit.answered(throttled);
        let (parts, body) = response.into_parts();
        let body = WatchedBody {
            inner: body,
            kind,
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
            alarm: Mutex::new(None),
            _permit: permit,
        };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

/// When the socket last took a frame of a request's body.
#[derive(Debug)]
struct Progress {
    clock: Arc<dyn Clock>,
    last: Mutex<Duration>,
    left: AtomicUsize,
    sent: u64,
}

impl Progress {
    fn new(clock: &Arc<dyn Clock>, sent: u64) -> Self {
        Self {
            clock: Arc::clone(clock),
            last: Mutex::new(clock.monotonic()),
            left: AtomicUsize::new(0),
            sent,
        }
    }

    fn last(&self) -> MutexGuard<'_, Duration> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when the socket has taken nothing for `timeout`, or no answer came in that time after the last frame and
    /// the time that the network needs for what the socket holds.
    async fn stall(&self, timeout: Duration) -> Duration {
        loop {
            let patience = if self.left.load(Ordering::Acquire) == 0 {
                let held = self.sent.min(MAX_SOCKET_BYTES);
                timeout + Duration::from_secs(held / MIN_UPLOAD_BYTES_PER_SECOND)
            } else {
                timeout
            };
            let waited = self.clock.monotonic().saturating_sub(*self.last());
            if waited >= patience {
                return waited;
            }
            self.clock.sleep(patience.saturating_sub(waited)).await;
        }
    }
}

/// A frame of a body; dropped when the socket has taken it.
struct WatchedFrame {
    bytes: Bytes,
    progress: Arc<Progress>,
}

impl AsRef<[u8]> for WatchedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for WatchedFrame {
    fn drop(&mut self) {
        *self.progress.last() = self.progress.clock.monotonic();
        self.progress.left.fetch_sub(1, Ordering::Release);
    }
}

/// Cuts a long body into frames that tell when they are taken.
fn watch_body(mut req: HttpRequest, progress: &Arc<Progress>) -> HttpRequest {
    let length = req.body().content_length();
    if length <= FRAME_BYTES {
        return req;
    }
    let mut body = std::mem::replace(req.body_mut(), HttpRequestBody::empty());
    let mut frames = Vec::new();
    let mut context = Context::from_waker(std::task::Waker::noop());
    // The body is in memory, so there is nothing to wait for.
    while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
        let Ok(mut bytes) = frame.into_data() else {
            continue;
        };
        while !bytes.is_empty() {
            let bytes = bytes.split_to(bytes.len().min(FRAME_BYTES));
            progress.left.fetch_add(1, Ordering::Relaxed);
            let progress = Arc::clone(progress);
            frames.push(Bytes::from_owner(WatchedFrame { bytes, progress }));
        }
    }
    *req.body_mut() = HttpRequestBody::from(frames.into_iter().collect::<PutPayload>());
    let headers = req.headers_mut();
    headers
        .entry(CONTENT_LENGTH)
        .or_insert_with(|| HeaderValue::from(length));
    req
}

fn kind_of(req: &HttpRequest) -> RequestKind {
    let query = req.uri().query().unwrap_or_default();
    match *req.method() {
        Method::GET
            if query.contains("list-type=")
                || query.contains("comp=list")
                || query.contains("delimiter=") =>
        {
            RequestKind::List
        }
        Method::GET => RequestKind::Get,
        Method::HEAD => RequestKind::Head,
        Method::PUT
            if req
                .headers()
                .keys()
                .any(|h| h.as_str().ends_with("copy-source")) =>
        {
            RequestKind::Copy
        }
        Method::PUT => RequestKind::Put,
        Method::DELETE => RequestKind::Delete,
        _ => RequestKind::Post,
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
    kind: RequestKind,
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
                self.metrics
                    .count_received_bytes(self.kind, bytes.len() as u64);
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
