//! The contract of a store, as checks that any backend can be run through.

use bytes::Bytes;
use object_store::{GetOptions, GetRange, PutMode};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::cas::{CasResult, Register};

/// Checks all that datasets rely on, in an empty store, and leaves it empty. The error names the rule that is broken.
pub async fn check_store(store: &Store) -> Result<()> {
    check_round_trip(store).await?;
    check_listing(store).await?;
    check_conditional_writes(store).await?;
    let leftovers = store.list("").await?;
    require(
        leftovers.is_empty(),
        "the store is empty after all objects were deleted",
    )
}

fn require(holds: bool, rule: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::other(format!(
            "the store does not keep its contract: {rule}"
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
            "a read returns the bytes that were written, and their length",
        )?;
        require(
            store.head(path).await?.size == expected.len() as u64,
            "HEAD returns the size",
        )?;
    }
    let middle = store.get_range("plain", 2..5, None).await?;
    require(middle == "234", "a read of a range returns that range")?;
    let suffix = GetOptions::new().with_range(Some(GetRange::Suffix(3)));
    if store.capabilities().suffix_ranges {
        let (end, meta) = store.get("plain", suffix).await?;
        require(
            end == "789" && meta.size == 10,
            "a read of a suffix returns the last bytes and the size of the object",
        )?;
    }
    let missing = store.get("missing", GetOptions::default()).await;
    require(
        missing.is_err_and(|e| e.kind() == ErrorKind::NotFound),
        "a read of a missing object fails with NotFound",
    )?;
    require(!store.is_file("a").await?, "a folder is not an object")?;
    for path in ["plain", "a/b c/100%25/ünï?#[x]=+&", "empty"] {
        store.delete(path).await?;
        require(
            !store.is_file(path).await?,
            "a deleted object does not exist",
        )?;
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
        "a listing returns the files of the folder at any depth, and no others",
    )?;
    let folder = store.list_folder("l").await?;
    let files: Vec<&str> = folder.files.iter().map(|m| m.location.as_ref()).collect();
    require(
        files == ["l/x"] && folder.folders == ["l/sub"],
        "a listing without recursion returns the files and the subfolders of the folder",
    )?;
    let child_folder = store.child("l")?.list_folder("sub").await?;
    require(
        child_folder.files.len() == 1 && child_folder.files[0].location.as_ref() == "sub/y",
        "paths of a child store are relative to it",
    )?;
    require(
        store.list("missing").await?.is_empty(),
        "a listing of a missing folder is empty",
    )?;
    let path_list: Vec<String> = paths.iter().map(|p| (*p).to_owned()).collect();
    store.delete_all(&path_list).await?;
    store.remove_empty_folder("l").await?;
    store.remove_empty_folder("lx").await
}

async fn check_conditional_writes(store: &Store) -> Result<()> {
    let register = Register::new(store, "r/value");
    require(
        register.read().await?.is_none(),
        "a register without an object is empty",
    )?;
    let CasResult::Won(first) = register.create(Bytes::from_static(b"1")).await? else {
        return require(false, "the first create succeeds");
    };
    let second = register.create(Bytes::from_static(b"2")).await?;
    require(
        matches!(second, CasResult::Conflict(_)),
        "the second create is refused",
    )?;
    let CasResult::Won(third) = register.replace(&first, Bytes::from_static(b"3")).await? else {
        return require(false, "a replacement of the current version succeeds");
    };
    let stale = register.replace(&first, Bytes::from_static(b"4")).await?;
    require(
        matches!(stale, CasResult::Conflict(_)),
        "a replacement of an old version is refused",
    )?;
    store.delete("r/value").await?;
    let after_delete = register.replace(&third, Bytes::from_static(b"5")).await?;
    require(
        matches!(after_delete, CasResult::Missing),
        "a replacement of a deleted object is refused",
    )?;
    store.remove_empty_folder("r").await
}
