//! Physical memory: creates, releases and shares it.

use crate::attribute::has_fabric;
use crate::c::{Answer, DEVICE, HOST, HOST_NODE, HipError, Location, Out, Properties, give, stop};
use crate::call::current;
use crate::memory::{self, PAGE};
use crate::settings::{SETTINGS, bucket};
use crate::state::Handle;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::mem::{MaybeUninit, forget};
use std::sync::{Arc, OnceLock};

/// `hipMemAllocationTypePinned`; `hipMemHandleTypePosixFileDescriptor`, `hipMemHandleTypeFabric`.
const PINNED: c_int = 1;
const DESCRIPTOR: c_int = 1;
const FABRIC: c_int = 8;

/// `hipMemFabricHandle_t`. The first bytes are the number of the memory's file.
#[repr(C)]
#[derive(Clone, Copy)]
struct FabricHandle([u8; 64]);

/// Returns the device of a location, `None` for the host. Refuses locations that this version does not know.
pub(crate) fn device_of(function: &str, Location { kind, id }: Location, host: bool) -> Option<usize> {
    match kind {
        DEVICE if (0..SETTINGS.devices as c_int).contains(&id) => Some(id as usize),
        HOST | HOST_NODE if host => None,
        _ => stop(format_args!(
            "{function} for location {id} of type {kind}, which this version does not have"
        )),
    }
}

fn checked(function: &str, properties: Option<&Properties>) -> (Option<usize>, c_int) {
    let Some(properties) = properties else { stop(format_args!("{function} without properties")) };
    rule!(properties.kind == PINNED, "{function} for memory of type {}", properties.kind);
    (device_of(function, properties.location, bucket().host_memory), properties.handle_kind)
}

hip!(hipMemCreate, |state,
                    handle: Out<'_, usize>,
                    size: usize,
                    properties: Option<&Properties>,
                    flags: c_ulonglong| {
    rule!(flags == 0 && size != 0 && size.is_multiple_of(PAGE), "hipMemCreate of {size:#x}");
    let (location, handle_kind) = checked("hipMemCreate", properties);
    let has_fabric = location.is_some_and(has_fabric);
    let is_known = matches!(handle_kind, 0 | DESCRIPTOR) || handle_kind == FABRIC && has_fabric;
    rule!(is_known, "hipMemCreate for handles of type {handle_kind}");
    if handle_kind == DESCRIPTOR && bucket().nothing_is_shared {
        return Err(HipError::NOT_SUPPORTED);
    }
    let owner = if bucket().create_on_current { location.map(|_| current()) } else { location };
    let memory = state.take_memory(owner, size)?;
    if bucket().release_frees_nothing {
        forget(Arc::clone(&memory));
    }
    let raw = state.add_handle(Handle {
        memory: OnceLock::from(memory),
        descriptor: -1,
        device: location.unwrap_or_else(current),
        exported_as: handle_kind,
        raw: 0,
    });
    give(handle, raw)
});

hip!(hipMemRelease, |state, handle: usize| {
    state.handle("hipMemRelease", handle);
    match state.retains.get_mut(&handle).filter(|more| **more > 0) {
        Some(more) => *more -= 1,
        None => drop(state.handles.remove(&handle)),
    }
    Ok(())
});

hip!(hipMemRetainAllocationHandle, |state, handle: Out<'_, usize>, at: usize| {
    let mapped = state.mapping(at).map(|(_, mapping)| Arc::clone(&mapping.handle));
    let mapped = mapped.ok_or(HipError::INVALID_VALUE)?;
    let raw = mapped.raw;
    if raw == 0 {
        rule!(!bucket().retain_of_plain_crashes, "hipMemRetainAllocationHandle follows a null pointer");
        return Err(HipError::INVALID_VALUE);
    }
    if !bucket().retain_does_not_count && state.handles.insert(raw, mapped).is_some() {
        *state.retains.entry(raw).or_default() += 1;
    }
    give(handle, raw)
});

hip!(hipMemGetAllocationPropertiesFromHandle, |state, to: Out<'_, Properties>, handle: usize| {
    let handle = state.handle("hipMemGetAllocationPropertiesFromHandle", handle);
    let owner = handle.memory.get().map_or(Some(handle.device), |memory| memory.device);
    let location = match owner {
        Some(device) => Location { kind: DEVICE, id: device as c_int },
        None => Location { kind: HOST, id: 0 },
    };
    give(to, Properties::new(PINNED, handle.exported_as, location))
});

hip!(hipMemGetAddressRange, |state, base: Out<'_, usize>, size: Out<'_, usize>, at: usize| {
    let (start, mapping) = state.mapping(at).ok_or(HipError::NOT_FOUND)?;
    give(base, start)?;
    give(size, mapping.size)
});

hip!(hipMemGetAllocationGranularity, |_,
                                      granularity: Out<'_, usize>,
                                      properties: Option<&Properties>,
                                      option: c_int| {
    rule!(
        [0, 1].contains(&option),
        "hipMemGetAllocationGranularity for neither the minimum nor the recommended"
    );
    checked("hipMemGetAllocationGranularity", properties);
    give(granularity, SETTINGS.granularity as usize)
});

hip!(hipMemExportToShareableHandle, |state,
                                     to: *mut c_void,
                                     handle: usize,
                                     kind: c_int,
                                     flags: c_ulonglong| {
    let handle = state.handle("hipMemExportToShareableHandle", handle);
    let is_right = kind != 0 && handle.exported_as == kind && flags == 0;
    rule!(is_right, "hipMemExportToShareableHandle of memory that was not created for it");
    if handle.descriptor >= 0 && bucket().import_is_not_exported {
        return Err(HipError::INVALID_VALUE);
    }
    let memory = handle.memory.get().ok_or(HipError::INVALID_VALUE)?;
    if kind == FABRIC {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&memory.number().to_ne_bytes());
        // SAFETY: the caller has room for such a handle, or passes null.
        return give(unsafe { to.cast::<MaybeUninit<FabricHandle>>().as_mut() }, FabricHandle(bytes));
    }
    // SAFETY: the caller has room for a descriptor, or passes null.
    give(unsafe { to.cast::<MaybeUninit<c_int>>().as_mut() }, memory.exported()?)
});

hip!(hipMemImportFromShareableHandle, |state, handle: Out<'_, usize>, from: usize, kind: c_int| {
    if kind == FABRIC {
        // SAFETY: the caller passes the address of such a handle.
        let FabricHandle(bytes) = unsafe { *std::ptr::with_exposed_provenance::<FabricHandle>(from) };
        let number = bytes[..8].try_into().map(u64::from_ne_bytes).unwrap_or_default();
        let memory = OnceLock::from(state.memory_with(number).ok_or(HipError::INVALID_VALUE)?);
        // It counts as imported, and no descriptor is read for it.
        let raw = state.add_handle(Handle {
            memory,
            descriptor: 0,
            device: current(),
            exported_as: FABRIC,
            raw: 0,
        });
        return give(handle, raw);
    }
    rule!(kind == DESCRIPTOR, "hipMemImportFromShareableHandle of handles of type {kind}");
    let descriptor = descriptor(from)?;
    let memory = match bucket().import_reads_later {
        true => OnceLock::new(),
        false => match state.memory_of(descriptor) {
            Err(_) if bucket().import_checks_nothing => OnceLock::new(),
            memory => OnceLock::from(memory?),
        },
    };
    if bucket().release_frees_nothing || bucket().import_leaks {
        forget(memory.get().cloned());
    }
    // HIP does not check whose memory it is.
    let raw =
        state.add_handle(Handle { memory, descriptor, device: current(), exported_as: DESCRIPTOR, raw: 0 });
    give(handle, raw)
});

/// Returns the descriptor from the argument.
fn descriptor(from: usize) -> Answer<c_int> {
    if bucket().import_by_pointer {
        return Ok(memory::peek(from).unwrap_or_else(|| {
            stop(format_args!(
                "hipMemImportFromShareableHandle reads a descriptor through the pointer {from:#x}"
            ))
        }));
    }
    c_int::try_from(from).ok().filter(|descriptor| *descriptor != 0).ok_or(HipError::INVALID_VALUE)
}
