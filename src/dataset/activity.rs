//! The registry of this process's publishes, by the id of the write.
//!
//! It counts the calls that work on each intent: several may, since one call can fail to take over what another
//! carries out. A bounded request (`docs/publish.md`) may land after its call was cancelled, so the registry also
//! remembers when the last of them can no longer land. A call that meets an intent of this process asks
//! [`activity_status`] for both.
//!
//! The registry also remembers the manifest that each write replaced, which tells a repeated publish from a first one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use crate::clock::Clock;
use crate::sync::fork::{self, ForkSafeGuard};

/// Number of replaced manifests, and of ended intents, that are remembered.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug)]
struct Entry {
    calls: usize,
    /// When the last bounded request can no longer land, on `clock`.
    quiet_at: Duration,
    /// Stores may have clocks of their own.
    clock: Arc<dyn Clock>,
}

impl Entry {
    fn has_ended(&self) -> bool {
        self.calls == 0 && self.quiet_at <= self.clock.monotonic()
    }
}

#[derive(Debug, Default)]
struct Registry {
    entries: HashMap<String, Entry>,
    /// The ETag of the manifest that each write replaced, None where there was none; oldest write first.
    replaced_manifests: Vec<(String, Option<String>)>,
    /// Ids of intents that this process has worked on and no longer does, oldest first.
    ended: VecDeque<String>,
}

impl Registry {
    /// Removes the entry of an intent that no call works on any more; its id is remembered.
    fn end(&mut self, id: &str) {
        if self.entries.remove(id).is_none() || self.ended.iter().any(|ended_id| ended_id == id) {
            return;
        }
        if self.ended.len() == MAX_REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(id.to_owned());
    }
}

fn registry() -> ForkSafeGuard<'static, Registry> {
    static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    fork::lock(&REGISTRY)
}

/// A call that works on an intent, until this is dropped.
#[derive(Debug)]
pub(super) struct Activity {
    id: String,
    clock: Arc<dyn Clock>,
}

impl Activity {
    /// Counts a call that works on the intent `id`.
    pub(super) fn begin(id: &str, clock: &Arc<dyn Clock>) -> Self {
        let mut registry = registry();
        let ended_entries = registry
            .entries
            .iter()
            .filter(|(_, entry)| entry.has_ended());
        let ended_ids: Vec<String> = ended_entries.map(|(id, _)| id.clone()).collect();
        for id in ended_ids {
            registry.end(&id);
        }
        let entry = registry
            .entries
            .entry(id.to_owned())
            .or_insert_with(|| Entry {
                calls: 0,
                quiet_at: Duration::ZERO,
                clock: Arc::clone(clock),
            });
        entry.calls += 1;
        Self {
            id: id.to_owned(),
            clock: Arc::clone(clock),
        }
    }

    /// Records the begin of a bounded request, which can land until `window` after it is given up.
    pub(super) fn begin_request(&self, window: Duration) -> OpenRequest<'_> {
        OpenRequest {
            activity: self,
            window,
            answered: false,
        }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let mut registry = registry();
        if let Some(entry) = registry.entries.get_mut(&self.id) {
            entry.calls -= 1;
            if entry.has_ended() {
                registry.end(&self.id);
            }
        }
    }
}

/// A bounded request under way. Dropped without [`OpenRequest::close`], it may still land for its window.
#[derive(Debug)]
pub(super) struct OpenRequest<'a> {
    activity: &'a Activity,
    window: Duration,
    answered: bool,
}

impl OpenRequest<'_> {
    /// Ends a request that was answered in time, or never sent: it cannot land any more.
    pub(super) fn close(mut self) {
        self.answered = true;
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let quiet_at = self.activity.clock.monotonic() + self.window;
        if let Some(entry) = registry().entries.get_mut(&self.activity.id) {
            entry.quiet_at = entry.quiet_at.max(quiet_at);
        }
    }
}

/// Whether this process works on an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ActivityStatus {
    /// A call works on it.
    Active,
    /// No call works on it any more; a bounded request of one may land for this long.
    QuietIn(Duration),
    /// The registry has no record of it: a copy of a process has the identity of the original, and not its intents.
    Unknown,
}

/// Whether this process works on the intent `id` at `now`.
pub(super) fn activity_status(id: &str, now: Duration) -> ActivityStatus {
    let registry = registry();
    match registry.entries.get(id) {
        Some(entry) if entry.calls > 0 => ActivityStatus::Active,
        Some(entry) => ActivityStatus::QuietIn(entry.quiet_at.saturating_sub(now)),
        None if registry.ended.iter().any(|ended_id| ended_id == id) => {
            ActivityStatus::QuietIn(Duration::ZERO)
        }
        None => ActivityStatus::Unknown,
    }
}

/// Remembers the ETag of the manifest that the write `id` replaces; later calls for the same write change nothing.
pub(super) fn record_replaced_manifest(id: &str, manifest: Option<&str>) {
    let mut registry = registry();
    if registry
        .replaced_manifests
        .iter()
        .any(|(write_id, _)| write_id == id)
    {
        return;
    }
    if registry.replaced_manifests.len() == MAX_REMEMBERED {
        registry.replaced_manifests.remove(0);
    }
    let manifest = manifest.map(str::to_owned);
    registry.replaced_manifests.push((id.to_owned(), manifest));
}

/// What a write has replaced, as far as this process remembers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplacedManifest {
    /// Nothing yet.
    NotYet,
    /// A folder without a manifest.
    Absent,
    /// The manifest with this ETag.
    Version(String),
}

impl ReplacedManifest {
    /// Whether the folder's manifest, which is not the write's own, is another one than the write replaced: then
    /// something was published or deleted since.
    pub(super) fn is_outdated(&self, current: Option<&str>) -> bool {
        match self {
            Self::NotYet => false,
            Self::Absent => current.is_some(),
            Self::Version(manifest) => current != Some(manifest),
        }
    }
}

/// What the write `id` has replaced in this process.
pub(super) fn replaced_manifest(id: &str) -> ReplacedManifest {
    let registry = registry();
    let mut replacements = registry.replaced_manifests.iter();
    match replacements.find(|(write_id, _)| write_id == id) {
        None => ReplacedManifest::NotYet,
        Some((_, None)) => ReplacedManifest::Absent,
        Some((_, Some(manifest))) => ReplacedManifest::Version(manifest.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn a_second_call_that_ends_does_not_end_the_first() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let now = clock.monotonic();
        let first = Activity::begin("twice", &clock);
        drop(Activity::begin("twice", &clock));
        assert_eq!(activity_status("twice", now), ActivityStatus::Active);
        drop(first);
        assert_eq!(
            activity_status("twice", now),
            ActivityStatus::QuietIn(Duration::ZERO)
        );
    }

    #[test]
    fn what_a_copy_of_this_process_does_is_not_known() {
        let now = SystemClock.monotonic();
        assert_eq!(activity_status("another's", now), ActivityStatus::Unknown);
    }

    #[test]
    fn a_request_that_was_given_up_may_land_for_a_while() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let call = Activity::begin("given up", &clock);
        drop(call.begin_request(Duration::from_hours(1)));
        drop(call);
        let remaining = match activity_status("given up", clock.monotonic()) {
            ActivityStatus::QuietIn(remaining) => remaining,
            other => panic!("{other:?}"),
        };
        assert!(remaining > Duration::from_mins(59));
        let call = Activity::begin("answered", &clock);
        call.begin_request(Duration::from_hours(1)).close();
        drop(call);
        assert_eq!(
            activity_status("answered", clock.monotonic()),
            ActivityStatus::QuietIn(Duration::ZERO)
        );
    }
}
