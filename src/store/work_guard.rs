//! A lock that work keeps until it has ended, threads of its cancelled calls included.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

tokio::task_local! {
    static CURRENT_GUARD: Arc<OwnedMutexGuard<()>>;
}

/// Does `work`, whose threads keep `guard` by [`current_guard`].
pub(crate) async fn with_guard<T>(guard: OwnedMutexGuard<()>, work: impl Future<Output = T>) -> T {
    CURRENT_GUARD.scope(Arc::new(guard), work).await
}

/// What the caller's work holds: to be moved into a thread that goes on when the work is cancelled.
pub fn current_guard() -> Option<Arc<OwnedMutexGuard<()>>> {
    CURRENT_GUARD.try_with(Arc::clone).ok()
}
