//! The objects that an operation has written and no commit names yet, and their removal.
//!
//! Nothing is removed but what this operation created. A removal that fails is logged: a vacuum removes
//! the objects later.

use super::folder::Folder;
use super::manifest::Versioned;

/// The paths of written objects that no commit names, relative to the folder.
#[derive(Debug)]
pub(crate) struct Staged<M: Versioned> {
    folder: Folder<M>,
    paths: Vec<String>,
    /// Objects of an earlier plan, which the next commit does not name.
    retired: Vec<String>,
}

impl<M: Versioned> Staged<M> {
    pub(crate) fn new(folder: &Folder<M>) -> Self {
        Self {
            folder: folder.clone(),
            paths: Vec::new(),
            retired: Vec::new(),
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

    /// Removes all objects.
    pub(crate) async fn remove_all(mut self) {
        self.paths.append(&mut self.retired);
        remove(&self.folder, &self.paths).await;
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
