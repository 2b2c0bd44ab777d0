//! Credentials as the tools of AWS find them.
//!
//! Order: the profile of the option `aws_profile`; a profile of the environment that assumes a role; the web identity token
//! of the environment; the profile of the environment, else `default`; the container's service; the metadata service of the
//! instance. That is the order of botocore, so of the AWS CLI. The first that is set up decides: its failure is an error. A
//! profile that is named must have credentials. Keys in the options or in the environment come before all of these and do
//! not get here. A profile may hold keys, a role to assume, an SSO session or a `credential_process`.
//!
//! Errors: [`ErrorKind::PermissionDenied`], with a line for each place that has no credentials.

use std::collections::HashMap;
use std::error::Error as _;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::BehaviorVersion;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::profile::{self, Profile, ProfileFileCredentialsProvider, ProfileSet};
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_runtime::env_config::file::EnvConfigFiles;
use aws_types::os_shim_internal::{Env, Fs};
use aws_types::region::Region;
use chrono::{DateTime, Utc};

use super::http::Reqwest;
use super::network::Network;
use super::region::{DEFAULT_REGION, profile_region};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result, format_error_chain};
use crate::store::credentials::CredentialSource;

/// How long the metadata service of an instance may take to answer.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);
/// How long one provider may take, a `credential_process` that asks its user included.
const PROVIDER_TIMEOUT: Duration = Duration::from_mins(2);

const NOT_LOADED: &str = "it is missing or has no credentials";
const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
const CONTAINER_VARIABLES: [&str; 2] = [
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The providers of credentials, tried one after another at every fetch.
#[derive(Debug)]
pub(in crate::store) struct CredentialChain {
    /// The profile of the options.
    pub(in crate::store) profile: Option<String>,
    /// Whether the metadata service of the instance may be asked, …
    pub(in crate::store) asks_metadata: bool,
    /// … and where, if not at its usual address.
    pub(in crate::store) metadata_endpoint: Option<String>,
    /// The region of a store at AWS, where its options or the environment name it.
    pub(in crate::store) region: Option<String>,
    pub(in crate::store) network: Network,
    pub(in crate::store) clock: std::sync::Arc<dyn Clock>,
}

/// Values by name and the time when they expire, as a [`CredentialSource`] returns them.
type Fetched = (HashMap<String, String>, Option<DateTime<Utc>>);

#[async_trait]
impl CredentialSource for CredentialChain {
    async fn fetch(&self) -> Result<Fetched> {
        let named = self.profile.clone().or_else(|| {
            // botocore reads both, in this order.
            variable("AWS_DEFAULT_PROFILE").or_else(|| variable("AWS_PROFILE"))
        });
        let region = match (&self.region, profile_region(named.as_deref()).await) {
            (Some(region), _) => region.clone(),
            (None, of_profile) => of_profile.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        };
        let config = ProviderConfig::without_region()
            .with_region(Some(Region::new(region)))
            .with_behavior_version(Some(BehaviorVersion::latest()))
            .with_http_client(Reqwest(self.network.clone()));
        let profiles = load_profiles().await?;
        let has_token = self.profile.is_none() && variable(TOKEN_FILE).is_some();
        match named {
            Some(name) if !has_token || assumes_role(profiles.get_profile(&name)) => {
                let outcome = self.of_profile(&name, &profiles, &config).await;
                outcome.map_err(|e| profile_error(&name, &profiles, &e))
            }
            _ if has_token => self.of_web_identity(&config).await,
            _ => self.of_default(&profiles, &config).await,
        }
    }
}

impl CredentialChain {
    async fn of_profile(
        &self,
        name: &str,
        profiles: &ProfileSet,
        config: &ProviderConfig,
    ) -> std::result::Result<Fetched, CredentialsError> {
        if let Some(keys) = profiles.get_profile(name).and_then(own_keys) {
            return Ok(keys);
        }
        let builder = ProfileFileCredentialsProvider::builder();
        let provider = builder
            .configure(config)
            .profile_name(name.to_owned())
            .build();
        self.ask(&provider, PROVIDER_TIMEOUT).await
    }

    async fn of_web_identity(&self, config: &ProviderConfig) -> Result<Fetched> {
        let builder = WebIdentityTokenCredentialsProvider::builder();
        let provider = builder.configure(config).build();
        let outcome = self.ask(&provider, PROVIDER_TIMEOUT).await;
        outcome.map_err(|e| service_error("the web identity token", &e))
    }

    /// The profile `default`, else what the machine offers.
    async fn of_default(&self, profiles: &ProfileSet, config: &ProviderConfig) -> Result<Fetched> {
        let mut attempts = vec![
            "the environment: AWS_ACCESS_KEY_ID is not set".to_owned(),
            format!("a web identity: {TOKEN_FILE} is not set"),
        ];
        match self.of_profile("default", profiles, config).await {
            Ok(fetched) => return Ok(fetched),
            Err(CredentialsError::CredentialsNotLoaded(_)) => {
                attempts.push(format!("the profile \"default\": {NOT_LOADED}"));
            }
            Err(e) => return Err(profile_error("default", profiles, &e)),
        }
        if CONTAINER_VARIABLES
            .iter()
            .any(|name| variable(name).is_some())
        {
            let provider = EcsCredentialsProvider::builder().configure(config).build();
            let outcome = self.ask(&provider, PROVIDER_TIMEOUT).await;
            return outcome.map_err(|e| service_error("the container's service", &e));
        }
        attempts.push(format!(
            "a container: {} is not set",
            CONTAINER_VARIABLES[0]
        ));
        match self.of_instance(config).await {
            Ok(fetched) => Ok(fetched),
            Err(reason) => {
                attempts.push(format!("the metadata service of an instance: {reason}"));
                Err(nowhere(&attempts))
            }
        }
    }

    /// The instance's role. One short attempt: most machines have no such service.
    async fn of_instance(&self, config: &ProviderConfig) -> std::result::Result<Fetched, String> {
        if !self.asks_metadata {
            return Err("not asked for a store with an endpoint of its own".to_owned());
        }
        if variable("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            return Err("AWS_EC2_METADATA_DISABLED is set".to_owned());
        }
        let mut client = aws_config::imds::Client::builder()
            .configure(config)
            .connect_timeout(METADATA_TIMEOUT)
            .read_timeout(METADATA_TIMEOUT)
            .max_attempts(1);
        if let Some(endpoint) = &self.metadata_endpoint {
            client = client.endpoint(endpoint).map_err(|e| e.to_string())?;
        }
        let provider = ImdsCredentialsProvider::builder()
            .configure(config)
            .imds_client(client.build())
            .build();
        let outcome = self.ask(&provider, 2 * METADATA_TIMEOUT).await;
        outcome.map_err(|e| last_cause(&e))
    }

    async fn ask(
        &self,
        provider: &impl ProvideCredentials,
        timeout: Duration,
    ) -> std::result::Result<Fetched, CredentialsError> {
        let credentials = tokio::select! {
            outcome = provider.provide_credentials() => outcome?,
            () = self.clock.sleep(timeout) => return Err(CredentialsError::provider_timed_out(timeout)),
        };
        Ok(to_fetched(&credentials))
    }
}

/// The profiles of both files.
async fn load_profiles() -> Result<ProfileSet> {
    let (files, env) = (Fs::real(), Env::real());
    let loaded = profile::load(&files, &env, &EnvConfigFiles::default(), None).await;
    loaded.map_err(|e| {
        denied(format!(
            "the AWS profiles cannot be read: {}",
            format_error_chain(&e)
        ))
    })
}

/// The keys of a profile that has no other source of credentials before them, as botocore has it.
fn own_keys(profile: &Profile) -> Option<Fetched> {
    let has = |name| profile.get(name).is_some();
    if has("role_arn") || has("sso_account_id") || has("sso_role_name") {
        return None;
    }
    let names = [
        ("access_key_id", "aws_access_key_id"),
        ("secret_access_key", "aws_secret_access_key"),
        ("session_token", "aws_session_token"),
    ];
    let values: HashMap<String, String> = names
        .into_iter()
        .filter_map(|(name, key)| Some((name.to_owned(), profile.get(key)?.to_owned())))
        .collect();
    (has(names[0].1) && has(names[1].1)).then_some((values, None))
}

/// Whether a profile assumes a role by the credentials of another, not by a token.
fn assumes_role(profile: Option<&Profile>) -> bool {
    profile
        .is_some_and(|p| p.get("role_arn").is_some() && p.get("web_identity_token_file").is_none())
}

/// The profile with the SSO session that a profile uses.
fn sso_profile<'a>(name: &'a str, profiles: &'a ProfileSet) -> Option<&'a str> {
    let uses_sso = |name: &str| {
        let profile = profiles.get_profile(name);
        profile.is_some_and(|p| {
            p.get("sso_session")
                .or_else(|| p.get("sso_start_url"))
                .is_some()
        })
    };
    let source = profiles.get_profile(name)?.get("source_profile");
    [Some(name), source]
        .into_iter()
        .flatten()
        .find(|name| uses_sso(name))
}

fn to_fetched(credentials: &Credentials) -> Fetched {
    let mut values = HashMap::from([
        (
            "access_key_id".to_owned(),
            credentials.access_key_id().to_owned(),
        ),
        (
            "secret_access_key".to_owned(),
            credentials.secret_access_key().to_owned(),
        ),
    ]);
    if let Some(token) = credentials.session_token() {
        values.insert("session_token".to_owned(), token.to_owned());
    }
    (values, credentials.expiry().map(DateTime::from))
}

/// A variable of the environment that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The innermost message of an error: those around it say that a provider failed.
fn last_cause(error: &CredentialsError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// What a provider says of its failure, without the first message, which is about providers.
fn reasons(error: &CredentialsError) -> String {
    match (error.source(), error) {
        (Some(cause), _) => format_error_chain(cause),
        (None, CredentialsError::CredentialsNotLoaded(_)) => NOT_LOADED.to_owned(),
        (None, _) => error.to_string(),
    }
}

fn profile_error(name: &str, profiles: &ProfileSet, error: &CredentialsError) -> Error {
    let hint = match sso_profile(name, profiles) {
        Some(profile) => format!("aws sso login --profile {profile}"),
        None => format!("look at it with: aws configure list --profile {name}"),
    };
    let message = format!(
        "no credentials of the AWS profile {name:?}: {}",
        reasons(error)
    );
    Error::new(failure_kind(error), message).with_hint(hint)
}

/// Whether a service could not be reached, or there are no credentials. A provider that took too long, such as a
/// `credential_process` that asks its user, is not tried again.
fn failure_kind(error: &CredentialsError) -> ErrorKind {
    let text = format_error_chain(error);
    if text.contains("dispatch failure") {
        ErrorKind::Unavailable
    } else {
        ErrorKind::PermissionDenied
    }
}

fn service_error(place: &str, error: &CredentialsError) -> Error {
    let message = format!("no credentials of {place}: {}", reasons(error));
    Error::new(failure_kind(error), message)
}

/// The error where every place was looked at.
fn nowhere(attempts: &[String]) -> Error {
    denied(format!("no AWS credentials; looked at {}", attempts.join("; "))).with_hint(
        "aws configure or aws sso login; or name a profile by aws_profile, pass aws_access_key_id and \
         aws_secret_access_key, or, for a public bucket, aws_skip_signature=true",
    )
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::PermissionDenied, message)
}
