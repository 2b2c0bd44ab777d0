//! A stream of record batches into Parquet files.
//!
//! Rows are cut into row groups and files; the columns of up to three row groups are encoded by
//! all processors at once (`encode`) and appended in order (`output`). Encoders
//! and finished chunks stay within the memory budget: a row group is ended early when it would not
//! fit, and the stream is not read ahead of the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::ArrowColumnWriter;
use parquet::file::metadata::KeyValue;
use parquet::file::writer::SerializedFileWriter;

use super::encode::Encoder;
use super::nested::{check_digits, check_required};
use super::options::WriteOptions;
pub use super::output::{ByteSink, ByteSinkFactory, FileStats};
use super::output::{OutputFiles, column_factory};
use super::seal::PartIdentity;
use super::size::slice_bytes;
use super::types::storage_schema;
use super::{Cancel, default_threads, panic_text};
use crate::error::{Error, Result};

/// Rows of a stream's batch that are handed on at once.
const MAX_SLICE_ROWS: usize = 1 << 17;
/// The budget divided by this is what is handed on at once at most.
const MAX_SLICE_SHARE: usize = 4;
/// The budget divided by this is what a row group of rows in memory has at most: two are in the works.
const MAX_GROUP_SHARE: usize = 2;

/// Row groups of a file: their numbers have 16 bits with a sign.
const MAX_GROUPS: usize = i16::MAX as usize;

/// Checks that Parquet can hold `schema`; an error names the column.
pub fn check_schema(schema: &SchemaRef) -> Result<()> {
    let identity = PartIdentity {
        write_id: 0,
        created_at: String::new(),
        task: 0,
        sequence: 0,
        last: false,
    };
    let options = WriteOptions::new("none", None, None, None, None)?;
    WritePlan::new(Arc::clone(schema), options, identity).map(drop)
}

/// One write: what, how and for whom.
#[derive(Debug, Clone)]
pub struct WritePlan {
    /// The schema as the user has it; it is kept in the files.
    pub schema: SchemaRef,
    storage: SchemaRef,
    /// Codec, row groups, files, memory.
    pub options: WriteOptions,
    /// The first file's identity.
    pub identity: PartIdentity,
    /// Threads that encode.
    pub threads: usize,
    /// The caller holds the whole input in memory.
    pub input_in_memory: bool,
    /// Write a file also when there are no rows.
    pub keep_empty: bool,
    /// Memory that the sinks need of the limit.
    pub upload_buffer_bytes: usize,
}

impl WritePlan {
    /// Checks that Parquet can hold `schema`; an error names the column.
    pub fn new(schema: SchemaRef, options: WriteOptions, identity: PartIdentity) -> Result<Self> {
        let storage = storage_schema(&schema)?;
        let plan = Self {
            schema,
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

    /// A writer into nothing, for its schema and properties.
    fn template_writer(&self) -> Result<SerializedFileWriter<io::Sink>> {
        let converter = ArrowSchemaConverter::new().with_coerce_types(true);
        for field in self.storage.fields() {
            let single_field = arrow_schema::Schema::new(vec![Arc::clone(field)]);
            converter.convert(&single_field).map_err(|e| {
                Error::invalid(format!(
                    "column {:?} cannot be held by Parquet: {e}",
                    field.name()
                ))
                .with_source(e)
            })?;
        }
        let parquet_schema = converter.convert(&self.storage).map_err(|e| {
            Error::invalid(format!("the schema cannot be written: {e}")).with_source(e)
        })?;
        let arrow_schema = KeyValue {
            key: parquet::arrow::ARROW_SCHEMA_META_KEY.to_owned(),
            value: Some(parquet::arrow::encode_arrow_schema(&self.schema)),
        };
        // As pyarrow does, so that those who do not read the Arrow schema find the pairs too.
        let mut metadata: Vec<KeyValue> = self
            .schema
            .metadata()
            .iter()
            .filter(|(key, _)| *key != parquet::arrow::ARROW_SCHEMA_META_KEY)
            .map(|(key, value)| KeyValue::new(key.clone(), value.clone()))
            .collect();
        metadata.sort_by(|a, b| a.key.cmp(&b.key));
        metadata.push(arrow_schema);
        let properties = self.options.writer_properties(metadata);
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

/// Writes all of `input`; files are opened and closed in order through `files`.
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
        plan.budget_bytes(),
        template.schema_descr().num_columns(),
        cancel.clone(),
    );
    std::thread::scope(|scope| {
        // A thread that cannot be started is one fewer; the last of them is this one's to miss.
        let started_threads = (0..plan.threads.max(1))
            .filter(|i| {
                let builder = std::thread::Builder::new().name(format!("pds-encode-{i}"));
                builder.spawn_scoped(scope, || encoder.run_worker()).is_ok()
            })
            .count();
        let result = if started_threads == 0 {
            Err(Error::other("no thread could be started to encode"))
        } else {
            let mut splitter = RowGroupSplitter::new(plan, &template, &encoder);
            let split = std::panic::AssertUnwindSafe(|| splitter.split_input(input));
            // Unwinding past here would leave the threads waiting for ever.
            std::panic::catch_unwind(split)
                .unwrap_or_else(|panic| {
                    Err(Error::invalid(format!(
                        "the input cannot be taken: {}",
                        panic_text(panic.as_ref())
                    )))
                })
                .and_then(|()| encoder.finish())
        };
        encoder.stop();
        result.and_then(|mut output| output.finish(plan.keep_empty))
    })
}

/// The input's own error where it is one of ours.
pub(crate) fn input_error(error: ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(source) => match source.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(other) => match other.downcast::<ArrowError>() {
                Ok(inner) => input_error(*inner),
                Err(other) => {
                    let error = ArrowError::ExternalError(other);
                    Error::other(format!("the input failed: {error}")).with_source(error)
                }
            },
        },
        ArrowError::InvalidArgumentError(_) => {
            Error::invalid(format!("the input is not what its schema says: {error}"))
                .with_source(error)
        }
        error => Error::other(format!("the input failed: {error}")).with_source(error),
    }
}

/// Cuts batches into row groups and files.
struct RowGroupSplitter<'p, 'e, 'a> {
    plan: &'p WritePlan,
    template: &'p SerializedFileWriter<io::Sink>,
    encoder: &'e Encoder<'a>,
    /// Leaf columns under each field.
    leaves: Vec<usize>,
    is_group_open: bool,
    group_rows: usize,
    /// What the rows of the row group are in memory, about.
    group_bytes: usize,
    file_rows: u64,
    file_groups: usize,
}

impl<'p, 'e, 'a> RowGroupSplitter<'p, 'e, 'a> {
    fn new(
        plan: &'p WritePlan,
        template: &'p SerializedFileWriter<io::Sink>,
        encoder: &'e Encoder<'a>,
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
                    "the input's batches do not have the columns of its schema",
                ));
            }
            if batch.num_columns() == 0 && batch.num_rows() > 0 {
                return Err(Error::invalid("Parquet cannot hold rows without columns"));
            }
            check_required(&batch)?;
            check_digits(&batch)?;
            let bytes: usize = batch.columns().iter().map(|c| slice_bytes(c)).sum();
            let row_bytes = bytes.div_ceil(batch.num_rows().max(1));
            let mut at = 0;
            while at < batch.num_rows() {
                at += self.push_rows(&batch, at, row_bytes)?;
            }
        }
        self.close_group()
    }

    /// How many rows of about `row_bytes` are handed on at once at most.
    ///
    /// Of what is in memory anyway it is a whole row group, so that a column's writer does not wait with
    /// its buffers for more rows. Such row groups are ended by what they are, not by what they become.
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

    /// Hands on rows from `at`, as many as fit; gives their number.
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
            self.open_group()?;
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

    fn open_group(&mut self) -> Result<()> {
        if self.file_groups == MAX_GROUPS {
            return Err(Error::invalid(format!(
                "a Parquet file holds {MAX_GROUPS} row groups at most, and the rows need more: \
                 give a larger row_group_size, or max_rows_per_file"
            )));
        }
        let columns = self.template.schema_descr().num_columns();
        let digests = Arc::new((0..columns).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let factory = column_factory(self.template, &self.plan.storage, &digests);
        let column_writers = factory
            .create_column_writers(self.file_groups)
            .map_err(|e| {
                Error::invalid(format!("the schema cannot be written: {e}")).with_source(e)
            })?;
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

    fn close_group(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_group_open) {
            self.encoder.close_group()?;
        }
        Ok(())
    }
}
