//! The canonical form in which floats are compared: one zero, and one NaN, larger than all other values.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, PrimitiveArray, RecordBatch, make_array};
use arrow_schema::{DataType, Schema};
use datafusion_common::Result;
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::PhysicalExpr;

use super::forward::{forward, map_values};
use crate::parquet::nested::contains_type;

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Replaces -0.0 by 0.0, and every NaN by the one without a sign, also within dictionaries, lists, maps
/// and structs.
pub(crate) fn canonicalize(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float16 => map_floats::<Float16Type>(values, |v| match v.is_nan() {
            true => Half::NAN,
            false if v == Half::default() => Half::default(),
            false => v,
        }),
        DataType::Float32 => {
            map_floats::<Float32Type>(values, |v| if v.is_nan() { f32::NAN } else { v + 0.0 })
        }
        DataType::Float64 => {
            map_floats::<Float64Type>(values, |v| if v.is_nan() { f64::NAN } else { v + 0.0 })
        }
        DataType::Dictionary(_, value) if has_floats(value) => {
            let dictionary = values.as_any_dictionary();
            dictionary.with_values(canonicalize(dictionary.values()))
        }
        nested if has_floats(nested) => canonicalize_children(values),
        _ => Arc::clone(values),
    }
}

/// Canonicalizes the values within lists, structs and maps.
fn canonicalize_children(values: &ArrayRef) -> ArrayRef {
    let data = values.to_data();
    let child_data = data.child_data().iter();
    let canonical_children =
        child_data.map(|child| canonicalize(&make_array(child.clone())).to_data());
    let children = canonical_children.collect();
    // The children keep their types and lengths, so this cannot fail.
    let built = data.into_builder().child_data(children).build();
    built.map_or_else(|_never| Arc::clone(values), make_array)
}

fn map_floats<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    op: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    let mapped: PrimitiveArray<T> = values.as_primitive::<T>().unary(op);
    Arc::new(mapped)
}

/// Whether a type is a float or contains floats.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    contains_type(data_type, DataType::is_floating)
}

/// An expression whose value is that of the inner one, with canonical floats.
#[derive(Debug, Clone)]
pub(crate) struct CanonicalFloatsExpr(pub(crate) Arc<dyn PhysicalExpr>);

impl PartialEq for CanonicalFloatsExpr {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl Eq for CanonicalFloatsExpr {}

impl Hash for CanonicalFloatsExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

forward!(Display for CanonicalFloatsExpr, 0);

impl PhysicalExpr for CanonicalFloatsExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.0.data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.0.nullable(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        map_values(self.0.evaluate(batch)?, |values| Ok(canonicalize(&values)))
    }

    forward!(child 0);
    forward!(text 0);
}
