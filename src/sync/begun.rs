//! Work of which several parts run at once, and all that began ends.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt, future, stream};

/// Runs work, `at_once` of it at a time; gives the first error. After that nothing more begins, and what began ends: a
/// request that is dropped may have its effect later, after its caller has removed what it wrote.
pub(crate) async fn run_to_end<E>(
    work: Vec<impl Future<Output = Result<(), E>>>,
    at_once: usize,
) -> Result<(), E> {
    let has_failed = AtomicBool::new(false);
    let begun = stream::iter(work)
        .take_while(|_| future::ready(!has_failed.load(Ordering::Relaxed)))
        .buffer_unordered(at_once);
    let mut begun = std::pin::pin!(begun);
    let mut first_error = Ok(());
    while let Some(ended) = begun.next().await {
        has_failed.fetch_or(ended.is_err(), Ordering::Relaxed);
        first_error = first_error.and(ended);
    }
    first_error
}
