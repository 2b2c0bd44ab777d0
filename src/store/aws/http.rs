//! How `aws-config` sends requests to STS, SSO and the metadata services: by `reqwest`, as all other requests.

use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use reqwest::redirect::Policy;

/// How long a service may take to accept a connection, unless its provider has another limit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a service may send nothing, unless its provider has another limit.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes a connector for every client of a service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reqwest;

impl HttpClient for Reqwest {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(Connector {
            connect_timeout: settings.connect_timeout().unwrap_or(CONNECT_TIMEOUT),
            read_timeout: settings.read_timeout().unwrap_or(READ_TIMEOUT),
        })
    }
}

#[derive(Debug, Clone)]
struct Connector {
    connect_timeout: Duration,
    read_timeout: Duration,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new_boxed(Box::pin(self.clone().send(request)))
    }
}

impl Connector {
    async fn send(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(user_error)?;
        let (parts, body) = request.into_parts();
        // The requests of these services are texts, never streams.
        let body = body.bytes().map(<[u8]>::to_vec).unwrap_or_default();
        let request = ::http::Request::from_parts(parts, body);
        let request = reqwest::Request::try_from(request).map_err(user_error)?;
        let client = self.client(request.url()).map_err(user_error)?;
        let response = client.execute(request).await.map_err(transport_error)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(transport_error)?;
        let mut answer = ::http::Response::new(SdkBody::from(body.as_ref()));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        HttpResponse::try_from(answer).map_err(|e| ConnectorError::other(e.into(), None))
    }

    /// A client for one request: credentials are fetched once an hour or so, and a kept connection does not live so long.
    fn client(&self, url: &reqwest::Url) -> reqwest::Result<reqwest::Client> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.read_timeout)
            .redirect(Policy::none());
        if is_on_this_machine(url) {
            builder = builder.no_proxy();
        }
        builder.build()
    }
}

/// Whether a proxy cannot reach a service: those of containers and instances answer on this machine alone.
fn is_on_this_machine(url: &reqwest::Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback() || address.is_link_local(),
        Some(url::Host::Ipv6(address)) => address.is_loopback() || address.is_unique_local(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

fn user_error(error: impl std::error::Error + Send + Sync + 'static) -> ConnectorError {
    ConnectorError::user(error.into())
}

fn transport_error(error: reqwest::Error) -> ConnectorError {
    if error.is_timeout() {
        ConnectorError::timeout(error.into())
    } else {
        ConnectorError::io(error.into())
    }
}
