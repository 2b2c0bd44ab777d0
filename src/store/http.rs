//! The HTTP service of cloud stores. It counts requests and bytes, ends requests that stall, and limits concurrency.
//!
//! A [`Connector`] gives `object_store` an HTTP client made of a [`Service`], which asks [`limit`] before every send
//! and hands the request to `reqwest`. The concurrency limit halves when the store throttles (status 429 or 503) and
//! grows by one for every round of successes, up to its initial size.
//!
//! S3 and GCS may answer a copy with status 200 and an error in the body: the service reads the body, and answers with
//! the status of that error.
//!
//! A stall is an error of [`HttpErrorKind::Timeout`]: the socket takes nothing of the request's body, no answer comes,
//! or nothing more of the answer's body arrives. A request that `limit` refuses is an error that is not retried, and so
//! is every failure of a request that must be sent once.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
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

use super::cloud_copy::{AMZ_COPY_SOURCE, GOOG_COPY_SOURCE};
use super::failure::status_message;
use super::limit;
use super::metrics::{Metrics, RequestKind};
use super::xml;
use crate::clock::Clock;
use crate::sync::mutex;

/// The most requests of one store in flight at once.
const MAX_CONCURRENT: usize = 64;
/// The socket gets a request's body in frames of this size. Each frame that it takes is progress.
const FRAME_BYTES: usize = 64 << 10;
/// The most bytes that a socket holds before the network has taken them, …
const MAX_SOCKET_BYTES: u64 = 4 << 20;
/// … and the slowest network that is given the time to take them.
const MIN_UPLOAD_BYTES_PER_SECOND: u64 = 64 << 10;

/// Makes HTTP clients whose requests are counted, limited and never hang.
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
            limit: Arc::new(AdaptiveLimit::default()),
        }))
    }
}

#[derive(Debug, Clone)]
struct Service {
    options: ClientOptions,
    /// Made at the first request, since it reads the certificates of the machine.
    client: Arc<OnceLock<HttpClient>>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stall_timeout: Duration,
    limit: Arc<AdaptiveLimit>,
}

impl Service {
    fn client(&self) -> Result<&HttpClient, HttpError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let connected = ReqwestConnector::default().connect(&self.options);
        let client = connected.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
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
        let body_bytes = req.body().content_length() as u64;
        let (client, kind) = (self.client()?, classify_request(&req));
        let is_copy = has_copy_result(&req);
        self.metrics.count_request(kind, body_bytes);
        let progress = Arc::new(Progress::new(&self.clock, body_bytes));
        let req = track_body(req, &progress);
        let answer = tokio::select! {
            answer = client.execute(req) => answer,
            waited = progress.wait_until_stalled(self.stall_timeout) => Err(stall_error(waited)),
        };
        let response = answer.map_err(|e| {
            self.metrics.count_retry();
            limit::note_failure(|| format!("failed: {}", crate::error::format_error_chain(&e)));
            final_if_sent_once(e)
        })?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            self.metrics.count_retry();
        }
        if !status.is_success() {
            limit::note_failure(|| format!("was answered {status}"));
        }
        let throttled =
            status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS;
        self.limit.record_response(throttled);
        let (parts, body) = response.into_parts();
        let body = StallTimeoutBody {
            inner: body,
            kind,
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
            stall_timer: Mutex::new(None),
            _permit: permit,
        };
        let body = HttpResponseBody::new(body);
        if limit::is_sent_once() && is_retried(status) {
            return Err(unanswered(status, body).await);
        }
        let response = HttpResponse::from_parts(parts, body);
        if is_copy && status.is_success() {
            return check_copy(response, &self.metrics).await;
        }
        Ok(response)
    }
}

/// Whether the answer to a request is that of a copy on S3 or GCS, whose body says whether the copy was carried out.
fn has_copy_result(req: &HttpRequest) -> bool {
    let headers = req.headers();
    headers.contains_key(AMZ_COPY_SOURCE) || headers.contains_key(GOOG_COPY_SOURCE)
}

/// Reads the answer to a copy. Without the result of a copy in the body it gets the status of the error.
async fn check_copy(response: HttpResponse, metrics: &Metrics) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.bytes().await.map_err(|e| {
        metrics.count_retry();
        limit::note_failure(|| format!("failed: {}", crate::error::format_error_chain(&e)));
        final_if_sent_once(e)
    })?;
    if xml::is_copy_result(&bytes) {
        return Ok(HttpResponse::from_parts(parts, bytes.into()));
    }
    let is_denied = String::from_utf8_lossy(&bytes).contains("<Code>AccessDenied</Code>");
    parts.status = if is_denied {
        StatusCode::FORBIDDEN
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    metrics.count_retry();
    let status = parts.status;
    limit::note_failure(|| format!("was answered 200 with an error, as of status {status}"));
    if limit::is_sent_once() && is_retried(status) {
        return Err(unanswered(status, bytes.into()).await);
    }
    Ok(HttpResponse::from_parts(parts, bytes.into()))
}

/// Whether `object_store` sends a request again after this status.
fn is_retried(status: StatusCode) -> bool {
    status.is_server_error()
        || status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
}

/// An error of a kind after which `object_store` does not send the request again, if it must be sent once.
fn final_if_sent_once(error: HttpError) -> HttpError {
    if limit::is_sent_once() {
        HttpError::new(HttpErrorKind::Unknown, error)
    } else {
        error
    }
}

/// The error of a status after which `object_store` would send the request again, which must be sent once.
async fn unanswered(status: StatusCode, body: HttpResponseBody) -> HttpError {
    match body.bytes().await {
        Ok(bytes) => {
            let text = status_message(status, &String::from_utf8_lossy(&bytes));
            HttpError::new(HttpErrorKind::Unknown, StatusError(text))
        }
        Err(e) => final_if_sent_once(e),
    }
}

/// The message of an error status.
#[derive(Debug)]
struct StatusError(String);

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StatusError {}

/// The progress of a request: when the socket last took a frame of its body.
#[derive(Debug)]
struct Progress {
    clock: Arc<dyn Clock>,
    last_taken: Mutex<Duration>,
    pending_frames: AtomicUsize,
    body_bytes: u64,
}

impl Progress {
    fn new(clock: &Arc<dyn Clock>, body_bytes: u64) -> Self {
        Self {
            clock: Arc::clone(clock),
            last_taken: Mutex::new(clock.monotonic()),
            pending_frames: AtomicUsize::new(0),
            body_bytes,
        }
    }

    fn lock_last_progress(&self) -> MutexGuard<'_, Duration> {
        mutex::lock(&self.last_taken)
    }

    /// Returns when the request stalls, with the time since its last progress: the socket took no frame for `timeout`,
    /// or it took all and no answer came for `timeout` and the time that the network needs for what the socket holds.
    async fn wait_until_stalled(&self, timeout: Duration) -> Duration {
        loop {
            let allowed = if self.pending_frames.load(Ordering::Acquire) == 0 {
                let buffered_bytes = self.body_bytes.min(MAX_SOCKET_BYTES);
                timeout + Duration::from_secs(buffered_bytes / MIN_UPLOAD_BYTES_PER_SECOND)
            } else {
                timeout
            };
            let waited = self
                .clock
                .monotonic()
                .saturating_sub(*self.lock_last_progress());
            if waited >= allowed {
                return waited;
            }
            self.clock.sleep(allowed.saturating_sub(waited)).await;
        }
    }
}

/// A frame of a body; dropped when the socket has taken it.
struct TrackedFrame {
    bytes: Bytes,
    progress: Arc<Progress>,
}

impl AsRef<[u8]> for TrackedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for TrackedFrame {
    fn drop(&mut self) {
        *self.progress.lock_last_progress() = self.progress.clock.monotonic();
        self.progress.pending_frames.fetch_sub(1, Ordering::Release);
    }
}

/// Cuts a long body into frames that record when the socket takes them.
fn track_body(mut req: HttpRequest, progress: &Arc<Progress>) -> HttpRequest {
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
            progress.pending_frames.fetch_add(1, Ordering::Relaxed);
            let progress = Arc::clone(progress);
            frames.push(Bytes::from_owner(TrackedFrame { bytes, progress }));
        }
    }
    *req.body_mut() = HttpRequestBody::from(frames.into_iter().collect::<PutPayload>());
    let headers = req.headers_mut();
    headers
        .entry(CONTENT_LENGTH)
        .or_insert_with(|| HeaderValue::from(length));
    req
}

fn classify_request(req: &HttpRequest) -> RequestKind {
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

fn stall_error(waited: Duration) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, Stalled(waited))
}

/// A semaphore whose size follows the store's answers (additive increase, halving decrease).
#[derive(Debug)]
struct AdaptiveLimit {
    slots: Arc<Semaphore>,
    size: AtomicUsize,
    successes: AtomicUsize,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            size: AtomicUsize::new(MAX_CONCURRENT),
            successes: AtomicUsize::new(0),
        }
    }
}

impl AdaptiveLimit {
    async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed, so a permit always comes.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    fn record_response(&self, throttled: bool) {
        let size = self.size.load(Ordering::Relaxed);
        if throttled {
            self.successes.store(0, Ordering::Relaxed);
            let removed_permits = self
                .slots
                .forget_permits(size.saturating_sub((size / 2).max(1)));
            self.size.fetch_sub(removed_permits, Ordering::Relaxed);
        } else if size < MAX_CONCURRENT
            && self.successes.fetch_add(1, Ordering::Relaxed) + 1 >= size
        {
            self.successes.store(0, Ordering::Relaxed);
            self.size.fetch_add(1, Ordering::Relaxed);
            self.slots.add_permits(1);
        }
    }
}

/// A response body that counts its bytes and fails when none arrive for the stall timeout.
struct StallTimeoutBody {
    inner: HttpResponseBody,
    kind: RequestKind,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stall_timeout: Duration,
    /// Behind a lock only because bodies must be `Sync`; it is never contended.
    stall_timer: Mutex<Option<BoxFuture<'static, ()>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Body for StallTimeoutBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            self.stall_timer = Mutex::new(None);
            if let Some(bytes) = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()) {
                self.metrics
                    .count_received_bytes(self.kind, bytes.len() as u64);
            }
            return Poll::Ready(frame);
        }
        let timeout = self.stall_timeout;
        let clock = Arc::clone(&self.clock);
        let Ok(slot) = self.stall_timer.get_mut() else {
            return Poll::Pending;
        };
        let timer = slot.get_or_insert_with(|| async move { clock.sleep(timeout).await }.boxed());
        match timer.poll_unpin(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(stall_error(timeout)))),
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
        let limit = AdaptiveLimit::default();
        limit.record_response(true);
        assert_eq!(limit.slots.available_permits(), MAX_CONCURRENT / 2);
        for _ in 0..10 {
            limit.record_response(true);
        }
        assert_eq!(limit.slots.available_permits(), 1);
        for _ in 0..10_000 {
            limit.record_response(false);
        }
        assert_eq!(limit.slots.available_permits(), MAX_CONCURRENT);
    }
}
