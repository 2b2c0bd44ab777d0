//! What this process is publishing, by the identity of the write.
//!
//! Whether an intent of this process is worked on is known exactly: a count of the calls that do, since
//! one may fail to take over what another carries out. A request that names nothing that never recurs
//! (see `docs/design`) may still be under way after its call was cancelled, so the process also
//! remembers when the last of these can no longer land.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;

/// Writes that are remembered: what each replaced, so that a repeated publish is told from a first, and that they
/// were this process's.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug)]
struct Entry {
    calls: usize,
    quiet_at: Duration,
    /// That of `quiet_at`: stores may have clocks of their own.
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
    /// The manifest's version that each write replaced, oldest write first.
    replaced_manifests: Vec<(String, Option<String>)>,
    /// Intents that this process has worked on, and does no more.
    ended: VecDeque<String>,
}

impl Registry {
    /// Forgets an intent that nobody works on any more, but for its name.
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

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that works on a write's intent, until dropped.
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

    /// A request begins that can land for `window` after it was given up.
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

/// A request under way.
#[derive(Debug)]
pub(super) struct OpenRequest<'a> {
    activity: &'a Activity,
    window: Duration,
    answered: bool,
}

impl OpenRequest<'_> {
    /// It was answered in time, or never sent: it is not under way any more.
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

/// What this process has to do with an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ActivityStatus {
    /// A call works on it.
    Active,
    /// None does, and a request of one may land for so long from now on.
    QuietIn(Duration),
    /// Nothing is known of it: a process that was copied has the same name, and not the same intents.
    Unknown,
}

/// What this process does at `now` in the name of the intent `id`.
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

/// Remembers which manifest a write replaces.
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

/// What is remembered of a write: whether it has come so far as to replace something, and what.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplacedManifest {
    /// Nothing yet.
    NotYet,
    /// A folder without a manifest.
    Absent,
    /// This version of the manifest.
    Version(String),
}

impl ReplacedManifest {
    /// Whether the manifest that is there now, if any, came after what the write replaced.
    pub(super) fn is_outdated(&self, current: Option<&str>) -> bool {
        match self {
            Self::NotYet => false,
            Self::Absent => current.is_some(),
            Self::Version(manifest) => current != Some(manifest),
        }
    }
}

/// What a write has replaced in this process.
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
