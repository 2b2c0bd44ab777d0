//! Writes the manifests of a version: one for the files of each segment, one for the others, and beside each one for
//! their deleted rows. Those of the last export that say the same are taken over.
//!
//! The name of an object follows from what is in it, so exports that run at once put the same objects, and one that is
//! there stays. Of the last export only the list of its newest snapshot is read, and the manifests that are not taken
//! over.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, PutMode};

use super::bounds::statistics;
use super::file_check::check_file;
use super::folder::{hex, key_of, object_path};
use super::manifests::{self, Content, Entry, ListedManifest};
use super::metadata::IcebergMetadata;
use super::position_deletes;
use super::schema::IcebergSchema;
use crate::error::{Error, ErrorKind, Result};
use crate::files::DataFile;
use crate::sync::hash::Sha3;
use crate::sync::progress;
use crate::table::export::{DeletionKey, LoadedVersion, deleted_positions};
use crate::table::snapshot_reader::SnapshotReader;
use crate::table::{Table, names};

/// The number of files that are opened, and of objects that are read, at once.
const CONCURRENT_FILES: usize = 16;

/// What was exported last.
#[derive(Debug, Default)]
pub(super) struct Previous {
    /// By the key of the name.
    manifests: HashMap<String, ListedManifest>,
}

/// What is known of the manifests of the last export that are not taken over.
#[derive(Debug, Default)]
struct Known {
    /// Data files that readers read rightly with the columns of now, with their sizes.
    files: HashSet<(String, u64)>,
    /// Files with deleted rows, by the key of the name.
    deletes: HashMap<String, Entry>,
}

/// Writes the objects of a version.
pub(super) struct SnapshotWriter<'t> {
    table: &'t Table,
    location: &'t str,
    /// See [`super::metadata::ExportState`].
    epoch: &'t str,
    schema: &'t IcebergSchema,
    schema_id: i32,
    schema_json: String,
    /// False to check only whether the version can be exported.
    writes: bool,
    pub(super) bytes: u64,
}

impl Previous {
    /// Reads the list of the newest snapshot.
    pub(super) async fn load(table: &Table, metadata: &IcebergMetadata) -> Result<Self> {
        let Some(newest) = metadata.snapshots.last() else {
            return Ok(Self::default());
        };
        let bytes = read(table, &metadata.location, &newest.manifest_list).await?;
        let listed = bytes.and_then(|bytes| manifests::decode_list(&bytes));
        let listed = listed.unwrap_or_default().into_iter();
        let keyed = listed.filter_map(|m| Some((key_of(&m.path)?.to_owned(), m)));
        Ok(Self {
            manifests: keyed.collect(),
        })
    }
}

impl<'t> SnapshotWriter<'t> {
    pub(super) fn new(
        table: &'t Table,
        (location, epoch): (&'t str, &'t str),
        schema: &'t IcebergSchema,
        (schema_id, schema_json): (i32, String),
        writes: bool,
    ) -> Self {
        Self {
            table,
            location,
            epoch,
            schema,
            schema_id,
            schema_json,
            writes,
            bytes: 0,
        }
    }

    /// Writes the manifests of a version that are not there yet. Returns all.
    pub(super) async fn write(
        &mut self,
        version: &LoadedVersion,
        previous: &Previous,
    ) -> Result<Vec<ListedManifest>> {
        let groups = group(version);
        let keys: Vec<_> = groups
            .iter()
            .map(|files| {
                (
                    self.data_key(version, files),
                    self.deletes_key(version, files),
                )
            })
            .collect();
        let needed = keys
            .iter()
            .flat_map(|(data, deletes)| [Some(data), deletes.as_ref()]);
        let needed: HashSet<&String> = needed.flatten().collect();
        let known = self.load_others(previous, &needed).await?;
        let mut written = Vec::new();
        for (files, (data_key, deletes_key)) in groups.iter().zip(&keys) {
            written.push(match previous.manifests.get(data_key) {
                Some(manifest) => manifest.clone(),
                None => self.write_data(version, files, data_key, &known).await?,
            });
            let Some(deletes_key) = deletes_key else {
                continue;
            };
            if let Some(manifest) = previous.manifests.get(deletes_key) {
                written.push(manifest.clone());
            } else {
                let manifest = self.write_deletes(version, files, deletes_key, &known);
                written.extend(Box::pin(manifest).await?);
            }
        }
        Ok(written)
    }

    /// Writes the list of manifests; returns its absolute path.
    pub(super) async fn write_list(
        &mut self,
        (snapshot, parent): (i64, Option<i64>),
        sequence: u64,
        listed: &[ListedManifest],
    ) -> Result<String> {
        let bytes = manifests::encode_list(snapshot, parent, sequence, listed);
        let key = format!("{snapshot:032x}");
        self.put(&object_path("snap", &key, &bytes, "avro"), bytes)
            .await
    }

    fn data_key(&self, version: &LoadedVersion, files: &[usize]) -> String {
        let listed = files.iter().map(|file| {
            // Serializing plain data into memory cannot fail.
            serde_json::to_vec(&version.files[*file].file).unwrap_or_default()
        });
        // The rows of a version that is restored may be in the same files, whose manifest may have been removed.
        let restored_at = version.manifest.restored_at.unwrap_or_default().to_string();
        let head = [
            "data, 2",
            self.epoch,
            &restored_at,
            &self.schema_json,
            self.location,
        ];
        let head = head.into_iter().map(|text| text.as_bytes().to_vec());
        hash(head.chain(listed))
    }

    /// `None` if no tombstone is about one of the files.
    fn deletes_key(&self, version: &LoadedVersion, files: &[usize]) -> Option<String> {
        let keys = files.iter().filter_map(|file| {
            let key = version.deletion_key(*file)?;
            Some(self.rows_key(key).into_bytes())
        });
        let keys: Vec<_> = keys.collect();
        let head = ["deletes, 2", &self.schema_json];
        let head = head.into_iter().map(|text| text.as_bytes().to_vec());
        (!keys.is_empty()).then(|| hash(head.chain(keys)))
    }

    /// What the name of a file with deleted rows follows from.
    fn rows_key(&self, DeletionKey(key): &DeletionKey) -> String {
        let parts = [self.epoch.as_bytes(), self.location.as_bytes(), key];
        hash(parts.into_iter().map(<[u8]>::to_vec))
    }

    /// Reads the manifests of the last export that are not taken over.
    async fn load_others(&self, previous: &Previous, taken: &HashSet<&String>) -> Result<Known> {
        let others = previous.manifests.iter();
        let others = others.filter(|(key, _)| !taken.contains(key));
        let loads = others.map(|(_, manifest)| async {
            let bytes = read(self.table, self.location, &manifest.path).await?;
            let decoded = bytes.and_then(|bytes| manifests::decode_manifest(&bytes));
            Ok::<_, Error>((manifest.content, decoded))
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let loads: Vec<_> = loads.collect();
        let mut loads = stream::iter(loads).buffer_unordered(CONCURRENT_FILES);
        let mut known = Known::default();
        while let Some((content, decoded)) = loads.try_next().await? {
            let Some((schema, entries)) = decoded else {
                continue;
            };
            match content {
                Content::Data if schema == self.schema_json => {
                    let files = entries.into_iter().map(|e| (e.path, e.size_bytes));
                    known.files.extend(files);
                }
                Content::Data => {}
                Content::Deletes => {
                    let keyed = entries
                        .into_iter()
                        .filter_map(|entry| Some((key_of(&entry.path)?.to_owned(), entry)));
                    known.deletes.extend(keyed);
                }
            }
        }
        Ok(known)
    }

    async fn write_data(
        &mut self,
        version: &LoadedVersion,
        files: &[usize],
        key: &str,
        known: &Known,
    ) -> Result<ListedManifest> {
        let is_new = |file: &&usize| {
            let listed = &version.files[**file].file;
            let entry = (self.absolute(&listed.path), listed.size_bytes);
            // The same path can have been added again with other columns.
            listed.columns.is_some() || !known.files.contains(&entry)
        };
        let new_files: Vec<usize> = files.iter().filter(is_new).copied().collect();
        let reader = version.reader(self.table, &new_files).await?;
        let checks = (0..new_files.len()).map(|file| check_file(&reader, file, self.schema));
        // A Vec, because the future of the iterator itself would not be Send.
        let checks: Vec<_> = checks.collect();
        let checks = stream::iter(checks).buffer_unordered(CONCURRENT_FILES);
        checks.try_collect::<()>().await?;
        let entries = files.iter().map(|file| self.data_entry(version, *file));
        let entries: Vec<Entry> = entries.collect();
        self.write_manifest(Content::Data, key, &entries).await
    }

    /// Writes the manifest of deleted rows; `None` if there are none after all.
    async fn write_deletes(
        &mut self,
        version: &LoadedVersion,
        files: &[usize],
        key: &str,
        known: &Known,
    ) -> Result<Option<ListedManifest>> {
        let mut entries = BTreeMap::new();
        let mut others = Vec::new();
        for file in files {
            let Some(deletion_key) = version.deletion_key(*file) else {
                continue;
            };
            let rows_key = self.rows_key(deletion_key);
            match known.deletes.get(&rows_key) {
                Some(entry) => drop(entries.insert(*file, entry.clone())),
                None => others.push((*file, rows_key)),
            }
        }
        let other_files: Vec<usize> = others.iter().map(|(file, _)| *file).collect();
        let reader = version.reader(self.table, &other_files).await?;
        let this = &*self;
        let computations = others.iter().enumerate().map(|(at, (file, rows_key))| {
            let reader = &reader;
            async move {
                let sequence = sequence(version, *file);
                let computed = this.write_rows(reader, at, rows_key, sequence).await?;
                Ok::<_, Error>((*file, computed))
            }
        });
        // A Vec, as above.
        let computations: Vec<_> = computations.collect();
        let mut computed = stream::iter(computations).buffer_unordered(CONCURRENT_FILES);
        let mut bytes = 0;
        while let Some((file, entry)) = computed.try_next().await? {
            if let Some(entry) = entry {
                bytes += entry.size_bytes;
                entries.insert(file, entry);
            }
        }
        drop(computed);
        self.count_bytes(bytes);
        if entries.is_empty() {
            return Ok(None);
        }
        let mut entries: Vec<Entry> = entries.into_values().collect();
        let columns: Vec<u32> = self.schema.columns.iter().map(|c| c.id).collect();
        for entry in &mut entries {
            position_deletes::set_counts(entry, &columns);
        }
        let manifest = self.write_manifest(Content::Deletes, key, &entries).await?;
        Ok(Some(manifest))
    }

    /// Writes the file with the deleted rows of a file; `None` if no row is deleted.
    async fn write_rows(
        &self,
        reader: &SnapshotReader,
        file: usize,
        key: &str,
        sequence: u64,
    ) -> Result<Option<Entry>> {
        let positions = deleted_positions(reader, file).await?;
        if positions.is_empty() {
            return Ok(None);
        }
        let data_file = self.absolute(&reader.files[file].file.path);
        let bytes = position_deletes::encode(&data_file, &positions)?;
        let path = object_path("rows", key, &bytes, "parquet");
        let (size_bytes, rows) = (bytes.len() as u64, positions.len());
        self.put_at(&path, bytes).await?;
        let path = self.absolute(&path);
        let entry = position_deletes::entry(path, size_bytes, rows, &data_file, sequence);
        Ok(Some(entry))
    }

    async fn write_manifest(
        &mut self,
        content: Content,
        key: &str,
        entries: &[Entry],
    ) -> Result<ListedManifest> {
        let bytes = manifests::encode_manifest(content, &self.schema_json, self.schema_id, entries);
        let kind = match content {
            Content::Data => "data",
            Content::Deletes => "deletes",
        };
        let sequences = entries.iter().map(|entry| entry.sequence);
        let size_bytes = bytes.len() as u64;
        let path = self
            .put(&object_path(kind, key, &bytes, "avro"), bytes)
            .await?;
        Ok(ListedManifest {
            path,
            size_bytes,
            content,
            min_sequence: sequences.min().unwrap_or_default(),
            files: entries.len() as u64,
            rows: entries.iter().map(|entry| entry.rows).sum(),
        })
    }

    fn count_bytes(&mut self, count: u64) {
        self.bytes += count;
        progress::add_bytes(count);
    }

    /// Writes an object; returns its absolute path.
    async fn put(&mut self, path: &str, bytes: Bytes) -> Result<String> {
        self.count_bytes(bytes.len() as u64);
        self.put_at(path, bytes).await?;
        Ok(self.absolute(path))
    }

    /// As the name follows from the content, an object that is there has the same.
    async fn put_at(&self, path: &str, bytes: Bytes) -> Result<()> {
        if self.writes {
            let path = self.table.path(path);
            let store = self.table.store();
            store.put(&path, bytes, PutMode::Overwrite).await?;
        }
        Ok(())
    }

    fn absolute(&self, path: &str) -> String {
        format!("{}/{path}", self.location)
    }

    fn data_entry(&self, version: &LoadedVersion, file: usize) -> Entry {
        let listed: &DataFile = &version.files[file].file;
        let statistics = statistics(listed, self.schema);
        Entry {
            path: self.absolute(&listed.path),
            rows: listed.total_rows,
            size_bytes: listed.size_bytes,
            sequence: sequence(version, file),
            value_counts: statistics.value_counts,
            null_counts: statistics.null_counts,
            lower: statistics.lower,
            upper: statistics.upper,
            data_file: None,
        }
    }
}

/// The files of each segment, and the others.
fn group(version: &LoadedVersion) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
    for (file, listed) in version.files.iter().enumerate() {
        let reference = listed.to_file_ref();
        let segment = reference.segment_position.map(|(path, _)| path.to_string());
        groups.entry(segment).or_default().push(file);
    }
    groups.into_values().collect()
}

/// The sequence number of a data file, and of what is deleted of it: the version at which its writer began; 0 if that is not
/// known.
fn sequence(version: &LoadedVersion, file: usize) -> u64 {
    let base = names::base_version(&version.files[file].file.path);
    let is_earlier = |base: &u64| *base <= version.manifest.version;
    base.filter(is_earlier).unwrap_or_default()
}

/// The first 32 hexadecimal digits of the hash of texts.
fn hash(texts: impl Iterator<Item = Vec<u8>>) -> String {
    let mut hash = Sha3::new();
    for text in texts {
        // Each with its length, so that no two lists give the same bytes.
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(&text);
    }
    hex(&hash.finish()[..16])
}

/// Reads an object by its absolute path; `None` if it is missing.
pub(super) async fn read(table: &Table, location: &str, path: &str) -> Result<Option<Bytes>> {
    let relative = path.strip_prefix(location);
    let Some(relative) = relative.and_then(|path| path.strip_prefix('/')) else {
        return Ok(None);
    };
    let path = table.path(relative);
    match table.store().get(&path, GetOptions::new()).await {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
