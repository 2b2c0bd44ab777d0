//! Samples of a stage's source keys, for checks that are to cost less than a rebuild.
//!
//! A sample is of ranges of keys, each from the key of a block of a key index to the next one: the rows of a block are in
//! few pages. Keys are chosen by chance, each once however many blocks or files begin with it. Of many files only some are
//! opened, and then those in which a chosen key lies, so that a range ends at their next block.
//!
//! Indexes have keys that are cut ([`RunFile::first`]). They divide the keys all the same; those that are alike where they
//! are cut are in one range.

use std::collections::BTreeMap;

use arrow_array::Array;
use futures::{StreamExt, TryStreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::graph::StageNode;
use super::plan::Plan;
use super::split::comparable;
use super::tables::TableShape;
use crate::error::Result;
use crate::run::{KeyRange, RunFile, decode_keys, read_block_keys};
use crate::store::Store;

/// As many files are opened at least, where there are so many.
const MIN_FILES: f64 = 64.0;
/// How many files are opened at once.
const CONCURRENT_FILES: usize = 16;

/// Keys by their comparable form.
type KeysInOrder = BTreeMap<Box<[u8]>, Value>;

impl Plan {
    /// Ranges of the keys of a stage's feeders, with about a part of their keys, and with one key at least if there is
    /// one; disjoint and in the order of the feeders. All keys are in them if the part is 1.
    pub(super) async fn sample_ranges(
        &self,
        stage: &StageNode,
        part: f64,
    ) -> Result<Vec<KeyRange>> {
        let shape = self.feeder_columns(stage)?.source();
        let store = self.store_of(&stage.name);
        let runs = stage
            .feeders
            .iter()
            .flat_map(|feeder| self.stored_content(feeder));
        let files: Vec<&RunFile> = runs.flat_map(|run| &run.files.files).collect();
        let chance = self.pipeline.store().clock().new_id() >> 64;
        let mut random = StdRng::seed_from_u64(u64::try_from(chance).unwrap_or_default());

        let file_count = f64::from(u32::try_from(files.len().max(1)).unwrap_or(u32::MAX));
        let opened_part = (MIN_FILES / file_count).clamp(part, 1.0);
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        for file in files {
            let is_opened = random.random::<f64>() < opened_part;
            if is_opened { &mut opened } else { &mut closed }.push(file);
        }
        if opened.is_empty() && !closed.is_empty() {
            let at = random.random_range(0..closed.len());
            opened.push(closed.swap_remove(at));
        }
        let blocks = self.block_keys(&store, &shape, &opened).await?;
        let key_part = part / opened_part;
        let mut chosen: KeysInOrder = blocks.clone();
        chosen.retain(|_, _| random.random::<f64>() < key_part);
        if chosen.is_empty() && !blocks.is_empty() {
            let any = blocks.iter().nth(random.random_range(0..blocks.len()));
            chosen.extend(any.map(|(row, key)| (row.clone(), key.clone())));
        }

        let mut bounds = blocks;
        let mut around = Vec::new();
        for file in closed {
            let ends = [file.first.first(), file.last.first()];
            let ends = in_order(&shape, ends.into_iter().flatten().cloned())?;
            if let (Some((first, _)), Some((last, _))) =
                (ends.first_key_value(), ends.last_key_value())
                && chosen.range(first.clone()..=last.clone()).next().is_some()
            {
                around.push(file);
            }
            bounds.extend(ends);
        }
        bounds.extend(self.block_keys(&store, &shape, &around).await?);
        ranges(&shape, &bounds, &chosen)
    }

    /// The keys of the blocks of files.
    async fn block_keys(
        &self,
        store: &Store,
        shape: &TableShape,
        files: &[&RunFile],
    ) -> Result<KeysInOrder> {
        let folder = self.pipeline.root();
        let reads = files
            .iter()
            .map(|file| async move { read_block_keys(store, folder, file).await });
        // A Vec, because the future of the iterator itself would not be Send.
        let reads: Vec<_> = reads.collect();
        let keys: Vec<Vec<Value>> = stream::iter(reads)
            .buffered(CONCURRENT_FILES)
            .try_collect()
            .await?;
        in_order(shape, keys.into_iter().flatten())
    }
}

fn in_order(shape: &TableShape, keys: impl Iterator<Item = Value>) -> Result<KeysInOrder> {
    let keys: Vec<Value> = keys.collect();
    let rows = comparable(&keys, shape)?;
    let rows: Vec<Box<[u8]>> = rows.iter().map(|row| row.as_ref().into()).collect();
    Ok(rows.into_iter().zip(keys).collect())
}

/// For each chosen bound the range up to the next one. That of the first one begins with the first key: a cut key can be
/// after those that it stands for.
fn ranges(shape: &TableShape, bounds: &KeysInOrder, chosen: &KeysInOrder) -> Result<Vec<KeyRange>> {
    let keys: Vec<Value> = bounds.values().cloned().collect();
    let decoded = decode_keys(&keys, shape.schema.field(0).data_type())?;
    let bound = |at: usize| (at > 0 && at < keys.len()).then(|| vec![decoded.slice(at, 1)]);
    let mut ranges: Vec<KeyRange> = Vec::new();
    let mut end = None;
    for (at, row) in bounds.keys().enumerate() {
        if !chosen.contains_key(row) {
            continue;
        }
        let to = bound(at + 1);
        match ranges.last_mut() {
            Some(last) if end == Some(at) => last.to = to,
            _ => ranges.push(KeyRange {
                from: bound(at),
                to,
            }),
        }
        end = Some(at + 1);
    }
    Ok(ranges)
}
