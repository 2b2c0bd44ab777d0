//! The size of an array's rows in bytes, without other rows in the same buffers.

use arrow_array::{Array, OffsetSizeTrait};
use arrow_data::ArrayData;
use arrow_schema::DataType;

/// Bytes of a view.
const VIEW_BYTES: usize = 16;
/// The longest value, in bytes, that a view holds itself.
const MAX_INLINE_BYTES: u128 = 12;

/// The size of an array's rows in bytes. The values of a dictionary count in full.
pub(crate) fn slice_bytes(array: &dyn Array) -> usize {
    data_bytes(&array.to_data())
}

fn data_bytes(data: &ArrayData) -> usize {
    let nulls = data.nulls().map_or(0, |_| data.len().div_ceil(8));
    let children = data.child_data();
    nulls
        + match data.data_type() {
            DataType::Utf8View | DataType::BinaryView => view_bytes(data),
            DataType::List(_) | DataType::Map(..) => list_bytes::<i32>(data),
            DataType::LargeList(_) => list_bytes::<i64>(data),
            DataType::ListView(_) => list_view_bytes::<i32>(data),
            DataType::LargeListView(_) => list_view_bytes::<i64>(data),
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or_default();
                rows_bytes(&children[0], data.offset() * size, data.len() * size)
            }
            DataType::Struct(_) => {
                // The children of a slice may be sliced too.
                let child_bytes = |child: &ArrayData| {
                    let is_sliced = child.len() == data.len();
                    rows_bytes(child, if is_sliced { 0 } else { data.offset() }, data.len())
                };
                children.iter().map(child_bytes).sum()
            }
            DataType::Dictionary(key, _) => {
                let width = key.primitive_width().unwrap_or_default();
                width * data.len() + children.iter().map(data_bytes).sum::<usize>()
            }
            DataType::RunEndEncoded(..) => children.iter().map(data_bytes).sum(),
            _ => data
                .get_slice_memory_size()
                .unwrap_or_else(|_unknown| data.get_array_memory_size()),
        }
}

fn rows_bytes(data: &ArrayData, begin: usize, rows: usize) -> usize {
    let begin = begin.min(data.len());
    data_bytes(&data.slice(begin, rows.min(data.len() - begin)))
}

fn view_bytes(data: &ArrayData) -> usize {
    let views = &data.buffer::<u128>(0)[..data.len()];
    let lengths = views.iter().map(|view| view & u128::from(u32::MAX));
    let outside: u128 = lengths.filter(|length| *length > MAX_INLINE_BYTES).sum();
    VIEW_BYTES * data.len() + usize::try_from(outside).unwrap_or(usize::MAX / 2)
}

fn list_bytes<O: OffsetSizeTrait>(data: &ArrayData) -> usize {
    let offsets = data.buffer::<O>(0);
    let (begin, end) = (offsets[0].as_usize(), offsets[data.len()].as_usize());
    let items = &data.child_data()[0];
    size_of::<O>() * data.len() + rows_bytes(items, begin, end - begin)
}

/// Estimates the items by their average size, because the lists may take them in any order.
fn list_view_bytes<O: OffsetSizeTrait>(data: &ArrayData) -> usize {
    let items = &data.child_data()[0];
    let sizes = &data.buffer::<O>(1)[..data.len()];
    let listed_items: usize = sizes.iter().map(|size| size.as_usize()).sum();
    let average = data_bytes(items).div_ceil(items.len().max(1));
    2 * size_of::<O>() * data.len() + listed_items.saturating_mul(average)
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{Int64Builder, ListBuilder};
    use arrow_array::{Int64Array, StringArray, StringViewArray, StructArray};
    use arrow_schema::Field;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_slice_is_charged_for_its_own_rows() {
        let mut builder = ListBuilder::new(Int64Builder::new());
        for row in 0..1000 {
            builder.append_value((0..10).map(|i| Some(row + i)));
        }
        let lists = builder.finish();
        let numbers = Int64Array::from_iter_values(0..1000);
        let field = Field::new("n", DataType::Int64, true);
        let structs = StructArray::from(vec![(Arc::new(field), Arc::new(numbers) as _)]);
        let texts: StringArray = (0..1000).map(|i| Some(format!("{i:100}"))).collect();
        let views: StringViewArray = (0..1000).map(|i| Some(format!("{i:100}"))).collect();
        for (array, row_bytes) in [
            (&lists as &dyn Array, 84),
            (&structs, 8),
            (&texts, 104),
            (&views, 116),
        ] {
            let slice = array.slice(500, 100);
            let bytes = slice_bytes(&slice);
            let fits = (100 * row_bytes..100 * row_bytes + 64).contains(&bytes);
            assert!(fits, "{}: {bytes}", array.data_type());
        }
    }

    #[test]
    fn nested_slices_are_cut_too() {
        let numbers = Int64Array::from_iter_values(0..1000);
        let item = Arc::new(Field::new("n", DataType::Int64, true));
        let point = Arc::new(Field::new("p", DataType::Int64, true));
        let points = StructArray::from(vec![(point, Arc::new(numbers.clone()) as _)]);
        let outer_field = Arc::new(Field::new("s", points.data_type().clone(), true));
        let outer = StructArray::from(vec![(outer_field, Arc::new(points) as _)]);
        for (begin, rows) in [(0, 3), (100, 10), (990, 10)] {
            assert_eq!(slice_bytes(&outer.slice(begin, rows)), rows * 8);
        }
        let pairs = arrow_array::FixedSizeListArray::new(item, 2, Arc::new(numbers), None);
        assert_eq!(slice_bytes(&pairs.slice(100, 10)), 160);
    }
}
