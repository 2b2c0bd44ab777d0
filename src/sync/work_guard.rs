//! A lock that an operation holds until it has ended, including the threads of its cancelled calls.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

tokio::task_local! {
    static CURRENT_GUARD: Arc<OwnedMutexGuard<()>>;
}

/// Runs `work`, whose threads share `guard` through [`current_guard`].
pub(crate) async fn with_guard<T>(guard: OwnedMutexGuard<()>, work: impl Future<Output = T>) -> T {
    CURRENT_GUARD.scope(Arc::new(guard), work).await
}

/// The guard of the operation that runs, if it has one. A thread that may outlive its cancelled call
/// keeps it.
pub fn current_guard() -> Option<Arc<OwnedMutexGuard<()>>> {
    CURRENT_GUARD.try_with(Arc::clone).ok()
}
