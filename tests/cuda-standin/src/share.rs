//! Memory and multicast objects as file descriptors: `cuMemExportToShareableHandle`, `cuMemImportFromShareableHandle`.
//!
//! Measured: descriptor 0 cannot be imported; what was imported cannot be exported; each import has a handle of its own,
//! for the one memory; a descriptor that stands for none is answered by an unknown error.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given, handle_type};
use crate::code::{Answer, Code};
use crate::memory::Memory;
use crate::settings::settings;
use crate::state::{Object, State, state};
use crate::team::Team;
use crate::violation::refuse;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

fn check_kind(kind: u32) -> Answer {
    match kind {
        handle_type::FILE_DESCRIPTOR => Ok(()),
        handle_type::FABRIC => Err(Code::NOT_PERMITTED),
        _ => Err(refuse(Code::INVALID_VALUE, format_args!("kind of handle {kind}"))),
    }
}

impl State {
    fn export(&mut self, raw: u64, kind: u32, flags: u64) -> Answer<i32> {
        check_kind(kind)?;
        let (types, imported) = match &self.handle(raw)?.object {
            Object::Memory { memory, imported } => (memory.handle_types, *imported),
            Object::Multicast { team, imported } => {
                let (team, imported) = (*team, *imported);
                (self.teams.get(&team).ok_or(Code::UNKNOWN)?.handle_types(), imported)
            }
        };
        if flags != 0 || imported || types & kind == 0 {
            let what =
                format_args!("flags {flags:#x}, imported {imported}, created for kinds of handle {types:#x}");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        let descriptor = match self.handle(raw)?.object.clone() {
            Object::Memory { memory, .. } => {
                if let Some(held) = self.memories.get_mut(&memory.identity) {
                    held.exported = true;
                }
                memory.descriptor()
            }
            Object::Multicast { team, .. } => self.teams.get(&team).ok_or(Code::UNKNOWN)?.descriptor(),
        };
        Ok(descriptor.map_err(|_| Code::UNKNOWN)?.into_raw_fd())
    }

    fn import(&mut self, memory: Memory) -> u64 {
        let known = self.memories.get(&memory.identity).map(|held| Arc::clone(&held.memory));
        self.hold(known.unwrap_or_else(|| Arc::new(memory)), true)
    }
}

fn import(descriptor: usize, kind: u32) -> Answer<u64> {
    check_kind(kind)?;
    let number = i32::try_from(descriptor).ok().filter(|number| *number > 0);
    let number =
        number.ok_or_else(|| refuse(Code::INVALID_VALUE, format_args!("descriptor {descriptor}")))?;
    // SAFETY: the caller keeps it open during the call; if it is not open, the first use answers an error.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    // What it stands for, nobody but the driver can know.
    if let Some(team) = Team::import(file) {
        return Ok(state().hold_team(team, true));
    }
    let memory = Memory::import(file).ok_or(Code::UNKNOWN)?;
    if memory.device >= settings().gpus {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(state().import(memory))
}

cuda! {
    /// Gives a new descriptor of the memory behind a handle.
    fn cuMemExportToShareableHandle(out: Out<'_, i32>, handle: u64, kind: u32, flags: u64) {
        given(out, "shareableHandle")?.write(state().export(handle, kind, flags)?);
        Ok(())
    }

    /// Gives a new handle of the memory behind a descriptor, which is the pointer's value.
    fn cuMemImportFromShareableHandle(out: Out<'_, u64>, descriptor: *mut c_void, kind: u32) {
        given(out, "handle")?.write(import(descriptor.addr(), kind)?);
        Ok(())
    }
}
