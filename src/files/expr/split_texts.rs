//! `string_to_array`: the parts of a text between delimiters, as in `PostgreSQL`.
//!
//! Without a delimiter (NULL) each character is a part; with an empty one the text is the only part; an empty text has
//! no parts. Parts that are equal to the third argument are NULL.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_cast::cast;
use arrow_schema::{DataType, Field};
use datafusion_common::{DataFusionError, Result};
use datafusion_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::forward::evaluate_rows;
use super::text_functions::text_at;
use super::text_sizes::{byte_size, check_total};

const STRING_TO_ARRAY: &str = "string_to_array";
/// What a part takes beside its bytes.
const PART_BYTES: usize = 8;

/// The function `string_to_array`.
pub(super) fn string_to_array() -> ScalarUDF {
    let counts = vec![TypeSignature::String(2), TypeSignature::String(3)];
    ScalarUDF::from(StringToArray {
        signature: Signature::one_of(counts, Volatility::Immutable),
    })
}

/// Whether the expression is a call of [`string_to_array`].
pub(super) fn splits_texts(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let call = expr.downcast_ref::<ScalarFunctionExpr>();
    call.is_some_and(|call| call.fun().name() == STRING_TO_ARRAY)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct StringToArray {
    signature: Signature,
}

impl ScalarUDFImpl for StringToArray {
    fn name(&self) -> &'static str {
        STRING_TO_ARRAY
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        let text = arg_types.first().cloned().unwrap_or(DataType::Utf8);
        Ok(DataType::List(Arc::new(Field::new_list_field(text, true))))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let to = args.return_field;
        evaluate_rows(args.args, args.number_rows, |texts, rows| {
            split_rows(&texts, rows, to.data_type())
        })
    }
}

/// The parts of the text of each row, as lists of this type.
fn split_rows(args: &[ColumnarValue], rows: usize, to: &DataType) -> Result<ArrayRef> {
    let [texts, delimiters, null_texts @ ..] = args else {
        let message = format!("{STRING_TO_ARRAY} has two or three arguments");
        return Err(DataFusionError::Internal(message));
    };
    check_total(STRING_TO_ARRAY, byte_size(texts, rows))?;
    let mut parts = TextParts::default();
    for row in 0..rows {
        let null_text = null_texts.first().and_then(|texts| text_at(texts, row));
        parts.split(text_at(texts, row), text_at(delimiters, row), null_text)?;
    }
    let lists: ArrayRef = Arc::new(parts.lists.finish());
    Ok(cast(&lists, to)?)
}

/// The parts of the texts so far.
#[derive(Debug, Default)]
struct TextParts {
    lists: ListBuilder<StringBuilder>,
    bytes: usize,
}

impl TextParts {
    fn split(
        &mut self,
        text: Option<&str>,
        delimiter: Option<&str>,
        null_text: Option<&str>,
    ) -> Result<()> {
        match (text, delimiter) {
            (None | Some(""), _) => {}
            (Some(text), None) => {
                for (at, character) in text.char_indices() {
                    self.push(&text[at..at + character.len_utf8()], null_text)?;
                }
            }
            (Some(text), Some("")) => self.push(text, null_text)?,
            (Some(text), Some(delimiter)) => {
                for part in text.split(delimiter) {
                    self.push(part, null_text)?;
                }
            }
        }
        self.lists.append(text.is_some());
        Ok(())
    }

    fn push(&mut self, part: &str, null_text: Option<&str>) -> Result<()> {
        self.bytes += part.len() + PART_BYTES;
        check_total(STRING_TO_ARRAY, self.bytes)?;
        let part = (null_text != Some(part)).then_some(part);
        self.lists.values().append_option(part);
        Ok(())
    }
}
