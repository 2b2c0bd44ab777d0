//! The formats to which tables are exported, by their names.

/// A format to which tables are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::table) enum ExportFormat {
    Delta,
    Iceberg,
}

impl ExportFormat {
    pub(in crate::table) const ALL: [Self; 2] = [Self::Delta, Self::Iceberg];

    /// The name in manifests.
    pub(in crate::table) fn name(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Iceberg => "iceberg",
        }
    }

    /// The name in messages.
    pub(in crate::table) fn title(self) -> &'static str {
        match self {
            Self::Delta => "Delta",
            Self::Iceberg => "Iceberg",
        }
    }

    /// What an export writes, in messages.
    pub(in crate::table) fn metadata(self) -> &'static str {
        match self {
            Self::Delta => "Delta log",
            Self::Iceberg => "Iceberg metadata",
        }
    }
}
