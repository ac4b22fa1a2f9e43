//! Memory and multicast objects as file descriptors, memory as fabric handles: `cuMemExportToShareableHandle`,
//! `cuMemImportFromShareableHandle`.
//!
//! Measured: descriptor 0 cannot be imported; imported memory cannot be exported; each import has its own handle of the same
//! memory; a descriptor of something else causes `CUDA_ERROR_UNKNOWN`.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given, handle_type};
use crate::code::{Answer, Code};
use crate::device::check_virtual_memory;
use crate::fabric;
use crate::memory::{Home, Memory};
use crate::settings::settings;
use crate::state::{Object, State, state};
use crate::team::Team;
use crate::violation::refuse;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

fn check_kind(kind: u32) -> Answer {
    match kind {
        handle_type::FILE_DESCRIPTOR => Ok(()),
        handle_type::FABRIC => fabric::check(),
        _ => Err(refuse(Code::INVALID_VALUE, format_args!("handle type {kind}"))),
    }
}

/// An exported object.
enum Exported {
    Descriptor(OwnedFd),
    Fabric(fabric::Bytes),
}

impl State {
    fn export(&mut self, raw: u64, kind: u32, flags: u64) -> Answer<Exported> {
        check_kind(kind)?;
        let (types, imported) = match &self.handle(raw)?.object {
            Object::Memory { memory, imported } => (memory.kind.handle_types, *imported),
            Object::Multicast { team, imported } => {
                let (team, imported) = (*team, *imported);
                (self.teams.get(&team).ok_or(Code::UNKNOWN)?.handle_types(), imported)
            }
        };
        if flags != 0 || imported || types & kind == 0 {
            let what =
                format_args!("flags {flags:#x}, imported {imported}, created with handle types {types:#x}");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        let descriptor = match self.handle(raw)?.object.clone() {
            Object::Memory { memory, .. } if kind == handle_type::FABRIC => {
                return Ok(Exported::Fabric(fabric::name(&memory)));
            }
            // A descriptor keeps the memory alive as a handle does.
            Object::Memory { memory, .. } => {
                if let Some(held) = self.memories.get_mut(&memory.identity) {
                    held.exported = true;
                }
                memory.descriptor()
            }
            Object::Multicast { team, .. } => self.teams.get(&team).ok_or(Code::UNKNOWN)?.descriptor(),
        };
        descriptor.map(Exported::Descriptor).map_err(|_| Code::UNKNOWN)
    }

    fn import(&mut self, memory: Memory) -> u64 {
        let known = self.memories.get(&memory.identity).map(|held| Arc::clone(&held.memory));
        self.hold(known.unwrap_or_else(|| Arc::new(memory)), true)
    }
}

fn import(shareable: *mut c_void, kind: u32) -> Answer<u64> {
    check_kind(kind)?;
    let is_for_fabric = kind == handle_type::FABRIC;
    let mut memory = if is_for_fabric {
        let bytes = given((!shareable.is_null()).then_some(shareable), "shareableHandle")?;
        // SAFETY: the caller guarantees 64 bytes; they need no alignment.
        let bytes = unsafe { bytes.cast::<fabric::Bytes>().read_unaligned() };
        fabric::find(&bytes).ok_or(Code::INVALID_VALUE)?
    } else {
        let number = i32::try_from(shareable.addr()).ok().filter(|number| *number > 0);
        let number = number
            .ok_or_else(|| refuse(Code::INVALID_VALUE, format_args!("descriptor {}", shareable.addr())))?;
        // SAFETY: the caller keeps it open during the call; if it is not open, the first use returns an error.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Only the driver can tell what a descriptor is.
        if let Some(team) = Team::import(file) {
            return Ok(state().hold_team(team, true));
        }
        Memory::import(file).ok_or(Code::UNKNOWN)?
    };
    if let Some(device) = memory.kind.home.device().filter(|device| *device >= settings().gpus) {
        // The other machines of a fabric have devices of their own.
        if !is_for_fabric {
            return Err(Code::NOT_SUPPORTED);
        }
        memory.kind.home = Home::Elsewhere(device);
    }
    Ok(state().import(memory))
}

cuda! {
    /// Creates a descriptor of the object behind a handle, or returns its fabric handle.
    fn cuMemExportToShareableHandle(out: *mut u8, handle: u64, kind: u32, flags: u64) {
        let out = given((!out.is_null()).then_some(out), "shareableHandle")?;
        // SAFETY: the caller guarantees space for this handle type; no alignment is assumed.
        unsafe {
            match state().export(handle, kind, flags)? {
                Exported::Fabric(bytes) => out.cast::<fabric::Bytes>().write_unaligned(bytes),
                Exported::Descriptor(descriptor) => {
                    out.cast::<i32>().write_unaligned(descriptor.into_raw_fd());
                }
            }
        }
        Ok(())
    }

    /// Creates a handle of the object behind a descriptor, which is the pointer's value, or of the memory of a fabric handle,
    /// to which it points.
    fn cuMemImportFromShareableHandle(out: Out<'_, u64>, shareable: *mut c_void, kind: u32) {
        check_virtual_memory()?;
        given(out, "handle")?.write(import(shareable, kind)?);
        Ok(())
    }
}
