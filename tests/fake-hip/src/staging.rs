//! Page-locked memory, and streams with copies on them, which are done when they are waited for.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{Answer, HipError, call, current, require};
use crate::copy::{TO_DEVICE, TO_HOST, What, Work};
use crate::memory::PAGE;
use crate::state::{State, Stream};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{with_exposed_provenance_mut, without_provenance_mut};

fn layout(size: usize) -> Answer<Layout> {
    Layout::from_size_align(size, PAGE).map_err(|_| HipError::OUT_OF_MEMORY)
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one address.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostMalloc(at: *mut *mut c_void, size: usize, _flags: c_uint) -> HipError {
    call(|state| {
        require(!at.is_null() && size != 0)?;
        // SAFETY: not of size zero.
        let memory = unsafe { alloc_zeroed(layout(size)?) };
        if memory.is_null() {
            return Err(HipError::OUT_OF_MEMORY);
        }
        state.locked.insert(memory.expose_provenance(), size);
        // SAFETY: not null, so for one address.
        unsafe { *at = memory.cast() };
        Ok(())
    })
}

/// # Safety
///
/// Nothing uses the memory any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostFree(at: *mut c_void) -> HipError {
    call(|state| {
        let size = state.locked.remove(&at.addr()).ok_or(HipError::INVALID_VALUE)?;
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(with_exposed_provenance_mut(at.addr()), layout(size)?) };
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: the pointer is null or for one stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut *mut c_void, _flags: c_uint) -> HipError {
    const FIRST: u64 = 0x5b5b_0000_0000;
    call(|state| {
        require(!stream.is_null())?;
        let raw = (FIRST + state.number() * 64) as usize;
        state.streams.insert(raw, Stream { device: current(), queue: VecDeque::new() });
        // SAFETY: not null, so for one stream.
        unsafe { *stream = without_provenance_mut(raw) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamDestroy(stream: *mut c_void) -> HipError {
    call(|state| {
        state.finish_stream(stream.addr())?;
        state.streams.remove(&stream.addr());
        Ok(())
    })
}

/// # Safety
///
/// As HIP has it: the host's side is as long as is said, and stays until the stream has been waited for.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: *mut c_void,
) -> HipError {
    call(|state| {
        require(!to.is_null() && !from.is_null())?;
        let device = state.streams.get(&stream.addr()).ok_or(HipError::INVALID_HANDLE)?.device;
        if size == 0 {
            return Ok(());
        }
        let (to, from) = (to.addr(), from.addr());
        let (host, at, what) = match kind {
            TO_DEVICE => (from, to, What::FromHost(from)),
            TO_HOST => (to, from, What::ToHost(from)),
            _ => return Err(HipError::INVALID_VALUE),
        };
        let by_current = state.engine_beside(host, at, size)?;
        let by = if state.bucket.copy_by_source { by_current } else { device };
        if let Some(stream) = state.streams.get_mut(&stream.addr()) {
            stream.queue.push_back(Work { by, to, size, what });
        }
        Ok(())
    })
}

impl State {
    /// Does all that is queued on a stream.
    pub(crate) fn finish_stream(&mut self, raw: usize) -> Answer {
        let stream = self.streams.get_mut(&raw).ok_or(HipError::INVALID_HANDLE)?;
        for work in std::mem::take(&mut stream.queue) {
            self.work(work);
        }
        Ok(())
    }

    /// True for addresses of page-locked memory.
    pub(crate) fn is_locked(&self, at: usize) -> bool {
        self.locked.range(..=at).next_back().is_some_and(|(base, size)| at < base + size)
    }
}
