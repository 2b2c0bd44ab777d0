//! `_publish.json`: who publishes what. It excludes a second publisher and is the redo log.
//!
//! Created if absent; whoever finds it waits until it goes, finishes it if its process is known to
//! be dead, or if it has not changed for [`LEASE`]. Taking over replaces the intent conditionally,
//! so of many only one finishes it, and the owner notices: it confirms its ownership before every
//! step that comes late ([`Held::confirm`]).

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{INTENT, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{Outcome, Register, Versioned};
use crate::store::local::TEMP_PREFIX;
use crate::store::owner::Owner;
use crate::store::stage::Staged;
use crate::store::{Store, path};

/// An intent that has not changed for so long is finished by others.
pub(super) const LEASE: Duration = Duration::from_secs(30);
/// How long a call waits for others before it gives up.
const PATIENCE: Duration = Duration::from_mins(3);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How often an intent is asked to be removed.
const MAX_RELEASES: u32 = 4;
/// The only format there is.
const FORMAT: u32 = 1;

/// What is being done to the folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub(super) enum Action {
    /// Parts, then manifest, then marker.
    Write {
        overwrite: bool,
        manifest: String,
        parts: Vec<IntendedPart>,
    },
    /// Everything goes.
    Delete,
}

/// A part by its final name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct IntendedPart {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) task: u64,
    pub(super) sequence: u64,
    pub(super) staged: Staged,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Intent {
    format: u32,
    /// The write's identity, in hexadecimal.
    pub(super) id: String,
    owner: Owner,
    /// Grows when it is confirmed or taken over.
    renewals: u64,
    #[serde(flatten)]
    pub(super) action: Action,
}

impl Intent {
    pub(super) fn new(id: u128, action: Action) -> Self {
        Self {
            format: FORMAT,
            id: format!("{id:032x}"),
            owner: Owner::me(),
            renewals: 0,
            action,
        }
    }

    fn to_bytes(&self) -> Bytes {
        // Plain data into memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Reads an intent; it may name only files of its own folder.
    fn parse(key: &str, bytes: &[u8]) -> Result<Self> {
        let unusable = |why: &str| {
            incomplete(
                key,
                &format!("its {INTENT} {why}; write it again with overwrite=True"),
            )
        };
        let intent: Self =
            serde_json::from_slice(bytes).map_err(|e| unusable("cannot be read").caused_by(e))?;
        if intent.format != FORMAT {
            let message = format!(
                "{INTENT} has format {}, this version knows {FORMAT}; upgrade pds",
                intent.format
            );
            return Err(Error::new(ErrorKind::Locked, message).at(key));
        }
        if let Action::Write { parts, .. } = &intent.action {
            let inside = |file: &str| {
                file.strip_prefix(key)
                    .and_then(|f| f.strip_prefix('/'))
                    .is_some_and(is_plain)
            };
            for part in parts {
                let placed = match &part.staged {
                    Staged::Inline { .. } => true,
                    Staged::Multipart { target, .. } => inside(target),
                    Staged::Object { path } => inside(path) && path.contains(TEMP_PREFIX),
                };
                if !placed || !is_plain(&part.name) {
                    return Err(unusable("names files elsewhere"));
                }
            }
        }
        Ok(intent)
    }

    /// Whether its process certainly does not work on it any more.
    fn is_abandoned(&self) -> bool {
        self.owner.is_dead() || (self.owner.is_me() && !active().contains(&self.id))
    }
}

fn is_plain(name: &str) -> bool {
    !name.contains('/') && path::parse(name).is_ok()
}

/// The intents this process works on.
fn active() -> MutexGuard<'static, HashSet<String>> {
    static ACTIVE: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers an intent as worked on, until dropped.
#[derive(Debug)]
struct Active(String);

impl Active {
    fn begin(id: &str) -> Self {
        active().insert(id.to_owned());
        Self(id.to_owned())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        active().remove(&self.0);
    }
}

/// An intent that is ours to carry out.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) store: &'a Store,
    pub(super) key: &'a str,
    pub(super) intent: Intent,
    version: Versioned,
    confirmed_at: Duration,
    _active: Active,
}

impl<'a> Held<'a> {
    fn new(
        store: &'a Store,
        key: &'a str,
        intent: Intent,
        version: Versioned,
        confirmed_at: Duration,
        active: Active,
    ) -> Self {
        Self {
            store,
            key,
            version,
            confirmed_at,
            _active: active,
            intent,
        }
    }

    /// Before a step: makes sure that nobody took over while this process was held up.
    pub(super) async fn confirm(&mut self) -> Result<()> {
        let path = path::join(self.key, INTENT);
        loop {
            // Taken before the request: what held it up counts.
            let now = self.store.clock().monotonic();
            if now.saturating_sub(self.confirmed_at) < LEASE / 4 {
                return Ok(());
            }
            let mut next = self.intent.clone();
            next.renewals += 1;
            match Register::new(self.store, &path)
                .replace(&self.version, next.to_bytes())
                .await?
            {
                Outcome::Written(version) => {
                    self.version = version;
                    self.intent = next;
                    self.confirmed_at = now;
                }
                Outcome::Lost(_) | Outcome::Gone => {
                    let message =
                        "another process took the publish over while this one was held up";
                    return Err(Error::new(ErrorKind::Superseded, message).at(self.key));
                }
            }
        }
    }

    /// Removes the intent: the action is complete, or never began. Before it is asked a second time
    /// the intent is looked at: if the first was carried out, another's may be there by now.
    pub(super) async fn release(&mut self) -> Result<()> {
        let path = path::join(self.key, INTENT);
        let mut sent = 0;
        loop {
            self.confirm().await?;
            let Err(error) = self.store.delete_once(&path).await else {
                return Ok(());
            };
            match Register::new(self.store, &path).read().await? {
                Some(found) if found.bytes == self.version.bytes => {}
                _ => return Ok(()),
            }
            sent += 1;
            if sent == MAX_RELEASES {
                return Err(error);
            }
            self.store.clock().sleep(LONGEST_PAUSE).await;
        }
    }

    /// Puts another intent in the place of this one, which cannot be carried out.
    pub(super) async fn replace_with(self, intent: &Intent) -> Result<Option<Self>> {
        let path = path::join(self.key, INTENT);
        let register = Register::new(self.store, &path);
        match place(self.store, self.key, &register, Some(&self.version), intent).await? {
            Placed::Ours(held) => Ok(Some(held)),
            Placed::Found(_) | Placed::Gone => Ok(None),
        }
    }
}

/// What came of asking for the folder.
#[derive(Debug)]
pub(super) enum Turn<'a> {
    /// Our intent is there.
    Ours(Held<'a>),
    /// Another's is, and it is ours to finish first.
    Finish(Held<'a>),
    /// There is none.
    Free,
}

/// Places `intent` if the folder is free, or takes over one that was left behind; waits for one
/// that is being carried out.
pub(super) async fn take_turn<'a>(
    store: &'a Store,
    key: &'a str,
    intent: Option<&Intent>,
) -> Result<Turn<'a>> {
    let path = path::join(key, INTENT);
    let register = Register::new(store, &path);
    let clock = store.clock();
    let began = clock.monotonic();
    let mut pause = FIRST_PAUSE;
    let mut seen: Option<(Bytes, Duration)> = None;
    loop {
        let found = match intent {
            Some(intent) => match place(store, key, &register, None, intent).await? {
                Placed::Ours(held) => return Ok(Turn::Ours(held)),
                Placed::Found(found) => found,
                Placed::Gone => continue,
            },
            None => match register.read().await? {
                Some(found) => found,
                None => return Ok(Turn::Free),
            },
        };
        let now = clock.monotonic();
        let since = match &seen {
            Some((bytes, since)) if *bytes == found.bytes => *since,
            _ => now,
        };
        seen = Some((found.bytes.clone(), since));
        let expired = now.saturating_sub(since) >= LEASE;
        match (
            take_over(store, key, &register, &found, expired).await,
            intent,
        ) {
            (Ok(Some(held)), _) => return Ok(Turn::Finish(held)),
            (Ok(None), _) if now.saturating_sub(began) > PATIENCE => {
                let message = format!("another process publishes at {key:?} and does not end");
                return Err(Error::new(ErrorKind::Locked, message).at(key));
            }
            (Ok(None), _) => clock.sleep(pause).await,
            // What nobody can read nobody can finish: a new write replaces it.
            (Err(e), Some(intent)) if e.kind() == ErrorKind::DatasetIncomplete => {
                if let Placed::Ours(held) =
                    place(store, key, &register, Some(&found), intent).await?
                {
                    return Ok(Turn::Ours(held));
                }
            }
            (Err(e), _) => return Err(e),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Placed<'a> {
    Ours(Held<'a>),
    Found(Versioned),
    Gone,
}

/// Writes an intent where there is none, or in the place of `old`.
async fn place<'a>(
    store: &'a Store,
    key: &'a str,
    register: &Register<'_>,
    old: Option<&Versioned>,
    intent: &Intent,
) -> Result<Placed<'a>> {
    // Before it can be seen: nobody in this process may take it for abandoned.
    let active = Active::begin(&intent.id);
    let now = store.clock().monotonic();
    let outcome = match old {
        None => register.create(intent.to_bytes()).await?,
        Some(old) => register.replace(old, intent.to_bytes()).await?,
    };
    Ok(match outcome {
        Outcome::Written(version) => {
            Placed::Ours(Held::new(store, key, intent.clone(), version, now, active))
        }
        Outcome::Lost(found) => Placed::Found(found),
        Outcome::Gone => Placed::Gone,
    })
}

async fn take_over<'a>(
    store: &'a Store,
    key: &'a str,
    register: &Register<'_>,
    found: &Versioned,
    expired: bool,
) -> Result<Option<Held<'a>>> {
    let mut intent = Intent::parse(key, &found.bytes)?;
    if !expired && !intent.is_abandoned() {
        return Ok(None);
    }
    log::info!(
        "finishing the publish at {key} that {:?} left behind",
        intent.owner
    );
    intent.owner = Owner::me();
    // By chance: of two in one process, at once, only one has written its own.
    let step = store.clock().new_id() & u128::from(u32::MAX);
    intent.renewals += 1 + u64::try_from(step).unwrap_or_default();
    match place(store, key, register, Some(found), &intent).await? {
        Placed::Ours(held) => Ok(Some(held)),
        Placed::Found(_) | Placed::Gone => Ok(None),
    }
}

/// Waits until the intent `id` is gone: somebody else is finishing it.
pub(super) async fn wait_until_gone(store: &Store, key: &str, id: &str) -> Result<()> {
    let path = path::join(key, INTENT);
    let began = store.clock().monotonic();
    while store.clock().monotonic().saturating_sub(began) < PATIENCE {
        match Register::new(store, &path).read().await? {
            Some(found) if Intent::parse(key, &found.bytes).is_ok_and(|i| i.id == id) => {
                store.clock().sleep(LONGEST_PAUSE).await;
            }
            _ => return Ok(()),
        }
    }
    Err(Error::new(
        ErrorKind::Locked,
        "the process that took the publish over does not end",
    )
    .at(key))
}
