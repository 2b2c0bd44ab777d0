//! The region of a bucket that was opened without one.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use aws_config::meta::region::ProvideRegion;
use aws_config::profile::region::ProfileFileRegionProvider;
use object_store::{Error, Result};
use url::Url;

use super::network::Network;
use crate::sync::fork;

/// The region of AWS where nothing names another.
pub(super) const DEFAULT_REGION: &str = "us-east-1";
/// How long AWS may take to say where a bucket is, where the profile names a region to fall back on, …
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);
/// … and where it names none.
const LONG_TIMEOUT: Duration = Duration::from_secs(10);
const BUCKET_REGION: &str = "x-amz-bucket-region";

/// Finds the region of a bucket.
#[derive(Debug, Clone)]
pub(in crate::store) struct RegionLookup {
    pub(in crate::store) bucket: String,
    /// The AWS profile of the options.
    pub(in crate::store) profile: Option<String>,
    /// Whether the bucket is at AWS, not behind another endpoint.
    pub(in crate::store) at_aws: bool,
    pub(in crate::store) network: Network,
}

/// The regions that AWS named, by bucket: they do not change, and many stores are opened for one bucket.
static REGIONS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

impl RegionLookup {
    /// The region that AWS names for the bucket, else that of the profile, else `us-east-1`.
    ///
    /// Another endpoint is not asked. Errors: `Generic` where AWS cannot be asked and the profile has no region.
    pub(super) async fn resolve(&self) -> Result<String> {
        let of_profile = profile_region(self.profile.as_deref()).await;
        if !self.at_aws {
            return Ok(of_profile.unwrap_or_else(|| DEFAULT_REGION.to_owned()));
        }
        if let Some(region) = fork::lock(&REGIONS).get(&self.bucket) {
            return Ok(region.clone());
        }
        let timeout = if of_profile.is_some() {
            SHORT_TIMEOUT
        } else {
            LONG_TIMEOUT
        };
        let answer = match bucket_url(&self.bucket) {
            Ok(url) => ask(&self.network, url, timeout).await,
            // No name of a bucket: the request itself will say so.
            Err(_) => Ok(None),
        };
        if let Ok(Some(region)) = &answer {
            fork::lock(&REGIONS).insert(self.bucket.clone(), region.clone());
        }
        match (answer, of_profile) {
            (Ok(Some(region)), _) | (Ok(None) | Err(_), Some(region)) => Ok(region),
            // No such bucket: the request itself will say so.
            (Ok(None), None) => Ok(DEFAULT_REGION.to_owned()),
            (Err(e), None) => Err(Error::Generic {
                store: "S3",
                source: Box::new(RegionError(self.bucket.clone(), e)),
            }),
        }
    }
}

/// AWS could not be asked where a bucket is.
#[derive(Debug)]
struct RegionError(String, reqwest::Error);

impl std::fmt::Display for RegionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "AWS could not be asked for the region of bucket {:?}: set aws_region, AWS_REGION or the region of the profile",
            self.0
        )
    }
}

impl std::error::Error for RegionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.1)
    }
}

/// The region of the AWS profile in the configuration files.
pub(super) async fn profile_region(profile: Option<&str>) -> Option<String> {
    let mut builder = ProfileFileRegionProvider::builder();
    if let Some(name) = profile {
        builder = builder.profile_name(name);
    }
    let region = builder.build().region().await?;
    Some(region.as_ref().to_owned())
}

/// A name with dots does not fit the certificate of the form with the bucket in the host.
fn bucket_url(bucket: &str) -> Result<Url, url::ParseError> {
    Url::parse(&if bucket.contains('.') {
        format!("https://s3.amazonaws.com/{bucket}")
    } else {
        format!("https://{bucket}.s3.amazonaws.com")
    })
}

/// The region that an answer names, whatever its status. None if the answer names none.
async fn ask(network: &Network, url: Url, timeout: Duration) -> reqwest::Result<Option<String>> {
    let client = network.client(&url)?.timeout(timeout).build()?;
    let answer = client.head(url).send().await?;
    let region = answer.headers().get(BUCKET_REGION);
    match region.and_then(|r| r.to_str().ok()) {
        Some(region) => Ok(Some(region.to_owned())),
        None if answer.status().is_server_error() => answer.error_for_status().map(|_| None),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Answers one request and returns its first line.
    async fn answer_once(listener: tokio::net::TcpListener, answer: &str) -> String {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let n = socket.read(&mut request).await.unwrap();
        socket.write_all(answer.as_bytes()).await.unwrap();
        let text = String::from_utf8_lossy(&request[..n]).into_owned();
        text.lines().next().unwrap().to_owned()
    }

    #[tokio::test]
    async fn an_answer_of_any_status_names_the_region() {
        for (status, header, region) in [
            (
                "200 OK",
                "x-amz-bucket-region: eu-west-1\r\n",
                Some("eu-west-1"),
            ),
            (
                "403 Forbidden",
                "x-amz-bucket-region: us-west-2\r\n",
                Some("us-west-2"),
            ),
            (
                "301 Moved Permanently",
                "location: http://127.0.0.1:1/\r\nx-amz-bucket-region: eu-north-1\r\n",
                Some("eu-north-1"),
            ),
            ("404 Not Found", "", None),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/bucket", listener.local_addr().unwrap());
            let answer = format!("HTTP/1.1 {status}\r\n{header}content-length: 0\r\n\r\n");
            let (network, url) = (Network::default(), Url::parse(&url).unwrap());
            let (answered, line) = tokio::join!(
                ask(&network, url, LONG_TIMEOUT),
                answer_once(listener, &answer)
            );
            assert_eq!(answered.unwrap().as_deref(), region, "{status}");
            assert_eq!(line, "HEAD /bucket HTTP/1.1");
        }
    }

    #[test]
    fn a_name_with_dots_is_not_part_of_the_host() {
        let url = |bucket| bucket_url(bucket).unwrap().to_string();
        assert_eq!(url("a-b"), "https://a-b.s3.amazonaws.com/");
        assert_eq!(url("a.b"), "https://s3.amazonaws.com/a.b");
    }
}
