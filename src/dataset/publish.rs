//! The second step of a write: staged parts become the dataset.
//!
//! Under the intent: remove the old marker, make the parts visible, put the manifest, put the
//! marker, remove what the old dataset had beside. Every step can be repeated, so an intent that a
//! crash left behind is carried out again from its beginning.

use std::collections::HashSet;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutMode;

use super::intent::{Action, Held, IntendedPart, Intent, Turn, take_turn, wait_until_gone};
use super::open::open_remote;
use super::{MANIFEST, Manifest, SUCCESS, StagedPart, Write, already_exists, incomplete, prepare};
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::is_abandoned;
use crate::store::{Folder, Store, path};

/// Parts made visible at once.
const CONCURRENT_PARTS: usize = 16;

/// Publishes the parts of a write as its dataset, ordered by task and sequence. After an error the
/// staged parts are gone, unless the intent stands: then the next writing call finishes.
pub async fn publish(
    store: &Store,
    write: &Write,
    mut parts: Vec<StagedPart>,
    schema_hash: &str,
) -> Result<Manifest> {
    parts.sort_by_key(|p| (p.task, p.sequence));
    let names: Vec<String> = (0..parts.len()).map(|i| write.layout.name(i)).collect();
    let manifest = Manifest {
        dataset_key: write.key.clone(),
        parts: names.clone(),
        row_count: parts.iter().map(|p| p.rows).sum(),
        schema_hash: schema_hash.to_owned(),
        compression: write.options.codec.clone(),
        created_at_utc: write.created_at.clone(),
        run_id: write.run_id.clone(),
        metadata: write.metadata.clone(),
    };
    let intended = |(name, part): (String, &StagedPart)| IntendedPart {
        name,
        bytes: part.bytes,
        staged: part.staged.clone(),
    };
    let action = Action::Write {
        overwrite: write.overwrite,
        manifest: manifest.to_json(),
        parts: names.into_iter().zip(&parts).map(intended).collect(),
    };
    let intent = Intent::new(write.write_id, action);
    if !store.abilities().delete || !store.abilities().conditional {
        publish_plainly(store, &write.key, &intent).await?;
        return Ok(manifest);
    }
    match acquire(store, &write.key, &intent).await {
        Ok(held) => carry_out_ours(held).await?,
        Err(error) => {
            prepare::abort(store, &parts).await;
            return Err(error);
        }
    }
    Ok(manifest)
}

/// Places the intent, finishing first what others left behind.
pub(super) async fn acquire<'a>(
    store: &'a Store,
    key: &'a str,
    intent: &Intent,
) -> Result<Held<'a>> {
    loop {
        let held = match take_turn(store, key, Some(intent)).await? {
            Turn::Ours(held) => return Ok(held),
            Turn::Finish(held) => held,
            Turn::Free => continue,
        };
        if let Err((held, error)) = finish(held).await {
            if error.kind() != ErrorKind::DatasetIncomplete {
                return Err(error);
            }
            log::warn!("{error}; it is replaced");
            if let Some(held) = held.replace_with(intent).await? {
                return Ok(held);
            }
        }
    }
}

/// Finishes a publish that was left behind, if there is one.
pub(super) async fn recover(store: &Store, key: &str) -> Result<()> {
    match take_turn(store, key, None).await? {
        Turn::Finish(held) => finish(held).await.map_err(|(_, error)| error),
        Turn::Ours(_) | Turn::Free => Ok(()),
    }
}

/// Carries out another's intent; one that lost to an existing dataset is dropped.
async fn finish(mut held: Held<'_>) -> Result<(), (Held<'_>, Error)> {
    let done = match carry_out(&mut held).await {
        Ok(()) => held.release().await,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            discard(&held).await;
            held.release().await
        }
        Err(error) => Err(error),
    };
    done.map_err(|error| (held, error))
}

/// Carries out our own intent. If another process took it over, it is that one's to finish.
async fn carry_out_ours(mut held: Held<'_>) -> Result<()> {
    match carry_out(&mut held).await {
        Ok(()) => held.release().await,
        Err(error) if error.kind() == ErrorKind::Conflict => {
            wait_until_gone(held.store, held.key, &held.intent.id).await
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            discard(&held).await;
            held.release().await?;
            Err(error)
        }
        Err(error) => {
            Err(error.context("the publish was interrupted; the next write or read finishes it"))
        }
    }
}

async fn discard(held: &Held<'_>) {
    let Action::Write { parts, .. } = &held.intent.action else {
        return;
    };
    for part in parts {
        if let Err(e) = part.staged.discard(held.store).await {
            log::warn!("a staged part could not be removed: {e}");
        }
    }
}

async fn carry_out(held: &mut Held<'_>) -> Result<()> {
    match held.intent.action.clone() {
        Action::Write {
            overwrite,
            manifest,
            parts,
        } => carry_out_write(held, overwrite, manifest.into(), &parts).await,
        Action::Delete => super::manage::carry_out_delete(held).await,
    }
}

async fn carry_out_write(
    held: &mut Held<'_>,
    overwrite: bool,
    manifest: Bytes,
    parts: &[IntendedPart],
) -> Result<()> {
    let (store, key) = (held.store, held.key);
    let (success, manifest_path) = (path::join(key, SUCCESS), path::join(key, MANIFEST));
    let folder = look(store, key).await?;
    let mut old_parts = Vec::new();
    let mut finished = false;
    if folder.has(&success) {
        let old = match store
            .get(&manifest_path, object_store::GetOptions::default())
            .await
        {
            Ok((bytes, _)) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => Bytes::new(),
            Err(e) => return Err(e),
        };
        finished = old == manifest;
        if !finished && !overwrite {
            return Err(already_exists(key));
        }
        if !finished {
            old_parts = Manifest::from_json(&old)
                .and_then(|m| m.check_parts().map(|()| m.parts))
                .unwrap_or_default();
            held.confirm().await?;
            store.delete(&success).await?;
        }
    }
    if !finished {
        for parts in parts.chunks(CONCURRENT_PARTS) {
            held.confirm().await?;
            let id = &held.intent.id;
            let shown = parts.iter().map(|part| show_part(store, key, id, part));
            stream::iter(shown)
                .buffer_unordered(CONCURRENT_PARTS)
                .try_collect::<()>()
                .await?;
        }
        held.confirm().await?;
        store
            .put(&manifest_path, manifest, PutMode::Overwrite)
            .await?;
        held.confirm().await?;
        store
            .put(&success, Bytes::new(), PutMode::Overwrite)
            .await?;
    }
    held.confirm().await?;
    sweep(store, key, &folder, parts, &old_parts).await
}

/// Makes one part visible, or finds that it is.
async fn show_part(store: &Store, key: &str, id: &str, part: &IntendedPart) -> Result<()> {
    let target = path::join(key, &part.name);
    let missing = match part.staged.publish(store, &target).await {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => e,
        // An answer that was lost, or a second completion: the object tells.
        Err(e) if e.kind() == ErrorKind::Unavailable => e,
        Err(e) => return Err(e),
    };
    match open_remote(store, &target, None).await {
        Ok(found) if is_written_by(&found.file, id) && found.file.length == part.bytes => Ok(()),
        Ok(_) | Err(_) if missing.kind() == ErrorKind::NotFound => {
            let why = format!(
                "part {:?} of an interrupted write is gone; write it again with overwrite=True",
                part.name
            );
            Err(incomplete(key, &why).caused_by(missing))
        }
        Ok(_) | Err(_) => Err(missing),
    }
}

fn is_written_by(file: &crate::parquet::file::PartFile, id: &str) -> bool {
    let seal = file.seal.as_ref();
    seal.is_some_and(|seal| format!("{:032x}", seal.identity.write_id) == id)
}

/// Removes parts the new dataset does not have, and what killed writers of this host left.
async fn sweep(
    store: &Store,
    key: &str,
    folder: &Folder,
    parts: &[IntendedPart],
    old_parts: &[String],
) -> Result<()> {
    let kept: HashSet<&str> = parts.iter().map(|p| p.name.as_str()).collect();
    let goes = |name: &str| {
        let stray =
            is_part_name(name) || old_parts.iter().any(|old| old == name) || is_abandoned(name);
        stray && !kept.contains(name)
    };
    let listed = folder
        .files
        .iter()
        .filter_map(|meta| meta.location.filename());
    let unlisted = old_parts
        .iter()
        .map(String::as_str)
        .filter(|_| !store.abilities().list);
    let strays: Vec<String> = listed
        .chain(unlisted)
        .filter(|name| goes(name))
        .map(|name| path::join(key, name))
        .collect();
    store.delete_all(&strays).await
}

/// Whether a name is one that RFC-0008 gives to parts.
pub(super) fn is_part_name(name: &str) -> bool {
    let number = name
        .strip_prefix("part-")
        .and_then(|n| n.strip_suffix(".parquet"));
    name == "data.parquet"
        || number.is_some_and(|n| n.len() >= 5 && n.bytes().all(|b| b.is_ascii_digit()))
}

impl Folder {
    pub(super) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|meta| meta.location.as_ref() == path)
    }
}

/// What the folder holds; where a store cannot list, whether the marker is there.
pub(super) async fn look(store: &Store, key: &str) -> Result<Folder> {
    if store.abilities().list {
        return store.list_folder(key).await;
    }
    let success = path::join(key, SUCCESS);
    let files = match store.head(&success).await {
        Ok(meta) => vec![meta],
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(e),
    };
    Ok(Folder {
        files,
        folders: Vec::new(),
    })
}

/// For stores that cannot delete or cannot create exclusively: the RFC's order and nothing more.
async fn publish_plainly(store: &Store, key: &str, intent: &Intent) -> Result<()> {
    let Action::Write {
        overwrite,
        manifest,
        parts,
    } = &intent.action
    else {
        return Ok(());
    };
    let success = path::join(key, SUCCESS);
    if store.is_file(&success).await? {
        if !overwrite {
            return Err(already_exists(key));
        }
        store.delete(&success).await?;
    }
    for part in parts {
        part.staged
            .publish(store, &path::join(key, &part.name))
            .await?;
    }
    let manifest = Bytes::from(manifest.clone());
    store
        .put(&path::join(key, MANIFEST), manifest, PutMode::Overwrite)
        .await?;
    store
        .put(&success, Bytes::new(), PutMode::Overwrite)
        .await?;
    Ok(())
}
