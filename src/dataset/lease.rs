//! The lease on a dataset's folder: the right to carry out its intent.
//!
//! On object stores the owner of a [`PublishLease`] renews it by rewriting the intent, conditionally, every sixth of
//! the lease. A loop of its own does so ([`PublishLease::run_with_heartbeat`]): a slow request does not look like a
//! dead owner. Two kinds of requests are sent under the lease. *Fenced* requests name a version that never recurs;
//! before them [`PublishLease::check`] makes sure that the lease was confirmed within the last half lease. *Bounded*
//! requests ([`PublishLease::send_bounded`]) name no such version (the deletion of a marker, an empty object, looks
//! like any other): each is sent once, soon after a confirmation, with a deadline at which its connection is closed,
//! and after an unknown answer nothing else is sent until it can no longer land.
//!
//! On local files the lease is a lock of the kernel on `_publish.json`: no request is late there, and a lock that is
//! granted proves that its former holder ended.
//!
//! A lost lease is [`ErrorKind::Fenced`] at the next request that needs it.
//!
//! The protocol assumes that a request does not land later than half a lease after its connection was closed or its
//! process died, and that clocks differ in rate by less than 1 %.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::INTENT;
use super::activity::Activity;
use super::intent::Intent;
use super::register::{MAX_SENDS, RESEND_DELAY, read_intent, replace_intent};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{
    Condition, ConditionSupport, FileLock, LockCell, SendLimit, Store, is_transient, path,
};

/// The durations that follow from a store's lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTiming {
    lease_duration: Duration,
}

impl LeaseTiming {
    pub(super) fn for_store(store: &Store) -> Self {
        Self {
            lease_duration: store.publish_lease(),
        }
    }

    /// Time between two renewals, and the greatest age of a confirmation before a bounded request.
    pub(super) fn heartbeat_interval(self) -> Duration {
        self.lease_duration / 6
    }

    /// How long after the confirmation a bounded request may be under way, and how long after it was given up it may
    /// land.
    pub(super) fn window(self) -> Duration {
        self.lease_duration / 2
    }

    /// How long an intent must not change before others take it over.
    pub(super) fn expiry(self) -> Duration {
        self.lease_duration + self.lease_duration / 100
    }

    /// How long a call waits for one publish of others: 20 leases, and a minute at least.
    pub(super) fn acquire_timeout(self) -> Duration {
        (self.lease_duration * 20).max(Duration::from_mins(1))
    }
}

/// The outcome of a bounded request.
#[derive(Debug)]
pub(super) enum RequestOutcome<T> {
    /// It was answered within its window.
    Done(T),
    /// It may have landed, or may land until the window has passed.
    Unknown(Error),
}

/// What makes the intent this lease's.
#[derive(Debug)]
enum Ownership {
    /// The version that was written last, and when it was sent.
    Version {
        e_tag: String,
        confirmed_at: Duration,
    },
    /// A lock of the kernel.
    Lock(Arc<LockCell>),
    /// Nothing: another process took over, or the intent was removed.
    Lost,
}

#[derive(Debug)]
struct LeaseInner {
    intent: Intent,
    ownership: Ownership,
    last_failure: Option<RenewalFailure>,
}

/// How the last renewal ended that did not learn its outcome, and when.
#[derive(Debug)]
struct RenewalFailure {
    kind: ErrorKind,
    message: String,
    at: Duration,
}

/// The right to carry out an intent.
#[derive(Debug)]
pub(super) struct PublishLease<'a> {
    pub(super) store: &'a Store,
    pub(super) key: &'a str,
    /// The id of the write, in hexadecimal.
    pub(super) id: String,
    /// Which conditions the store checks; all of them on local files, where the lock takes their place.
    pub(super) conditions: ConditionSupport,
    pub(super) timing: LeaseTiming,
    /// Whether the claim was sent more than once: another process may have carried out an earlier send.
    pub(super) was_resent: bool,
    state: Mutex<LeaseInner>,
    activity: Activity,
}

impl<'a> PublishLease<'a> {
    /// A lease by a version of the intent that this process has written, or is about to replace.
    pub(super) fn from_version(
        (store, key): (&'a Store, &'a str),
        intent: Intent,
        (e_tag, confirmed_at): (String, Duration),
        conditions: ConditionSupport,
        activity: Activity,
    ) -> Self {
        let ownership = Ownership::Version {
            e_tag,
            confirmed_at,
        };
        Self::new((store, key), intent, ownership, conditions, activity)
    }

    /// A lease by a lock of the kernel.
    pub(super) fn from_lock(
        (store, key): (&'a Store, &'a str),
        intent: Intent,
        lock: FileLock,
        activity: Activity,
    ) -> Self {
        let ownership = Ownership::Lock(Arc::new(LockCell::new(lock)));
        Self::new(
            (store, key),
            intent,
            ownership,
            ConditionSupport::ALL,
            activity,
        )
    }

    fn new(
        (store, key): (&'a Store, &'a str),
        intent: Intent,
        ownership: Ownership,
        conditions: ConditionSupport,
        activity: Activity,
    ) -> Self {
        Self {
            store,
            key,
            id: intent.id.clone(),
            conditions,
            timing: LeaseTiming::for_store(store),
            was_resent: false,
            state: Mutex::new(LeaseInner {
                intent,
                ownership,
                last_failure: None,
            }),
            activity,
        }
    }

    /// Whether a lock takes the place of conditions, as on local files.
    pub(super) fn is_lock(&self) -> bool {
        self.store.local().is_some()
    }

    /// The condition that an object is still the version `e_tag`, or still absent; [`Condition::Always`] under a lock.
    pub(super) fn unchanged_condition(&self, e_tag: Option<&str>) -> Condition {
        match e_tag {
            _ if self.is_lock() => Condition::Always,
            Some(e_tag) => Condition::Matches(e_tag.to_owned()),
            None => Condition::Absent,
        }
    }

    /// The intent as it was written last.
    pub(super) async fn intent(&self) -> Intent {
        self.state.lock().await.intent.clone()
    }

    /// Whether the listed version of the intent is this lease's.
    pub(super) async fn is_own_version(&self, e_tag: Option<&str>) -> bool {
        match &self.state.lock().await.ownership {
            Ownership::Version { e_tag: ours, .. } => {
                e_tag.map(|tag| tag.trim_matches('"')) == Some(ours.trim_matches('"'))
            }
            Ownership::Lock(_) => true,
            Ownership::Lost => false,
        }
    }

    /// The store, whose work on local files keeps the lock until it has ended, even if its call is cancelled.
    pub(super) async fn locked_store(&self) -> Store {
        match &self.state.lock().await.ownership {
            Ownership::Lock(lock) => self.store.with_lock(lock),
            _ => self.store.clone(),
        }
    }

    /// Applies `change` to the intent and rewrites it, which renews the lease. [`ErrorKind::Fenced`] if it is lost.
    ///
    /// A renewal that fails has tried for long. Those who waited for it fail with it: if each tried anew, one after the
    /// other, an operation on many parts would end long after the store did.
    pub(super) async fn rewrite(&self, change: impl FnOnce(&mut Intent)) -> Result<()> {
        let asked_at = self.store.clock().monotonic();
        let mut state = self.state.lock().await;
        if let Some(failure) = state.last_failure.as_ref().filter(|f| f.at > asked_at) {
            let error = Error::new(failure.kind, failure.message.clone());
            return Err(error.with_path(self.key));
        }
        let mut next = state.intent.clone();
        change(&mut next);
        let ownership = std::mem::replace(&mut state.ownership, Ownership::Lost);
        match ownership {
            Ownership::Lost => return Err(self.lease_lost_error()),
            Ownership::Lock(lock) => {
                // Neither a failure nor a cancelled call gives the lock up.
                state.ownership = Ownership::Lock(Arc::clone(&lock));
                self.rewrite_locked(&lock, &next).await?;
            }
            Ownership::Version {
                e_tag,
                confirmed_at,
            } => {
                // Restored before the request, which may be cancelled.
                state.ownership = Ownership::Version {
                    e_tag: e_tag.clone(),
                    confirmed_at,
                };
                let result = replace_intent(self.store, self.key, &e_tag, &next).await;
                state.last_failure = result.as_ref().err().map(|e| RenewalFailure {
                    kind: e.kind(),
                    message: e.to_string(),
                    at: self.store.clock().monotonic(),
                });
                let Some((e_tag, confirmed_at)) = result? else {
                    state.ownership = Ownership::Lost;
                    return Err(self.lease_lost_error());
                };
                state.ownership = Ownership::Version {
                    e_tag,
                    confirmed_at,
                };
            }
        }
        state.intent = next;
        Ok(())
    }

    async fn rewrite_locked(&self, cell: &Arc<LockCell>, next: &Intent) -> Result<()> {
        let path = path::join(self.key, INTENT);
        let key = self.store.key(&path)?;
        let Some(local) = self.store.local() else {
            return Err(self.lease_lost_error());
        };
        let (_, bytes) = next.to_bytes(self.store.clock().new_id());
        let rewritten = local.rewrite_locked(cell, &key, bytes).await;
        if rewritten.map_err(|e| self.store.map_error(e, &path))? {
            Ok(())
        } else {
            Err(self.lease_lost_error())
        }
    }

    /// Replaces the intent, which cannot be carried out, by `claim`; gives the lease on that.
    pub(super) async fn replace(self, claim: &Intent) -> Result<Self> {
        let ownership = self.state.into_inner().ownership;
        let activity = Activity::begin(&claim.id, self.store.clock());
        let location = (self.store, self.key);
        let lease = Self::new(
            location,
            claim.clone(),
            ownership,
            self.conditions,
            activity,
        );
        lease.rewrite(|_| ()).await?;
        Ok(lease)
    }

    /// Renews the lease unless it was confirmed less than `max_age` ago; gives the time of the last confirmation.
    pub(super) async fn renew_if_older(&self, max_age: Duration) -> Result<Duration> {
        loop {
            let now = self.store.clock().monotonic();
            match &self.state.lock().await.ownership {
                Ownership::Lost => return Err(self.lease_lost_error()),
                Ownership::Lock(_) => return Ok(now),
                Ownership::Version { confirmed_at, .. } => {
                    if now.saturating_sub(*confirmed_at) < max_age {
                        return Ok(*confirmed_at);
                    }
                }
            }
            self.rewrite(|_| ()).await?;
        }
    }

    /// Confirms the lease before a fenced request, unless it was confirmed within [`LeaseTiming::window`].
    pub(super) async fn check(&self) -> Result<()> {
        self.renew_if_older(self.timing.window()).await.map(drop)
    }

    /// Whether an error of the work under the lease says that it is lost. A foreign writer may have changed the files under
    /// a lease that holds: then nobody takes over before it ends.
    pub(super) async fn is_lost_by(&self, error: Option<&Error>) -> bool {
        error.is_some_and(|e| e.kind() == ErrorKind::Fenced) && self.check().await.is_err()
    }

    /// Sends a bounded request: once, with a deadline, after a confirmation of the lease. A request that was not sent
    /// in time is sent after another confirmation.
    #[expect(
        clippy::future_not_send,
        reason = "the future is `Send` if the request is"
    )]
    pub(super) async fn send_bounded<T, F>(
        &self,
        send: impl Fn(Store) -> F,
    ) -> Result<RequestOutcome<T>>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            let confirmed_at = self
                .renew_if_older(self.timing.heartbeat_interval())
                .await?;
            if self.is_lock() {
                return send(self.locked_store().await)
                    .await
                    .map(RequestOutcome::Done);
            }
            let deadline = confirmed_at + self.timing.window();
            let open_request = self.activity.begin_request(self.timing.window());
            let request = send(self.store.with_send_limit(SendLimit {
                deadline: Some(deadline),
                once: true,
            }));
            let result = request.await;
            let is_late = self.store.clock().monotonic() > deadline;
            match result {
                Err(e) if e.kind() == ErrorKind::Expired => open_request.close(),
                Err(e) if is_transient(&e) => return Ok(RequestOutcome::Unknown(e)),
                // The process was stopped after the last check of the deadline, and went on with the answer.
                _ if is_late => {
                    let message = "the store answered after the deadline of the request";
                    let error = Error::new(ErrorKind::Unavailable, message);
                    return Ok(RequestOutcome::Unknown(error.with_path(self.key)));
                }
                answer => {
                    open_request.close();
                    return answer.map(RequestOutcome::Done);
                }
            }
        }
    }

    /// After a bounded request whose outcome is unknown: waits until it can no longer land. The lease still holds then,
    /// or the error is [`ErrorKind::Fenced`] or that of the renewal.
    pub(super) async fn drain(&self) -> Result<()> {
        self.rewrite(|_| ()).await?;
        self.store.clock().sleep(self.timing.window()).await;
        self.renew_if_older(self.timing.heartbeat_interval())
            .await
            .map(drop)
    }

    /// As [`Self::drain`], after the lease was lost.
    pub(super) async fn wait_until_quiet(&self) {
        self.store.clock().sleep(self.timing.window()).await;
    }

    /// Runs `work` while a loop renews the lease; a lock needs no renewal.
    pub(super) async fn run_with_heartbeat<T>(&self, work: impl Future<Output = T>) -> T {
        if self.is_lock() {
            return work.await;
        }
        let renewals = async {
            loop {
                self.store
                    .clock()
                    .sleep(self.timing.heartbeat_interval())
                    .await;
                if self
                    .renew_if_older(self.timing.heartbeat_interval())
                    .await
                    .is_err()
                {
                    // The next step of the work meets the error.
                    std::future::pending::<()>().await;
                }
            }
        };
        let mut heartbeat = std::pin::pin!(renewals);
        let done = tokio::select! {
            biased;
            done = work => done,
            () = &mut heartbeat => unreachable!("the heartbeat never ends"),
        };
        // A renewal under way has to end first: cancelled, it could land after the version that is released.
        tokio::select! {
            _ = self.state.lock() => done,
            () = &mut heartbeat => unreachable!("the heartbeat never ends"),
        }
    }

    /// Removes the intent of an operation that is complete or changed nothing. A failure is only logged: the next call
    /// that meets a complete intent removes it.
    pub(super) async fn release(&self) {
        if let Err(e) = self.try_release().await {
            log::warn!(
                "could not remove {INTENT} of {:?}, the next call removes it: {e}",
                self.key
            );
        }
    }

    /// As [`Self::release`]; an error if the intent may stay.
    pub(super) async fn try_release(&self) -> Result<()> {
        let path = path::join(self.key, INTENT);
        if self.is_lock() {
            let mut state = self.state.lock().await;
            let ownership = std::mem::replace(&mut state.ownership, Ownership::Lost);
            let (Ownership::Lock(cell), Some(local)) = (ownership, self.store.local()) else {
                return Ok(());
            };
            let key = self.store.key(&path)?;
            let removed = local.remove_locked(cell, &key).await;
            if removed.map_err(|e| self.store.map_error(e, &path))? {
                return Ok(());
            }
            return Err(self.lease_lost_error());
        }
        if !self.conditions.delete {
            // Never sent again: the first may land after all, and a second could hit another publisher's intent.
            let request = self.send_bounded(|store| {
                let path = path.clone();
                async move { store.delete_if(&path, &Condition::Always).await }
            });
            let outcome = request.await;
            self.state.lock().await.ownership = Ownership::Lost;
            return match outcome? {
                RequestOutcome::Done(_) => Ok(()),
                RequestOutcome::Unknown(e) => Err(e),
            };
        }
        let mut state = self.state.lock().await;
        let Ownership::Version { e_tag, .. } =
            std::mem::replace(&mut state.ownership, Ownership::Lost)
        else {
            return Ok(());
        };
        let condition = Condition::Matches(e_tag.clone());
        let mut sends = 0;
        loop {
            let error = match self.store.delete_if(&path, &condition).await {
                Ok(true) => return Ok(()),
                // NotFound may be the answer to a request that never reached the object.
                Ok(false) => {
                    Error::new(ErrorKind::NotFound, "the intent was not found").with_path(&path)
                }
                Err(error) => error,
            };
            match read_intent(self.store, self.key).await {
                Ok(Some(stored)) if stored.e_tag == e_tag => {}
                Ok(_) => return Ok(()),
                Err(_) => return Err(error),
            }
            sends += 1;
            if sends == MAX_SENDS {
                return Err(error);
            }
            self.store.clock().sleep(RESEND_DELAY * sends).await;
        }
    }

    fn lease_lost_error(&self) -> Error {
        let message = "lost the publish lease: another process took over after this one stalled";
        Error::new(ErrorKind::Fenced, message).with_path(self.key)
    }
}
