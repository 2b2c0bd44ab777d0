//! Where the parts of a write are: published under their names, staged, or missing.

use futures::{StreamExt, TryStreamExt, stream};

use super::folder::part_matches;
use super::incomplete_error;
use super::intent::IntendedPart;
use super::steps::{CONCURRENT_PARTS, Steps};
use crate::error::{Error, Result};
use crate::store::path;

/// Where the parts of a write are.
#[derive(Debug, Default)]
pub(super) struct PartLocations {
    /// Number of parts that are published under their names.
    pub(super) published_count: usize,
    /// The name of a part that is neither published nor staged.
    pub(super) missing: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartLocation {
    Published,
    Staged,
    Missing,
}

impl PartLocations {
    pub(super) async fn find(steps: &Steps<'_, '_>, parts: &[IntendedPart]) -> Result<Self> {
        let lookups = parts.iter().map(|part| async move {
            let location = if is_published(steps, part).await? {
                PartLocation::Published
            } else if is_available(steps, part).await? {
                PartLocation::Staged
            } else {
                PartLocation::Missing
            };
            Ok::<_, Error>((part, location))
        });
        let locations: Vec<_> = stream::iter(lookups)
            .buffered(CONCURRENT_PARTS)
            .try_collect()
            .await?;
        let count = |expected| {
            locations
                .iter()
                .filter(|(_, location)| *location == expected)
                .count()
        };
        let missing = locations
            .iter()
            .find(|(_, location)| *location == PartLocation::Missing);
        Ok(Self {
            published_count: count(PartLocation::Published),
            missing: missing.map(|(part, _)| part.name.clone()),
        })
    }
}

pub(super) async fn is_published(steps: &Steps<'_, '_>, part: &IntendedPart) -> Result<bool> {
    if !steps.folder.files.contains_key(&part.name) {
        return Ok(false);
    }
    let target = path::join(steps.lease.key, &part.name);
    part_matches(&steps.store, &target, &steps.lease.id, part).await
}

/// Whether a part that is not published under its name can still be.
async fn is_available(steps: &Steps<'_, '_>, part: &IntendedPart) -> Result<bool> {
    if part.is_inline() || part.staged.is_intact(&steps.store, part.bytes).await? {
        return Ok(true);
    }
    match part.moved_upload_target(steps.lease.key) {
        Some(upload_target) => {
            part_matches(&steps.store, upload_target, &steps.lease.id, part).await
        }
        None => Ok(false),
    }
}

/// Looks for every staged part of the caller's write; the error names one that is neither staged nor published.
pub(super) async fn find_unavailable_part(
    steps: &Steps<'_, '_>,
    parts: &[IntendedPart],
) -> Result<Option<Error>> {
    let lookups = parts
        .iter()
        .filter(|part| !part.is_inline())
        .map(|part| async move {
            let is_present = is_available(steps, part).await? || is_published(steps, part).await?;
            Ok::<_, Error>((part, is_present))
        });
    let results: Vec<_> = stream::iter(lookups)
        .buffered(CONCURRENT_PARTS)
        .try_collect()
        .await?;
    let missing = results.iter().find(|(_, is_present)| !is_present);
    Ok(missing.map(|(part, _)| {
        let reason = format!(
            "part {:?} of the write is neither staged nor published; prepare it again",
            part.name
        );
        incomplete_error(steps.lease.key, &reason)
    }))
}
