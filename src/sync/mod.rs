//! What tasks and threads share: hashes that are computed together, guards that outlive a cancelled call, work that
//! ends once it began, threads that may block, locks that outlive a fork or a panic, freed memory, and how far
//! an operation is.
//!
//! Nothing here knows what it is used for. The only error is that of [`blocking`].

pub(crate) mod begun;
pub mod blocking;
pub mod fork;
pub(crate) mod hash;
pub(crate) mod heap;
pub mod in_place;
pub mod mutex;
pub mod progress;
pub mod work_guard;
