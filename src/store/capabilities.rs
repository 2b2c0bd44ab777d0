//! What stores can do.

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
    /// Conditional writes hold.
    pub conditional: bool,
    /// The last bytes of an object can be asked for without knowing its length.
    pub suffix_ranges: bool,
    /// Objects have versions that never recur; else their content stands for the version.
    pub versions: bool,
}

impl Capabilities {
    /// Everything.
    pub const FULL: Self = Self {
        delete: true,
        list: true,
        conditional: true,
        suffix_ranges: true,
        versions: true,
    };
}
