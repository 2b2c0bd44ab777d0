//! A bucket on S3 whose client is made when its region is known.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::OnceCell;

use super::region::RegionLookup;

/// The client of a bucket, and the region that its requests are signed for.
#[derive(Debug)]
pub(in crate::store) struct Client {
    pub(in crate::store) objects: AmazonS3,
    pub(in crate::store) region: String,
}

/// A bucket. Its first request looks up the region, where the options and the environment name none.
#[derive(Debug, Clone)]
pub(in crate::store) struct S3(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    builder: AmazonS3Builder,
    lookup: RegionLookup,
    client: OnceCell<Client>,
}

impl S3 {
    /// Opens a bucket; sends no request. Fails where the options cannot be used.
    pub(in crate::store) fn open(
        builder: AmazonS3Builder,
        region: Option<String>,
        lookup: RegionLookup,
    ) -> Result<Self> {
        let objects = builder.clone().build()?;
        let client = region.map(|region| Client { objects, region });
        Ok(Self(Arc::new(Inner {
            builder,
            lookup,
            client: OnceCell::new_with(client),
        })))
    }

    /// The client. Of concurrent first calls, one looks up the region.
    pub(in crate::store) async fn client(&self) -> Result<&Client> {
        let lookup = self.0.lookup.resolve();
        self.client_in(lookup).await
    }

    async fn client_in(&self, lookup: impl Future<Output = Result<String>>) -> Result<&Client> {
        let open = || async {
            let region = lookup.await?;
            log::debug!("bucket {:?} is in region {region}", self.0.lookup.bucket);
            let objects = self.0.builder.clone().with_region(&region).build()?;
            Ok(Client { objects, region })
        };
        self.0.client.get_or_try_init(open).await
    }

    async fn objects(&self) -> Result<&AmazonS3> {
        Ok(&self.client().await?.objects)
    }
}

impl std::fmt::Display for S3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AmazonS3({})", self.0.lookup.bucket)
    }
}

#[async_trait]
impl ObjectStore for S3 {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.objects()
            .await?
            .put_opts(location, payload, opts)
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects()
            .await?
            .put_multipart_opts(location, opts)
            .await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects().await?.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects().await?.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        let delete = async move { Ok(bucket.objects().await?.delete_stream(locations)) };
        delete.try_flatten_stream().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (bucket, prefix) = (self.clone(), prefix.cloned());
        let list = async move { Ok(bucket.objects().await?.list(prefix.as_ref())) };
        list.try_flatten_stream().boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (bucket, prefix, offset) = (self.clone(), prefix.cloned(), offset.clone());
        let list = async move {
            let objects = bucket.objects().await?;
            Ok(objects.list_with_offset(prefix.as_ref(), &offset))
        };
        list.try_flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects().await?.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects().await?.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for S3 {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.objects().await?.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        self.objects()
            .await?
            .put_part(path, id, part_idx, data)
            .await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.objects()
            .await?
            .complete_multipart(path, id, parts)
            .await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.objects().await?.abort_multipart(path, id).await
    }
}
