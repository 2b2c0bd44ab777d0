//! Time, waiting and random ids, injected so that tests can replay them.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use rustix::time::{ClockId, clock_gettime};

/// The system's clock that does not stop while the machine sleeps.
#[cfg(not(target_os = "macos"))]
const NEVER_STOPPING: ClockId = ClockId::Boottime;
/// On macOS that is the monotonic clock.
#[cfg(target_os = "macos")]
const NEVER_STOPPING: ClockId = ClockId::Monotonic;

/// The source of time, waiting and random ids.
#[async_trait]
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> DateTime<Utc>;
    /// The time since an arbitrary start, including time in which the machine sleeps.
    fn monotonic(&self) -> Duration;
    /// Waits for `duration`.
    async fn sleep(&self, duration: Duration);
    /// Returns 128 random bits.
    fn new_id(&self) -> u128;
}

/// The system's clock and random source.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> DateTime<Utc> {
        DateTime::from(std::time::SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        let t = clock_gettime(NEVER_STOPPING);
        Duration::new(
            t.tv_sec.unsigned_abs(),
            u32::try_from(t.tv_nsec).unwrap_or(0),
        )
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    #[expect(clippy::disallowed_methods, reason = "this is the source of chance")]
    fn new_id(&self) -> u128 {
        rand::random()
    }
}
