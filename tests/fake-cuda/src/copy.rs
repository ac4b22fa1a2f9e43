//! Copies and fills by the driver, on a stream.
//!
//! Measured: if the device may not access the memory when the call is made, the call returns `CUDA_ERROR_INVALID_VALUE` and
//! the context stays valid. Memory that is unmapped later, before the device reaches it, causes a fault. A copy to the host
//! returns when it is complete; a copy from the host returns once the driver has buffered the bytes; other copies return at
//! once. Documented: a copy between a device and page-locked memory of the host is asynchronous if it names a stream, and
//! returns when it is complete if it does not.
#![allow(unsafe_code)] // exported to C, and reaches memory by address

use crate::c::access;
use crate::code::{Answer, Code};
use crate::context;
use crate::objects::Ticket;
use crate::state::state;
use crate::stream;
use crate::violation::refuse;
use crate::walk::{Need, Who, each, reach};
use crate::work::{finish, queue, work};
use std::ffi::c_void;
use std::sync::Arc;

/// The size of the driver's own staging memory, in bytes.
const STAGING: usize = 16 << 20;

const DEFAULT: usize = 0;

/// Returns the device that executes the work of a stream.
fn device_of(stream: usize) -> Answer<usize> {
    stream::for_work(&mut work(), stream).map(|(_, device)| device)
}

fn put(stream: usize, job: impl Fn() -> Answer + Send + Sync + 'static) -> Answer<Ticket> {
    let mut work = work();
    let (name, _) = stream::for_work(&mut work, stream)?;
    Ok(queue(work, name, Arc::new(job)))
}

/// Refuses an access that the device may not make now. This is not a violation: programs may rely on the error.
fn check(device: usize, at: u64, size: usize, need: Need) -> Answer {
    let checked = state().check(Who::Driver(device), at, size as u64, need);
    checked.map_err(|_| Code::INVALID_VALUE)
}

/// Refuses a copy from host memory for which a real driver ends the process: it writes with the CPU what the CPU may read.
fn check_cpu(to: u64) -> Answer {
    match state().mapping(to) {
        Some((_, mapping)) if mapping.host == access::READ => Err(refuse(
            Code::INVALID_VALUE,
            format_args!("the CPU writes to {to:#x}, which it may only read: SIGSEGV on a real driver"),
        )),
        _ => Ok(()),
    }
}

/// Refuses an address of a device as a host address.
fn check_host(at: *const c_void) -> Answer {
    let state = state();
    let at = at.addr() as u64;
    // Memory that the CPU can access has host addresses as well.
    if state.mapping(at).is_some_and(|(_, mapping)| mapping.host != access::NONE) {
        return Ok(());
    }
    let is_device_memory = state.plain(at).is_some_and(|(_, plain)| !plain.managed);
    if at == 0 || state.space.around(at).is_some() || is_device_memory {
        return Err(refuse(Code::INVALID_VALUE, format_args!("{at:#x} is not a host address")));
    }
    Ok(())
}

/// A host address that is passed to a stream's thread.
struct Host(*mut u8);

// SAFETY: the caller guarantees that it is valid until the copy is complete, on any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    const fn get(&self) -> *mut u8 {
        self.0
    }
}

/// Returns the page-locked allocation that contains host bytes; `None` if they are pageable.
fn pinned(at: *const c_void, size: usize) -> Answer<Option<u64>> {
    let state = state();
    let context = context::current(&work())?;
    state.pinned(at.addr() as u64, size as u64, context)
}

/// The last ticket of a copy, for which a call without a stream waits.
type Rest = Option<Ticket>;

fn wait_for(rest: Rest) -> Answer {
    rest.map_or(Ok(()), finish)
}

/// Queues a copy that uses page-locked memory.
fn put_pinned(stream: usize, base: u64, job: impl Fn() -> Answer + Send + Sync + 'static) -> Answer<Rest> {
    let ticket = put(stream, job)?;
    state().use_pinned(base, ticket);
    Ok(Some(ticket))
}

fn from_host(to: u64, from: *const c_void, size: usize, stream: usize) -> Answer<Rest> {
    let device = device_of(stream)?;
    check_host(from)?;
    check(device, to, size, Need::Write)?;
    check_cpu(to)?;
    if let Some(base) = pinned(from, size)? {
        let host = Host(from.cast_mut().cast());
        let job = move || {
            let mut from = host.get();
            each(Who::Driver(device), to, size as u64, Need::Write, |piece| {
                // SAFETY: the piece has this size, and the host's rest is at least as long.
                unsafe { piece.pointer().copy_from(from, piece.size as usize) };
                from = from.wrapping_add(piece.size as usize);
            })
        };
        return put_pinned(stream, base, job);
    }
    let mut last: Option<Ticket> = None;
    for start in (0..size).step_by(STAGING) {
        let length = STAGING.min(size - start);
        // SAFETY: within the caller's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(start), length) }.to_vec();
        if let Some(last) = last {
            finish(last)?;
        }
        let job = move || {
            let mut done = 0;
            each(Who::Driver(device), to + start as u64, length as u64, Need::Write, |piece| {
                // SAFETY: the piece has this size, and `bytes` owns the source.
                unsafe { piece.pointer().copy_from(bytes[done..].as_ptr(), piece.size as usize) };
                done += piece.size as usize;
            })
        };
        last = Some(put(stream, job)?);
    }
    Ok(None)
}

fn to_host(to: *mut c_void, from: u64, size: usize, stream: usize) -> Answer<Rest> {
    let device = device_of(stream)?;
    check_host(to)?;
    check(device, from, size, Need::Read)?;
    let pinned = pinned(to, size)?;
    let host = Host(to.cast());
    let job = move || {
        let mut to = host.get();
        each(Who::Driver(device), from, size as u64, Need::Read, |piece| {
            // SAFETY: the piece has this size, and the caller guarantees as many bytes at the host's address.
            unsafe { to.copy_from(piece.pointer(), piece.size as usize) };
            to = to.wrapping_add(piece.size as usize);
        })
    };
    match pinned {
        Some(base) => put_pinned(stream, base, job),
        None => finish(put(stream, job)?).map(|()| None),
    }
}

fn on_device(to: u64, from: u64, size: usize, stream: usize) -> Answer {
    let device = device_of(stream)?;
    check(device, from, size, Need::Read)?;
    check(device, to, size, Need::Write)?;
    if state().mapping(from).is_some_and(|(_, source)| source.host != access::NONE) {
        check_cpu(to)?;
    }
    if to.abs_diff(from) < size as u64 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("{size:#x} from {from:#x} to {to:#x} overlap")));
    }
    let job = move || {
        let (mut done, size) = (0, size as u64);
        while done < size {
            let source = reach(Who::Driver(device), from + done, size - done, Need::Read)?;
            let target = reach(Who::Driver(device), to + done, source.size, Need::Write)?;
            // SAFETY: both have this size; the copy permits overlap.
            unsafe { target.pointer().copy_from(source.pointer(), target.size as usize) };
            done += target.size;
        }
        Ok(())
    };
    put(stream, job).map(drop)
}

fn fill(at: u64, value: u8, size: usize, stream: usize) -> Answer {
    let device = device_of(stream)?;
    check(device, at, size, Need::Write)?;
    let job = move || {
        each(Who::Driver(device), at, size as u64, Need::Write, |piece| {
            // SAFETY: the piece has this size.
            unsafe { piece.pointer().write_bytes(value, piece.size as usize) };
        })
    };
    put(stream, job).map(drop)
}

cuda! {
    /// Copies from the host.
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) {
        wait_for(from_host(to, from, size, DEFAULT)?)
    }

    /// Copies to the host, and waits until the copy is complete.
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize) {
        wait_for(to_host(to, from, size, DEFAULT)?)
    }

    /// Copies on a device.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, size: usize) {
        on_device(to, from, size, DEFAULT)
    }

    /// Sets every byte.
    fn cuMemsetD8_v2(at: u64, value: u8, size: usize) {
        fill(at, value, size, DEFAULT)
    }

    /// Copies from the host on a stream.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: usize) {
        from_host(to, from, size, stream).map(drop)
    }

    /// Copies to the host on a stream; waits if the host's memory is pageable.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, size: usize, stream: usize) {
        to_host(to, from, size, stream).map(drop)
    }

    /// Copies on a device, on a stream.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: usize) {
        on_device(to, from, size, stream)
    }

    /// Sets every byte, on a stream.
    fn cuMemsetD8Async(at: u64, value: u8, size: usize, stream: usize) {
        fill(at, value, size, stream)
    }
}
