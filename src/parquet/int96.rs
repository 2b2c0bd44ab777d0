//! Timestamps of 96 bits, as Spark, Hive and Impala write them. Without a hint they are decoded as nanoseconds, which reach from
//! the year 1677 to 2262; other years would wrap around.

use std::sync::Arc;

use arrow_schema::{DataType, Schema};
use parquet::basic::Type as PhysicalType;

use super::file::{ParquetFile, reader_with_schema_hint};

impl ParquetFile {
    /// The same file, of which the top-level fields of 96 bits have these types, by their index. Other fields, and types
    /// that such timestamps cannot be decoded as, do not count.
    pub(crate) fn with_int96_types(&self, types: &[(usize, DataType)]) -> Self {
        let mut file = self.clone();
        for (root, data_type) in types {
            if !self.is_int96(*root) || self.schema.field(*root).data_type() == data_type {
                continue;
            }
            let mut fields = file.schema.fields().to_vec();
            let field = fields[*root].as_ref().clone();
            fields[*root] = Arc::new(field.with_data_type(data_type.clone()));
            let key_values = self.schema.metadata().clone();
            let schema = Arc::new(Schema::new_with_metadata(fields, key_values));
            let decoded = file.reader.clone();
            let reader = reader_with_schema_hint(self.reader.metadata(), &schema, decoded);
            if reader.schema().field(*root).data_type() == data_type {
                (file.schema, file.reader) = (schema, reader);
            }
        }
        file
    }

    /// Whether a top-level field holds timestamps of 96 bits.
    pub(crate) fn is_int96(&self, root: usize) -> bool {
        let field = self.stored_type(root);
        field.is_primitive() && field.get_physical_type() == PhysicalType::INT96
    }
}
