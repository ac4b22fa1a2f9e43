//! Physical memory: creates, releases and shares it.

use crate::c::{Answer, DEVICE, HOST, HOST_NODE, HipError, Location, Out, Properties, give, stop};
use crate::call::current;
use crate::memory::{self, PAGE};
use crate::settings::{SETTINGS, bucket};
use crate::state::Handle;
use std::ffi::{c_int, c_ulonglong};
use std::mem::forget;
use std::sync::{Arc, OnceLock};

/// `hipMemAllocationTypePinned`; `hipMemHandleTypePosixFileDescriptor`.
const PINNED: c_int = 1;
const DESCRIPTOR: c_int = 1;

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
    rule!(matches!(handle_kind, 0 | DESCRIPTOR), "hipMemCreate for handles of type {handle_kind}");
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
        shareable: handle_kind == DESCRIPTOR,
    });
    give(handle, raw)
});

hip!(hipMemRelease, |state, handle: usize| {
    state.handle("hipMemRelease", handle);
    state.handles.remove(&handle);
    Ok(())
});

hip!(hipMemGetAllocationGranularity, |_,
                                      granularity: Out<'_, usize>,
                                      properties: Option<&Properties>,
                                      option: c_int| {
    rule!(option == 0, "hipMemGetAllocationGranularity for something other than the minimum");
    checked("hipMemGetAllocationGranularity", properties);
    give(granularity, SETTINGS.granularity as usize)
});

hip!(hipMemExportToShareableHandle, |state,
                                     to: Out<'_, c_int>,
                                     handle: usize,
                                     kind: c_int,
                                     flags: c_ulonglong| {
    let handle = state.handle("hipMemExportToShareableHandle", handle);
    let is_right = handle.shareable && kind == DESCRIPTOR && flags == 0;
    rule!(is_right, "hipMemExportToShareableHandle of memory that was not created for it");
    if handle.descriptor >= 0 && bucket().import_is_not_exported {
        return Err(HipError::INVALID_VALUE);
    }
    give(to, handle.memory.get().ok_or(HipError::INVALID_VALUE)?.exported()?)
});

hip!(hipMemImportFromShareableHandle, |state, handle: Out<'_, usize>, from: usize, kind: c_int| {
    rule!(kind == DESCRIPTOR, "hipMemImportFromShareableHandle of handles of type {kind}");
    let descriptor = descriptor(from)?;
    let memory = match bucket().import_reads_later {
        true => OnceLock::new(),
        false => OnceLock::from(state.memory_of(descriptor)?),
    };
    if bucket().release_frees_nothing || bucket().import_leaks {
        forget(memory.get().cloned());
    }
    // HIP does not check whose memory it is.
    let raw = state.add_handle(Handle { memory, descriptor, device: current(), shareable: true });
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
