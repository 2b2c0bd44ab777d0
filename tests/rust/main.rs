//! Tests of the engine through its public face.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends so"
)]

mod faults;
mod layering;
mod odf;
mod simulation;
mod stores;
mod tables;
mod takeover;
