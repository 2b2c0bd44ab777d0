//! How `aws-config` sends requests to STS, SSO and the metadata services: by `reqwest`, as all other requests.

use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;

use super::network::Network;

/// How long a service may take to accept a connection, unless its provider has another limit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a service may send nothing, unless its provider has another limit.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes a connector for every client of a service.
#[derive(Debug, Clone)]
pub(super) struct Reqwest(pub(super) Network);

impl HttpClient for Reqwest {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(Connector {
            connect_timeout: settings.connect_timeout().unwrap_or(CONNECT_TIMEOUT),
            read_timeout: settings.read_timeout().unwrap_or(READ_TIMEOUT),
            network: self.0.clone(),
        })
    }
}

#[derive(Debug, Clone)]
struct Connector {
    connect_timeout: Duration,
    read_timeout: Duration,
    network: Network,
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
        // A client for one request: credentials are fetched once an hour or so, and no connection is open for so long.
        let client = (self.network.client(request.url())).and_then(|builder| {
            let builder = builder.connect_timeout(self.connect_timeout);
            builder.read_timeout(self.read_timeout).build()
        });
        let client = client.map_err(user_error)?;
        let response = client.execute(request).await.map_err(transport_error)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(transport_error)?;
        let mut answer = ::http::Response::new(SdkBody::from(body.as_ref()));
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        HttpResponse::try_from(answer).map_err(|e| ConnectorError::other(e.into(), None))
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
