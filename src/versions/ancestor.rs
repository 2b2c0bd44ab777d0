//! Whether a version is a later one in the same place: what was removed and created again has the same numbers.

use super::commit_id::CommitId;
use super::folder::Folder;
use super::manifest::Versioned;
use crate::error::{Error, ErrorKind, Result};

/// A version that later ones have to descend from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ancestor {
    version: u64,
    commit_id: CommitId,
}

impl Ancestor {
    /// The version of a manifest.
    pub fn of<M: Versioned>(manifest: &M) -> Self {
        let header = manifest.header();
        Self {
            version: header.version,
            commit_id: header.commit_id.clone(),
        }
    }

    /// A version of which another process knows.
    pub fn new(version: u64, commit_id: CommitId) -> Self {
        Self { version, commit_id }
    }

    /// The id of its commit.
    pub fn commit_id(&self) -> &CommitId {
        &self.commit_id
    }

    /// The number of the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Fails with [`ErrorKind::TransactionExpired`] for a manifest that certainly does not descend from this version: one
    /// that has more versions since than it lists cannot be told.
    pub(crate) fn check<M: Versioned>(&self, folder: &Folder<M>, manifest: &M) -> Result<()> {
        match self.find(manifest) {
            Descent::Broken => Err(recreated_error(folder)),
            Descent::Shown | Descent::TooLong => Ok(()),
        }
    }

    /// As [`Self::check`]; where the manifest does not tell, that of this version is read.
    pub(crate) async fn check_descends<M: Versioned>(
        &self,
        folder: &Folder<M>,
        manifest: &M,
    ) -> Result<()> {
        match self.find(manifest) {
            Descent::Shown => Ok(()),
            Descent::Broken => Err(recreated_error(folder)),
            Descent::TooLong => Box::pin(self.check_exists(folder)).await,
        }
    }

    /// Fails with [`ErrorKind::TransactionExpired`] if the version is not there any more, as this process sees the store.
    pub(crate) async fn check_exists<M: Versioned>(&self, folder: &Folder<M>) -> Result<()> {
        match folder.read_manifest(self.version).await? {
            Some(manifest) if *manifest.header().commit_id == self.commit_id => Ok(()),
            Some(_) => Err(recreated_error(folder)),
            None => {
                let message = format!(
                    "version {} of the {}, at which the write started, is not there any more: write again, or vacuum with a \
                     longer retention; or this process sees another store",
                    self.version,
                    M::NOUN
                );
                Err(Error::new(ErrorKind::TransactionExpired, message).with_path(folder.root()))
            }
        }
    }

    /// Whether the folder of the newest manifest was removed and created again since this version, as far as can be
    /// told.
    pub(super) async fn is_replaced<M: Versioned>(&self, folder: &Folder<M>, newest: &M) -> bool {
        match self.find(newest) {
            Descent::Shown => false,
            Descent::Broken => true,
            // Where a vacuum has removed a manifest, a late one may be in its place.
            Descent::TooLong if !newest.header().retains(self.version) => false,
            Descent::TooLong => match folder.read_manifest(self.version).await {
                Ok(Some(manifest)) => *manifest.header().commit_id != self.commit_id,
                Ok(None) | Err(_) => false,
            },
        }
    }

    fn find<M: Versioned>(&self, manifest: &M) -> Descent {
        let header = manifest.header();
        match header.commit_id_of(self.version) {
            Some(commit_id) if *commit_id == self.commit_id => Descent::Shown,
            None if header.version > self.version => Descent::TooLong,
            _ => Descent::Broken,
        }
    }
}

/// Whether a manifest descends from a version.
enum Descent {
    Shown,
    Broken,
    /// More commits lie between them than a manifest lists.
    TooLong,
}

/// The error of what was begun for versions that were removed.
pub(super) fn recreated_error<M: Versioned>(folder: &Folder<M>) -> Error {
    let message = format!(
        "the {} was removed and created again while this was written for the one before; nothing was committed: write again",
        M::NOUN
    );
    Error::new(ErrorKind::TransactionExpired, message).with_path(folder.root())
}
