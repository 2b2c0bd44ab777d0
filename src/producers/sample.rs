//! Samples of a stage's source keys, for checks that are to cost less than a rebuild.
//!
//! A sample is of ranges of keys, each about a block of the key index of one file: the keys of a block are in few pages.
//! Blocks are chosen by chance, and of the files only those are opened that have a chosen one.

use std::cmp::Ordering;

use arrow_array::Array;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::graph::StageNode;
use super::plan::Plan;
use super::split::comparable;
use crate::error::Result;
use crate::run::{DEFAULT_PAGE_ROWS, KeyRange, RunFile, decode_keys, read_block_keys};

impl Plan {
    /// Ranges of the keys of a stage's feeders, with about a part of their rows, and with one key at least if there is
    /// one; disjoint and in the order of the feeders.
    pub(super) async fn sample_ranges(
        &self,
        stage: &StageNode,
        part: f64,
    ) -> Result<Vec<KeyRange>> {
        let (store, folder) = (self.pipeline.store(), self.pipeline.root());
        let runs = stage.feeders.iter();
        let runs = runs.flat_map(|feeder| self.stored_content(feeder));
        let files: Vec<&RunFile> = runs.flat_map(|run| &run.files.files).collect();
        let bounds = files
            .iter()
            .flat_map(|file| [file.first.first(), file.last.first()]);
        let mut keys: Vec<Value> = bounds.flatten().cloned().collect();
        let chance = store.clock().new_id() >> 64;
        let mut random = StdRng::seed_from_u64(u64::try_from(chance).unwrap_or_default());
        let mut opened = files.clone();
        opened.retain(|file| {
            let blocks = file.rows.div_ceil(DEFAULT_PAGE_ROWS as u64);
            (0..blocks).any(|_| random.random_bool(part))
        });
        if opened.is_empty() && !files.is_empty() {
            opened.push(files[random.random_range(0..files.len())]);
        }
        let mut chosen = Vec::new();
        for file in opened {
            let mut blocks = read_block_keys(store, folder, file).await?;
            keys.extend_from_slice(&blocks);
            // What follows the last key up to the next one of another file is no block's.
            blocks.extend(file.last.first().cloned());
            if blocks.is_empty() {
                continue;
            }
            let any = blocks[random.random_range(0..blocks.len())].clone();
            blocks.retain(|_| random.random_bool(part));
            chosen.extend(if blocks.is_empty() { vec![any] } else { blocks });
        }
        self.ranges_of(stage, &keys, &chosen)
    }

    /// For each chosen key the range up to the next one of all keys.
    fn ranges_of(
        &self,
        stage: &StageNode,
        keys: &[Value],
        chosen: &[Value],
    ) -> Result<Vec<KeyRange>> {
        let shape = self.feeder_columns(stage)?.source();
        let data_type = shape.schema.field(0).data_type();
        let all: Vec<Value> = keys.iter().chain(chosen).cloned().collect();
        let rows = comparable(&all, &shape)?;
        let mut order: Vec<usize> = (0..all.len()).collect();
        // Of equal keys the chosen one is first.
        order.sort_by(|a, b| rows.row(*a).cmp(&rows.row(*b)).then(b.cmp(a)));
        order.dedup_by(|b, a| rows.row(*a).cmp(&rows.row(*b)) == Ordering::Equal);
        let decoded = decode_keys(&all, data_type)?;
        let bound = |at: usize| Some(vec![decoded.slice(at, 1)]);
        let mut ranges: Vec<KeyRange> = Vec::new();
        let mut end = None;
        for (position, at) in order.iter().enumerate() {
            if *at < keys.len() {
                continue;
            }
            let to = order.get(position + 1).and_then(|next| bound(*next));
            match ranges.last_mut() {
                Some(last) if end == Some(position) => last.to = to,
                _ => ranges.push(KeyRange {
                    from: bound(*at),
                    to,
                }),
            }
            end = Some(position + 1);
        }
        Ok(ranges)
    }
}
