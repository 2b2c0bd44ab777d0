//! Values of columns in the folders of a file's path: `region=eu/day=2026-11-23/a.parquet`, as Hive lays datasets out.
//!
//! Values are percent-encoded; `__HIVE_DEFAULT_PARTITION__` is null. Such columns are mostly not in the files.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::files::expr::{Statistics, constant_to_json, has_bounds, is_exact};
use crate::store::percent_decode;

const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// The values in a path by the column's name, as text; None is null.
pub(super) type PartitionValues = BTreeMap<String, Option<String>>;

/// Parses the values in a file's path.
pub(super) fn parse(path: &str) -> Result<PartitionValues> {
    let (folders, _) = path.rsplit_once('/').unwrap_or_default();
    let mut values = PartitionValues::new();
    for (name, value) in folders
        .split('/')
        .filter_map(|folder| folder.split_once('='))
    {
        let decode = |text: &str| {
            let not_utf8 = |e| Error::invalid("a folder's name is not UTF-8").with_source(e);
            percent_decode(text).map_err(|e| not_utf8(e).with_path(path))
        };
        let value = (value != NULL_PARTITION).then(|| decode(value));
        if values.insert(decode(name)?, value.transpose()?).is_some() {
            let message = format!("the path has two values of the column {name:?}");
            return Err(Error::invalid(message).with_path(path));
        }
    }
    Ok(values)
}

/// Adds the values of columns that a file does not hold to its statistics. Returns them by column id; a null has no
/// value.
pub(super) fn constants(
    values: &PartitionValues,
    columns: &TableColumns,
    held: &BTreeMap<u32, String>,
    rows: u64,
    statistics: &mut Statistics,
) -> Result<BTreeMap<u32, Value>> {
    let mut constants = BTreeMap::new();
    for (name, text) in values {
        let Some((index, field)) = columns.schema.column_with_name(name) else {
            let message =
                format!("the path has a value of {name:?}, which is no column of the table");
            return Err(Error::invalid(message));
        };
        let id = columns.ids[index];
        if held.contains_key(&id) {
            continue;
        }
        let Some(text) = text else {
            statistics.null_counts.insert(id, rows);
            continue;
        };
        if !is_exact(text, field.data_type()) {
            let data_type = field.data_type();
            let message =
                format!("the path has {text:?} for the column {name:?}, which is no {data_type}");
            return Err(Error::invalid(message));
        }
        let exact = constant_to_json(text, field.data_type());
        if let Some(bound) = exact.as_ref().filter(|_| has_bounds(field.data_type())) {
            statistics.min.insert(id, bound.clone());
            statistics.max.insert(id, bound.clone());
        }
        statistics.null_counts.insert(id, 0);
        constants.insert(id, exact.unwrap_or_else(|| Value::from(text.as_str())));
    }
    Ok(constants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_values() {
        let parsed =
            parse("in/region=e%20u/day=2026-11-23/x=__HIVE_DEFAULT_PARTITION__/e=/a=b.parquet");
        let expected = [
            ("day", Some("2026-11-23")),
            ("e", Some("")),
            ("region", Some("e u")),
            ("x", None),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        assert_eq!(parsed.unwrap(), expected.into());
        assert!(parse("a.parquet").unwrap().is_empty());
        for invalid in ["a=1/a=2/f", "a=1/%61=2/f", "a=%ff/f"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }
}
