//! Copies by ranges: a multipart upload whose parts are ranges of one version of an object, so that no byte passes
//! through this process. Source: `UploadPartCopy` in the API reference of Amazon S3.
//!
//! They are for what one request cannot do: S3 copies at most 5 GiB by one, and checks no condition on the target.
//! Content types and other metadata of an object are not copied.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use object_store::{MultipartId, ObjectMeta};

use super::Store;
use super::condition::{Condition, PartCopy};
use super::metrics::RequestKind;
use super::upload::{AbortOnDrop, MAX_UPLOAD_PARTS};
use crate::error::{Error, ErrorKind, Result};

/// A part of an upload has at least 5 MiB and at most 5 GiB; that of a large object has more than this.
const RANGE_BYTES: u64 = 64 << 20;
const RANGES_IN_FLIGHT: usize = 8;

impl Store {
    /// Copies the version of an object that `meta` is about if `to` meets the condition, which must be one that the
    /// store checks as it completes an upload.
    ///
    /// [`ErrorKind::CapabilityNotSupported`] where the store has no such requests. [`ErrorKind::Conflict`]: it is
    /// another version now, or the condition does not hold. Any other error: `to` may have the copy.
    pub(super) async fn copy_by_ranges(
        &self,
        from: &str,
        meta: &ObjectMeta,
        to: &str,
        condition: &Condition,
    ) -> Result<()> {
        let unsupported = || {
            let message = "the store cannot copy an object by ranges";
            Error::new(ErrorKind::CapabilityNotSupported, message).with_path(from)
        };
        let multipart = self.multipart().ok_or_else(unsupported)?;
        let e_tag = meta.e_tag.as_deref().ok_or_else(unsupported)?;
        if *condition != Condition::Always && !self.completes_if(to).await? {
            return Err(unsupported());
        }
        let target = self.key(to)?;
        let begin = || multipart.create_multipart(&target);
        let upload = self.retry_idempotent(to, begin).await?;
        // To the end: an upload that is complete cannot be aborted.
        let guard = AbortOnDrop::new(self, to, &upload);
        let copied = async {
            let parts = self
                .copy_ranges((from, e_tag), meta.size, (to, &upload))
                .await?;
            // Not every server compares the version of each range.
            self.head_version(from, e_tag).await?;
            let before = match condition {
                Condition::Always => self.e_tag_at(to).await?,
                _ => None,
            };
            match self.complete_if(to, &upload, &parts, condition).await {
                // An earlier completion may have landed, its answer lost.
                Err(e) if e.kind() == ErrorKind::NotFound && *condition == Condition::Always => {
                    let is_new = self.e_tag_at(to).await? != before
                        && self.head(to).await?.size == meta.size;
                    if is_new { Ok(()) } else { Err(e) }
                }
                completed => completed.map(drop),
            }
        };
        let copied = copied.await;
        guard.disarm();
        if copied.is_err()
            && let Err(e) = self.abort_upload(to, &upload).await
        {
            log::warn!("could not abort the upload of {to}: {e}");
        }
        copied
    }

    /// The ETag of the object at a path; None without one.
    async fn e_tag_at(&self, path: &str) -> Result<Option<String>> {
        match self.head(path).await {
            Ok(meta) => Ok(meta.e_tag),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether the store checks the condition of a completion itself.
    async fn completes_if(&self, path: &str) -> Result<bool> {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        Ok(self.condition_support(folder).await?.complete)
    }

    /// Returns the ids of the parts. After an error no request is under way, which might land after an abort.
    async fn copy_ranges(
        &self,
        (from, e_tag): (&str, &str),
        bytes: u64,
        (to, upload): (&str, &MultipartId),
    ) -> Result<Vec<String>> {
        let has_failed = AtomicBool::new(false);
        let pending = futures::stream::iter(ranges(bytes).enumerate())
            .take_while(|_| std::future::ready(!has_failed.load(Ordering::Relaxed)));
        let requests = pending
            .map(|(number, range)| self.copy_range((from, e_tag), range, (to, upload, number)))
            .buffered(RANGES_IN_FLIGHT);
        let note = |copied: &Result<String>| {
            if copied.is_err() {
                has_failed.store(true, Ordering::Relaxed);
            }
        };
        let copied: Vec<Result<String>> = requests.inspect(note).collect().await;
        copied.into_iter().collect()
    }

    async fn copy_range(
        &self,
        (from, e_tag): (&str, &str),
        range: Range<u64>,
        (to, upload, number): (&str, &MultipartId, usize),
    ) -> Result<String> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        let unsupported = || object_store::Error::NotImplemented {
            operation: "copy_part".to_owned(),
            implementer: self.inner.name.to_owned(),
        };
        self.count_request(RequestKind::Copy);
        let send = || async {
            let part = PartCopy {
                from: &source,
                e_tag,
                range: range.clone(),
                to: &target,
                upload,
                number,
            };
            match &self.inner.conditional_store {
                Some(conditional_store) => conditional_store
                    .copy_part(part)
                    .await
                    .unwrap_or_else(|| Err(unsupported())),
                None => Err(unsupported()),
            }
        };
        let part = self.retry_idempotent(from, send).await?;
        Ok(part.content_id)
    }
}

/// As few ranges of one length as an upload may have parts, the last one shorter.
fn ranges(bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let step = RANGE_BYTES.max(bytes.div_ceil(MAX_UPLOAD_PARTS as u64));
    (0..bytes.div_ceil(step)).map(move |number| {
        let start = number * step;
        start..bytes.min(start + step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_an_object_in_as_many_parts_as_an_upload_may_have() {
        let gib = 1 << 30;
        for bytes in [1, RANGE_BYTES, RANGE_BYTES + 1, 6 * gib, 5_000 * gib + 1] {
            let ranges: Vec<Range<u64>> = ranges(bytes).collect();
            assert!(ranges.len() <= MAX_UPLOAD_PARTS);
            assert!(
                ranges
                    .iter()
                    .all(|range| range.end - range.start <= 5 * gib)
            );
            let bounds = ranges.iter().flat_map(|range| [range.start, range.end]);
            let bounds: Vec<u64> = bounds.collect();
            assert_eq!((bounds[0], bounds[bounds.len() - 1]), (0, bytes));
            assert!(
                bounds[1..bounds.len() - 1]
                    .chunks(2)
                    .all(|pair| pair[0] == pair[1])
            );
        }
    }
}
