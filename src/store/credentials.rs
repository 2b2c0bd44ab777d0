//! Credential providers beside those of `object_store`: a [`CredentialSource`] of the caller, an AWS profile, and none.
//!
//! [`CachedCredentialProvider`] keeps the credentials of a source until shortly before they expire, and longer if they
//! cannot be refreshed. A profile is read at the first request. Without credentials `object_store` asks the metadata
//! service of a cloud, which hangs where there is none: for a custom endpoint [`NoCredentials`] fails at once instead.
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
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use object_store::azure::{
    AzureAccessKey, AzureConfigKey, AzureCredential, AzureCredentialProvider, MicrosoftAzureBuilder,
};
use object_store::gcp::GcpCredential;
use tokio::sync::{Mutex, OnceCell};

use super::profile;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How long before they expire credentials are fetched again.
const REFRESH_BEFORE_EXPIRY: TimeDelta = TimeDelta::minutes(5);

/// Why a request has no credentials. It was not sent.
#[derive(Debug)]
pub(super) enum CredentialError {
    /// None are set; the text says what can be.
    Missing(String),
    /// The caller's source failed, or returned something else.
    SourceFailed(Error),
}

impl CredentialError {
    /// What happened, in few words.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Missing(_) => "no credentials",
            Self::SourceFailed(_) => "the credential provider failed",
        }
    }
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(needed) => write!(f, "no credentials were given: {needed}"),
            Self::SourceFailed(error) => f.write_str(error.message()),
        }
    }
}

impl std::error::Error for CredentialError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing(_) => None,
            Self::SourceFailed(error) => error.source(),
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

/// A credential and when it expires.
type CachedCredential<C> = Option<(Arc<C>, Option<DateTime<Utc>>)>;

/// Makes a cloud's credential of named values. The error names the values that are needed.
type Convert<C> = fn(&HashMap<String, String>) -> Result<C, &'static str>;

/// Credentials of a [`CredentialSource`], kept until shortly before they expire.
#[derive(Debug)]
pub(super) struct CachedCredentialProvider<C> {
    source: Arc<dyn CredentialSource>,
    clock: Arc<dyn Clock>,
    convert: Convert<C>,
    cached: Mutex<CachedCredential<C>>,
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
            cached: Mutex::new(None),
        }
    }
}

#[async_trait]
impl<C: Debug + Send + Sync + 'static> CredentialProvider for CachedCredentialProvider<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        // The lock is held across the fetch: one call fetches, the others wait for its result.
        let mut cached = self.cached.lock().await;
        let now = self.clock.now();
        if let Some((credential, expiry)) = cached.as_ref()
            && expiry.is_none_or(|at| now + REFRESH_BEFORE_EXPIRY < at)
        {
            return Ok(Arc::clone(credential));
        }
        let (values, expiry) = match self.source.fetch().await {
            Ok(fetched) => fetched,
            Err(e) => {
                return match cached.as_ref() {
                    Some((credential, Some(at))) if now < *at => {
                        log::warn!(
                            "credentials could not be refreshed, the current ones expire at {at}: {e}"
                        );
                        Ok(Arc::clone(credential))
                    }
                    _ => Err(CredentialError::SourceFailed(e).into()),
                };
            }
        };
        let credential = (self.convert)(&values).map_err(|needed| {
            let message = format!("the credential provider must return {needed}");
            CredentialError::SourceFailed(Error::new(ErrorKind::PermissionDenied, message))
        })?;
        let credential = Arc::new(credential);
        *cached = Some((Arc::clone(&credential), expiry));
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

/// The provider of a profile, where the profile is named, or where `object_store` would ask a metadata service that may
/// not exist. None where the options or the environment hold other credentials.
pub(super) fn aws_profile_provider(
    builder: &AmazonS3Builder,
    profile: Option<&str>,
    custom_endpoint: bool,
) -> object_store::Result<Option<AwsCredentialProvider>> {
    let is_set = |key| {
        let value = builder.get_config_value(&key);
        value.is_some_and(|v| !v.is_empty() && v != "false")
    };
    let has_env = |name| std::env::var_os(name).is_some();
    if profile.is_none()
        && (is_set(AmazonS3ConfigKey::AccessKeyId)
            || is_set(AmazonS3ConfigKey::SkipSignature)
            || has_env("AWS_WEB_IDENTITY_TOKEN_FILE")
            || has_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
            || has_env("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
    {
        return Ok(None);
    }
    let fallback: AwsCredentialProvider = if custom_endpoint {
        Arc::new(NoCredentials::new(
            "set aws_access_key_id and aws_secret_access_key, a profile, or aws_skip_signature=true",
        ))
    } else {
        Arc::clone(builder.clone().build()?.credentials())
    };
    let explicit_name = profile.map(ToOwned::to_owned);
    let profile_name = explicit_name.or_else(|| std::env::var("AWS_PROFILE").ok());
    Ok(Some(Arc::new(ProfileCredentialProvider {
        is_explicit: profile_name.is_some(),
        name: profile_name.unwrap_or_else(|| "default".to_owned()),
        fallback,
        loaded: OnceCell::new(),
    })))
}

/// A provider that fails at once, for a custom endpoint without credentials; None for all others.
pub(super) fn azure_no_credentials(
    builder: &MicrosoftAzureBuilder,
) -> Option<AzureCredentialProvider> {
    let is_set = |key| builder.get_config_value(&key).is_some();
    let is_true = |key| builder.get_config_value(&key).is_some_and(|v| v == "true");
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
        || flag_keys.into_iter().any(is_true)
    {
        return None;
    }
    Some(Arc::new(NoCredentials::new(
        "set azure_storage_account_key, a SAS token or a client, or azure_skip_signature=true",
    )))
}

/// The credentials of a profile, read at the first request.
#[derive(Debug)]
struct ProfileCredentialProvider {
    name: String,
    /// The option or `AWS_PROFILE` names this profile, so it must exist.
    is_explicit: bool,
    /// Used where the default profile does not exist.
    fallback: AwsCredentialProvider,
    loaded: OnceCell<Option<Arc<AwsCredential>>>,
}

#[async_trait]
impl CredentialProvider for ProfileCredentialProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let load = || async {
            let name = self.name.clone();
            let loaded = tokio::task::spawn_blocking(move || profile::load(&name)).await?;
            Ok::<_, object_store::Error>(loaded.map(Arc::new))
        };
        match self.loaded.get_or_try_init(load).await? {
            Some(credential) => Ok(Arc::clone(credential)),
            None if self.is_explicit => Err(CredentialError::Missing(format!(
                "the shared credentials file (AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials) \
                 has no access keys of the AWS profile {:?}",
                self.name
            ))
            .into()),
            None => self.fallback.get_credential().await,
        }
    }
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
        Err(CredentialError::Missing(self.needed.to_owned()).into())
    }
}
