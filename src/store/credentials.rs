//! Credential providers beside those of `object_store`: a [`CredentialSource`], and none.
//!
//! [`CachedCredentialProvider`] caches the credentials of a source until shortly before they expire, and longer if they
//! cannot be refreshed. Sources are the caller's function and, for S3, the chain of [`super::aws`]. Without credentials
//! `object_store` asks the metadata service of Azure, which hangs where there is none: for a custom endpoint
//! [`NoCredentials`] fails at once instead.
//!
//! Errors: [`CredentialError`] where credentials are missing or could not be fetched, which `Store::map_error` makes
//! [`ErrorKind::PermissionDenied`].

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::azure::{
    AzureAccessKey, AzureConfigKey, AzureCredential, AzureCredentialProvider, MicrosoftAzureBuilder,
};
use object_store::gcp::GcpCredential;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How long before they expire credentials are fetched again.
const REFRESH_BEFORE_EXPIRY: TimeDelta = TimeDelta::minutes(5);

/// Why a request has no credentials. It was not sent.
#[derive(Debug)]
pub(super) enum CredentialError {
    /// None are set; the text says what can be.
    Missing(&'static str),
    /// The chain of AWS has none; the error says where it looked.
    NotInChain(Error),
    /// The caller's source failed, or returned something else.
    SourceFailed(Error),
}

impl CredentialError {
    /// What the caller can do.
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::NotInChain(error) => error.kind(),
            Self::Missing(_) | Self::SourceFailed(_) => ErrorKind::PermissionDenied,
        }
    }

    /// What happened, in few words.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Missing(_) | Self::NotInChain(_) => "no credentials",
            Self::SourceFailed(_) => "the credential provider failed",
        }
    }
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(needed) => write!(f, "no credentials were given: {needed}"),
            Self::NotInChain(error) | Self::SourceFailed(error) => f.write_str(error.message()),
        }
    }
}

impl std::error::Error for CredentialError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing(_) => None,
            Self::NotInChain(error) | Self::SourceFailed(error) => error.source(),
        }
    }
}

impl From<CredentialError> for object_store::Error {
    fn from(error: CredentialError) -> Self {
        Self::Generic {
            store: "credentials",
            source: Box::new(error),
        }
    }
}

/// Credentials fetched from outside, such as a user's callable.
#[async_trait]
pub trait CredentialSource: Debug + Send + Sync + 'static {
    /// Returns credentials by the names of `object_store`'s options, and when they expire; None means never.
    async fn fetch(&self) -> Result<(HashMap<String, String>, Option<DateTime<Utc>>)>;
}

/// What the last fetches gave.
#[derive(Debug)]
struct Cached<C> {
    credential: Option<(Arc<C>, Option<DateTime<Utc>>)>,
    /// When the last fetch ended, and how, if it failed.
    fetched_at: Option<DateTime<Utc>>,
    failure: Option<Error>,
}

/// Makes a cloud's credential of named values. The error names the values that are needed.
type Convert<C> = fn(&HashMap<String, String>) -> Result<C, &'static str>;

/// Credentials of a [`CredentialSource`], kept until shortly before they expire.
#[derive(Debug)]
pub(super) struct CachedCredentialProvider<C> {
    source: Arc<dyn CredentialSource>,
    clock: Arc<dyn Clock>,
    convert: Convert<C>,
    failure: fn(Error) -> CredentialError,
    /// For how long after a fetch neither credentials that are about to expire nor a failure cause another.
    pause: TimeDelta,
    cached: Mutex<Cached<C>>,
}

impl<C> CachedCredentialProvider<C> {
    pub(super) fn new(
        source: Arc<dyn CredentialSource>,
        clock: Arc<dyn Clock>,
        convert: Convert<C>,
    ) -> Self {
        Self {
            source,
            clock,
            convert,
            failure: CredentialError::SourceFailed,
            pause: TimeDelta::zero(),
            cached: Mutex::new(Cached {
                credential: None,
                fetched_at: None,
                failure: None,
            }),
        }
    }

    /// Returns the provider for a source that takes long and fails for many callers at once: failures are reported as
    /// `failure`, and for the length of `pause` after a fetch no other follows.
    pub(super) fn with_pause(
        mut self,
        pause: TimeDelta,
        failure: fn(Error) -> CredentialError,
    ) -> Self {
        (self.pause, self.failure) = (pause, failure);
        self
    }
}

impl<C> Cached<C> {
    /// The credential, if it has not expired at `time`.
    fn valid_after(&self, time: DateTime<Utc>) -> Option<&Arc<C>> {
        let (credential, expiry) = self.credential.as_ref()?;
        expiry.is_none_or(|at| time < at).then_some(credential)
    }
}

#[async_trait]
impl<C: Debug + Send + Sync + 'static> CredentialProvider for CachedCredentialProvider<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        // The lock is held across the fetch: one call fetches, the others wait for its result.
        let mut cached = self.cached.lock().await;
        let now = self.clock.now();
        if let Some(credential) = cached.valid_after(now + REFRESH_BEFORE_EXPIRY) {
            return Ok(Arc::clone(credential));
        }
        let just_fetched = TimeDelta::zero()..self.pause;
        // Not if the clock was set back: that would be long.
        if (cached.fetched_at).is_some_and(|at| just_fetched.contains(&(now - at))) {
            match (cached.valid_after(now), &cached.failure) {
                (Some(credential), _) => return Ok(Arc::clone(credential)),
                (None, Some(e)) => return Err((self.failure)(e.duplicate()).into()),
                (None, None) => {}
            }
        }
        let fetched = self.source.fetch().await;
        let now = self.clock.now();
        cached.fetched_at = Some(now);
        let converted = fetched.and_then(|(values, expiry)| {
            let credential = (self.convert)(&values).map_err(|needed| {
                let message = format!("the credential provider must return {needed}");
                Error::new(ErrorKind::PermissionDenied, message)
            })?;
            Ok((Arc::new(credential), expiry))
        });
        let (credential, expiry) = match converted {
            Ok(converted) => converted,
            Err(e) => {
                cached.failure = Some(e.duplicate());
                let Some(credential) = cached.valid_after(now) else {
                    return Err((self.failure)(e).into());
                };
                log::warn!("credentials could not be refreshed, the current ones are used: {e}");
                return Ok(Arc::clone(credential));
            }
        };
        cached.credential = Some((Arc::clone(&credential), expiry));
        cached.failure = None;
        Ok(credential)
    }
}

fn find_value(values: &HashMap<String, String>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| values.get(*name)).cloned()
}

/// Reads `access_key_id`, `secret_access_key` and the optional `session_token`.
pub(super) fn aws_credential(
    values: &HashMap<String, String>,
) -> Result<AwsCredential, &'static str> {
    let key_id = find_value(values, &["access_key_id", "aws_access_key_id"]);
    let secret_key = find_value(values, &["secret_access_key", "aws_secret_access_key"]);
    let token = ["session_token", "aws_session_token", "token", "aws_token"];
    match (key_id, secret_key) {
        (Some(key_id), Some(secret_key)) => Ok(AwsCredential {
            key_id,
            secret_key,
            token: find_value(values, &token),
        }),
        _ => Err("access_key_id and secret_access_key"),
    }
}

/// Reads one of `bearer_token`, `sas_token` and `account_key`.
pub(super) fn azure_credential(
    values: &HashMap<String, String>,
) -> Result<AzureCredential, &'static str> {
    if let Some(token) = find_value(values, &["bearer_token", "access_token", "token"]) {
        return Ok(AzureCredential::BearerToken(token));
    }
    if let Some(token) = find_value(values, &["sas_token", "sas_key"]) {
        let query = token.trim_start_matches('?').as_bytes();
        let pairs = url::form_urlencoded::parse(query).into_owned().collect();
        return Ok(AzureCredential::SASToken(pairs));
    }
    let encoded_key = find_value(values, &["account_key", "access_key"]);
    let key = encoded_key.and_then(|key| AzureAccessKey::try_new(&key).ok());
    key.map(AzureCredential::AccessKey)
        .ok_or("bearer_token, sas_token or account_key (base64)")
}

/// Reads `bearer_token`.
pub(super) fn gcp_credential(
    values: &HashMap<String, String>,
) -> Result<GcpCredential, &'static str> {
    let bearer = find_value(values, &["bearer_token", "access_token", "token"]);
    bearer
        .map(|bearer| GcpCredential { bearer })
        .ok_or("bearer_token")
}

/// Whether the value of an option means true, as `object_store` has it.
pub(super) fn is_true(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
}

/// A provider that fails at once, for a custom endpoint without credentials; None for all others.
pub(super) fn azure_no_credentials(
    builder: &MicrosoftAzureBuilder,
) -> Option<AzureCredentialProvider> {
    let is_set = |key| builder.get_config_value(&key).is_some();
    let is_set_true = |key| builder.get_config_value(&key).is_some_and(|v| is_true(&v));
    let credential_keys = [
        AzureConfigKey::AccessKey,
        AzureConfigKey::SasKey,
        AzureConfigKey::Token,
        AzureConfigKey::ClientId,
        AzureConfigKey::MsiEndpoint,
        AzureConfigKey::FederatedTokenFile,
    ];
    let flag_keys = [
        AzureConfigKey::SkipSignature,
        AzureConfigKey::UseEmulator,
        AzureConfigKey::UseAzureCli,
    ];
    if !is_set(AzureConfigKey::Endpoint)
        || credential_keys.into_iter().any(is_set)
        || flag_keys.into_iter().any(is_set_true)
    {
        return None;
    }
    Some(Arc::new(NoCredentials::new(
        "set azure_storage_account_key, a SAS token or a client, or azure_skip_signature=true",
    )))
}

/// Fails for a store that has a custom endpoint and no credentials: a request to the metadata service of a cloud would
/// hang.
#[derive(Debug)]
struct NoCredentials<C> {
    /// The options that can be set.
    needed: &'static str,
    credential: PhantomData<fn() -> C>,
}

impl<C> NoCredentials<C> {
    fn new(needed: &'static str) -> Self {
        Self {
            needed,
            credential: PhantomData,
        }
    }
}

#[async_trait]
impl<C: Debug + Send + Sync + 'static> CredentialProvider for NoCredentials<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        Err(CredentialError::Missing(self.needed).into())
    }
}
