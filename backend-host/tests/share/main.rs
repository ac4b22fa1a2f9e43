//! Regions between processes, with the library on host memory: the imported region, changes, the release of memory, and leaks when
//! the other process sends invalid messages or dies.
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
/// Longer than any operation here takes.
const LONG: Duration = Duration::from_secs(30);

/// Returns `count` units.
const fn units(count: u64) -> Bytes {
    Bytes(UNIT.0 * count)
}
