//! Memory as a file descriptor: `hipMemExportToShareableHandle`, `hipMemImportFromShareableHandle`,
//! `hipMemGetHandleForAddressRange`.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{Answer, DESCRIPTOR, HipError, call, crash, current, require};
use crate::memory::{self, Memory};
use crate::state::{Handle, Physical, Source, State};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// # Safety
///
/// As HIP has it: `to` is null or for one `int`.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemExportToShareableHandle(
    to: *mut c_void,
    handle: *mut c_void,
    kind: c_int,
    flags: c_ulonglong,
) -> HipError {
    call(|state| {
        if to.is_null() && state.bucket.export_to_null_crashes {
            crash(format_args!("hipMemExportToShareableHandle writes through a null pointer"));
        }
        require(!to.is_null() && !handle.is_null() && kind == DESCRIPTOR && flags == 0)?;
        let no_imports = state.bucket.no_export_of_imports;
        let handle = state.handle("hipMemExportToShareableHandle", handle.addr());
        require(handle.shareable && !(handle.imported && no_imports))?;
        let Source::Physical(number) = handle.source else { return Err(HipError::INVALID_VALUE) };
        let fd = state.memory(number).memory.descriptor().map_err(|_| HipError::INVALID_VALUE)?;
        // SAFETY: not null, so for one `int`.
        unsafe { *to.cast::<c_int>() = fd };
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: `handle` is for one handle; `from` is what the version takes.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemImportFromShareableHandle(
    handle: *mut *mut c_void,
    from: *mut c_void,
    kind: c_int,
) -> HipError {
    call(|state| {
        require(!handle.is_null() && !from.is_null() && kind == DESCRIPTOR)?;
        let fd = if state.bucket.import_by_pointer {
            if !memory::is_readable(from.addr(), size_of::<c_int>()) {
                crash(format_args!(
                    "hipMemImportFromShareableHandle reads a descriptor through the pointer {from:p}"
                ));
            }
            // SAFETY: it can be read, as was just tried.
            unsafe { from.cast::<c_int>().read_unaligned() }
        } else {
            c_int::try_from(from.addr()).map_err(|_| HipError::INVALID_VALUE)?
        };
        let raw = state.import(fd)?;
        // SAFETY: not null, so for one handle.
        unsafe { *handle = without_provenance_mut(raw) };
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: `to` is null or for one `int`.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetHandleForAddressRange(
    to: *mut c_void,
    at: *mut c_void,
    size: usize,
    kind: c_int,
    flags: c_ulonglong,
) -> HipError {
    call(|state| {
        if state.bucket.no_range_handles {
            return Err(HipError::NOT_SUPPORTED);
        }
        require(!to.is_null() && !at.is_null() && size != 0 && kind == DESCRIPTOR && flags == 0)?;
        // Of what begins there; how far the range goes HIP does not look.
        let number = state.retain_mapped(at.addr())?;
        // The reference is never given back.
        let fd = state.memory(number).memory.descriptor().map_err(|_| HipError::INVALID_VALUE)?;
        // SAFETY: not null, so for one `int`.
        unsafe { *to.cast::<c_int>() = fd };
        Ok(())
    })
}

impl State {
    fn import(&mut self, fd: c_int) -> Answer<usize> {
        let source = if self.bucket.import_reads_later {
            Source::Descriptor(fd)
        } else {
            Source::Physical(self.memory_of(fd)?)
        };
        // Whose memory it is nobody asks.
        Ok(self.add_handle(Handle {
            source,
            device: current(),
            shareable: true,
            imported: true,
            references: 1,
        }))
    }

    /// The memory that is mapped from an address on, with one reference more.
    pub(crate) fn retain_mapped(&mut self, at: usize) -> Answer<u64> {
        let found = self.mapped(at).ok_or(HipError::INVALID_VALUE)?;
        let Source::Physical(number) = found.source else { return Err(HipError::INVALID_VALUE) };
        if let Some(physical) = self.physical.get_mut(&number) {
            physical.references += 1;
        }
        Ok(number)
    }

    /// The memory behind a descriptor, with one reference more.
    fn memory_of(&mut self, fd: c_int) -> Answer<u64> {
        let memory = Memory::of_descriptor(fd).ok_or(HipError::INVALID_VALUE)?;
        let identity = memory.identity();
        let known = self.physical.iter_mut().find(|(_, physical)| physical.memory.identity() == identity);
        if let Some((number, physical)) = known {
            physical.references += 1;
            return Ok(*number);
        }
        let number = self.number();
        self.physical.insert(number, Physical { memory: Arc::new(memory), device: None, references: 1 });
        Ok(number)
    }

    /// Reads the descriptor of an import whose access is set for the first time, as it is now.
    pub(crate) fn read_descriptor(&mut self, at: usize) -> Answer {
        let Some((raw, size)) = self.mapped(at).map(|mapping| (mapping.handle, mapping.size)) else {
            return Ok(());
        };
        let source = match self.mapped(at).map(|mapping| mapping.source) {
            Some(Source::Descriptor(fd)) => match self.handle("hipMemSetAccess", raw).source {
                Source::Descriptor(_) => {
                    let number = self.memory_of(fd)?;
                    self.handle("hipMemSetAccess", raw).source = Source::Physical(number);
                    number
                }
                Source::Physical(number) => number,
            },
            _ => return Ok(()),
        };
        require(size <= self.memory(source).memory.size)?;
        if let Some(physical) = self.physical.get_mut(&source) {
            physical.references += 1;
        }
        if let Some(mapping) = self.mapped_mut(at) {
            mapping.source = Source::Physical(source);
        }
        Ok(())
    }
}
