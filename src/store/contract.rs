//! What pds relies on in a store, as checks that any store can be run through.
//!
//! [`ContractCheck::ALL`] are the rules. A check writes objects of its own and removes them. A broken rule is
//! [`ErrorKind::UnsafeStore`] where writers would overwrite one another without notice, and [`ErrorKind::Other`] else;
//! other kinds are those of a request that failed. Conditions are tried one after another and by many writers at once,
//! since a server may look at the condition of a request before it waits for the turn of the write.

use bytes::Bytes;
use futures::future::join_all;
use object_store::{GetOptions, GetRange, PutMode};

use super::Store;
use super::cas::{CasResult, Register, VersionedValue};
use crate::error::{Error, ErrorKind, Result};

/// So many writers write an object at the same time.
const WRITERS: usize = 8;
/// So often the writers race: a store that looks before it writes is lucky now and then.
const RACES: usize = 12;

/// A name with characters that are encoded in URLs and in XML.
const ODD_PATH: &str = "a/b c/100%25/ünï?#[x]=+&";

/// What the checks of listings write.
const LISTED: [&str; 4] = ["l/x", "l/sub/y", "l/sub/deep/z", "lx/other"];
/// All that checks write.
const PATHS: [&str; 10] = [
    "plain", ODD_PATH, "empty", LISTED[0], LISTED[1], LISTED[2], LISTED[3], "create", "replace",
    "race",
];

/// A rule that every store has to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContractCheck {
    /// Objects of all names and of no bytes are written.
    Write,
    /// Reads return the bytes that were written, whole and in ranges.
    Read,
    /// Listings show each object that was written.
    List,
    /// An object that exists is not created again.
    ConditionalCreate,
    /// A version that is not the current one is not replaced.
    ConditionalReplace,
    /// Of writers who create an object at the same time, one succeeds.
    ConcurrentCreates,
    /// Of writers who replace a version at the same time, one succeeds.
    ConcurrentReplaces,
    /// A deleted object is gone.
    Delete,
}

impl ContractCheck {
    /// All checks, the simplest first.
    pub const ALL: [Self; 8] = [
        Self::Write,
        Self::Read,
        Self::List,
        Self::ConditionalCreate,
        Self::ConditionalReplace,
        Self::ConcurrentCreates,
        Self::ConcurrentReplaces,
        Self::Delete,
    ];

    /// The name of the check.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::List => "list",
            Self::ConditionalCreate => "conditional create",
            Self::ConditionalReplace => "conditional replace",
            Self::ConcurrentCreates => "concurrent creates",
            Self::ConcurrentReplaces => "concurrent replaces",
            Self::Delete => "delete",
        }
    }

    /// What a store does that keeps the rule.
    #[must_use]
    pub fn expectation(self) -> &'static str {
        match self {
            Self::Write => "objects of any name and of no bytes are written",
            Self::Read => "objects and ranges of them are read as they were written",
            Self::List => "listings show what was written, and nothing else",
            Self::ConditionalCreate => "a create of an existing object is denied",
            Self::ConditionalReplace => "a replace of an outdated version is denied",
            Self::ConcurrentCreates => "of creates at the same time, one succeeds",
            Self::ConcurrentReplaces => "of replaces at the same time, one succeeds",
            Self::Delete => "deleted objects are gone",
        }
    }

    /// Checks the rule with objects of its own, which are removed whatever the store does, if it deletes.
    pub async fn run(self, store: &Store) -> Result<()> {
        let checked = self.check(store).await;
        if checked
            .as_ref()
            .is_err_and(|e| e.kind() != ErrorKind::Unavailable)
        {
            let paths = PATHS.map(str::to_owned);
            if let Err(e) = store.delete_all(&paths).await {
                log::warn!("objects of a check of the store could not be removed: {e}");
            }
        }
        checked
    }

    async fn check(self, store: &Store) -> Result<()> {
        match self {
            Self::Write => check_writes(store).await,
            Self::Read => check_reads(store).await,
            Self::List => check_listing(store).await,
            Self::ConditionalCreate => check_create(store).await,
            Self::ConditionalReplace => check_replace(store).await,
            Self::ConcurrentCreates => check_concurrent_creates(store).await,
            Self::ConcurrentReplaces => check_concurrent_replaces(store).await,
            Self::Delete => check_deletes(store).await,
        }
    }
}

fn require(holds: bool, rule: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::other(format!(
        "the store does not keep its contract: {rule}"
    )))
}

/// A rule without which writers overwrite one another.
fn require_safe(holds: bool, broken: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    let message = format!("{broken}: concurrent writers would overwrite one another");
    Err(Error::new(ErrorKind::UnsafeStore, message))
}

async fn put(store: &Store, path: &str, content: &'static [u8]) -> Result<()> {
    let bytes = Bytes::from_static(content);
    store.put(path, bytes, PutMode::Overwrite).await.map(drop)
}

async fn check_writes(store: &Store) -> Result<()> {
    for (path, content) in [
        ("plain", &b"0123456789"[..]),
        (ODD_PATH, b"0123456789"),
        ("empty", b""),
    ] {
        put(store, path, content).await?;
        require(
            store.head(path).await?.size == content.len() as u64,
            "HEAD returns the size",
        )?;
        store.delete(path).await?;
    }
    require(!store.is_file("a").await?, "a folder is not an object")?;
    store.remove_empty_folder("a").await
}

async fn check_reads(store: &Store) -> Result<()> {
    let content = Bytes::from_static(b"0123456789");
    put(store, ODD_PATH, b"0123456789").await?;
    let (actual, meta) = store.get(ODD_PATH, GetOptions::default()).await?;
    require(
        actual == content && meta.size == content.len() as u64,
        "a read returns the bytes that were written, and their length",
    )?;
    let middle = store.get_range(ODD_PATH, 2..5, None).await?;
    require(middle == "234", "a read of a range returns that range")?;
    let suffix = GetOptions::new().with_range(Some(GetRange::Suffix(3)));
    if store.capabilities().suffix_ranges {
        let (end, meta) = store.get(ODD_PATH, suffix).await?;
        require(
            end == "789" && meta.size == 10,
            "a read of a suffix returns the last bytes and the size of the object",
        )?;
    }
    put(store, ODD_PATH, b"new").await?;
    let (replaced, _) = store.get(ODD_PATH, GetOptions::default()).await?;
    require(replaced == "new", "a read returns what was written last")?;
    let missing = store.get("missing", GetOptions::default()).await;
    require(
        missing.is_err_and(|e| e.kind() == ErrorKind::NotFound),
        "a read of a missing object fails with NotFound",
    )?;
    store.delete(ODD_PATH).await?;
    store.remove_empty_folder("a").await
}

async fn check_listing(store: &Store) -> Result<()> {
    for path in LISTED {
        put(store, path, b"1").await?;
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
    store.delete_all(&LISTED.map(str::to_owned)).await?;
    store.remove_empty_folder("l").await?;
    store.remove_empty_folder("lx").await
}

async fn check_create(store: &Store) -> Result<()> {
    let register = Register::new(store, "create");
    require(
        register.read().await?.is_none(),
        "a register without an object is empty",
    )?;
    let first = register.create(Bytes::from_static(b"1")).await?;
    require(matches!(first, CasResult::Won(_)), "a create succeeds")?;
    let second = register.create(Bytes::from_static(b"2")).await?;
    require_safe(
        matches!(second, CasResult::Conflict(_)),
        "a create of an existing object succeeded",
    )?;
    let (content, _) = store.get("create", GetOptions::default()).await?;
    require_safe(
        content == "1",
        "a create that was denied replaced the object",
    )?;
    store.delete("create").await.map(drop)
}

async fn check_replace(store: &Store) -> Result<()> {
    let register = Register::new(store, "replace");
    let first = won(register.create(Bytes::from_static(b"1")).await?)?;
    let second = won(register.replace(&first, Bytes::from_static(b"2")).await?)?;
    let stale = register.replace(&first, Bytes::from_static(b"3")).await?;
    require_safe(
        matches!(stale, CasResult::Conflict(_)),
        "a replace of an outdated version succeeded",
    )?;
    let (content, _) = store.get("replace", GetOptions::default()).await?;
    require_safe(
        content == "2",
        "a replace that was denied replaced the object",
    )?;
    store.delete("replace").await?;
    let deleted = register.replace(&second, Bytes::from_static(b"4")).await?;
    if !matches!(deleted, CasResult::Missing) {
        store.delete("replace").await?;
    }
    require_safe(
        matches!(deleted, CasResult::Missing),
        "a replace of a deleted object succeeded",
    )
}

/// The version that a write without a rival made.
fn won(result: CasResult) -> Result<VersionedValue> {
    match result {
        CasResult::Won(value) => Ok(value),
        _ => Err(Error::other(
            "the store does not keep its contract: a conditional write whose condition holds succeeds",
        )),
    }
}

async fn check_concurrent_creates(store: &Store) -> Result<()> {
    for _ in 0..RACES {
        race(store, None, "creates").await?;
    }
    Ok(())
}

async fn check_concurrent_replaces(store: &Store) -> Result<()> {
    let register = Register::new(store, "race");
    for _ in 0..RACES {
        let first = won(register.create(Bytes::from_static(b"first")).await?)?;
        race(store, Some(&first), "replaces").await?;
    }
    Ok(())
}

/// Has many writers write one object at the same time, each something else, and removes it.
async fn race(store: &Store, expected: Option<&VersionedValue>, what: &str) -> Result<()> {
    let write = |writer: usize| async move {
        let value = Bytes::from(format!("writer {writer}"));
        let register = Register::new(store, "race");
        match expected {
            None => register.create(value).await,
            Some(expected) => register.replace(expected, value).await,
        }
    };
    let results: Result<Vec<CasResult>> = join_all((0..WRITERS).map(write))
        .await
        .into_iter()
        .collect();
    let mut winners = Vec::new();
    for result in results? {
        if let CasResult::Won(value) = result {
            winners.push(value.bytes);
        }
    }
    let (content, _) = store.get("race", GetOptions::default()).await?;
    store.delete("race").await?;
    require_safe(
        winners.len() == 1,
        &format!(
            "{} of {WRITERS} {what} of an object at the same time succeeded",
            winners.len()
        ),
    )?;
    require_safe(
        winners == [content],
        &format!("of {WRITERS} {what} at the same time, one that was denied was written"),
    )
}

async fn check_deletes(store: &Store) -> Result<()> {
    for path in ["plain", ODD_PATH] {
        put(store, path, b"1").await?;
        store.delete(path).await?;
        require(
            !store.is_file(path).await?,
            "a deleted object does not exist",
        )?;
    }
    store.delete_all(&["missing".to_owned()]).await?;
    store.remove_empty_folder("a").await?;
    let leftovers = store.list("").await?;
    require(
        leftovers.is_empty(),
        "the folder is empty after all objects were deleted",
    )
}
