//! What the process has at an address.
//!
//! Uses unsafe code: C calls the function with a raw pointer.
#![allow(unsafe_code)]

use crate::call::status;
use crate::properties::level;
use crate::status::{Failure, GPU_VMM_NOT_FOUND, Status};
use crate::texts::{clear, give_json};
use gpu_vmm::{Address, AddressInfo, AddressRange};
use serde::Serialize;
use std::ffi::c_char;

/// A range of addresses.
#[derive(Serialize)]
struct Addresses {
    address: u64,
    size: u64,
}

impl From<AddressRange> for Addresses {
    fn from(range: AddressRange) -> Self {
        Self { address: range.base.0, size: range.size.0 }
    }
}

#[derive(Serialize)]
struct AddressReport<'a> {
    backend: &'static str,
    /// The part of the region that lies in the reservation.
    region: Addresses,
    tag: &'a str,
    is_pool: bool,
    is_guard: bool,
    suspended: bool,
    mapping: Option<MappingReport>,
    block: Option<BlockReport<'a>>,
    /// The same in one line.
    text: String,
}

#[derive(Serialize)]
struct MappingReport {
    #[serde(flatten)]
    range: Addresses,
    /// The device that owns the memory.
    device: u32,
    memory: String,
    poisoned: bool,
    access: Vec<AccessReport>,
}

#[derive(Serialize)]
struct AccessReport {
    device: u32,
    level: u32,
}

#[derive(Serialize)]
struct BlockReport<'a> {
    #[serde(flatten)]
    range: Addresses,
    tag: &'a str,
}

impl<'a> From<&'a AddressInfo> for AddressReport<'a> {
    fn from(found: &'a AddressInfo) -> Self {
        let mapping = found.mapping.map(|mapping| MappingReport {
            range: mapping.range.into(),
            device: mapping.properties.device.0,
            memory: mapping.properties.to_string(),
            poisoned: mapping.poisoned,
            access: mapping
                .access
                .grants()
                .map(|grant| AccessReport { device: grant.device.0, level: level(grant.access) })
                .collect(),
        });
        let block =
            found.block.as_ref().map(|block| BlockReport { range: block.range.into(), tag: &block.tag });
        Self {
            backend: found.vendor.name(),
            region: found.region.into(),
            tag: &found.tag,
            is_pool: found.is_pool,
            is_guard: found.is_guard,
            suspended: found.suspended,
            mapping,
            block,
            text: found.to_string(),
        }
    }
}

/// Describes what this process has at an address as JSON: the region or the pool that has reserved it, its tag, the mapping there with
/// the access of each device, and the block of a pool. It finds the regions of all backends, calls no driver, and can be called by any
/// thread, except where a pool must not be called. Free the text with gpu_vmm_string_free.
///
/// Returns GPU_VMM_NOT_FOUND for an address in no region of this process.
///
/// # Safety
///
/// `json` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_at(address: u64, json: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        let found = gpu_vmm::at(Address(address))?.ok_or_else(|| {
            let text = format!("find address: {} is in no region of this process", Address(address));
            Failure::new(GPU_VMM_NOT_FOUND, text)
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &AddressReport::from(&found)) }
    })
}
