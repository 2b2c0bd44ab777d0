//! Copies by ranges: a multipart upload whose parts are ranges of one version of an object, so that no byte passes
//! through this process. Source: `UploadPartCopy` in the API reference of Amazon S3.
//!
//! They are for what one request cannot do: S3 copies at most 5 GiB by one, and checks no condition on the target.
//! Content types and other metadata of an object are not copied.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use md5::{Digest, Md5};
use object_store::{MultipartId, ObjectMeta};

use super::Store;
use super::condition::{Condition, PartCopy, is_same_e_tag};
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
                    let own_e_tag = e_tag_of_parts(&parts);
                    self.check_completed(to, (meta.size, own_e_tag), before, e)
                        .await
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

    /// Whether `to` has the object of an upload that is gone; else the error of its completion, or
    /// [`ErrorKind::Unavailable`] if another one of its length came there: the ETag of an encrypted object tells
    /// nothing.
    async fn check_completed(
        &self,
        to: &str,
        (bytes, own_e_tag): (u64, Option<String>),
        before: Option<String>,
        error: Error,
    ) -> Result<()> {
        let current = match self.head(to).await {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(error),
            Err(e) => return Err(e),
        };
        let is_own = |own: String| is_same_e_tag(current.e_tag.as_deref(), &own);
        if own_e_tag.is_some_and(is_own) {
            return Ok(());
        }
        if current.e_tag == before || current.size != bytes {
            return Err(error);
        }
        let message = format!(
            "{to:?} was replaced meanwhile, by this copy or by another writer; compare it, and copy again if need be"
        );
        Err(error.with_kind(ErrorKind::Unavailable).context(message))
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

/// The ETag that S3 gives an object of these upload parts: the MD5 of their MD5s. None if an id of a part has none.
fn e_tag_of_parts(ids: &[String]) -> Option<String> {
    let mut hash = Md5::new();
    for id in ids {
        // With a checksum, the id is a document of both.
        let inner = id.split_once("<e_tag>").map_or(&**id, |(_, rest)| rest);
        let e_tag = inner.split("</e_tag>").next()?.replace("&quot;", "\"");
        let digits = e_tag.trim_matches('"');
        if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        hash.update(u128::from_str_radix(digits, 16).ok()?.to_be_bytes());
    }
    let digest = u128::from_be_bytes(hash.finalize().into());
    Some(format!("\"{digest:032x}-{}\"", ids.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MD5s of "a" and "b"; `md5sum` of both together.
    #[test]
    fn the_e_tag_of_an_object_follows_from_those_of_its_parts() {
        let (a, b) = (
            "0cc175b9c0f1b6a831c399e269772661",
            "92eb5ffee6ae2fec3ad71c777531578f",
        );
        let document =
            format!("<PartMetadata><e_tag>&quot;{b}&quot;</e_tag><x>=</x></PartMetadata>");
        let expected = Some("\"96e024ba2074fe77e8e965ba43a704be-2\"".to_owned());
        assert_eq!(e_tag_of_parts(&[format!("\"{a}\""), document]), expected);
        assert_eq!(e_tag_of_parts(&[a.to_owned(), b.to_owned()]), expected);
        assert_eq!(e_tag_of_parts(&[a.to_owned(), "0x8DB".to_owned()]), None);
    }

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
