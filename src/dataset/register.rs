//! Conditional writes of `_publish.json` on object stores, with lost answers resolved by reading back.
//!
//! An [`IntentWriter`] works as [`crate::store::cas`] does, but every send has a nonce of its own, which tells a write
//! that lands late from the writes after it. [`ErrorKind::Unavailable`] where the outcome stays unknown.

use std::time::Duration;

use bytes::Bytes;
use object_store::GetOptions;

use super::INTENT;
use super::intent::Intent;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Condition, SendLimit, Store, is_transient, path};

/// Sends of a conditional request whose outcome stays unknown.
pub(super) const MAX_SENDS: u32 = 5;
pub(super) const RESEND_DELAY: Duration = Duration::from_millis(50);
/// The greatest length of an intent, which holds the inline parts, a megabyte at most, and the names of the others.
const MAX_INTENT_BYTES: u64 = 256 << 20;

/// The content of `_publish.json` and its version.
#[derive(Debug, Clone)]
pub(super) struct StoredIntent {
    pub(super) bytes: Bytes,
    pub(super) e_tag: String,
}

/// Reads `_publish.json`; None if there is none.
pub(super) async fn read_intent(store: &Store, key: &str) -> Result<Option<StoredIntent>> {
    let path = path::join(key, INTENT);
    let read = store.get_at_most(&path, GetOptions::default(), MAX_INTENT_BYTES);
    match read.await {
        Ok((bytes, meta)) => Ok(Some(StoredIntent {
            bytes,
            e_tag: meta.e_tag.unwrap_or_default(),
        })),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Replaces the version `e_tag` by `intent`; gives the new ETag and when it was sent, or None where there
/// is another version.
pub(super) async fn replace_intent(
    store: &Store,
    key: &str,
    e_tag: &str,
    intent: &Intent,
) -> Result<Option<(String, Duration)>> {
    let condition = Condition::Matches(e_tag.to_owned());
    let mut writer = IntentWriter::new(store, key, intent);
    loop {
        match writer.send(&condition).await? {
            IntentPutResult::Written(version) => return Ok(Some(version)),
            IntentPutResult::Other(stored) if stored.e_tag == e_tag => {}
            IntentPutResult::Other(_) | IntentPutResult::Missing => return Ok(None),
        }
        writer.wait_before_resend().await?;
    }
}

/// What `_publish.json` is after a conditional write.
#[derive(Debug)]
pub(super) enum IntentPutResult {
    /// An intent of this writer: its ETag, and when it was sent.
    Written((String, Duration)),
    /// Another intent.
    Other(StoredIntent),
    /// No intent.
    Missing,
}

/// Writes one intent, each send of which has a new nonce.
#[derive(Debug)]
pub(super) struct IntentWriter<'a> {
    store: &'a Store,
    key: &'a str,
    intent: &'a Intent,
    /// The nonce and the time of each send.
    sends: Vec<(String, Duration)>,
    /// Whether one of the sends may still land.
    may_land: bool,
    error: Option<Error>,
}

impl<'a> IntentWriter<'a> {
    pub(super) fn new(store: &'a Store, key: &'a str, intent: &'a Intent) -> Self {
        Self {
            store,
            key,
            intent,
            sends: Vec::new(),
            may_land: false,
            error: None,
        }
    }

    /// Whether a send may still land, so that the intent may exist later.
    pub(super) fn may_land(&self) -> bool {
        self.may_land
    }

    /// Whether it was sent more than once.
    pub(super) fn was_resent(&self) -> bool {
        self.sends.len() > 1
    }

    /// Sends the intent once and gives what is stored then. An error: the store refused, or reading back failed.
    pub(super) async fn send(&mut self, condition: &Condition) -> Result<IntentPutResult> {
        let path = path::join(self.key, INTENT);
        let clock = self.store.clock();
        let (nonce, bytes) = self.intent.to_bytes(clock.new_id());
        let sent_at = clock.monotonic();
        self.sends.push((nonce, sent_at));
        // Otherwise the HTTP layer would send the same bytes again.
        let once = self.store.with_send_limit(SendLimit {
            deadline: None,
            once: true,
        });
        let could_land = std::mem::replace(&mut self.may_land, true);
        match once.put_if(&path, bytes, condition).await {
            Ok(put) => {
                if let Some(e_tag) = put.e_tag {
                    self.may_land = could_land;
                    return Ok(IntentPutResult::Written((e_tag, sent_at)));
                }
            }
            Err(e) if is_transient(&e) => self.error = Some(e),
            Err(e) => {
                self.may_land = could_land;
                let refused = matches!(e.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists);
                if !refused && !could_land && e.kind() != ErrorKind::NotFound {
                    return Err(e);
                }
                self.error = Some(e);
            }
        }
        self.read_back().await
    }

    async fn read_back(&self) -> Result<IntentPutResult> {
        let Some(stored) = read_intent(self.store, self.key).await? else {
            return Ok(IntentPutResult::Missing);
        };
        let ours = Intent::parse(self.key, &stored.bytes)
            .ok()
            .filter(|intent| intent.id == self.intent.id && intent.owner == self.intent.owner);
        let sends = self.sends.iter();
        let own_sent_at = ours.and_then(|intent| {
            sends
                .clone()
                .find(|(nonce, _)| *nonce == intent.nonce)
                .map(|(_, sent_at)| *sent_at)
        });
        Ok(match own_sent_at {
            Some(sent_at) => IntentPutResult::Written((stored.e_tag, sent_at)),
            None => IntentPutResult::Other(stored),
        })
    }

    /// Sleeps before another send; an error after [`MAX_SENDS`] sends and half a lease.
    pub(super) async fn wait_before_resend(&mut self) -> Result<()> {
        let sends = u32::try_from(self.sends.len()).unwrap_or(MAX_SENDS);
        let waited = self.sends.first().map_or(Duration::ZERO, |(_, first)| {
            self.store.clock().monotonic().saturating_sub(*first)
        });
        // A store may throttle for a while.
        if sends < MAX_SENDS || waited < self.store.publish_lease() / 2 {
            self.store
                .clock()
                .sleep(RESEND_DELAY * 2_u32.pow(sends.min(4)))
                .await;
            return Ok(());
        }
        let error = self.error.take().unwrap_or_else(|| {
            Error::other("a conditional write was acknowledged but is not visible")
        });
        Err(error
            .with_kind(ErrorKind::Unavailable)
            .context("the outcome is unknown: the intent to publish may have been recorded")
            .with_path(self.key))
    }
}
