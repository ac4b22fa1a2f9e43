//! Devices, versions and errors; plain allocations.

use crate::attribute;
use crate::c::{DEVICE, HipError, Location, Out, PointerAttributes, give, stop};
use crate::call::{CURRENT, LAST_ERROR, current};
use crate::copy::READ_WRITE;
use crate::handle::device_of;
use crate::memory::{self, UNIT};
use crate::settings::SETTINGS;
use crate::state::{Handle, Mapping, Reserved};
use crate::stream::null;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{Arc, OnceLock};

/// Returns the device with a number, which must exist.
fn device(id: c_int) -> usize {
    device_of("a function of devices", Location { kind: DEVICE, id }, false).unwrap_or(0)
}

hip!(hipInit, |_, _flags: c_uint| Ok(()));
hip!(hipRuntimeGetVersion, |_, version: Out<'_, c_int>| give(version, SETTINGS.version as c_int));
hip!(hipGetDeviceCount, |_, count: Out<'_, c_int>| give(count, SETTINGS.devices as c_int));
hip!(hipGetDevice, |_, device: Out<'_, c_int>| give(device, current() as c_int));
hip!(hipDeviceTotalMem, |_, size: Out<'_, usize>, _id: c_int| give(size, SETTINGS.memory as usize));

hip!(hipSetDevice, |_, id: c_int| {
    CURRENT.set(device(id));
    Ok(())
});

hip!(hipDeviceGetName, |_, name: Out<'_, [u8; 9]>, length: c_int, _id: c_int| {
    rule!(length >= 9, "hipDeviceGetName without space for a name");
    give(name, *b"fake HIP\0")
});

hip!(hipDeviceGetUuid, |_, uuid: Out<'_, [u8; 16]>, id: c_int| {
    let mut bytes = *b"fake-hip-GPU-000";
    bytes[15] += device(id) as u8;
    give(uuid, bytes)
});

hip!(hipMemGetInfo, |state, free: Out<'_, usize>, total: Out<'_, usize>| {
    // Numbers only rise.
    let lost = if SETTINGS.loses_memory { state.number() << 12 } else { 0 };
    give(free, (state.free_of(current()) - lost) as usize)?;
    give(total, SETTINGS.memory as usize)
});

hip!(hipDeviceGetAttribute, |_, value: Out<'_, c_int>, attribute: c_int, id: c_int| {
    give(value, attribute::of(attribute, device(id))?.into())
});

hip!(hipDeviceCanAccessPeer, |_, answer: Out<'_, c_int>, id: c_int, peer: c_int| {
    give(answer, (device(id) != device(peer)).into())
});

hip!(hipPointerGetAttributes, |state, to: Out<'_, PointerAttributes>, at: usize| {
    const ON_HOST: c_int = 1;
    const ON_DEVICE: c_int = 2;
    const NO_DEVICE: c_int = -2;
    let (kind, device) = match state.mapping(at) {
        Some((_, mapping)) => (ON_DEVICE, mapping.handle.device as c_int),
        None if state.is_locked(at) => (ON_HOST, 0),
        None => (0, NO_DEVICE),
    };
    give(to, PointerAttributes { kind, device, ..PointerAttributes::default() })
});

#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> HipError {
    LAST_ERROR.replace(HipError::SUCCESS)
}

/// Returns the name of a code.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(code: HipError) -> *const c_char {
    let name = match code {
        HipError::SUCCESS => c"hipSuccess",
        HipError::INVALID_VALUE => c"hipErrorInvalidValue",
        HipError::OUT_OF_MEMORY => c"hipErrorOutOfMemory",
        HipError::NOT_SUPPORTED => c"hipErrorNotSupported",
        _ => c"hipErrorUnknown",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(code: HipError) -> *const c_char {
    let text = match code {
        HipError::SUCCESS => c"no error",
        HipError::INVALID_VALUE => c"invalid argument",
        HipError::OUT_OF_MEMORY => c"out of memory",
        HipError::NOT_SUPPORTED => c"operation not supported",
        _ => c"unknown error",
    };
    text.as_ptr()
}

hip!(hipMalloc, |state, at: Out<'_, usize>, size: usize| {
    let (device, size) = (current(), size.next_multiple_of(UNIT));
    let memory = OnceLock::from(state.take_memory(Some(device), size)?);
    let base = memory::reserve(0, size)?;
    let handle = Arc::new(Handle { memory, descriptor: -1, device, exported_as: 0, raw: 0 });
    let mut mapping = Mapping::new(size, handle, 0);
    mapping.access[device] = READ_WRITE;
    let (range, mappings) = (base..base + size, BTreeMap::from([(base, mapping)]));
    state.places.insert(base, Reserved { range, is_plain: true, mappings, ..Reserved::default() });
    give(at, base)
});

hip!(hipFree, |state, at: usize| {
    (0..SETTINGS.devices).try_for_each(|device| state.finish(null(device)))?;
    match state.places.remove(&at) {
        Some(place) if place.is_plain => memory::free(at, place.range.len()),
        _ => stop(format_args!("hipFree({at:#x}), which hipMalloc did not return")),
    }
    Ok(())
});
