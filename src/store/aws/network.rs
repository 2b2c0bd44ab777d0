//! How services of AWS are reached: by the proxy of the store, where its options name one.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::ClientConfigKey;
use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, NoProxy, Proxy, Url};

/// The proxy of a store's options. Without one, that of the environment counts.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Network {
    /// The URL of the proxy, …
    proxy: Option<String>,
    /// … the hosts that are reached without it, and the PEM of its certificate.
    excludes: Option<String>,
    ca_certificate: Option<String>,
}

impl Network {
    pub(in crate::store) fn of(builder: &AmazonS3Builder) -> Self {
        let get = |key| builder.get_config_value(&AmazonS3ConfigKey::Client(key));
        Self {
            proxy: get(ClientConfigKey::ProxyUrl),
            excludes: get(ClientConfigKey::ProxyExcludes),
            ca_certificate: get(ClientConfigKey::ProxyCaCertificate),
        }
    }

    /// A client for requests to `url` that follows no redirects.
    pub(super) fn client(&self, url: &Url) -> reqwest::Result<ClientBuilder> {
        let builder = reqwest::Client::builder().redirect(Policy::none());
        if is_on_this_machine(url) {
            return Ok(builder.no_proxy());
        }
        let Some(proxy_url) = &self.proxy else {
            return Ok(builder);
        };
        let excludes = self.excludes.as_deref();
        let proxy = Proxy::all(proxy_url)?.no_proxy(excludes.and_then(NoProxy::from_string));
        let builder = builder.proxy(proxy);
        Ok(match &self.ca_certificate {
            Some(pem) => builder.add_root_certificate(Certificate::from_pem(pem.as_bytes())?),
            None => builder,
        })
    }
}

/// Whether a proxy cannot reach a service: those of containers and instances answer on this machine alone.
fn is_on_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback() || address.is_link_local(),
        Some(url::Host::Ipv6(address)) => address.is_loopback() || address.is_unique_local(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}
