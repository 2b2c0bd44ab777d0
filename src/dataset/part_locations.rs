//! Where the parts of a write are: under their names, staged, or nowhere.

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
    /// How many stand under their names.
    pub(super) published: usize,
    /// One that is nowhere.
    pub(super) missing: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartLocation {
    Published,
    Staged,
    Nowhere,
}

impl PartLocations {
    pub(super) async fn find(steps: &Steps<'_, '_>, parts: &[IntendedPart]) -> Result<Self> {
        let lookups = parts.iter().map(|part| async move {
            let location = if is_published(steps, part).await? {
                PartLocation::Published
            } else if is_available(steps, part).await? {
                PartLocation::Staged
            } else {
                PartLocation::Nowhere
            };
            Ok::<_, Error>((part, location))
        });
        let locations: Vec<_> = stream::iter(lookups)
            .buffered(CONCURRENT_PARTS)
            .try_collect()
            .await?;
        let count = |wanted| {
            locations
                .iter()
                .filter(|(_, location)| *location == wanted)
                .count()
        };
        let missing = locations
            .iter()
            .find(|(_, location)| *location == PartLocation::Nowhere);
        Ok(Self {
            published: count(PartLocation::Published),
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

/// Whether a part that is not published can be.
async fn is_available(steps: &Steps<'_, '_>, part: &IntendedPart) -> Result<bool> {
    if part.is_inline() || part.staged.is_intact(&steps.store, part.bytes).await? {
        return Ok(true);
    }
    match part.moved_upload_target(steps.lease.key) {
        Some(begun_for) => part_matches(&steps.store, begun_for, &steps.lease.id, part).await,
        None => Ok(false),
    }
}

/// Looks at every part of a write of our own; the error names one that is neither staged nor published.
pub(super) async fn unavailable_part(
    steps: &Steps<'_, '_>,
    parts: &[IntendedPart],
) -> Result<Option<Error>> {
    let looks = parts
        .iter()
        .filter(|part| !part.is_inline())
        .map(|part| async move {
            let there = is_available(steps, part).await? || is_published(steps, part).await?;
            Ok::<_, Error>((part, there))
        });
    let looked: Vec<_> = stream::iter(looks)
        .buffered(CONCURRENT_PARTS)
        .try_collect()
        .await?;
    let missing = looked.iter().find(|(_, there)| !there);
    Ok(missing.map(|(part, _)| {
        let why = format!(
            "part {:?} of the write is neither staged nor published; prepare it again",
            part.name
        );
        incomplete_error(steps.lease.key, &why)
    }))
}
