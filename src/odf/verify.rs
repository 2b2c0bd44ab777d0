//! Verification of a chain: links, rules, and every byte of its files.
//!
//! [`verify()`] reads the chain from its head and returns a [`ChainVerification`]. What is wrong with the dataset is
//! a [`Problem`] that names the object; an error is raised only if the store fails or there is no dataset.
//!
//! A missing or unreadable block ends the verification, since the blocks before it cannot be reached. A head that was
//! set back to an older block is not detected.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema, SchemaRef};
use futures::{StreamExt, stream};
use object_store::GetOptions;

use super::block::Block;
use super::chain::Chain;
use super::digest::LogicalHash;
use super::event::Slice;
use super::multihash::{Multihash, SHA3_256};
use super::rows::OperationCheck;
use super::rules::ChainState;
use super::slice::{read_columns, scan_slices, slice_files};
use super::slice_columns::{describe_difference, schema_as_read, schema_to_read};
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{ScanOptions, run_blocking};
use crate::parquet::default_threads;
use crate::parquet::required::check_nulls;
use crate::parquet::types::{convert, convert_batch};
use crate::sync::hash::Sha3;
use crate::sync::progress;
use crate::versions::names::CHAIN_HEAD;

/// The bytes of a file that are read and hashed at once.
const READ_CHUNK_BYTES: u64 = 8 << 20;

/// A deviation of an object from what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The path of the object.
    pub path: String,
    /// What is wrong with the object.
    pub message: String,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainVerification {
    /// The number of blocks from the newest one to the seed.
    pub blocks: u64,
    /// The number of slices whose bytes and rows were hashed.
    pub slices: u64,
    /// The number of rows of these slices.
    pub rows: u64,
    /// The problems: those of blocks first, then those of files, each oldest first.
    pub problems: Vec<Problem>,
}

impl ChainVerification {
    fn add_problem(&mut self, path: String, message: impl Into<String>) {
        let message = message.into();
        self.problems.push(Problem { path, message });
    }
}

/// Reads the chain from the store, up to `until` or to its head, and verifies it; with `include_data`, its files as
/// well. [`ErrorKind::NotFound`] if there is no dataset; other errors are those of the store.
pub async fn verify(
    chain: &Chain,
    until: Option<&Multihash>,
    include_data: bool,
) -> Result<ChainVerification> {
    progress::begin_phase("blocks");
    let mut verification = ChainVerification::default();
    let fresh = Chain::new(chain.store().clone(), chain.root())?;
    let newest = match fresh.head().await {
        Ok(Some(head)) => until.cloned().unwrap_or(head.hash),
        Ok(None) => {
            return Err(chain.not_found());
        }
        Err(e) if is_finding(&e) => {
            verification.add_problem(fresh.path(CHAIN_HEAD), e.message());
            return Ok(verification);
        }
        Err(e) => return Err(e),
    };
    let blocks = match fresh.blocks_back_from(&newest, None, usize::MAX).await {
        Ok(blocks) => blocks,
        Err(e) if is_finding(&e) => {
            let path = e.path().map_or_else(|| fresh.path("blocks"), str::to_owned);
            verification.add_problem(path, e.message());
            return Ok(verification);
        }
        Err(e) => return Err(e),
    };
    verification.blocks = blocks.len() as u64;
    check_rules(&fresh, &blocks, &mut verification);
    if include_data {
        check_files(&fresh, &blocks, &mut verification).await?;
    }
    Ok(verification)
}

/// Whether an error is a problem of the dataset, not a failure of the store.
fn is_finding(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BlockCorrupted
            | ErrorKind::FormatNotSupported
            | ErrorKind::TooLarge
            | ErrorKind::InvalidInput
            | ErrorKind::PartCorrupted
            | ErrorKind::NotFound
            | ErrorKind::InvalidAppend
    )
}

fn check_rules(chain: &Chain, blocks: &[Arc<Block>], verification: &mut ChainVerification) {
    let mut state = ChainState::default();
    for block in blocks.iter().rev() {
        if let Err(e) = state.check(block) {
            let path = chain.block_path(block.hash());
            verification.add_problem(
                path,
                format!("block {}: {}", block.sequence_number, e.message()),
            );
        }
        state.apply(block);
    }
}

async fn check_files(
    chain: &Chain,
    blocks: &[Arc<Block>],
    verification: &mut ChainVerification,
) -> Result<()> {
    let mut checks = Vec::new();
    let mut state = ChainState::default();
    for block in blocks.iter().rev() {
        match FileCheck::for_slice(chain, block, &state) {
            Ok(check) => checks.push(check),
            Err(e) => {
                let path = chain.block_path(block.hash());
                verification.add_problem(path, e.message());
            }
        }
        checks.push(FileCheck::for_checkpoint(chain, block));
        state.apply(block);
    }
    let checks: Vec<FileCheck> = checks.into_iter().flatten().collect();
    let slices = checks.iter().filter(|check| check.slice.is_some());
    verification.slices = slices.clone().count() as u64;
    verification.rows = slices
        .filter_map(|check| check.slice.as_ref())
        .map(Slice::rows)
        .fold(0, u64::saturating_add);
    let progress = progress::current();
    if let Some(progress) = &progress {
        progress.begin_phase("slices");
        progress.expect_files(verification.slices);
        progress.expect_rows(verification.rows);
    }
    let runs: Vec<_> = checks.iter().map(|check| check.run(chain)).collect();
    let mut results = stream::iter(runs).buffered(default_threads());
    let mut at = 0;
    while let Some(result) = results.next().await {
        match result {
            Ok(()) => {}
            Err(e) if is_finding(&e) => {
                verification.add_problem(checks[at].path.clone(), e.message());
            }
            Err(e) => return Err(e),
        }
        if let (Some(progress), Some(slice)) = (&progress, &checks[at].slice) {
            progress.add_file(slice.rows(), slice.size);
        }
        at += 1;
    }
    Ok(())
}

/// A file and its expected content.
struct FileCheck {
    path: String,
    hash: Multihash,
    size: u64,
    slice: Option<Slice>,
    /// The names of the system columns.
    vocabulary: Vocabulary,
    /// The schema of the chain before the slice; None if it has none that can be used.
    schema: Option<Schema>,
}

impl FileCheck {
    fn for_slice(chain: &Chain, block: &Block, state: &ChainState) -> Result<Option<Self>> {
        let slice = block.event().slice()?.cloned();
        Ok(slice.map(|slice| Self {
            path: chain.data_path(&slice.physical_hash.to_string()),
            hash: slice.physical_hash.clone(),
            size: slice.size,
            slice: Some(slice),
            vocabulary: state.vocabulary.clone(),
            // A schema that cannot be used is a problem of its own block.
            schema: state
                .schema_event
                .as_ref()
                .and_then(|e| schema_to_read(e, &state.vocabulary).ok()),
        }))
    }

    fn for_checkpoint(chain: &Chain, block: &Block) -> Option<Self> {
        let checkpoint = block.event().data()?.new_checkpoint.as_ref()?;
        let hash = &checkpoint.physical_hash;
        Some(Self {
            path: chain.path(&format!("checkpoints/{hash}")),
            hash: hash.clone(),
            size: checkpoint.size,
            slice: None,
            vocabulary: Vocabulary::default(),
            schema: None,
        })
    }

    async fn run(&self, chain: &Chain) -> Result<()> {
        self.check_bytes(chain).await?;
        match &self.slice {
            Some(slice) => check_rows(chain, slice, &self.vocabulary, self.schema.as_ref()).await,
            None => Ok(()),
        }
    }

    async fn check_bytes(&self, chain: &Chain) -> Result<()> {
        let damaged = |message: String| Error::new(ErrorKind::PartCorrupted, message);
        let store = chain.store();
        let meta = store.head(&self.path).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => damaged("the file is missing".to_owned()),
            _ => e,
        })?;
        if meta.size != self.size {
            let message = format!(
                "the file has {} bytes; its block states {}",
                meta.size, self.size
            );
            return Err(damaged(message));
        }
        let expected_hash = &self.hash;
        if expected_hash.code() != SHA3_256 {
            let message = format!(
                "unsupported hash function {:#x} of the file",
                expected_hash.code()
            );
            return Err(Error::new(ErrorKind::FormatNotSupported, message));
        }
        let mut hasher = Sha3::new();
        let mut at = 0;
        while at < self.size {
            let end = (at + READ_CHUNK_BYTES).min(self.size);
            let options = GetOptions::new().with_range(Some(at..end));
            let (bytes, _) = store.get(&self.path, options).await?;
            if bytes.is_empty() {
                return Err(damaged(format!("the file ends after {at} bytes")));
            }
            at += bytes.len() as u64;
            hasher = run_blocking(move || {
                hasher.update(&bytes);
                Ok(hasher)
            })
            .await?;
        }
        let actual_hash = Multihash::new(SHA3_256, &hasher.finish());
        if actual_hash != *expected_hash {
            return Err(damaged(format!(
                "the physical hash is {actual_hash}; its block states {expected_hash}"
            )));
        }
        Ok(())
    }
}

/// Checks the logical hash of a slice, the offsets and the operations of its rows, and its columns and values against
/// the schema of the chain.
pub(super) async fn check_rows(
    chain: &Chain,
    slice: &Slice,
    vocabulary: &Vocabulary,
    chain_schema: Option<&Schema>,
) -> Result<()> {
    let path = chain.data_path(&slice.physical_hash.to_string());
    let schema = Arc::new(read_columns(chain, slice).await?);
    if let Some(reason) =
        chain_schema.and_then(|chain_schema| describe_difference(chain_schema, &schema))
    {
        return Err(damaged(reason).with_path(&path));
    }
    let files = slice_files(&schema, &Vocabulary::default(), std::slice::from_ref(slice));
    let check = RowCheck::new(&schema, vocabulary, chain_schema.cloned(), slice.start);
    let mut check = check.map_err(|e| e.with_path(&path))?;
    let mut batches = scan_slices(chain, &files, &ScanOptions::default()).await?;
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        let checked = run_blocking(move || {
            check.update(&batch)?;
            Ok(check)
        });
        check = checked.await.map_err(|e| e.with_path(&path))?;
    }
    let (actual_hash, other_hash) = check.digest.finish()?;
    if actual_hash != slice.logical_hash && other_hash.as_ref() != Some(&slice.logical_hash) {
        let message = format!(
            "the logical hash of the rows is {actual_hash}; the block states {}",
            slice.logical_hash
        );
        return Err(damaged(message).with_path(&path));
    }
    Ok(())
}

fn damaged(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::PartCorrupted, message)
}

/// The check of the rows of a slice, batch by batch.
struct RowCheck {
    /// The index of the offset column.
    offset: usize,
    /// The offset of the next row.
    next: u64,
    /// The index of the operation column; a chain from before there were operations has none.
    operation: Option<usize>,
    operations: OperationCheck,
    chain_schema: Option<Schema>,
    digest: SliceDigest,
}

impl RowCheck {
    fn new(
        slice_schema: &Schema,
        vocabulary: &Vocabulary,
        chain_schema: Option<Schema>,
        start: u64,
    ) -> Result<Self> {
        let [offset, operation, ..] = vocabulary.names();
        let Ok(offset_index) = slice_schema.index_of(offset) else {
            return Err(damaged(format!(
                "the slice has no offset column {offset:?}"
            )));
        };
        Ok(Self {
            offset: offset_index,
            next: start,
            operation: slice_schema.index_of(operation).ok(),
            operations: OperationCheck::of_slice(),
            chain_schema,
            digest: SliceDigest::new(slice_schema)?,
        })
    }

    fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let first = self.next;
        // No overflow: the footer was checked, and no file has so many rows.
        self.next = first.saturating_add(batch.num_rows() as u64);
        if !is_sequential(batch.column(self.offset), first..self.next) {
            let message = format!("the offsets of the rows do not count from {first}");
            return Err(damaged(message));
        }
        if let Some(index) = self.operation {
            let checked = self.operations.check_column(batch.column(index));
            checked.map_err(|e| damaged(e.message().to_owned()).with_source(e))?;
        }
        if let Some(chain_schema) = &self.chain_schema {
            check_values(batch, chain_schema).map_err(|e| {
                let message = format!(
                    "the rows are not those of the schema before the slice: {}",
                    e.message()
                );
                damaged(message).with_source(e)
            })?;
        }
        self.digest.update(batch)
    }
}

/// Checks that rows can be read with the schema of their chain, which has the same columns.
fn check_values(batch: &RecordBatch, chain_schema: &Schema) -> Result<()> {
    let mut columns = chain_schema.fields().iter().zip(batch.columns());
    columns.try_for_each(|(field, column)| {
        check_nulls(column, field, field.name())?;
        convert(column, field.data_type(), field.name()).map(drop)
    })
}

/// The logical hashes that a slice may have: that of its columns, and for a file whose Arrow schema has seconds that of
/// the milliseconds that other tools read from it. Slices of older releases of pds have the first one.
struct SliceDigest {
    columns: LogicalHash,
    as_read: Option<(SchemaRef, LogicalHash)>,
}

impl SliceDigest {
    fn new(slice_schema: &Schema) -> Result<Self> {
        let as_read = schema_as_read(slice_schema)
            .map(|schema| Ok::<_, Error>((Arc::new(schema.clone()), LogicalHash::new(&schema)?)));
        Ok(Self {
            columns: LogicalHash::new(slice_schema)?,
            as_read: as_read.transpose()?,
        })
    }

    fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        if let Some((schema, digest)) = &mut self.as_read {
            digest.update(&convert_batch(batch, schema)?)?;
        }
        self.columns.update(batch)
    }

    fn finish(self) -> Result<(Multihash, Option<Multihash>)> {
        let as_read = self
            .as_read
            .map(|(_, digest)| digest.finish())
            .transpose()?;
        Ok((self.columns.finish()?, as_read))
    }
}

/// Whether a column holds the expected offsets, in order and without nulls.
fn is_sequential(column: &ArrayRef, expected: Range<u64>) -> bool {
    if !column.data_type().is_integer() || column.null_count() > 0 {
        return false;
    }
    arrow_cast::cast(column, &DataType::UInt64).is_ok_and(|integers| {
        let offsets = integers.as_primitive::<UInt64Type>();
        offsets.null_count() == 0 && offsets.values().iter().copied().eq(expected)
    })
}
