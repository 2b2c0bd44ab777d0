//! The keys of input rows, to find the rows of a table that have the same keys.
//!
//! A [`KeySet`] numbers the keys in the order in which they are added, and compares them in the row format
//! of `arrow-row`. -0.0 and 0.0 are the same key, and so are all NaN. A null in a key column, a key that is
//! added twice and a type that cannot be compared are errors of the kind `InvalidInput`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, SortField};
use arrow_schema::DataType;
use datafusion_common::ScalarValue;

use super::floats::canonicalize;
use super::statistics::{extreme_value, has_bounds};
use crate::error::{Error, Result};
use crate::files::columns::TableColumns;
use crate::parquet::types::convert;

/// A set of keys.
#[derive(Debug)]
pub(crate) struct KeySet {
    /// The ids of the key columns.
    pub(crate) ids: Vec<u32>,
    names: Vec<String>,
    data_types: Vec<DataType>,
    converter: RowConverter,
    /// The number of each key, by its encoded values.
    numbers: HashMap<Box<[u8]>, u32>,
    /// For each column its smallest and its largest value, copied so that no batch stays in memory.
    bounds: Vec<Option<(ScalarValue, ScalarValue)>>,
}

impl KeySet {
    /// An empty set; `positions` are those of the key columns among the table's.
    pub(crate) fn new(columns: &TableColumns, positions: &[usize]) -> Result<Self> {
        let fields = positions
            .iter()
            .map(|position| columns.schema.field(*position));
        let data_types: Vec<DataType> = fields.clone().map(|f| f.data_type().clone()).collect();
        let sort_fields = data_types.iter().cloned().map(SortField::new).collect();
        let converter = RowConverter::new(sort_fields).map_err(|e| {
            let message = format!("a key cannot have columns of types {data_types:?}: {e}");
            Error::invalid(message).with_source(e)
        })?;
        Ok(Self {
            ids: positions
                .iter()
                .map(|position| columns.ids[*position])
                .collect(),
            names: fields.map(|f| f.name().clone()).collect(),
            bounds: vec![None; data_types.len()],
            data_types,
            converter,
            numbers: HashMap::new(),
        })
    }

    /// Adds the keys of rows. Fails on a null, and on a key that the set already has.
    pub(crate) fn add(&mut self, keys: &[ArrayRef]) -> Result<()> {
        for (name, column) in self.names.iter().zip(keys) {
            if column.logical_null_count() > 0 {
                let message = format!("null in key column {name:?}; key values cannot be null");
                return Err(Error::invalid(message));
            }
        }
        for (row, bytes) in self.encode_keys(keys)?.iter().enumerate() {
            let count = self.numbers.len();
            let number = u32::try_from(count)
                .map_err(|e| Error::invalid("too many keys: more than 2^32").with_source(e))?;
            match self.numbers.entry(bytes.as_ref().into()) {
                Entry::Vacant(entry) => drop(entry.insert(number)),
                Entry::Occupied(_) => {
                    let message = format!(
                        "two rows have the same {}: {}; keep one of them",
                        self.names.join(", "),
                        format_key(keys, row)
                    );
                    return Err(Error::invalid(message));
                }
            }
        }
        for (bounds, column) in self.bounds.iter_mut().zip(keys) {
            let Some((min, max)) = min_and_max(column) else {
                continue;
            };
            *bounds = Some(match bounds.take() {
                Some((low, high)) => (
                    if min < low { min } else { low },
                    if max > high { max } else { high },
                ),
                None => (min, max),
            });
        }
        Ok(())
    }

    /// For each row whether the set has its key.
    pub(crate) fn contains(&self, keys: &[ArrayRef]) -> Result<Vec<bool>> {
        let numbers = self.find(keys)?.into_iter();
        Ok(numbers.map(|number| number.is_some()).collect())
    }

    /// For each row the number of its key, if the set has it.
    pub(crate) fn find(&self, keys: &[ArrayRef]) -> Result<Vec<Option<u32>>> {
        let typed_columns = keys.iter().zip(&self.data_types).zip(&self.names);
        let converted =
            typed_columns.map(|((column, data_type), name)| convert(column, data_type, name));
        let rows = self.encode_keys(&converted.collect::<Result<Vec<_>>>()?)?;
        Ok(rows
            .iter()
            .map(|row| self.numbers.get(row.as_ref()).copied())
            .collect())
    }

    fn encode_keys(&self, keys: &[ArrayRef]) -> Result<arrow_row::Rows> {
        let canonical_keys: Vec<ArrayRef> = keys.iter().map(canonicalize).collect();
        let converted = self.converter.convert_columns(&canonical_keys);
        converted.map_err(Error::from_cause)
    }

    /// The encoded keys.
    pub(super) fn encoded_keys(&self) -> Vec<Box<[u8]>> {
        self.numbers.keys().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The types of the key columns.
    pub(crate) fn data_types(&self) -> &[DataType] {
        &self.data_types
    }

    /// The smallest and the largest value of a key column; `None` without keys and for a type without bounds.
    pub(crate) fn bounds(&self, column: usize) -> Option<&(ScalarValue, ScalarValue)> {
        self.bounds[column].as_ref()
    }
}

fn min_and_max(column: &ArrayRef) -> Option<(ScalarValue, ScalarValue)> {
    if !has_bounds(column.data_type()) || column.is_empty() {
        return None;
    }
    let bound = |largest| ScalarValue::try_from_array(&extreme_value(column, largest)?, 0).ok();
    Some((bound(false)?, bound(true)?))
}

/// A key as text, for a message.
fn format_key(keys: &[ArrayRef], row: usize) -> String {
    let values = keys.iter().map(|column| {
        arrow_cast::display::array_value_to_string(column, row).unwrap_or_else(|_| "?".to_owned())
    });
    values.collect::<Vec<_>>().join(", ")
}
