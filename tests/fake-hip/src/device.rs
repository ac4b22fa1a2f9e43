//! Devices, versions and errors; plain allocations.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{
    self, Answer, HipError, Location, PointerAttributes, call, current, require, set_current, take_last_error,
};
use crate::memory;
use crate::state::{Mapping, Reservation, Source, State};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};

/// `hipDeviceAttributeVirtualMemoryManagementSupported`, the same number in all versions.
const VIRTUAL_MEMORY: c_int = 89;
/// `hipDeviceAttributeIsLargeBar`.
const LARGE_BAR: c_int = 10011;

/// Writes an answer to where the caller wants it.
///
/// # Safety
///
/// `to` is null or for one `T`.
unsafe fn give<T>(to: *mut T, value: T) -> Answer {
    require(!to.is_null())?;
    // SAFETY: not null, so for one `T`.
    unsafe { to.write(value) };
    Ok(())
}

impl State {
    fn ordinal(&self, id: c_int) -> Answer<usize> {
        self.device(Location { kind: c::DEVICE, id }).ok_or(HipError::INVALID_DEVICE)
    }
}

#[unsafe(no_mangle)]
extern "C" fn hipInit(flags: c_uint) -> HipError {
    call(|_| require(flags == 0))
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one number.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> HipError {
    // SAFETY: the caller's promise.
    call(|state| unsafe { give(version, state.version as c_int) })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one number.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> HipError {
    // SAFETY: the caller's promise.
    call(|state| unsafe { give(count, state.devices.len() as c_int) })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one number.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> HipError {
    // SAFETY: the caller's promise.
    call(|_| unsafe { give(device, current() as c_int) })
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(device: c_int) -> HipError {
    call(|state| {
        set_current(state.ordinal(device)?);
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: `name` is null or for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> HipError {
    call(|state| {
        let device = state.ordinal(device)?;
        require(!name.is_null() && length > 0)?;
        let text = format!("fake HIP {device}");
        let count = text.len().min(length as usize - 1);
        // SAFETY: the caller's promise; one byte is left for the end.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
            name.add(count).write(0);
        }
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for sixteen bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> HipError {
    call(|state| {
        let device = state.ordinal(device)?;
        let mut bytes = *b"fake-hip-GPU-000";
        bytes[15] += device as u8;
        // SAFETY: the caller's promise.
        unsafe { give(uuid, bytes) }
    })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one size.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceTotalMem(size: *mut usize, device: c_int) -> HipError {
    call(|state| {
        let device = state.ordinal(device)?;
        // SAFETY: the caller's promise.
        unsafe { give(size, state.devices[device].total as usize) }
    })
}

/// # Safety
///
/// As HIP has it: the pointers are null or for one size each.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> HipError {
    call(|state| {
        let device = &state.devices[current()];
        // SAFETY: the caller's promise.
        unsafe {
            give(free, (device.total - device.used) as usize)?;
            give(total, device.total as usize)
        }
    })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one number.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> HipError {
    call(|state| {
        let device = state.ordinal(device)?;
        require(matches!(attribute, VIRTUAL_MEMORY | LARGE_BAR))?;
        let answer = attribute != VIRTUAL_MEMORY || device >= state.without_vmm;
        // SAFETY: the caller's promise.
        unsafe { give(value, answer.into()) }
    })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one number.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceCanAccessPeer(answer: *mut c_int, device: c_int, peer: c_int) -> HipError {
    call(|state| {
        let (device, peer) = (state.ordinal(device)?, state.ordinal(peer)?);
        // SAFETY: the caller's promise.
        unsafe { give(answer, c_int::from(device != peer)) }
    })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipPointerGetAttributes(to: *mut PointerAttributes, at: *const c_void) -> HipError {
    const ON_HOST: c_int = 1;
    const ON_DEVICE: c_int = 2;
    const NO_DEVICE: c_int = -2;
    call(|state| {
        let found = state.place(at.addr()).and_then(|place| place.mapping(at.addr()));
        let (kind, device, device_pointer) = match found {
            Some((_, mapping)) => (ON_DEVICE, mapping.device as c_int, at.cast_mut()),
            None if state.is_locked(at.addr()) => (ON_HOST, 0, at.cast_mut()),
            None => (0, NO_DEVICE, null_mut()),
        };
        let host_pointer = null_mut();
        let answer =
            PointerAttributes { kind, device, device_pointer, host_pointer, is_managed: 0, flags: 0 };
        // SAFETY: the caller's promise.
        unsafe { give(to, answer) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> HipError {
    take_last_error()
}

/// The name of a code, which is all the text that there is of it.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(code: HipError) -> *const c_char {
    let name = match code {
        HipError::SUCCESS => c"hipSuccess",
        HipError::INVALID_VALUE => c"hipErrorInvalidValue",
        HipError::OUT_OF_MEMORY => c"hipErrorOutOfMemory",
        HipError::INVALID_DEVICE => c"hipErrorInvalidDevice",
        HipError::INVALID_HANDLE => c"hipErrorInvalidHandle",
        HipError::NOT_SUPPORTED => c"hipErrorNotSupported",
        _ => c"hipErrorUnknown",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(code: HipError) -> *const c_char {
    hipGetErrorName(code)
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one address.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMalloc(at: *mut *mut c_void, size: usize) -> HipError {
    call(|state| {
        require(!at.is_null())?;
        let device = current();
        let size = size.next_multiple_of(memory::PAGE);
        let number = state.take_memory(device, size)?;
        let base = memory::reserve(None, size).map_err(|_| HipError::OUT_OF_MEMORY)?;
        let mut access = vec![0; state.devices.len()];
        access[device] = 3;
        let mapping = Mapping {
            size,
            handle: 0,
            source: Source::Physical(number),
            device,
            imported: false,
            access,
            host_access: false,
            is_corrupt: false,
            order: 0,
        };
        let mut place = Reservation::new(base, size);
        place.mappings.insert(base, mapping);
        state.plain.insert(base, place);
        // SAFETY: not null, so for one address.
        unsafe { give(at, without_provenance_mut(base)) }
    })
}

/// # Safety
///
/// Nothing uses the memory any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipFree(at: *mut c_void) -> HipError {
    call(|state| {
        for device in 0..state.devices.len() {
            state.finish(device);
        }
        let base = at.addr();
        if at.is_null() {
            return Ok(());
        }
        if let Some(place) = state.plain.remove(&base) {
            for mapping in place.mappings.values() {
                if let Source::Physical(number) = mapping.source {
                    state.let_go_of_memory(number);
                }
            }
            memory::free(base, place.size);
            return Ok(());
        }
        // Mapped memory is taken for an allocation: HIP's object is gone, what is below stays.
        let reservation = state.reservation_mut(base).ok_or(HipError::INVALID_VALUE)?;
        reservation.mappings.remove(&base).ok_or(HipError::INVALID_VALUE)?;
        reservation.lost_mappings += 1;
        Ok(())
    })
}
