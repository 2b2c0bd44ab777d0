//! Which columns of a file are read, and how the result is built of them: whole columns, and fields of structs by
//! their path with dots.
//!
//! [`Projection::new`] finds the columns of names; a name that is neither a column nor a path is an error of the kind
//! `InvalidInput`. [`Projection::select`] limits a file to the leaf columns that are needed, so that no others are
//! read. [`Projection::build_batch`] takes the requested columns and fields out of the columns that were read.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};

use super::file::ParquetFile;
use super::plain_values::with_nulls;
use super::types::{batch_with_row_count, index_of};
use crate::error::{Error, Result};

/// The requested columns.
#[derive(Debug, Clone)]
pub(crate) struct Projection {
    /// Indices of the top-level columns of the file that are read, each once.
    pub(crate) indices: Arc<[usize]>,
    /// The schema of the result, in the requested order.
    pub(crate) schema: SchemaRef,
    outputs: Vec<ProjectedColumn>,
}

#[derive(Debug, Clone)]
struct ProjectedColumn {
    /// The position in `indices`.
    column: usize,
    /// The names of the nested fields that lead to it; empty for a whole column.
    path: Vec<String>,
}

impl Projection {
    /// Finds the columns of `names`, in that order; None means all. A name that no column has is a path.
    pub(crate) fn new(file: &ParquetFile, names: Option<&[String]>) -> Result<Self> {
        Self::with_inputs(file, names, &[])
    }

    /// As [`Self::new`], with the columns of the positions `inputs` behind them.
    pub(crate) fn with_inputs(
        file: &ParquetFile,
        names: Option<&[String]>,
        inputs: &[usize],
    ) -> Result<Self> {
        let schema = &file.schema;
        let at = |root: usize| (root, Vec::new(), Arc::clone(&schema.fields()[root]));
        let mut columns: Vec<_> = match names {
            // By position: columns of foreign files may have one name.
            None => (0..schema.fields().len()).map(at).collect(),
            Some(names) => {
                let columns = names.iter().map(|name| find_field(schema, name));
                columns.collect::<Result<_>>()?
            }
        };
        columns.extend(inputs.iter().copied().map(at));
        let (mut indices, mut outputs, mut fields) = (Vec::new(), Vec::new(), Vec::new());
        for (root, path, field) in columns {
            let position = indices.iter().position(|index| *index == root);
            let column = position.unwrap_or_else(|| {
                indices.push(root);
                indices.len() - 1
            });
            outputs.push(ProjectedColumn { column, path });
            fields.push(field);
        }
        let projected_schema = Schema::new_with_metadata(fields, schema.metadata().clone());
        Ok(Self {
            indices: indices.into(),
            schema: Arc::new(projected_schema),
            outputs,
        })
    }

    /// The file with only those fields of its structs that are read.
    pub(crate) fn select(&self, file: &ParquetFile) -> ParquetFile {
        if self.outputs.iter().all(|output| output.path.is_empty()) {
            return file.clone();
        }
        let mut leaves = Vec::new();
        let mut fields: Vec<FieldRef> = file.schema.fields().to_vec();
        for (column, &root) in self.indices.iter().enumerate() {
            let outputs = self.outputs.iter().filter(|output| output.column == column);
            let paths: Vec<&[String]> = outputs.map(|output| output.path.as_slice()).collect();
            let all: Vec<usize> = file.leaves(root).collect();
            let field = &file.schema.field(root);
            if count_leaves(field.data_type()) != all.len() {
                leaves.extend(all);
                continue;
            }
            let mut leaf_indices = all.iter().copied();
            fields[root] = prune(&fields[root], &paths, &mut leaf_indices, &mut leaves);
        }
        file.with_leaves(leaves, fields)
    }

    /// Builds the result of the columns that were read, which are those of `indices`.
    pub(crate) fn build_batch(&self, columns: &[ArrayRef], rows: usize) -> Result<RecordBatch> {
        let outputs = self.outputs.iter();
        let arrays = outputs
            .map(|output| extract(&columns[output.column], &output.path))
            .collect::<Result<Vec<_>>>()?;
        batch_with_row_count(&self.schema, arrays, rows)
    }
}

/// The index of a column, the path within it to the field that `name` means, and that field.
fn find_field(schema: &Schema, name: &str) -> Result<(usize, Vec<String>, FieldRef)> {
    let fields = schema.fields();
    if let Some(root) = fields.iter().position(|field| field.name() == name) {
        if fields[root + 1..].iter().any(|field| field.name() == name) {
            return Err(Error::invalid(format!(
                "several columns are named {name:?}; read all columns, and choose by position"
            )));
        }
        return Ok((root, Vec::new(), Arc::clone(&fields[root])));
    }
    for (root, field) in fields.iter().enumerate() {
        let suffix = name.strip_prefix(field.name().as_str());
        let Some(nested_name) = suffix.and_then(|suffix| suffix.strip_prefix('.')) else {
            continue;
        };
        let mut path = Vec::new();
        if let Some(nested_field) = find_nested_field(field, nested_name, &mut path) {
            return Ok((root, path, nested_field));
        }
    }
    index_of(schema, name).map(|root| (root, Vec::new(), Arc::clone(&fields[root])))
}

fn find_nested_field(parent: &Field, name: &str, path: &mut Vec<String>) -> Option<FieldRef> {
    let DataType::Struct(fields) = parent.data_type() else {
        return None;
    };
    let as_nullable = |field: &FieldRef| -> FieldRef {
        let nullable = field.is_nullable() || parent.is_nullable();
        Arc::new(Field::clone(field).with_nullable(nullable))
    };
    for field in fields {
        if field.name() == name {
            path.push(field.name().clone());
            return Some(as_nullable(field));
        }
        let suffix = name.strip_prefix(field.name().as_str());
        let Some(nested_name) = suffix.and_then(|suffix| suffix.strip_prefix('.')) else {
            continue;
        };
        path.push(field.name().clone());
        let nullable_field = as_nullable(field);
        if let Some(nested_field) = find_nested_field(&nullable_field, nested_name, path) {
            return Some(nested_field);
        }
        path.pop();
    }
    None
}

/// The number of leaf columns that a type has in Parquet.
fn count_leaves(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => fields.iter().map(|f| count_leaves(f.data_type())).sum(),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => count_leaves(field.data_type()),
        _ => 1,
    }
}

/// The field with only the children that the paths lead to; adds their leaves to `selected`.
fn prune(
    field: &FieldRef,
    paths: &[&[String]],
    leaves: &mut dyn Iterator<Item = usize>,
    selected: &mut Vec<usize>,
) -> FieldRef {
    let is_whole = paths.iter().any(|path| path.is_empty());
    let DataType::Struct(fields) = field.data_type() else {
        selected.extend(leaves.take(count_leaves(field.data_type())));
        return Arc::clone(field);
    };
    if is_whole {
        selected.extend(leaves.take(count_leaves(field.data_type())));
        return Arc::clone(field);
    }
    let mut children = Vec::new();
    for child in fields {
        let matching_paths = paths.iter().filter(|path| path[0] == *child.name());
        let child_paths: Vec<&[String]> = matching_paths.map(|path| &path[1..]).collect();
        if child_paths.is_empty() {
            let leaf_count = count_leaves(child.data_type());
            leaves.take(leaf_count).for_each(drop);
        } else {
            children.push(prune(child, &child_paths, leaves, selected));
        }
    }
    let data_type = DataType::Struct(children.into());
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// The nested field at `path`, null wherever a struct around it is null.
fn extract(array: &ArrayRef, path: &[String]) -> Result<ArrayRef> {
    let Some((name, nested_path)) = path.split_first() else {
        return Ok(Arc::clone(array));
    };
    let struct_array = array.as_struct_opt();
    let column = struct_array.and_then(|struct_array| struct_array.column_by_name(name));
    let child = column.ok_or_else(|| Error::other(format!("internal error: no field {name:?}")))?;
    extract(&with_nulls(child, array.nulls())?, nested_path)
}
