//! Work on local files in the thread of its call, which is sooner done than given to another thread.
//!
//! Both have to agree: the thread, that it may block, as one does that has nothing to do but this call
//! ([`BlockingThread`]), and the work, that it has nothing to do meanwhile (`in_place`).

use std::cell::Cell;

use super::blocking::BlockingWork;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

tokio::task_local! {
    static IN_PLACE: ();
}

/// This thread may block, until this is dropped.
#[derive(Debug)]
pub struct BlockingThread {
    could_block: bool,
}

impl BlockingThread {
    /// Lets this thread block.
    pub fn enter() -> Self {
        Self {
            could_block: MAY_BLOCK.replace(true),
        }
    }
}

impl Drop for BlockingThread {
    fn drop(&mut self) {
        MAY_BLOCK.set(self.could_block);
    }
}

/// Runs `work`, one step of a call that waits for nothing else meanwhile.
pub(crate) fn in_place<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    // Boxed, or the future of each caller would contain it.
    let work = IN_PLACE.scope((), Box::pin(work));
    async move {
        let result = work.await;
        // One who cancelled the call meanwhile comes before its next step.
        end_if_cancelled().await;
        result
    }
}

/// Ends a call here that was cancelled during its last step. Work in place that has several steps awaits it between two.
pub(crate) async fn end_if_cancelled() {
    tokio::task::yield_now().await;
}

/// Runs work in place on a thread of its own, which nobody waits for. Without a thread for it, it is dropped.
pub(crate) fn spawn_in_place(work: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio::runtime::Handle::current();
    let on_thread = runtime.clone();
    let begun = BlockingWork::spawn(&runtime, move || {
        let _may_block = BlockingThread::enter();
        on_thread.block_on(in_place(work));
    });
    match begun {
        Ok(begun) => begun.watch(&runtime),
        Err(e) => log::warn!("work was not done: {e}"),
    }
}

/// Whether to block here instead of in another thread.
pub(crate) fn is_in_place() -> bool {
    MAY_BLOCK.get() && IN_PLACE.try_with(|()| ()).is_ok()
}
