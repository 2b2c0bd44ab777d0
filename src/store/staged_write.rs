//! What was staged: plain data that any call or process can publish or discard.
//!
//! Publishing fails with [`ErrorKind::NotFound`] if what was staged is missing. A multipart upload can only become the
//! object that it was begun for: [`StagedWrite::publish`] copies that object to any other name,
//! [`StagedWrite::publish_if`] refuses to.

use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::{ObjectStoreExt, PutMode};
use serde::{Deserialize, Serialize};

use super::Store;
use super::condition::{Condition, is_same_e_tag};
use super::failure::is_too_large_to_copy;
use crate::error::{Error, ErrorKind, Result};

/// Bytes that are staged and can be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StagedWrite {
    /// The bytes themselves; one PUT publishes them.
    Inline {
        /// The bytes.
        #[serde(with = "base64_bytes")]
        bytes: Bytes,
    },
    /// An uncompleted multipart upload; it can become only the object that it was begun for.
    Multipart {
        /// The path of that object.
        target: String,
        /// The store's id of the upload.
        upload: String,
        /// The store's ids of the upload parts, in order.
        #[serde(rename = "pieces")]
        upload_parts: Vec<String>,
    },
    /// A hidden object; a rename publishes it.
    Object {
        /// The path of the hidden object.
        path: String,
    },
}

impl StagedWrite {
    /// Publishes the bytes as `target` and replaces any object there.
    ///
    /// An upload that was begun for another path becomes that object first, which is copied to `target` and deleted:
    /// no other write may use that path.
    pub async fn publish(&self, store: &Store, target: &str) -> Result<()> {
        match self {
            Self::Inline { bytes } => {
                store.put(target, bytes.clone(), PutMode::Overwrite).await?;
                Ok(())
            }
            Self::Object { path } => store.rename(path, target).await,
            Self::Multipart {
                target: upload_target,
                upload,
                upload_parts,
            } => {
                let multipart = store.multipart().ok_or_else(|| {
                    Error::other("staged multipart upload does not belong to this store")
                        .with_path(upload_target)
                })?;
                let key = store.key(upload_target)?;
                let part_ids = upload_parts.iter().map(|id| PartId {
                    content_id: id.clone(),
                });
                let part_ids: Vec<PartId> = part_ids.collect();
                // Only this write uses the name, so both requests can be sent again.
                let complete = || multipart.complete_multipart(&key, upload, part_ids.clone());
                match store.retry_idempotent(upload_target, complete).await {
                    Ok(_) => {}
                    // An earlier completion landed and its answer was lost.
                    Err(e)
                        if e.kind() == ErrorKind::NotFound
                            && store.is_file(upload_target).await? => {}
                    Err(e) => return Err(e),
                }
                if upload_target == target {
                    return Ok(());
                }
                let target_key = store.key(target)?;
                let copy = || store.inner.objects.copy(&key, &target_key);
                let copied = match store.retry_idempotent(upload_target, copy).await {
                    Err(e) if is_too_large_to_copy(&e) => {
                        store.copy_large(upload_target, target).await
                    }
                    copied => copied,
                };
                // Whether or not the copy succeeded: no reader uses the name that the upload was begun for.
                if let Err(e) = store.delete(upload_target).await {
                    log::warn!("could not remove {upload_target} after the copy to {target}: {e}");
                }
                copied
            }
        }
    }

    /// As [`StagedWrite::publish`], if `target` meets `condition`; returns the new ETag if it is known.
    ///
    /// [`ErrorKind::NotFound`]: what was staged is missing. [`ErrorKind::Conflict`] or [`ErrorKind::AlreadyExists`]: the
    /// condition does not hold. [`ErrorKind::Other`]: an upload that was begun for another path. In a store without
    /// [`super::ConditionSupport::complete`] the condition of a completion is checked by a request of its own before.
    pub async fn publish_if(
        &self,
        store: &Store,
        target: &str,
        condition: &Condition,
    ) -> Result<Option<String>> {
        match self {
            Self::Inline { bytes } => {
                Ok(store.put_if(target, bytes.clone(), condition).await?.e_tag)
            }
            Self::Object { path } => store.move_if(path, target, condition).await,
            Self::Multipart {
                target: upload_target,
                upload,
                upload_parts,
            } if upload_target == target => {
                store
                    .complete_if(target, upload, upload_parts, condition)
                    .await
            }
            Self::Multipart {
                target: upload_target,
                ..
            } => Err(Error::other(format!(
                "internal error: an upload that was begun for {upload_target:?} can only become that object"
            ))
            .with_path(target)),
        }
    }

    /// Whether what was staged still exists with `bytes` bytes, an upload also with the same upload parts.
    pub async fn is_intact(&self, store: &Store, bytes: u64) -> Result<bool> {
        match self {
            Self::Inline {
                bytes: inline_bytes,
            } => Ok(inline_bytes.len() as u64 == bytes),
            Self::Object { path } => match store.head(path).await {
                Ok(meta) => Ok(meta.size == bytes),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e),
            },
            Self::Multipart {
                target,
                upload,
                upload_parts,
            } => match store.list_parts(target, upload).await {
                Ok(parts) => {
                    let total_bytes: u64 = parts.iter().map(|part| part.bytes).sum();
                    let pairs = parts.iter().zip(upload_parts);
                    let mut matches =
                        pairs.map(|(part, part_id)| is_same_part(&part.e_tag, part_id));
                    Ok(parts.len() == upload_parts.len()
                        && total_bytes == bytes
                        && matches.all(|is_same| is_same))
                }
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
                Err(e) => Err(e),
            },
        }
    }

    /// Removes what was staged; no error if it is missing already.
    pub async fn discard(&self, store: &Store) -> Result<()> {
        match self {
            Self::Inline { .. } => Ok(()),
            Self::Object { path } => store.delete(path).await.map(drop),
            Self::Multipart { target, upload, .. } => store.abort_upload(target, upload).await,
        }
    }

    /// The path of the hidden object, if there is one; cleanup leaves it alone.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Object { path } => Some(path),
            Self::Inline { .. } | Self::Multipart { .. } => None,
        }
    }
}

/// Whether a listed ETag is that of an upload part, whose id is XML where parts have checksums: `PartMetadata` of
/// `object_store`.
fn is_same_part(e_tag: &str, part_id: &str) -> bool {
    let e_tag_element = part_id
        .split_once("<e_tag>")
        .and_then(|(_, rest)| rest.split_once("</e_tag>"));
    let part_e_tag = e_tag_element
        .map_or(part_id, |(tag, _)| tag)
        .replace("&quot;", "\"");
    is_same_e_tag(Some(&part_e_tag), e_tag)
}

/// Removes staged writes that will not be published, for callers that are dropped and cannot wait. Failures are logged;
/// uploads and hidden objects stay if no Tokio runtime is running.
pub fn discard_in_background(store: &Store, staged: Vec<StagedWrite>) {
    let (files, uploads): (Vec<_>, Vec<_>) =
        staged.into_iter().partition(|_| store.local().is_some());
    for file in files {
        if let (Some(local), Some(Ok(key))) =
            (store.local(), file.path().map(|path| store.key(path)))
        {
            local.remove_temp(&key);
        }
    }
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    if uploads
        .iter()
        .all(|staged| matches!(staged, StagedWrite::Inline { .. }))
    {
        return;
    }
    let store = store.clone();
    runtime.spawn(async move {
        for staged in uploads {
            if let Err(e) = staged.discard(&store).await {
                log::warn!("could not remove a staged write: {e}");
            }
        }
    });
}

mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etag_of_a_part_is_looked_up_in_its_id() {
        let with_checksum = "<PartMetadata><e_tag>&quot;a&quot;</e_tag><checksum_sha256>x</checksum_sha256></PartMetadata>";
        for part_id in ["\"a\"", "a", with_checksum] {
            assert!(is_same_part("\"a\"", part_id), "{part_id}");
            assert!(!is_same_part("\"b\"", part_id), "{part_id}");
        }
    }
}
