//! What tasks and threads share: hashes that are computed together, and guards that outlive a cancelled call.
//!
//! Nothing here returns an error or knows what it is used for.

pub(crate) mod hash;
pub mod work_guard;
