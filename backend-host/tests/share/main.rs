//! Regions between processes, by the library on host memory: what arrives, how changes follow, who releases memory, and what is
//! left when the other process lies or dies.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench;
mod changes;
#[path = "../host/child.rs"]
mod child;
mod dma_buf;
mod failures;
mod forger;
mod killed;
mod left;
mod lies;
mod memory;
mod mutated;
mod offers;
mod parting;
mod regions;

use gpu_vmm_core::{Bytes, DeviceId};
use std::time::Duration;

const ONE: DeviceId = DeviceId(0);
const TWO: DeviceId = DeviceId(1);
/// The granularity of the tests' machines.
const UNIT: Bytes = Bytes::kib(64);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

/// `count` units.
const fn units(count: u64) -> Bytes {
    Bytes(UNIT.0 * count)
}
