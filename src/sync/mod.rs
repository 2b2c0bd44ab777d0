//! What tasks and threads share: hashes that are computed together, guards that outlive a cancelled call, work that ends
//! once it began, and locks that outlive a fork.
//!
//! Nothing here returns an error or knows what it is used for.

pub(crate) mod begun;
pub mod fork;
pub(crate) mod hash;
pub mod in_place;
pub mod work_guard;
