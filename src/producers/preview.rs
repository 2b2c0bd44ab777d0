//! Previews: updates that are computed and written but not committed, so that one can look at what they would make.
//!
//! The runs of a preview lie in the store under names that no version has. A commit of the preview names them; it fails if
//! another update came first. Discarding removes them, and after a crash a vacuum does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::change_counts::PreviewedVersions;
use super::format::PipelineManifest;
use super::graph::Graph;
use super::input::Changes;
use super::splice::PipelineUpdate;
use super::update::{UpdateOperation, UpdateOptions, UpdateReport, create_from, report};
use super::{Pipeline, Staged};
use crate::error::{Error, ErrorKind, Result};
use crate::versions::commit::commit_onto;
use crate::versions::{Change, find_replay};

/// How often a preview is planned at most.
const MAX_PLANS: u32 = 8;

/// An update that is not committed.
#[derive(Debug)]
pub struct Preview {
    pipeline: Pipeline,
    outcome: Outcome,
    before: Arc<PipelineManifest>,
    manifest: Arc<PipelineManifest>,
    staged: Staged,
    timeout: Duration,
}

/// What a commit of a preview does.
#[derive(Debug)]
enum Outcome {
    Update(PipelineUpdate),
    /// Nothing: an earlier update has the same idempotency key.
    Replay(UpdateReport),
}

/// Computes an update and writes its runs. If an earlier update has the same idempotency key, nothing is computed, and
/// the preview shows no change. Errors are those of [`super::update()`]; after one nothing is left. Fails with
/// [`ErrorKind::VersionExpired`] if vacuums removed what it is computed from each time that it was planned.
pub async fn preview(
    pipeline: &Pipeline,
    graph: &Graph,
    changes: BTreeMap<String, Changes>,
    options: &UpdateOptions,
) -> Result<Preview> {
    let mut operation = UpdateOperation::new(pipeline, graph, changes, options).await?;
    let previewed = preview_retained(pipeline, &mut operation, options).await;
    operation.remove_staged().await;
    previewed
}

/// Computes an update of the newest version, and of a newer one if a vacuum removed that meanwhile.
async fn preview_retained(
    pipeline: &Pipeline,
    operation: &mut UpdateOperation<'_>,
    options: &UpdateOptions,
) -> Result<Preview> {
    let key = options.idempotency_key.as_deref();
    let mut plans = 0;
    loop {
        plans += 1;
        let mut staged = Staged::new(pipeline);
        let planned = preview_on_newest(pipeline, key, operation, &mut staged);
        let planned = Box::pin(planned).await;
        match planned {
            Ok((outcome, before, manifest)) => {
                return Ok(Preview {
                    pipeline: pipeline.clone(),
                    outcome,
                    before,
                    manifest,
                    staged,
                    timeout: options.timeout,
                });
            }
            Err(e) => {
                staged.remove_all().await;
                if e.kind() != ErrorKind::VersionExpired || plans == MAX_PLANS {
                    return Err(e);
                }
            }
        }
    }
}

/// Computes an update of the newest version; gives the manifest of that, and the one that its commit would write.
async fn preview_on_newest(
    pipeline: &Pipeline,
    key: Option<&str>,
    operation: &mut UpdateOperation<'_>,
    staged: &mut Staged,
) -> Result<(Outcome, Arc<PipelineManifest>, Arc<PipelineManifest>)> {
    let mut base = match pipeline.find_newest().await? {
        Some(newest) => newest.manifest,
        None => Arc::new(PipelineManifest::empty_of(pipeline)),
    };
    if base.version > 0 && key.is_some() {
        let (newest, earlier) = find_replay(pipeline, key).await?;
        if let Some(earlier) = earlier {
            let unchanged = without_changes(&newest.manifest);
            let replay = Outcome::Replay(report(&earlier, Vec::new()));
            return Ok((replay, newest.manifest, unchanged));
        }
        base = newest.manifest;
    }
    let change = operation.plan_on(Arc::clone(&base), staged).await?;
    let (mut manifest, operation) = change.apply(&base)?;
    manifest.version = base.version + 1;
    manifest.is_preview = true;
    manifest.operation = operation;
    Ok((Outcome::Update(change), base, Arc::new(manifest)))
}

/// The same rows, and none of the changes of the version.
fn without_changes(manifest: &PipelineManifest) -> Arc<PipelineManifest> {
    let mut unchanged = manifest.clone();
    for node in &mut unchanged.nodes {
        node.update = None;
    }
    Arc::new(unchanged)
}

impl Preview {
    /// The pipeline as the commit would make it; as it is where an earlier update has the same idempotency key.
    pub fn manifest(&self) -> &Arc<PipelineManifest> {
        &self.manifest
    }

    /// That version and the one before it, of which differences are counted.
    pub fn versions(&self) -> PreviewedVersions {
        PreviewedVersions {
            pipeline: self.pipeline.clone(),
            before: Arc::clone(&self.before),
            after: Arc::clone(&self.manifest),
        }
    }

    /// What the update would do; the commit has no id yet. Of an update with a used idempotency key, the earlier one.
    pub fn report(&self) -> UpdateReport {
        match &self.outcome {
            Outcome::Update(change) => UpdateReport {
                version: self.manifest.version,
                commit_id: self.manifest.commit_id.clone(),
                is_replayed: false,
                nodes: change.reports.clone(),
            },
            Outcome::Replay(earlier) => earlier.clone(),
        }
    }

    /// Commits it. Fails with [`crate::ErrorKind::CommitConflict`] if another update, or a compaction of runs that it
    /// merges, came first, with [`crate::ErrorKind::TransactionExpired`] if a vacuum may have removed its runs. Unless the
    /// outcome is unknown, its runs are removed then.
    pub async fn commit(self) -> Result<UpdateReport> {
        let Self {
            pipeline,
            outcome,
            before: _,
            manifest: _,
            staged,
            timeout,
        } = self;
        let change = match outcome {
            Outcome::Update(change) => change,
            Outcome::Replay(earlier) => return Ok(earlier),
        };
        if change.base_version == 0 {
            let key = change.idempotency_key.clone();
            return match create_from(&pipeline, change, staged).await {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => replayed(&pipeline, key, e).await,
                created => created,
            };
        }
        match commit_onto(&pipeline, &change, None, timeout).await {
            Ok(committed) => {
                if committed.replayed {
                    staged.remove_all().await;
                    return Ok(report(&committed, Vec::new()));
                }
                Ok(report(&committed, change.reports))
            }
            Err(e) => {
                if e.allows_removal() {
                    staged.remove_all().await;
                }
                Err(e.into())
            }
        }
    }

    /// Removes its runs.
    pub async fn discard(self) {
        self.staged.remove_all().await;
    }
}

/// The report of an earlier update with the same idempotency key, where there is one; else the conflict.
async fn replayed(pipeline: &Pipeline, key: Option<String>, e: Error) -> Result<UpdateReport> {
    match find_replay(pipeline, key.as_deref()).await?.1 {
        Some(earlier) => Ok(report(&earlier, Vec::new())),
        None => Err(e.with_kind(ErrorKind::CommitConflict)),
    }
}
