//! The keys of rows that are written, to find the rows that have them already. Of floats -0.0 is the key
//! 0.0, and every NaN is the same key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, Schema};
use datafusion_common::ScalarValue;

use super::floats::canonicalize;
use super::format::Manifest;
use super::schema::Columns;
use super::statistics::{extreme_of, has_bounds};
use crate::error::{Error, Result};
use crate::parquet::types::convert;

/// Keys, each once.
#[derive(Debug)]
pub(super) struct KeySet {
    /// The identities of the columns.
    pub(super) ids: Vec<u32>,
    names: Vec<String>,
    kinds: Vec<DataType>,
    converter: RowConverter,
    /// Their numbers, in the order in which they were added.
    rows: HashMap<Box<[u8]>, u32>,
    /// By column, the smallest and the largest value. They hold nothing of the batches.
    ends: Vec<Option<(ScalarValue, ScalarValue)>>,
}

impl KeySet {
    /// No key yet; `places` are the columns of the key, by position among the table's.
    pub(super) fn new(columns: &Columns, places: &[usize]) -> Result<Self> {
        let fields = places.iter().map(|place| columns.schema.field(*place));
        let kinds: Vec<DataType> = fields.clone().map(|f| f.data_type().clone()).collect();
        let sort = kinds.iter().cloned().map(SortField::new).collect();
        let converter = RowConverter::new(sort).map_err(|e| {
            let message = format!("columns of the types {kinds:?} cannot be compared: {e}");
            Error::invalid(message).with_source(e)
        })?;
        Ok(Self {
            ids: places.iter().map(|place| columns.ids[*place]).collect(),
            names: fields.map(|f| f.name().clone()).collect(),
            ends: vec![None; kinds.len()],
            kinds,
            converter,
            rows: HashMap::new(),
        })
    }

    /// Adds the keys of rows; refuses nulls and keys that are there.
    pub(super) fn add(&mut self, keys: &[ArrayRef]) -> Result<()> {
        for (name, column) in self.names.iter().zip(keys) {
            if column.logical_null_count() > 0 {
                let message = format!("column {name:?} holds a null, and rows are matched by it");
                return Err(Error::invalid(message));
            }
        }
        for (row, bytes) in self.rows_of(keys)?.iter().enumerate() {
            let number = self.rows.len();
            let number = u32::try_from(number)
                .map_err(|e| Error::invalid("more than 4,294,967,295 keys").with_source(e))?;
            match self.rows.entry(bytes.as_ref().into()) {
                Entry::Vacant(place) => drop(place.insert(number)),
                Entry::Occupied(_) => {
                    let message = format!(
                        "two rows have the same {}: {}; keep one of them",
                        self.names.join(", "),
                        shown(keys, row)
                    );
                    return Err(Error::invalid(message));
                }
            }
        }
        for (ends, column) in self.ends.iter_mut().zip(keys) {
            let Some((min, max)) = ends_of(column) else {
                continue;
            };
            *ends = Some(match ends.take() {
                Some((low, high)) => (
                    if min < low { min } else { low },
                    if max > high { max } else { high },
                ),
                None => (min, max),
            });
        }
        Ok(())
    }

    /// For each row whether its key is one of these.
    pub(super) fn contains(&self, keys: &[ArrayRef]) -> Result<Vec<bool>> {
        let found = self.find(keys)?.into_iter();
        Ok(found.map(|found| found.is_some()).collect())
    }

    /// For each row the number of its key.
    pub(super) fn find(&self, keys: &[ArrayRef]) -> Result<Vec<Option<u32>>> {
        let fitted = keys.iter().zip(&self.kinds).zip(&self.names);
        let fitted = fitted.map(|((column, kind), name)| convert(column, kind, name));
        let rows = self.rows_of(&fitted.collect::<Result<Vec<_>>>()?)?;
        Ok(rows
            .iter()
            .map(|row| self.rows.get(row.as_ref()).copied())
            .collect())
    }

    fn rows_of(&self, keys: &[ArrayRef]) -> Result<arrow_row::Rows> {
        let keys: Vec<ArrayRef> = keys.iter().map(canonicalize).collect();
        let converted = self.converter.convert_columns(&keys);
        converted.map_err(|e| Error::other(e.to_string()).with_source(e))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The columns' types.
    pub(super) fn kinds(&self) -> &[DataType] {
        &self.kinds
    }

    /// The smallest and the largest value of a column.
    pub(super) fn ends(&self, column: usize) -> Option<&(ScalarValue, ScalarValue)> {
        self.ends[column].as_ref()
    }
}

fn ends_of(column: &ArrayRef) -> Option<(ScalarValue, ScalarValue)> {
    if !has_bounds(column.data_type()) || column.is_empty() {
        return None;
    }
    let end = |largest| ScalarValue::try_from_array(&extreme_of(column, largest)?, 0).ok();
    Some((end(false)?, end(true)?))
}

/// A key, for a message.
fn shown(keys: &[ArrayRef], row: usize) -> String {
    let values = keys.iter().map(|column| {
        arrow_cast::display::array_value_to_string(column, row).unwrap_or_else(|_| "?".to_owned())
    });
    values.collect::<Vec<_>>().join(", ")
}

/// The positions of columns by name, in the order of the table; refuses none and one that is there twice.
fn places(schema: &Schema, on: &[String]) -> Result<Vec<usize>> {
    let mut places = Vec::new();
    for name in on {
        let place = crate::parquet::types::index_of(schema, name)?;
        if places.contains(&place) {
            return Err(Error::invalid(format!("column {name:?} is named twice")));
        }
        places.push(place);
    }
    if places.is_empty() {
        let message =
            "rows are matched by no column: the table has no key, name the columns with on=";
        return Err(Error::invalid(message));
    }
    places.sort_unstable();
    Ok(places)
}

/// The columns that rows are matched by.
pub(super) fn matched_by(
    on: Option<&[String]>,
    base: &Manifest,
    columns: &Columns,
) -> Result<Vec<usize>> {
    if let Some(on) = on {
        return places(&columns.schema, on);
    }
    let named = columns.schema.fields().iter().zip(columns.ids.iter());
    let key = named.filter(|(_, id)| base.key.contains(id));
    let key: Vec<String> = key.map(|(field, _)| field.name().clone()).collect();
    places(&columns.schema, &key)
}
