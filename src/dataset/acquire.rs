//! Acquiring the lease on a dataset's folder.
//!
//! A [`LeaseWaiter`] creates its claim where there is no intent, waits while the intent of another call is carried
//! out, and takes over an abandoned one. [`ErrorKind::Locked`] where one intent blocks it for
//! [`LeaseTiming::acquire_timeout`].
//!
//! An intent is taken over when requests of its former owner can no longer land: after a whole lease without a change;
//! after half of one if the owner's process is proven dead; where the owner is this process, as soon as no call works
//! on the intent and its last bounded request can no longer land; at once where the kernel grants its lock. An intent
//! that cannot be parsed is replaced by an overwrite or a delete only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::INTENT;
use super::activity::{Activity, ActivityStatus, activity_status};
use super::intent::{Intent, IntentOperation};
use super::lease::{LeaseTiming, PublishLease};
use super::register::{IntentPutResult, IntentWriter, StoredIntent, read_intent};
use crate::error::{Error, ErrorKind, Result};
use crate::store::process_id::ProcessId;
use crate::store::{Condition, LockCell, Store, defer_name_syncs, path};

const INITIAL_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_millis(200);

/// Whether the store may hold an intent of the claim's write, from the claim's first send on. A call that fails
/// removes its staged parts only where no intent names them.
#[derive(Debug, Default)]
pub(super) struct ClaimStatus {
    /// A send of the claim may still land.
    may_land: AtomicBool,
    /// An intent of the same write was met: of an earlier publish, or of another process.
    was_observed: AtomicBool,
}

impl ClaimStatus {
    /// Whether an intent of the write that this call does not hold may exist, now or later.
    pub(super) fn may_exist(&self) -> bool {
        self.may_land.load(Ordering::SeqCst) || self.was_observed.load(Ordering::SeqCst)
    }

    fn set_may_land(&self, may_land: bool) {
        self.may_land.store(may_land, Ordering::SeqCst);
    }

    /// Records that `intent` exists, if it is of the claim's write.
    fn observe(&self, claim: Option<&Intent>, intent: &Intent) {
        if claim.is_some_and(|claim| claim.id == intent.id) {
            self.was_observed.store(true, Ordering::SeqCst);
        }
    }
}

/// What [`LeaseWaiter::acquire_lease`] ends with.
#[derive(Debug)]
pub(super) enum LeaseState<'a> {
    /// The lease on the caller's claim.
    Acquired(PublishLease<'a>),
    /// The lease on an abandoned intent, which the caller has to recover first.
    Abandoned(PublishLease<'a>),
    /// There is no intent, and no claim was passed.
    Vacant,
}

/// One call's wait for the lease on a folder.
#[derive(Debug)]
pub(super) struct LeaseWaiter<'a> {
    store: &'a Store,
    key: &'a str,
    timing: LeaseTiming,
    /// The intent's bytes that were read last, and when they were read first.
    last_observed: Option<(Bytes, Duration)>,
    /// The id of the intent that blocks this call, and since when.
    waiting_for: Option<(String, Duration)>,
    backoff: Duration,
    claim_status: &'a ClaimStatus,
}

impl<'a> LeaseWaiter<'a> {
    pub(super) fn new(store: &'a Store, key: &'a str, claim_status: &'a ClaimStatus) -> Self {
        Self {
            store,
            key,
            timing: LeaseTiming::for_store(store),
            last_observed: None,
            waiting_for: None,
            backoff: INITIAL_BACKOFF,
            claim_status,
        }
    }

    /// Creates `claim` where there is no intent, or takes over an abandoned intent; without a claim it does the latter
    /// only. Waits while another call carries an intent out.
    pub(super) async fn acquire_lease(&mut self, claim: Option<&Intent>) -> Result<LeaseState<'a>> {
        if self.store.local().is_some() {
            return self.acquire_by_lock(claim).await;
        }
        loop {
            let stored = match claim {
                Some(claim) => match self.put_claim(claim).await? {
                    Ok(lease) => return Ok(LeaseState::Acquired(lease)),
                    Err(stored) => stored,
                },
                None => match read_intent(self.store, self.key).await? {
                    Some(stored) => stored,
                    None => return Ok(LeaseState::Vacant),
                },
            };
            match Intent::parse(self.key, &stored.bytes) {
                Ok(intent) => {
                    self.claim_status.observe(claim, &intent);
                    if self.is_abandoned(&stored.bytes, &intent)
                        && let Some(lease) = self.take_over(&stored, intent).await?
                    {
                        return Ok(LeaseState::Abandoned(lease));
                    }
                }
                Err(error) => {
                    if let Some(lease) = self.replace_unreadable(&stored, claim, error).await? {
                        return Ok(LeaseState::Acquired(lease));
                    }
                }
            }
            self.back_off(&stored.bytes).await?;
        }
    }

    /// Waits while another call carries an intent out, in a store that can only look at it. False: it is abandoned.
    pub(super) async fn wait_until_settled(&mut self) -> Result<bool> {
        while let Some(stored) = read_intent(self.store, self.key).await? {
            let is_abandoned = match Intent::parse(self.key, &stored.bytes) {
                Ok(intent) => self.is_abandoned(&stored.bytes, &intent),
                Err(_) => self.unchanged_for(&stored.bytes) >= self.timing.expiry(),
            };
            if is_abandoned {
                return Ok(false);
            }
            self.back_off(&stored.bytes).await?;
        }
        Ok(true)
    }

    /// Creates the claim where there is no intent, or gives the intent that is stored.
    async fn put_claim(&self, claim: &Intent) -> Result<Result<PublishLease<'a>, StoredIntent>> {
        let conditions = self.store.condition_support(self.key).await?;
        // Registered before the claim is visible: no call of this process may take it for abandoned.
        let activity = Activity::begin(&claim.id, self.store.clock());
        let mut writer = IntentWriter::new(self.store, self.key, claim);
        self.claim_status.set_may_land(true);
        loop {
            let answer = writer.send(&Condition::Absent).await;
            if answer.is_err() {
                self.claim_status.set_may_land(writer.may_land());
            }
            match answer? {
                IntentPutResult::Written(version) => {
                    self.claim_status.set_may_land(false);
                    let location = (self.store, self.key);
                    let mut lease = PublishLease::from_version(
                        location,
                        claim.clone(),
                        version,
                        conditions,
                        activity,
                    );
                    lease.was_resent = writer.was_resent();
                    return Ok(Ok(lease));
                }
                IntentPutResult::Other(stored) => {
                    self.claim_status.set_may_land(writer.may_land());
                    return Ok(Err(stored));
                }
                IntentPutResult::Missing => writer.wait_before_resend().await?,
            }
        }
    }

    /// Whether nobody carries the intent out any more, and no request of its owner can land.
    fn is_abandoned(&mut self, bytes: &Bytes, intent: &Intent) -> bool {
        let unchanged = self.unchanged_for(bytes);
        let now = self.store.clock().monotonic();
        let wait = if intent.owner.is_current() {
            match activity_status(&intent.id, now) {
                ActivityStatus::QuietIn(remaining) if remaining.is_zero() => return true,
                ActivityStatus::QuietIn(_) => self.timing.window(),
                ActivityStatus::Active | ActivityStatus::Unknown => self.timing.expiry(),
            }
        } else if intent.owner.is_dead() {
            self.timing.window()
        } else {
            self.timing.expiry()
        };
        unchanged >= wait
    }

    /// How long the intent has had these bytes, as far as this call has seen.
    fn unchanged_for(&mut self, bytes: &Bytes) -> Duration {
        let now = self.store.clock().monotonic();
        let since = match &self.last_observed {
            Some((last_bytes, since)) if last_bytes == bytes => *since,
            _ => now,
        };
        self.last_observed = Some((bytes.clone(), since));
        now.saturating_sub(since)
    }

    async fn take_over(
        &self,
        stored: &StoredIntent,
        abandoned: Intent,
    ) -> Result<Option<PublishLease<'a>>> {
        log::info!(
            "taking over the publish to {:?} that {:?} abandoned",
            self.key,
            abandoned.owner
        );
        let mut intent = abandoned;
        intent.owner = ProcessId::current();
        self.overwrite_intent(stored, intent).await
    }

    async fn overwrite_intent(
        &self,
        stored: &StoredIntent,
        intent: Intent,
    ) -> Result<Option<PublishLease<'a>>> {
        let conditions = self.store.condition_support(self.key).await?;
        let activity = Activity::begin(&intent.id, self.store.clock());
        let now = self.store.clock().monotonic();
        let version = (stored.e_tag.clone(), now);
        let location = (self.store, self.key);
        let lease = PublishLease::from_version(location, intent, version, conditions, activity);
        match lease.rewrite(|_| ()).await {
            Ok(()) => Ok(Some(lease)),
            Err(e) if e.kind() == ErrorKind::Fenced => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Replaces an intent that cannot be parsed by a claim that writes the dataset anew or deletes it; other calls
    /// fail with `error`. The owner may be alive, with another version of pds or with the store opened at another
    /// folder, so the bytes must not have changed for a whole lease before either. None: it is too early, or another
    /// call was first.
    async fn replace_unreadable(
        &mut self,
        stored: &StoredIntent,
        claim: Option<&Intent>,
        error: Error,
    ) -> Result<Option<PublishLease<'a>>> {
        if self.unchanged_for(&stored.bytes) < self.timing.expiry() {
            return Ok(None);
        }
        let Some(claim) = claim.filter(|claim| may_replace(claim, &error)) else {
            return Err(error);
        };
        log::warn!("replacing an unusable intent: {error}");
        self.overwrite_intent(stored, claim.clone()).await
    }

    /// Sleeps before the next attempt; [`ErrorKind::Locked`] when one publish has blocked this call for too long.
    async fn back_off(&mut self, bytes: &Bytes) -> Result<()> {
        let id = Intent::parse(self.key, bytes).map_or_else(|_| String::new(), |intent| intent.id);
        self.wait_for(id, "another process").await
    }

    async fn wait_for(&mut self, id: String, owner: &str) -> Result<()> {
        let now = self.store.clock().monotonic();
        let since = match &self.waiting_for {
            Some((waiting_for, since)) if *waiting_for == id => *since,
            _ => now,
        };
        self.waiting_for = Some((id, since));
        if now.saturating_sub(since) > self.timing.acquire_timeout() {
            let message = format!(
                "timed out waiting for {owner}, which is publishing to {:?}",
                self.key
            );
            return Err(Error::new(ErrorKind::Locked, message).with_path(self.key));
        }
        self.store.clock().sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        Ok(())
    }

    async fn acquire_by_lock(&mut self, claim: Option<&Intent>) -> Result<LeaseState<'a>> {
        let path = path::join(self.key, INTENT);
        let key = self.store.key(&path)?;
        let local = self
            .store
            .local()
            .ok_or_else(|| Error::other("internal error: not a local store"))?;
        loop {
            if claim.is_none() && read_intent(self.store, self.key).await?.is_none() {
                return Ok(LeaseState::Vacant);
            }
            let attempt = local.open_locked(&key, claim.is_some()).await;
            let locked_file = match attempt.map_err(|e| self.store.map_error(e, &path)) {
                // The intent was removed after it was read.
                Err(e) if e.kind() == ErrorKind::NotFound && claim.is_none() => continue,
                result => result?,
            };
            let Some((lock, bytes)) = locked_file else {
                let (id, owner) = self.lock_holder().await;
                self.wait_for(id, &owner).await?;
                continue;
            };
            let location = (self.store, self.key);
            let (intent, is_ours) = match (self.parse_locked(&bytes, claim)?, claim) {
                (Some(stored_intent), _) => (stored_intent, false),
                (None, Some(claim)) => (claim.clone(), true),
                // The owner created the file and died before it wrote the intent: nothing was begun.
                (None, None) => {
                    let cell = Arc::new(LockCell::new(lock));
                    let removed = local.remove_locked(cell, &key).await;
                    removed.map_err(|e| self.store.map_error(e, &path))?;
                    return Ok(LeaseState::Vacant);
                }
            };
            let activity = Activity::begin(&intent.id, self.store.clock());
            let lease = PublishLease::from_lock(location, intent, lock, activity);
            let owner = ProcessId::current();
            self.claim_status.set_may_land(is_ours);
            let rewrite = lease.rewrite(|intent| intent.owner = owner);
            // Nothing relies on a claim in a new file before another name in the folder is synced, and it with that.
            let rewritten = if is_ours && bytes.is_empty() {
                defer_name_syncs(rewrite).await
            } else {
                rewrite.await
            };
            // The claim in a new file that is removed again was never there: its staged parts may go.
            if rewritten.is_ok() || bytes.is_empty() && lease.try_release().await.is_ok() {
                self.claim_status.set_may_land(false);
            }
            rewritten?;
            return Ok(if is_ours {
                LeaseState::Acquired(lease)
            } else {
                LeaseState::Abandoned(lease)
            });
        }
    }

    /// The intent in a locked file; None for an empty file, or an intent that cannot be parsed and that `claim` may replace.
    fn parse_locked(&self, bytes: &Bytes, claim: Option<&Intent>) -> Result<Option<Intent>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        match Intent::parse(self.key, bytes) {
            Ok(stored_intent) => {
                self.claim_status.observe(claim, &stored_intent);
                Ok(Some(stored_intent))
            }
            Err(error) if claim.is_some_and(|claim| may_replace(claim, &error)) => {
                log::warn!("replacing an unusable intent: {error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The id of the intent whose lock is held, and its owner for a message.
    async fn lock_holder(&self) -> (String, String) {
        let stored = read_intent(self.store, self.key).await.ok().flatten();
        let intent = stored.and_then(|stored| Intent::parse(self.key, &stored.bytes).ok());
        intent.map_or_else(
            || (String::new(), "another process".to_owned()),
            |intent| (intent.id, format!("process {}", intent.owner.pid)),
        )
    }
}

/// Whether a claim may replace an intent that cannot be parsed: a delete always, an overwrite unless a newer version of
/// pds wrote the intent.
fn may_replace(claim: &Intent, error: &Error) -> bool {
    match &claim.operation {
        IntentOperation::Delete => true,
        IntentOperation::Write { overwrite, .. } => {
            *overwrite && error.kind() == ErrorKind::DatasetIncomplete
        }
        IntentOperation::Heal => false,
    }
}

/// Waits, after the lease was lost, until the folder has no intent of the lease's write.
pub(super) async fn wait_until_intent_removed(lease: &PublishLease<'_>) -> Result<()> {
    let clock = lease.store.clock();
    let started_at = clock.monotonic();
    while clock.monotonic().saturating_sub(started_at) < lease.timing.acquire_timeout() {
        match read_intent(lease.store, lease.key).await? {
            Some(stored)
                if Intent::parse(lease.key, &stored.bytes).is_ok_and(|i| i.id == lease.id) =>
            {
                clock.sleep(lease.timing.heartbeat_interval() / 10).await;
            }
            _ => return Ok(()),
        }
    }
    let message = format!(
        "timed out waiting for the process that took over the publish to {:?}",
        lease.key
    );
    Err(Error::new(ErrorKind::Locked, message).with_path(lease.key))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path as FsPath;
    use std::sync::Mutex;

    use super::super::intent::Phase;
    use super::*;
    use crate::clock::SystemClock;
    use crate::store::local::{DiskChange, DiskJournal, LocalStore};
    use crate::store::metrics::Metrics;
    use crate::store::{Capabilities, is_transient};

    /// ENOSPC.
    const NO_SPACE: i32 = 28;

    /// A disk that is full once: at the sync after so many others.
    #[derive(Debug, Default)]
    struct FullOnce(Mutex<Option<usize>>);

    impl FullOnce {
        fn set_room(&self, syncs: usize) {
            *self.0.lock().unwrap() = Some(syncs);
        }
    }

    impl DiskJournal for FullOnce {
        fn record(&self, _change: DiskChange) {}

        fn before_sync(&self, _path: &FsPath) -> std::io::Result<()> {
            let mut room = self.0.lock().unwrap();
            let is_full = *room == Some(0);
            *room = room.and_then(|syncs| syncs.checked_sub(1));
            if is_full {
                return Err(std::io::Error::from_raw_os_error(NO_SPACE));
            }
            Ok(())
        }
    }

    /// A store of local files on the disk, with the folder of the dataset.
    fn store_on(disk: &Arc<FullOnce>, root: &FsPath) -> Store {
        fs::create_dir(root.join("k")).unwrap();
        let clock = Arc::new(SystemClock);
        let local = LocalStore::new(root, Arc::clone(&clock) as _)
            .with_journal(Arc::clone(disk) as Arc<dyn DiskJournal>);
        let (objects, metrics) = (Arc::new(local.clone()), Arc::new(Metrics::default()));
        Store::from_object_store("file", objects, Capabilities::FULL, metrics, clock)
            .with_local(local)
    }

    fn claim_of(store: &Store) -> Intent {
        Intent::claim(store.clock().new_id(), IntentOperation::Delete)
    }

    #[tokio::test]
    async fn a_lease_holds_after_a_rewrite_that_failed() {
        // A rewrite syncs the new file and then the name of it.
        for syncs in 0..2 {
            let (disk, folder) = (Arc::default(), tempfile::tempdir().unwrap());
            let store = store_on(&disk, folder.path());
            let (claim, claim_status) = (claim_of(&store), ClaimStatus::default());
            let mut waiter = LeaseWaiter::new(&store, "k", &claim_status);
            let state = waiter.acquire_lease(Some(&claim)).await.unwrap();
            let LeaseState::Acquired(lease) = state else {
                panic!("the folder is empty");
            };
            let (local, key) = (
                store.local().unwrap(),
                store.key("k/_publish.json").unwrap(),
            );
            disk.set_room(syncs);
            let activate = |intent: &mut Intent| intent.phase = Phase::Active;
            let error = lease.rewrite(activate).await.unwrap_err();
            assert!(is_transient(&error), "{error}");
            assert_eq!(lease.intent().await.phase, Phase::Claim);
            // Another writer waits, and this one goes on.
            assert!(local.lock_file(&key, false).unwrap().is_none());
            lease.check().await.unwrap();
            lease.rewrite(activate).await.unwrap();
            assert!(local.lock_file(&key, false).unwrap().is_none());
            let path = folder.path().join("k/_publish.json");
            let stored = Intent::parse("k", &fs::read(&path).unwrap()).unwrap();
            assert_eq!(stored.phase, Phase::Active);
            lease.release().await;
            assert!(!path.exists());
            assert_eq!(lease.check().await.unwrap_err().kind(), ErrorKind::Fenced);
        }
    }

    #[tokio::test]
    async fn a_claim_that_failed_leaves_no_intent() {
        let (disk, folder) = (Arc::default(), tempfile::tempdir().unwrap());
        let store = store_on(&disk, folder.path());
        let (claim, claim_status) = (claim_of(&store), ClaimStatus::default());
        let mut waiter = LeaseWaiter::new(&store, "k", &claim_status);
        // The name of a new claim is not synced by itself.
        disk.set_room(0);
        let error = waiter.acquire_lease(Some(&claim)).await.unwrap_err();
        assert!(is_transient(&error), "{error}");
        assert!(!claim_status.may_exist());
        assert_eq!(fs::read_dir(folder.path().join("k")).unwrap().count(), 0);
    }
}
