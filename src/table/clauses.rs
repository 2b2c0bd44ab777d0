//! The clauses of a merge: what happens to matched and unmatched rows.
//!
//! Clauses of one kind are tried in their order; for every row the first whose predicate is true decides.
//! Predicates and values are SQL expressions over the columns `source.…` and `target.…`, planned by
//! DataFusion with the semantics of [`to_physical`].
//!
//! Refused with [`crate::ErrorKind::InvalidInput`]: a predicate that is not boolean, an unknown column,
//! a value whose type cannot be assigned to its column, and an expression that fails for a row.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow_schema::{DataType, Schema, SchemaRef};
use arrow_select::filter::{filter_record_batch, prep_null_mask_filter};
use chrono::{DateTime, Utc};
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::utils::collect_columns;

use crate::error::{Error, Result};
use crate::files::expr::sql::{self, Rewrite};
use crate::files::expr::{to_physical, without_runs};
use crate::files::types::keeps_values;
use crate::parquet::types::{batch_with_row_count, convert};

/// The qualifiers of both sides in expressions.
const SOURCE: &str = "source";
const TARGET: &str = "target";

/// Which rows a clause applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClauseKind {
    /// Rows of the table whose key occurs in the source.
    Matched,
    /// Rows of the source whose key does not occur in the table.
    NotMatched,
    /// Rows of the table whose key does not occur in the source.
    NotMatchedBySource,
}

/// What a clause does with its rows.
#[derive(Debug, Clone)]
pub enum ClauseAction {
    /// Deletes the rows.
    Delete,
    /// Writes all columns of the source to the columns with the same names.
    WriteAll,
    /// Writes the values of SQL expressions, as pairs of column and expression; the other columns keep
    /// their values, or are null in a new row.
    Write(Vec<(String, String)>),
}

/// One clause of a merge.
#[derive(Debug, Clone)]
pub struct Clause {
    /// Which rows it applies to.
    pub kind: ClauseKind,
    /// The SQL condition on those rows. Defaults to all of them.
    pub predicate: Option<String>,
    /// What it does with the rows.
    pub action: ClauseAction,
}

/// What a merge does.
#[derive(Debug, Clone, Copy)]
pub struct MergeRules<'a> {
    /// The columns by which rows match. Defaults to the table's key.
    pub on: Option<&'a [String]>,
    /// The clauses.
    pub clauses: &'a [Clause],
    /// The value of `now()` in them.
    pub now: DateTime<Utc>,
}

/// Where the value of a written column comes from.
enum ColumnValue {
    /// The column of the input batch with this index.
    Column(usize),
    Null,
    Computed(Arc<dyn PhysicalExpr>),
}

struct PlannedClause {
    predicate: Option<Arc<dyn PhysicalExpr>>,
    /// One value for each column of the table; None deletes the row.
    values: Option<Vec<ColumnValue>>,
    /// Names the clause in error messages.
    label: String,
}

/// The clauses of one kind, planned for batches with the columns of the source, of the table, or of
/// both, the source's first.
pub(super) struct Clauses {
    planned: Vec<PlannedClause>,
    input: SchemaRef,
    output: SchemaRef,
    /// The index of the table's first column in a batch, if batches have the table's columns.
    first_table_column: Option<usize>,
}

/// The result of applying clauses to a batch.
#[derive(Debug, Default)]
pub(super) struct ClauseOutput {
    /// The rows to write.
    pub(super) batches: Vec<RecordBatch>,
    /// For each row of the input whether a clause applied to it.
    pub(super) decided: Vec<bool>,
    /// The number of rows to write.
    pub(super) written_rows: u64,
}

impl Clauses {
    /// Plans the clauses of `kind` for the schemas of the source and the table. `now()` is the same in all.
    pub(super) fn plan(
        clauses: &[Clause],
        kind: ClauseKind,
        (source, table): (&Schema, &SchemaRef),
        now: DateTime<Utc>,
    ) -> Result<Self> {
        let with_source = kind != ClauseKind::NotMatchedBySource;
        let with_table = kind != ClauseKind::NotMatched;
        let sides = [
            (SOURCE, source, with_source),
            (TARGET, &**table, with_table),
        ];
        let mut df_schema = DFSchema::empty();
        let mut fields = Vec::new();
        for (name, side, _) in sides.iter().filter(|(_, _, is_used)| *is_used) {
            let qualified = DFSchema::try_from_qualified_schema(*name, side);
            let joined = qualified.and_then(|side| df_schema.join(&side));
            df_schema = joined.map_err(|e| sql::planning_error("the source", e))?;
            fields.extend(side.fields().iter().cloned());
        }
        let clause_planner = ClausePlanner {
            df_schema: Arc::new(df_schema),
            source: with_source.then_some(source),
            first_table_column: with_table.then_some(if with_source {
                source.fields().len()
            } else {
                0
            }),
            table,
            now,
        };
        let chosen = clauses.iter().filter(|clause| clause.kind == kind);
        let planned = chosen.map(|clause| clause_planner.plan(clause));
        // Nullable, so that a null in a required column is refused by name when the row is written.
        let table_fields = table.fields().iter();
        let output_fields = table_fields.map(|f| Arc::new(f.as_ref().clone().with_nullable(true)));
        Ok(Self {
            planned: planned.collect::<Result<_>>()?,
            first_table_column: clause_planner.first_table_column,
            input: Arc::new(Schema::new(fields)),
            output: Arc::new(Schema::new(output_fields.collect::<Vec<_>>())),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// The positions of the table's columns that predicates and values are computed with.
    pub(super) fn find_table_columns(&self) -> Vec<usize> {
        let Some(first) = self.first_table_column else {
            return Vec::new();
        };
        let predicates = self.planned.iter().filter_map(|c| c.predicate.as_ref());
        let values = self.planned.iter().filter_map(|c| c.values.as_ref());
        let computed = values.flatten().filter_map(|value| match value {
            ColumnValue::Computed(expr) => Some(expr),
            ColumnValue::Column(_) | ColumnValue::Null => None,
        });
        let columns = predicates.chain(computed).flat_map(collect_columns);
        columns
            .filter_map(|column| column.index().checked_sub(first))
            .collect()
    }

    /// Whether the first clause deletes all rows.
    pub(super) fn deletes_all(&self) -> bool {
        let mut clauses = self.planned.iter();
        clauses
            .next()
            .is_some_and(|clause| clause.predicate.is_none() && clause.values.is_none())
    }

    /// Applies the clauses to `rows` rows with these columns.
    pub(super) fn apply(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<ClauseOutput> {
        let mut output = ClauseOutput {
            decided: vec![false; rows],
            ..ClauseOutput::default()
        };
        // The rows to which no clause has applied yet, and their positions in the input.
        let mut undecided = batch_with_row_count(&self.input, columns, rows)?;
        let mut positions: Vec<usize> = (0..rows).collect();
        for clause in &self.planned {
            if positions.is_empty() {
                break;
            }
            let mask = match &clause.predicate {
                Some(predicate) => clause.evaluate_predicate(predicate, &undecided)?,
                None => vec![true; positions.len()].into(),
            };
            for row in mask.values().set_indices() {
                output.decided[positions[row]] = true;
            }
            if let Some(values) = clause.values.as_ref().filter(|_| mask.true_count() > 0) {
                let selected = filter_batch(&undecided, &mask)?;
                output.written_rows += selected.num_rows() as u64;
                output
                    .batches
                    .push(clause.evaluate_values(values, &selected, &self.output)?);
            }
            undecided = filter_batch(&undecided, &BooleanArray::new(!mask.values(), None))?;
            positions.retain(|position| !output.decided[*position]);
        }
        Ok(output)
    }
}

fn filter_batch(batch: &RecordBatch, mask: &BooleanArray) -> Result<RecordBatch> {
    filter_record_batch(batch, mask).map_err(Error::from_cause)
}

impl PlannedClause {
    fn evaluation_error(&self, e: DataFusionError) -> Error {
        let reason = e.strip_backtrace();
        Error::invalid(format!("{} cannot be evaluated: {reason}", self.label)).with_source(e)
    }

    fn evaluate_predicate(
        &self,
        predicate: &Arc<dyn PhysicalExpr>,
        batch: &RecordBatch,
    ) -> Result<BooleanArray> {
        let rows = batch.num_rows();
        let evaluated = predicate
            .evaluate(batch)
            .and_then(|value| value.into_array(rows));
        let mask = evaluated.map_err(|e| self.evaluation_error(e))?;
        Ok(match mask.as_boolean_opt() {
            Some(mask) if mask.null_count() > 0 => prep_null_mask_filter(mask),
            Some(mask) => mask.clone(),
            None => vec![false; rows].into(),
        })
    }

    fn evaluate_values(
        &self,
        values: &[ColumnValue],
        batch: &RecordBatch,
        output: &SchemaRef,
    ) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = values.iter().zip(output.fields()).map(|(value, field)| {
            let array = match value {
                ColumnValue::Column(index) => Arc::clone(batch.column(*index)),
                ColumnValue::Null => new_null_array(field.data_type(), rows),
                ColumnValue::Computed(expr) => {
                    let evaluated = expr
                        .evaluate(batch)
                        .and_then(|result| result.into_array(rows));
                    evaluated.map_err(|e| self.evaluation_error(e))?
                }
            };
            assign(&array, field.data_type(), field.name())
        });
        batch_with_row_count(output, columns.collect::<Result<_>>()?, rows)
    }
}

/// The schemas that expressions are planned against.
struct ClausePlanner<'a> {
    df_schema: Arc<DFSchema>,
    source: Option<&'a Schema>,
    /// The index of the table's first column in a batch, if batches have the table's columns.
    first_table_column: Option<usize>,
    table: &'a SchemaRef,
    /// The value of `now()`.
    now: DateTime<Utc>,
}

impl ClausePlanner<'_> {
    fn plan(&self, clause: &Clause) -> Result<PlannedClause> {
        let mut predicate = None;
        let mut label = format!("the {:?} clause of the merge", clause.kind);
        if let Some(text) = &clause.predicate {
            label = format!("the predicate {}", sql::format_sql(text));
            let (expr, data_type) = self.plan_expression(&label, text, None)?;
            if !matches!(data_type, DataType::Boolean | DataType::Null) {
                return Err(Error::invalid(format!(
                    "{label} has the type {data_type}; it must be true or false"
                )));
            }
            predicate = Some(expr);
        }
        let values = match &clause.action {
            ClauseAction::Delete => None,
            ClauseAction::WriteAll => Some(self.values_by_name()?),
            ClauseAction::Write(assignments) => Some(self.assigned_values(assignments)?),
        };
        Ok(PlannedClause {
            predicate,
            values,
            label,
        })
    }

    fn plan_expression(
        &self,
        label: &str,
        text: &str,
        target_type: Option<&DataType>,
    ) -> Result<(Arc<dyn PhysicalExpr>, DataType)> {
        let plan_error = |e: DataFusionError| sql::planning_error(label, e);
        sql::check_length(label, text)?;
        sql::with_stack(label, || {
            let logical_expr = sql::plan(
                text,
                &self.df_schema,
                self.now,
                Rewrite::Simplify,
                target_type,
            )
            .map_err(plan_error)?;
            to_physical(&logical_expr, &self.df_schema).map_err(plan_error)
        })
    }

    /// The value of a column that the clause does not assign: its own, or null in a new row.
    fn unassigned_value(&self, column: usize) -> ColumnValue {
        self.first_table_column.map_or(ColumnValue::Null, |first| {
            ColumnValue::Column(first + column)
        })
    }

    fn values_by_name(&self) -> Result<Vec<ColumnValue>> {
        let source = self
            .source
            .ok_or_else(|| Error::other("internal error: the clause has no source columns"))?;
        if let Some(unknown_field) = source
            .fields()
            .iter()
            .find(|f| self.table.index_of(f.name()).is_err())
        {
            let message = format!(
                "unknown column {:?} in the source: the table does not have it; name the columns to write",
                unknown_field.name()
            );
            return Err(Error::invalid(message));
        }
        let fields = self.table.fields().iter().enumerate();
        let values = fields.map(|(index, field)| {
            let Some((source_index, source_field)) = source.column_with_name(field.name()) else {
                return Ok(self.unassigned_value(index));
            };
            let (from, to) = (source_field.data_type(), field.data_type());
            check_assignable(field.name(), from, to, keeps_values(from, to))?;
            Ok(ColumnValue::Column(source_index))
        });
        values.collect()
    }

    fn assigned_values(&self, assignments: &[(String, String)]) -> Result<Vec<ColumnValue>> {
        let mut values: Vec<ColumnValue> = (0..self.table.fields().len())
            .map(|c| self.unassigned_value(c))
            .collect();
        for (column, text) in assignments {
            let index = crate::parquet::types::index_of(self.table, column)?;
            let label = format!("the value {} of column {column:?}", sql::format_sql(text));
            let to = self.table.field(index).data_type();
            let (expr, data_type) = self.plan_expression(&label, text, Some(to))?;
            let fits = keeps_values(&data_type, to) || is_checked(&data_type, to);
            check_assignable(column, &data_type, to, fits)?;
            values[index] = ColumnValue::Computed(expr);
        }
        Ok(values)
    }
}

/// Whether each value of an expression is checked when it is converted to the type of its column, and refused if it does
/// not fit: numbers are assigned as in SQL, and so is what other systems have in a wider type only.
fn is_checked(from: &DataType, to: &DataType) -> bool {
    use DataType::{Binary, Date32, Date64, FixedSizeBinary, LargeBinary};
    let is_whole = from.is_integer() || matches!(from, DataType::Decimal128(_, 0));
    let is_number = from.is_numeric() && to.is_numeric() && (is_whole || !to.is_integer());
    let is_wider = matches!(
        (from, to),
        (Date32, Date64) | (Binary | LargeBinary, FixedSizeBinary(_))
    );
    is_number || is_wider || is_coarser(from, &without_runs(to))
}

/// Whether `to` has the times of `from` in a coarser unit, which cannot hold all their digits.
fn is_coarser(from: &DataType, to: &DataType) -> bool {
    use DataType::{Duration, Time32, Time64, Timestamp};
    let are_times = matches!(
        (from, to),
        (Timestamp(..), Timestamp(..))
            | (Duration(_), Duration(_))
            | (Time32(_) | Time64(_), Time32(_) | Time64(_))
    );
    are_times && !keeps_values(from, to) && keeps_values(to, from)
}

/// Converts the values of an expression to the type of their column, and refuses times that would lose digits.
fn assign(array: &ArrayRef, to: &DataType, column: &str) -> Result<ArrayRef> {
    let converted = convert(array, to, column)?;
    let from = array.data_type();
    if is_coarser(from, &without_runs(to)) && *convert(&converted, from, column)? != **array {
        let message = format!(
            "column {column:?}: a time has digits that {to} does not hold; cut them with CAST, or with date_trunc"
        );
        return Err(Error::invalid(message));
    }
    Ok(converted)
}

fn check_assignable(column: &str, from: &DataType, to: &DataType, fits: bool) -> Result<()> {
    if fits {
        return Ok(());
    }
    let message = format!(
        "type mismatch for column {column:?}: expected {to}, got {from}; cast it with CAST"
    );
    Err(Error::invalid(message))
}
