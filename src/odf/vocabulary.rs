//! The system columns: their names, which the vocabulary of a chain gives, and their types.
//!
//! [`system_fields`] has the types that new chains get. [`Vocabulary::check_types`] refuses types that cannot hold the
//! values, as [`crate::ErrorKind::InvalidInput`].

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::column_times::is_time;
use super::fields::get_text;
use crate::error::{Error, Result};

/// The names of the system columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// The column of offsets, the numbers of the rows.
    pub offset: String,
    /// The column of operations: append, retract or correct.
    pub operation: String,
    /// The column of the times at which the rows were written.
    pub system_time: String,
    /// The column of the times at which the events of the rows happened.
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

/// The name of a column, what its type must be, and whether a type is.
type TypeRule<'a> = (&'a str, &'a str, &'a dyn Fn(&DataType) -> bool);

impl Vocabulary {
    /// Returns the names in the order of the fields, which is the order of the columns.
    pub fn names(&self) -> [&str; 4] {
        [
            &self.offset,
            &self.operation,
            &self.system_time,
            &self.event_time,
        ]
    }

    /// Refuses system columns whose types cannot hold every offset, operation or time. Columns that are missing are
    /// not checked. Those that `has_rows` may have narrow offsets, which older releases took: as long as these last.
    pub(super) fn check_types(&self, schema: &Schema, has_rows: bool) -> Result<()> {
        let [offset, operation, system_time, event_time] = self.names();
        let is_offset = |t: &DataType| {
            matches!(t, DataType::Int64 | DataType::UInt64) || (has_rows && t.is_integer())
        };
        let rules: [TypeRule<'_>; 4] = [
            (offset, "Int64 or UInt64", &is_offset),
            (operation, "a whole number", &DataType::is_integer),
            (system_time, "a timestamp or a date", &is_time),
            (event_time, "a timestamp or a date", &is_time),
        ];
        for (name, expected, can_hold) in rules {
            let Ok(field) = schema.field_with_name(name) else {
                continue;
            };
            if !can_hold(field.data_type()) {
                let remedy = if has_rows {
                    ""
                } else {
                    "; give the column another type, or the system column another name with SetVocab"
                };
                let message = format!(
                    "the system column {name:?} must be {expected}, not {}{remedy}",
                    field.data_type()
                );
                return Err(Error::invalid(message));
            }
        }
        Ok(())
    }

    pub(super) fn from_fields(fields: &Value) -> Self {
        let defaults = Self::default();
        let name = |key: &str, default_name: String| {
            get_text(fields, key).map_or(default_name, str::to_owned)
        };
        Self {
            offset: name("offsetColumn", defaults.offset),
            operation: name("operationTypeColumn", defaults.operation),
            system_time: name("systemTimeColumn", defaults.system_time),
            event_time: name("eventTimeColumn", defaults.event_time),
        }
    }
}

/// The type of the times in system columns.
fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
}

/// Returns the system columns, which come first in a slice.
pub fn system_fields(vocabulary: &Vocabulary) -> Vec<Field> {
    let [offset, operation, system_time, event_time] = vocabulary.names();
    vec![
        Field::new(offset, DataType::Int64, false),
        Field::new(operation, DataType::Int32, false),
        Field::new(system_time, time_type(), false),
        Field::new(event_time, time_type(), false),
    ]
}
