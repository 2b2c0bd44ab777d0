//! Keys: which types they may have, and their one form. Zeros are 0.0 and not-a-numbers one quiet NaN, so that equal keys
//! are equal byte for byte.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, StructArray};
use arrow_schema::{DataType, Field, Fields};

use crate::error::{Error, Result};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Refuses types that keys cannot have: they are scalars, and structs of such.
pub(super) fn check_key_type(data_type: &DataType, owner: &str) -> Result<()> {
    use DataType as T;
    match data_type {
        T::Struct(fields) if fields.is_empty() => Err(Error::invalid(format!(
            "the key of {owner:?} is a struct without fields"
        ))),
        T::Struct(fields) => fields
            .iter()
            .try_for_each(|field| check_key_type(field.data_type(), owner)),
        T::Null | T::Interval(_) | T::Dictionary(..) | T::RunEndEncoded(..) => {
            Err(refused(data_type, owner))
        }
        other if other.is_nested() => Err(refused(data_type, owner)),
        _ => Ok(()),
    }
}

fn refused(data_type: &DataType, owner: &str) -> Error {
    Error::invalid(format!(
        "the key of {owner:?} cannot have the type {data_type}; keys are scalars and structs of scalars"
    ))
}

/// The keys in their one form.
pub(super) fn normalize(keys: &ArrayRef) -> ArrayRef {
    match keys.data_type() {
        DataType::Float16 => normalize_floats::<Float16Type>(keys, |x| {
            if x.is_nan() {
                Half::NAN
            } else {
                x + Half::ZERO
            }
        }),
        DataType::Float32 => normalize_floats::<Float32Type>(keys, |x| {
            if x.is_nan() {
                f32::from_bits(0x7fc0_0000)
            } else {
                x + 0.0
            }
        }),
        DataType::Float64 => normalize_floats::<Float64Type>(keys, |x| {
            if x.is_nan() {
                f64::from_bits(0x7ff8_0000_0000_0000)
            } else {
                x + 0.0
            }
        }),
        DataType::Struct(fields) => {
            let keys = keys.as_struct();
            let columns = keys.columns().iter().map(normalize).collect();
            let len = keys.len();
            let nulls = keys.nulls().cloned();
            match StructArray::try_new_with_length(fields.clone(), columns, nulls, len) {
                Ok(array) => Arc::new(array),
                // The same fields and lengths fit.
                Err(_) => Arc::new(keys.clone()),
            }
        }
        _ => Arc::clone(keys),
    }
}

fn normalize_floats<T: ArrowPrimitiveType>(
    keys: &ArrayRef,
    normal: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    Arc::new(keys.as_primitive::<T>().unary::<_, T>(normal))
}

/// The field with everything in it nullable, as runs store it.
pub(super) fn nullable(field: &Field, name: &str) -> Field {
    let data_type = match field.data_type() {
        DataType::Struct(fields) => {
            let fields = fields
                .iter()
                .map(|child| Arc::new(nullable(child, child.name())));
            DataType::Struct(fields.collect())
        }
        other => other.clone(),
    };
    let metadata = field.metadata().clone();
    Field::new(name, data_type, true).with_metadata(metadata)
}

/// Whether runs store the values of two fields as the same type.
pub(super) fn are_stored_alike(first: &Field, second: &Field) -> bool {
    nullable(first, "").data_type() == nullable(second, "").data_type()
}

/// The array with the type that [`nullable`] gives its field.
pub(super) fn retype(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let (DataType::Struct(fields), Some(array)) = (data_type, array.as_struct_opt()) else {
        let message = format!(
            "expected values of type {data_type}, not {}",
            array.data_type()
        );
        return Err(Error::invalid(message));
    };
    let names = |fields: &Fields| fields.iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    if names(fields) != names(array.fields()) {
        let message = format!(
            "expected values of type {data_type}, not {}",
            array.data_type()
        );
        return Err(Error::invalid(message));
    }
    let columns = array.columns().iter().zip(fields);
    let columns = columns.map(|(column, field)| retype(column, field.data_type()));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let nulls = array.nulls().cloned();
    let result = StructArray::try_new_with_length(fields.clone(), columns, nulls, array.len());
    Ok(Arc::new(result.map_err(Error::from_cause)?))
}

#[cfg(test)]
mod tests {
    use arrow_array::Float64Array;

    use super::*;

    #[test]
    fn floats_have_one_zero_and_one_nan_at_any_depth() {
        let floats = Float64Array::from(vec![
            Some(-0.0),
            Some(-f64::NAN),
            None,
            Some(f64::from_bits(0x7ff0_0000_0000_0001)),
        ]);
        let fields = Fields::from(vec![Field::new("x", DataType::Float64, true)]);
        let array = StructArray::new(fields, vec![Arc::new(floats)], None);
        let normal = normalize(&(Arc::new(array) as ArrayRef));
        let floats = normal.as_struct().column(0).as_primitive::<Float64Type>();
        let bits: Vec<Option<u64>> = floats.iter().map(|x| x.map(f64::to_bits)).collect();
        let nan = Some(0x7ff8_0000_0000_0000);
        assert_eq!(bits, [Some(0), nan, None, nan]);
    }

    #[test]
    fn keys_are_scalars_and_structs_of_such() {
        let list = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let fields = Fields::from(vec![Field::new("a", list.clone(), true)]);
        for refused in [list, DataType::Struct(fields), DataType::Null] {
            let error = check_key_type(&refused, "words").unwrap_err();
            assert!(error.to_string().contains("words"), "{error}");
        }
        assert!(check_key_type(&DataType::Utf8View, "words").is_ok());
    }
}
