//! The second step of a write: staged parts become the dataset.
//!
//! Under the intent: remove the old marker, make the parts visible, put the manifest, put the
//! marker, remove what the old dataset had beside. Every step can be repeated, so an intent that a
//! crash left behind is carried out again from its beginning.

use std::collections::HashSet;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, PutMode};

use super::intent::{Action, Held, IntendedPart, Intent, Turn, take_turn, wait_until_gone};
use super::{MANIFEST, Manifest, SUCCESS, StagedPart, Write, already_exists, incomplete, prepare};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::file::TAIL_BYTES;
use crate::part::open;
use crate::store::local::{TEMP_PREFIX, is_abandoned};
use crate::store::stage::Staged;
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
        task: part.task,
        sequence: part.sequence,
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
        Ok(Carried::Through) => held.release().await,
        Ok(Carried::Refused) => give_up(&mut held).await,
        Err(error) => Err(error),
    };
    done.map_err(|error| (held, error))
}

/// Carries out our own intent. If another process took it over, it is that one's to finish.
pub(super) async fn carry_out_ours(mut held: Held<'_>) -> Result<()> {
    let done = match carry_out(&mut held).await {
        Ok(Carried::Through) => held.release().await,
        Ok(Carried::Refused) => {
            give_up(&mut held).await?;
            return Err(already_exists(held.key));
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Superseded => {
            wait_until_gone(held.store, held.key, &held.intent.id).await?;
            if is_published(&held).await? {
                return Ok(());
            }
            Err(error.context("another write replaced this one, or it could not be finished"))
        }
        Err(error) => {
            Err(error.context("the publish was interrupted; the next write or read finishes it"))
        }
    }
}

/// Whether what is there now is what this intent wanted: its dataset, or none.
async fn is_published(held: &Held<'_>) -> Result<bool> {
    let is_marked = held.store.is_file(&path::join(held.key, SUCCESS)).await?;
    let Action::Write {
        manifest, parts, ..
    } = &held.intent.action
    else {
        return Ok(!is_marked);
    };
    if !is_marked {
        return Ok(false);
    }
    let found = held
        .store
        .get(&path::join(held.key, MANIFEST), GetOptions::default())
        .await;
    match found {
        Ok((bytes, _)) => Ok(bytes == manifest.as_bytes() && is_shown(held, parts).await?),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Drops an intent that changed nothing yet.
async fn give_up(held: &mut Held<'_>) -> Result<()> {
    if let Action::Write { parts, .. } = &held.intent.action {
        for part in parts {
            if let Err(e) = part.staged.discard(held.store).await {
                log::warn!("a staged part could not be removed: {e}");
            }
        }
    }
    held.release().await
}

/// How an intent ended.
enum Carried {
    /// It is complete.
    Through,
    /// A dataset is there that it may not replace; nothing was changed.
    Refused,
}

async fn carry_out(held: &mut Held<'_>) -> Result<Carried> {
    match held.intent.action.clone() {
        Action::Write {
            overwrite,
            manifest,
            parts,
        } => carry_out_write(held, overwrite, manifest.into(), &parts).await,
        Action::Delete => {
            super::manage::carry_out_delete(held).await?;
            Ok(Carried::Through)
        }
    }
}

async fn carry_out_write(
    held: &mut Held<'_>,
    overwrite: bool,
    manifest: Bytes,
    parts: &[IntendedPart],
) -> Result<Carried> {
    let (store, key) = (held.store, held.key);
    let (success, manifest_path) = (path::join(key, SUCCESS), path::join(key, MANIFEST));
    let folder = look(store, key).await?;
    let mut old_parts = Vec::new();
    let mut finished = false;
    if folder.has(&success) {
        let old = match store.get(&manifest_path, GetOptions::default()).await {
            Ok((bytes, _)) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => Bytes::new(),
            Err(e) => return Err(e),
        };
        // Two writes begun in the same microsecond have the same manifest; their parts differ.
        finished = old == manifest && is_shown(held, parts).await?;
        if !finished && !overwrite {
            return Ok(Carried::Refused);
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
        show_parts(held, parts).await?;
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
    sweep(held, &folder, parts, &old_parts).await?;
    Ok(Carried::Through)
}

/// Makes the parts visible. Uploads that were begun for another number come last and one by one,
/// in order: each takes its name after the part that was begun for that name has left it.
async fn show_parts(held: &mut Held<'_>, parts: &[IntendedPart]) -> Result<()> {
    let (store, key) = (held.store, held.key);
    let (moved, direct): (Vec<_>, Vec<_>) = parts
        .iter()
        .partition(|part| part.moved_from(key).is_some());
    for some in direct.chunks(CONCURRENT_PARTS) {
        held.confirm().await?;
        let id = &held.intent.id;
        let shown = some.iter().map(|part| show_part(store, key, id, part));
        stream::iter(shown)
            .buffer_unordered(CONCURRENT_PARTS)
            .try_collect::<()>()
            .await?;
    }
    for part in moved {
        held.confirm().await?;
        show_part(store, key, &held.intent.id, part).await?;
    }
    Ok(())
}

/// Whether the parts under their final names are those of this write.
async fn is_shown(held: &Held<'_>, parts: &[IntendedPart]) -> Result<bool> {
    match parts.first() {
        Some(part) => {
            is_there(
                held.store,
                &path::join(held.key, &part.name),
                &held.intent.id,
                part,
            )
            .await
        }
        None => Ok(true),
    }
}

/// Makes one part visible, or finds that it is.
async fn show_part(store: &Store, key: &str, id: &str, part: &IntendedPart) -> Result<()> {
    let target = path::join(key, &part.name);
    let missing = match part.staged.publish(store, &target).await {
        Ok(()) => return Ok(()),
        // Not found: it was made visible before. Unavailable: the answer may have been lost.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => e,
        Err(e) => return Err(e),
    };
    if is_there(store, &target, id, part).await? {
        return Ok(());
    }
    if let Some(begun_for) = part.moved_from(key)
        && is_there(store, begun_for, id, part).await?
    {
        return store.rename(begun_for, &target).await;
    }
    if missing.kind() == ErrorKind::Unavailable {
        return Err(missing);
    }
    let why = format!(
        "part {:?} of an interrupted write is gone; write it again with overwrite=True",
        part.name
    );
    Err(incomplete(key, &why).caused_by(missing))
}

/// Whether the object at `path` is exactly this part.
async fn is_there(store: &Store, path: &str, id: &str, part: &IntendedPart) -> Result<bool> {
    let found = match open(store, path, TAIL_BYTES).await {
        Ok(found) => found.file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PartCorrupted) => {
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    Ok(found.length == part.bytes
        && found.seal.is_some_and(|seal| {
            let identity = &seal.identity;
            format!("{:032x}", identity.write_id) == id
                && (identity.task, identity.sequence) == (part.task, part.sequence)
        }))
}

impl IntendedPart {
    /// The name its upload was begun for, where that is not its own.
    fn moved_from(&self, key: &str) -> Option<&str> {
        match &self.staged {
            Staged::Multipart { target, .. } if *target != path::join(key, &self.name) => {
                Some(target)
            }
            _ => None,
        }
    }
}

/// Removes parts the new dataset does not have, what other attempts of its tasks left, and what
/// killed writers of this host left.
async fn sweep(
    held: &Held<'_>,
    folder: &Folder,
    parts: &[IntendedPart],
    old_parts: &[String],
) -> Result<()> {
    let (store, key) = (held.store, held.key);
    let kept: HashSet<&str> = parts.iter().map(|p| p.name.as_str()).collect();
    let staged: HashSet<&str> = parts.iter().filter_map(|p| p.staged.path()).collect();
    let attempts = format!("{TEMP_PREFIX}w{}-", held.intent.id);
    let goes = |name: &str| {
        let stray = is_part_name(name) || old_parts.iter().any(|old| old == name);
        let left = name.starts_with(&attempts) && !staged.contains(path::join(key, name).as_str());
        (stray && !kept.contains(name)) || left || is_abandoned(name)
    };
    let listed = folder
        .files
        .iter()
        .filter_map(|meta| meta.location.filename());
    let unlisted = old_parts
        .iter()
        .map(String::as_str)
        .filter(|_| !store.abilities().list);
    let strays = listed
        .chain(unlisted)
        .filter(|name| goes(name))
        .map(|name| path::join(key, name));
    // A move whose last answer was lost left its source, which the listing made before cannot show.
    let sources = parts
        .iter()
        .filter_map(|part| part.moved_from(key))
        .filter(|from| !kept.contains(from.rsplit('/').next().unwrap_or_default()))
        .map(str::to_owned);
    let strays: Vec<String> = strays.chain(sources).collect();
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
