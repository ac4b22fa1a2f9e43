//! Queries of addresses: `cuMemGetAddressRange`, `cuPointerGetAttribute`, and descriptors of ranges for other drivers.
//!
//! Measured: an address's range is its mapping, not its reservation. A descriptor for other drivers can cover several handles
//! of one device, across reservations as well, if the thread has a context. Compressible memory has none. Such a descriptor
//! has the right size here and not the memory's bytes, since a memfd cannot show parts of several.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, access, given};
use crate::code::{Answer, Code};
use crate::context;
use crate::memory::Memory;
use crate::settings::MAX_DEVICES;
use crate::state::{Object, State, state};
use crate::violation::refuse;
use crate::work::work;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;
/// The host's page size.
const PAGE: u64 = 4096;

/// The memory at an address.
struct There {
    base: u64,
    size: u64,
    memory: Arc<Memory>,
    /// The access of each device.
    access: [u32; MAX_DEVICES],
    is_mapping: bool,
    imported: bool,
    managed: bool,
}

impl State {
    fn there(&self, at: u64) -> Option<There> {
        if let Some((base, mapping)) = self.mapping(at) {
            let Object::Memory { memory, imported } = &self.handles.get(&mapping.handle)?.object else {
                return None;
            };
            let (memory, access) = (Arc::clone(memory), mapping.access);
            return Some(There {
                base,
                size: mapping.size,
                memory,
                access,
                is_mapping: true,
                imported: *imported,
                managed: false,
            });
        }
        let (base, plain) = self.plain(at)?;
        let mut allowed = [access::NONE; MAX_DEVICES];
        allowed[plain.device] = access::READ_WRITE;
        let memory = Arc::clone(&plain.memory);
        Some(There {
            base,
            size: plain.size,
            memory,
            access: allowed,
            is_mapping: false,
            imported: false,
            managed: plain.managed,
        })
    }

    /// Returns whether a range is backed throughout by memory of one location.
    fn is_in_one_place(&self, at: u64, size: u64) -> bool {
        let Some(first) = self.there(at) else { return false };
        let mut next = at;
        while next < at + size {
            match self.there(next) {
                Some(there) if there.memory.kind.home == first.memory.kind.home => {
                    next = there.base + there.size
                }
                _ => return false,
            }
        }
        true
    }
}

fn descriptor(at: u64, size: u64) -> Answer<OwnedFd> {
    let is_right = size != 0 && size.is_multiple_of(PAGE) && at.is_multiple_of(PAGE);
    let end = at.checked_add(size).filter(|_| is_right);
    if end.is_none() || !state().is_in_one_place(at, size) {
        let what = format_args!("{size:#x} at {at:#x}: not whole pages, or not all memory of one device");
        return Err(refuse(Code::INVALID_VALUE, what));
    }
    let kind = state().there(at).map(|there| there.memory.kind).ok_or(Code::INVALID_VALUE)?;
    if kind.home.device().is_none() {
        return Err(refuse(Code::INVALID_VALUE, format_args!("memory of the host at {at:#x}")));
    }
    if kind.compression != 0 {
        return Err(Code::UNKNOWN);
    }
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("fake-cuda, for other drivers", flags);
    let sized = file.and_then(|file| rustix::fs::ftruncate(&file, size).map(|()| file));
    sized.map_err(|_| Code::OUT_OF_MEMORY)
}

/// An attribute's value, of four bytes or of eight.
enum Value {
    Four(u32),
    Eight(u64),
}

impl There {
    fn attribute(&self, number: u32, at: u64) -> Answer<Value> {
        let device = self.memory.kind.home.device();
        Ok(match number {
            2 => Value::Four(if device.is_some() { 2 } else { 1 }), // MEMORY_TYPE: device, host
            3 => Value::Eight(at),                                  // DEVICE_POINTER
            7 => Value::Eight(self.memory.identity),                // BUFFER_ID
            8 => Value::Four(self.managed.into()),                  // IS_MANAGED
            9 => Value::Four(device.unwrap_or(0) as u32),           // DEVICE_ORDINAL
            10 => Value::Four((!self.is_mapping && !self.managed).into()), // IS_LEGACY_CUDA_IPC_CAPABLE
            11 | 19 => Value::Eight(self.base),                     // RANGE_START_ADDR, MAPPING_BASE_ADDR
            12 | 18 => Value::Eight(self.size),                     // RANGE_SIZE, MAPPING_SIZE
            13 => Value::Four(1),                                   // MAPPED
            14 if self.imported => Value::Eight(0),                 // ALLOWED_HANDLE_TYPES
            14 => Value::Eight(self.memory.kind.handle_types.into()),
            15 => Value::Four(self.memory.kind.rdma.into()), // IS_GPU_DIRECT_RDMA_CAPABLE
            16 => Value::Four(self.access[device.unwrap_or(0)]), // ACCESS_FLAGS
            20 => Value::Eight(self.memory.identity),        // MEMORY_BLOCK_ID
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}

impl Value {
    /// Writes the value.
    ///
    /// # Safety
    ///
    /// The pointer must be valid for writing it.
    unsafe fn write(self, to: *mut u8) {
        // SAFETY: the caller's guarantee; bytes need no alignment.
        unsafe {
            match self {
                Self::Four(value) => to.cast::<u32>().write_unaligned(value),
                Self::Eight(value) => to.cast::<u64>().write_unaligned(value),
            }
        }
    }
}

cuda! {
    /// Returns the mapping or the allocation that contains an address.
    fn cuMemGetAddressRange_v2(base: Out<'_, u64>, size: Out<'_, usize>, at: u64) {
        // Measured: without a context it is refused, also for memory that is mapped.
        context::current(&work())?;
        let there = state().there(at).ok_or(Code::NOT_FOUND)?;
        base.map(|out| out.write(there.base));
        size.map(|out| out.write(there.size as usize));
        Ok(())
    }

    /// Returns a descriptor of a range, for other drivers.
    fn cuMemGetHandleForAddressRange(out: Out<'_, i32>, at: u64, size: usize, kind: u32, flags: u64) {
        let out = given(out, "handle")?;
        if kind != DMA_BUF || flags > 1 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("kind {kind}, flags {flags:#x}")));
        }
        context::current(&work())?;
        // Of addresses on the PCIe bus; support for it has never been observed.
        if flags == 1 {
            return Err(Code::NOT_SUPPORTED);
        }
        out.write(descriptor(at, size as u64)?.into_raw_fd());
        Ok(())
    }

    /// Returns one attribute of an address.
    fn cuPointerGetAttribute(to: *mut u8, number: u32, at: u64) {
        let to = given((!to.is_null()).then_some(to), "data")?;
        let value = state().there(at).ok_or(Code::INVALID_VALUE)?.attribute(number, at)?;
        // SAFETY: the caller guarantees space for the attribute.
        unsafe { value.write(to) };
        Ok(())
    }

    /// Returns several attributes; zeros for an address of no memory.
    fn cuPointerGetAttributes(count: u32, numbers: *const u32, to: *const *mut u8, at: u64) {
        if count == 0 || numbers.is_null() || to.is_null() {
            return Err(refuse(Code::INVALID_VALUE, format_args!("{count} attributes, or a null pointer")));
        }
        let there = state().there(at);
        for place in 0..count as usize {
            // SAFETY: the caller guarantees `count` of each.
            let (number, to) = unsafe { (*numbers.add(place), *to.add(place)) };
            let value = match &there {
                Some(there) => there.attribute(number, at)?,
                None => Value::Four(0),
            };
            // SAFETY: the caller guarantees space for the attribute.
            unsafe { value.write(to) };
        }
        Ok(())
    }
}
