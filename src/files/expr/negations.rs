//! NOT of comparisons with elements of lists, which DataFusion would refuse where their values have different types.
//!
//! It asks what is negated for its type as soon as it plans it, and `0.0 = ANY(list)` has none before its number has the
//! type of the elements. So NOT is planned as a function, which has a type whatever its argument is.

use std::convert::Infallible;
use std::ops::ControlFlow;

use arrow_schema::DataType;
use datafusion_common::{DataFusionError, Result};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion_sql::sqlparser::ast::{
    Expr as SqlExpr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, UnaryOperator, Value, visit_expressions_mut,
};

const NEGATION: &str = "not";

/// Writes each NOT around a comparison with the elements of a list as a call of [`negation`].
pub(super) fn call_negations(expr: &mut SqlExpr) {
    let mut has_elements = false;
    // What is within an expression comes before it.
    let ControlFlow::Continue(()) = visit_expressions_mut(expr, |node| {
        match node {
            SqlExpr::AnyOp { .. } | SqlExpr::AllOp { .. } => has_elements = true,
            SqlExpr::UnaryOp {
                op: UnaryOperator::Not,
                expr: operand,
            } if has_elements => {
                let operand = std::mem::replace(operand.as_mut(), SqlExpr::value(Value::Null));
                *node = SqlExpr::Function(call_of(operand));
            }
            _ => {}
        }
        ControlFlow::<Infallible>::Continue(())
    });
}

fn call_of(operand: SqlExpr) -> Function {
    Function {
        name: ObjectName::from(vec![Ident::with_quote('"', NEGATION)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(operand))],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}

/// The function that stands for NOT until the types are known.
pub(super) fn negation() -> ScalarUDF {
    ScalarUDF::from(Negation {
        signature: Signature::any(1, Volatility::Immutable),
    })
}

/// Whether it is a call of [`negation`].
pub(super) fn is_negation(call: &ScalarFunction) -> bool {
    call.func.name() == NEGATION && call.args.len() == 1
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Negation {
    signature: Signature,
}

impl ScalarUDFImpl for Negation {
    fn name(&self) -> &'static str {
        NEGATION
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let message = "NOT is evaluated as an expression of its own";
        Err(DataFusionError::Internal(message.to_owned()))
    }
}
