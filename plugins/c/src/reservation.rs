//! Regions as reservations of addresses: where they lie, how they grow, and their units.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::properties::{Properties, check_reserved};
use crate::region::Region;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{clear, give, give_box, give_if_wanted, object};
use gpu_vmm::{Address, AnyBackend, Bytes, Operation, Placement, Region as Memory, RegionBuilder};

/// For `placement` of gpu_vmm_region_options: any address that the driver chooses.
pub const GPU_VMM_PLACE_ANYWHERE: u32 = 0;
/// For `placement` of gpu_vmm_region_options: `address` if it is free, else any address.
pub const GPU_VMM_PLACE_PREFER: u32 = 1;
/// For `placement` of gpu_vmm_region_options: `address`, or the error GPU_VMM_ADDRESS_TAKEN.
pub const GPU_VMM_PLACE_EXACT: u32 = 2;
/// For `placement` of gpu_vmm_region_options: a random address that other processes can reserve as well. Set `size`.
pub const GPU_VMM_PLACE_RESTORABLE: u32 = 3;
/// For `placement` of gpu_vmm_region_options: any addresses that are all below `address`, also after growth and moves.
pub const GPU_VMM_PLACE_BELOW: u32 = 4;

/// The options of a region. All zeros, as after `= {0}`, is the default: addresses for as many bytes as device 0 has memory, wherever
/// the driver chooses, and growth with memory of device 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions {
    /// The memory with which the region grows.
    pub memory: Properties,
    /// The number of bytes of addresses, rounded up; 0 for the size of the device's memory.
    pub size: u64,
    /// GPU_VMM_PLACE_ANYWHERE, GPU_VMM_PLACE_PREFER, GPU_VMM_PLACE_EXACT, GPU_VMM_PLACE_RESTORABLE or GPU_VMM_PLACE_BELOW.
    pub placement: u32,
    /// Whether the region has units that every driver supports, so that another driver can restore it at its address.
    pub portable: bool,
    /// Whether the unit of offsets and lengths is the granularity that the driver recommends, as gpu_vmm_recommended_granularity returns it.
    pub recommended_granularity: bool,
    /// The address for GPU_VMM_PLACE_PREFER and GPU_VMM_PLACE_EXACT, and the limit for GPU_VMM_PLACE_BELOW. Must be zero for the
    /// others.
    pub address: u64,
    /// The alignment of the address beyond the granularity, a power of two; 0 for none.
    pub alignment: u64,
    /// The number of bytes of addresses that growth first tries to add behind a full reservation; 0 for as many as the region has. If
    /// they are too few or taken, growth adds just what it needs.
    pub extend_by: u64,
    /// The number of bytes of addresses to keep free on either side, rounded up; 0 for none. Freed memory is then overwritten.
    pub guard: u64,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

impl RegionOptions {
    /// Returns the builder that the options describe; null means the default.
    pub(crate) fn builder<'a>(
        backend: &'a AnyBackend,
        options: Option<&Self>,
    ) -> CallResult<RegionBuilder<'a, AnyBackend>> {
        let builder = Memory::builder(backend);
        let Some(options) = options else { return Ok(builder) };
        check_reserved("reserve", options.reserved)?;
        let placement = match options.placement {
            placement @ (GPU_VMM_PLACE_ANYWHERE | GPU_VMM_PLACE_RESTORABLE) if options.address != 0 => {
                let named = if placement == GPU_VMM_PLACE_ANYWHERE { "anywhere" } else { "restorable" };
                return Err(Failure::invalid(format!(
                    "reserve: address is {}, but placement is {placement} ({named}), which takes no address; set placement to 1 \
                     (prefer) or 2 (exact)",
                    Address(options.address)
                )));
            }
            GPU_VMM_PLACE_ANYWHERE => Placement::Anywhere,
            GPU_VMM_PLACE_PREFER => Placement::Prefer(Address(options.address)),
            GPU_VMM_PLACE_EXACT => Placement::Exact(Address(options.address)),
            GPU_VMM_PLACE_RESTORABLE => Placement::Restorable,
            GPU_VMM_PLACE_BELOW => Placement::Below(Address(options.address)),
            other => {
                return Err(Failure::invalid(format!(
                    "reserve: placement is {other}; expected 0, 1, 2, 3 or 4"
                )));
            }
        };
        let mut builder = builder
            .memory(Properties::read("reserve", Some(&options.memory))?)
            .at(placement)
            .alignment(Bytes(options.alignment.max(1)))
            .extend_by(Bytes(options.extend_by))
            .guard(Bytes(options.guard));
        if options.size > 0 {
            builder = builder.reserve(Bytes(options.size));
        }
        if options.portable {
            builder = builder.portable();
        }
        Ok(if options.recommended_granularity { builder.recommended_granularity() } else { builder })
    }
}

/// Reserves addresses and maps nothing. Null options mean the default. Free the region with gpu_vmm_region_free. CUDA:
/// cuMemAddressReserve; HIP: hipMemAddressReserve.
///
/// Returns GPU_VMM_ADDRESS_TAKEN if the addresses of GPU_VMM_PLACE_EXACT are not free, or if no place is free that is restorable or
/// below the limit; GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_INVALID_ARGUMENT for an address
/// without a placement that has one, or GPU_VMM_UNSUPPORTED for memory that the driver lacks.
///
/// # Safety
///
/// `backend` is null or an open backend. `options` is null or points to options. `region` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_reserve(
    backend: *const Backend,
    options: *const RegionOptions,
    region: *mut *mut Region,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(region) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let builder = RegionOptions::builder(backend, options.as_ref())?;
            give_box("region", region, || Ok(Region::of(backend, builder.build()?)))
        }
    })
}

/// Returns the number of bytes of addresses that the region has, mapped or not.
///
/// # Safety
///
/// `region` is null or a region. `size` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_reserved(region: *const Region, size: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(size) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("size", size, object("region", region)?.memory.with(|region| region.reserved().0)?) }
    })
}

/// Returns the unit of every offset and length of the region.
///
/// # Safety
///
/// `region` is null or a region. `granularity` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_granularity(region: *const Region, granularity: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(granularity) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let unit = object("region", region)?.memory.with(|region| region.granularity().bytes().0)?;
            give("granularity", granularity, unit)
        }
    })
}

/// Grows a region to at least `size` bytes, at another address if the addresses behind it are taken. The same memory is mapped at
/// the new address, which `address` receives; it may be null. Pointers into the old range are then invalid, so the call fails while
/// a tensor of the region exists. It waits for the devices before it unmaps the old addresses.
///
/// Returns GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_ADDRESS_SPACE, GPU_VMM_SUSPENDED, GPU_VMM_BUSY for a tensor or if an observer refuses.
///
/// # Safety
///
/// `region` is null or a region. `address` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_grow_or_move(
    region: *const Region,
    size: u64,
    address: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(address) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let grow = |region: &mut Memory<AnyBackend>| {
            region.grow_or_move(Bytes(size), gpu_vmm::WaitFor::all_devices())
        };
        let grown = region.memory.change(Operation::Grow, false, grow)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(address, grown.address.0) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use gpu_vmm::Vendor;

    #[test]
    fn sizes_and_address_come_from_options() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let memory = Properties {
            device: 0,
            location: 0,
            node: 0,
            handle_types: 0,
            compressible: false,
            remote_dma: false,
            reserved: [0; 4],
        };
        let options = RegionOptions {
            memory,
            size: Bytes::mib(16).0,
            placement: GPU_VMM_PLACE_ANYWHERE,
            portable: false,
            recommended_granularity: false,
            address: 0,
            alignment: 0,
            extend_by: Bytes::mib(8).0,
            guard: Bytes::mib(4).0,
            reserved: [0; 4],
        };
        let build = |options| RegionOptions::builder(&host, Some(&options)).unwrap().build().unwrap();
        let region = build(options);
        assert_eq!(region.guard(), Bytes::mib(4));
        assert!(!region.is_portable());
        let (alignment, portable) = (Bytes::gib(1).0, true);
        let without = build(RegionOptions { guard: 0, alignment, portable, ..options });
        assert_eq!(without.guard(), Bytes::ZERO);
        assert!(without.address().0.is_multiple_of(alignment) && without.is_portable());
        // At such a place the addresses behind the region are free.
        let (placement, extend_by) = (GPU_VMM_PLACE_RESTORABLE, Bytes::mib(64).0);
        let mut extended = build(RegionOptions { guard: 0, placement, extend_by, ..options });
        let reserved = extended.reserved();
        extended.grow_to(reserved + Bytes(1)).unwrap();
        assert_eq!(extended.reserved(), reserved + Bytes(extend_by), "it is extended by what was asked for");
    }
}
