//! Whether a chain is what was written: links, rules, and every byte of its files.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Schema};
use futures::{StreamExt, stream};
use object_store::GetOptions;

use super::block::Block;
use super::chain::Chain;
use super::digest::LogicalHash;
use super::multihash::{Multihash, SHA3_256};
use super::rules::{ChainState, is_data_event};
use super::schema;
use super::slice::{Slice, build_slice_snapshot};
use super::slice_columns::describe_difference;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::Sha3;
use crate::parquet::default_threads;
use crate::parquet::file::TAIL_BYTES;
use crate::part::{open, run_blocking};
use crate::table::{Wanted, scan};

/// Bytes of a file that are hashed at once.
const PIECE_BYTES: u64 = 8 << 20;

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The object.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// What was looked at, and what is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Blocks from the head to the seed.
    pub blocks: u64,
    /// Slices whose bytes and rows were hashed.
    pub slices: u64,
    /// Their rows.
    pub rows: u64,
    /// What is wrong, oldest first.
    pub problems: Vec<Problem>,
}

impl Verified {
    fn note(&mut self, path: String, message: impl Into<String>) {
        let message = message.into();
        self.problems.push(Problem { path, message });
    }
}

/// Reads the chain anew, up to its head or to a block, and checks it; with `data`, its files as well.
/// Errors are of the store alone.
pub async fn verify(chain: &Chain, until: Option<&Multihash>, data: bool) -> Result<Verified> {
    let mut found = Verified::default();
    let fresh = Chain::new(chain.store().clone(), chain.root())?;
    let newest = match fresh.head().await {
        Ok(Some(head)) => until.cloned().unwrap_or(head.hash),
        Ok(None) => {
            let message = "there is no dataset: it has no refs/head";
            return Err(Error::new(ErrorKind::NotFound, message).with_path(chain.root()));
        }
        Err(e) if is_finding(&e) => {
            found.note(fresh.path("refs/head"), e.message());
            return Ok(found);
        }
        Err(e) => return Err(e),
    };
    let blocks = match fresh.blocks_back_from(&newest, None, usize::MAX).await {
        Ok(blocks) => blocks,
        Err(e) if is_finding(&e) => {
            let path = e.path().map_or_else(|| fresh.path("blocks"), str::to_owned);
            found.note(path, e.message());
            return Ok(found);
        }
        Err(e) => return Err(e),
    };
    found.blocks = blocks.len() as u64;
    check_rules(&fresh, &blocks, &mut found);
    if data {
        check_files(&fresh, &blocks, &mut found).await?;
    }
    Ok(found)
}

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

fn check_rules(chain: &Chain, blocks: &[Arc<Block>], found: &mut Verified) {
    let mut state = ChainState::default();
    for block in blocks.iter().rev() {
        if let Err(e) = state.check(block) {
            let path = chain.path(&format!("blocks/{}", block.hash()));
            found.note(
                path,
                format!("block {}: {}", block.sequence_number, e.message()),
            );
        }
        state.apply(block);
    }
}

async fn check_files(chain: &Chain, blocks: &[Arc<Block>], found: &mut Verified) -> Result<()> {
    let mut checks = Vec::new();
    let mut state = ChainState::default();
    for block in blocks.iter().rev() {
        match Check::slice(chain, block, &state) {
            Ok(check) => checks.push(check),
            Err(e) => {
                let path = chain.path(&format!("blocks/{}", block.hash()));
                found.note(path, e.message());
            }
        }
        checks.push(Check::checkpoint(chain, block));
        state.apply(block);
    }
    let checks: Vec<Check> = checks.into_iter().flatten().collect();
    let slices = checks.iter().filter(|check| check.slice.is_some());
    found.slices = slices.clone().count() as u64;
    found.rows = slices
        .filter_map(|check| check.slice.as_ref())
        .map(Slice::rows)
        .fold(0, u64::saturating_add);
    let looked: Vec<_> = checks.iter().map(|check| check.run(chain)).collect();
    let mut looked = stream::iter(looked).buffered(default_threads());
    let mut at = 0;
    while let Some(result) = looked.next().await {
        match result {
            Ok(()) => {}
            Err(e) if is_finding(&e) => found.note(checks[at].path.clone(), e.message()),
            Err(e) => return Err(e),
        }
        at += 1;
    }
    Ok(())
}

/// A file and what it should be.
struct Check {
    path: String,
    hash: Option<Multihash>,
    size: u64,
    slice: Option<Slice>,
    /// The name of the column of its numbers.
    offset: String,
    /// The columns that the chain says, where it does.
    schema: Option<Schema>,
}

impl Check {
    fn slice(chain: &Chain, block: &Block, state: &ChainState) -> Result<Option<Self>> {
        let slice = match block.kind() {
            kind if is_data_event(kind) => Slice::from_event(block.event())?,
            _ => None,
        };
        Ok(slice.map(|slice| Self {
            path: chain.data_path(&slice.physical_hash.to_string()),
            hash: Some(slice.physical_hash.clone()),
            size: slice.size,
            slice: Some(slice),
            offset: state.vocabulary.offset.clone(),
            // What is wrong with a schema is told of its own block.
            schema: state
                .schema_event
                .as_ref()
                .and_then(|e| schema::arrow_from_event(e).ok()),
        }))
    }

    fn checkpoint(chain: &Chain, block: &Block) -> Option<Self> {
        let checkpoint = block
            .event()
            .get("newCheckpoint")
            .filter(|c| !c.is_null())?;
        let hash = checkpoint["physicalHash"].as_str().unwrap_or_default();
        Some(Self {
            path: chain.path(&format!("checkpoints/{hash}")),
            hash: hash.parse().ok(),
            size: checkpoint["size"].as_u64().unwrap_or(0),
            slice: None,
            offset: String::new(),
            schema: None,
        })
    }

    async fn run(&self, chain: &Chain) -> Result<()> {
        self.check_bytes(chain).await?;
        match &self.slice {
            Some(slice) => check_rows(chain, slice, &self.offset, self.schema.as_ref()).await,
            None => Ok(()),
        }
    }

    async fn check_bytes(&self, chain: &Chain) -> Result<()> {
        let damaged = |message: String| Error::new(ErrorKind::PartCorrupted, message);
        let store = chain.store();
        let there = store.head(&self.path).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => damaged("it is missing".to_owned()),
            _ => e,
        })?;
        if there.size != self.size {
            let message = format!("it has {} bytes, its block says {}", there.size, self.size);
            return Err(damaged(message));
        }
        let Some(wanted) = &self.hash else {
            return Err(damaged("its block gives no hash of it".to_owned()));
        };
        if wanted.code() != SHA3_256 {
            let message = format!("hashes of the code {:#x} cannot be checked", wanted.code());
            return Err(Error::new(ErrorKind::FormatNotSupported, message));
        }
        let mut hasher = Sha3::new();
        let mut at = 0;
        while at < self.size {
            let end = (at + PIECE_BYTES).min(self.size);
            let range = GetOptions::new().with_range(Some(at..end));
            let (bytes, _) = store.get(&self.path, range).await?;
            if bytes.is_empty() {
                return Err(damaged(format!("it ends after {at} bytes")));
            }
            at += bytes.len() as u64;
            hasher = run_blocking(move || {
                hasher.update(&bytes);
                Ok(hasher)
            })
            .await?;
        }
        let found = Multihash::new(SHA3_256, &hasher.finish());
        if found != *wanted {
            return Err(damaged(format!("its bytes have the physical hash {found}")));
        }
        Ok(())
    }
}

/// Checks the logical hash of a slice, the numbers of its rows, and its columns against those that the chain
/// says.
pub(super) async fn check_rows(
    chain: &Chain,
    slice: &Slice,
    offset: &str,
    in_force: Option<&Schema>,
) -> Result<()> {
    let path = chain.data_path(&slice.physical_hash.to_string());
    let damaged = |message: String| Error::new(ErrorKind::PartCorrupted, message).with_path(&path);
    let part = open(chain.store(), &path, TAIL_BYTES).await?;
    let fields: Vec<_> = part.file.schema.fields().iter().cloned().collect();
    let schema = Arc::new(Schema::new(fields));
    drop(part);
    if let Some(why) = in_force.and_then(|in_force| describe_difference(in_force, &schema)) {
        return Err(damaged(why));
    }
    let Ok(column) = schema.index_of(offset) else {
        return Err(damaged(format!("it has no column {offset:?}")));
    };
    let vocabulary = super::vocabulary::Vocabulary::default();
    let (table, manifest) =
        build_slice_snapshot(chain, &schema, &vocabulary, std::slice::from_ref(slice))?;
    let mut rows = scan(&table, Arc::new(manifest), Wanted::default()).await?;
    let mut digest = LogicalHash::new(&schema)?;
    let mut next = slice.start;
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let first = next;
        // So many rows there are not: the footer was checked.
        next = next.saturating_add(batch.num_rows() as u64);
        digest = run_blocking(move || {
            if !is_numbered(batch.column(column), first..next) {
                let message = format!("its rows are not numbered from {first} on");
                return Err(Error::new(ErrorKind::PartCorrupted, message));
            }
            digest.update(&batch)?;
            Ok(digest)
        })
        .await?;
    }
    let found = digest.finish()?;
    if found != slice.logical_hash {
        return Err(damaged(format!("its rows have the logical hash {found}")));
    }
    Ok(())
}

/// Whether a column counts.
fn is_numbered(column: &ArrayRef, numbers: Range<u64>) -> bool {
    if !column.data_type().is_integer() || column.null_count() > 0 {
        return false;
    }
    arrow_cast::cast(column, &DataType::UInt64).is_ok_and(|found| {
        let found = found.as_primitive::<UInt64Type>();
        found.null_count() == 0 && found.values().iter().copied().eq(numbers)
    })
}
