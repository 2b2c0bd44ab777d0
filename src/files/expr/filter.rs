//! Filters: SQL predicates over a table's columns, planned and evaluated by DataFusion.
//!
//! A [`Filter`] is a predicate bound to the columns of one snapshot: SQL, a set of keys, or a predicate
//! that the caller evaluates. From statistics it decides which files and row groups may hold matching
//! rows, and it evaluates the rows that are read.
//!
//! Column names keep their case; a name that is not a plain word is quoted. A row for which the predicate
//! is null does not match. Of floats, -0.0 equals 0.0, and all NaN are equal and larger than every other
//! value: in comparisons, ranges and IN lists.
//!
//! A predicate that cannot be planned, is not boolean, or fails on a row is an error of the kind
//! `InvalidInput`. A predicate that statistics cannot decide prunes nothing and is no error.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::prep_null_mask_filter;
use datafusion_common::pruning::PruningStatistics;
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::Expr;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{ExprSchemable, Operator, binary_expr, lit};
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};

use super::key_set::KeySet;
use super::operators::combine_terms;
use super::predicate::{Bounds, ForeignPredicate, Predicate};
use super::pruner::Pruner;
use super::semantics::apply_sql_semantics;
use super::sliced::SlicedExpr;
use super::sql::{self, Rewrite};
use super::value_list::ValueList;
use super::values::to_json;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::files::columns::TableColumns;
use crate::files::run_blocking;
use crate::parquet::types::batch_with_row_count;

/// A predicate that is bound to the columns of a table's snapshot.
pub struct Filter {
    sql: String,
    logical: Expr,
    physical: Arc<dyn PhysicalExpr>,
    /// The columns that it reads, by position among the table's; ascending.
    columns: Vec<usize>,
    /// The schema of these columns.
    input: SchemaRef,
    pruning: Option<Pruner>,
    /// Whether statistics decide which files and row groups are read.
    uses_statistics: bool,
    /// The keys that rows have to have, and the positions of the key's columns in `columns`.
    keys: Option<(Vec<usize>, Arc<KeySet>)>,
    /// The caller's predicate, which is evaluated in place of `physical`.
    foreign: Option<Arc<dyn ForeignPredicate>>,
}

impl Predicate {
    /// Binds the predicate to the columns of a snapshot; `clock` gives the time of `now()`.
    pub fn bind(&self, columns: &TableColumns, clock: &dyn Clock) -> Result<Filter> {
        match self {
            Self::Sql(sql) => Filter::parse(sql, columns, clock),
            Self::Foreign(predicate) => Filter::from_foreign(Arc::clone(predicate), columns),
        }
    }

    /// Refuses SQL that may have another value when it is asked again; what else the predicate is counts as constant.
    pub(crate) fn check_deterministic(&self, columns: &TableColumns) -> Result<()> {
        let Self::Sql(text) = self else {
            return Ok(());
        };
        let label = format!("the filter {}", sql::format_sql(text));
        sql::check_length(&label, text)?;
        let schema = DFSchema::try_from(Arc::clone(&columns.schema));
        let schema = Arc::new(schema.map_err(|e| sql::planning_error(&label, e))?);
        sql::with_stack(&label, || {
            let parsed = sql::parse_deterministic(text, &schema);
            parsed.map(drop).map_err(|e| sql::planning_error(&label, e))
        })
    }

    /// Like [`Self::bind`]; without `use_stats` the filter is evaluated as written, on every row.
    pub fn bind_with(
        &self,
        columns: &TableColumns,
        clock: &dyn Clock,
        use_stats: bool,
    ) -> Result<Filter> {
        match self {
            _ if use_stats => self.bind(columns, clock),
            Self::Sql(sql) => Filter::parse_verbatim(sql, columns, clock),
            Self::Foreign(predicate) => {
                Filter::from_foreign(Arc::clone(predicate), columns).map(Filter::without_statistics)
            }
        }
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({:?})", self.sql)
    }
}

impl Filter {
    /// Parses and plans a SQL predicate; `clock` gives the time of `now()`.
    pub fn parse(sql: &str, table: &TableColumns, clock: &dyn Clock) -> Result<Self> {
        Self::parse_with(sql, table, clock, Rewrite::Simplify)
    }

    /// Parses a predicate that is evaluated as written, on every row: not simplified, and without pruning.
    pub fn parse_verbatim(sql: &str, table: &TableColumns, clock: &dyn Clock) -> Result<Self> {
        let filter = Self::parse_with(sql, table, clock, Rewrite::Verbatim);
        filter.map(Self::without_statistics)
    }

    /// The same filter, without pruning by statistics.
    pub(crate) fn without_statistics(mut self) -> Self {
        self.uses_statistics = false;
        self
    }

    fn parse_with(
        sql: &str,
        table: &TableColumns,
        clock: &dyn Clock,
        rewrite: Rewrite,
    ) -> Result<Self> {
        let context = format!("the filter {}", sql::format_sql(sql));
        let to_error = |e: DataFusionError| sql::planning_error(&context, e);
        sql::check_length(&context, sql)?;
        sql::with_stack(&context, || {
            let df_schema = DFSchema::try_from(table.schema.as_ref().clone()).map_err(to_error)?;
            let schema = Arc::new(df_schema);
            let logical = sql::plan(sql, &schema, clock.now(), rewrite, None).map_err(to_error)?;
            let data_type = logical.get_type(&schema).map_err(to_error)?;
            if !matches!(data_type, DataType::Boolean | DataType::Null) {
                let message =
                    format!("{context} has type {data_type}; a filter must be true or false");
                return Err(Error::invalid(message));
            }
            Self::new(sql.to_owned(), logical, &[], table).map_err(to_error)
        })
    }

    /// A filter for the rows with one of these keys. Fails if a key column was dropped or has another
    /// type than the keys.
    pub(crate) fn from_keys(keys: Arc<KeySet>, table: &TableColumns) -> Result<Self> {
        let mut positions = Vec::new();
        let mut terms = Vec::new();
        for (column, (id, data_type)) in keys.ids.iter().zip(keys.data_types()).enumerate() {
            let Some(position) = table
                .ids
                .iter()
                .position(|table_id| table_id == id)
                .filter(|p| table.schema.field(*p).data_type() == data_type)
            else {
                let message = "a concurrent commit dropped or changed a key column; write again";
                return Err(Error::new(ErrorKind::CommitConflict, message));
            };
            positions.push(position);
            if let Some((min, max)) = keys.bounds(column) {
                let name = table.schema.field(position).name();
                let column_expr = || Expr::Column(datafusion_common::Column::from_name(name));
                terms.push(binary_expr(column_expr(), Operator::GtEq, lit(min.clone())));
                terms.push(binary_expr(column_expr(), Operator::LtEq, lit(max.clone())));
            }
        }
        let bounds_expr = combine_terms(terms, Operator::And);
        let mut filter = Self::new("a key".to_owned(), bounds_expr, &positions, table)
            .map_err(Error::from_cause)?;
        if let ([position], [data_type]) = (positions.as_slice(), keys.data_types()) {
            let name = table.schema.field(*position).name();
            let list = ValueList::from_encoded(name, data_type, keys.encoded_keys());
            let lists = list.map(Pruner::Values).into_iter();
            filter.pruning = Some(Pruner::All(lists.chain(filter.pruning.take()).collect()));
        }
        let input_index = |position| filter.columns.binary_search(position).unwrap_or_default();
        filter.keys = Some((positions.iter().map(input_index).collect(), keys));
        Ok(filter)
    }

    /// A filter that the caller's predicate evaluates. Fails if the table lacks a column of it.
    pub(crate) fn from_foreign(
        predicate: Arc<dyn ForeignPredicate>,
        table: &TableColumns,
    ) -> Result<Self> {
        let positions = table.project(Some(predicate.columns()))?;
        let text = predicate.text().to_owned();
        let mut filter =
            Self::new(text, lit(true), &positions, table).map_err(Error::from_cause)?;
        filter.foreign = Some(predicate);
        Ok(filter)
    }

    /// `needed` are columns that the filter reads besides those of the expression.
    fn new(
        sql: String,
        logical: Expr,
        needed: &[usize],
        table: &TableColumns,
    ) -> datafusion_common::Result<Self> {
        let mut columns = needed.to_vec();
        for column in logical.column_refs() {
            columns.push(table.schema.index_of(&column.name)?);
        }
        columns.sort_unstable();
        columns.dedup();
        let input = Arc::new(table.schema.project(&columns)?);
        let projected = DFSchema::try_from(input.as_ref().clone())?;
        let context = PhysicalPlanningContext::default();
        let planned = create_physical_expr(&logical, &projected, &ExecutionProps::new(), &context)?;
        // A predicate that cannot be used for pruning prunes nothing: slower, and not an error.
        let pruning = Pruner::new(&logical, &input, &projected);
        let physical = SlicedExpr::wrap(apply_sql_semantics(planned, &input)?);
        Ok(Self {
            sql,
            logical,
            physical,
            columns,
            input,
            pruning,
            uses_statistics: true,
            keys: None,
            foreign: None,
        })
    }

    /// Whether statistics decide what is read.
    pub(crate) fn uses_statistics(&self) -> bool {
        self.uses_statistics
    }

    /// The columns that it reads, by position among the table's; ascending.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The identities, by name, of the columns that the predicate reads, given the columns to which it is bound.
    pub(crate) fn column_ids(&self, table: &TableColumns) -> BTreeMap<String, u32> {
        let positions = self.columns.iter();
        let known = positions
            .filter_map(|c| Some((table.schema.field(*c).name().clone(), *table.ids.get(*c)?)));
        known.collect()
    }

    /// Evaluates `rows` rows, given the columns of [`Self::columns`]: one value per row, none of them null.
    pub(crate) fn evaluate(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<BooleanArray> {
        if let Some((positions, keys)) = &self.keys {
            let key: Vec<ArrayRef> = positions.iter().map(|p| Arc::clone(&columns[*p])).collect();
            return keys.contains(&key).map(BooleanArray::from);
        }
        let batch: RecordBatch = batch_with_row_count(&self.input, columns, rows)?;
        if let Some(foreign) = &self.foreign {
            let mask = foreign.holds(&batch)?;
            if mask.len() != rows {
                let message = format!("predicate returned {} values for {rows} rows", mask.len());
                return Err(Error::other(message));
            }
            return Ok(nulls_to_false(&mask));
        }
        self.evaluate_expression(&batch)
    }

    fn evaluate_expression(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let rows = batch.num_rows();
        let to_error = |e: DataFusionError| {
            let reason = e.strip_backtrace();
            let message = format!(
                "the filter {} cannot be evaluated: {reason}",
                sql::format_sql(&self.sql)
            );
            Error::invalid(message).with_source(e)
        };
        let value = self.physical.evaluate(batch).map_err(to_error)?;
        let array = value.into_array(rows).map_err(to_error)?;
        let Some(mask) = array.as_boolean_opt() else {
            // The literal NULL: no row matches.
            return Ok(BooleanArray::from(vec![false; rows]));
        };
        Ok(nulls_to_false(mask))
    }

    /// For each container (file or row group) whether it may hold matching rows.
    pub(crate) async fn prune<S: PruningStatistics + Sync>(
        &self,
        statistics: S,
    ) -> Result<Vec<bool>> {
        if !self.uses_statistics {
            return Ok(vec![true; statistics.num_containers()]);
        }
        let Some(foreign) = &self.foreign else {
            let all = || vec![true; statistics.num_containers()];
            let pruning = self.pruning.as_ref();
            return Ok(pruning.map_or_else(all, |pruning| pruning.prune(&statistics)));
        };
        let bounds = Bounds::from_statistics(&statistics, &self.input)?;
        drop(statistics);
        let foreign = Arc::clone(foreign);
        run_blocking(move || foreign.may_hold(&bounds)).await
    }

    /// The closed range of `column` that the filter is equal to; `None` if it is anything else.
    pub(crate) fn to_closed_range(&self, column: &str) -> Option<ClosedRange> {
        let mut range = ClosedRange::default();
        let data_type = self.input.field_with_name(column).ok()?.data_type();
        for conjunct in split_conjunction(&self.logical) {
            range.narrow(conjunct, column, data_type)?;
        }
        Some(range)
    }
}

/// A row for which the predicate is null does not match.
fn nulls_to_false(mask: &BooleanArray) -> BooleanArray {
    match mask.null_count() {
        0 => mask.clone(),
        _ => prep_null_mask_filter(mask),
    }
}

/// A range of values, both ends included; `None` is an open end.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ClosedRange {
    pub(crate) min: Option<serde_json::Value>,
    pub(crate) max: Option<serde_json::Value>,
}

impl ClosedRange {
    /// Narrows the range by one comparison. Returns `None` if a closed range cannot express it, or if
    /// the range has that end already.
    fn narrow(&mut self, conjunct: &Expr, column: &str, data_type: &DataType) -> Option<()> {
        let Expr::BinaryExpr(comparison) = conjunct else {
            return None;
        };
        let (op, value) = match (&*comparison.left, &*comparison.right) {
            (Expr::Column(c), Expr::Literal(value, _)) if c.name == column => {
                (comparison.op, value)
            }
            (Expr::Literal(value, _), Expr::Column(c)) if c.name == column => {
                (comparison.op.swap()?, value)
            }
            _ => return None,
        };
        let array = value.to_array().ok()?;
        // A tombstone's bounds are values of the key's own type.
        if array.is_null(0) || array.data_type() != data_type || data_type.is_floating() {
            return None;
        }
        let step = |by: i64| {
            // Only integers have a next value.
            let is_integer = array.data_type().is_integer();
            let number = to_json(&array).filter(|_| is_integer)?.as_i64()?;
            Some(serde_json::Value::from(number.checked_add(by)?))
        };
        let (min, max) = match op {
            Operator::GtEq => (Some(to_json(&array)?), None),
            Operator::Gt => (Some(step(1)?), None),
            Operator::LtEq => (None, Some(to_json(&array)?)),
            Operator::Lt => (None, Some(step(-1)?)),
            Operator::Eq => (Some(to_json(&array)?), Some(to_json(&array)?)),
            _ => return None,
        };
        for (end, bound) in [(&mut self.min, min), (&mut self.max, max)] {
            if bound.is_some() && std::mem::replace(end, bound).is_some() {
                return None;
            }
        }
        Some(())
    }
}
