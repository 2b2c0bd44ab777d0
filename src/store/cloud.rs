//! [`ConditionalStore`] for S3, Azure Blob and Google Cloud Storage.
//!
//! `object_store` has no conditional deletions, completions and copies, and no lists of uploads and their parts; its
//! listings fail at a key that is not a valid path, and take the key of a folder's own object for that of a file.
//! [`CloudClient`] signs and sends these requests, `super::xml` parses the lists. Errors are `object_store`'s:
//! `Precondition` where a condition does not hold, `Generic` for a list that cannot be parsed or repeats a page.

use async_trait::async_trait;
use http::{HeaderMap, Method};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, MultipartId, PutResult, Result};

use super::cloud_copy::{
    AMZ_COPY_SOURCE, AMZ_COPY_SOURCE_MATCH, GOOG_COPY_SOURCE, GOOG_COPY_SOURCE_MATCH,
};
use super::condition::{
    Condition, ConditionSupport, ConditionalStore, KeyListing, OpenUpload, PartCopy, UploadedPart,
};
use super::requests::{Cloud, CloudClient, Subject, percent_encode};
use super::{limit, xml};

#[async_trait]
impl ConditionalStore for CloudClient {
    fn known_condition_support(&self) -> Option<ConditionSupport> {
        match self.cloud {
            // ETags depend on the content alone there, so all empty objects share one.
            Cloud::S3 { aws: true, .. } | Cloud::Gcs { .. } => Some(ConditionSupport {
                marker_versions: false,
                ..ConditionSupport::ALL
            }),
            Cloud::S3 { .. } => None,
            // Staged bytes are blobs there, and the copy of a blob takes a condition.
            Cloud::Azure { .. } => Some(ConditionSupport::ALL),
        }
    }

    async fn probe_key(&self) -> Option<String> {
        let Cloud::S3 { bucket, signed, .. } = &self.cloud else {
            return None;
        };
        // Without credentials or a region there is no request either, and the first one says why.
        let (_, url) = self
            .resolve_url(Subject::Folder(&Path::default()))
            .await
            .ok()?;
        let client = bucket.client().await.ok()?;
        let mut user = String::new();
        // The names of buckets can be those of one tenant, who is known by the access key.
        if *signed {
            let credential = client.objects.credentials().get_credential().await.ok()?;
            user.clone_from(&credential.key_id);
        }
        let settings = self.settings.join(" ");
        Some(format!("{url} {} {user} {settings}", client.region))
    }

    async fn warm_up(&self) -> Result<()> {
        if let Cloud::S3 { bucket, .. } = &self.cloud {
            bucket.client().await?;
        }
        match &self.cloud {
            _ if !self.warms_up => Ok(()),
            Cloud::S3 {
                bucket,
                signed: true,
                ..
            } => {
                let client = bucket.client().await?;
                client
                    .objects
                    .credentials()
                    .get_credential()
                    .await
                    .map(drop)
            }
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
        let headers = self.condition_headers(key, &condition).await?;
        self.send(Method::DELETE, Subject::Object(key), "", &headers)
            .await
            .map(drop)
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
            .ok_or_else(|| self.generic_error("the store has no multipart uploads"))?;
        let headers = self.condition_headers(key, condition).await?;
        limit::with_headers(headers, multipart.complete_multipart(key, upload, parts)).await
    }

    async fn list_parts(&self, key: &Path, upload: &MultipartId) -> Result<Vec<UploadedPart>> {
        let id = percent_encode(upload);
        let mut parts = Vec::new();
        let mut marker = String::new();
        loop {
            let mut query = format!("uploadId={id}");
            if !marker.is_empty() {
                query = format!("part-number-marker={marker}&{query}");
            }
            let response = self
                .send(Method::GET, Subject::Object(key), &query, &HeaderMap::new())
                .await?;
            let page = xml::parse_parts_page(&response.body).map_err(|e| self.generic_error(e))?;
            parts.extend(page.items);
            match page.next {
                Some(next) if next != marker => marker = next,
                Some(_) => {
                    return Err(self.generic_error("the list of an upload's parts repeats a page"));
                }
                None => return Ok(parts),
            }
        }
    }

    async fn list_uploads(&self, folder: &Path) -> Result<Vec<OpenUpload>> {
        if self.multipart().is_none() {
            // Azure drops uncommitted blocks after a week.
            return Ok(Vec::new());
        }
        let prefix = percent_encode(&format!("{folder}/"));
        let mut uploads = Vec::new();
        let mut marker = (String::new(), String::new());
        loop {
            let mut query = format!("delimiter=%2F&prefix={prefix}&uploads=");
            if !marker.0.is_empty() {
                let (key, id) = (percent_encode(&marker.0), percent_encode(&marker.1));
                query = format!(
                    "delimiter=%2F&key-marker={key}&prefix={prefix}&upload-id-marker={id}&uploads="
                );
            }
            let response = self
                .send(
                    Method::GET,
                    Subject::Folder(folder),
                    &query,
                    &HeaderMap::new(),
                )
                .await?;
            let page =
                xml::parse_uploads_page(&response.body).map_err(|e| self.generic_error(e))?;
            uploads.extend(page.items);
            match page.next {
                Some(next) if next != marker => marker = next,
                Some(_) => return Err(self.generic_error("the list of uploads repeats a page")),
                None => break,
            }
        }
        // Some servers ignore the prefix and the delimiter of this request.
        uploads.retain(|upload: &OpenUpload| upload.is_in(folder));
        Ok(uploads)
    }

    async fn list_keys(&self, folder: &Path, recursive: bool) -> Option<Result<KeyListing>> {
        match self.cloud {
            Cloud::Azure { .. } | Cloud::S3 { express: true, .. } => None,
            Cloud::S3 { .. } | Cloud::Gcs { .. } => {
                Some(self.list_objects(folder, recursive).await)
            }
        }
    }

    async fn delete_folder_object(&self, folder: &Path) -> Result<()> {
        let subject = Subject::FolderObject(folder);
        match self
            .send(Method::DELETE, subject, "", &HeaderMap::new())
            .await
        {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn checks_copy_target(&self) -> bool {
        !matches!(self.cloud, Cloud::S3 { .. })
    }

    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<Result<()>> {
        match (&self.cloud, e_tag) {
            (Cloud::Azure { .. }, _) => Some(self.copy_blob(from, e_tag, to, condition).await),
            (Cloud::S3 { .. }, Some(e_tag)) => {
                let names = (AMZ_COPY_SOURCE, AMZ_COPY_SOURCE_MATCH);
                let copy = self.copy_object(from, e_tag, to, names, HeaderMap::new());
                Some(copy.await)
            }
            (Cloud::Gcs { .. }, Some(e_tag)) => {
                let names = (GOOG_COPY_SOURCE, GOOG_COPY_SOURCE_MATCH);
                let headers = match self.condition_headers(to, condition).await {
                    Ok(headers) => headers,
                    Err(e) => return Some(Err(e)),
                };
                Some(self.copy_object(from, e_tag, to, names, headers).await)
            }
            (Cloud::S3 { .. } | Cloud::Gcs { .. }, None) => None,
        }
    }

    async fn copy_part(&self, part: PartCopy<'_>) -> Option<Result<PartId>> {
        match self.cloud {
            Cloud::S3 { .. } => Some(self.copy_object_part(part).await),
            Cloud::Azure { .. } | Cloud::Gcs { .. } => None,
        }
    }
}

impl CloudClient {
    /// Lists a folder of a bucket, page by page.
    async fn list_objects(&self, folder: &Path, recursive: bool) -> Result<KeyListing> {
        let mut listing = KeyListing::default();
        let mut token = String::new();
        loop {
            let query = list_query(folder, recursive, &token);
            let subject = Subject::Folder(folder);
            let response = self
                .send_unchecked(Method::GET, subject, &query, &HeaderMap::new())
                .await?;
            // The kinds of errors are for requests for objects: a missing bucket is not a missing object.
            if let Some(message) = response.error_message() {
                return Err(self.generic_error(message));
            }
            let (page, next) =
                xml::parse_objects_page(&response.body).map_err(|e| self.generic_error(e))?;
            listing.append(page);
            match next {
                Some(next) if next != token => token = next,
                Some(_) => return Err(self.generic_error("the listing repeats a page")),
                None => break,
            }
        }
        // A page may begin with the folder that the last one ended with.
        listing.listing.common_prefixes.sort();
        listing.listing.common_prefixes.dedup();
        Ok(listing)
    }
}

/// The query of a page of a listing, its parameters in the order of their names.
fn list_query(folder: &Path, recursive: bool, token: &str) -> String {
    let mut parameters = Vec::new();
    if !token.is_empty() {
        parameters.push(format!("continuation-token={}", percent_encode(token)));
    }
    if !recursive {
        parameters.push("delimiter=%2F".to_owned());
    }
    parameters.push("list-type=2".to_owned());
    if !folder.is_root() {
        let prefix = percent_encode(&format!("{folder}/"));
        parameters.push(format!("prefix={prefix}"));
    }
    parameters.join("&")
}
