//! Time as the world lets it pass.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use pds::clock::Clock;

use super::world::World;

/// One actor's clock: everyone's time passes alike, but the time of day differs.
pub(super) struct WorldClock {
    world: World,
    actor: usize,
    skew: TimeDelta,
}

impl WorldClock {
    pub(super) fn new(world: World, actor: usize, skew: TimeDelta) -> Self {
        Self { world, actor, skew }
    }
}

impl fmt::Debug for WorldClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorldClock({})", self.actor)
    }
}

#[async_trait]
impl Clock for WorldClock {
    fn now(&self) -> DateTime<Utc> {
        let epoch = DateTime::from_timestamp(1_600_000_000, 0).unwrap();
        epoch + self.skew + TimeDelta::from_std(self.monotonic()).unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.world.time()
    }

    async fn sleep(&self, duration: Duration) {
        if !self.world.sleep(self.actor, duration).await {
            futures::future::pending::<()>().await;
        }
    }

    fn new_id(&self) -> u128 {
        self.world.new_id()
    }
}

/// The clock of somebody who is alone: time passes as soon as it is waited for.
pub(super) struct FreeClock {
    world: World,
}

impl FreeClock {
    pub(super) fn new(world: World) -> Self {
        Self { world }
    }
}

impl fmt::Debug for FreeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreeClock")
    }
}

#[async_trait]
impl Clock for FreeClock {
    fn now(&self) -> DateTime<Utc> {
        let epoch = DateTime::from_timestamp(1_600_000_000, 0).unwrap();
        epoch + TimeDelta::from_std(self.monotonic()).unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.world.time()
    }

    async fn sleep(&self, duration: Duration) {
        self.world.advance(duration).await;
    }

    fn new_id(&self) -> u128 {
        self.world.new_id()
    }
}
