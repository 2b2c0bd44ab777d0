//! Opening the parts of a dataset and checking that together they are what its manifest describes.
//!
//! [`open_parts`] reads the footer of every part. All parts must be of the manifest's write, in the order in which they
//! were written, none of them left out; or all of them are foreign, without a seal. Row counts and schemas must agree.
//! A [`PartEntry`] identifies a part, so that [`check_part`] can check a single one by the dataset's [`PartIndex`].
//!
//! [`ErrorKind::DatasetIncomplete`]: parts are missing or were replaced, or do not fit the manifest's row count or each
//! other's schema. [`ErrorKind::PartCorrupted`]: a part is not the one that was written.

use std::sync::Arc;

use arrow_schema::{Field, Schema};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::{DatasetManifest, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{OpenPart, open};
use crate::parquet::file::{ParquetFile, TAIL_BYTES};
use crate::store::{Store, path};

/// Footers read at once.
const CONCURRENT_OPENS: usize = 32;
/// Memory of the opened parts (footers, dictionaries, ends of files) that are kept; further parts are opened
/// again when they are read.
const MAX_CACHED_BYTES: usize = 64 << 20;

/// The identity of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// Length of the file.
    pub bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of row groups.
    pub row_groups: u64,
    footer_hash: u64,
    /// Where the part stands in its write; None without a seal.
    place: Option<PartPosition>,
}

/// Where a part stands in its write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PartPosition {
    write_id: u128,
    task: u64,
    sequence: u64,
    last: bool,
}

impl PartEntry {
    fn new(part: &OpenPart) -> Self {
        let position = part.file.seal.as_ref().map(|seal| PartPosition {
            write_id: seal.identity.write_id,
            task: seal.identity.task,
            sequence: seal.identity.sequence,
            last: seal.identity.last,
        });
        Self {
            bytes: part.file.length,
            rows: part.file.rows(),
            row_groups: part.file.metadata().num_row_groups() as u64,
            footer_hash: part.file.footer_hash,
            place: position,
        }
    }

    /// Whether the part alone proves that it is the one at `index` of `manifest`.
    pub(super) fn is_unambiguously_at(&self, index: usize, manifest: &DatasetManifest) -> bool {
        let parts = manifest.parts.len();
        if parts == 1 && self.rows != manifest.row_count {
            return false;
        }
        match &self.place {
            // The parts of the first task come first, numbered from 0.
            Some(position) => {
                let is_end = index + 1 == parts;
                position.task == 0
                    && position.sequence == index as u64
                    && (position.last || !is_end)
            }
            None => parts == 1,
        }
    }
}

/// The entries of all parts of a dataset, in order. A reader of a single part compares the part with its entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartIndex {
    /// One for each part of the manifest.
    pub entries: Vec<PartEntry>,
}

/// The opened parts of one dataset, which have been checked against its manifest.
#[derive(Debug)]
pub(super) struct DatasetParts {
    store: Store,
    key: String,
    names: Vec<String>,
    pub(super) entries: Vec<PartEntry>,
    cached: Vec<Option<Arc<OpenPart>>>,
    /// The first part, for the schema.
    pub(super) first: Arc<OpenPart>,
}

impl DatasetParts {
    /// A single part of a dataset, which the caller has checked.
    pub(super) fn from_single_part(store: &Store, key: &str, name: &str, part: OpenPart) -> Self {
        let (entry, part) = (PartEntry::new(&part), Arc::new(part));
        Self {
            store: store.clone(),
            key: key.to_owned(),
            names: vec![name.to_owned()],
            entries: vec![entry],
            cached: vec![Some(Arc::clone(&part))],
            first: part,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether all parts are kept open.
    pub(super) fn is_fully_cached(&self) -> bool {
        self.cached.iter().all(Option::is_some)
    }

    /// Whether every part has a seal. Then the parts were compared with the manifest, and every chunk that is read is
    /// compared with its checksum: what is read is of one write, whatever has been published since.
    pub(super) fn all_sealed(&self) -> bool {
        self.entries.iter().all(|part| part.place.is_some())
    }

    pub(super) fn sealed_count(&self) -> usize {
        self.entries.iter().filter(|e| e.place.is_some()).count()
    }

    /// The part at `index`, opened again where it was not kept; [`ErrorKind::DatasetIncomplete`] if it was replaced.
    pub(super) async fn get(&self, index: usize) -> Result<Arc<OpenPart>> {
        if let Some(part) = &self.cached[index] {
            return Ok(Arc::clone(part));
        }
        let part = open_part(&self.store, &self.key, &self.names[index]).await?;
        if PartEntry::new(&part) != self.entries[index] {
            let reason = format!(
                "part {:?} was replaced while the dataset was read",
                self.names[index]
            );
            return Err(incomplete_error(&self.key, &reason));
        }
        Ok(Arc::new(part))
    }
}

/// Opens every part of a manifest and checks that together they are its dataset.
pub(super) async fn open_parts(
    store: &Store,
    key: &str,
    manifest: &DatasetManifest,
) -> Result<DatasetParts> {
    let opens = manifest
        .parts
        .iter()
        .map(|name| open_part(store, key, name));
    let mut opened = stream::iter(opens).buffered(CONCURRENT_OPENS);
    let (mut entries, mut cached, mut cached_bytes) = (Vec::new(), Vec::new(), 0);
    let mut first: Option<Arc<OpenPart>> = None;
    let (mut missing, mut corruption_error) = (Vec::new(), None);
    let mut index = 0;
    while let Some(part) = opened.next().await {
        let name = manifest.parts[index].as_str();
        index += 1;
        match part.and_then(|part| check_write(key, manifest, part)) {
            Ok(part) => {
                entries.push(PartEntry::new(&part));
                let part = Arc::new(part);
                let first_part = first.get_or_insert_with(|| Arc::clone(&part));
                if let Err(e) = check_schema(key, &first_part.file, &part) {
                    corruption_error.get_or_insert(e);
                }
                cached_bytes += part.memory_bytes();
                cached.push((cached_bytes <= MAX_CACHED_BYTES).then_some(part));
            }
            Err(e) if e.kind() == ErrorKind::DatasetIncomplete => missing.push((name, e)),
            Err(e) if e.kind() == ErrorKind::PartCorrupted => {
                corruption_error.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    if !missing.is_empty() {
        return Err(missing_parts_error(key, missing));
    }
    if let Some(error) = corruption_error {
        return Err(error);
    }
    let first = first.ok_or_else(|| incomplete_error(key, "its manifest lists no parts"))?;
    check_positions(key, manifest, &entries)?;
    check_rows(key, manifest, &entries)?;
    Ok(DatasetParts {
        store: store.clone(),
        key: key.to_owned(),
        names: manifest.parts.clone(),
        entries,
        cached,
        first,
    })
}

fn missing_parts_error(key: &str, mut missing: Vec<(&str, Error)>) -> Error {
    if missing.len() == 1 {
        return missing.remove(0).1;
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let reason = format!("{} parts are missing: {names:?}", names.len());
    incomplete_error(key, &reason).with_source(missing.remove(0).1)
}

/// Opens one part of a dataset's folder; [`ErrorKind::DatasetIncomplete`] if it is missing.
pub(super) async fn open_part(store: &Store, key: &str, name: &str) -> Result<OpenPart> {
    let path = path::join(key, name);
    let opened = open(store, &path, TAIL_BYTES).await;
    opened.map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            incomplete_error(key, &format!("part {name:?} is missing")).with_source(e)
        }
        ErrorKind::PartCorrupted => e.context(format!("part {name:?}")).with_path(&path),
        _ => e,
    })
}

fn corrupted_part_error(key: &str, name: &str, reason: &str) -> Error {
    let message = format!("part {:?} {reason}", path::join(key, name));
    Error::new(ErrorKind::PartCorrupted, message).with_path(key)
}

/// Gives the part, unless its seal is of another write than the manifest.
fn check_write(key: &str, manifest: &DatasetManifest, part: OpenPart) -> Result<OpenPart> {
    let seal = part.file.seal.as_ref();
    if seal.is_some_and(|seal| seal.identity.created_at != manifest.created_at_utc) {
        let message = format!(
            "part {:?} belongs to a different write than the manifest",
            part.path
        );
        return Err(Error::new(ErrorKind::PartCorrupted, message).with_path(key));
    }
    Ok(part)
}

/// Checks that every part stands where it was written.
fn check_positions(key: &str, manifest: &DatasetManifest, entries: &[PartEntry]) -> Result<()> {
    let mut previous: Option<&PartPosition> = None;
    for (index, (name, entry)) in manifest.parts.iter().zip(entries).enumerate() {
        let Some(position) = &entry.place else {
            // All parts have seals or none: a foreign file among sealed parts has replaced one of them.
            if previous.is_some() {
                let reason = "has no checksums, unlike the parts before it";
                return Err(corrupted_part_error(key, name, reason));
            }
            continue;
        };
        let is_next = match previous {
            None => index == 0 && position.sequence == 0,
            Some(previous) if previous.write_id != position.write_id => false,
            Some(previous) if previous.last => {
                position.task > previous.task && position.sequence == 0
            }
            Some(previous) => {
                position.task == previous.task
                    && Some(position.sequence) == previous.sequence.checked_add(1)
            }
        };
        if !is_next {
            return Err(corrupted_part_error(
                key,
                name,
                "is not the part that was written here: parts were swapped, repeated or left out",
            ));
        }
        previous = Some(position);
    }
    match (previous, manifest.parts.last()) {
        (Some(position), Some(name)) if !position.last => Err(corrupted_part_error(
            key,
            name,
            "is not the last part that was written: parts were left out",
        )),
        _ => Ok(()),
    }
}

fn check_rows(key: &str, manifest: &DatasetManifest, entries: &[PartEntry]) -> Result<()> {
    let actual_rows: u128 = entries.iter().map(|entry| u128::from(entry.rows)).sum();
    if actual_rows == u128::from(manifest.row_count) {
        return Ok(());
    }
    let expected_rows = manifest.row_count;
    let reason = format!("its parts have {actual_rows} rows, its manifest says {expected_rows}");
    Err(incomplete_error(key, &reason))
}

fn check_schema(key: &str, first: &ParquetFile, part: &OpenPart) -> Result<()> {
    if part.file.schema.fields() == first.schema.fields() {
        return Ok(());
    }
    let message = format!(
        "part {:?} has a different schema than the first part: {}; write the dataset again",
        part.path,
        describe_difference(&first.schema, &part.file.schema)
    );
    Err(Error::new(ErrorKind::DatasetIncomplete, message).with_path(key))
}

/// Names the first column of a part that is not as in the first part.
fn describe_difference(first: &Schema, part: &Schema) -> String {
    let describe = |field: &Field| {
        let suffix = if field.is_nullable() { "" } else { " not null" };
        format!("{}{suffix}", field.data_type())
    };
    for expected in first.fields() {
        let (name, expected) = (expected.name(), describe(expected));
        match part.field_with_name(name).map(describe) {
            Err(_) => return format!("column {name:?} ({expected}) is missing"),
            Ok(actual) if actual != expected => {
                return format!("column {name:?} is {actual}, not {expected}");
            }
            Ok(_) => {}
        }
    }
    let mut fields = part.fields().iter();
    if let Some(added) = fields.find(|field| first.field_with_name(field.name()).is_err()) {
        let (name, data_type) = (added.name(), describe(added));
        return format!("the first part has no column {name:?} ({data_type})");
    }
    let mut pairs = first.fields().iter().zip(part.fields());
    match pairs.find(|(expected, actual)| expected != actual) {
        Some((expected, actual)) if expected.name() == actual.name() => {
            format!("column {:?} has other metadata", actual.name())
        }
        Some((expected, actual)) => {
            let (name, expected) = (actual.name(), expected.name());
            format!("column {name:?} is in the place of column {expected:?}")
        }
        None => "a column is there twice".to_owned(),
    }
}

/// Checks that `part` is the one at `index` of the manifest: by `part_index`, by the part alone if that proves it, or
/// by opening all parts.
pub(super) async fn check_part(
    store: &Store,
    key: &str,
    (manifest, index): (&DatasetManifest, usize),
    part: &OpenPart,
    part_index: Option<&PartIndex>,
) -> Result<()> {
    let entry = PartEntry::new(part);
    let is_expected_part = match part_index {
        Some(part_index) => part_index.entries.get(index) == Some(&entry),
        None if entry.is_unambiguously_at(index, manifest) => true,
        None => {
            let parts = open_parts(store, key, manifest).await?;
            parts.entries.get(index) == Some(&entry)
        }
    };
    if is_expected_part {
        return Ok(());
    }
    Err(corrupted_part_error(
        key,
        &manifest.parts[index],
        "is not the part that belongs here: parts were swapped, repeated or replaced",
    ))
}
