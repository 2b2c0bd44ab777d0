//! The capabilities of a store.

/// What a store can do beyond reading and atomic writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, set by name"
)]
pub struct Capabilities {
    /// Objects can be deleted.
    pub delete: bool,
    /// Objects can be listed.
    pub list: bool,
    /// The store honors the conditions of conditional writes.
    pub conditional: bool,
    /// The last bytes of an object can be requested by a caller that does not know its length.
    pub suffix_ranges: bool,
    /// Objects have versions that never recur. Without them a hash of the content stands for the version.
    pub versions: bool,
}

impl Capabilities {
    /// Every capability.
    pub const FULL: Self = Self {
        delete: true,
        list: true,
        conditional: true,
        suffix_ranges: true,
        versions: true,
    };
}
