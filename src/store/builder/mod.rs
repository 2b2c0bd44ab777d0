//! Opens a [`Store`] from a URL and options: [`StoreBuilder`] checks both and sends no request.
//!
//! URLs: `memory://[name]`, `file:///folder`, `s3://bucket/prefix`, `az://container/prefix`, `gs://bucket/prefix`.
//! Options: `object_store`'s configuration keys; `aws_profile`, `max_retries`, and in seconds `stall_timeout`,
//! `retry_timeout`, `publish_lease` (all writers of a dataset need the same); for local files `durability`: `full`, or
//! `none`, with which writes are reported before they are on the disk. Unknown options, unusable values, and cloud
//! URLs with credentials or a query are refused: [`ErrorKind::InvalidInput`](crate::error::ErrorKind::InvalidInput).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use url::Url;

use super::aws::{self, Network, RegionLookup, S3};
use super::counting_store::CountingStore;
pub use super::credentials::CredentialSource;
use super::credentials::{self, CachedCredentialProvider};
use super::gcs::Gcs;
use super::http::Connector;
use super::limit::Resends;
use super::local::LocalStore;
use super::memory::MemoryStore;
use super::metrics::Metrics;
use super::requests::{Cloud, CloudClient};
use super::secrets::{Secrets, mask_option};
use super::url::{Scheme, split_url};
use super::{Capabilities, DEFAULT_PUBLISH_LEASE, Store};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::sync::fork;

/// How long a request may make no progress before it fails.
pub const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may take to open.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after its first attempt a request is retried.
pub const DEFAULT_RETRY_TIMEOUT: Duration = Duration::from_mins(3);
/// How often a request is retried.
pub const DEFAULT_MAX_RETRIES: usize = 10;

const AZURE_EMULATOR_ACCOUNT: &str = "devstoreaccount1";

/// Prefix of the names of memory stores that were opened without a name; they live as long as their handles.
pub const ANONYMOUS_MEMORY_PREFIX: &str = "anonymous-";

/// The checked URL and options of a store; [`Self::build`] opens it.
#[derive(Debug, Clone)]
pub struct StoreBuilder {
    scheme: Scheme,
    container: String,
    prefix: String,
    options: BTreeMap<String, String>,
    stall_timeout: Duration,
    publish_lease: Duration,
    /// Writes to local files are on the disk before they are reported.
    durable: bool,
    retry: RetryConfig,
    aws_profile: Option<String>,
    credentials: Option<Arc<dyn CredentialSource>>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

impl StoreBuilder {
    /// Checks a URL and options; sends no request.
    pub fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        let (scheme, container, prefix) = split_url(url)?;
        let mut remaining: BTreeMap<String, String> = options
            .iter()
            .map(|(k, v)| (k.to_ascii_lowercase(), v.clone()))
            .collect();
        let stall_timeout = take_seconds(&mut remaining, "stall_timeout", DEFAULT_STALL_TIMEOUT)?;
        let publish_lease = take_seconds(&mut remaining, "publish_lease", DEFAULT_PUBLISH_LEASE)?;
        let retry_timeout = take_seconds(&mut remaining, "retry_timeout", DEFAULT_RETRY_TIMEOUT)?;
        let max_retries = match remaining.remove("max_retries") {
            None => DEFAULT_MAX_RETRIES,
            Some(text) => text.parse().map_err(|e| {
                Error::invalid(format!(
                    "option max_retries must be a whole number, not {text:?}"
                ))
                .with_source(e)
            })?,
        };
        let durable = take_durability(&mut remaining, scheme)?;
        let aws_profile = remaining.remove("aws_profile");
        if aws_profile.is_some() && scheme != Scheme::S3 {
            return Err(Error::invalid("option aws_profile is for s3:// stores"));
        }
        let builder = Self {
            scheme,
            durable,
            container,
            prefix,
            aws_profile,
            options: remaining,
            stall_timeout,
            publish_lease,
            retry: RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries,
                retry_timeout,
            },
            credentials: None,
            clock: Arc::new(SystemClock),
            metrics: Arc::default(),
        };
        builder.check_options()?;
        Ok(builder)
    }

    /// Fetches credentials from `source` instead of the options and the environment.
    pub fn with_credentials(mut self, source: Arc<dyn CredentialSource>) -> Result<Self> {
        if matches!(self.scheme, Scheme::Memory | Scheme::File) {
            return Err(Error::invalid(
                "credential_provider is for s3://, az:// and gs:// stores",
            ));
        }
        self.credentials = Some(source);
        Ok(self)
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    fn check_options(&self) -> Result<()> {
        for key in self.options.keys() {
            let known = match self.scheme {
                Scheme::Memory | Scheme::File => false,
                Scheme::S3 => AmazonS3ConfigKey::from_str(key).is_ok(),
                Scheme::Azure => AzureConfigKey::from_str(key).is_ok(),
                Scheme::Gcs => GoogleConfigKey::from_str(key).is_ok(),
            };
            if !known {
                let message = format!("unknown option {key:?} for {:?} stores", self.scheme);
                return Err(Error::invalid(message.to_lowercase()));
            }
        }
        // Building sends no request, and refuses values that cannot be used.
        if matches!(self.scheme, Scheme::S3 | Scheme::Azure | Scheme::Gcs) {
            self.build()?;
        }
        Ok(())
    }

    /// Whether the objects are in the memory of this process.
    pub fn is_in_memory(&self) -> bool {
        self.scheme == Scheme::Memory
    }

    /// The counters that all stores opened by this builder share.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Opens the store. Sends no request; clients connect at the first one.
    pub fn build(&self) -> Result<Store> {
        let metrics = &self.metrics;
        let store = match self.scheme {
            Scheme::Memory => self.memory(metrics),
            Scheme::File => self.file(metrics),
            Scheme::S3 => self.s3(metrics)?,
            Scheme::Azure => self.azure(metrics)?,
            Scheme::Gcs => self.gcs(metrics)?,
        };
        store
            .with_secrets(Secrets::from_options(&self.options))
            .with_publish_lease(self.publish_lease)
            .child(&self.prefix)
    }

    fn configuration_error(&self, error: &object_store::Error) -> Error {
        let text =
            Secrets::from_options(&self.options).mask(&crate::error::format_error_chain(error));
        Error::invalid(format!("the store cannot be opened: {text}"))
    }

    fn memory(&self, metrics: &Arc<Metrics>) -> Store {
        let objects = named_memory_store(&self.container);
        let counted = CountingStore {
            inner: Arc::clone(&objects),
            metrics: Arc::clone(metrics),
        };
        self.store("memory", Arc::new(counted), metrics)
            .with_conditional_store(Arc::clone(&objects) as _)
            .with_multipart(objects)
    }

    fn file(&self, metrics: &Arc<Metrics>) -> Store {
        let mut local = LocalStore::new(PathBuf::from(&self.container), Arc::clone(&self.clock));
        if !self.durable {
            local = local.without_durability();
        }
        let counted = CountingStore {
            inner: local.clone(),
            metrics: Arc::clone(metrics),
        };
        self.store("file", Arc::new(counted), metrics)
            .with_local(local)
    }

    fn s3(&self, metrics: &Arc<Metrics>) -> Result<Store> {
        let mut builder = AmazonS3Builder::from_env()
            .with_client_options(client_options())
            .with_bucket_name(&self.container)
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector(metrics));
        for (name, value) in &self.options {
            let key =
                AmazonS3ConfigKey::from_str(name).map_err(|e| self.configuration_error(&e))?;
            builder = builder.with_config(key, value);
        }
        let endpoint = aws::endpoint(&builder);
        if let Some(text) = &endpoint {
            let url = Url::parse(text).ok().filter(Url::has_host);
            match url.as_ref().map(Url::scheme) {
                Some("http") => builder = builder.with_allow_http(true),
                Some("https") => {}
                _ => {
                    return Err(Error::invalid(
                        "option aws_endpoint must be an http:// or https:// URL",
                    ));
                }
            }
        }
        let provider = if let Some(provider) = self.cached_provider(credentials::aws_credential) {
            Some(provider as AwsCredentialProvider)
        } else {
            let profile = self.aws_profile.as_deref();
            aws::chain_provider(&builder, &self.options, profile, &self.clock)?
        };
        if let Some(provider) = provider {
            builder = builder.with_credentials(provider);
        }
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let unsigned = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
        let express = builder.get_config_value(&AmazonS3ConfigKey::S3Express);
        let pays = builder.get_config_value(&AmazonS3ConfigKey::RequestPayer);
        let at_aws = endpoint.as_deref().is_none_or(is_aws);
        let lookup = RegionLookup {
            bucket: self.container.clone(),
            profile: self.aws_profile.clone(),
            at_aws: endpoint.is_none(),
            network: Network::of(&builder),
        };
        let bucket = S3::open(builder, region, lookup).map_err(|e| self.configuration_error(&e))?;
        let cloud = Cloud::S3 {
            bucket: bucket.clone(),
            signed: !unsigned.is_some_and(|v| credentials::is_true(&v)),
            aws: at_aws,
            express: express.is_some_and(|v| credentials::is_true(&v)),
            pays: pays.is_some_and(|v| credentials::is_true(&v)),
        };
        let objects = Arc::new(bucket);
        Ok(self
            .store("s3", Arc::clone(&objects) as _, metrics)
            .with_conditional_store(self.cloud_client(cloud))
            .with_multipart(objects)
            .with_http_service(self.resends()))
    }

    fn cached_provider<C>(
        &self,
        convert: fn(&HashMap<String, String>) -> Result<C, &'static str>,
    ) -> Option<Arc<CachedCredentialProvider<C>>> {
        let source = Arc::clone(self.credentials.as_ref()?);
        let cached = CachedCredentialProvider::new(source, Arc::clone(&self.clock), convert);
        Some(Arc::new(cached))
    }

    fn azure(&self, metrics: &Arc<Metrics>) -> Result<Store> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_client_options(client_options())
            .with_container_name(&self.container)
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector(metrics));
        for (name, value) in &self.options {
            let key = AzureConfigKey::from_str(name).map_err(|e| self.configuration_error(&e))?;
            builder = builder.with_config(key, value);
        }
        if let Some(provider) = self.cached_provider(credentials::azure_credential) {
            builder = builder.with_credentials(provider);
        } else if let Some(provider) = credentials::azure_no_credentials(&builder) {
            builder = builder.with_credentials(provider);
        }
        // No multipart uploads: the blocks that two writers stage for one blob replace each other.
        let account = builder.get_config_value(&AzureConfigKey::AccountName);
        let unsigned = builder.get_config_value(&AzureConfigKey::SkipSignature);
        let objects = Arc::new(builder.build().map_err(|e| self.configuration_error(&e))?);
        let cloud = Cloud::Azure {
            objects: Arc::clone(&objects),
            account: account.unwrap_or_else(|| AZURE_EMULATOR_ACCOUNT.to_owned()),
            signed: !unsigned.is_some_and(|v| credentials::is_true(&v)),
        };
        let capabilities = Capabilities {
            suffix_ranges: false,
            ..Capabilities::FULL
        };
        let clock = Arc::clone(&self.clock);
        Ok(
            Store::from_object_store("az", objects, capabilities, Arc::clone(metrics), clock)
                .with_conditional_store(self.cloud_client(cloud))
                .with_http_service(self.resends()),
        )
    }

    fn gcs(&self, metrics: &Arc<Metrics>) -> Result<Store> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_client_options(client_options())
            .with_bucket_name(&self.container)
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector(metrics));
        for (name, value) in &self.options {
            let key = GoogleConfigKey::from_str(name).map_err(|e| self.configuration_error(&e))?;
            builder = builder.with_config(key, value);
        }
        if let Some(provider) = self.cached_provider(credentials::gcp_credential) {
            builder = builder.with_credentials(provider);
        }
        let unsigned = builder.get_config_value(&GoogleConfigKey::SkipSignature);
        let objects = Arc::new(builder.build().map_err(|e| self.configuration_error(&e))?);
        let cloud = Cloud::Gcs {
            objects: Arc::clone(&objects),
            signed: !unsigned.is_some_and(|v| credentials::is_true(&v)),
        };
        Ok(self
            .store("gs", Arc::new(Gcs(Arc::clone(&objects))), metrics)
            .with_conditional_store(self.cloud_client(cloud))
            .with_multipart(objects)
            .with_http_service(self.resends()))
    }

    /// How often conditional requests are sent again, which `object_store` must not do.
    fn resends(&self) -> Resends {
        Resends {
            max: u32::try_from(self.retry.max_retries).unwrap_or(u32::MAX),
            timeout: self.retry.retry_timeout,
        }
    }

    fn connector(&self, metrics: &Arc<Metrics>) -> Connector {
        Connector {
            metrics: Arc::clone(metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
        }
    }

    fn cloud_client(&self, cloud: Cloud) -> Arc<CloudClient> {
        let variables = client_variables();
        let settings = self.options.iter().chain(&variables);
        let settings = settings.map(|(name, value)| format!("{name}={}", mask_option(name, value)));
        Arc::new(CloudClient {
            cloud,
            settings: settings.collect(),
            clock: Arc::clone(&self.clock),
            retry: self.retry.clone(),
            // A source of the caller sends nothing by the store's client, and may be asked for every request.
            warms_up: self.credentials.is_none(),
        })
    }

    fn store(
        &self,
        name: &'static str,
        objects: Arc<dyn object_store::ObjectStore>,
        metrics: &Arc<Metrics>,
    ) -> Store {
        let clock = Arc::clone(&self.clock);
        Store::from_object_store(
            name,
            objects,
            Capabilities::FULL,
            Arc::clone(metrics),
            clock,
        )
    }
}

/// The variables of the environment of which clients are made: those of AWS, and of proxies.
fn client_variables() -> BTreeMap<String, String> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let is_used = name.starts_with("AWS_") || name.to_ascii_lowercase().ends_with("_proxy");
        is_used.then_some((name, value))
    });
    variables.collect()
}

/// Whether an endpoint is one of AWS.
fn is_aws(endpoint: &str) -> bool {
    let url = Url::parse(endpoint).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
}

/// Options without a timeout for whole requests: the stall timeout of [`super::http`] ends those that hang.
fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(DEFAULT_CONNECT_TIMEOUT)
        .with_config(ClientConfigKey::PoolMaxIdlePerHost, "64")
}

fn take_seconds(
    options: &mut BTreeMap<String, String>,
    name: &str,
    default: Duration,
) -> Result<Duration> {
    let Some(text) = options.remove(name) else {
        return Ok(default);
    };
    text.parse::<f64>()
        .ok()
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .filter(|d| !d.is_zero())
        .ok_or_else(|| {
            Error::invalid(format!(
                "option {name} must be a positive number of seconds, not {text:?}"
            ))
        })
}

/// Takes the option `durability`: whether writes to local files wait for the disk.
fn take_durability(options: &mut BTreeMap<String, String>, scheme: Scheme) -> Result<bool> {
    let Some(text) = options.remove("durability") else {
        return Ok(true);
    };
    match text.as_str() {
        _ if scheme != Scheme::File => {
            Err(Error::invalid("option durability is for file:// stores"))
        }
        "full" => Ok(true),
        "none" => Ok(false),
        _ => Err(Error::invalid(format!(
            "option durability must be \"full\" or \"none\", not {text:?}"
        ))),
    }
}

/// The memory store of a name. A named store lives as long as the process, an anonymous one as long as its handles.
fn named_memory_store(name: &str) -> Arc<MemoryStore> {
    #[derive(Default)]
    struct Memories {
        named: HashMap<String, Arc<MemoryStore>>,
        anonymous: HashMap<String, Weak<MemoryStore>>,
    }
    static MEMORIES: LazyLock<Mutex<Memories>> = LazyLock::new(Mutex::default);
    let mut stores = fork::lock(&MEMORIES);
    if !name.starts_with(ANONYMOUS_MEMORY_PREFIX) {
        return Arc::clone(stores.named.entry(name.to_owned()).or_default());
    }
    stores.anonymous.retain(|_, store| store.strong_count() > 0);
    let slot = stores.anonymous.entry(name.to_owned()).or_default();
    slot.upgrade().unwrap_or_else(|| {
        let fresh = Arc::default();
        *slot = Arc::downgrade(&fresh);
        fresh
    })
}

#[cfg(test)]
mod tests;
