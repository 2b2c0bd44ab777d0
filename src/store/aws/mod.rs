//! What stores on S3 need of AWS beside the objects: credentials, as the tools of AWS find them, and regions.
//!
//! [`chain_provider`] runs the providers of `aws-config` one after another and says of each why it has no credentials.
//! [`S3`] is a bucket whose client is made at the first request, when its region is known.
//!
//! Nothing here is read or sent when a store is opened: files and services are asked at the first request.

mod chain;
mod http;
mod network;
mod options;
mod region;
mod s3;

pub(super) use network::Network;
pub(super) use options::{chain_provider, endpoint};
pub(super) use region::RegionLookup;
pub(super) use s3::S3;
