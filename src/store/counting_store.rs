//! Counts the operations of stores that do not speak HTTP.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use super::metrics::{Metrics, RequestKind};

/// An object store whose operations are counted.
#[derive(Debug)]
pub(super) struct CountingStore<S> {
    pub(super) inner: S,
    pub(super) metrics: Arc<Metrics>,
}

impl<S: ObjectStore> std::fmt::Display for CountingStore<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for CountingStore<S> {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.metrics
            .count_request(RequestKind::Put, payload.content_length() as u64);
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.metrics.count_request(RequestKind::Post, 0);
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let kind = if options.head {
            RequestKind::Head
        } else {
            RequestKind::Get
        };
        self.metrics.count_request(kind, 0);
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.metrics.count_request(RequestKind::Get, 0);
        let chunks = self.inner.get_ranges(location, ranges).await?;
        self.metrics.count_received_bytes(
            RequestKind::Get,
            chunks.iter().map(|b| b.len() as u64).sum(),
        );
        Ok(chunks)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let metrics = Arc::clone(&self.metrics);
        let counted = locations.inspect(move |_| metrics.count_request(RequestKind::Delete, 0));
        self.inner.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.metrics.count_request(RequestKind::List, 0);
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.metrics.count_request(RequestKind::List, 0);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.metrics.count_request(RequestKind::Copy, 0);
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.metrics.count_request(RequestKind::Copy, 0);
        self.inner.rename_opts(from, to, options).await
    }
}
