//! The host backend through its traits, on real pages: results, refusals, and leaks.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic)]

mod access;
mod addresses;
mod arranged;
mod borrowed;
mod captures;
mod child;
mod coarse;
mod common;
mod contract;
mod copies;
mod faults;
mod in_flight;
mod limited;
mod limits;
mod lost;
mod machine;
mod memory;
mod mmu;
mod moved;
mod observed;
mod processes;
mod range;
mod refusals;
mod registered;
mod sharing;
mod snapshots;
mod staged;
mod supported;
mod testkit;
mod threads;
mod vectors;

use gpu_vmm_core::{Bytes, DeviceId};

const ONE: DeviceId = DeviceId(0);
const TWO: DeviceId = DeviceId(1);
/// The granularity of GPUs, and the default.
const GRANULE: Bytes = Bytes::mib(2);
/// A granularity that every machine supports, for tests with many pieces.
const SMALL: Bytes = Bytes::kib(64);
