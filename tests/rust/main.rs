//! Tests of the engine through its public face.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends so"
)]

mod azure;
mod faults;
mod idempotency;
mod layering;
mod odf;
mod odf_attach;
mod odf_outcomes;
mod pointer;
mod power_loss;
mod runs;
mod s3;
mod simulation;
mod stores;
mod sync_faults;
mod tables;
mod takeover;
mod targets;
mod writes;
