//! From a URL and options to a [`Store`]. Nothing is started or asked before the first request.
//!
//! URLs: `memory://[name]`, `file:///folder`, `s3://bucket/prefix`, `az://container/prefix`,
//! `gs://bucket/prefix`. Options are `object_store`'s configuration keys, plus `aws_profile`,
//! `stall_timeout`, `retry_timeout` (seconds) and `max_retries`. An unknown key is refused by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::memory::InMemory;
use object_store::{BackoffConfig, ClientOptions, CredentialProvider, RetryConfig};
use url::Url;

use super::counted::Counted;
use super::http::Connector;
use super::local::LocalStore;
use super::metrics::Metrics;
use super::{Abilities, Store, path, profile};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How long a request may make no progress.
pub const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may take to open.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long requests are tried again.
pub const DEFAULT_RETRY_TIMEOUT: Duration = Duration::from_mins(3);
/// How often requests are tried again.
pub const DEFAULT_MAX_RETRIES: usize = 10;
/// Credentials are fetched anew so long before they expire.
const REFRESH_BEFORE_EXPIRY: TimeDelta = TimeDelta::minutes(5);

/// Memory stores begin with this when nobody gave them a name; they live as long as their handles.
pub const ANONYMOUS_MEMORY: &str = "anonymous-";

/// Credentials fetched from outside, such as a user's callable.
#[async_trait]
pub trait CredentialSource: Debug + Send + Sync + 'static {
    /// The credentials by the names of `object_store`'s options, and when they expire.
    async fn fetch(&self) -> Result<(HashMap<String, String>, Option<DateTime<Utc>>)>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Memory,
    File,
    S3,
    Azure,
    Gcs,
}

/// A checked URL with its options.
#[derive(Debug, Clone)]
pub struct StoreBuilder {
    scheme: Scheme,
    container: String,
    prefix: String,
    options: BTreeMap<String, String>,
    stall_timeout: Duration,
    retry: RetryConfig,
    aws_profile: Option<String>,
    credentials: Option<Arc<dyn CredentialSource>>,
    clock: Arc<dyn Clock>,
}

impl StoreBuilder {
    /// Checks a URL and options; does no I/O.
    pub fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        let (scheme, container, prefix) = split_url(url)?;
        let mut options: BTreeMap<String, String> = options
            .iter()
            .map(|(k, v)| (k.to_ascii_lowercase(), v.clone()))
            .collect();
        let stall_timeout = seconds(&mut options, "stall_timeout", DEFAULT_STALL_TIMEOUT)?;
        let retry_timeout = seconds(&mut options, "retry_timeout", DEFAULT_RETRY_TIMEOUT)?;
        let max_retries = match options.remove("max_retries") {
            None => DEFAULT_MAX_RETRIES,
            Some(text) => text.parse().map_err(|e| {
                Error::invalid(format!(
                    "option max_retries must be a whole number, not {text:?}"
                ))
                .caused_by(e)
            })?,
        };
        let builder = Self {
            scheme,
            container,
            prefix,
            aws_profile: options.remove("aws_profile"),
            options,
            stall_timeout,
            retry: RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries,
                retry_timeout,
            },
            credentials: None,
            clock: Arc::new(SystemClock),
        };
        builder.check_options()?;
        Ok(builder)
    }

    /// Fetches credentials from `source` instead of the options and the environment.
    pub fn with_credentials(mut self, source: Arc<dyn CredentialSource>) -> Result<Self> {
        if self.scheme != Scheme::S3 {
            return Err(Error::invalid(
                "credential_provider is for s3:// stores; give the others a token option",
            ));
        }
        self.credentials = Some(source);
        Ok(self)
    }

    /// Uses another clock.
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
        // Building does no I/O and finds values that cannot be used.
        if matches!(self.scheme, Scheme::S3 | Scheme::Azure | Scheme::Gcs) {
            self.build()?;
        }
        Ok(())
    }

    /// Opens the store. Does no I/O; clients connect at the first request.
    pub fn build(&self) -> Result<Store> {
        let metrics = Arc::new(Metrics::default());
        let store = match self.scheme {
            Scheme::Memory => self.memory(&metrics),
            Scheme::File => self.file(&metrics),
            Scheme::S3 => self.s3(&metrics)?,
            Scheme::Azure => self.azure(&metrics)?,
            Scheme::Gcs => self.gcs(&metrics)?,
        };
        store.child(&self.prefix)
    }

    fn memory(&self, metrics: &Arc<Metrics>) -> Store {
        let objects = memory_named(&self.container);
        let counted = Counted {
            inner: Arc::clone(&objects),
            metrics: Arc::clone(metrics),
        };
        self.store("memory", Arc::new(counted), metrics)
            .with_multipart(objects)
    }

    fn file(&self, metrics: &Arc<Metrics>) -> Store {
        let local = LocalStore::new(PathBuf::from(&self.container), Arc::clone(&self.clock));
        let counted = Counted {
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
        for (key, value) in &self.options {
            let key = AmazonS3ConfigKey::from_str(key).map_err(|e| unusable(&e))?;
            builder = builder.with_config(key, value);
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
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
        if let Some(source) = &self.credentials {
            builder = builder.with_credentials(Arc::new(Fetched {
                source: Arc::clone(source),
                clock: Arc::clone(&self.clock),
                cached: tokio::sync::Mutex::new(None),
            }));
        } else if let Some(found) = self.s3_credentials(&builder, endpoint.is_some())? {
            builder = builder.with_credentials(found);
        }
        let objects = Arc::new(builder.build().map_err(|e| unusable(&e))?);
        Ok(self
            .store("s3", Arc::clone(&objects) as _, metrics)
            .with_multipart(objects)
            .counted_below())
    }

    /// Credentials where `object_store` would go and ask a metadata service that may not be there.
    fn s3_credentials(
        &self,
        builder: &AmazonS3Builder,
        custom_endpoint: bool,
    ) -> Result<Option<Arc<dyn CredentialProvider<Credential = AwsCredential>>>> {
        let set = |key| {
            builder
                .get_config_value(&key)
                .is_some_and(|v| !v.is_empty() && v != "false")
        };
        if let Some(name) = &self.aws_profile {
            let found = profile::load(name).ok_or_else(|| {
                Error::new(
                    ErrorKind::PermissionDenied,
                    format!("no credentials for the AWS profile {name:?}"),
                )
            })?;
            return Ok(Some(Arc::new(object_store::StaticCredentialProvider::new(
                found,
            ))));
        }
        let env = |name| std::env::var_os(name).is_some();
        if set(AmazonS3ConfigKey::AccessKeyId)
            || set(AmazonS3ConfigKey::SkipSignature)
            || env("AWS_WEB_IDENTITY_TOKEN_FILE")
            || env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
            || env("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        {
            return Ok(None);
        }
        let name = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
        Ok(match profile::load(&name) {
            Some(found) => Some(Arc::new(object_store::StaticCredentialProvider::new(found))),
            None if custom_endpoint => Some(Arc::new(profile::NoCredentials)),
            None => None,
        })
    }

    fn azure(&self, metrics: &Arc<Metrics>) -> Result<Store> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_client_options(client_options())
            .with_container_name(&self.container)
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector(metrics));
        for (key, value) in &self.options {
            let key = AzureConfigKey::from_str(key).map_err(|e| unusable(&e))?;
            builder = builder.with_config(key, value);
        }
        // No multipart here: blocks staged by two writers of one blob replace one another.
        let objects = builder.build().map_err(|e| unusable(&e))?;
        let abilities = Abilities {
            suffix_ranges: false,
            ..Abilities::FULL
        };
        let clock = Arc::clone(&self.clock);
        Ok(Store::over(
            "az",
            Arc::new(objects),
            abilities,
            Arc::clone(metrics),
            clock,
        )
        .counted_below())
    }

    fn gcs(&self, metrics: &Arc<Metrics>) -> Result<Store> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_client_options(client_options())
            .with_bucket_name(&self.container)
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector(metrics));
        for (key, value) in &self.options {
            let key = GoogleConfigKey::from_str(key).map_err(|e| unusable(&e))?;
            builder = builder.with_config(key, value);
        }
        let objects = Arc::new(builder.build().map_err(|e| unusable(&e))?);
        Ok(self
            .store("gs", Arc::clone(&objects) as _, metrics)
            .with_multipart(objects)
            .counted_below())
    }

    fn connector(&self, metrics: &Arc<Metrics>) -> Connector {
        Connector {
            metrics: Arc::clone(metrics),
            clock: Arc::clone(&self.clock),
            stall_timeout: self.stall_timeout,
        }
    }

    fn store(
        &self,
        name: &'static str,
        objects: Arc<dyn object_store::ObjectStore>,
        metrics: &Arc<Metrics>,
    ) -> Store {
        let clock = Arc::clone(&self.clock);
        Store::over(name, objects, Abilities::FULL, Arc::clone(metrics), clock)
    }
}

/// No limit on a whole request: the stall timeout of [`super::http`] ends those that hang.
fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(DEFAULT_CONNECT_TIMEOUT)
        .with_config(ClientConfigKey::PoolMaxIdlePerHost, "64")
}

fn unusable(error: &object_store::Error) -> Error {
    Error::invalid(format!(
        "the store cannot be opened: {}",
        crate::error::chain(error)
    ))
}

fn seconds(
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

fn split_url(url: &str) -> Result<(Scheme, String, String)> {
    // The URL may hold secrets, so errors name only the scheme.
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        Error::invalid("a store's URL must begin with memory://, file://, s3://, az:// or gs://")
    })?;
    let (container, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/').to_owned();
    let scheme = match scheme {
        "memory" => Scheme::Memory,
        "file" => {
            let parsed = Url::parse(url)
                .map_err(|e| Error::invalid(format!("malformed file:// URL: {e}")))?;
            if !rest.starts_with('/') || parsed.query().is_some() {
                return Err(Error::invalid(
                    "a file:// URL must hold an absolute path: file:///folder",
                ));
            }
            let decoded = percent_decode(rest)?;
            return Ok((Scheme::File, decoded, String::new()));
        }
        "s3" | "s3a" => Scheme::S3,
        "az" => Scheme::Azure,
        "gs" => Scheme::Gcs,
        other => {
            let message =
                format!("unknown store {other}://; there are memory, file, s3, az and gs");
            return Err(Error::invalid(message));
        }
    };
    path::parse_folder(&prefix)?;
    if scheme != Scheme::Memory
        && (container.is_empty() || container.contains(['@', ':', '?', '#']))
    {
        return Err(Error::invalid(
            "the URL names no bucket or container, or one with characters of other URLs; credentials are options",
        ));
    }
    Ok((scheme, container.to_owned(), prefix))
}

/// A file URL's path; a `%` that is no escape stands for itself.
fn percent_decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escape = (first == b'%')
            .then(|| std::str::from_utf8(tail.get(..2)?).ok())
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(escape.unwrap_or(first));
        rest = if escape.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::invalid("the file:// URL is not UTF-8").caused_by(e))
}

/// Named stores live as long as the process, anonymous ones as long as somebody holds them.
fn memory_named(name: &str) -> Arc<InMemory> {
    #[derive(Default)]
    struct Memories {
        named: HashMap<String, Arc<InMemory>>,
        anonymous: HashMap<String, Weak<InMemory>>,
    }
    static MEMORIES: LazyLock<Mutex<Memories>> = LazyLock::new(Mutex::default);
    let mut all = MEMORIES.lock().unwrap_or_else(PoisonError::into_inner);
    if !name.starts_with(ANONYMOUS_MEMORY) {
        return Arc::clone(all.named.entry(name.to_owned()).or_default());
    }
    all.anonymous.retain(|_, store| store.strong_count() > 0);
    let slot = all.anonymous.entry(name.to_owned()).or_default();
    slot.upgrade().unwrap_or_else(|| {
        let fresh = Arc::default();
        *slot = Arc::downgrade(&fresh);
        fresh
    })
}

type Cached = Option<(Arc<AwsCredential>, Option<DateTime<Utc>>)>;

/// Credentials of a [`CredentialSource`], kept until shortly before they expire.
#[derive(Debug)]
struct Fetched {
    source: Arc<dyn CredentialSource>,
    clock: Arc<dyn Clock>,
    cached: tokio::sync::Mutex<Cached>,
}

#[async_trait]
impl CredentialProvider for Fetched {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        // Held across the fetch: one call at a time, the others wait for its result.
        let mut cached = self.cached.lock().await;
        if let Some((credential, expiry)) = cached.as_ref()
            && expiry.is_none_or(|at| self.clock.now() + REFRESH_BEFORE_EXPIRY < at)
        {
            return Ok(Arc::clone(credential));
        }
        let (mut values, expiry) = self.source.fetch().await.map_err(boxed)?;
        let mut take = |name: &str| {
            values
                .remove(name)
                .or_else(|| values.remove(&format!("aws_{name}")))
        };
        let (Some(key_id), Some(secret_key)) = (take("access_key_id"), take("secret_access_key"))
        else {
            let text = "the credential provider must return access_key_id and secret_access_key";
            return Err(boxed(Error::new(ErrorKind::PermissionDenied, text)));
        };
        let token = take("session_token").or_else(|| take("token"));
        let credential = Arc::new(AwsCredential {
            key_id,
            secret_key,
            token,
        });
        *cached = Some((Arc::clone(&credential), expiry));
        Ok(credential)
    }
}

fn boxed(error: Error) -> object_store::Error {
    let marked = Error::new(ErrorKind::PermissionDenied, profile::NO_CREDENTIALS).caused_by(error);
    object_store::Error::Generic {
        store: "s3",
        source: Box::new(marked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<StoreBuilder> {
        StoreBuilder::parse(url, &BTreeMap::new())
    }

    #[test]
    fn refuses_what_is_no_store() {
        for bad in [
            "",
            "x",
            "ftp://h/p",
            "file://relative",
            "s3://",
            "s3://key:secret@bucket/p",
            "s3://b/a//c",
            "az:///x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let options = BTreeMap::from([("aws_regoin".to_owned(), "x".to_owned())]);
        let error = StoreBuilder::parse("s3://b", &options).unwrap_err();
        assert!(error.message().contains("aws_regoin"), "{error}");
    }

    #[test]
    fn file_urls_decode_once() {
        assert_eq!(parse("file:///tmp/a%20b").unwrap().container, "/tmp/a b");
        assert_eq!(
            parse("file:///tmp/a%2520b").unwrap().container,
            "/tmp/a%20b"
        );
        assert_eq!(parse("file:///tmp/a b%").unwrap().container, "/tmp/a b%");
    }
}
