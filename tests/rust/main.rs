//! Tests of the engine through its public face.

mod faults;
mod layering;
mod stores;
