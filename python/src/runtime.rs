//! How Python calls the engine: [`run`] releases the GIL, runs a future, checks signals and maps the error.
//!
//! A process has one runtime, which is started by its first call. A forked child starts its own; it never uses the
//! parent's, because it does not have the parent's threads.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pds::sync::blocking::{BlockingError, BlockingWork, THREAD_STACK_BYTES, run_blocking};
use pds::sync::fork;
use pds::sync::in_place::BlockingThread;
use pds::sync::mutex::lock;
use pds::sync::progress::with_progress;
use pds::sync::work_guard::current_guard;
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::error::to_python;
use crate::progress::of_thread;

/// How often a waiting call checks for signals, such as Ctrl-C.
const SIGNAL_TICK: Duration = Duration::from_millis(100);
/// After how many of these a call that has not begun is offered another thread.
const OFFER_TICKS: u32 = 5;

/// The most blocking threads. Every call takes one and may need others, so no call may ever wait for a thread that
/// another call holds. Idle threads end soon.
const MAX_THREADS: usize = 1 << 15;

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
static RUNTIME_PID: AtomicU32 = AtomicU32::new(0);

/// The runtime of this process; it is started if there is none.
#[expect(unsafe_code, reason = "a leaked runtime lives as long as the process")]
pub(crate) fn runtime_handle() -> Result<&'static Handle> {
    let pid = std::process::id();
    // The process comes first: the pointer that is read after it is its own, or that of one that came later.
    let is_current = RUNTIME_PID.load(Ordering::Acquire) == pid;
    let current = RUNTIME.load(Ordering::Acquire);
    if is_current && !current.is_null() {
        // SAFETY: set below from a leaked box and never freed.
        return Ok(unsafe { &*current }.handle());
    }
    let threads = pds::parquet::default_threads().clamp(2, 8);
    // One more for `keep_thread`.
    check_threads(threads + 1).map_err(|e| BlockingError::NoThread(e).into_error())?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("pds-io")
        .thread_stack_size(THREAD_STACK_BYTES)
        .max_blocking_threads(MAX_THREADS)
        .enable_all()
        .build()
        .map_err(|e| Error::other("cannot start the async runtime").with_source(e))?;
    keep_thread(runtime.handle())?;
    // Two threads may both get here; each runtime works, and the later one stays.
    let leaked: *mut Runtime = Box::leak(Box::new(runtime));
    RUNTIME.store(leaked, Ordering::Release);
    RUNTIME_PID.store(pid, Ordering::Release);
    // SAFETY: leaked just now.
    Ok(unsafe { &*leaked }.handle())
}

/// Fails if the system has not so many threads more. A runtime that gets only some of its threads panics, and waits for
/// these for ever.
fn check_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        // They are there all at once.
        let _closed = gate.lock();
        for _ in 0..count {
            let builder = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES);
            builder.spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

/// Has one of the runtime's blocking threads wait for ever. Without any, Tokio panics where the system refuses one, and
/// prints that; with one, it queues the work, see [`BlockingWork`].
fn keep_thread(runtime: &Handle) -> Result<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    let waiting = BlockingWork::spawn(runtime, move || {
        let _ = receiver.recv();
    });
    waiting.map_err(BlockingError::into_error)?;
    std::mem::forget(sender);
    Ok(())
}

/// Runs work on a thread that may block, and nobody waits for it. After an error it is not done.
pub(crate) fn spawn_blocking(runtime: &Handle, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let begun = BlockingWork::spawn(runtime, work).map_err(BlockingError::into_error)?;
    begun.watch(runtime);
    Ok(())
}

/// Starts the future that `work` returns on a thread of its own, on which it stays, so it need not be `Send`. If the
/// system has no thread for it, the work is dropped.
pub(crate) fn start<F: Future<Output = ()>>(
    runtime: &Handle,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<()> {
    spawn_blocking(runtime, block_on(runtime.clone(), work))
}

fn block_on<F: Future<Output = ()>>(
    runtime: Handle,
    work: impl FnOnce() -> F + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    move || {
        let _may_block = BlockingThread::enter();
        runtime.block_on(async move { work().await });
    }
}

/// Runs the future that `work` returns to its end, without the GIL. Ctrl-C drops the future and raises
/// `KeyboardInterrupt`.
pub(crate) fn run<T, F>(py: Python<'_>, work: impl FnOnce() -> F + Send + 'static) -> PyResult<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    let runtime = runtime_handle().map_err(|e| to_python(py, &e))?;
    let progress = of_thread();
    let (sender, receiver) = mpsc::sync_channel(1);
    // `_alive` is dropped when this call returns, which ends the future.
    let (_alive, interrupted) = oneshot::channel::<()>();
    let future = move || async move {
        tokio::select! {
            // Work that blocked may be ready for its next step when the caller is gone.
            biased;
            _ = interrupted => {}
            done = with_progress(progress, work()) => {
                // There is no receiver if the caller was interrupted just now.
                let _ = sender.send(done);
            }
        }
    };
    let started = BlockingWork::spawn(runtime, block_on(runtime.clone(), future));
    let started = into_py_result(py, started.map_err(BlockingError::into_error))?;
    let mut ticks: u32 = 0;
    let receiver = Mutex::new(receiver);
    loop {
        let wait = || lock(&receiver).recv_timeout(SIGNAL_TICK);
        match py.detach(wait) {
            Ok(done) => return done.map_err(|e| to_python(py, &e)),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals()?;
                ticks = ticks.wrapping_add(1);
                if ticks.is_multiple_of(OFFER_TICKS) {
                    let offered = started.offer_thread(runtime);
                    into_py_result(py, offered.map_err(BlockingError::into_error))?;
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(to_python(
                    py,
                    &Error::other("the operation's worker thread panicked"),
                ));
            }
        }
    }
}

/// Maps the error of a call that does not wait.
pub(crate) fn into_py_result<T>(py: Python<'_>, result: Result<T>) -> PyResult<T> {
    result.map_err(|e| to_python(py, &e))
}

/// Runs Python code off the async threads. If the caller is cancelled, the code goes on and keeps the caller's guard.
pub(crate) async fn spawn_python<T: Send + 'static>(
    work: impl FnOnce(Python<'_>) -> T + Send + 'static,
) -> Result<T, BlockingError> {
    let guard = current_guard();
    run_blocking(move || {
        let result = Python::attach(work);
        drop(guard);
        result
    })
    .await
}

/// Keeps the forks of Python's `os.fork` away from locks that the child needs.
pub(crate) fn register_fork_hooks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let os = py.import("os")?;
    if !os.hasattr("register_at_fork")? {
        return Ok(());
    }
    let hooks = PyDict::new(py);
    hooks.set_item("before", wrap_pyfunction!(before_fork, module)?)?;
    let in_parent = wrap_pyfunction!(after_fork_in_parent, module)?;
    hooks.set_item("after_in_parent", in_parent)?;
    hooks.set_item(
        "after_in_child",
        wrap_pyfunction!(after_fork_in_child, module)?,
    )?;
    os.call_method("register_at_fork", (), Some(&hooks))?;
    Ok(())
}

#[pyfunction]
fn before_fork() {
    fork::before_fork();
}

#[pyfunction]
fn after_fork_in_parent() {
    fork::after_fork(false);
}

#[pyfunction]
fn after_fork_in_child() {
    fork::after_fork(true);
}
