//! Whether somebody still waits for the work of a blocking task.
//!
//! A call that is cancelled, as by Ctrl-C, leaves its task behind. What that has not changed by then it must not change
//! any more: its caller may have written the same file again.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::Result;
use object_store::path::Path;

use crate::store::failure::generic_error;
use crate::sync::blocking;

thread_local! {
    /// Whether the caller of the task that this thread runs is gone.
    static IS_CANCELLED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Says so when it is dropped.
struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The task of a caller, on its thread.
struct CallerScope;

impl CallerScope {
    fn enter(is_cancelled: Arc<AtomicBool>) -> Self {
        IS_CANCELLED.set(Some(is_cancelled));
        Self
    }
}

impl Drop for CallerScope {
    fn drop(&mut self) {
        IS_CANCELLED.set(None);
    }
}

/// Runs a task on a thread that may block. It knows by [`check_awaited`] whether this future was dropped.
pub(super) async fn run_awaited<T: Send + 'static>(
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let caller = Caller(Arc::default());
    let is_cancelled = Arc::clone(&caller.0);
    let done = blocking::run_blocking(move || {
        let _scope = CallerScope::enter(is_cancelled);
        task()
    });
    let done = done.await;
    drop(caller);
    done?
}

/// Fails if the caller of this thread's task is gone. It is asked before each change.
pub(super) fn check_awaited(key: &Path) -> Result<()> {
    let is_cancelled = IS_CANCELLED.with_borrow(|flag| {
        flag.as_ref()
            .is_some_and(|flag| flag.load(Ordering::SeqCst))
    });
    if is_cancelled {
        let message = format!("{key} was not changed: the call was cancelled");
        return Err(generic_error(message.into()));
    }
    Ok(())
}
