//! What a merge does with rows: clauses that are tried in their order, the first that holds decides.
//!
//! Predicates and values are SQL over `source.…` and `target.…`.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow_schema::{DataType, Schema, SchemaRef};
use arrow_select::filter::{filter_record_batch, prep_null_mask_filter};
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_expr::ExprSchemable;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};

use super::semantics::apply_sql_semantics;
use super::sql::{self, Rewrite};
use super::types::keeps_values;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::parquet::types::{batch_with_row_count, convert};

/// The names that expressions call both sides by.
const SOURCE: &str = "source";
const TARGET: &str = "target";

/// Which rows a clause is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Rows of the table whose key a row of the source has.
    Matched,
    /// Rows of the source whose key no row of the table has.
    NotMatched,
    /// Rows of the table whose key no row of the source has.
    NotMatchedBySource,
}

/// What a clause does with them.
#[derive(Debug, Clone)]
pub enum Then {
    /// They go.
    Delete,
    /// Columns of the source take the place of those with the same name.
    WriteAll,
    /// Columns get the values of expressions; the others keep theirs, or are null in a new row.
    Write(Vec<(String, String)>),
}

/// One clause.
#[derive(Debug, Clone)]
pub struct Clause {
    /// Which rows it is about.
    pub when: When,
    /// Of those only the rows for which this holds.
    pub predicate: Option<String>,
    /// What it does.
    pub then: Then,
}

/// A value of a row that is written.
enum Value {
    /// The column of a batch.
    Column(usize),
    Null,
    Computed(Arc<dyn PhysicalExpr>),
}

struct Planned {
    predicate: Option<Arc<dyn PhysicalExpr>>,
    /// By the table's column; None deletes.
    values: Option<Vec<Value>>,
    what: String,
}

/// The clauses about some rows, planned for batches with the columns of the source, of the table, or of
/// both, the source's first.
pub(super) struct Clauses {
    planned: Vec<Planned>,
    input: SchemaRef,
    output: SchemaRef,
}

/// What clauses made of a batch.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// Rows that are written.
    pub(super) written: Vec<RecordBatch>,
    /// For each row whether a clause decided on it.
    pub(super) decided: Vec<bool>,
    /// How many of these are written.
    pub(super) rows: u64,
}

impl Clauses {
    /// Plans those of the clauses that are about `when`; `table` and `source` are the columns.
    pub(super) fn plan(
        clauses: &[Clause],
        when: When,
        (source, table): (&Schema, &SchemaRef),
        clock: &dyn Clock,
    ) -> Result<Self> {
        let with_source = when != When::NotMatchedBySource;
        let with_table = when != When::NotMatched;
        let sides = [
            (SOURCE, source, with_source),
            (TARGET, &**table, with_table),
        ];
        let sides = sides.iter().filter(|(_, _, there)| *there);
        let mut named = DFSchema::empty();
        let mut fields = Vec::new();
        for (name, side, _) in sides {
            let qualified = DFSchema::try_from_qualified_schema(*name, side);
            let joined = qualified.and_then(|side| named.join(&side));
            named = joined.map_err(|e| sql::planning_error("the source", e))?;
            fields.extend(side.fields().iter().cloned());
        }
        let context = Context {
            named: Arc::new(named),
            source: with_source.then_some(source),
            first_of_table: with_table.then_some(if with_source {
                source.fields().len()
            } else {
                0
            }),
            table,
            clock,
        };
        let chosen = clauses.iter().filter(|clause| clause.when == when);
        let planned = chosen.map(|clause| context.plan(clause));
        // Nullable, so that a null where none may be is told by name when it is written.
        let output = table.fields().iter();
        let output = output.map(|f| Arc::new(f.as_ref().clone().with_nullable(true)));
        Ok(Self {
            planned: planned.collect::<Result<_>>()?,
            input: Arc::new(Schema::new(fields)),
            output: Arc::new(Schema::new(output.collect::<Vec<_>>())),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// Decides on the rows of a batch with these columns.
    pub(super) fn apply(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<Made> {
        let mut made = Made {
            decided: vec![false; rows],
            ..Made::default()
        };
        // The rows on which no clause has decided, and where they were.
        let mut open = batch_with_row_count(&self.input, columns, rows)?;
        let mut places: Vec<usize> = (0..rows).collect();
        for clause in &self.planned {
            if places.is_empty() {
                break;
            }
            let held = match &clause.predicate {
                Some(predicate) => clause.holds(predicate, &open)?,
                None => vec![true; places.len()].into(),
            };
            for row in held.values().set_indices() {
                made.decided[places[row]] = true;
            }
            if let Some(values) = clause.values.as_ref().filter(|_| held.true_count() > 0) {
                let chosen = filtered(&open, &held)?;
                made.rows += chosen.num_rows() as u64;
                made.written
                    .push(clause.written(values, &chosen, &self.output)?);
            }
            open = filtered(&open, &BooleanArray::new(!held.values(), None))?;
            places.retain(|place| !made.decided[*place]);
        }
        Ok(made)
    }
}

fn filtered(batch: &RecordBatch, kept: &BooleanArray) -> Result<RecordBatch> {
    filter_record_batch(batch, kept).map_err(|e| Error::other(e.to_string()).with_source(e))
}

impl Planned {
    fn failed(&self, e: DataFusionError) -> Error {
        let why = e.strip_backtrace();
        Error::invalid(format!("{} cannot be evaluated: {why}", self.what)).with_source(e)
    }

    fn holds(
        &self,
        predicate: &Arc<dyn PhysicalExpr>,
        batch: &RecordBatch,
    ) -> Result<BooleanArray> {
        let rows = batch.num_rows();
        let held = predicate
            .evaluate(batch)
            .and_then(|held| held.into_array(rows));
        let held = held.map_err(|e| self.failed(e))?;
        Ok(match held.as_boolean_opt() {
            Some(held) if held.null_count() > 0 => prep_null_mask_filter(held),
            Some(held) => held.clone(),
            None => vec![false; rows].into(),
        })
    }

    fn written(
        &self,
        values: &[Value],
        batch: &RecordBatch,
        output: &SchemaRef,
    ) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = values.iter().zip(output.fields()).map(|(value, field)| {
            let found = match value {
                Value::Column(place) => Arc::clone(batch.column(*place)),
                Value::Null => new_null_array(field.data_type(), rows),
                Value::Computed(expr) => {
                    let found = expr
                        .evaluate(batch)
                        .and_then(|found| found.into_array(rows));
                    found.map_err(|e| self.failed(e))?
                }
            };
            convert(&found, field.data_type(), field.name())
        });
        batch_with_row_count(output, columns.collect::<Result<_>>()?, rows)
    }
}

/// What expressions see.
struct Context<'a> {
    named: Arc<DFSchema>,
    source: Option<&'a Schema>,
    first_of_table: Option<usize>,
    table: &'a SchemaRef,
    clock: &'a dyn Clock,
}

impl Context<'_> {
    fn plan(&self, clause: &Clause) -> Result<Planned> {
        let mut predicate = None;
        let mut what = format!("a clause of the merge ({:?})", clause.when);
        if let Some(text) = &clause.predicate {
            what = format!("the predicate {}", sql::format_sql(text));
            let (expr, kind) = self.expression(&what, text, None)?;
            if !matches!(kind, DataType::Boolean | DataType::Null) {
                return Err(Error::invalid(format!(
                    "{what} is {kind}, and must be true or false"
                )));
            }
            predicate = Some(expr);
        }
        let values = match &clause.then {
            Then::Delete => None,
            Then::WriteAll => Some(self.all()?),
            Then::Write(assigned) => Some(self.some(assigned)?),
        };
        Ok(Planned {
            predicate,
            values,
            what,
        })
    }

    fn expression(
        &self,
        what: &str,
        text: &str,
        target: Option<&DataType>,
    ) -> Result<(Arc<dyn PhysicalExpr>, DataType)> {
        let refused = |e: DataFusionError| sql::planning_error(what, e);
        sql::check_length(what, text)?;
        sql::with_stack(what, || {
            let logical = sql::plan(text, &self.named, self.clock, Rewrite::Simplify, target)
                .map_err(refused)?;
            let kind = logical.get_type(&self.named).map_err(refused)?;
            let context = PhysicalPlanningContext::default();
            let props = ExecutionProps::new();
            let planned = create_physical_expr(&logical, &self.named, &props, &context);
            let input = self.named.as_arrow();
            let planned = apply_sql_semantics(planned.map_err(refused)?, input).map_err(refused)?;
            Ok((planned, kind))
        })
    }

    /// The value of a column that no clause gives one.
    fn kept(&self, place: usize) -> Value {
        self.first_of_table
            .map_or(Value::Null, |first| Value::Column(first + place))
    }

    fn all(&self) -> Result<Vec<Value>> {
        let source = self
            .source
            .ok_or_else(|| Error::other("there is no source"))?;
        if let Some(other) = source
            .fields()
            .iter()
            .find(|f| self.table.index_of(f.name()).is_err())
        {
            let message = format!(
                "column {:?} of the source is not one of the table's; name the columns to write",
                other.name()
            );
            return Err(Error::invalid(message));
        }
        let fields = self.table.fields().iter().enumerate();
        let values = fields.map(|(place, field)| {
            let Some((at, found)) = source.column_with_name(field.name()) else {
                return Ok(self.kept(place));
            };
            let (from, to) = (found.data_type(), field.data_type());
            check_fits(field.name(), from, to, keeps_values(from, to))?;
            Ok(Value::Column(at))
        });
        values.collect()
    }

    fn some(&self, assigned: &[(String, String)]) -> Result<Vec<Value>> {
        let mut values: Vec<Value> = (0..self.table.fields().len())
            .map(|c| self.kept(c))
            .collect();
        for (column, text) in assigned {
            let place = crate::parquet::types::index_of(self.table, column)?;
            let what = format!("the value {} of column {column:?}", sql::format_sql(text));
            let to = self.table.field(place).data_type();
            let (expr, kind) = self.expression(&what, text, Some(to))?;
            // Between numbers as SQL assigns; what does not fit is refused then.
            let is_number = kind.is_numeric() && to.is_numeric();
            let cuts = to.is_integer() && !kind.is_integer();
            let fits = keeps_values(&kind, to) || (is_number && !cuts);
            check_fits(column, &kind, to, fits)?;
            values[place] = Value::Computed(expr);
        }
        Ok(values)
    }
}

fn check_fits(column: &str, from: &DataType, to: &DataType, fits: bool) -> Result<()> {
    if fits {
        return Ok(());
    }
    let message = format!("column {column:?} is {to} in the table, and its value {from}; cast it");
    Err(Error::invalid(message))
}
