//! Publishing staged parts under their names.
//!
//! [`Steps::publish_parts`] sends each part under the condition that its target is as it was listed. After a refusal or
//! an unknown answer it looks whether the part is published; if not, it lists the folder again and sends the part under
//! a new condition. An upload that was begun for another name is completed under that name, copied and deleted (moved
//! parts in `docs/publish.md`).
//!
//! [`StepError::PartMissing`] where a part is neither staged nor published. The PUT of an inline part, whose condition
//! can hold again later, is bounded ([`super::lease`]).

use futures::{StreamExt, stream};

use super::folder::part_matches;
use super::incomplete_error;
use super::intent::IntendedPart;
use super::lease::RequestOutcome;
use super::steps::{CONCURRENT_PARTS, MAX_STEP_ATTEMPTS, MAX_STEP_FAILURES, StepError, Steps};
use super::steps::{is_refused, list_dataset_folder, remove_version};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Condition, is_transient};
use crate::sync::in_place::end_if_cancelled;

impl Steps<'_, '_> {
    /// Publishes the parts under their names. Uploads that were begun for another name come last and one
    /// by one, in order: each takes its name after the part that was begun for that name has left it.
    pub(super) async fn publish_parts(&self, parts: &[IntendedPart]) -> Result<(), StepError> {
        let key = self.lease.key;
        let all_inline = parts.iter().all(IntendedPart::is_inline);
        let (moved, direct): (Vec<_>, Vec<_>) = parts
            .iter()
            .partition(|part| part.moved_upload_target(key).is_some());
        for chunk in direct.chunks(CONCURRENT_PARTS) {
            let requests = chunk.iter().map(|part| async move {
                let target = self.path(&part.name);
                self.publish_part(part, &target, all_inline).await
            });
            // Requests beside one that fails are not dropped: they could land after a roll back.
            let results: Vec<_> = stream::iter(requests)
                .buffer_unordered(CONCURRENT_PARTS)
                .collect()
                .await;
            results.into_iter().collect::<Result<(), _>>()?;
            end_if_cancelled().await;
        }
        for part in moved {
            self.publish_moved_part(part).await?;
        }
        Ok(())
    }

    /// Publishes one part at `target`, unless it is there already.
    async fn publish_part(
        &self,
        part: &IntendedPart,
        target: &str,
        all_inline: bool,
    ) -> Result<(), StepError> {
        let name = target.rsplit('/').next().unwrap_or_default();
        let mut e_tag = self.folder.e_tag(name).map(str::to_owned);
        let (mut failures, begun_at) = (0, self.store.clock().monotonic());
        for _ in 0..MAX_STEP_ATTEMPTS {
            self.lease.check().await?;
            let request = self.send_part(part, target, e_tag.as_deref(), all_inline);
            let Err(error) = request.await? else {
                return Ok(());
            };
            if !is_retryable(&error) {
                return Err(error.into());
            }
            if part_matches(&self.store, target, &self.lease.id, part).await? {
                return Ok(());
            }
            let is_intact = part.staged.is_intact(&self.store, part.bytes).await?;
            if error.kind() == ErrorKind::NotFound && !is_intact {
                return Err(self.part_missing_error(part, error));
            }
            if is_transient(&error) && !is_intact {
                continue;
            }
            // A late request changed the target: under this lease its object is replaced like a listed one.
            let folder = list_dataset_folder(self.lease, &self.store).await?;
            let current_e_tag = folder.e_tag(name).map(str::to_owned);
            if is_transient(&error) && current_e_tag == e_tag {
                failures += 1;
                if !self.store.wait_before_resend(failures, begun_at).await {
                    return Err(error.into());
                }
            }
            e_tag = current_e_tag;
        }
        Err(self.concurrent_publish_error().into())
    }

    /// Publishes an upload that was begun for another name: completes it under that name, copies it to its own and
    /// deletes it. The copy names the version of its source, which is deleted before the lease ends, so that a late
    /// copy finds nothing.
    async fn publish_moved_part(&self, part: &IntendedPart) -> Result<(), StepError> {
        let Some(upload_target) = part.moved_upload_target(self.lease.key) else {
            return Ok(());
        };
        let (target, id) = (self.path(&part.name), &self.lease.id);
        if !part_matches(&self.store, &target, id, part).await? {
            self.publish_part(part, upload_target, false).await?;
            self.copy_part(part, upload_target, &target).await?;
        }
        if !part_matches(&self.store, upload_target, id, part).await? {
            return Ok(());
        }
        if !self.lease.is_lock() && !self.lease.conditions.delete {
            self.remove_bounded(&[upload_target.to_owned()]).await?;
            return Ok(());
        }
        self.lease.check().await?;
        let e_tag = self.store.head(upload_target).await?.e_tag;
        let condition = self.lease.unchanged_condition(e_tag.as_deref());
        Ok(remove_version(&self.store, upload_target, &condition).await?)
    }

    async fn copy_part(
        &self,
        part: &IntendedPart,
        from: &str,
        target: &str,
    ) -> Result<(), StepError> {
        let mut target_e_tag = self.folder.e_tag(&part.name).map(str::to_owned);
        let mut failures = 0;
        for _ in 0..MAX_STEP_ATTEMPTS {
            self.lease.check().await?;
            let source_e_tag = match self.store.head(from).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(self.part_missing_error(part, e));
                }
                result => result?.e_tag.unwrap_or_default(),
            };
            let condition = self.lease.unchanged_condition(target_e_tag.as_deref());
            let copy = self
                .store
                .copy_version(from, &source_e_tag, target, &condition);
            let error = match copy.await {
                Ok(()) => return Ok(()),
                Err(error) if is_retryable(&error) => error,
                Err(error) => return Err(error.into()),
            };
            if part_matches(&self.store, target, &self.lease.id, part).await? {
                return Ok(());
            }
            failures += 1;
            if failures == MAX_STEP_FAILURES {
                return Err(error.into());
            }
            let folder = list_dataset_folder(self.lease, &self.store).await?;
            target_e_tag = folder.e_tag(&part.name).map(str::to_owned);
        }
        Err(self.concurrent_publish_error().into())
    }

    fn part_missing_error(&self, part: &IntendedPart, cause: Error) -> StepError {
        let reason = format!(
            "part {:?} of the write is no longer staged; write the dataset again",
            part.name
        );
        StepError::PartMissing(incomplete_error(self.lease.key, &reason).with_source(cause))
    }

    /// Sends a part once; gives the error of that request. Fails if the lease cannot be confirmed.
    async fn send_part(
        &self,
        part: &IntendedPart,
        target: &str,
        e_tag: Option<&str>,
        all_inline: bool,
    ) -> Result<Result<()>> {
        let condition = if part.is_inline() || self.lease.conditions.complete {
            self.lease.unchanged_condition(e_tag)
        } else {
            // An upload id can be completed once.
            Condition::Always
        };
        // The condition of a PUT to a free name would hold again after a delete, and that of a PUT over an old part
        // after the old dataset was put back, which happens where staged parts are missing.
        if part.is_inline() && (condition == Condition::Absent || !all_inline) {
            let request = self.lease.send_bounded(|store| {
                let condition = condition.clone();
                async move { part.staged.publish_if(&store, target, &condition).await }
            });
            return match request.await {
                Ok(RequestOutcome::Done(_)) => Ok(Ok(())),
                Ok(RequestOutcome::Unknown(error)) => {
                    self.lease.drain().await?;
                    Ok(Err(error.with_kind(ErrorKind::Unavailable)))
                }
                // A transient error of the request itself is an unknown outcome: this is one of the lease.
                Err(error) if is_transient(&error) => Err(error),
                Err(error) => Ok(Err(error)),
            };
        }
        let request = part.staged.publish_if(&self.store, target, &condition);
        Ok(request.await.map(drop))
    }
}

/// Whether a part may be published in spite of this error: by another attempt, or because it is there already.
fn is_retryable(error: &Error) -> bool {
    is_transient(error) || is_refused(error) || error.kind() == ErrorKind::NotFound
}
