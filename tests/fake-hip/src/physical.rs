//! Physical memory: `hipMemCreate`, `hipMemRelease`, the granularity.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{
    Answer, DESCRIPTOR, DEVICE, HOST, HOST_NODE, HipError, Location, PINNED, Properties, call, crash,
    current, require,
};
use crate::memory::{Memory, PAGE};
use crate::state::{Handle, Physical, Source, State};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// # Safety
///
/// As HIP has it: `handle` is null or for one handle, `properties` null or of HIP's structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemCreate(
    handle: *mut *mut c_void,
    size: usize,
    properties: *const Properties,
    flags: c_ulonglong,
) -> HipError {
    call(|state| {
        require(!handle.is_null() && !properties.is_null() && size != 0 && flags == 0)?;
        // SAFETY: not null, so what HIP's header says.
        let properties = unsafe { *properties };
        let raw = state.create(size, &properties)?;
        // SAFETY: as above.
        unsafe { *handle = without_provenance_mut(raw) };
        Ok(())
    })
}

/// # Safety
///
/// The handle is used by nothing else afterwards; a wrong one ends the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemRelease(handle: *mut c_void) -> HipError {
    call(|state| {
        require(!handle.is_null())?;
        state.let_go_of_handle("hipMemRelease", handle.addr());
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: `granularity` is null or for one size, `properties` null or of HIP's structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const Properties,
    option: c_int,
) -> HipError {
    call(|state| {
        require(!granularity.is_null() && !properties.is_null() && (0..=1).contains(&option))?;
        // SAFETY: not null, so what HIP's header says.
        let properties = unsafe { *properties };
        require(properties.kind == PINNED)?;
        let on_host = state.is_on_host(properties.location)?;
        require(on_host || state.device(properties.location).is_some())?;
        let answer = if option == 1 && state.bucket.recommends_2_mib { 2 << 20 } else { PAGE };
        // SAFETY: as above.
        unsafe { *granularity = answer };
        Ok(())
    })
}

impl State {
    /// The device of a location, where there is one.
    pub(crate) fn device(&self, location: Location) -> Option<usize> {
        usize::try_from(location.id).ok().filter(|device| *device < self.devices.len())
    }

    /// Whether a location is the host's, of those that this version knows.
    fn is_on_host(&self, location: Location) -> Answer<bool> {
        match location.kind {
            DEVICE => Ok(false),
            HOST if self.bucket.host_memory_is_the_devices || self.bucket.host_memory => Ok(true),
            HOST_NODE if self.bucket.host_memory => Ok(true),
            _ => Err(HipError::INVALID_VALUE),
        }
    }

    fn create(&mut self, size: usize, properties: &Properties) -> Answer<usize> {
        require(properties.kind == PINNED)?;
        let on_host = self.is_on_host(properties.location)?;
        let bad_device = if self.bucket.create_calls_bad_device_bad_value {
            HipError::INVALID_VALUE
        } else {
            HipError::INVALID_DEVICE
        };
        let said = if on_host { current() } else { self.device(properties.location).ok_or(bad_device)? };
        let shareable = properties.handle_kind == DESCRIPTOR && !self.bucket.nothing_is_shared;
        if properties.handle_kind != 0 && !shareable {
            return Err(HipError::NOT_SUPPORTED);
        }
        let device = if self.bucket.create_on_current { current() } else { said };
        if size as u64 > self.devices[device].total {
            return Err(HipError::OUT_OF_MEMORY);
        }
        require(size.is_multiple_of(PAGE))?;
        let number = if on_host && self.bucket.host_memory {
            self.add_memory(None, size)?
        } else {
            self.take_memory(device, size)?
        };
        Ok(self.add_handle(Handle {
            source: Source::Physical(number),
            device: said,
            shareable,
            imported: false,
            references: 1,
        }))
    }

    /// Physical memory of a device, with one reference.
    pub(crate) fn take_memory(&mut self, device: usize, size: usize) -> Answer<u64> {
        let there = &mut self.devices[device];
        if size as u64 > there.total - there.used {
            return Err(HipError::OUT_OF_MEMORY);
        }
        there.used += size as u64;
        self.add_memory(Some(device), size).inspect_err(|_| self.devices[device].used -= size as u64)
    }

    /// Physical memory of a device or of the host, with one reference.
    fn add_memory(&mut self, device: Option<usize>, size: usize) -> Answer<u64> {
        let memory = Memory::new(size).map_err(|_| HipError::OUT_OF_MEMORY)?;
        let number = self.number();
        self.physical.insert(number, Physical { memory: Arc::new(memory), device, references: 1 });
        Ok(number)
    }

    /// HIP's pointer for a new handle, which nobody may follow.
    pub(crate) fn add_handle(&mut self, handle: Handle) -> usize {
        const FIRST: u64 = 0x5a5a_0000_0000;
        let raw = (FIRST + self.number() * 64) as usize;
        self.handles.insert(raw, handle);
        raw
    }

    /// The memory of a number in use.
    pub(crate) fn memory(&self, number: u64) -> &Physical {
        match self.physical.get(&number) {
            Some(physical) => physical,
            None => crash(format_args!("physical memory {number} is used after it was freed")),
        }
    }
}
