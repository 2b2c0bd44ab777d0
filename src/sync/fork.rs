//! Keeps a fork of the process away from locks that both sides use afterwards.
//!
//! A forked child has its parent's memory but only the thread that forked. A lock that another thread held would stay
//! locked in the child for ever. Such a lock is taken by `lock`, or under `delay_forks`; who forks calls
//! [`before_fork`] first and [`after_fork`] on both sides.
//!
//! A forked child also has the files open that its parent has. A lock of an open file (`flock`) lasts as long as any
//! process has the file open as it was opened once, so a child would keep its parent's locks after the parent was
//! killed. Each `OwnFile` is therefore closed in a child before it does anything else.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use super::mutex;

/// The forks under way.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The threads that hold a lock.
static HOLDERS: AtomicUsize = AtomicUsize::new(0);

/// The forks of this process that have ended.
static FORKED: AtomicUsize = AtomicUsize::new(0);

/// The forks between the process that loaded the library and this one.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// While it lives, the process does not fork. A thread must not hold two, nor keep one across an `await`.
#[derive(Debug)]
pub(crate) struct ForkDelay(());

impl Drop for ForkDelay {
    fn drop(&mut self) {
        HOLDERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for forks under way, a few milliseconds each, and delays those to come.
pub(crate) fn delay_forks() -> ForkDelay {
    loop {
        HOLDERS.fetch_add(1, Ordering::SeqCst);
        let delay = ForkDelay(());
        if FORKS.load(Ordering::SeqCst) == 0 {
            return delay;
        }
        drop(delay);
        std::thread::yield_now();
    }
}

/// The value of a locked mutex, for which forks wait. Fields are dropped in their order.
#[derive(Debug)]
pub(crate) struct ForkSafeGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _delay: ForkDelay,
}

impl<T> Deref for ForkSafeGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for ForkSafeGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Locks a mutex that a forked child uses too. The mutex must never be locked otherwise.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> ForkSafeGuard<'_, T> {
    let delay = delay_forks();
    ForkSafeGuard {
        guard: mutex::lock(mutex),
        _delay: delay,
    }
}

/// Waits until no thread holds a lock that the child needs; from then on they wait for [`after_fork`].
pub fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    while HOLDERS.load(Ordering::SeqCst) != 0 {
        std::thread::yield_now();
    }
}

/// How many forks this process is from the one that loaded the library.
pub(crate) fn generation() -> usize {
    GENERATION.load(Ordering::SeqCst)
}

/// Lets the threads of this process go on: the parent's, or those that the child will have.
pub fn after_fork(is_child: bool) {
    if is_child {
        // The other threads of the parent, whose forks and waits the numbers count, are not here.
        HOLDERS.store(0, Ordering::SeqCst);
        GENERATION.fetch_add(1, Ordering::SeqCst);
        close_own_files();
        FORKS.store(0, Ordering::SeqCst);
    } else {
        FORKED.fetch_add(1, Ordering::SeqCst);
        FORKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The file; None in a child of the process that opened it.
type OwnSlot = Mutex<Option<File>>;

static OWN_FILES: Mutex<Vec<Weak<OwnSlot>>> = Mutex::new(Vec::new());

/// A file that a forked child closes, unless another thread does something to the file at that moment.
#[derive(Debug)]
pub(crate) struct OwnFile(Arc<OwnSlot>);

impl OwnFile {
    /// The file that `open` opens. Forks do not wait for it; after one, it is opened again.
    pub(crate) fn open(open: impl Fn() -> io::Result<File>) -> io::Result<Self> {
        loop {
            let forked = FORKED.load(Ordering::SeqCst);
            let slot = Arc::new(Mutex::new(Some(open()?)));
            let _delay = delay_forks();
            if FORKED.load(Ordering::SeqCst) == forked {
                mutex::lock(&OWN_FILES).push(Arc::downgrade(&slot));
                return Ok(Self(slot));
            }
        }
    }

    /// Runs work on the file, of one thread at a time; None in a child.
    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut File) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        // In a child it may be locked by a thread of the parent.
        let mut slot = match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Poisoned(slot)) => slot.into_inner(),
            Ok(slot) => slot,
        };
        slot.as_mut().map(work).transpose()
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let own = Arc::as_ptr(&self.0);
        lock(&OWN_FILES).retain(|file| file.as_ptr() != own);
    }
}

/// Closes the files of the parent in a child, whose only thread this is.
fn close_own_files() {
    let files = std::mem::take(&mut *mutex::lock(&OWN_FILES));
    for slot in files.iter().filter_map(Weak::upgrade) {
        if let Ok(mut slot) = slot.try_lock() {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fork_waits_for_holders_and_holders_for_the_fork() {
        let delay = delay_forks();
        let (sender, receiver) = mpsc::channel();
        let forking = thread::spawn({
            let sender = sender.clone();
            move || {
                before_fork();
                sender.send("fork").unwrap();
            }
        });
        while FORKS.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        sender.send("released").unwrap();
        drop(delay);
        forking.join().unwrap();
        let holding = thread::spawn(move || {
            let _delay = delay_forks();
            sender.send("held").unwrap();
        });
        assert_eq!(receiver.recv().unwrap(), "released");
        assert_eq!(receiver.recv().unwrap(), "fork");
        assert!(receiver.recv_timeout(Duration::from_millis(20)).is_err());
        after_fork(false);
        assert_eq!(receiver.recv().unwrap(), "held");
        holding.join().unwrap();
    }

    #[test]
    fn a_file_that_was_open_during_a_fork_is_opened_again() {
        let opened = AtomicUsize::new(0);
        let file = OwnFile::open(|| {
            if opened.fetch_add(1, Ordering::SeqCst) == 0 {
                FORKED.fetch_add(1, Ordering::SeqCst);
            }
            tempfile::tempfile()
        });
        let file = file.unwrap();
        assert!(opened.load(Ordering::SeqCst) >= 2);
        assert!(file.with(|file| file.metadata()).unwrap().is_some());
    }
}
