//! Callbacks of C before and after the memory behind a region's addresses changes.
//!
//! Uses unsafe code: C calls these functions with raw pointers, and they call C.
#![allow(unsafe_code)]

use crate::call::status;
use crate::callback::running;
use crate::properties::check_reserved;
use crate::region::Region;
use crate::status::{CallResult, Failure, GPU_VMM_NOT_FOUND, GPU_VMM_OK, Status};
use crate::texts::{clear, give_if_wanted, object, value};
use gpu_vmm::{
    BackingChange as Change, BackingEffect, BackingObserver, BackingOutcome, ObserverId, OffsetRange,
};
use std::error::Error;
use std::ffi::{CString, c_char, c_void};

/// For `effect` of gpu_vmm_backing_change: the memory is unmapped, and nothing is mapped afterwards.
pub const GPU_VMM_BACKING_REMOVED: u32 = 0;
/// For `effect` of gpu_vmm_backing_change: a resume or the selection of a bank maps memory where none was.
pub const GPU_VMM_BACKING_RESTORED: u32 = 1;
/// For `effect` of gpu_vmm_backing_change: other memory is mapped at the same addresses.
pub const GPU_VMM_BACKING_REPLACED: u32 = 2;
/// For `effect` of gpu_vmm_backing_change: the memory is mapped from `new_address` on, and nothing at the old addresses.
pub const GPU_VMM_BACKING_MOVED: u32 = 3;

/// An outcome of a change: the memory has changed as announced.
pub const GPU_VMM_OUTCOME_CHANGED: u32 = 0;
/// An outcome of a change: the operation failed, and the memory is the same as before.
pub const GPU_VMM_OUTCOME_UNCHANGED: u32 = 1;
/// An outcome of a change: the rollback failed too, and it is unknown which memory is mapped.
pub const GPU_VMM_OUTCOME_POISONED: u32 = 2;

/// A range of offsets in a region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first offset.
    pub offset: u64,
    /// The length.
    pub length: u64,
}

/// A change of the memory behind addresses of a region. It and what it points to are valid during the callback.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BackingChange {
    /// The name of the operation, such as "suspend".
    pub operation: *const c_char,
    /// What happens to the memory, such as GPU_VMM_BACKING_REMOVED.
    pub effect: u32,
    /// The first address of the region before the change.
    pub address: u64,
    /// The first address of the region after GPU_VMM_BACKING_MOVED, else zero.
    pub new_address: u64,
    /// The ranges of the region whose memory changes, in ascending order.
    pub parts: *const Range,
    /// The number of ranges.
    pub count: u64,
}

/// Callbacks before and after each change of the memory behind a region's addresses, for code that has registered the memory with a
/// network card, opened it in another process, or captured its addresses in a graph. Calls of one region come one at a time, on the
/// thread of the operation, and of several regions at the same time. A callback must return normally, without an exception or a
/// longjmp, and must not free the region.
///
/// A call of the library from a callback with the region that changes returns GPU_VMM_BUSY and does not wait, and so does one with
/// another region that is in use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Observer {
    /// The first argument of each callback.
    pub context: *mut c_void,
    /// Called before anything changes and before the operation waits for the devices. Any status except GPU_VMM_OK refuses the
    /// change: the operation returns GPU_VMM_BUSY, and nothing has changed. The end of a region cannot be refused. May be null.
    pub before: Option<unsafe extern "C" fn(context: *mut c_void, change: *const BackingChange) -> Status>,
    /// Called once for each `before` that did not refuse, with an outcome such as GPU_VMM_OUTCOME_CHANGED, on every path. May be
    /// null.
    pub after: Option<unsafe extern "C" fn(context: *mut c_void, change: *const BackingChange, outcome: u32)>,
    /// Called once when no callback will be called any more: the observer was removed, or the region's memory was released. May be
    /// null.
    pub released: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

impl Observer {
    pub(crate) fn check(&self) -> CallResult {
        check_reserved("observe", self.reserved)
    }
}

/// The callbacks of an observer that was added to a region.
#[derive(Debug)]
pub(crate) struct Registered(Observer);

// SAFETY: the caller of `gpu_vmm_region_on_backing_change` guarantees that any thread may call the callbacks with the context.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// # Safety
    ///
    /// The callbacks may be called by any thread until `released` has been called.
    pub(crate) unsafe fn new(observer: Observer) -> Self {
        Self(observer)
    }
}

/// Calls `call` with a change as C sees it.
fn with_change<T>(change: &Change<'_>, call: impl FnOnce(&BackingChange) -> T) -> T {
    let operation = CString::new(change.operation.name()).unwrap_or_default();
    let range = |part: &OffsetRange| Range { offset: part.offset.0, length: part.length.0 };
    let parts: Vec<Range> = change.parts.iter().map(range).collect();
    let (effect, new_address) = match change.effect {
        BackingEffect::Restored => (GPU_VMM_BACKING_RESTORED, 0),
        BackingEffect::Replaced => (GPU_VMM_BACKING_REPLACED, 0),
        BackingEffect::Moved { to } => (GPU_VMM_BACKING_MOVED, to.0),
        // A new effect is reported as the one that requires the most of an observer.
        _ => (GPU_VMM_BACKING_REMOVED, 0),
    };
    call(&BackingChange {
        operation: operation.as_ptr(),
        effect,
        address: change.address.0,
        new_address,
        parts: parts.as_ptr(),
        count: parts.len() as u64,
    })
}

impl BackingObserver for Registered {
    fn before(&self, change: &Change<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(before) = self.0.before else { return Ok(()) };
        // SAFETY: the caller of `new` guarantees the callback and its context, and the change is valid during the call.
        let answer = with_change(change, |change| running(|| unsafe { before(self.0.context, change) }));
        if answer == GPU_VMM_OK {
            Ok(())
        } else {
            Err(format!("its callback returned status {answer}").into())
        }
    }

    fn after(&self, change: &Change<'_>, outcome: BackingOutcome) {
        let Some(after) = self.0.after else { return };
        let outcome = match outcome {
            BackingOutcome::Changed => GPU_VMM_OUTCOME_CHANGED,
            BackingOutcome::Unchanged => GPU_VMM_OUTCOME_UNCHANGED,
            BackingOutcome::Poisoned => GPU_VMM_OUTCOME_POISONED,
        };
        // SAFETY: as above.
        with_change(change, |change| running(|| unsafe { after(self.0.context, change, outcome) }));
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(released) = self.0.released {
            // SAFETY: the caller of `new` guarantees the callback and its context.
            running(|| unsafe { released(self.0.context) });
        }
    }
}

/// Adds an observer to a region: its callbacks are called before and after each change of the memory behind the region's addresses.
/// `id` receives a number for gpu_vmm_region_remove_observer; it may be null. Growing and mapping call no callback: they add memory
/// where none was mapped.
///
/// After gpu_vmm_region_free, callbacks can still come until `released` is called: tensors keep the region, and memory that a
/// captured graph uses is released later.
///
/// Returns GPU_VMM_BUSY in a callback of the same region.
///
/// # Safety
///
/// `region` is null or a region. `observer` is null or points to an observer, whose callbacks any thread may call with `context`
/// until `released` has been called. `id` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_on_backing_change(
    region: *const Region,
    observer: *const Observer,
    id: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(id) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (region, observer) = (object("region", region)?, value("observer", observer)?);
            observer.check()?;
            // The region is locked before the observer exists, so that `released` is not called after an error.
            let add =
                |region: &mut gpu_vmm::Region<_>| Ok(region.on_backing_change(Registered::new(*observer)));
            let ObserverId(number) = region.memory.change(gpu_vmm::Operation::LockRegion, true, add)?;
            give_if_wanted(id, number);
            Ok(())
        }
    })
}

/// Removes an observer. Its callbacks are not called any more, except for `released`.
///
/// Returns GPU_VMM_NOT_FOUND if the region has no such observer, and GPU_VMM_BUSY in a callback of the same region.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_remove_observer(region: *const Region, id: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        match region.memory.remove_observer(ObserverId(id))? {
            true => Ok(()),
            false => Err(Failure::new(
                GPU_VMM_NOT_FOUND,
                format!("remove observer: the region has no observer {id}"),
            )),
        }
    })
}
