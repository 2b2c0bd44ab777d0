//! Filters: SQL predicates over a table's columns, planned and evaluated by DataFusion.
//!
//! Names of columns are taken as they are written, quoted where they are no plain words. A row for
//! which the predicate is null is not meant.

use std::fmt;
use std::sync::Arc;
use std::thread;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::prep_null_mask_filter;
use datafusion_common::config::ConfigOptions;
use datafusion_common::pruning::PruningStatistics;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, TableReference, not_impl_err};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::Expr;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::planner::{ContextProvider, ExprPlanner};
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::utils::{split_binary_owned, split_conjunction};
use datafusion_expr::{
    AggregateUDF, ExprSchemable, HigherOrderUDF, Operator, ScalarUDF, TableSource, WindowUDF,
    binary_expr, lit,
};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_functions::datetime::planner::DatetimeFunctionPlanner;
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion_sql::parser::DFParserBuilder;
use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::keys::KeySet;
use super::schema::Columns;
use super::values::to_json;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::parquet::panic_text;
use crate::parquet::types::batch_of;

/// Bytes of stack to plan with: DataFusion walks expressions by recursion.
const PLANNING_STACK: usize = 256 << 20;
/// More could nest deeper than that holds.
const MAX_OPERATORS: usize = 5_000;
/// As much of a filter as a message shows.
const SHOWN_CHARS: usize = 200;
/// Levels of an expression that can be walked on any thread.
const MAX_DEPTH: usize = 200;

/// A predicate that was checked against a table's columns.
pub struct Filter {
    sql: String,
    logical: Expr,
    physical: Arc<dyn PhysicalExpr>,
    /// The columns it needs, by position among the table's.
    columns: Vec<usize>,
    /// Those columns.
    input: SchemaRef,
    pruning: Option<PruningPredicate>,
    /// Only rows with one of these keys, whose columns are at these places among its own.
    keys: Option<(Vec<usize>, Arc<KeySet>)>,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({:?})", self.sql)
    }
}

impl Filter {
    /// Parses a predicate; `clock` says what `now()` is.
    pub fn parse(sql: &str, table: &Columns, clock: &dyn Clock) -> Result<Self> {
        let refused =
            |why: &str| Error::invalid(format!("the filter {} cannot be used: {why}", shown(sql)));
        if operators(sql) > MAX_OPERATORS {
            let why = format!("more than {MAX_OPERATORS} operators; use IN for many values");
            return Err(refused(&why));
        }
        thread::scope(|scope| {
            let planning = thread::Builder::new().stack_size(PLANNING_STACK);
            let planning = planning.spawn_scoped(scope, || Self::plan(sql, table, clock));
            let planning = planning.map_err(|e| {
                let message = "no thread could be started to plan a filter";
                Error::other(message).caused_by(e)
            })?;
            let planned = planning.join();
            planned.unwrap_or_else(|panic| Err(refused(panic_text(panic.as_ref()))))
        })
    }

    fn plan(sql: &str, table: &Columns, clock: &dyn Clock) -> Result<Self> {
        let refused = |e: DataFusionError| {
            let why = e.strip_backtrace();
            Error::invalid(format!("the filter {} cannot be used: {why}", shown(sql))).caused_by(e)
        };
        let whole = DFSchema::try_from(table.schema.as_ref().clone()).map_err(refused)?;
        let whole = Arc::new(whole);
        let logical = plan(sql, &whole, clock).map_err(refused)?;
        let kind = logical.get_type(&whole).map_err(refused)?;
        if !matches!(kind, DataType::Boolean | DataType::Null) {
            let message = format!(
                "the filter {} is {kind}, and must be true or false",
                shown(sql)
            );
            return Err(Error::invalid(message));
        }
        Self::of(sql.to_owned(), logical, &[], table).map_err(refused)
    }

    /// The rows with one of these keys. The columns must have the types they had.
    pub(super) fn keys(keys: Arc<KeySet>, table: &Columns) -> Result<Self> {
        let refused = |e: DataFusionError| Error::other(e.to_string()).caused_by(e);
        let mut places = Vec::new();
        let mut terms = Vec::new();
        for (column, (id, kind)) in keys.ids.iter().zip(keys.kinds()).enumerate() {
            let place = table.ids.iter().position(|known| known == id);
            let place = place.filter(|p| table.schema.field(*p).data_type() == kind);
            let Some(place) = place else {
                let message =
                    "a column that rows are matched by was changed by another commit; write again";
                return Err(Error::invalid(message));
            };
            places.push(place);
            if let Some((min, max)) = keys.ends(column) {
                let name = table.schema.field(place).name();
                let column = || Expr::Column(datafusion_common::Column::from_name(name));
                terms.push(binary_expr(column(), Operator::GtEq, lit(min.clone())));
                terms.push(binary_expr(column(), Operator::LtEq, lit(max.clone())));
            }
        }
        let within = tree(terms, Operator::And);
        let mut filter = Self::of("a key".to_owned(), within, &places, table).map_err(refused)?;
        let at = |place| filter.columns.binary_search(place).unwrap_or_default();
        filter.keys = Some((places.iter().map(at).collect(), keys));
        Ok(filter)
    }

    /// `needed` are columns that it needs besides those of the expression.
    fn of(
        sql: String,
        logical: Expr,
        needed: &[usize],
        table: &Columns,
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
        let physical =
            create_physical_expr(&logical, &projected, &ExecutionProps::new(), &context)?;
        // Without it nothing is pruned, which is slower and no error.
        let pruning = PruningPredicateBuilder::new().with_file_schema(Arc::clone(&input));
        let pruning = pruning.try_build(Arc::clone(&physical)).ok();
        Ok(Self {
            sql,
            logical,
            physical,
            columns,
            input,
            pruning,
            keys: None,
        })
    }

    /// The columns it needs, by position among the table's.
    pub(super) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// For which of `rows` rows it holds, by the columns it needs.
    pub(super) fn holds(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<BooleanArray> {
        if let Some((places, keys)) = &self.keys {
            let key: Vec<ArrayRef> = places.iter().map(|p| Arc::clone(&columns[*p])).collect();
            return keys.contains(&key).map(BooleanArray::from);
        }
        let batch: RecordBatch = batch_of(&self.input, columns, rows)?;
        let failed = |e: DataFusionError| {
            let why = e.strip_backtrace();
            let message = format!("the filter {} cannot be evaluated: {why}", shown(&self.sql));
            Error::invalid(message).caused_by(e)
        };
        let found = self.physical.evaluate(&batch).map_err(failed)?;
        let found = found.into_array(rows).map_err(failed)?;
        let Some(found) = found.as_boolean_opt() else {
            return Ok(BooleanArray::from(vec![false; rows]));
        };
        Ok(match found.null_count() {
            0 => found.clone(),
            _ => prep_null_mask_filter(found),
        })
    }

    /// Which of some containers may hold rows for which it holds.
    pub(super) fn prune(&self, statistics: &dyn PruningStatistics) -> Vec<bool> {
        let all = || vec![true; statistics.num_containers()];
        let Some(pruning) = &self.pruning else {
            return all();
        };
        pruning.prune(statistics).unwrap_or_else(|e| {
            log::debug!("the filter {:?} does not prune: {e}", self.sql);
            all()
        })
    }

    /// The closed range that it is of one column, where it is nothing else. An end that is open is
    /// None.
    pub(super) fn range_of(&self, column: &str) -> Option<Range> {
        let mut range = Range::default();
        for part in split_conjunction(&self.logical) {
            range.narrow(part, column)?;
        }
        Some(range)
    }
}

/// A filter in a message, cut where it is long.
fn shown(sql: &str) -> String {
    match sql.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}…", &sql[..end]),
        None => format!("{sql:?}"),
    }
}

/// From a value to a value, both included.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Range {
    pub(super) min: Option<serde_json::Value>,
    pub(super) max: Option<serde_json::Value>,
}

impl Range {
    /// Takes one comparison into account; None where it is none that a closed range can say, or the
    /// end is said twice.
    fn narrow(&mut self, part: &Expr, column: &str) -> Option<()> {
        let Expr::BinaryExpr(compared) = part else {
            return None;
        };
        let (op, value) = match (&*compared.left, &*compared.right) {
            (Expr::Column(c), Expr::Literal(value, _)) if c.name == column => (compared.op, value),
            (Expr::Literal(value, _), Expr::Column(c)) if c.name == column => {
                (compared.op.swap()?, value)
            }
            _ => return None,
        };
        let value = value.to_array().ok()?;
        if value.is_null(0) || value.data_type().is_floating() {
            return None;
        }
        let step = |by: i64| {
            // Between whole numbers there is nothing.
            let whole = value.data_type().is_integer();
            let number = to_json(&value).filter(|_| whole)?.as_i64()?;
            Some(serde_json::Value::from(number.checked_add(by)?))
        };
        let (min, max) = match op {
            Operator::GtEq => (Some(to_json(&value)?), None),
            Operator::Gt => (Some(step(1)?), None),
            Operator::LtEq => (None, Some(to_json(&value)?)),
            Operator::Lt => (None, Some(step(-1)?)),
            Operator::Eq => (Some(to_json(&value)?), Some(to_json(&value)?)),
            _ => return None,
        };
        for (end, found) in [(&mut self.min, min), (&mut self.max, max)] {
            if found.is_some() && std::mem::replace(end, found).is_some() {
                return None;
            }
        }
        Some(())
    }
}

fn plan(sql: &str, schema: &Arc<DFSchema>, clock: &dyn Clock) -> datafusion_common::Result<Expr> {
    let dialect = PostgreSqlDialect {};
    let parsed = DFParserBuilder::new(sql).with_dialect(&dialect).build()?;
    let parsed = { parsed }.parse_into_expr()?;
    if parsed.alias.is_some() {
        return Err(DataFusionError::Plan("a filter has no name".to_owned()));
    }
    let functions = Functions::new();
    let options = ParserOptions::new().with_enable_ident_normalization(false);
    let planner = SqlToRel::new_with_options(&functions, options);
    let expr = planner.sql_to_expr(parsed.expr, schema, &mut PlannerContext::new())?;
    let context = SimplifyContext::builder()
        .with_schema(Arc::clone(schema))
        .with_query_execution_start_time(Some(clock.now()));
    let simplifier = ExprSimplifier::new(context.build());
    let coerced = simplifier.coerce(expr, schema)?;
    let simple = balanced(simplifier.simplify(coerced)?);
    if depth(&simple)? > MAX_DEPTH {
        let message = format!("it is nested deeper than {MAX_DEPTH} levels");
        return Err(DataFusionError::Plan(message));
    }
    Ok(simple)
}

/// The tokens that may each put an expression into another one. Brackets are counted by the parser.
fn operators(sql: &str) -> usize {
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize();
    // The parser says what is wrong.
    let tokens = tokens.unwrap_or_default();
    let mut follows_value = false;
    let mut found = 0;
    for token in &tokens {
        match token {
            Token::Whitespace(_) => {}
            Token::Comma | Token::LParen => follows_value = false,
            Token::Number(..) | Token::SingleQuotedString(_) | Token::RParen => {
                follows_value = true;
            }
            Token::Word(word) => {
                let nests = NESTING.contains(&word.keyword);
                follows_value = !nests;
                found += usize::from(nests);
            }
            // A sign belongs to its number.
            Token::Minus | Token::Plus if !follows_value => {}
            _ => {
                follows_value = false;
                found += 1;
            }
        }
    }
    found
}

/// The words among the operators.
const NESTING: [Keyword; 12] = [
    Keyword::AND,
    Keyword::AT,
    Keyword::BETWEEN,
    Keyword::COLLATE,
    Keyword::ILIKE,
    Keyword::IN,
    Keyword::IS,
    Keyword::LIKE,
    Keyword::NOT,
    Keyword::OR,
    Keyword::SIMILAR,
    Keyword::XOR,
];

/// The expression with long chains of AND and OR as trees that are not deep.
fn balanced(expr: Expr) -> Expr {
    let op = match &expr {
        Expr::BinaryExpr(e) if matches!(e.op, Operator::And | Operator::Or) => e.op,
        _ => return expr,
    };
    let terms = split_binary_owned(expr, op);
    tree(terms.into_iter().map(balanced).collect(), op)
}

fn tree(mut terms: Vec<Expr>, op: Operator) -> Expr {
    let rest = terms.split_off(terms.len() / 2);
    match terms.len() {
        0 => rest.into_iter().next().unwrap_or_else(|| lit(true)),
        _ => binary_expr(tree(terms, op), op, tree(rest, op)),
    }
}

fn depth(expr: &Expr) -> datafusion_common::Result<usize> {
    let mut deepest = 0;
    expr.apply_children(|child| {
        deepest = deepest.max(depth(child)?);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(deepest + 1)
}

/// The functions of a filter: DataFusion's scalar ones.
struct Functions {
    scalar: Vec<Arc<ScalarUDF>>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    options: ConfigOptions,
}

impl Functions {
    fn new() -> Self {
        let mut options = ConfigOptions::default();
        // A time with a zone is a moment, whatever the zone of the column it is compared with.
        options.execution.time_zone = Some("+00:00".into());
        Self {
            scalar: datafusion_functions::all_default_functions(),
            planners: vec![
                Arc::new(CoreFunctionPlanner::default()),
                Arc::new(DatetimeFunctionPlanner),
                Arc::new(UnicodeFunctionPlanner),
            ],
            options,
        }
    }
}

impl ContextProvider for Functions {
    fn get_table_source(
        &self,
        name: TableReference,
    ) -> datafusion_common::Result<Arc<dyn TableSource>> {
        not_impl_err!("a filter sees one table's columns, and not {name}")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let named =
            |f: &&Arc<ScalarUDF>| f.name() == name || f.aliases().iter().any(|alias| alias == name);
        self.scalar.iter().find(named).cloned()
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.scalar.iter().map(|f| f.name().to_owned()).collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
