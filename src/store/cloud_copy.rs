//! Copies within a cloud store: requests that `object_store` has no method for, or not with their conditions.

use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::azure::AzureCredential;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{CopyOptions, Error, Result};

use super::condition::{Condition, ConditionalStore, PartCopy};
use super::requests::{Cloud, CloudClient, GENERATION_MATCH, Subject, percent_encode};
use super::{limit, xml};

pub(super) const AMZ_COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");
pub(super) const AMZ_COPY_SOURCE_MATCH: HeaderName =
    HeaderName::from_static("x-amz-copy-source-if-match");
const AMZ_COPY_SOURCE_RANGE: HeaderName = HeaderName::from_static("x-amz-copy-source-range");
pub(super) const GOOG_COPY_SOURCE: HeaderName = HeaderName::from_static("x-goog-copy-source");
pub(super) const GOOG_COPY_SOURCE_MATCH: HeaderName =
    HeaderName::from_static("x-goog-copy-source-if-match");
const AMZ_DATE: HeaderName = HeaderName::from_static("x-amz-date");
const AMZ_CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const AMZ_SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const SOURCE_MATCH: HeaderName = HeaderName::from_static("x-ms-source-if-match");
const COPY_SOURCE: HeaderName = HeaderName::from_static("x-ms-copy-source");
const COPY_STATUS: HeaderName = HeaderName::from_static("x-ms-copy-status");
const COPY_ID: HeaderName = HeaderName::from_static("x-ms-copy-id");
/// The pause between two polls of a copy in progress.
const COPY_POLL_INTERVAL: Duration = Duration::from_millis(500);

impl CloudClient {
    /// Copies a blob of Azure and waits until the copy is complete: the service may still copy after its answer.
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
                // Another copy id, or none: another write has replaced the target.
                return Err(Error::Precondition {
                    path: to.to_string(),
                    source: "another write replaced the object during the copy".into(),
                });
            }
            match current_headers.get(COPY_STATUS).map(HeaderValue::as_bytes) {
                None | Some(b"success") => return Ok(()),
                Some(b"pending") => self.clock.sleep(COPY_POLL_INTERVAL).await,
                Some(status) => {
                    let text = String::from_utf8_lossy(status);
                    return Err(self
                        .generic_error(format!("the copy of {from} ended with status {text:?}")));
                }
            }
            current_headers = self
                .send(Method::HEAD, Subject::Object(to), "", &HeaderMap::new())
                .await?
                .headers;
        }
    }

    /// Copies the version `e_tag` of an object on S3 or GCS; `condition_headers` say what must be at `to`.
    pub(super) async fn copy_object(
        &self,
        from: &Path,
        e_tag: &str,
        to: &Path,
        (source_name, match_name): (HeaderName, HeaderName),
        condition_headers: HeaderMap,
    ) -> Result<()> {
        let mut headers = self.copy_headers(from, to, &source_name).await?;
        headers.extend(condition_headers);
        headers.insert(match_name, self.quote_e_tag(e_tag)?);
        // The HTTP service takes an error in the answer's body for one.
        self.send(Method::PUT, Subject::Object(to), "", &headers)
            .await
            .map(drop)
    }

    /// Copies a range of an object on S3 into a part of an upload.
    pub(super) async fn copy_object_part(&self, part: PartCopy<'_>) -> Result<PartId> {
        let (from, to) = (part.from, part.to);
        let mut headers = self.copy_headers(from, to, &AMZ_COPY_SOURCE).await?;
        // How the object is encrypted was said when the upload began; only keys of the customer are said again.
        let is_encryption = |name: &HeaderName| {
            name.as_str().starts_with("x-amz-server-side-encryption")
                && !name.as_str().contains("customer")
        };
        let names: Vec<HeaderName> = headers.keys().cloned().collect();
        for name in names.iter().filter(|name| is_encryption(name)) {
            headers.remove(name);
        }
        headers.insert(AMZ_COPY_SOURCE_MATCH, self.quote_e_tag(part.e_tag)?);
        let range = format!("bytes={}-{}", part.range.start, part.range.end - 1);
        let range = HeaderValue::from_str(&range).map_err(|e| self.generic_error(e))?;
        headers.insert(AMZ_COPY_SOURCE_RANGE, range);
        let (number, upload) = (part.number + 1, percent_encode(part.upload));
        let query = format!("partNumber={number}&uploadId={upload}");
        let response = self
            .send(Method::PUT, Subject::Object(to), &query, &headers)
            .await?;
        let content_id =
            xml::parse_copied_part(&response.body).map_err(|e| self.generic_error(e))?;
        Ok(PartId { content_id })
    }

    /// The headers of a request of `object_store` that copies: the source, and those of encryption and billing.
    async fn copy_headers(
        &self,
        from: &Path,
        to: &Path,
        source_name: &HeaderName,
    ) -> Result<HeaderMap> {
        self.warm_up().await?;
        let copy = self.objects().copy_opts(from, to, CopyOptions::default());
        let target = limit::capture(copy).await?;
        if !target.headers.contains_key(source_name) {
            return Err(self.generic_error(format!(
                "internal error: the copy request has no {source_name} header"
            )));
        }
        let mut headers = target.headers;
        for name in [
            // `sign` adds a new signature.
            AUTHORIZATION,
            HOST,
            AMZ_DATE,
            AMZ_CONTENT_SHA256,
            AMZ_SECURITY_TOKEN,
            // `object_store` swaps the modes of a copy, see `super::gcs`.
            GENERATION_MATCH,
        ] {
            headers.remove(name);
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        Ok(headers)
    }
}
