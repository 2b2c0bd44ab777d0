//! The objects that an operation has written and no commit names yet, and their removal.
//!
//! Nothing is removed but what this operation created. A removal that fails is logged: a vacuum removes
//! the objects later.
//!
//! Where a call is cancelled, its futures are dropped: then the objects are removed in the background, as long as no
//! commit that names them may have been sent ([`Staged::remove_on_drop`]). A request for one of them that was under way
//! may land later; that object is left to a vacuum, as are all where the process ends first.

use super::folder::Folder;
use super::manifest::Versioned;
use super::outcome::CommitError;

/// The paths of written objects that no commit names, relative to the folder.
#[derive(Debug)]
pub(crate) struct Staged<M: Versioned> {
    folder: Folder<M>,
    paths: Vec<String>,
    /// Objects of an earlier plan, which the next commit does not name.
    retired: Vec<String>,
    is_removed_on_drop: bool,
}

impl<M: Versioned> Staged<M> {
    pub(crate) fn new(folder: &Folder<M>) -> Self {
        Self {
            folder: folder.clone(),
            paths: Vec::new(),
            retired: Vec::new(),
            is_removed_on_drop: false,
        }
    }

    /// From now on the objects go when this is dropped: no commit names them, or will.
    pub(crate) fn remove_on_drop(&mut self) {
        self.is_removed_on_drop = true;
    }

    /// From now on the objects stay when this is dropped: a commit may name them.
    pub(crate) fn keep_on_drop(&mut self) {
        self.is_removed_on_drop = false;
    }

    /// After an error of the commit that names the objects: removes them, unless it may have been made.
    pub(crate) async fn end(mut self, error: &CommitError) {
        if error.allows_removal() {
            self.remove_all().await;
        } else if error.is_cancelled() {
            // A caller who has been cancelled does not wait.
            self.remove_on_drop();
        } else {
            self.keep_on_drop();
        }
    }

    /// Takes note of objects, before they are written if their writer does not remove them after an error.
    pub(crate) fn add(&mut self, paths: impl IntoIterator<Item = String>) {
        self.paths.extend(paths);
    }

    /// The plan does without some objects: they go once the next plan is written.
    pub(crate) fn retire<'a>(&mut self, paths: impl IntoIterator<Item = &'a String>) {
        for path in paths {
            if let Some(index) = self.paths.iter().position(|p| p == path) {
                self.retired.push(self.paths.swap_remove(index));
            }
        }
    }

    /// Removes the objects that were retired.
    pub(super) async fn remove_retired(&mut self) {
        let retired = std::mem::take(&mut self.retired);
        remove(&self.folder, &retired).await;
    }

    /// Removes all objects. A removal whose future is dropped is done in the background.
    pub(crate) async fn remove_all(mut self) {
        self.paths.append(&mut self.retired);
        self.remove_on_drop();
        remove(&self.folder, &self.paths).await;
        self.keep_on_drop();
    }
}

impl<M: Versioned> Drop for Staged<M> {
    fn drop(&mut self) {
        let mut paths = std::mem::take(&mut self.paths);
        paths.append(&mut self.retired);
        if !self.is_removed_on_drop || paths.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let folder = self.folder.clone();
        runtime.spawn(async move { remove(&folder, &paths).await });
    }
}

/// Removes objects that no commit names or will name.
pub(crate) async fn remove<M: Versioned>(folder: &Folder<M>, relative_paths: &[String]) {
    if relative_paths.is_empty() {
        return;
    }
    let paths: Vec<String> = relative_paths
        .iter()
        .map(|relative_path| folder.path(relative_path))
        .collect();
    if let Err(e) = folder.store().delete_all(&paths).await {
        log::warn!(
            "files of the {} {:?} that were not committed could not be removed; vacuum removes them: {e}",
            M::NOUN,
            folder.root()
        );
    }
}
