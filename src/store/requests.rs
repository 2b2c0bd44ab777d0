//! Requests of cloud stores that `object_store` has no method for, signed here.
//!
//! The address and the client are those of its own requests, see [`limit::capture`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use object_store::aws::{AmazonS3, AwsAuthorizer};
use object_store::azure::{AzureAuthorizer, AzureCredential, MicrosoftAzure};
use object_store::client::{HttpErrorKind, HttpRequest, HttpRequestBody};
use object_store::gcp::GoogleCloudStorage;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Error, MultipartId, ObjectStore, ObjectStoreExt, PutResult, Result, RetryConfig,
};

use super::condition::{Condition, Conditions, ObjectVersions, UploadedPart};
use super::limit;
use crate::clock::Clock;

const GENERATION_MATCH: HeaderName = HeaderName::from_static("x-goog-if-generation-match");
const COPY_SOURCE: HeaderName = HeaderName::from_static("x-ms-copy-source");
const COPY_STATUS: HeaderName = HeaderName::from_static("x-ms-copy-status");
const COPY_ID: HeaderName = HeaderName::from_static("x-ms-copy-id");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
/// Between two looks at a copy that is under way.
const COPY_PAUSE: Duration = Duration::from_millis(500);
/// Longer pauses between two sends are not made.
const MAX_PAUSE: Duration = Duration::from_secs(15);

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
pub(super) struct CloudRequests {
    pub(super) cloud: Cloud,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) retry: RetryConfig,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    /// Whether something is under way there, after which the request may have another answer. Azure answers a
    /// condition that does not hold with the same status: that stays.
    fn is_passing_conflict(&self) -> bool {
        let code = self.headers.get(ERROR_CODE).map(HeaderValue::as_bytes);
        self.status == StatusCode::CONFLICT
            && code.is_none_or(|code| code == b"PendingCopyOperation")
    }
}

impl CloudRequests {
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

    fn generic(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Generic {
            store: self.name(),
            source: source.into(),
        }
    }

    /// Sends a request for `key` until it is answered in a way that a repetition does not change.
    async fn send(
        &self,
        method: Method,
        key: &Path,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<Answer> {
        let began = self.clock.monotonic();
        let mut sent = 0;
        loop {
            let request = self.request(method.clone(), key, query, headers).await?;
            let answered = self.exchange(request.0, request.1).await;
            let waited = self.clock.monotonic().saturating_sub(began);
            let last = sent == self.retry.max_retries
                || waited >= self.retry.retry_timeout
                || limit::is_refused();
            let again = match &answered {
                Ok(answer) => {
                    let busy = answer.status.is_server_error()
                        && answer.status != StatusCode::NOT_IMPLEMENTED
                        || answer.status == StatusCode::TOO_MANY_REQUESTS
                        || answer.is_passing_conflict();
                    if busy {
                        limit::note_failure(|| format!("was answered {}", answer.status));
                    }
                    busy
                }
                Err((may_repeat, e)) => {
                    limit::note_failure(|| format!("met {}", crate::error::chain(e)));
                    *may_repeat
                }
            };
            if last || !again {
                return match answered {
                    Ok(answer) => self.check(key, answer),
                    Err((_, e)) => Err(e),
                };
            }
            let factor = 2_u32.saturating_pow(u32::try_from(sent).unwrap_or(u32::MAX));
            let pause = self
                .retry
                .backoff
                .init_backoff
                .saturating_mul(factor)
                .min(MAX_PAUSE);
            self.clock.sleep(pause).await;
            sent += 1;
        }
    }

    async fn exchange(
        &self,
        client: object_store::client::HttpClient,
        request: HttpRequest,
    ) -> std::result::Result<Answer, (bool, Error)> {
        let failed = |e: object_store::client::HttpError| {
            let may_repeat = !matches!(e.kind(), HttpErrorKind::Unknown | HttpErrorKind::Decode);
            (may_repeat, self.generic(e))
        };
        let response = client.execute(request).await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().bytes().await.map_err(failed)?;
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    /// A signed request for `key`, and the client that sends such.
    async fn request(
        &self,
        method: Method,
        key: &Path,
        query: &str,
        headers: &HeaderMap,
    ) -> Result<(object_store::client::HttpClient, HttpRequest)> {
        let (client, address) = self.address(key).await?;
        let uri = if query.is_empty() {
            address
        } else {
            format!("{address}?{query}")
        };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri.parse::<Uri>().map_err(|e| self.generic(e))?;
        *request.headers_mut() = headers.clone();
        self.sign(&mut request).await?;
        Ok((client, request))
    }

    /// The URL of an object, without a query.
    async fn address(&self, key: &Path) -> Result<(object_store::client::HttpClient, String)> {
        self.warm_up().await?;
        let target = limit::capture(self.objects().head(key)).await?;
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
                    let value = HeaderValue::from_str(&format!("Bearer {}", credential.bearer));
                    let value = value.map_err(|e| self.generic(e))?;
                    request.headers_mut().insert(AUTHORIZATION, value);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self, key: &Path, answer: Answer) -> Result<Answer> {
        if answer.status.is_success() {
            return Ok(answer);
        }
        let text = String::from_utf8_lossy(&answer.body);
        let path = key.to_string();
        let source = format!("{}: {text}", answer.status).into();
        Err(match answer.status {
            StatusCode::NOT_FOUND => Error::NotFound { path, source },
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::NOT_MODIFIED => {
                Error::Precondition { path, source }
            }
            StatusCode::FORBIDDEN => Error::PermissionDenied { path, source },
            StatusCode::UNAUTHORIZED => Error::Unauthenticated { path, source },
            StatusCode::BAD_REQUEST
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => Error::NotSupported { source },
            _ => self.generic(source),
        })
    }

    /// The headers of a condition on an object.
    async fn headers(&self, key: &Path, condition: &Condition) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        let gcs = matches!(self.cloud, Cloud::Gcs { .. });
        let (name, value) = match condition {
            Condition::Always => return Ok(headers),
            Condition::Absent if gcs => (GENERATION_MATCH, "0".to_owned()),
            Condition::Absent => (IF_NONE_MATCH, "*".to_owned()),
            Condition::Matches(e_tag) if gcs => {
                (GENERATION_MATCH, self.generation(key, e_tag).await?)
            }
            // There are servers that ignore an ETag without its quotes.
            Condition::Matches(e_tag) => (IF_MATCH, format!("\"{}\"", e_tag.trim_matches('"'))),
        };
        headers.insert(
            name,
            HeaderValue::from_str(&value).map_err(|e| self.generic(e))?,
        );
        Ok(headers)
    }

    /// The generation of the version `e_tag`.
    async fn generation(&self, key: &Path, e_tag: &str) -> Result<String> {
        let meta = self.objects().head(key).await?;
        let same = super::condition::same_tag(meta.e_tag.as_deref(), e_tag);
        meta.version
            .filter(|_| same)
            .ok_or_else(|| Error::Precondition {
                path: key.to_string(),
                source: "it is another version".into(),
            })
    }

    /// Copies a blob, and waits until it is copied: the service may go on after its answer.
    async fn copy_blob(&self, from: &Path, to: &Path, condition: &Condition) -> Result<()> {
        let mut headers = self.headers(to, condition).await?;
        let (_, mut source) = self.address(from).await?;
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
            source = format!("{source}?{query}");
        }
        let source = HeaderValue::from_str(&source).map_err(|e| self.generic(e))?;
        headers.insert(COPY_SOURCE, source);
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        let begun = self.send(Method::PUT, to, "", &headers).await?.headers;
        let mut answer = begun.clone();
        loop {
            if answer.get(COPY_ID) != begun.get(COPY_ID) {
                // Another write has replaced it.
                return Err(Error::Precondition {
                    path: to.to_string(),
                    source: "the object was replaced while it was copied".into(),
                });
            }
            match answer.get(COPY_STATUS).map(HeaderValue::as_bytes) {
                None | Some(b"success") => return Ok(()),
                Some(b"pending") => self.clock.sleep(COPY_PAUSE).await,
                Some(status) => {
                    let status = String::from_utf8_lossy(status);
                    return Err(self.generic(format!("the copy of {from} ended as {status}")));
                }
            }
            answer = self
                .send(Method::HEAD, to, "", &HeaderMap::new())
                .await?
                .headers;
        }
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        match &self.cloud {
            Cloud::S3 { objects, .. } => Some(objects.as_ref()),
            Cloud::Gcs { objects, .. } => Some(objects.as_ref()),
            Cloud::Azure { .. } => None,
        }
    }
}

#[async_trait]
impl ObjectVersions for CloudRequests {
    fn known_conditions(&self) -> Option<Conditions> {
        match self.cloud {
            // ETags are of the content there, so all empty objects have one.
            Cloud::S3 { aws: true, .. } | Cloud::Gcs { .. } => Some(Conditions {
                marker_versions: false,
                ..Conditions::ALL
            }),
            Cloud::S3 { .. } => None,
            // What is staged there is a blob, which is copied under a condition.
            Cloud::Azure { .. } => Some(Conditions::ALL),
        }
    }

    async fn warm_up(&self) -> Result<()> {
        match &self.cloud {
            Cloud::S3 {
                objects,
                signed: true,
                ..
            } => objects.credentials().get_credential().await.map(drop),
            Cloud::Azure {
                objects,
                signed: true,
                ..
            } => objects.credentials().get_credential().await.map(drop),
            Cloud::Gcs {
                objects,
                signed: true,
            } => objects.credentials().get_credential().await.map(drop),
            _ => Ok(()),
        }
    }

    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let condition = e_tag.map_or(Condition::Always, |e_tag| {
            Condition::Matches(e_tag.to_owned())
        });
        let headers = self.headers(key, &condition).await?;
        self.send(Method::DELETE, key, "", &headers).await.map(drop)
    }

    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> Result<PutResult> {
        let multipart = self
            .multipart()
            .ok_or_else(|| self.generic("the store has no uploads"))?;
        let headers = self.headers(key, condition).await?;
        limit::with_headers(headers, multipart.complete_multipart(key, upload, parts)).await
    }

    async fn list_parts(&self, key: &Path, upload: &MultipartId) -> Result<Vec<UploadedPart>> {
        let id: String = url::form_urlencoded::byte_serialize(upload.as_bytes()).collect();
        let mut parts = Vec::new();
        let mut marker = String::new();
        loop {
            let mut query = format!("uploadId={id}");
            if !marker.is_empty() {
                query = format!("part-number-marker={marker}&{query}");
            }
            let answer = self
                .send(Method::GET, key, &query, &HeaderMap::new())
                .await?;
            let page =
                parse_parts(&String::from_utf8_lossy(&answer.body)).map_err(|e| self.generic(e))?;
            parts.extend(page.parts);
            match page.next {
                Some(next) if next != marker => marker = next,
                Some(_) => return Err(self.generic("the list of an upload's parts does not go on")),
                None => return Ok(parts),
            }
        }
    }

    async fn copy_if(&self, from: &Path, to: &Path, condition: &Condition) -> Option<Result<()>> {
        match self.cloud {
            Cloud::Azure { .. } => Some(self.copy_blob(from, to, condition).await),
            Cloud::S3 { .. } | Cloud::Gcs { .. } => None,
        }
    }
}

struct Page {
    parts: Vec<UploadedPart>,
    next: Option<String>,
}

/// Reads a `ListPartsResult`.
fn parse_parts(xml: &str) -> std::result::Result<Page, String> {
    if !xml.contains("<ListPartsResult") {
        return Err(format!("no list of parts: {xml:.200}"));
    }
    let mut parts = Vec::new();
    for block in xml.split("<Part>").skip(1) {
        let block = block.split("</Part>").next().unwrap_or_default();
        let size = element(block, "Size").and_then(|text| text.parse().ok());
        let (Some(e_tag), Some(bytes)) = (element(block, "ETag"), size) else {
            return Err(format!("a part without ETag or size: {block:.200}"));
        };
        let e_tag = e_tag.replace("&quot;", "\"").replace("&#34;", "\"");
        parts.push(UploadedPart { e_tag, bytes });
    }
    let truncated = element(xml, "IsTruncated") == Some("true");
    let next = truncated.then(|| {
        element(xml, "NextPartNumberMarker")
            .unwrap_or_default()
            .to_owned()
    });
    Ok(Page { parts, next })
}

fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>"))
        .map(|(text, _)| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_of_parts() {
        let xml = "<?xml version=\"1.0\"?><ListPartsResult xmlns=\"x\"><UploadId>u</UploadId>\
            <NextPartNumberMarker>2</NextPartNumberMarker><IsTruncated>true</IsTruncated>\
            <Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag><Size>5</Size></Part>\
            <Part><PartNumber>2</PartNumber><ETag>\"b\"</ETag><Size>6</Size></Part></ListPartsResult>";
        let page = parse_parts(xml).unwrap();
        let found: Vec<_> = page
            .parts
            .iter()
            .map(|p| (p.e_tag.as_str(), p.bytes))
            .collect();
        assert_eq!(found, [("\"a\"", 5), ("\"b\"", 6)]);
        assert_eq!(page.next.as_deref(), Some("2"));
        assert!(parse_parts("<Error/>").is_err());
    }
}
