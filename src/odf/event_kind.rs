//! The names of events.

macro_rules! event_kinds {
    ($($kind:ident),* $(,)?) => {
        /// The name of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $(#[doc = concat!("`", stringify!($kind), "`")] $kind,)*
            /// An event of a later release.
            Unknown,
        }

        impl EventKind {
            /// The name in the specification.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                    Self::Unknown => "Unknown",
                }
            }

            pub(super) fn from_name(name: &str) -> Self {
                match name {
                    $(stringify!($kind) => Self::$kind,)*
                    _ => Self::Unknown,
                }
            }
        }
    };
}

event_kinds![
    AddData,
    ExecuteTransform,
    Seed,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetDataSchema,
    AddPushSource,
    DisablePushSource,
    DisablePollingSource,
];
