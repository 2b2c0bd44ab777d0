//! Signed requests to cloud stores that `object_store` has no method for.
//!
//! [`CloudClient::send`] builds, signs and sends a request, and retries it within the limits of [`RetryConfig`]. The URL
//! and the HTTP client are those of a request that `object_store` would send, captured before it is sent
//! ([`limit::capture`]), so that all options of the store hold here too.
//!
//! Errors are `object_store`'s: `NotFound` (404), `Precondition` (304, 409, 412), `PermissionDenied` (403),
//! `Unauthenticated` (401), `NotSupported` (400, 405, 501), and `Generic` for all else. A 409 that means a pending
//! operation is retried first.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, IF_MATCH, IF_NONE_MATCH, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use object_store::aws::AwsAuthorizer;
use object_store::azure::{AzureAuthorizer, MicrosoftAzure};
use object_store::client::{HttpErrorKind, HttpRequest, HttpRequestBody};
use object_store::gcp::GoogleCloudStorage;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, Result, RetryConfig};

use super::aws::S3;
use super::condition::{Condition, ConditionalStore};
use super::failure::status_message;
use super::limit;
use crate::clock::Clock;

pub(super) const GENERATION_MATCH: HeaderName =
    HeaderName::from_static("x-goog-if-generation-match");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
/// The longest pause between two attempts.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);

/// A cloud store and what signs its requests.
#[derive(Debug)]
pub(super) enum Cloud {
    S3 {
        bucket: S3,
        /// Whether requests are signed.
        signed: bool,
        /// Whether the server is AWS itself, whose support of conditions is known.
        aws: bool,
        /// Whether it is a directory bucket, whose listings are signed by a session of `object_store`.
        express: bool,
        /// Whether the caller pays for requests, and not the owner of the bucket.
        pays: bool,
    },
    Azure {
        objects: Arc<MicrosoftAzure>,
        account: String,
        signed: bool,
    },
    Gcs {
        objects: Arc<GoogleCloudStorage>,
        signed: bool,
    },
}

/// Sends requests that `object_store` has no method for.
#[derive(Debug)]
pub(super) struct CloudClient {
    pub(super) cloud: Cloud,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) retry: RetryConfig,
    /// Whether `object_store` may fetch credentials by requests, which must not be taken for those of a call.
    pub(super) warms_up: bool,
    /// The options of the store and its variables of the environment, secrets masked. Others may lead to another
    /// server: a proxy is one of them.
    pub(super) settings: Vec<String>,
}

/// The target of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    Object(&'a Path),
    /// The object of a folder itself, whose key ends with `/`.
    FolderObject(&'a Path),
    /// The bucket, for a listing of the folder.
    Folder(&'a Path),
}

impl<'a> Subject<'a> {
    fn path(self) -> &'a Path {
        match self {
            Self::Object(path) | Self::FolderObject(path) | Self::Folder(path) => path,
        }
    }
}

pub(super) struct CloudResponse {
    status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl CloudResponse {
    /// Whether the status is a 409 because another operation on the object is in progress, so that a retry may succeed.
    /// Azure also answers 409, with another error code, to a condition that does not hold: that is final.
    fn is_transient_conflict(&self) -> bool {
        let code = self.headers.get(ERROR_CODE).map(HeaderValue::as_bytes);
        self.status == StatusCode::CONFLICT
            && code.is_none_or(|code| code == b"PendingCopyOperation")
    }

    /// The message of an error status, as `object_store` words it; None after a success.
    pub(super) fn error_message(&self) -> Option<String> {
        if self.status.is_success() {
            return None;
        }
        if self.status.is_redirection() && !self.headers.contains_key(LOCATION) {
            return Some(format!("redirect without LOCATION: {}", self.status));
        }
        let text = String::from_utf8_lossy(&self.body);
        Some(status_message(self.status, &text))
    }
}

impl CloudClient {
    fn name(&self) -> &'static str {
        match self.cloud {
            Cloud::S3 { .. } => "S3",
            Cloud::Azure { .. } => "MicrosoftAzure",
            Cloud::Gcs { .. } => "GCS",
        }
    }

    pub(super) fn objects(&self) -> &dyn ObjectStore {
        match &self.cloud {
            Cloud::S3 { bucket, .. } => bucket,
            Cloud::Azure { objects, .. } => objects.as_ref(),
            Cloud::Gcs { objects, .. } => objects.as_ref(),
        }
    }

    pub(super) fn generic_error(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::Generic {
            store: self.name(),
            source: source.into(),
        }
    }

    /// Sends a request; an error status is an error. Retried as [`Self::send_unchecked`].
    pub(super) async fn send(
        &self,
        method: Method,
        subject: Subject<'_>,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<CloudResponse> {
        let response = self.send_unchecked(method, subject, query, headers).await?;
        self.check_status(subject.path(), response)
    }

    /// Sends a request. Transport errors, 5xx but 501, 429 and transient conflicts are retried.
    pub(super) async fn send_unchecked(
        &self,
        method: Method,
        subject: Subject<'_>,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<CloudResponse> {
        let start = self.clock.monotonic();
        let mut retries = 0;
        loop {
            let request = self
                .build_request(method.clone(), subject, query, headers)
                .await?;
            let result = self.execute(request.0, request.1).await;
            let elapsed = self.clock.monotonic().saturating_sub(start);
            let is_last = retries == self.retry.max_retries
                || elapsed >= self.retry.retry_timeout
                || limit::is_refused();
            let is_retryable = match &result {
                Ok(response) => {
                    let busy = response.status.is_server_error()
                        && response.status != StatusCode::NOT_IMPLEMENTED
                        || response.status == StatusCode::TOO_MANY_REQUESTS
                        || response.is_transient_conflict();
                    if busy {
                        limit::note_failure(|| format!("was answered {}", response.status));
                    }
                    busy
                }
                Err((may_retry, e)) => {
                    limit::note_failure(|| {
                        format!("failed: {}", crate::error::format_error_chain(e))
                    });
                    *may_retry
                }
            };
            if is_last || !is_retryable {
                return result.map_err(|(_, e)| e);
            }
            let factor = 2_u32.saturating_pow(u32::try_from(retries).unwrap_or(u32::MAX));
            let delay = self
                .retry
                .backoff
                .init_backoff
                .saturating_mul(factor)
                .min(MAX_RETRY_DELAY);
            self.clock.sleep(delay).await;
            retries += 1;
        }
    }

    /// Sends a request once. The flag of an error says whether a retry may succeed.
    async fn execute(
        &self,
        client: object_store::client::HttpClient,
        request: HttpRequest,
    ) -> std::result::Result<CloudResponse, (bool, Error)> {
        let to_error = |e: object_store::client::HttpError| {
            let may_retry = !matches!(e.kind(), HttpErrorKind::Unknown | HttpErrorKind::Decode);
            (may_retry, self.generic_error(e))
        };
        let response = client.execute(request).await.map_err(to_error)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().bytes().await.map_err(to_error)?;
        Ok(CloudResponse {
            status,
            headers,
            body,
        })
    }

    /// Builds and signs a request; returns it with the client that sends it.
    async fn build_request(
        &self,
        method: Method,
        subject: Subject<'_>,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<(object_store::client::HttpClient, HttpRequest)> {
        let (client, url) = self.resolve_url(subject).await?;
        let uri = if query.is_empty() {
            url
        } else {
            format!("{url}?{query}")
        };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse::<Uri>().map_err(|e| self.generic_error(e))?;
        *request.headers_mut() = headers.clone();
        self.sign(&mut request).await?;
        Ok((client, request))
    }

    /// The HTTP client for a target and the URL of the object or the bucket, without a query.
    pub(super) async fn resolve_url(
        &self,
        subject: Subject<'_>,
    ) -> Result<(object_store::client::HttpClient, String)> {
        self.warm_up().await?;
        let target = match subject {
            Subject::Object(key) | Subject::FolderObject(key) => {
                limit::capture(self.objects().head(key)).await?
            }
            Subject::Folder(folder) => {
                limit::capture(self.objects().list_with_delimiter(Some(folder))).await?
            }
        };
        let uri = target.uri.to_string();
        let mut url = uri.split('?').next().unwrap_or_default().to_owned();
        if matches!(subject, Subject::FolderObject(_)) {
            url.push('/');
        }
        Ok((target.client, url))
    }

    async fn sign(&self, request: &mut HttpRequest) -> Result<()> {
        match &self.cloud {
            Cloud::S3 {
                bucket,
                signed: true,
                pays,
                ..
            } => {
                let client = bucket.client().await?;
                let credential = client.objects.credentials().get_credential().await?;
                AwsAuthorizer::new(&credential, "s3", &client.region)
                    .with_request_payer(*pays)
                    .authorize(request, None);
            }
            Cloud::Azure {
                objects,
                account,
                signed: true,
            } => {
                let credential = objects.credentials().get_credential().await?;
                AzureAuthorizer::new(&credential, account).authorize(request);
            }
            Cloud::Gcs {
                objects,
                signed: true,
            } => {
                let credential = objects.credentials().get_credential().await?;
                if !credential.bearer.is_empty() {
                    let parsed = HeaderValue::from_str(&format!("Bearer {}", credential.bearer));
                    let value = parsed.map_err(|e| self.generic_error(e))?;
                    request.headers_mut().insert(AUTHORIZATION, value);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_status(&self, key: &Path, response: CloudResponse) -> Result<CloudResponse> {
        if response.status.is_success() {
            return Ok(response);
        }
        let text = String::from_utf8_lossy(&response.body);
        let path = key.to_string();
        let source = status_message(response.status, &text).into();
        Err(match response.status {
            StatusCode::NOT_FOUND => Error::NotFound { path, source },
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_MODIFIED => {
                Error::Precondition { path, source }
            }
            StatusCode::FORBIDDEN => Error::PermissionDenied { path, source },
            StatusCode::UNAUTHORIZED => Error::Unauthenticated { path, source },
            StatusCode::BAD_REQUEST
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Error::NotSupported { source },
            _ => self.generic_error(source),
        })
    }

    /// The headers of a condition on an object. GCS compares generations, which costs a HEAD for an ETag.
    pub(super) async fn condition_headers(
        &self,
        key: &Path,
        condition: &Condition,
    ) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let gcs = matches!(self.cloud, Cloud::Gcs { .. });
        let (name, value) = match condition {
            Condition::Always => return Ok(headers),
            Condition::Absent if gcs => (GENERATION_MATCH, HeaderValue::from_static("0")),
            Condition::Absent => (IF_NONE_MATCH, HeaderValue::from_static("*")),
            Condition::Matches(e_tag) if gcs => {
                let generation = self.generation(key, e_tag).await?;
                let value =
                    HeaderValue::from_str(&generation).map_err(|e| self.generic_error(e))?;
                (GENERATION_MATCH, value)
            }
            Condition::Matches(e_tag) => (IF_MATCH, self.quote_e_tag(e_tag)?),
        };
        headers.insert(name, value);
        Ok(headers)
    }

    /// The GCS generation of the version `e_tag`; `Precondition` if the object has another ETag.
    async fn generation(&self, key: &Path, e_tag: &str) -> Result<String> {
        let meta = self.objects().head(key).await?;
        let same = super::condition::is_same_e_tag(meta.e_tag.as_deref(), e_tag);
        meta.version
            .filter(|_| same)
            .ok_or_else(|| Error::Precondition {
                path: key.to_string(),
                source: format!("the object's ETag is not {e_tag}").into(),
            })
    }

    /// The value of a condition's header: the ETag in quotes, without which some servers ignore it.
    pub(super) fn quote_e_tag(&self, e_tag: &str) -> Result<HeaderValue> {
        let quoted = format!("\"{}\"", e_tag.trim_matches('"'));
        HeaderValue::from_str(&quoted).map_err(|e| self.generic_error(e))
    }

    pub(super) fn multipart(&self) -> Option<&dyn MultipartStore> {
        match &self.cloud {
            Cloud::S3 { bucket, .. } => Some(bucket),
            Cloud::Gcs { objects, .. } => Some(objects.as_ref()),
            Cloud::Azure { .. } => None,
        }
    }
}

/// Encodes a value of a URL's query.
pub(super) fn percent_encode(value: &str) -> String {
    let encoded: String = url::form_urlencoded::byte_serialize(value.as_bytes()).collect();
    // Not every server decodes a plus as a space.
    encoded.replace('+', "%20")
}
