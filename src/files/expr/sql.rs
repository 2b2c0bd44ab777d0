//! SQL expressions over columns, parsed and planned by DataFusion in the dialect of `PostgreSQL`.
//!
//! [`plan`] returns a logical expression whose literals keep their precision, with the common types of all
//! operands, and simplified unless [`Rewrite::Verbatim`] is asked for. It has DataFusion's scalar functions
//! and `string_to_array`, and no aggregates, window functions or tables.
//!
//! DataFusion walks expressions by recursion. So [`check_length`] limits the operators, [`with_stack`] plans
//! on a thread with a large stack, and [`plan`] refuses an expression that is nested too deeply for other
//! threads. What cannot be parsed or planned, panics included, is an error of the kind `InvalidInput`.

use std::sync::Arc;
use std::thread;

use arrow_schema::{DataType, TimeUnit};
use chrono::{DateTime, Utc};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, TableReference, not_impl_err};
use datafusion_expr::expr::{Expr, ScalarFunction};
use datafusion_expr::planner::{ContextProvider, ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::utils::split_binary_owned;
use datafusion_expr::{
    AggregateUDF, ExprSchemable, HigherOrderUDF, Operator, ScalarUDF, TableSource, Volatility,
    WindowUDF, cast,
};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_functions::datetime::planner::DatetimeFunctionPlanner;
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_sql::parser::DFParserBuilder;
use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};

use super::desugar::desugar;
use super::dialect::FilterDialect;
use super::exact_literals::keep_exact;
use super::negations::{call_negations, negation};
use super::operators::combine_terms;
use super::refusals::{check_meaning, check_times};
use super::simplify::{compare_times, simplify};
use super::split_texts::string_to_array;
use super::text_refusals::check_texts;
use super::time_literals::{assign_now, to_local_times};
use super::time_ranges::split_ranges;
use super::tokens::{find_excess, tokenize};
use super::widen::{schema_without_runs, widen};
use crate::error::{Error, Result};
use crate::parquet::panic_text;

/// Stack of the planning thread: DataFusion walks expressions by recursion.
const PLANNING_STACK_BYTES: usize = 256 << 20;
/// Maximum length of an expression in a message.
const MAX_SQL_CHARS: usize = 200;
/// Maximum depth of an expression that can be walked on the stack of any thread.
const MAX_DEPTH: usize = 200;

/// Runs work that walks expressions by recursion; a panic becomes an error about `context`.
pub(crate) fn with_stack<T: Send>(
    context: &str,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(PLANNING_STACK_BYTES);
        let handle = builder.spawn_scoped(scope, work).map_err(|e| {
            let message = "failed to start a thread to plan an expression";
            Error::other(message).with_source(e)
        })?;
        let result = handle.join();
        result.unwrap_or_else(|panic| Err(invalid_expression(context, panic_text(panic.as_ref()))))
    })
}

/// Refuses an expression that could nest too deeply.
pub(crate) fn check_length(context: &str, sql: &str) -> Result<()> {
    let excess = find_excess(sql);
    excess.map_or(Ok(()), |reason| Err(invalid_expression(context, &reason)))
}

fn invalid_expression(context: &str, reason: &str) -> Error {
    Error::invalid(format!("{context} cannot be used: {reason}"))
}

/// Converts an error of DataFusion to one about `context`.
pub(crate) fn planning_error(context: &str, e: DataFusionError) -> Error {
    match e {
        // Its causes repeat the message.
        DataFusionError::SQL(e, _) => invalid_expression(context, &e.to_string()),
        // It asks for a report of a bug, where the expression has none.
        DataFusionError::Internal(reason) => {
            let (reason, _) = reason.split_once("\nbacktrace").unwrap_or((&reason, ""));
            invalid_expression(context, reason)
        }
        e => invalid_expression(context, &e.strip_backtrace()).with_source(e),
    }
}

/// SQL in a message, cut where it is long.
pub(crate) fn format_sql(sql: &str) -> String {
    match sql.char_indices().nth(MAX_SQL_CHARS) {
        Some((end, _)) => format!("{:?}…", &sql[..end]),
        None => format!("{sql:?}"),
    }
}

/// Whether an expression is rewritten before it is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Simplified before it is evaluated.
    Simplify,
    /// Evaluated as written, for each row; timestamps are compared in their own unit.
    Verbatim,
}

/// Plans SQL as an expression over the columns of `schema`, at a time for `now()`. `target` is the type that its value is
/// converted to, if any.
pub(crate) fn plan(
    sql: &str,
    schema: &Arc<DFSchema>,
    now: DateTime<Utc>,
    rewrite: Rewrite,
    target: Option<&DataType>,
) -> datafusion_common::Result<Expr> {
    prepare(parse(sql, schema)?, schema, now, rewrite, target)
}

/// As [`plan`], of an expression that has the same value whenever it is evaluated: functions of the time, random ones,
/// and the version of the planner are refused.
pub(crate) fn plan_deterministic(
    sql: &str,
    schema: &Arc<DFSchema>,
) -> datafusion_common::Result<Expr> {
    let expr = parse_deterministic(sql, schema)?;
    let no_time = DateTime::<Utc>::UNIX_EPOCH;
    prepare(expr, schema, no_time, Rewrite::Simplify, None)
}

/// Parses an expression that has the same value whenever it is evaluated.
pub(super) fn parse_deterministic(
    sql: &str,
    schema: &Arc<DFSchema>,
) -> datafusion_common::Result<Expr> {
    let expr = parse(sql, schema)?;
    expr.apply(|node| match node {
        Expr::ScalarFunction(call)
            if call.func.signature().volatility != Volatility::Immutable
                || call.func.name() == "version" =>
        {
            let name = call.func.name();
            let message = format!("{name} is not deterministic");
            Err(DataFusionError::Plan(message))
        }
        _ => Ok(TreeNodeRecursion::Continue),
    })?;
    Ok(expr)
}

fn parse(sql: &str, schema: &Arc<DFSchema>) -> datafusion_common::Result<Expr> {
    let dialect = FilterDialect::default();
    let mut parsed = DFParserBuilder::new(tokenize(sql)?)
        .with_dialect(&dialect)
        .build()?
        .parse_into_expr()?;
    if parsed.alias.is_some() {
        let message = "a name (AS) is not allowed";
        return Err(DataFusionError::Plan(message.to_owned()));
    }
    call_negations(&mut parsed.expr);
    let functions = Functions::new();
    let options = ParserOptions::new()
        .with_enable_ident_normalization(false)
        .with_parse_float_as_decimal(true);
    let planner = SqlToRel::new_with_options(&functions, options);
    let columns = schema_without_runs(schema)?;
    planner.sql_to_expr(parsed.expr, &columns, &mut PlannerContext::new())
}

fn prepare(
    expr: Expr,
    schema: &Arc<DFSchema>,
    now: DateTime<Utc>,
    rewrite: Rewrite,
    target: Option<&DataType>,
) -> datafusion_common::Result<Expr> {
    let context = SimplifyContext::builder()
        .with_schema(Arc::clone(schema))
        .with_query_execution_start_time(Some(now))
        .build();
    // Of DataFusion's simplifier only the coercion is used: some of its rewrites change what an
    // expression means (casts that are not reversible, sums that wrap around).
    let simplifier = ExprSimplifier::new(context.clone());
    // Balance first: each level of a long chain would walk all levels below it.
    let desugared = assign_now(desugar(balance(expr), schema)?, now, target);
    let widened = widen(desugared, schema)?;
    let local = to_local_times(widened, schema)?;
    let exact = keep_exact(split_ranges(local, schema)?, schema, target)?;
    check_times(&exact, schema)?;
    check_texts(&exact, schema)?;
    let coerced = simplifier.coerce(exact, schema)?;
    let resolved = resolve(coerced, &context)?;
    // Also of the casts that `arrow_cast` stands for.
    check_meaning(&resolved, schema)?;
    let simple = balance(match rewrite {
        Rewrite::Simplify => simplify(resolved, schema)?,
        Rewrite::Verbatim => compare_times(resolved, schema)?,
    });
    if depth(&simple)? > MAX_DEPTH {
        let message = format!("it is nested deeper than {MAX_DEPTH} levels");
        return Err(DataFusionError::Plan(message));
    }
    Ok(simple)
}

/// Functions that are replaced during planning: those of the query's time, and those that stand for
/// other expressions.
const RESOLVED_FUNCTIONS: [&str; 11] = [
    "now",
    "current_date",
    "current_time",
    "coalesce",
    "nvl",
    "nvl2",
    "arrow_cast",
    "arrow_try_cast",
    "cast_to_type",
    "try_cast_to_type",
    "get_field",
];

/// Replaces calls of [`RESOLVED_FUNCTIONS`] by the expressions that they stand for.
fn resolve(expr: Expr, context: &SimplifyContext) -> datafusion_common::Result<Expr> {
    let resolved = expr.transform_up(|node| match node {
        Expr::ScalarFunction(call) if RESOLVED_FUNCTIONS.contains(&call.func.name()) => {
            let func = Arc::clone(&call.func);
            Ok(Transformed::yes(
                match func.simplify(call.args, context)? {
                    ExprSimplifyResult::Simplified(expr) => expr,
                    ExprSimplifyResult::Original(args) => {
                        Expr::ScalarFunction(ScalarFunction { func, args })
                    }
                },
            ))
        }
        other => Ok(Transformed::no(other)),
    });
    resolved.map(|resolved| resolved.data)
}

/// Turns long chains of AND and OR into balanced trees.
fn balance(expr: Expr) -> Expr {
    let op = match &expr {
        Expr::BinaryExpr(e) if matches!(e.op, Operator::And | Operator::Or) => e.op,
        _ => return expr,
    };
    let terms = split_binary_owned(expr, op);
    combine_terms(terms.into_iter().map(balance).collect(), op)
}

fn depth(expr: &Expr) -> datafusion_common::Result<usize> {
    let mut deepest = 0;
    expr.apply_children(|child| {
        deepest = deepest.max(depth(child)?);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(deepest + 1)
}

/// The functions of SQL expressions: DataFusion's scalar ones, `string_to_array`, and the one that stands for NOT.
struct Functions {
    scalar: Vec<Arc<ScalarUDF>>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    options: ConfigOptions,
}

impl Functions {
    fn new() -> Self {
        let mut options = ConfigOptions::default();
        // A timestamp with a zone is a point in time, whatever the zone of the column it is compared with.
        options.execution.time_zone = Some("+00:00".into());
        let mut scalar = datafusion_functions::all_default_functions();
        scalar.push(Arc::new(string_to_array()));
        scalar.push(Arc::new(negation()));
        Self {
            scalar,
            planners: vec![
                Arc::new(TimePlanner),
                Arc::new(CoreFunctionPlanner::default()),
                Arc::new(DatetimeFunctionPlanner),
                Arc::new(UnicodeFunctionPlanner),
            ],
            options,
        }
    }
}

/// Makes times of different units comparable: NOT asks for the type before [`keep_exact`] casts them.
#[derive(Debug)]
struct TimePlanner;

impl ExprPlanner for TimePlanner {
    fn plan_binary_op(
        &self,
        mut expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> datafusion_common::Result<PlannerResult<RawBinaryExpr>> {
        let is_time = |e: &Expr| {
            matches!(
                e.get_type(schema),
                Ok(DataType::Time32(_) | DataType::Time64(_))
            )
        };
        let compares = matches!(
            expr.op.to_string().as_str(),
            "=" | "<>" | "<" | "<=" | ">" | ">="
        );
        if compares && is_time(&expr.left) {
            expr.left = cast(expr.left, DataType::Time64(TimeUnit::Nanosecond));
        }
        if compares && is_time(&expr.right) {
            expr.right = cast(expr.right, DataType::Time64(TimeUnit::Nanosecond));
        }
        Ok(PlannerResult::Original(expr))
    }
}

impl ContextProvider for Functions {
    fn get_table_source(
        &self,
        name: TableReference,
    ) -> datafusion_common::Result<Arc<dyn TableSource>> {
        not_impl_err!("an expression can use columns, and not the table {name}")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let has_name =
            |f: &&Arc<ScalarUDF>| f.name() == name || f.aliases().iter().any(|alias| alias == name);
        self.scalar.iter().find(has_name).cloned()
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
