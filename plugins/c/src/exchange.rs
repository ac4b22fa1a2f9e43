//! Regions that another process follows while they change: one exports, the other imports the changes that are published.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::{held, status};
use crate::handles::{Kind, Object};
use crate::region::Region;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{self, bytes, check_place, clear, give, give_box, give_if_wanted, object, room, take_box};
use gpu_vmm::extend::Lock;
use gpu_vmm::share::{
    Allowed, Channel, Event, Exporter as Exports, ImportOptions, ImportedRegion, Listener as Listens,
    ReleaseOutcome,
};
use gpu_vmm::{AnyBackend, Bytes, Operation, WaitFor};
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::time::Duration;

/// A path at which other processes of this machine and user can connect, for gpu_vmm_export.
/// Calls of several threads run at the same time.
#[derive(Debug)]
pub struct Listener(Listens);

// SAFETY: no other type has the kind.
unsafe impl Object for Listener {
    const KIND: Kind = Kind::Listener;
}

/// The exporter's end of an exchange: another process has the region's memory and receives its changes.
/// Calls of several threads take turns.
#[derive(Debug)]
pub struct Exporter(Lock<Exports<AnyBackend>>);

// SAFETY: no other type has the kind.
unsafe impl Object for Exporter {
    const KIND: Kind = Kind::Exporter;
}

/// A region of another process that is mapped here and follows that region's changes. Calls of several threads take turns.
#[derive(Debug)]
pub struct Followed(Lock<Option<ImportedRegion<AnyBackend>>>);

// SAFETY: no other type has the kind.
unsafe impl Object for Followed {
    const KIND: Kind = Kind::Followed;
}

/// For gpu_vmm_followed_next: no event has arrived in time.
pub const GPU_VMM_EVENT_NONE: u32 = 0;
/// For gpu_vmm_followed_next: the exporter has published a change of its region.
pub const GPU_VMM_EVENT_CHANGED: u32 = 1;
/// For gpu_vmm_followed_next: the exporter asks this process to release the memory.
pub const GPU_VMM_EVENT_RELEASE_REQUESTED: u32 = 2;
/// For gpu_vmm_followed_next: the exporter has ended the exchange or has died. The memory stays mapped.
pub const GPU_VMM_EVENT_GONE: u32 = 3;

/// For gpu_vmm_exporter_wait_released: the importer has released the memory.
pub const GPU_VMM_RELEASED: u32 = 0;
/// For gpu_vmm_exporter_wait_released: the importer keeps the memory.
pub const GPU_VMM_RELEASE_KEPT: u32 = 1;
/// For gpu_vmm_exporter_wait_released: the importer has died or closed its end.
pub const GPU_VMM_RELEASE_GONE: u32 = 2;

/// Listens at a path, which must not exist. Only processes of this user can connect. Free it with gpu_vmm_listener_free, which
/// removes the path. Linux only, as all functions of exporters.
///
/// Returns GPU_VMM_STALE_SOCKET if the path is a socket whose process is gone, and GPU_VMM_DRIVER with the system's error if the path
/// exists otherwise or cannot be created.
///
/// # Safety
///
/// `path` is null or a string. `listener` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_listener_new(path: *const c_char, listener: *mut *mut Listener) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { listen(path, listener, |path| Listens::bind(path)) }
}

/// Does as gpu_vmm_listener_new, and replaces a stale socket at the path. No other file is replaced.
///
/// Returns GPU_VMM_DRIVER with the system's error if the path exists otherwise or cannot be created.
///
/// # Safety
///
/// `path` is null or a string. `listener` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_listener_replace_stale(
    path: *const c_char,
    listener: *mut *mut Listener,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { listen(path, listener, |path| Listens::replace_stale(path)) }
}

/// Creates a listener at a path.
///
/// # Safety
///
/// As for [`gpu_vmm_listener_new`].
unsafe fn listen(
    path: *const c_char,
    listener: *mut *mut Listener,
    bind: fn(&Path) -> gpu_vmm::Result<Listens>,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(listener) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let path = texts::path("path", path)?;
            give_box("listener", listener, || Ok(Listener(bind(path)?)))
        }
    })
}

/// Frees a listener. Exchanges that have begun go on. Null does nothing.
///
/// # Safety
///
/// `listener` is null or comes from gpu_vmm_listener_new, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_listener_free(listener: *mut Listener) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(listener) }
}

/// Waits up to `milliseconds` until a process has called gpu_vmm_follow, and sends it a region with its memory, which must have been
/// created with GPU_VMM_HANDLE_FD. Free the exporter with gpu_vmm_exporter_free.
///
/// From then on, the region's memory cannot be suspended or moved: the other process would keep the old memory.
///
/// Returns GPU_VMM_TIMED_OUT if no process connects in time, GPU_VMM_ACCESS_DENIED for one of another user, GPU_VMM_PEER for one that has
/// given up meanwhile, GPU_VMM_UNSUPPORTED for memory that was not created for it, and GPU_VMM_SUSPENDED. Another process can connect after it.
///
/// # Safety
///
/// `listener` is null or a listener. `region` is null or a region. `exporter` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_export(
    listener: *const Listener,
    region: *const Region,
    milliseconds: u64,
    exporter: *mut *mut Exporter,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { export(listener, region, Allowed::same_user(), milliseconds, exporter) }
}

/// Does as gpu_vmm_export, for a process of the effective user `user` instead of this process's. That user needs access to the path,
/// which gpu_vmm_listener_new creates for its own user alone (mode 0600).
///
/// Returns the statuses of gpu_vmm_export.
///
/// # Safety
///
/// `listener` is null or a listener. `region` is null or a region. `exporter` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_export_to_user(
    listener: *const Listener,
    region: *const Region,
    user: u32,
    milliseconds: u64,
    exporter: *mut *mut Exporter,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { export(listener, region, Allowed::user(user), milliseconds, exporter) }
}

/// Sends a region to the next process that connects, if it is allowed.
///
/// # Safety
///
/// As for [`gpu_vmm_export`].
unsafe fn export(
    listener: *const Listener,
    region: *const Region,
    allowed: Allowed,
    milliseconds: u64,
    exporter: *mut *mut Exporter,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(exporter) };
    status(|| {
        check_place("exporter", exporter)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (listener, region) = (object("listener", listener)?, object("region", region)?);
            let channel = listener.0.accept(allowed, Duration::from_millis(milliseconds))?;
            let share = || {
                let share = |region: &mut gpu_vmm::Region<_>| Exports::share(channel, region);
                Ok(Exporter(Lock::new(region.memory.change(Operation::ShareRegion, true, share)?)))
            };
            give_box("exporter", exporter, share)
        }
    })
}

/// Frees an exporter, which ends the exchange. The other process keeps the memory. Null does nothing.
///
/// # Safety
///
/// `exporter` is null or comes from gpu_vmm_export, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_exporter_free(exporter: *mut Exporter) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(exporter) }
}

/// Sends the changes of the region since the last call: removed mappings, new memory, a new address. `sent` receives whether there were
/// any; it may be null.
///
/// Returns GPU_VMM_PEER if the other process has ended, and the statuses of gpu_vmm_export.
///
/// # Safety
///
/// `exporter` is null or an exporter. `region` is null or its region. `sent` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_exporter_publish(
    exporter: *const Exporter,
    region: *const Region,
    sent: *mut bool,
) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(sent) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (exporter, region) = unsafe { (object("exporter", exporter)?, object("region", region)?) };
        let mut exporter = held(&exporter.0, Operation::Publish)?;
        let publish = |region: &mut gpu_vmm::Region<_>| exporter.publish(region);
        let changed = region.memory.change(Operation::Publish, true, publish)?;
        // SAFETY: as above.
        unsafe { give_if_wanted(sent, changed) };
        Ok(())
    })
}

/// Waits up to `milliseconds` until the other process has applied everything that was sent. Other calls with the exporter wait meanwhile.
///
/// Returns GPU_VMM_PEER with the reason if the other process could not apply it or has ended, and GPU_VMM_TIMED_OUT if it does not
/// answer in time.
///
/// # Safety
///
/// `exporter` is null or an exporter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_exporter_wait_applied(
    exporter: *const Exporter,
    milliseconds: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let exporter = unsafe { object("exporter", exporter) }?;
        Ok(held(&exporter.0, Operation::WaitApplied)?.wait_applied(Duration::from_millis(milliseconds))?)
    })
}

/// Asks the other process to release the memory. A second call sends nothing.
///
/// Returns GPU_VMM_PEER if the other process has ended.
///
/// # Safety
///
/// `exporter` is null or an exporter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_exporter_request_release(exporter: *const Exporter) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let exporter = unsafe { object("exporter", exporter) }?;
        Ok(held(&exporter.0, Operation::RequestRelease)?.request_release()?)
    })
}

/// Waits up to `milliseconds` until the exchange has ended. `outcome` receives GPU_VMM_RELEASED, GPU_VMM_RELEASE_KEPT or
/// GPU_VMM_RELEASE_GONE.
///
/// Returns GPU_VMM_TIMED_OUT if it does not end in time.
///
/// # Safety
///
/// `exporter` is null or an exporter. `outcome` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_exporter_wait_released(
    exporter: *const Exporter,
    milliseconds: u64,
    outcome: *mut u32,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(outcome) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut exporter = held(&object("exporter", exporter)?.0, Operation::WaitReleased)?;
            let ended = match exporter.wait_released(Duration::from_millis(milliseconds))? {
                ReleaseOutcome::Released => GPU_VMM_RELEASED,
                ReleaseOutcome::Kept => GPU_VMM_RELEASE_KEPT,
                ReleaseOutcome::Gone => GPU_VMM_RELEASE_GONE,
            };
            give("outcome", outcome, ended)
        }
    })
}

/// Connects to the listener of another process of this user at a path and imports the region that it exports: the devices that own
/// its memory read and write it. `reserve` is the size that the region can grow to in place; 0 for its size now. Waits up to
/// `milliseconds`. Free it with gpu_vmm_followed_free.
///
/// Returns GPU_VMM_NO_LISTENER if no process listens at the path, or not yet, GPU_VMM_STALE_SOCKET if the process that listened there is
/// gone, GPU_VMM_TIMED_OUT if the other process does not answer in time, GPU_VMM_PEER if it has ended, has other devices or sends invalid
/// data, GPU_VMM_ACCESS_DENIED if it is of another user, and GPU_VMM_DRIVER with the system's error for another path.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `followed` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_follow(
    backend: *const Backend,
    path: *const c_char,
    reserve: u64,
    milliseconds: u64,
    followed: *mut *mut Followed,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { follow(backend, path, Allowed::same_user(), reserve, milliseconds, followed) }
}

/// Does as gpu_vmm_follow, for a listener of the effective user `user` instead of this process's.
///
/// Returns the statuses of gpu_vmm_follow.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `followed` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_follow_user(
    backend: *const Backend,
    path: *const c_char,
    user: u32,
    reserve: u64,
    milliseconds: u64,
    followed: *mut *mut Followed,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { follow(backend, path, Allowed::user(user), reserve, milliseconds, followed) }
}

/// Imports the region of the process that listens at a path, if it is allowed.
///
/// # Safety
///
/// As for [`gpu_vmm_follow`].
unsafe fn follow(
    backend: *const Backend,
    path: *const c_char,
    allowed: Allowed,
    reserve: u64,
    milliseconds: u64,
    followed: *mut *mut Followed,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(followed) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, path) = (&object("backend", backend)?.0, texts::path("path", path)?);
            let wait = Duration::from_millis(milliseconds);
            give_box("followed", followed, || {
                let mut channel = Channel::connect(path, allowed, wait)?;
                channel.set_wait(wait);
                let mut options = ImportOptions::new();
                if reserve > 0 {
                    options = options.reserve(Bytes(reserve));
                }
                Ok(Followed(Lock::new(Some(options.receive(backend, channel)?))))
            })
        }
    })
}

/// Frees a followed region: releases the memory and ends the exchange. Null does nothing.
///
/// # Safety
///
/// `followed` is null or comes from gpu_vmm_follow, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_free(followed: *mut Followed) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(followed) }
}

/// Calls `work` with a region that is not released yet.
///
/// # Safety
///
/// As for [`object`].
unsafe fn with<T>(
    followed: *const Followed,
    operation: Operation,
    work: impl FnOnce(&mut ImportedRegion<AnyBackend>) -> gpu_vmm::Result<T>,
) -> CallResult<T> {
    // SAFETY: guaranteed by the caller.
    let mut region = held(&unsafe { object("followed", followed) }?.0, operation)?;
    let released = || Failure::invalid(format!("{operation}: the region was released"));
    Ok(work(region.as_mut().ok_or_else(released)?)?)
}

/// Waits up to `milliseconds` for an event from the exporter. `event` receives GPU_VMM_EVENT_NONE, GPU_VMM_EVENT_CHANGED,
/// GPU_VMM_EVENT_RELEASE_REQUESTED or GPU_VMM_EVENT_GONE. Other calls with the region wait meanwhile.
///
/// Returns GPU_VMM_PEER for invalid data. The region then keeps its memory, and the exchange is over.
///
/// # Safety
///
/// `followed` is null or a followed region. `event` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_next(
    followed: *const Followed,
    milliseconds: u64,
    event: *mut u32,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(event) };
    status(|| {
        check_place("event", event)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let next = with(followed, Operation::Receive, |it| it.next(Duration::from_millis(milliseconds)))?;
            let number = match next {
                None => GPU_VMM_EVENT_NONE,
                Some(Event::Changed(_)) => GPU_VMM_EVENT_CHANGED,
                Some(Event::ReleaseRequested) => GPU_VMM_EVENT_RELEASE_REQUESTED,
                Some(Event::Gone) => GPU_VMM_EVENT_GONE,
            };
            give("event", event, number)
        }
    })
}

/// Applies all changes that were received, after waiting for the devices if memory is unmapped. With `may_move`, the region moves if it
/// cannot grow in place; pointers into the old range are then invalid.
///
/// Returns GPU_VMM_ADDRESS_TAKEN without `may_move`, GPU_VMM_OUT_OF_ADDRESS_SPACE, and GPU_VMM_BUSY for a capture. The region is then as
/// before, and the caller can try again.
///
/// # Safety
///
/// `followed` is null or a followed region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_apply(followed: *const Followed, may_move: bool) -> Status {
    status(|| {
        let apply = |it: &mut ImportedRegion<_>| match may_move {
            true => it.apply_or_move(WaitFor::all_devices()),
            false => it.apply(WaitFor::all_devices()),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { with(followed, Operation::ApplyChange, apply) }.map(drop)
    })
}

/// Releases the memory after waiting for the devices, and reports that to the exporter. Later calls with the region, except
/// gpu_vmm_followed_free, return GPU_VMM_INVALID_ARGUMENT.
///
/// Returns GPU_VMM_BUSY for a capture. The exporter learns that the memory is kept, and gpu_vmm_collect releases it after the capture.
///
/// # Safety
///
/// `followed` is null or a followed region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_release(followed: *const Followed) -> Status {
    status(|| {
        let operation = Operation::ReleaseImport;
        // SAFETY: guaranteed by the caller.
        let mut region = held(&unsafe { object("followed", followed) }?.0, operation)?;
        let released = || Failure::invalid(format!("{operation}: the region was released"));
        Ok(region.take().ok_or_else(released)?.release(WaitFor::all_devices())?)
    })
}

/// Returns the first address, which only gpu_vmm_followed_apply changes, and the end of the mapped memory. Each may be null.
///
/// # Safety
///
/// `followed` is null or a followed region. `address` and `size` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_range(
    followed: *const Followed,
    address: *mut u64,
    size: *mut u64,
) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(address);
        clear(size);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let look = |it: &mut ImportedRegion<_>| Ok((it.region().address().0, it.region().end().0));
            let (begin, end) = with(followed, Operation::LockRegion, look)?;
            give_if_wanted(address, begin);
            give_if_wanted(size, end);
        }
        Ok(())
    })
}

/// Copies `size` bytes at `offset` to the host, as gpu_vmm_region_read does.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
///
/// # Safety
///
/// `followed` is null or a followed region. `to` is null or points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_read(
    followed: *const Followed,
    offset: u64,
    to: *mut c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let to = room("to", to, size)?;
            with(followed, Operation::Read, |it| it.region().read(Bytes(offset), to))
        }
    })
}

/// Copies `size` bytes of the host to `offset`, as gpu_vmm_region_write does.
///
/// Returns GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED.
///
/// # Safety
///
/// `followed` is null or a followed region. `from` is null or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_followed_write(
    followed: *const Followed,
    offset: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let from = bytes("from", from, size)?;
            with(followed, Operation::Write, |it| it.region_mut().write(Bytes(offset), from))
        }
    })
}

#[cfg(test)]
mod tests;
