//! A lock that work keeps until it has ended, threads of its cancelled calls included.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

tokio::task_local! {
    static HELD: Arc<OwnedMutexGuard<()>>;
}

/// Does `work`, whose threads keep `guard` by [`held`].
pub(crate) async fn hold<T>(guard: OwnedMutexGuard<()>, work: impl Future<Output = T>) -> T {
    HELD.scope(Arc::new(guard), work).await
}

/// What the caller's work holds: to be moved into a thread that goes on when the work is cancelled.
pub fn held() -> Option<Arc<OwnedMutexGuard<()>>> {
    HELD.try_with(Arc::clone).ok()
}
