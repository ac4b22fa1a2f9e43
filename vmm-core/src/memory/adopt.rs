//! Physical memory that other code of this process has created and mapped.
#![allow(unsafe_code)]

use super::PhysicalMemory;
use super::physical::Origin;
use super::registry::own_range;
use crate::driver::{Backend, Handle, check_virtual_memory};
use crate::trace::span;
use crate::types::{Address, Detail, Error, Operation, Result};
use std::sync::Weak;

impl<B: Backend> PhysicalMemory<B> {
    /// Takes a reference to the physical memory that other code of this process has mapped at an address: PyTorch's expandable
    /// segments, NCCL's buffers, or a program that calls the driver itself.
    ///
    /// The result is memory like any other: it can be mapped in a [`Region`](crate::Region), and lives until its last clone and its
    /// last mapping are gone, whether or not the other code has released it. [Size](PhysicalMemory::size) and
    /// [properties](PhysicalMemory::properties) are those that the driver reports. The address may lie anywhere in the mapping; the
    /// memory is always all of it. CUDA reports neither handle types nor `remote_dma` of memory that the other code has imported. For
    /// host memory, [`Properties::device`](crate::Properties::device) is device 0.
    ///
    /// The other code keeps its own mapping. So a region with such memory is not suspended by [`suspend`](crate::Region::suspend),
    /// since that would free nothing; [`suspend_into`](crate::Region::suspend_into) leaves the memory in place. Each call returns
    /// memory with an [identifier](PhysicalMemory::id) of its own, also for the same address: clone the first result instead.
    ///
    /// CUDA: `cuMemRetainAllocationHandle`, `cuMemGetAllocationPropertiesFromHandle`, `cuMemGetAddressRange`; HIP, from 7.15 on:
    /// `hipMemRetainAllocationHandle`, `hipMemGetAllocationPropertiesFromHandle`, `hipMemGetAddressRange`.
    ///
    /// # Safety
    ///
    /// No other thread unmaps the memory at the address during the call. The other code can still use the memory: the caller orders
    /// its own work after that use, as for memory of another process.
    ///
    /// # Errors
    ///
    /// [`Detail::NoMemoryAt`] for a plain allocation (`cuMemAlloc`, `hipMalloc`), for host memory that is not the driver's, and where
    /// nothing is mapped. [`Detail::Unsupported`] for an address in a region of this backend, whose memory
    /// [`Region::mapping_at`](crate::Region::mapping_at) returns, and on a driver that cannot do this safely: HIP before 7.15.
    /// [`Detail::Unaligned`] for memory whose size is not a multiple of the granularity. [`Detail::NoSuchDevice`] for memory of a
    /// device that this process does not see. Any other error that the driver returns.
    pub unsafe fn adopt(backend: &B, address: Address) -> Result<Self> {
        let operation = Operation::AdoptMemory;
        if let Some(region) = own_range(backend, address) {
            let reason = format!(
                "{address} lies in the region {region} of this backend; clone the memory that Region::mapping_at returns"
            );
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        span!(AdoptMemory, address = %address);
        // SAFETY: the caller guarantees that the memory stays mapped during the call.
        let handle = unsafe { backend.adopt(address) }?;
        let (size, properties) = (handle.size(), handle.properties());
        check_virtual_memory(operation, backend, properties.device)?;
        let granularity = backend.granularity_of(operation, &properties)?;
        if size.is_zero() || !granularity.divides(size) {
            return Err(Error::new(
                operation,
                Detail::Unaligned { what: "size", value: size.0, granularity },
            ));
        }
        Ok(Self::own(backend, handle, granularity, Origin::Adopted, Weak::new()))
    }
}
