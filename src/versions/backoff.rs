//! How long a commit that lost a race waits before its next attempt, and its error after the last one.

use std::time::Duration;

use super::folder::Folder;
use super::manifest::Versioned;
use crate::error::{Error, ErrorKind};

pub(super) const MIN_BACKOFF: Duration = Duration::from_millis(10);
// One writer wins every round, so a longer delay only makes the losers lose again.
const MAX_BACKOFF: Duration = Duration::from_millis(250);

/// A random delay, uniform between [`MIN_BACKOFF`] and three times the previous one, at most
/// [`MAX_BACKOFF`].
pub(super) fn jitter(random_bits: u128, previous: Duration) -> Duration {
    let span = (previous * 3).saturating_sub(MIN_BACKOFF);
    let fraction = u32::try_from(random_bits % 1024).unwrap_or(0);
    (MIN_BACKOFF + span * fraction / 1024).min(MAX_BACKOFF)
}

pub(super) fn commit_timeout_error<M: Versioned>(folder: &Folder<M>, timeout: Duration) -> Error {
    let message = format!(
        "gave up after {} s: lost every race against concurrent commits; nothing was committed, try \
         again or raise commit_timeout",
        timeout.as_secs()
    );
    Error::new(ErrorKind::CommitConflict, message).with_path(folder.root())
}
