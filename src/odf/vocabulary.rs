//! The names and types of the system columns.

use serde_json::Value;

use super::fields::text;

/// The names of the system columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// The row's number.
    pub offset: String,
    /// Append, retract or correct.
    pub operation: String,
    /// When the row was written.
    pub system_time: String,
    /// When what it tells happened.
    pub event_time: String,
}

impl Default for Vocabulary {
    fn default() -> Self {
        Self {
            offset: "offset".to_owned(),
            operation: "op".to_owned(),
            system_time: "system_time".to_owned(),
            event_time: "event_time".to_owned(),
        }
    }
}

impl Vocabulary {
    /// The names in the order of the columns.
    pub fn names(&self) -> [&str; 4] {
        [
            &self.offset,
            &self.operation,
            &self.system_time,
            &self.event_time,
        ]
    }

    pub(super) fn of(event: &Value) -> Self {
        let usual = Self::default();
        let name = |key: &str, usual: String| text(event, key).map_or(usual, str::to_owned);
        Self {
            offset: name("offsetColumn", usual.offset),
            operation: name("operationTypeColumn", usual.operation),
            system_time: name("systemTimeColumn", usual.system_time),
            event_time: name("eventTimeColumn", usual.event_time),
        }
    }
}
