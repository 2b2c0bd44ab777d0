//! Requests of cloud stores that `object_store` has no method for, signed here.
//!
//! The address and the client are those of its own requests, see [`limit::capture`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use object_store::aws::{AmazonS3, AwsAuthorizer};
use object_store::azure::{AzureAuthorizer, AzureCredential, MicrosoftAzure};
use object_store::client::{HttpErrorKind, HttpRequest, HttpRequestBody};
use object_store::gcp::GoogleCloudStorage;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{CopyOptions, Error, ObjectStore, ObjectStoreExt, Result, RetryConfig};

use super::condition::{Condition, ConditionalStore};
use super::failure::status_message;
use super::limit;
use crate::clock::Clock;

pub(super) const AMZ_COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");
pub(super) const AMZ_COPY_SOURCE_MATCH: HeaderName =
    HeaderName::from_static("x-amz-copy-source-if-match");
pub(super) const GOOG_COPY_SOURCE: HeaderName = HeaderName::from_static("x-goog-copy-source");
pub(super) const GOOG_COPY_SOURCE_MATCH: HeaderName =
    HeaderName::from_static("x-goog-copy-source-if-match");
const AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");
const AMZ_CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const AMZ_SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const GENERATION_MATCH: HeaderName = HeaderName::from_static("x-goog-if-generation-match");
const SOURCE_MATCH: HeaderName = HeaderName::from_static("x-ms-source-if-match");
const COPY_SOURCE: HeaderName = HeaderName::from_static("x-ms-copy-source");
const COPY_STATUS: HeaderName = HeaderName::from_static("x-ms-copy-status");
const COPY_ID: HeaderName = HeaderName::from_static("x-ms-copy-id");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
/// Between two looks at a copy that is under way.
const COPY_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longer pauses between two sends are not made.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);

/// A cloud store and what its requests are signed with.
#[derive(Debug)]
pub(super) enum Cloud {
    S3 {
        objects: Arc<AmazonS3>,
        region: String,
        /// Requests are signed.
        signed: bool,
        /// AWS itself, whose conditions are known.
        aws: bool,
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

/// Sends what `object_store` cannot.
#[derive(Debug)]
pub(super) struct CloudClient {
    pub(super) cloud: Cloud,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) retry: RetryConfig,
}

/// What a request is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    Object(&'a Path),
    /// What the bucket has in a folder.
    Folder(&'a Path),
}

impl<'a> Subject<'a> {
    fn path(self) -> &'a Path {
        match self {
            Self::Object(path) | Self::Folder(path) => path,
        }
    }
}

pub(super) struct CloudResponse {
    status: StatusCode,
    headers: HeaderMap,
    pub(super) body: Bytes,
}

impl CloudResponse {
    /// Whether something is under way there, after which the request may have another answer. Azure answers a
    /// condition that does not hold with the same status: that stays.
    fn is_transient_conflict(&self) -> bool {
        let code = self.headers.get(ERROR_CODE).map(HeaderValue::as_bytes);
        self.status == StatusCode::CONFLICT
            && code.is_none_or(|code| code == b"PendingCopyOperation")
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

    fn objects(&self) -> &dyn ObjectStore {
        match &self.cloud {
            Cloud::S3 { objects, .. } => objects.as_ref(),
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

    /// Sends a request until it is answered in a way that a repetition does not change.
    pub(super) async fn send(
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
                    limit::note_failure(|| format!("met {}", crate::error::format_error_chain(e)));
                    *may_retry
                }
            };
            if is_last || !is_retryable {
                return match result {
                    Ok(response) => self.check_status(subject.path(), response),
                    Err((_, e)) => Err(e),
                };
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

    /// A signed request, and the client that sends such.
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

    /// The URL of an object or the bucket, without a query.
    async fn resolve_url(
        &self,
        subject: Subject<'_>,
    ) -> Result<(object_store::client::HttpClient, String)> {
        self.warm_up().await?;
        let target = match subject {
            Subject::Object(key) => limit::capture(self.objects().head(key)).await?,
            Subject::Folder(folder) => {
                limit::capture(self.objects().list_with_delimiter(Some(folder))).await?
            }
        };
        let uri = target.uri.to_string();
        Ok((
            target.client,
            uri.split('?').next().unwrap_or_default().to_owned(),
        ))
    }

    async fn sign(&self, request: &mut HttpRequest) -> Result<()> {
        match &self.cloud {
            Cloud::S3 {
                objects,
                region,
                signed: true,
                ..
            } => {
                let credential = objects.credentials().get_credential().await?;
                AwsAuthorizer::new(&credential, "s3", region).authorize(request, None);
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

    /// The headers of a condition on an object.
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

    /// The generation of the version `e_tag`.
    async fn generation(&self, key: &Path, e_tag: &str) -> Result<String> {
        let meta = self.objects().head(key).await?;
        let same = super::condition::is_same_e_tag(meta.e_tag.as_deref(), e_tag);
        meta.version
            .filter(|_| same)
            .ok_or_else(|| Error::Precondition {
                path: key.to_string(),
                source: "it is another version".into(),
            })
    }

    /// Copies a blob, and waits until it is copied: the service may go on after its answer.
    pub(super) async fn copy_blob(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Result<()> {
        let mut headers = self.condition_headers(to, condition).await?;
        if let Some(e_tag) = e_tag {
            headers.insert(SOURCE_MATCH, self.quote_e_tag(e_tag)?);
        }
        let (_, mut source_url) = self.resolve_url(Subject::Object(from)).await?;
        if let Cloud::Azure {
            objects,
            signed: true,
            ..
        } = &self.cloud
            && let AzureCredential::SASToken(pairs) =
                objects.credentials().get_credential().await?.as_ref()
        {
            let query = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs(pairs)
                .finish();
            source_url = format!("{source_url}?{query}");
        }
        let source_header =
            HeaderValue::from_str(&source_url).map_err(|e| self.generic_error(e))?;
        headers.insert(COPY_SOURCE, source_header);
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let initial_headers = self
            .send(Method::PUT, Subject::Object(to), "", &headers)
            .await?
            .headers;
        let mut current_headers = initial_headers.clone();
        loop {
            if current_headers.get(COPY_ID) != initial_headers.get(COPY_ID) {
                // Another write has replaced it.
                return Err(Error::Precondition {
                    path: to.to_string(),
                    source: "the object was replaced while it was copied".into(),
                });
            }
            match current_headers.get(COPY_STATUS).map(HeaderValue::as_bytes) {
                None | Some(b"success") => return Ok(()),
                Some(b"pending") => self.clock.sleep(COPY_POLL_INTERVAL).await,
                Some(status) => {
                    let text = String::from_utf8_lossy(status);
                    return Err(self.generic_error(format!("the copy of {from} ended as {text}")));
                }
            }
            current_headers = self
                .send(Method::HEAD, Subject::Object(to), "", &HeaderMap::new())
                .await?
                .headers;
        }
    }

    /// Copies one version of an object; what is at `to` is not looked at.
    pub(super) async fn copy_object(
        &self,
        from: &Path,
        e_tag: &str,
        to: &Path,
        (source_name, match_name): (HeaderName, HeaderName),
    ) -> Result<()> {
        self.warm_up().await?;
        let copy = self.objects().copy_opts(from, to, CopyOptions::default());
        let target = limit::capture(copy).await?;
        if !target.headers.contains_key(&source_name) {
            return Err(self.generic_error("a copy that names no source"));
        }
        // The source, and whatever encryption and billing want; what signs a request is made anew.
        let mut headers = target.headers;
        for name in [
            AUTHORIZATION,
            HOST,
            AMZ_DATE,
            AMZ_CONTENT_SHA256,
            AMZ_SECURITY_TOKEN,
        ] {
            headers.remove(name);
        }
        headers.insert(match_name, self.quote_e_tag(e_tag)?);
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let response = self
            .send(Method::PUT, Subject::Object(to), "", &headers)
            .await?;
        // An answer that began well may end otherwise.
        let text = String::from_utf8_lossy(&response.body);
        if text.contains("<Error>") {
            return Err(self.generic_error(format!("the copy of {from} ended with {text}")));
        }
        Ok(())
    }

    /// An ETag as conditions have it. There are servers that ignore one without its quotes.
    pub(super) fn quote_e_tag(&self, e_tag: &str) -> Result<HeaderValue> {
        let quoted = format!("\"{}\"", e_tag.trim_matches('"'));
        HeaderValue::from_str(&quoted).map_err(|e| self.generic_error(e))
    }

    pub(super) fn multipart(&self) -> Option<&dyn MultipartStore> {
        match &self.cloud {
            Cloud::S3 { objects, .. } => Some(objects.as_ref()),
            Cloud::Gcs { objects, .. } => Some(objects.as_ref()),
            Cloud::Azure { .. } => None,
        }
    }
}
