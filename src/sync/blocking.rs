//! Work for threads that may block, also where the system has no more of them.
//!
//! Tokio queues work that it gets no thread for until one of its threads is free. Where each of these waits for such
//! work, that is for ever. So work that has not begun after a while is offered a thread of its own; if the system
//! refuses that several times, the work is withdrawn, which is [`BlockingError::NoThread`].

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::mutex::lock;
use crate::error::Error;

/// The stack of a thread. pyarrow walks filters by recursion; stack that is not used costs nothing.
pub const THREAD_STACK_BYTES: usize = 64 << 20;

/// How long work waits for one of Tokio's threads before each offer of another one.
const OFFER_INTERVAL: Duration = Duration::from_millis(500);
/// How many offers fail before work is withdrawn: other work may end meanwhile.
const MAX_OFFERS: u32 = 10;

/// What a user can do where the system has no thread.
pub(crate) const NO_THREAD_HINT: &str =
    "end other processes or threads, or raise their limit (`ulimit -u`), and try again";

/// Why blocking work has no result.
#[derive(Debug)]
pub enum BlockingError {
    /// The system has no thread for it; it did not begin.
    NoThread(io::Error),
    /// It panicked with this message.
    Panicked(String),
}

impl fmt::Display for BlockingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoThread(_) => f.write_str("the system has no thread for this call"),
            Self::Panicked(message) => write!(f, "a worker thread panicked: {message}"),
        }
    }
}

impl std::error::Error for BlockingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoThread(cause) => Some(cause),
            Self::Panicked(_) => None,
        }
    }
}

impl BlockingError {
    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoThread(_) => Some(NO_THREAD_HINT),
            Self::Panicked(_) => None,
        }
    }

    /// The engine's error.
    pub fn into_error(self) -> Error {
        let error = Error::other(self.to_string());
        let error = match self.hint() {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
        match self {
            Self::NoThread(cause) => error.with_source(cause),
            Self::Panicked(_) => error,
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Work that begins once, on the first thread that is there for it.
pub struct BlockingWork(Arc<Pending>);

struct Pending {
    /// None once it began or was withdrawn.
    work: Mutex<Option<Work>>,
    failed_offers: AtomicU32,
}

impl Pending {
    fn take(&self) -> Option<Work> {
        lock(&self.work).take()
    }

    fn begin(&self) {
        if let Some(work) = self.take() {
            work();
        }
    }
}

impl fmt::Debug for BlockingWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingWork")
            .field("has_begun", &self.has_begun())
            .finish()
    }
}

impl BlockingWork {
    /// Gives work to Tokio's threads. Whoever waits for it calls [`Self::offer_thread`] now and then, or
    /// [`Self::watch`] once.
    pub fn spawn(
        runtime: &Handle,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<Self, BlockingError> {
        let work: Work = Box::new(work);
        let pending = Arc::new(Pending {
            work: Mutex::new(Some(work)),
            failed_offers: AtomicU32::new(0),
        });
        let queued = Arc::clone(&pending);
        // It panics where no thread could take the work later.
        let spawn = || drop(runtime.spawn_blocking(move || queued.begin()));
        match catch_unwind(AssertUnwindSafe(spawn)) {
            Ok(()) => Ok(Self(pending)),
            Err(panic) => {
                pending.take();
                Err(BlockingError::NoThread(io::Error::other(message_of(
                    &*panic,
                ))))
            }
        }
    }

    /// Whether a thread has taken it, or it was withdrawn.
    pub fn has_begun(&self) -> bool {
        lock(&self.0.work).is_none()
    }

    /// Gives the work a thread of its own if it has not begun. After `MAX_OFFERS` that failed it is withdrawn.
    pub fn offer_thread(&self, runtime: &Handle) -> Result<(), BlockingError> {
        if self.has_begun() {
            return Ok(());
        }
        let (pending, runtime) = (Arc::clone(&self.0), runtime.clone());
        let builder = thread::Builder::new().stack_size(THREAD_STACK_BYTES);
        let spawned = builder.spawn(move || {
            let _entered = runtime.enter();
            pending.begin();
        });
        let Err(cause) = spawned else {
            return Ok(());
        };
        let failed = self.0.failed_offers.fetch_add(1, Ordering::Relaxed) + 1;
        // A thread may have begun it just now.
        if failed >= MAX_OFFERS && self.0.take().is_some() {
            return Err(BlockingError::NoThread(cause));
        }
        Ok(())
    }

    /// Sees to it that the work begins, which nobody waits for.
    pub fn watch(self, runtime: &Handle) {
        let on_runtime = runtime.clone();
        runtime.spawn(async move {
            while !self.has_begun() {
                // As a pause.
                let _ = timeout(OFFER_INTERVAL, std::future::pending::<()>()).await;
                if let Err(e) = self.offer_thread(&on_runtime) {
                    log::warn!("work was not done: {e}");
                }
            }
        });
    }
}

/// Runs work on a thread that may block. If its future is dropped, it is done all the same.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BlockingError> {
    let runtime = Handle::current();
    let (sender, mut receiver) = oneshot::channel();
    let begun = BlockingWork::spawn(&runtime, move || {
        // The receiver is gone if the caller was cancelled.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    })?;
    loop {
        match timeout(OFFER_INTERVAL, &mut receiver).await {
            Ok(Ok(Ok(result))) => return Ok(result),
            Ok(Ok(Err(panic))) => return Err(BlockingError::Panicked(message_of(&*panic))),
            Ok(Err(_closed)) => {
                let message = "the runtime has ended".to_owned();
                return Err(BlockingError::Panicked(message));
            }
            Err(_elapsed) => begun.offer_thread(&runtime)?,
        }
    }
}

/// Runs work on this thread, with the outcome that it has in [`run_blocking`].
pub(crate) fn run_here<T>(work: impl FnOnce() -> T) -> Result<T, BlockingError> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| BlockingError::Panicked(message_of(&*panic)))
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime_with_one_blocking_thread() -> Runtime {
        Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .unwrap()
    }

    #[test]
    fn work_begins_although_the_only_thread_waits_for_it() {
        let runtime = runtime_with_one_blocking_thread();
        let handle = runtime.handle().clone();
        let (sender, receiver) = mpsc::channel();
        let outer = move || sender.send(handle.block_on(run_blocking(|| 5)).unwrap());
        drop(runtime.spawn_blocking(outer));
        assert_eq!(receiver.recv_timeout(Duration::from_mins(1)), Ok(5));
    }

    #[test]
    fn work_that_is_watched_begins_once() {
        let runtime = runtime_with_one_blocking_thread();
        let (release, released) = mpsc::channel::<()>();
        drop(runtime.spawn_blocking(move || released.recv()));
        let (sender, receiver) = mpsc::channel();
        let work = BlockingWork::spawn(runtime.handle(), move || sender.send(()).unwrap());
        work.unwrap().watch(runtime.handle());
        assert_eq!(receiver.recv_timeout(Duration::from_mins(1)), Ok(()));
        drop(release);
        assert!(receiver.recv().is_err());
    }

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let runtime = runtime_with_one_blocking_thread();
        let failed = runtime.block_on(run_blocking(|| "x".parse::<u8>().expect("no")));
        let error = failed.unwrap_err();
        assert!(error.to_string().contains("no"), "{error}");
        assert!(error.into_error().to_string().contains("panicked"));
        assert_eq!(runtime.block_on(run_blocking(|| 1)).unwrap(), 1);
        let failed = run_here(|| "x".parse::<u8>().expect("no"));
        assert!(failed.unwrap_err().to_string().contains("no"));
        assert_eq!(run_here(|| 1).unwrap(), 1);
    }
}
