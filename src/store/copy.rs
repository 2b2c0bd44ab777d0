//! Copies and moves of objects, with paths relative to the [`Store`].
//!
//! A store without a request that moves copies an object and deletes it. [`Store::move_object`] does both with one
//! version of it, so that it deletes nothing that another writer put there meanwhile.
//!
//! Errors are those of [`Store`]. [`ErrorKind::Conflict`]: the object is not the expected version, or was replaced.

use object_store::{CopyMode, CopyOptions, GetOptions, RenameOptions};

use super::Store;
use super::condition::Condition;
use super::failure::is_too_large_to_copy;
use super::metrics::RequestKind;
use crate::error::{Error, ErrorKind, Result};

/// The most bytes that pass through this process on their way; more are copied by ranges.
const MAX_COPIED_CONTENT: u64 = 64 << 20;

impl Store {
    /// Copies an object inside the store, by a request that this layer sends once. With [`CopyMode::Create`] it is
    /// [`ErrorKind::AlreadyExists`] if there is an object at `to`.
    pub async fn copy(&self, from: &str, to: &str, mode: CopyMode) -> Result<()> {
        match self.send_copy(from, None, to, &condition_on(mode)).await {
            Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
            Err(e) if e.kind() == ErrorKind::Conflict && mode == CopyMode::Create => {
                return Err(e.with_kind(ErrorKind::AlreadyExists));
            }
            copied => return copied,
        }
        let (source, target) = (self.key(from)?, self.key(to)?);
        let options = CopyOptions::new().with_mode(mode);
        let copy = self.inner.objects.copy_opts(&source, &target, options);
        match self.send_once(from, copy).await {
            // S3 has no conditional copy.
            Err(e) if e.kind() == ErrorKind::CapabilityNotSupported && mode == CopyMode::Create => {
                Box::pin(self.copy_content(from, None, to)).await
            }
            Err(e) if is_too_large_to_copy(&e) && mode == CopyMode::Overwrite => {
                self.copy_large(from, to).await
            }
            copied => copied,
        }
    }

    /// Copies an object that is too large for one request.
    pub(super) async fn copy_large(&self, from: &str, to: &str) -> Result<()> {
        let meta = self.head(from).await?;
        Box::pin(self.copy_by_ranges(from, &meta, to, &Condition::Always)).await
    }

    /// Creates `to` with the content of an object, or of its version `e_tag`.
    async fn copy_content(&self, from: &str, e_tag: Option<&str>, to: &str) -> Result<()> {
        let options = || GetOptions::new().with_if_match(e_tag);
        let content = self.get_at_most(from, options(), MAX_COPIED_CONTENT).await;
        if content
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::TooLarge)
        {
            let meta = match e_tag {
                Some(e_tag) => self.head_version(from, e_tag).await?,
                None => self.head(from).await?,
            };
            match self
                .copy_by_ranges(from, &meta, to, &Condition::Absent)
                .await
            {
                Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
                // Another object at `to`, or this one, if the answer to the completion was lost.
                Err(e)
                    if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::NotFound)
                        && self.is_file(to).await? =>
                {
                    return Err(e.with_kind(ErrorKind::AlreadyExists));
                }
                copied => return copied,
            }
            let (bytes, _) = self.get(from, options()).await?;
            return self.create(to, bytes).await.map(drop);
        }
        self.create(to, content?.0).await.map(drop)
    }

    /// Moves an object and replaces `to`: in one step where the store can, else by a copy and a deletion. No other
    /// writer may use the name `from`.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        if self.inner.conditional_store.is_some() {
            return self.move_if(from, to, &Condition::Always).await.map(drop);
        }
        self.rename_unconditional(from, to).await
    }

    async fn rename_unconditional(&self, from: &str, to: &str) -> Result<()> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        let rename = self
            .inner
            .objects
            .rename_opts(&source, &target, RenameOptions::default());
        self.send_once(from, rename).await
    }

    /// Moves an object if `to` meets the condition. Returns the new ETag where it is known. No other writer may use the
    /// name `from`.
    pub(super) async fn move_if(
        &self,
        from: &str,
        to: &str,
        condition: &Condition,
    ) -> Result<Option<String>> {
        if let Some(local) = &self.inner.local {
            let (source, target) = (self.key(from)?, self.key(to)?);
            return self
                .send_once(from, local.rename_if(&source, &target, condition))
                .await;
        }
        match self.send_copy(from, None, to, condition).await {
            Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
            copied => {
                copied?;
                return self.delete(from).await.map(|_| None);
            }
        }
        self.check_condition(to, condition).await?;
        self.rename_unconditional(from, to).await.map(|()| None)
    }

    /// Moves an object that any writer may replace. With [`CopyMode::Create`] it is [`ErrorKind::AlreadyExists`] if
    /// there is an object at `to`.
    ///
    /// [`ErrorKind::Conflict`] if the object was replaced meanwhile: the new version stays, and `to` has the version
    /// that was there before, or is as it was.
    pub async fn move_object(&self, from: &str, to: &str, mode: CopyMode) -> Result<()> {
        if let Some(local) = &self.inner.local {
            let (source, target) = (self.key(from)?, self.key(to)?);
            self.count_request(RequestKind::Copy);
            let rename = local.rename_file(&source, &target, mode);
            match self.send_once(from, rename).await {
                // A symbolic link, whose target may depend on its place.
                Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
                moved => return moved,
            }
        }
        let meta = self.head(from).await?;
        let e_tag = meta
            .e_tag
            .filter(|_| self.inner.conditional_store.is_some());
        let Some(e_tag) = e_tag else {
            if mode == CopyMode::Overwrite {
                return self.rename_unconditional(from, to).await;
            }
            self.copy(from, to, mode).await?;
            return self.delete(from).await.map(drop);
        };
        match Box::pin(self.copy_to_move(from, &e_tag, to, mode)).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {
                return Err(e.context(format!(
                    "{from:?} was replaced before it was moved; {to:?} is as it was"
                )));
            }
            copied => copied?,
        }
        if Box::pin(self.delete_moved(from, &e_tag)).await? {
            return Ok(());
        }
        let message =
            format!("{from:?} was replaced while it was moved; {to:?} has what was there before");
        Err(Error::new(ErrorKind::Conflict, message).with_path(from))
    }

    /// Copies the version `e_tag` of an object that is moved.
    async fn copy_to_move(&self, from: &str, e_tag: &str, to: &str, mode: CopyMode) -> Result<()> {
        let checks_target = (self.inner.conditional_store.as_ref())
            .is_some_and(|conditional_store| conditional_store.checks_copy_target());
        if mode == CopyMode::Create && !checks_target {
            return self.copy_content(from, Some(e_tag), to).await;
        }
        match self
            .copy_version(from, e_tag, to, &condition_on(mode))
            .await
        {
            // The answer does not say which of the two conditions did not hold.
            Err(e)
                if e.kind() == ErrorKind::Conflict
                    && mode == CopyMode::Create
                    && self.is_file(to).await? =>
            {
                Err(e.with_kind(ErrorKind::AlreadyExists))
            }
            copied => copied,
        }
    }

    /// Deletes the version `e_tag` of an object that was copied. False if another one is in its place.
    async fn delete_moved(&self, from: &str, e_tag: &str) -> Result<bool> {
        match self.delete_unchanged(from, Some(e_tag)).await {
            // A store that honors no conditions.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::UnsafeStore | ErrorKind::CapabilityNotSupported
                ) =>
            {
                match self.head_version(from, e_tag).await {
                    Ok(_) => self.delete(from).await.map(|_| true),
                    Err(e) if e.kind() == ErrorKind::Conflict => Ok(false),
                    Err(e) => Err(e),
                }
            }
            deleted => deleted,
        }
    }

    /// Copies the version `e_tag` of an object if `to` meets the condition, which is checked before the request. Where
    /// the store has conditions on the source of a copy, a request that arrives late copies that version or nothing.
    pub async fn copy_version(
        &self,
        from: &str,
        e_tag: &str,
        to: &str,
        condition: &Condition,
    ) -> Result<()> {
        self.check_condition(to, condition).await?;
        match self.send_copy(from, Some(e_tag), to, condition).await {
            Err(e) if is_too_large_to_copy(&e) => {
                let meta = self.head_version(from, e_tag).await?;
                return Box::pin(self.copy_by_ranges(from, &meta, to, condition)).await;
            }
            Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
            copied => return copied,
        }
        self.head_version(from, e_tag).await?;
        self.copy(from, to, CopyMode::Overwrite).await
    }

    /// Sends the store's own request for a copy; [`ErrorKind::CapabilityNotSupported`] where it has none.
    async fn send_copy(
        &self,
        from: &str,
        e_tag: Option<&str>,
        to: &str,
        condition: &Condition,
    ) -> Result<()> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        let Some(conditional_store) = &self.inner.conditional_store else {
            let message = "the store has no conditional copies";
            return Err(Error::new(ErrorKind::CapabilityNotSupported, message).with_path(from));
        };
        self.count_request(RequestKind::Copy);
        let request = async {
            let copy = conditional_store
                .copy_if(&source, e_tag, &target, condition)
                .await;
            copy.unwrap_or_else(|| {
                Err(object_store::Error::NotImplemented {
                    operation: "copy_if".to_owned(),
                    implementer: self.inner.name.to_owned(),
                })
            })
        };
        self.send_once(from, request).await
    }
}

/// The condition on the target of a copy.
fn condition_on(mode: CopyMode) -> Condition {
    match mode {
        CopyMode::Create => Condition::Absent,
        CopyMode::Overwrite => Condition::Always,
    }
}
