//! Multicast objects: one address for the memory of several devices. It was never run on hardware.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::{held, status};
use crate::handles::{Kind, Object};
use crate::physical::Physical;
use crate::properties::check_reserved;
use crate::status::{CallResult, Failure, GPU_VMM_BUSY, GPU_VMM_NOT_MAPPED, Status};
use crate::texts::{check_place, clear, give, give_box, give_if_wanted, object, take_box, value};
use gpu_vmm::extend::Lock;
use gpu_vmm::multicast::{Multicast as Complete, MulticastGranularity, MulticastRange, Team, TeamBuilder};
use gpu_vmm::{AnyBackend, Bytes, DeviceId, HandleTypes, Operation, Placement, WaitFor};

/// The settings of a multicast object. A struct of zeros, with devices and a size, is one of this process alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TeamOptions {
    /// The devices of this process.
    pub devices: *const u32,
    /// The number of devices of this process, at least one.
    pub device_count: u64,
    /// The size of the memory that each device can bind, rounded up to the granularity of multicast.
    pub size: u64,
    /// The number of devices that other processes add.
    pub elsewhere: u32,
    /// The handles by which it can be exported; GPU_VMM_HANDLE_FD and so on. Zero means descriptors if devices are elsewhere.
    pub handle_types: u32,
    /// Must be zero.
    pub reserved: [u64; 4],
}

/// The step that an object has reached.
#[derive(Debug)]
enum Step {
    Team(Team<AnyBackend>),
    Complete(Complete<AnyBackend>),
    Mapped(MulticastRange<AnyBackend>),
    /// Only during a call: the next step owns the object.
    Between,
}

/// One address for the memory of several devices, which kernels reach by the multimem instructions of PTX. Calls of several threads
/// take turns.
#[derive(Debug)]
pub struct Multicast {
    step: Lock<Step>,
    size: Bytes,
    granularity: MulticastGranularity,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Multicast {
    const KIND: Kind = Kind::Multicast;
}

impl TeamOptions {
    /// # Safety
    ///
    /// The devices are null or point to the number of devices.
    unsafe fn builder<'a>(&self, backend: &'a AnyBackend) -> CallResult<TeamBuilder<'a, AnyBackend>> {
        check_reserved("multicast", self.reserved)?;
        let handle_types = HandleTypes::from_bits(self.handle_types).ok_or_else(|| {
            Failure::invalid(format!("multicast: handle_types is {:#x}", self.handle_types))
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { value("devices", self.devices) }?;
        if !(1..=u64::from(DeviceId::LIMIT)).contains(&self.device_count) {
            return Err(Failure::invalid(format!("multicast: there are {} devices", self.device_count)));
        }
        // SAFETY: the caller guarantees as many devices, and the pointer is not null.
        let devices = unsafe { std::slice::from_raw_parts(self.devices, self.device_count as usize) };
        let builder =
            Team::builder(backend).size(Bytes(self.size)).elsewhere(self.elsewhere).exported_as(handle_types);
        Ok(devices.iter().fold(builder, |builder, device| builder.device(DeviceId(*device))))
    }
}

impl Multicast {
    fn of<'a>(
        builder: TeamBuilder<'a, AnyBackend>,
        make: impl FnOnce(TeamBuilder<'a, AnyBackend>) -> gpu_vmm::Result<Team<AnyBackend>>,
    ) -> CallResult<Self> {
        let granularity = builder.granularity()?;
        let team = make(builder)?;
        Ok(Self { size: team.size(), granularity, step: Lock::new(Step::Team(team)) })
    }
}

/// Ends the adding of devices. A mapped object is refused.
fn complete(step: &mut Step, operation: Operation) -> CallResult<&mut Complete<AnyBackend>> {
    if matches!(step, Step::Team(_)) {
        let Step::Team(team) = std::mem::replace(step, Step::Between) else { return Err(between()) };
        *step = Step::Complete(team.complete());
    }
    match step {
        Step::Complete(object) => Ok(object),
        Step::Mapped(_) => {
            Err(Failure::new(GPU_VMM_BUSY, format!("{operation}: the object is mapped; unmap it first")))
        }
        Step::Team(_) | Step::Between => Err(between()),
    }
}

fn between() -> Failure {
    Failure::invalid("multicast: an earlier call has ended the object")
}

/// Creates a multicast object and adds the devices of this process. EXPERIMENTAL, and it was never run on hardware: an object takes
/// resources of the whole machine. Free it with gpu_vmm_multicast_free. CUDA: cuMulticastCreate, cuMulticastAddDevice.
///
/// Returns GPU_VMM_UNSUPPORTED on HIP and host memory and for devices without multicast, GPU_VMM_NO_SUCH_DEVICE, and
/// GPU_VMM_OUT_OF_MEMORY for a size above a device's memory.
///
/// # Safety
///
/// `backend` is null or an open backend. `options` is null or points to options, whose devices are null or as many as they say.
/// `multicast` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_create(
    backend: *const Backend,
    options: *const TeamOptions,
    multicast: *mut *mut Multicast,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(multicast) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let builder = value("options", options)?.builder(&object("backend", backend)?.0)?;
            give_box("multicast", multicast, || Multicast::of(builder, TeamBuilder::create))
        }
    })
}

/// Imports a multicast object that another process has exported, and adds the devices of this process. The descriptor stays open and
/// stays the caller's. All processes together must add the number of devices with which it was created.
///
/// Returns the statuses of gpu_vmm_multicast_create, and GPU_VMM_DRIVER for another kind of descriptor.
///
/// # Safety
///
/// As for gpu_vmm_multicast_create. `fd` is a descriptor of a multicast object that was created with this size, this number of devices in
/// all, and these handle types.
#[cfg(unix)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_import_fd(
    backend: *const Backend,
    options: *const TeamOptions,
    fd: i32,
    multicast: *mut *mut Multicast,
) -> Status {
    use std::os::fd::BorrowedFd;
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(multicast) };
    status(|| {
        if fd < 0 {
            return Err(Failure::invalid(format!("import multicast object: fd is {fd}")));
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let builder = value("options", options)?.builder(&object("backend", backend)?.0)?;
            let import = |builder: TeamBuilder<'_, AnyBackend>| builder.import(BorrowedFd::borrow_raw(fd));
            give_box("multicast", multicast, || Multicast::of(builder, import))
        }
    })
}

/// Exports the object as a new file descriptor, which the caller must close, before memory is bound to it. Only the process that created
/// it can. After an error `*fd` is -1.
///
/// Returns GPU_VMM_UNSUPPORTED for an object without handle types and for an imported one, and GPU_VMM_BUSY once memory was bound.
///
/// # Safety
///
/// `multicast` is null or a multicast object. `fd` is null or points to a writable number.
#[cfg(unix)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_export_fd(multicast: *const Multicast, fd: *mut i32) -> Status {
    use std::os::fd::IntoRawFd;
    if !fd.is_null() {
        // SAFETY: writable for a number, as the caller guarantees.
        unsafe { fd.write(-1) };
    }
    status(|| {
        check_place("fd", fd)?;
        // SAFETY: guaranteed by the caller.
        let step = held(unsafe { &object("multicast", multicast)?.step }, Operation::LockRegion)?;
        let Step::Team(team) = &*step else {
            return Err(Failure::new(GPU_VMM_BUSY, "export multicast object: memory was bound already"));
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give("fd", fd, team.export()?.into_raw_fd()) }
    })
}

/// Returns the size that each device can bind, the unit of offsets and lengths, and the unit that the driver recommends. Each of the
/// three may be null. CUDA: cuMulticastGetGranularity.
///
/// # Safety
///
/// `multicast` is null or a multicast object. The others are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_sizes(
    multicast: *const Multicast,
    size: *mut u64,
    granularity: *mut u64,
    recommended: *mut u64,
) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(size);
        clear(granularity);
        clear(recommended);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let multicast = object("multicast", multicast)?;
            give_if_wanted(size, multicast.size.0);
            give_if_wanted(granularity, multicast.granularity.minimum.bytes().0);
            give_if_wanted(recommended, multicast.granularity.recommended.bytes().0);
        }
        Ok(())
    })
}

/// Binds `length` bytes of memory, from `memory_offset` on, to the object at `offset`. The binding keeps the memory. If devices are
/// elsewhere, call it when all processes have added theirs: the driver waits until then, and only the end of the process ends that.
/// CUDA: cuMulticastBindMem.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_ALREADY_MAPPED for a range with memory of the device, GPU_VMM_INVALID_ARGUMENT
/// for memory of a device outside of the team, GPU_VMM_UNSUPPORTED for memory of the host and for memory that cannot be exported if the
/// object can, and GPU_VMM_BUSY for a mapped object.
///
/// # Safety
///
/// `multicast` is null or a multicast object. `physical` is null or physical memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_bind(
    multicast: *const Multicast,
    offset: u64,
    physical: *const Physical,
    memory_offset: u64,
    length: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (multicast, physical) =
            unsafe { (object("multicast", multicast)?, object("physical", physical)?) };
        let mut step = held(&multicast.step, Operation::Bind)?;
        let object = complete(&mut step, Operation::Bind)?;
        Ok(object.bind(Bytes(offset), &physical.0, Bytes(memory_offset), Bytes(length))?)
    })
}

/// Removes the binding of a device's memory that begins at `offset`. CUDA: cuMulticastUnbind.
///
/// Returns GPU_VMM_NOT_MAPPED if no binding of the device begins there, and GPU_VMM_BUSY for a mapped object.
///
/// # Safety
///
/// `multicast` is null or a multicast object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_unbind(
    multicast: *const Multicast,
    device: u32,
    offset: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let mut step = held(unsafe { &object("multicast", multicast)?.step }, Operation::Unbind)?;
        let object = complete(&mut step, Operation::Unbind)?;
        Ok(object.unbind(DeviceId(device), Bytes(offset))?)
    })
}

/// Maps the object with read and write access for all devices of this process, and returns its address, for kernels with multimem
/// instructions alone: any other access is undefined. CUDA: cuMemAddressReserve, cuMemMap, cuMemSetAccess.
///
/// Returns GPU_VMM_NOT_MAPPED if a device of this process has no binding, and GPU_VMM_BUSY for a mapped object.
///
/// # Safety
///
/// `multicast` is null or a multicast object. `address` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_map(multicast: *const Multicast, address: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(address) };
    status(|| {
        check_place("address", address)?;
        // SAFETY: guaranteed by the caller.
        let mut step = held(unsafe { &object("multicast", multicast)?.step }, Operation::MapMulticast)?;
        complete(&mut step, Operation::MapMulticast)?;
        let Step::Complete(object) = std::mem::replace(&mut *step, Step::Between) else {
            return Err(between());
        };
        match object.map(Placement::Anywhere) {
            Ok(range) => {
                let first = range.address().0;
                *step = Step::Mapped(range);
                // SAFETY: guaranteed by the caller.
                unsafe { give("address", address, first) }
            }
            Err(failed) => {
                let failure = Failure::from(failed.error());
                *step = Step::Complete(failed.into_kept());
                Err(failure)
            }
        }
    })
}

/// Waits for the devices of this process and unmaps the object. Its bindings stay. No other process may store to it any more.
///
/// Returns GPU_VMM_NOT_MAPPED if it is not mapped, and GPU_VMM_BUSY for a capture.
///
/// # Safety
///
/// `multicast` is null or a multicast object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_unmap(multicast: *const Multicast) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let mut step = held(unsafe { &object("multicast", multicast)?.step }, Operation::MapMulticast)?;
        if !matches!(&*step, Step::Mapped(_)) {
            let text = "unmap multicast object: it is not mapped";
            return Err(Failure::new(GPU_VMM_NOT_MAPPED, text));
        }
        let Step::Mapped(range) = std::mem::replace(&mut *step, Step::Between) else { return Err(between()) };
        match range.unmap(WaitFor::all_devices()) {
            Ok(object) => {
                *step = Step::Complete(object);
                Ok(())
            }
            Err(failed) => {
                let failure = Failure::from(failed.error());
                *step = Step::Mapped(failed.into_kept());
                Err(failure)
            }
        }
    })
}

/// Waits for the devices of this process, unmaps, unbinds and releases the object. Null does nothing.
///
/// # Safety
///
/// `multicast` is null or comes from a function of this library, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_multicast_free(multicast: *mut Multicast) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(multicast) }
}
