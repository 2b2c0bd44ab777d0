//! The parts of a dataset, opened: footers read, identities compared.

use futures::{StreamExt, TryStreamExt, stream};

use super::{Manifest, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::file::TAIL_BYTES;
use crate::part::{OpenPart, open};
use crate::store::{Store, path};

/// Footers read at once.
const CONCURRENT_OPENS: usize = 32;

/// Opens every part of a manifest and checks that together they are its dataset.
pub(super) async fn open_parts(
    store: &Store,
    key: &str,
    manifest: &Manifest,
) -> Result<Vec<OpenPart>> {
    let opens = manifest
        .parts
        .iter()
        .map(|name| open_part(store, key, name));
    let parts: Vec<OpenPart> = stream::iter(opens)
        .buffered(CONCURRENT_OPENS)
        .try_collect()
        .await?;
    check_identities(key, manifest, &parts)?;
    let found: u64 = parts.iter().map(|p| p.file.rows()).sum();
    if found != manifest.row_count {
        return Err(incomplete(
            key,
            &format!(
                "its parts hold {found} rows, the manifest says {}",
                manifest.row_count
            ),
        ));
    }
    check_schemas(key, &parts)?;
    Ok(parts)
}

/// Whether every part carries checksums. They were compared with the manifest then, and so is every
/// chunk that is read: whatever has been published since, this is one write's.
pub(super) fn all_sealed(parts: &[OpenPart]) -> bool {
    parts.iter().all(|part| part.file.seal.is_some())
}

/// Opens one part of a dataset's folder.
pub(super) async fn open_part(store: &Store, key: &str, name: &str) -> Result<OpenPart> {
    let path = path::join(key, name);
    let opened = open(store, &path, TAIL_BYTES).await;
    opened.map_err(|e| match e.kind() {
        ErrorKind::NotFound => incomplete(key, &format!("part {name:?} is missing")).caused_by(e),
        ErrorKind::PartCorrupted => e.context(format!("part {name:?}")).at(&path),
        _ => e,
    })
}

/// Every part is of the write the manifest tells of, and stands where it was written.
fn check_identities(key: &str, manifest: &Manifest, parts: &[OpenPart]) -> Result<()> {
    let refuse = |part: &OpenPart, why: &str| {
        let message = format!("part {:?} {why}", part.path);
        Err(Error::new(ErrorKind::PartCorrupted, message).at(key))
    };
    let mut before: Option<(u128, u64, u64, bool)> = None;
    for part in parts {
        let Some(seal) = &part.file.seal else {
            // All or none: a foreign file among ours has replaced one of them.
            if before.is_some() {
                return refuse(part, "has no checksums, unlike the parts before it");
            }
            continue;
        };
        let id = &seal.identity;
        if id.created_at != manifest.created_at_utc {
            return refuse(part, "belongs to another write than the manifest");
        }
        let (begins, follows) = match before {
            None => (
                id.sequence == 0 && std::ptr::eq(part, &raw const parts[0]),
                false,
            ),
            Some((write_id, task, sequence, last)) if write_id == id.write_id => (
                last && id.task > task && id.sequence == 0,
                !last && id.task == task && id.sequence == sequence + 1,
            ),
            Some(_) => (false, false),
        };
        if !begins && !follows {
            return refuse(
                part,
                "is not the part that was written here: parts were swapped, repeated or left out",
            );
        }
        before = Some((id.write_id, id.task, id.sequence, id.last));
    }
    match (before, parts.last()) {
        (Some((_, _, _, false)), Some(part)) => refuse(
            part,
            "is not the last part that was written: parts were left out",
        ),
        _ => Ok(()),
    }
}

fn check_schemas(key: &str, parts: &[OpenPart]) -> Result<()> {
    let Some((first, others)) = parts.split_first() else {
        return Ok(());
    };
    for part in others {
        if part.file.schema.fields() != first.file.schema.fields() {
            let message = format!(
                "part {:?} has another schema than {:?}",
                part.path, first.path
            );
            return Err(Error::new(ErrorKind::DatasetIncomplete, message).at(key));
        }
    }
    Ok(())
}
