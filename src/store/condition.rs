//! Conditions of requests: what must be at a path for a request to change it.
//!
//! A [`Condition`] says what must be there. [`ConditionalStore`] has the requests with one that `object_store` lacks, and
//! [`ConditionSupport`] says which of their conditions a store honors. The methods of [`Store`](super::Store) are in
//! `super::conditional`.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{ListResult, MultipartId, PutResult};

/// What must be at a path for a request to change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Any object or none.
    Always,
    /// No object.
    Absent,
    /// The version with this ETag, as the store listed or returned it.
    Matches(String),
}

/// The conditions that a store honors beyond those of PUTs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionSupport {
    /// A DELETE with If-Match deletes that version only.
    pub delete: bool,
    /// The completion of a multipart upload honors a condition.
    pub complete: bool,
    /// An empty object that is written again gets another ETag.
    pub marker_versions: bool,
}

impl ConditionSupport {
    /// All of them.
    pub const ALL: Self = Self {
        delete: true,
        complete: true,
        marker_versions: true,
    };
    /// Only those of PUTs.
    pub const NONE: Self = Self {
        delete: false,
        complete: false,
        marker_versions: false,
    };
}

/// A part of a multipart upload that is not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// The part's ETag.
    pub e_tag: String,
    /// The part's length in bytes.
    pub bytes: u64,
}

/// A multipart upload that was begun and neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenUpload {
    /// The object that it becomes.
    pub path: Path,
    /// The store's id of the upload.
    pub id: MultipartId,
    /// When it was begun, by the store's clock.
    pub initiated_at: DateTime<Utc>,
}

impl OpenUpload {
    /// Whether the object that it becomes is directly in `folder`.
    pub fn is_in(&self, folder: &Path) -> bool {
        let inside = self.path.prefix_match(folder).map(Iterator::count);
        inside == Some(1)
    }
}

/// The content of a folder by the store's keys, of which not all are paths.
#[derive(Debug)]
pub struct KeyListing {
    /// The objects and the subfolders whose keys are paths.
    pub listing: ListResult,
    /// The folders with an object of their own, as consoles create them: its key ends with `/`.
    pub folder_objects: Vec<Path>,
    /// All other keys, which no path can name.
    pub unnamed: Vec<String>,
}

impl Default for KeyListing {
    fn default() -> Self {
        Self {
            listing: ListResult {
                common_prefixes: Vec::new(),
                objects: Vec::new(),
            },
            folder_objects: Vec::new(),
            unnamed: Vec::new(),
        }
    }
}

impl KeyListing {
    /// Adds the next page of the same listing.
    pub(super) fn append(&mut self, page: Self) {
        self.listing.objects.extend(page.listing.objects);
        self.listing
            .common_prefixes
            .extend(page.listing.common_prefixes);
        self.folder_objects.extend(page.folder_objects);
        self.unnamed.extend(page.unnamed);
    }
}

/// A part of an upload that is a range of the version `e_tag` of an object.
#[derive(Debug)]
pub struct PartCopy<'a> {
    pub from: &'a Path,
    pub e_tag: &'a str,
    /// In bytes.
    pub range: Range<u64>,
    pub to: &'a Path,
    pub upload: &'a MultipartId,
    /// From 0 on.
    pub number: usize,
}

/// Requests on one version of an object, for which `object_store` has no methods.
///
/// Errors are `object_store`'s: `NotFound`, and `Precondition` where the condition does not hold.
#[async_trait]
pub trait ConditionalStore: Debug + Send + Sync + 'static {
    /// The conditions that the store is known to honor; None if they must be probed.
    fn known_condition_support(&self) -> Option<ConditionSupport>;

    /// What identifies the server and the bucket, as this store sees them, and its user: what a probe proves of one
    /// store holds for all with the same key, whatever their folders. None where it holds for this store only.
    async fn probe_key(&self) -> Option<String> {
        None
    }

    /// Fetches beforehand what requests need, such as credentials.
    async fn warm_up(&self) -> object_store::Result<()> {
        Ok(())
    }

    /// Deletes an object, or only its version `e_tag`, by one request. A missing object is `NotFound` or no error.
    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> object_store::Result<()>;

    /// Completes an upload if the object it becomes meets the condition.
    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> object_store::Result<PutResult>;

    /// Lists the parts of an upload, in order.
    async fn list_parts(
        &self,
        key: &Path,
        upload: &MultipartId,
    ) -> object_store::Result<Vec<UploadedPart>>;

    /// Lists the uploads of objects directly in `folder` that are neither completed nor aborted.
    async fn list_uploads(&self, folder: &Path) -> object_store::Result<Vec<OpenUpload>>;

    /// Lists a folder by the keys as they are; None where only `object_store` lists, which fails at a key that is not
    /// a valid path.
    async fn list_keys(
        &self,
        _folder: &Path,
        _recursive: bool,
    ) -> Option<object_store::Result<KeyListing>> {
        None
    }

    /// Deletes the object of a folder itself, see [`KeyListing::folder_objects`].
    async fn delete_folder_object(&self, _folder: &Path) -> object_store::Result<()> {
        Ok(())
    }

    /// Whether [`Self::copy_if`] checks its condition on `to`.
    fn checks_copy_target(&self) -> bool {
        true
    }

    /// Copies an object, or only its version `e_tag`, by one request if `to` meets the condition; None where the
    /// store has no such request.
    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<object_store::Result<()>>;

    /// Copies a range of an object into a part of an upload; None where the store has no such request.
    async fn copy_part(&self, _part: PartCopy<'_>) -> Option<object_store::Result<PartId>> {
        None
    }
}

/// Whether two spellings are the same ETag; servers differ in the quotes.
pub(super) fn is_same_e_tag(actual: Option<&str>, expected: &str) -> bool {
    actual.is_some_and(|actual| actual.trim_matches('"') == expected.trim_matches('"'))
}
