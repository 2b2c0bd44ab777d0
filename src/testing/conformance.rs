//! The contract of a store, as functions any backend can be run through.

use bytes::Bytes;
use object_store::{GetOptions, GetRange, PutMode};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::cas::{CasResult, Register};

/// Checks everything datasets rely on; leaves nothing behind.
pub async fn check_store(store: &Store) -> Result<()> {
    check_round_trip(store).await?;
    check_listing(store).await?;
    check_conditional_writes(store).await?;
    let leftovers = store.list("").await?;
    require(leftovers.is_empty(), "nothing is left behind")
}

fn require(holds: bool, rule: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::other(format!(
            "the store breaks the contract: {rule}"
        )))
    }
}

async fn check_round_trip(store: &Store) -> Result<()> {
    let content = Bytes::from_static(b"0123456789");
    for path in ["plain", "a/b c/100%25/ünï?#[x]=+&", "empty"] {
        let expected = if path == "empty" {
            Bytes::new()
        } else {
            content.clone()
        };
        store
            .put(path, expected.clone(), PutMode::Overwrite)
            .await?;
        let (actual, meta) = store.get(path, GetOptions::default()).await?;
        require(
            actual == expected && meta.size == expected.len() as u64,
            "what was put is got",
        )?;
        require(
            store.head(path).await?.size == expected.len() as u64,
            "head tells the size",
        )?;
    }
    let middle = store.get_range("plain", 2..5, None).await?;
    require(middle == "234", "a range is that range")?;
    let suffix = GetOptions::new().with_range(Some(GetRange::Suffix(3)));
    if store.capabilities().suffix_ranges {
        let (end, meta) = store.get("plain", suffix).await?;
        require(
            end == "789" && meta.size == 10,
            "a suffix is the end and tells the size",
        )?;
    }
    let missing = store.get("missing", GetOptions::default()).await;
    require(
        missing.is_err_and(|e| e.kind() == ErrorKind::NotFound),
        "a missing object is not found",
    )?;
    require(!store.is_file("a").await?, "a folder is no file")?;
    for path in ["plain", "a/b c/100%25/ünï?#[x]=+&", "empty"] {
        store.delete(path).await?;
        require(!store.is_file(path).await?, "what was deleted is gone")?;
    }
    store.delete_all(&["missing".to_owned()]).await?;
    store.remove_empty_folder("a").await
}

async fn check_listing(store: &Store) -> Result<()> {
    let paths = ["l/x", "l/sub/y", "l/sub/deep/z", "lx/other"];
    for path in paths {
        store
            .put(path, Bytes::from_static(b"1"), PutMode::Overwrite)
            .await?;
    }
    let all = store.list("l").await?;
    let mut names: Vec<&str> = all.iter().map(|m| m.location.as_ref()).collect();
    names.sort_unstable();
    require(
        names == ["l/sub/deep/z", "l/sub/y", "l/x"],
        "a folder's files are listed in all depths, and no other's",
    )?;
    let folder = store.list_folder("l").await?;
    let files: Vec<&str> = folder.files.iter().map(|m| m.location.as_ref()).collect();
    require(
        files == ["l/x"] && folder.folders == ["l/sub"],
        "a folder's own files and folders are told apart",
    )?;
    let child_folder = store.child("l")?.list_folder("sub").await?;
    require(
        child_folder.files.len() == 1 && child_folder.files[0].location.as_ref() == "sub/y",
        "a child's paths are its own",
    )?;
    require(
        store.list("missing").await?.is_empty(),
        "a missing folder is empty",
    )?;
    let path_list: Vec<String> = paths.iter().map(|p| (*p).to_owned()).collect();
    store.delete_all(&path_list).await?;
    store.remove_empty_folder("l").await?;
    store.remove_empty_folder("lx").await
}

async fn check_conditional_writes(store: &Store) -> Result<()> {
    let register = Register::new(store, "r/value");
    require(register.read().await?.is_none(), "a register begins empty")?;
    let CasResult::Won(first) = register.create(Bytes::from_static(b"1")).await? else {
        return require(false, "the first create wins");
    };
    let second = register.create(Bytes::from_static(b"2")).await?;
    require(
        matches!(second, CasResult::Conflict(_)),
        "the second create loses",
    )?;
    let CasResult::Won(third) = register.replace(&first, Bytes::from_static(b"3")).await? else {
        return require(false, "a replace of what is there wins");
    };
    let stale = register.replace(&first, Bytes::from_static(b"4")).await?;
    require(
        matches!(stale, CasResult::Conflict(_)),
        "a replace of what was there loses",
    )?;
    store.delete("r/value").await?;
    let after_delete = register.replace(&third, Bytes::from_static(b"5")).await?;
    require(
        matches!(after_delete, CasResult::Missing),
        "a replace of what is gone fails",
    )?;
    store.remove_empty_folder("r").await
}
