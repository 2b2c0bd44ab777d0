//! Writes a stream of record batches to Parquet files.
//!
//! [`write()`] splits the rows into row groups and files. The columns of up to three row groups are encoded by all
//! threads at once (`encode`) and appended in order (`output`). Encoders and finished chunks stay within the memory
//! budget of the [`WritePlan`]: a row group is closed early if it would not fit, and the stream is not read ahead of
//! the store.
//!
//! A schema that Parquet does not support, and rows that do not match their schema, are errors of the kind
//! `InvalidInput`. Errors of this crate that the input or a sink returns are passed on as they are.

use std::io;
use std::sync::{Arc, OnceLock};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::ArrowColumnWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use super::distinct::is_distinct;
use super::encode::Encoder;
use super::nested::check_digits;
use super::options::WriteOptions;
pub use super::output::{ByteSink, ByteSinkFactory, FileStats};
use super::output::{Digests, OutputFiles, column_factory};
use super::pending::PendingGroups;
use super::required::check_required;
use super::seal::PartIdentity;
use super::size::slice_bytes;
use super::text::check_text;
use super::types::storage_schema;
use super::{Cancel, default_threads, panic_text};
use crate::error::{Error, Result};

/// The most rows of a stream's batch that are passed on at once.
const MAX_SLICE_ROWS: usize = 1 << 17;
/// The most bytes of a stream's batch that are passed on at once are the budget divided by this number.
const MAX_SLICE_SHARE: usize = 4;
/// The most bytes of a row group of rows in memory are the budget divided by this number: two are encoded at a time.
const MAX_GROUP_SHARE: usize = 2;
/// So many bytes of rows are encoded by the thread that reads them, sooner than others could be started.
const MAX_BYTES_WITHOUT_THREADS: usize = 256 << 10;

/// The most row groups of a file: their numbers are signed 16-bit integers.
const MAX_GROUPS: usize = i16::MAX as usize;

/// Checks that Parquet supports `schema`; an error names the column.
pub fn check_schema(schema: &SchemaRef) -> Result<()> {
    let options = WriteOptions::new("none", None, None, None, None)?;
    WritePlan::new(Arc::clone(schema), options, PartIdentity::default()).map(drop)
}

/// The schema, the options and the identity of one write.
#[derive(Debug, Clone)]
pub struct WritePlan {
    /// The schema of the input, which the files keep.
    pub schema: SchemaRef,
    storage: SchemaRef,
    parquet_fields: SchemaRef,
    /// The codec, and the limits of row groups, files and memory.
    pub options: WriteOptions,
    /// The first file's identity.
    pub identity: PartIdentity,
    /// The number of threads that encode.
    pub threads: usize,
    /// Whether the caller holds the whole input in memory.
    pub input_in_memory: bool,
    /// Whether to write a file if there are no rows.
    pub keep_empty: bool,
    /// How much of the memory limit the sinks need, in bytes.
    pub upload_buffer_bytes: usize,
}

impl WritePlan {
    /// Checks that Parquet supports `schema`, an error names the column; the other fields get their defaults.
    pub fn new(schema: SchemaRef, options: WriteOptions, identity: PartIdentity) -> Result<Self> {
        let storage = storage_schema(&schema)?;
        let plan = Self {
            schema,
            parquet_fields: Arc::clone(&storage),
            storage,
            options,
            identity,
            threads: default_threads(),
            input_in_memory: false,
            keep_empty: true,
            upload_buffer_bytes: 0,
        };
        plan.template_writer()?;
        Ok(plan)
    }

    /// Makes the Parquet schema of `fields`: they differ from the storage types in metadata alone, such as field ids.
    pub fn with_parquet_fields(mut self, fields: SchemaRef) -> Result<Self> {
        self.parquet_fields = fields;
        self.template_writer()?;
        Ok(self)
    }

    /// A writer to nothing, which has the schema and the properties of the files.
    fn template_writer(&self) -> Result<SerializedFileWriter<io::Sink>> {
        let converter = ArrowSchemaConverter::new().with_coerce_types(true);
        for field in self.parquet_fields.fields() {
            let single_field = arrow_schema::Schema::new(vec![Arc::clone(field)]);
            converter.convert(&single_field).map_err(|e| {
                Error::invalid(format!(
                    "column {:?}: type {} is not supported by Parquet: {e}",
                    field.name(),
                    field.data_type()
                ))
                .with_source(e)
            })?;
        }
        let parquet_schema = converter.convert(&self.parquet_fields).map_err(|e| {
            Error::invalid(format!("the schema cannot be written: {e}")).with_source(e)
        })?;
        let arrow_schema = KeyValue {
            key: parquet::arrow::ARROW_SCHEMA_META_KEY.to_owned(),
            value: Some(parquet::arrow::encode_arrow_schema(&self.schema)),
        };
        // As pyarrow does, for readers that do not read the Arrow schema.
        let mut metadata: Vec<KeyValue> = self
            .schema
            .metadata()
            .iter()
            .filter(|(key, _)| *key != parquet::arrow::ARROW_SCHEMA_META_KEY)
            .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
            .collect();
        metadata.sort_by(|a, b| a.key.cmp(&b.key));
        metadata.push(arrow_schema);
        let properties = self.options.writer_properties(&parquet_schema, metadata);
        SerializedFileWriter::new(io::sink(), parquet_schema.root_schema_ptr(), properties).map_err(
            |e| Error::invalid(format!("the schema cannot be written: {e}")).with_source(e),
        )
    }

    fn budget_bytes(&self) -> usize {
        let limit = self.options.memory_limit_bytes;
        limit
            .saturating_sub(self.upload_buffer_bytes)
            .max(limit / 4)
    }
}

/// Writes all rows of `input` to files, which are opened by `files` and finished in order.
pub fn write(
    plan: &WritePlan,
    input: &mut (dyn RecordBatchReader + Send),
    files: &mut dyn ByteSinkFactory,
    cancel: &Cancel,
) -> Result<()> {
    let template = plan.template_writer()?;
    let output = OutputFiles::new(files, &template, plan.identity.clone());
    let schemas = (Arc::clone(&plan.schema), Arc::clone(&plan.storage));
    let encoder = Encoder::new(
        output,
        schemas,
        PendingGroups::new(plan.threads.max(1), plan.input_in_memory),
        (plan.budget_bytes(), template.schema_descr().num_columns()),
        plan.options.page_rows,
        cancel.clone(),
    );
    std::thread::scope(|scope| {
        // A thread that cannot be started is left out.
        let start_threads = || {
            for i in 0..plan.threads.max(1) {
                let builder = std::thread::Builder::new().name(format!("pds-encode-{i}"));
                let started = builder.spawn_scoped(scope, || encoder.run_worker());
                if started.is_ok() {
                    encoder.use_workers();
                }
            }
        };
        let mut splitter = RowGroupSplitter::new(plan, &template, &encoder, &start_threads);
        let split = std::panic::AssertUnwindSafe(|| splitter.split_input(input));
        // Unwinding beyond this call would leave the threads waiting for ever.
        let result = std::panic::catch_unwind(split)
            .unwrap_or_else(|panic| {
                Err(Error::invalid(format!(
                    "reading the input panicked: {}",
                    panic_text(panic.as_ref())
                )))
            })
            .and_then(|()| encoder.finish());
        encoder.stop();
        result.and_then(|mut output| output.finish(plan.keep_empty, splitter.input_rows))
    })
}

/// Converts an error of the input; one of this crate is taken out of the Arrow error around it.
pub(crate) fn input_error(error: ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(source) => match source.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(other) => match other.downcast::<ArrowError>() {
                Ok(inner) => input_error(*inner),
                Err(other) => {
                    let error = ArrowError::ExternalError(other);
                    Error::other(format!("reading the input failed: {error}")).with_source(error)
                }
            },
        },
        ArrowError::InvalidArgumentError(_) => {
            Error::invalid(format!("the input does not match its schema: {error}"))
                .with_source(error)
        }
        error => Error::other(format!("reading the input failed: {error}")).with_source(error),
    }
}

/// Splits batches into row groups and files.
struct RowGroupSplitter<'p, 'e, 'a> {
    plan: &'p WritePlan,
    template: &'p SerializedFileWriter<io::Sink>,
    encoder: &'e Encoder<'a>,
    start_threads: &'e dyn Fn(),
    has_started_threads: bool,
    /// The rows that were read, and about how many bytes they take in memory.
    input_rows: u64,
    input_bytes: usize,
    /// The number of leaf columns of each top-level field.
    leaves: Vec<usize>,
    is_group_open: bool,
    group_rows: usize,
    /// About how many bytes the rows of the open row group take in memory.
    group_bytes: usize,
    file_rows: u64,
    file_groups: usize,
}

impl<'p, 'e, 'a> RowGroupSplitter<'p, 'e, 'a> {
    fn new(
        plan: &'p WritePlan,
        template: &'p SerializedFileWriter<io::Sink>,
        encoder: &'e Encoder<'a>,
        start_threads: &'e dyn Fn(),
    ) -> Self {
        let mut leaves = vec![0; plan.schema.fields().len()];
        let descriptor = template.schema_descr();
        for leaf in 0..descriptor.num_columns() {
            leaves[descriptor.get_column_root_idx(leaf)] += 1;
        }
        Self {
            plan,
            template,
            encoder,
            start_threads,
            has_started_threads: false,
            input_rows: 0,
            input_bytes: 0,
            leaves,
            is_group_open: false,
            group_rows: 0,
            group_bytes: 0,
            file_rows: 0,
            file_groups: 0,
        }
    }

    fn split_input(&mut self, input: &mut (dyn RecordBatchReader + Send)) -> Result<()> {
        for batch in input {
            let batch = batch.map_err(input_error)?;
            if batch.num_columns() != self.plan.schema.fields().len() {
                return Err(Error::invalid(
                    "a batch of the input does not have the columns of its schema",
                ));
            }
            if batch.num_columns() == 0 && batch.num_rows() > 0 {
                return Err(Error::invalid("Parquet cannot store rows without columns"));
            }
            check_required(&batch)?;
            check_digits(&batch)?;
            check_text(&batch)?;
            let bytes: usize = batch.columns().iter().map(|c| slice_bytes(c)).sum();
            self.input_rows += batch.num_rows() as u64;
            self.input_bytes += bytes;
            if self.input_bytes > MAX_BYTES_WITHOUT_THREADS && !self.has_started_threads {
                (self.start_threads)();
                self.has_started_threads = true;
            }
            let row_bytes = bytes.div_ceil(batch.num_rows().max(1));
            let mut at = 0;
            while at < batch.num_rows() {
                at += self.push_rows(&batch, at, row_bytes)?;
            }
        }
        self.close_group()
    }

    /// The most rows, of about `row_bytes` bytes each, that are passed on at once.
    ///
    /// If the input is in memory, it is a whole row group, so that a column's writer does not hold its buffers while it
    /// waits for more rows. The limit of such row groups is their size in memory, not their encoded size.
    fn slice_rows(&self, row_bytes: usize) -> usize {
        let budget = self.plan.budget_bytes();
        let (bytes, max_rows) = if self.plan.input_in_memory {
            let group_bytes = budget / MAX_GROUP_SHARE;
            (group_bytes.saturating_sub(self.group_bytes), usize::MAX)
        } else {
            (budget / MAX_SLICE_SHARE, MAX_SLICE_ROWS)
        };
        (bytes / row_bytes.max(1)).clamp(1, max_rows)
    }

    /// Passes on rows from `at`, as many as fit; returns their number.
    fn push_rows(&mut self, batch: &RecordBatch, at: usize, row_bytes: usize) -> Result<usize> {
        let rows_left_in_file = self
            .plan
            .options
            .rows_per_file
            .map_or(u64::MAX, |n| n - self.file_rows);
        if rows_left_in_file == 0 {
            self.close_group()?;
            (self.file_rows, self.file_groups) = (0, 0);
            return Ok(0);
        }
        if !self.is_group_open {
            let max_rows = self.plan.options.row_group_rows;
            self.open_group(&batch.slice(at, (batch.num_rows() - at).min(max_rows)))?;
        }
        let mut rows =
            (batch.num_rows() - at).min(self.plan.options.row_group_rows - self.group_rows);
        rows = rows.min(usize::try_from(rows_left_in_file).unwrap_or(usize::MAX));
        rows = rows.min(self.slice_rows(row_bytes));
        if !self.encoder.push(&batch.slice(at, rows))? {
            self.close_group()?;
            return Ok(0);
        }
        self.group_rows += rows;
        self.file_rows += rows as u64;
        self.group_bytes += rows * row_bytes;
        let max_group_bytes = self.plan.budget_bytes() / MAX_GROUP_SHARE;
        let is_full = self.plan.input_in_memory && self.group_bytes + row_bytes > max_group_bytes;
        if is_full || self.group_rows == self.plan.options.row_group_rows {
            self.close_group()?;
        }
        Ok(rows)
    }

    /// Opens a row group that begins with `first_rows`.
    fn open_group(&mut self, first_rows: &RecordBatch) -> Result<()> {
        if self.file_groups == MAX_GROUPS {
            return Err(Error::invalid(format!(
                "a Parquet file holds {MAX_GROUPS} row groups at most, and the rows need more: \
                 set a larger row_group_size, or max_rows_per_file"
            )));
        }
        let columns = self.template.schema_descr().num_columns();
        let digests: Digests = Arc::new((0..columns).map(|_| OnceLock::new()).collect());
        let to_error = |e: ParquetError| {
            Error::invalid(format!("the schema cannot be written: {e}")).with_source(e)
        };
        let template = self.group_template(first_rows).map_err(to_error)?;
        let template = template.as_ref().unwrap_or(self.template);
        let factory = column_factory(template, &self.plan.storage, &digests);
        let column_writers = factory
            .create_column_writers(self.file_groups)
            .map_err(to_error)?;
        let mut writers = column_writers.into_iter();
        let by_field: Vec<Vec<ArrowColumnWriter>> = self
            .leaves
            .iter()
            .map(|n| writers.by_ref().take(*n).collect())
            .collect();
        self.encoder
            .open_group(by_field, digests, self.file_groups == 0)?;
        self.is_group_open = true;
        self.group_rows = 0;
        self.group_bytes = 0;
        self.file_groups += 1;
        Ok(())
    }

    /// The template of a row group with columns of distinct values, which have no dictionary; None if there are none.
    fn group_template(
        &self,
        first_rows: &RecordBatch,
    ) -> std::result::Result<Option<SerializedFileWriter<io::Sink>>, ParquetError> {
        let descriptor = self.template.schema_descr();
        let mut distinct_paths = Vec::new();
        let mut leaf = 0;
        for (column, leaves) in first_rows.columns().iter().zip(&self.leaves) {
            if *leaves == 1 && is_distinct(column) {
                distinct_paths.push(descriptor.column(leaf).path().clone());
            }
            leaf += leaves;
        }
        if distinct_paths.is_empty() {
            return Ok(None);
        }
        let mut properties = WriterProperties::clone(self.template.properties()).into_builder();
        for path in distinct_paths {
            properties = properties.set_column_dictionary_enabled(path, false);
        }
        let schema = descriptor.root_schema_ptr();
        SerializedFileWriter::new(io::sink(), schema, Arc::new(properties.build())).map(Some)
    }

    fn close_group(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_group_open) {
            self.encoder.close_group()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;
    use arrow_schema::{DataType, Field, Schema};
    use parquet::arrow::arrow_writer::compute_leaves;

    use super::*;
    use crate::parquet::dictionary::Dictionaries;
    use crate::parquet::output::ClosedRowGroup;

    struct Nowhere;

    impl ByteSink for Nowhere {
        fn write(&mut self, _bytes: &[u8]) -> Result<()> {
            Ok(())
        }

        fn finish(self: Box<Self>, _stats: FileStats) -> Result<()> {
            Ok(())
        }
    }

    impl ByteSinkFactory for Nowhere {
        fn open(&mut self) -> Result<Box<dyn ByteSink>> {
            Ok(Box::new(Self))
        }
    }

    /// Appends a row group of 3 rows as one of so many, and finishes the files of an input of so many.
    fn finish(group_rows: u64, input_rows: u64) -> Result<()> {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let options = WriteOptions::new("none", None, None, None, None)?;
        let plan = WritePlan::new(Arc::clone(&schema), options, PartIdentity::default())?;
        let template = plan.template_writer()?;
        let digests: Digests = Arc::new(vec![OnceLock::new()]);
        let factory = column_factory(&template, &schema, &digests);
        let mut writer = factory.create_column_writers(0).unwrap().remove(0);
        let column: arrow_array::ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        for leaf in compute_leaves(schema.field(0), &column).unwrap() {
            writer.write(&leaf).unwrap();
        }
        let mut chunks = Some(vec![writer.close().unwrap()]);
        let mut nowhere = Nowhere;
        let mut output = OutputFiles::new(&mut nowhere, &template, PartIdentity::default());
        let group = ClosedRowGroup {
            digests,
            dictionaries: Dictionaries::default(),
            rows: group_rows,
            opens_file: true,
        };
        output.append(&group, &mut || Ok(chunks.take()))?;
        output.finish(true, input_rows)
    }

    #[test]
    fn files_that_lack_rows_of_the_input_are_an_error() {
        finish(3, 3).unwrap();
        let lost = finish(3, 5).unwrap_err().to_string();
        assert!(lost.contains("have 3 rows, and the input had 5"), "{lost}");
        let wrong = finish(5, 5).unwrap_err().to_string();
        assert!(wrong.contains("states 3 rows, not 5"), "{wrong}");
    }
}
