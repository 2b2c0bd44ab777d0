//! Which options and variables decide where the credentials of a bucket come from.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use chrono::TimeDelta;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};

use super::chain::CredentialChain;
use super::network::Network;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::store::credentials::{self, CachedCredentialProvider, CredentialError};

/// Options that name a service or a token for `object_store`'s own providers.
const SERVICE_OPTIONS: [AmazonS3ConfigKey; 3] = [
    AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
    AmazonS3ConfigKey::ContainerCredentialsFullUri,
    AmazonS3ConfigKey::WebIdentityTokenFile,
];
/// Options about the web identity token of the environment, which the chain does not know.
const TOKEN_OPTIONS: [AmazonS3ConfigKey; 3] = [
    AmazonS3ConfigKey::RoleArn,
    AmazonS3ConfigKey::RoleSessionName,
    AmazonS3ConfigKey::StsEndpoint,
];
/// How long callers share the outcome of a fetch by the chain.
const CHAIN_PAUSE: TimeDelta = TimeDelta::seconds(2);

/// The provider of the credentials that the tools of AWS find. None where the options or the environment have keys, or the
/// options name a service that `object_store` asks.
///
/// Errors: `InvalidInput` for a secret key without its access key, which would be left out in silence.
pub(in crate::store) fn chain_provider(
    builder: &AmazonS3Builder,
    options: &BTreeMap<String, String>,
    profile: Option<&str>,
    clock: &Arc<dyn Clock>,
) -> Result<Option<AwsCredentialProvider>> {
    let get = |key: &AmazonS3ConfigKey| builder.get_config_value(key).filter(|v| !v.is_empty());
    let is_option = |key: &AmazonS3ConfigKey| {
        let parsed = options.keys().map(|name| AmazonS3ConfigKey::from_str(name));
        parsed.flatten().any(|option| option == *key)
    };
    let has_key_id = get(&AmazonS3ConfigKey::AccessKeyId).is_some();
    if !has_key_id && is_option(&AmazonS3ConfigKey::SecretAccessKey) {
        return Err(Error::invalid(
            "option aws_secret_access_key needs aws_access_key_id beside it",
        ));
    }
    let has_token = get(&AmazonS3ConfigKey::WebIdentityTokenFile).is_some();
    let is_decided = has_key_id
        || get(&AmazonS3ConfigKey::SkipSignature).is_some_and(|v| credentials::is_true(&v))
        || SERVICE_OPTIONS.iter().any(is_option)
        || has_token && TOKEN_OPTIONS.iter().any(is_option);
    if profile.is_none() && is_decided {
        return Ok(None);
    }
    let has_endpoint = endpoint(builder).is_some();
    let chain = Arc::new(CredentialChain {
        profile: profile.map(ToOwned::to_owned),
        asks_metadata: !has_endpoint,
        metadata_endpoint: get(&AmazonS3ConfigKey::MetadataEndpoint),
        region: get(&AmazonS3ConfigKey::Region).filter(|_| !has_endpoint),
        network: Network::of(builder),
        clock: Arc::clone(clock),
    });
    let clock = Arc::clone(clock);
    let provider = CachedCredentialProvider::new(chain, clock, credentials::aws_credential);
    let provider = provider.with_pause(CHAIN_PAUSE, CredentialError::NotInChain);
    Ok(Some(Arc::new(provider)))
}

/// The endpoint of the options or the environment; that for S3 alone comes first.
pub(in crate::store) fn endpoint(builder: &AmazonS3Builder) -> Option<String> {
    let keys = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let mut values = keys.iter().filter_map(|key| builder.get_config_value(key));
    values.find(|value| !value.is_empty())
}
