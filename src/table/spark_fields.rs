//! Spark's description of columns, in the metadata of an Arrow schema.
//!
//! Spark writes it into Parquet files, and so do we. By it, and by the names of columns, readers restore what Parquet
//! has no type for: collations, variants, intervals, comments. So it has to follow columns that are renamed or dropped.
//! Other metadata stays as it is.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use serde_json::Value;

use super::format::TableSchema;

/// The same key as `ParquetReadSupport.SPARK_METADATA_KEY` of Spark.
const SPARK_METADATA_KEY: &str = "org.apache.spark.sql.parquet.row.metadata";

/// Gives the columns of a description other names; one that gets none is left out.
pub(super) fn rename_described(
    metadata: &mut HashMap<String, String>,
    rename: impl Fn(&str) -> Option<String>,
) {
    let Some(text) = metadata.get_mut(SPARK_METADATA_KEY) else {
        return;
    };
    let Ok(mut description) = serde_json::from_str::<Value>(text) else {
        return;
    };
    let fields = description.get_mut("fields").and_then(Value::as_array_mut);
    let Some(fields) = fields else {
        return;
    };
    let mut is_changed = false;
    fields.retain_mut(|field| {
        let Some(name) = field.get_mut("name") else {
            return true;
        };
        let Some(old_name) = name.as_str() else {
            return true;
        };
        let new_name = rename(old_name);
        let is_same = new_name.as_deref() == Some(old_name);
        let is_kept = new_name.is_some();
        if !is_same {
            *name = Value::from(new_name);
            is_changed = true;
        }
        is_kept
    });
    // Else byte for byte what was written.
    if is_changed {
        *text = description.to_string();
    }
}

/// The schema of a data file, where columns have their stored names, with a description by these.
pub(super) fn describe_stored(schema: &SchemaRef, entries: &TableSchema) -> SchemaRef {
    let mut columns = entries.columns.iter();
    if columns.all(|column| column.stored_name() == column.name) {
        return Arc::clone(schema);
    }
    let mut metadata = schema.metadata().clone();
    rename_described(&mut metadata, |name| {
        let mut columns = entries.columns.iter();
        let column = columns.find(|column| column.name == name)?;
        Some(column.stored_name().to_owned())
    });
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"type":"struct","fields":[{"name":"a","type":"string"},{"name":"b","type":"variant"}]}"#;

    fn renamed(text: &str, rename: impl Fn(&str) -> Option<String>) -> String {
        let mut metadata = HashMap::from([(SPARK_METADATA_KEY.to_owned(), text.to_owned())]);
        rename_described(&mut metadata, rename);
        metadata.remove(SPARK_METADATA_KEY).unwrap()
    }

    fn names(text: &str) -> Vec<String> {
        let description: Value = serde_json::from_str(text).unwrap();
        let fields = description["fields"].as_array().unwrap().iter();
        fields
            .map(|f| f["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn columns_are_renamed_and_left_out_and_the_rest_stays() {
        let to_c = |name: &str| Some(if name == "b" { "c" } else { name }.to_owned());
        assert_eq!(names(&renamed(TEXT, to_c)), ["a", "c"]);
        let without_a = |name: &str| (name != "a").then(|| name.to_owned());
        assert_eq!(names(&renamed(TEXT, without_a)), ["b"]);
        assert_eq!(renamed(TEXT, |name| Some(name.to_owned())), TEXT);
        for other in ["", "[1]", r#"{"fields":7}"#, r#"{"fields":[1,{"name":2}]}"#] {
            assert_eq!(renamed(other, |_| None), other);
        }
        let mut none = HashMap::new();
        rename_described(&mut none, |_| None);
        assert!(none.is_empty());
    }
}
