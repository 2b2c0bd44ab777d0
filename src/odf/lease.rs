//! The time within which a write may move the head: a [`WriteLease`] ends before a vacuum may remove what the write
//! wrote.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::chain::Chain;
use crate::error::{Error, ErrorKind, Result};

/// How long after its beginning a write may still move the head.
pub(super) const WRITE_LEASE: Duration = Duration::from_hours(24);

/// The time at which a write began, by two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteLease {
    monotonic: Duration,
    time: DateTime<Utc>,
}

impl WriteLease {
    pub(super) fn new(chain: &Chain) -> Self {
        let clock = chain.store().clock();
        Self {
            monotonic: clock.monotonic(),
            time: clock.now(),
        }
    }

    /// Returns [`ErrorKind::TransactionExpired`] if a vacuum may have removed by now what was written.
    pub(super) fn check(&self, chain: &Chain) -> Result<()> {
        let clock = chain.store().clock();
        let elapsed = clock.monotonic().saturating_sub(self.monotonic);
        // The monotonic clock may stand still while the machine is suspended.
        let wall_elapsed = (clock.now() - self.time).to_std().unwrap_or_default();
        if elapsed.max(wall_elapsed) <= WRITE_LEASE {
            return Ok(());
        }
        Err(Self::expired_error(chain))
    }

    /// No request may be sent for the write after this time of the store's [`crate::clock::Clock::monotonic`].
    pub(super) fn deadline(&self) -> Duration {
        self.monotonic + WRITE_LEASE
    }

    pub(super) fn expired_error(chain: &Chain) -> Error {
        let message = format!(
            "the write took longer than {} hours, after which a vacuum may remove what it wrote; nothing was \
             appended, retry the write",
            WRITE_LEASE.as_secs() / 3600
        );
        Error::new(ErrorKind::TransactionExpired, message).with_path(chain.root())
    }
}
