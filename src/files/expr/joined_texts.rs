//! `||` within bounds: DataFusion copies a constant for every row, and ends where an array cannot hold the texts.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_expr::{
    ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion_physical_expr::expressions::{BinaryExpr, Column};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::forward::evaluate_rows;
use super::text_sizes::{byte_size, check_joined};

const JOINED_TEXTS: &str = "||";

/// The expression that joins the texts of both sides.
pub(super) fn join_texts(binary: &BinaryExpr, input: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let function = JoinedTexts {
        to: binary.data_type(input)?,
        signature: Signature::any(2, Volatility::Immutable),
    };
    let field = Field::new(JOINED_TEXTS, function.to.clone(), binary.nullable(input)?);
    let sides = vec![Arc::clone(binary.left()), Arc::clone(binary.right())];
    Ok(Arc::new(ScalarFunctionExpr::new(
        JOINED_TEXTS,
        Arc::new(ScalarUDF::from(function)),
        sides,
        Arc::new(field),
        Arc::new(ConfigOptions::default()),
    )))
}

/// Whether the expression is one of [`join_texts`].
pub(super) fn joins_texts(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let call = expr.downcast_ref::<ScalarFunctionExpr>();
    call.is_some_and(|call| call.fun().name() == JOINED_TEXTS)
}

/// The function of both sides. It has the type that DataFusion gives to `||`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct JoinedTexts {
    to: DataType,
    signature: Signature,
}

impl ScalarUDFImpl for JoinedTexts {
    fn name(&self) -> &'static str {
        JOINED_TEXTS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        evaluate_rows(args.args, args.number_rows, |sides, rows| {
            let sizes = sides.iter().map(|side| byte_size(side, rows));
            let total = sizes.fold(0, usize::saturating_add);
            check_joined(JOINED_TEXTS, total)?;
            let texts = sides.iter().map(|side| side.to_array(rows));
            let texts = texts.collect::<Result<Vec<_>>>()?;
            let fields = ["left", "right"].iter().zip(&texts);
            let fields =
                fields.map(|(name, text)| Field::new(*name, text.data_type().clone(), true));
            let schema = Schema::new(fields.collect::<Vec<_>>());
            let batch = RecordBatch::try_new(Arc::new(schema), texts)?;
            let (left, right) = (Column::new("left", 0), Column::new("right", 1));
            let (left, right) = (Arc::new(left), Arc::new(right));
            let joined = BinaryExpr::new(left, Operator::StringConcat, right);
            joined.evaluate(&batch)?.into_array(rows)
        })
    }
}
