//! Conditional reads and writes of `_publish.json` on object stores, with lost answers settled by
//! reading back.
//!
//! As [`crate::store::cas`], but every send has a nonce of its own: what lands late is told from what
//! was written after it.

use std::time::Duration;

use bytes::Bytes;
use object_store::GetOptions;

use super::INTENT;
use super::intent::Intent;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Condition, SendLimit, Store, is_transient, path};

/// How often a conditional write whose outcome is open is sent again.
pub(super) const MAX_SENDS: u32 = 5;
pub(super) const RESEND_DELAY: Duration = Duration::from_millis(50);
/// Intents hold the parts that are not staged, a megabyte at most, and the names of the others.
const MAX_INTENT_BYTES: u64 = 256 << 20;

/// A version of `_publish.json` that is there.
#[derive(Debug, Clone)]
pub(super) struct StoredIntent {
    pub(super) bytes: Bytes,
    pub(super) e_tag: String,
}

/// Reads `_publish.json` of an object store.
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

/// Writes `intent` over the version `e_tag`; gives the new version and when it was sent, or None where
/// another version is there.
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

/// What is there after a conditional write of an intent.
#[derive(Debug)]
pub(super) enum IntentPutResult {
    /// One of our own writings: its version, and when it was sent.
    Written((String, Duration)),
    /// Something else.
    Other(StoredIntent),
    /// Nothing.
    Missing,
}

/// One intent on its way to the store, sent as often as it takes, each time with a new nonce.
#[derive(Debug)]
pub(super) struct IntentWriter<'a> {
    store: &'a Store,
    key: &'a str,
    intent: &'a Intent,
    sends: Vec<(String, Duration)>,
    /// Whether one of them may land yet.
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

    /// Whether a request may still land, so that the intent may be there later.
    pub(super) fn may_land(&self) -> bool {
        self.may_land
    }

    /// Whether it was sent more than once.
    pub(super) fn was_resent(&self) -> bool {
        self.sends.len() > 1
    }

    /// Sends the intent once and says what is there. An error: it is not known, or the store refused.
    pub(super) async fn send(&mut self, condition: &Condition) -> Result<IntentPutResult> {
        let path = path::join(self.key, INTENT);
        let clock = self.store.clock();
        let (nonce, bytes) = self.intent.to_bytes(clock.new_id());
        let sent_at = clock.monotonic();
        self.sends.push((nonce, sent_at));
        // The layer below would send the same bytes again.
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

    /// Before another send; an error when there were enough.
    pub(super) async fn wait_before_resend(&mut self) -> Result<()> {
        let sends = u32::try_from(self.sends.len()).unwrap_or(MAX_SENDS);
        let waited = self.sends.first().map_or(Duration::ZERO, |(_, first)| {
            self.store.clock().monotonic().saturating_sub(*first)
        });
        // A store that throttles may do so for a while.
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
