//! Keeps a fork of the process away from locks that both sides use afterwards.
//!
//! A forked child has its parent's memory but only the thread that forked. A lock that another thread held would stay
//! locked in the child for ever. Such a lock is taken by `lock`, or under `delay_forks`; who forks calls
//! [`before_fork`] first and [`after_fork`] on both sides.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The forks under way.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// The threads that hold a lock.
static HOLDERS: AtomicUsize = AtomicUsize::new(0);

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
        guard: mutex.lock().unwrap_or_else(PoisonError::into_inner),
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
        FORKS.store(0, Ordering::SeqCst);
    } else {
        FORKS.fetch_sub(1, Ordering::SeqCst);
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
}
