//! Values in the one form in which a file gives them back, so that a function gets from a run what it got when the row was
//! pushed.
//!
//! A row of a dictionary is null by its key, never by a null among the values, which Arrow casts to an empty view. The
//! fields of a struct that is null are null, too: a function of batches that takes a field sees what is under the null.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StructArray};

use crate::error::{Error, Result};
use crate::parquet::nested::with_null_keys;
use crate::parquet::projection::with_nulls;

/// The values in their one form.
pub(super) fn plain_values(array: &ArrayRef) -> Result<ArrayRef> {
    with_null_fields(&with_null_keys(array))
}

/// The array with nulls for the fields of structs that are null; structs in lists stay as they are.
fn with_null_fields(array: &ArrayRef) -> Result<ArrayRef> {
    let Some(structs) = array.as_struct_opt() else {
        return Ok(Arc::clone(array));
    };
    let (nulls, length) = (structs.nulls(), structs.len());
    let columns = structs.columns().iter();
    let columns = columns.map(|column| with_null_fields(&with_nulls(column, nulls)?));
    let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
    let fields = structs.fields().clone();
    let plain = StructArray::try_new_with_length(fields, columns, nulls.cloned(), length);
    Ok(Arc::new(
        plain.map_err(|e| Error::other(e.to_string()).with_source(e))?,
    ))
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int8Type;
    use arrow_array::{DictionaryArray, Int8Array, ListArray, StringArray, make_array};
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use arrow_schema::{Field, Fields};

    use super::*;

    fn nulls_of(array: &ArrayRef) -> Vec<bool> {
        (0..array.len()).map(|row| array.is_null(row)).collect()
    }

    fn structs_of(name: &str, column: &ArrayRef, nulls: Option<NullBuffer>) -> ArrayRef {
        let fields = Fields::from(vec![Field::new(name, column.data_type().clone(), true)]);
        Arc::new(StructArray::new(fields, vec![Arc::clone(column)], nulls))
    }

    #[test]
    fn fields_of_a_null_are_null() {
        let numbers: ArrayRef = Arc::new(Int8Array::from(vec![Some(1), Some(9), None]));
        let nulls = Some(NullBuffer::from(vec![true, false, true]));
        let inner = structs_of("inner", &numbers, None);
        let plain = plain_values(&structs_of("outer", &inner, nulls)).unwrap();
        let inner = plain.as_struct().column(0);
        let numbers = inner.as_struct().column(0);
        assert_eq!(nulls_of(&plain), [false, true, false]);
        assert_eq!(nulls_of(inner), [false, true, false]);
        assert_eq!(nulls_of(numbers), [false, true, true]);
    }

    #[test]
    fn a_null_among_the_values_becomes_one_of_the_keys() {
        let keys = Int8Array::from(vec![Some(1), Some(0), Some(1), None, Some(2)]);
        let values = StringArray::from(vec![Some("a"), None, Some("")]);
        let texts = DictionaryArray::<Int8Type>::new(keys, Arc::new(values));
        let texts: ArrayRef = Arc::new(texts.slice(1, 4));
        assert_eq!(nulls_of(&texts), [false, false, true, false]);
        let plain = plain_values(&texts).unwrap();
        assert_eq!(nulls_of(&plain), [false, true, true, false]);
        assert_eq!(plain.logical_nulls(), texts.logical_nulls());

        let structs = structs_of("c", &texts, None);
        let list = ListArray::new(
            Arc::new(Field::new_list_field(structs.data_type().clone(), true)),
            OffsetBuffer::from_lengths([3, 1]),
            structs,
            None,
        );
        let lists = plain_values(&(Arc::new(list) as ArrayRef)).unwrap();
        let data = lists.to_data();
        let nested = make_array(data.child_data()[0].child_data()[0].clone());
        assert_eq!(nulls_of(&nested), [false, true, true, false]);
    }
}
