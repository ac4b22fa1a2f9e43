//! Leases: regions of a server that are mapped in this process.
//!
//! A lease's region is an object of its own, which all functions for regions take and whose tensors can outlive the lease. Between calls
//! the region is in that object, and the Rust lease has an empty one in its place; a call that changes the mappings exchanges them.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use super::number_of;
use super::parts::Layout;
use crate::call::{held, status};
use crate::handles::{self, Kind, Object};
use crate::observer::Range;
use crate::region::Region;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{self, check_place, clear, give, give_box, give_if_wanted, object, take_box};
use gpu_vmm::dlpack::TensorRegion;
use gpu_vmm::extend::Lock;
use gpu_vmm::serve::{Lease as Leased, LeaseEvent, RenewContents};
use gpu_vmm::{
    AnyBackend, BackingChange, BackingObserver, BackingOutcome, Bytes, Operation, Region as Memory, WaitFor,
};
use std::error::Error;
use std::ffi::c_char;
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::time::Duration;

/// A region of a server that is mapped in this process at the region's address. Calls of several threads take turns.
#[derive(Debug)]
pub struct Lease {
    /// The pointer by which C names the region, which is no address.
    named: usize,
    memory: TensorRegion<AnyBackend>,
    state: Arc<State>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Lease {
    const KIND: Kind = Kind::Lease;
}

/// The lease without its region; `None` after it was closed.
#[derive(Debug)]
struct State(Lock<Option<Leased<AnyBackend>>>);

/// Belongs to the region: the lease ends after the memory is unmapped, which tensors can delay.
#[derive(Debug)]
struct KeepsLease(#[allow(dead_code)] Arc<State>);

impl BackingObserver for KeepsLease {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

/// A lease with its region, for one call. When it is dropped, also by a panic, the region is where it was.
struct Whole<'a> {
    lease: &'a mut Leased<AnyBackend>,
    region: &'a mut Memory<AnyBackend>,
}

impl<'a> Whole<'a> {
    const fn new(lease: &'a mut Leased<AnyBackend>, region: &'a mut Memory<AnyBackend>) -> Self {
        std::mem::swap(lease.region_mut(), region);
        Self { lease, region }
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        std::mem::swap(self.lease.region_mut(), self.region);
    }
}

impl Lease {
    pub(super) fn new(mut lease: Leased<AnyBackend>) -> CallResult<Self> {
        let backend = lease.region().backend().clone();
        let mut builder = Memory::builder(&backend).reserve(Bytes(1));
        if let Some(first) = lease.region().mappings().next() {
            builder = builder.memory(first.memory.properties());
        }
        let region = std::mem::replace(lease.region_mut(), builder.build()?);
        let memory = TensorRegion::new(region);
        let state = Arc::new(State(Lock::new(Some(lease))));
        memory.on_backing_change(KeepsLease(Arc::clone(&state)))?;
        let named = handles::add(Region::of_tensors(&backend, memory.clone()));
        let named = named.ok_or_else(|| Failure::invalid("lease: there are too many objects; free some"))?;
        Ok(Self { named: named.addr(), memory, state })
    }

    /// Calls `work` with the lease without its region.
    fn look<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Leased<AnyBackend>) -> gpu_vmm::Result<T>,
    ) -> CallResult<T> {
        let mut lease = held(&self.state.0, operation)?;
        Ok(work(lease.as_mut().ok_or_else(|| closed(operation))?)?)
    }

    /// Calls `work` with the lease, which may map other memory in the region. Tensors then have the other contents.
    fn change<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Leased<AnyBackend>) -> gpu_vmm::Result<T>,
    ) -> CallResult<T> {
        self.look(operation, |lease| {
            self.memory.change(operation, true, |region| work(Whole::new(lease, region).lease))
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: no other thread uses the region of a lease that is freed, as the caller of gpu_vmm_lease_free guarantees. If the
        // caller has freed the region, no object has the name.
        drop(unsafe { handles::take(without_provenance_mut::<Region>(self.named)) });
    }
}

fn closed(operation: Operation) -> Failure {
    Failure::invalid(format!("{operation}: the lease is closed"))
}

/// For gpu_vmm_lease_next: no event has arrived in time.
pub const GPU_VMM_LEASE_EVENT_NONE: u32 = 0;
/// For gpu_vmm_lease_next: a writer has committed an epoch, which gpu_vmm_lease_apply maps.
pub const GPU_VMM_LEASE_EVENT_NEW_EPOCH: u32 = 1;
/// For gpu_vmm_lease_next: the region was dropped from the server. The lease keeps the memory that it has.
pub const GPU_VMM_LEASE_EVENT_DROPPED: u32 = 2;
/// For gpu_vmm_lease_next: the server has ended. The lease keeps the memory that it has.
pub const GPU_VMM_LEASE_EVENT_SERVER_GONE: u32 = 3;

/// Frees a lease and its region. The memory stays as long as a tensor of the region exists, and the lease ends with it. Memory that was not
/// committed is lost. Null does nothing.
///
/// # Safety
///
/// `lease` is null or comes from gpu_vmm_client_create or gpu_vmm_client_open, and was not freed yet. No other thread uses its region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_free(lease: *mut Lease) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(lease) }
}

/// Unmaps the memory after waiting for the devices, and ends the lease: when the call returns, the server has freed the memory that no
/// region and no other client has. Later calls with the lease, except gpu_vmm_lease_free, return GPU_VMM_INVALID_ARGUMENT, and its region
/// is empty. It is no error if the server has ended.
///
/// Returns GPU_VMM_BUSY while a tensor of the region exists, for a capture. The lease then goes on.
///
/// # Safety
///
/// `lease` is null or a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_close(lease: *const Lease) -> Status {
    status(|| {
        let operation = Operation::ReleaseImport;
        // SAFETY: guaranteed by the caller.
        let lease = unsafe { object("lease", lease) }?;
        let mut state = held(&lease.state.0, operation)?;
        let mut there = state.take().ok_or_else(|| closed(operation))?;
        let mut ended = None;
        let closed = lease.memory.change(operation, false, |region| {
            // A wait that fails, as for a capture, changes nothing yet. The one that follows finds nothing to wait for.
            let devices = || region.mappings().map(|mapping| mapping.memory.device());
            WaitFor::all_devices().wait(region.backend(), devices)?;
            std::mem::swap(there.region_mut(), region);
            ended = Some(());
            Ok(())
        });
        if ended.is_none() {
            *state = Some(there);
        } else {
            there.close(WaitFor::all_devices())?;
        }
        Ok(closed?)
    })
}

/// Returns the region of a lease, which all functions for regions take. It belongs to the lease and is valid until the lease is freed; do
/// not free it. The lease decides what is mapped where: do not map, unmap, swap or suspend its memory.
///
/// # Safety
///
/// `lease` is null or a lease. `region` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_region(lease: *const Lease, region: *mut *mut Region) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(region) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("region", region, without_provenance_mut(object("lease", lease)?.named)) }
    })
}

/// Returns the kind of a lease, GPU_VMM_LEASE_READ or GPU_VMM_LEASE_WRITE, and the epoch that is mapped, 0 for a region that was never
/// committed. Each may be null.
///
/// # Safety
///
/// `lease` is null or a lease. `kind` and `epoch` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_state(lease: *const Lease, kind: *mut u32, epoch: *mut u64) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(kind);
        clear(epoch);
    };
    status(|| {
        let look = |lease: &mut Leased<_>| Ok((number_of(lease.kind()), lease.epoch()));
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (now, number) = object("lease", lease)?.look(Operation::LockRegion, look)?;
            give_if_wanted(kind, now);
            give_if_wanted(epoch, number);
        }
        Ok(())
    })
}

/// Returns a copy of the layout of the epoch that is mapped. Free it with gpu_vmm_layout_free. Another process has written it:
/// gpu_vmm_region_dlpack checks each part.
///
/// Returns GPU_VMM_PEER for a text with a zero byte, and for a part with more than 32 dimensions or another number of strides.
///
/// # Safety
///
/// `lease` is null or a lease. `layout` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_layout(lease: *const Lease, layout: *mut *mut Layout) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(layout) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let lease = object("lease", lease)?;
            let copy = || Layout::of(&lease.look(Operation::LockRegion, |lease| Ok(lease.layout().clone()))?);
            give_box("layout", layout, copy)
        }
    })
}

/// Returns the descriptor of a lease's connection, for poll: it is readable when gpu_vmm_lease_next has something to receive. It belongs
/// to the lease; do not close it. After an error `*fd` is -1.
///
/// # Safety
///
/// `lease` is null or a lease. `fd` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_fd(lease: *const Lease, fd: *mut i32) -> Status {
    use std::os::fd::AsRawFd;
    if !fd.is_null() {
        // A caller that closes whatever it received must not close descriptor 0.
        // SAFETY: writable for a number, as the caller guarantees.
        unsafe { fd.write(-1) };
    }
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let found = object("lease", lease)?.look(Operation::Receive, |lease| Ok(lease.as_raw_fd()))?;
            give("fd", fd, found)
        }
    })
}

/// Waits up to `milliseconds` for an event from the server. `event` receives GPU_VMM_LEASE_EVENT_NONE, GPU_VMM_LEASE_EVENT_NEW_EPOCH,
/// GPU_VMM_LEASE_EVENT_DROPPED or GPU_VMM_LEASE_EVENT_SERVER_GONE, which it then always receives. Other calls with the lease wait
/// meanwhile. The server sends a further epoch when the last one was applied, and skips those between.
///
/// Returns GPU_VMM_PEER for invalid data, or the driver's error for memory that cannot be imported. The lease then keeps the memory that it
/// has, and receives no more events than GPU_VMM_LEASE_EVENT_SERVER_GONE.
///
/// # Safety
///
/// `lease` is null or a lease. `event` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_next(
    lease: *const Lease,
    milliseconds: u64,
    event: *mut u32,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(event) };
    status(|| {
        check_place("event", event)?;
        let next = |lease: &mut Leased<_>| lease.next(Duration::from_millis(milliseconds));
        // SAFETY: guaranteed by the caller.
        unsafe {
            let number = match object("lease", lease)?.look(Operation::Receive, next)? {
                None => GPU_VMM_LEASE_EVENT_NONE,
                Some(LeaseEvent::NewEpoch(_)) => GPU_VMM_LEASE_EVENT_NEW_EPOCH,
                Some(LeaseEvent::Dropped) => GPU_VMM_LEASE_EVENT_DROPPED,
                Some(LeaseEvent::ServerGone) => GPU_VMM_LEASE_EVENT_SERVER_GONE,
            };
            give("event", event, number)
        }
    })
}

/// Maps the epoch that was received, at the addresses that the region has, after waiting for the devices. Tensors of the region then have
/// its contents. `epoch` receives the epoch that is mapped; it may be null. Without a new epoch it does nothing.
///
/// Returns GPU_VMM_BUSY for a capture or if an observer refuses. The region is then as before, and the caller can try again.
///
/// # Safety
///
/// `lease` is null or a lease. `epoch` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_apply(lease: *const Lease, epoch: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(epoch) };
    status(|| {
        let apply = |lease: &mut Leased<_>| lease.apply(WaitFor::all_devices());
        // SAFETY: guaranteed by the caller.
        unsafe {
            let now = object("lease", lease)?.change(Operation::ApplyChange, apply)?;
            give_if_wanted(epoch, now);
        }
        Ok(())
    })
}

/// Replaces the memory of a range by new memory, which this write lease may write, after waiting for the devices. With `copy` it has the
/// same contents, copied by the device, else undefined bytes. Readers keep the old memory until they apply the next epoch. Whole handles
/// are replaced: `renewed` receives the range, which contains the wanted one; it may be null. Memory that was replaced since the last commit
/// stays as it is. The new memory counts against the server's budget beside the old one.
///
/// Returns GPU_VMM_ACCESS_DENIED for a read lease, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_FOUND if the region was
/// dropped, GPU_VMM_PEER if the server has ended, and GPU_VMM_BUSY for a capture or if an observer refuses. What was replaced before an
/// error stays so; a second call does the rest, and gpu_vmm_lease_commit fails until then.
///
/// # Safety
///
/// `lease` is null or a lease. `renewed` is null or points to a writable range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_renew(
    lease: *const Lease,
    offset: u64,
    length: u64,
    copy: bool,
    renewed: *mut Range,
) -> Status {
    // SAFETY: null or writable for a range, as the caller guarantees.
    unsafe { clear(renewed) };
    status(|| {
        let contents = if copy { RenewContents::Copy } else { RenewContents::Undefined };
        let renew = |lease: &mut Leased<_>| {
            lease.renew(Bytes(offset), Bytes(length), contents, WaitFor::all_devices())
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let range = object("lease", lease)?.change(Operation::RenewMemory, renew)?;
            let length = range.end.saturating_sub(range.start);
            give_if_wanted(renewed, Range { offset: range.start.0, length: length.0 });
        }
        Ok(())
    })
}

/// Makes the new memory the region's next epoch, for clients that open the region from now on and for readers when they apply it. `epoch`
/// receives its number; it may be null. A layout replaces the former one; null keeps it. The call first takes the right to write the
/// memory, for which it waits for all work on the device: this lease then has the epoch mapped read-only.
///
/// Returns GPU_VMM_ACCESS_DENIED for a read lease, GPU_VMM_NOT_FOUND if the region was dropped, GPU_VMM_INVALID_ARGUMENT after a renewal
/// that has failed and for a layout of more than 16 MiB, and GPU_VMM_PEER if the server has ended. The new memory is then writable and
/// uncommitted, as before.
///
/// # Safety
///
/// `lease` is null or a lease. `layout` is null or a layout. `epoch` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_commit(
    lease: *const Lease,
    layout: *const Layout,
    epoch: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(epoch) };
    status(|| {
        let operation = Operation::Commit;
        // SAFETY: guaranteed by the caller.
        let lease = unsafe { object("lease", lease) }?;
        let layout = match layout.is_null() {
            true => None,
            // SAFETY: guaranteed by the caller.
            false => Some(unsafe { object("layout", layout) }?.described(operation)?),
        };
        let number = lease.change(operation, |lease| lease.commit(layout.as_ref()))?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(epoch, number) };
        Ok(())
    })
}

/// Writes the region, with its layout, name and address, to a safetensors file, from which gpu_vmm_client_load makes the same region again.
/// A file of that name is replaced when the new one is complete. `bytes` receives its size; it may be null. Other readers of the format find
/// the parts whose elements follow each other.
///
/// Returns GPU_VMM_FILE if the file cannot be written, and for a layout that its header cannot have. A file of that name is then as before.
///
/// # Safety
///
/// `lease` is null or a lease. `path` is null or a string. `bytes` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_save(
    lease: *const Lease,
    path: *const c_char,
    bytes: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(bytes) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (lease, path) = (object("lease", lease)?, texts::path("path", path)?);
            let size = lease.change(Operation::SaveRegion, |lease| lease.save(path))?;
            give_if_wanted(bytes, size.0);
        }
        Ok(())
    })
}

/// Makes a write lease a read lease, so that another client can write, after waiting for the devices. New memory that was not committed is
/// lost, and the epoch's memory is mapped in its place.
///
/// Returns GPU_VMM_ACCESS_DENIED for a read lease, GPU_VMM_INVALID_ARGUMENT for a region that was never committed, GPU_VMM_PEER if the
/// server has ended, and GPU_VMM_BUSY for a capture or if an observer refuses.
///
/// # Safety
///
/// `lease` is null or a lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_lease_downgrade(lease: *const Lease) -> Status {
    status(|| {
        let downgrade = |lease: &mut Leased<_>| lease.downgrade(WaitFor::all_devices());
        // SAFETY: guaranteed by the caller.
        unsafe { object("lease", lease)?.change(Operation::DowngradeLease, downgrade) }
    })
}
