//! What tasks and threads share: hashes that are computed together, guards that outlive a cancelled call, work that ends
//! once it began, locks that outlive a fork, and how far an operation is.
//!
//! Nothing here returns an error or knows what it is used for.

pub(crate) mod begun;
pub mod fork;
pub(crate) mod hash;
pub mod in_place;
pub mod progress;
pub mod work_guard;
