//! A table's columns as Delta has them, and what a reader must know for it.
//!
//! Columns are mapped by id, so a rename or a drop is a change of metadata. Types that Delta lacks, and names that
//! differ only in case, are refused ([`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)) and can be left out
//! of the export. A column that became wider carries its earlier types, where Delta knows such a change.

use std::collections::BTreeSet;

use arrow_schema::{DataType, Field};
use serde_json::{Value, json};

use super::types::{self, can_widen, new_type};
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::table::export::{ExportColumn, ExportType, export_columns};
use crate::table::format::{ColumnSchema, TableManifest};

/// Features of the protocol; see "Table Features" there.
pub(super) const COLUMN_MAPPING: &str = "columnMapping";
pub(super) const DELETION_VECTORS: &str = "deletionVectors";
pub(super) const INVARIANTS: &str = "invariants";
pub(super) const TIMESTAMP_NTZ: &str = "timestampNtz";
pub(super) const TYPE_WIDENING: &str = "typeWidening";

/// The columns of a version that are exported.
#[derive(Debug)]
pub(super) struct DeltaSchema {
    pub(super) columns: Vec<DeltaColumn>,
    /// The highest id of a column or a field.
    last_id: u32,
}

/// An exported column with its history.
#[derive(Debug)]
pub(super) struct DeltaColumn {
    pub(super) exported: ExportColumn,
    /// The other types that it had, oldest first.
    pub(super) narrower: Vec<Narrower>,
}

/// A type that a column had.
#[derive(Debug)]
pub(super) struct Narrower {
    /// The version that widened it.
    pub(super) before: u64,
    /// The type of Arrow, as text.
    pub(super) name: String,
    /// None if Delta has no such type.
    data_type: Option<ExportType>,
}

/// Refuses a table of which not all columns can be exported.
pub(in crate::table) fn check_columns(
    manifest: &TableManifest,
    columns: &TableColumns,
) -> Result<()> {
    DeltaSchema::new(manifest, columns, &[]).map(drop)
}

impl DeltaSchema {
    /// Refuses columns of types that Delta lacks, and names that differ only in case.
    pub(super) fn new(
        manifest: &TableManifest,
        columns: &TableColumns,
        left_out: &[u32],
    ) -> Result<Self> {
        let exported = export_columns("Delta", manifest, columns, left_out, new_type)?;
        if exported.is_empty() {
            return Err(Error::invalid("no column is left to export"));
        }
        if exported.iter().any(|(column, _)| column.stored.is_empty()) {
            let message =
                "a column without a name cannot be exported to Delta: name it in leave_out";
            return Err(Error::invalid(message));
        }
        let columns = exported.into_iter().map(|(exported, entry)| DeltaColumn {
            narrower: narrower_types(entry, &exported.data_type),
            exported,
        });
        Ok(Self {
            columns: columns.collect(),
            last_id: manifest.schema.last_id,
        })
    }

    /// The columns without their history.
    pub(super) fn exported_columns(&self) -> impl Iterator<Item = &ExportColumn> {
        self.columns.iter().map(|column| &column.exported)
    }

    /// What readers must know of the columns, whatever the files have.
    pub(super) fn features(&self) -> BTreeSet<&'static str> {
        let mut features = BTreeSet::new();
        for column in self.exported_columns() {
            if column.name != column.stored {
                features.insert(COLUMN_MAPPING);
            }
            if !column.nullable || column.data_type.has_required_field() {
                features.insert(INVARIANTS);
            }
            if column.data_type.has_primitive("timestamp_ntz") {
                features.insert(TIMESTAMP_NTZ);
            }
        }
        features
    }

    /// The text of the schema in the metadata.
    pub(super) fn to_json(&self, features: &BTreeSet<String>) -> String {
        let by_name = features.contains(COLUMN_MAPPING);
        let allows_narrower = features.contains(TYPE_WIDENING);
        let fields = self.columns.iter().map(|column| {
            let exported = &column.exported;
            let mut metadata = if by_name {
                types::mapping(i64::from(exported.id), &exported.stored)
            } else {
                json!({})
            };
            if let DataType::Duration(unit) = &exported.arrow_type {
                metadata["comment"] = format!("a duration in units of {unit:?}").into();
            }
            let type_changes = column.type_changes();
            if allows_narrower && type_changes != json!([]) {
                metadata["delta.typeChanges"] = type_changes;
            }
            json!({
                "name": exported.name,
                "type": types::to_json(&exported.data_type, by_name),
                "nullable": exported.nullable,
                "metadata": metadata,
            })
        });
        let fields: Vec<Value> = fields.collect();
        json!({"type": "struct", "fields": fields}).to_string()
    }

    /// The highest id that a column or a field has had.
    pub(super) fn last_id(&self) -> u32 {
        self.last_id
    }
}

impl DeltaColumn {
    /// Its types, each with the next, as far as Delta knows such changes.
    fn type_changes(&self) -> Value {
        let known = self
            .narrower
            .iter()
            .filter(|narrower| narrower.can_become(self));
        let types = known.filter_map(|narrower| narrower.data_type.as_ref());
        let next = types.clone().skip(1).chain([&self.exported.data_type]);
        let changes = types
            .zip(next)
            .map(|(from, to)| json!({"fromType": from.to_string(), "toType": to.to_string()}));
        changes.collect()
    }
}

impl Narrower {
    /// Whether readers give values of the type as those of the column.
    pub(super) fn can_become(&self, column: &DeltaColumn) -> bool {
        let data_type = self.data_type.as_ref();
        data_type.is_some_and(|data_type| can_widen(data_type, &column.exported.data_type))
    }

    /// Whether it is the type that is written so.
    pub(super) fn is(&self, text: &str) -> bool {
        let data_type = self.data_type.as_ref();
        data_type.is_some_and(|data_type| data_type.to_string() == text)
    }
}

/// The types that a column had before it was widened, without those that Delta does not tell from the next one.
fn narrower_types(column: &ColumnSchema, current: &ExportType) -> Vec<Narrower> {
    let mut narrower: Vec<Narrower> = Vec::new();
    for widened in &column.widened {
        let parsed = widened.from.parse::<DataType>().ok();
        let data_type =
            parsed.and_then(|data_type| new_type(&Field::new("", data_type, true)).ok());
        let text = data_type.as_ref().map(ToString::to_string);
        // Only the last version with a type counts.
        if let (Some(last), Some(text)) = (narrower.last(), &text)
            && last.is(text)
        {
            narrower.pop();
        }
        narrower.push(Narrower {
            before: widened.version,
            name: widened.from.clone(),
            data_type,
        });
    }
    let current = current.to_string();
    if narrower.last().is_some_and(|last| last.is(&current)) {
        narrower.pop();
    }
    narrower
}
