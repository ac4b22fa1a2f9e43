//! Physical memory in other processes: file descriptors, fabric handles, and offers of regions and memory as bytes.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::physical::Physical;
use crate::properties::Properties;
use crate::region::Region;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{bytes, check_place, clear, give, give_box, object, take_box, value};
use gpu_vmm::share::{ImportMethod, ImportOptions, Offer, Offered as KeptMemory};
use gpu_vmm::{AnyBackend, Bytes, FabricHandle as Handle, Operation, PhysicalMemory};
use std::ffi::c_void;

/// A fabric handle, which any network can carry. Every process on a machine of the same fabric that has its bytes can import the
/// memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FabricHandle {
    /// The handle.
    pub bytes: [u8; 64],
}

impl std::fmt::Debug for FabricHandle {
    /// Omits the bytes, because they grant access to the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FabricHandle(..)")
    }
}

/// A region or physical memory that other processes can import, as bytes. Keep it until all of them have imported it.
/// Calls of several threads run at the same time.
#[derive(Debug)]
pub struct Offered {
    bytes: Vec<u8>,
    _kept: KeptMemory<AnyBackend>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Offered {
    const KIND: Kind = Kind::Offer;
}

/// For gpu_vmm_region_offer and gpu_vmm_physical_offer: processes of this machine take the descriptors from this process
/// (pidfd_getfd), for which they need the same user and the right to trace it. Linux only.
pub const GPU_VMM_OFFER_BY_PROCESS: u32 = 0;
/// For gpu_vmm_region_offer and gpu_vmm_physical_offer: processes on all machines of the fabric import fabric handles.
pub const GPU_VMM_OFFER_BY_FABRIC: u32 = 1;

fn by(number: u32) -> CallResult<ImportMethod> {
    match number {
        #[cfg(target_os = "linux")]
        GPU_VMM_OFFER_BY_PROCESS => Ok(ImportMethod::Process),
        GPU_VMM_OFFER_BY_FABRIC => Ok(ImportMethod::Fabric),
        other => Err(Failure::invalid(format!(
            "offer: by is {other}; expected GPU_VMM_OFFER_BY_PROCESS (0, on Linux) or GPU_VMM_OFFER_BY_FABRIC (1)"
        ))),
    }
}

/// Exports memory as a new file descriptor, which the caller must close. The memory must have been created with
/// GPU_VMM_HANDLE_FD. Send the descriptor over a Unix socket (SCM_RIGHTS).
///
/// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it. After an error `*fd` is -1.
///
/// # Safety
///
/// `physical` is null or physical memory. `fd` is null or points to a writable number.
#[cfg(unix)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_export_fd(physical: *const Physical, fd: *mut i32) -> Status {
    use std::os::fd::IntoRawFd;
    if !fd.is_null() {
        // A caller that closes whatever it received must not close descriptor 0.
        // SAFETY: writable for a number, as the caller guarantees.
        unsafe { fd.write(-1) };
    }
    status(|| {
        check_place("fd", fd)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let exported = object("physical", physical)?.0.export()?;
            give("fd", fd, exported.into_raw_fd())
        }
    })
}

/// Imports memory from a file descriptor, which stays open and stays the caller's. `size` and `properties` must equal the
/// exported memory's: no driver reports them.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_UNSUPPORTED, or GPU_VMM_DRIVER for another kind of descriptor.
///
/// # Safety
///
/// `backend` is null or an open backend. `properties` is null or points to properties. `fd` is a descriptor that the same vendor's
/// driver exported for memory of this size and device. `physical` is null or points to a writable pointer.
#[cfg(unix)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_import_fd(
    backend: *const Backend,
    properties: *const Properties,
    size: u64,
    fd: i32,
    physical: *mut *mut Physical,
) -> Status {
    use std::os::fd::BorrowedFd;
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        if fd < 0 {
            return Err(Failure::invalid(format!("import memory: fd is {fd}; expected an open descriptor")));
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let properties = Properties::read("import memory", properties.as_ref())?;
            let import = || {
                let fd = BorrowedFd::borrow_raw(fd);
                Ok(Physical(PhysicalMemory::import(backend, fd, Bytes(size), properties)?))
            };
            give_box("physical", physical, import)
        }
    })
}

/// Exports memory as a fabric handle. The memory must have been created with GPU_VMM_HANDLE_FABRIC.
///
/// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it, or if the driver has no fabric handles.
///
/// # Safety
///
/// `physical` is null or physical memory. `handle` is null or points to a writable handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_export_fabric(
    physical: *const Physical,
    handle: *mut FabricHandle,
) -> Status {
    // SAFETY: null or writable for a handle, as the caller guarantees.
    unsafe { clear(handle) };
    status(|| {
        check_place("handle", handle)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let Handle(bytes) = object("physical", physical)?.0.export_fabric()?;
            give("handle", handle, FabricHandle { bytes })
        }
    })
}

/// Imports memory from a fabric handle. `size` and `properties` must equal the exported memory's: no driver reports them.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_UNSUPPORTED, or GPU_VMM_DRIVER for an invalid handle.
///
/// # Safety
///
/// `backend` is null or an open backend. `properties` is null or points to properties. `handle` is null or points to a handle that
/// the same vendor's driver exported for memory of this size and device. `physical` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_import_fabric(
    backend: *const Backend,
    properties: *const Properties,
    size: u64,
    handle: *const FabricHandle,
    physical: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, handle) = (&object("backend", backend)?.0, Handle(value("handle", handle)?.bytes));
            let properties = Properties::read("import memory", properties.as_ref())?;
            let import =
                || Ok(Physical(PhysicalMemory::import_fabric(backend, &handle, Bytes(size), properties)?));
            give_box("physical", physical, import)
        }
    })
}

/// Offers a region as it is now to other processes. Its memory must have been created for it. `by` is GPU_VMM_OFFER_BY_PROCESS or
/// GPU_VMM_OFFER_BY_FABRIC. Free the offer with gpu_vmm_offer_free when all processes have imported it.
///
/// From then on, the region's memory cannot be suspended or moved: other processes would keep the old memory.
///
/// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it, GPU_VMM_SUSPENDED.
///
/// # Safety
///
/// `region` is null or a region. `offer` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_offer(
    region: *const Region,
    by: u32,
    offer: *mut *mut Offered,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(offer) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (region, by) = (object("region", region)?, self::by(by)?);
            let kept = || {
                let kept =
                    region.memory.change(Operation::Offer, true, |region| KeptMemory::new(region, by))?;
                offered(kept)
            };
            give_box("offer", offer, kept)
        }
    })
}

/// Offers physical memory to other processes, as gpu_vmm_region_offer offers a region.
///
/// Returns GPU_VMM_UNSUPPORTED for memory that was not created for it.
///
/// # Safety
///
/// `backend` is null or the open backend of the memory. `physical` is null or physical memory. `offer` is null or points to a
/// writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_offer(
    backend: *const Backend,
    physical: *const Physical,
    by: u32,
    offer: *mut *mut Offered,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(offer) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, physical) = (&object("backend", backend)?.0, object("physical", physical)?);
            let by = self::by(by)?;
            give_box("offer", offer, || offered(KeptMemory::of_memory(backend, &physical.0, by)?))
        }
    })
}

fn offered(kept: KeptMemory<AnyBackend>) -> CallResult<Offered> {
    Ok(Offered { bytes: kept.offer().to_bytes()?, _kept: kept })
}

/// Returns the bytes of an offer, to be sent to other processes by any means. They are valid until the offer is freed. Treat those
/// of an offer by fabric as a secret: every process that has them can map the memory.
///
/// # Safety
///
/// `offer` is null or an offer. `data` and `size` are null or point to a writable pointer and a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_offer_bytes(
    offer: *const Offered,
    data: *mut *const c_void,
    size: *mut u64,
) -> Status {
    // SAFETY: each is null or writable, as the caller guarantees.
    unsafe {
        clear(data);
        clear(size);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let offer = object("offer", offer)?;
            check_place("data", data)?;
            give("size", size, offer.bytes.len() as u64)?;
            give("data", data, offer.bytes.as_ptr().cast())
        }
    })
}

/// Frees an offer. Processes that have imported it keep the memory. Null does nothing.
///
/// # Safety
///
/// `offer` is null or an offer that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_offer_free(offer: *mut Offered) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(offer) }
}

/// Imports an offer as a region: the devices that own its memory read and write it. Import offers only from senders that you trust:
/// an offer by process takes descriptors with the rights of the caller.
///
/// Returns GPU_VMM_PEER for bytes that are no offer, and if the process that made it has ended or has other devices;
/// GPU_VMM_ACCESS_DENIED or GPU_VMM_DRIVER if the system refuses its descriptors.
///
/// # Safety
///
/// `backend` is null or an open backend. `data` is null or points to `size` bytes. `region` is null or points to a writable
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_import(
    backend: *const Backend,
    data: *const c_void,
    size: u64,
    region: *mut *mut Region,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(region) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, bytes) = (&object("backend", backend)?.0, bytes("data", data, size)?);
            let import = || {
                let offer = Offer::from_bytes(bytes)?;
                Ok(Region::of(backend, offer.import(backend, &ImportOptions::new())?))
            };
            give_box("region", region, import)
        }
    })
}

/// Imports an offer of physical memory.
///
/// Returns the statuses of gpu_vmm_region_import, and GPU_VMM_PEER for an offer of several pieces of memory.
///
/// # Safety
///
/// `backend` is null or an open backend. `data` is null or points to `size` bytes. `physical` is null or points to a writable
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_physical_import(
    backend: *const Backend,
    data: *const c_void,
    size: u64,
    physical: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (backend, bytes) = (&object("backend", backend)?.0, bytes("data", data, size)?);
            let import = || Ok(Physical(Offer::from_bytes(bytes)?.import_memory(backend)?));
            give_box("physical", physical, import)
        }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::handles;
    use crate::region::{
        gpu_vmm_region_free, gpu_vmm_region_read, gpu_vmm_region_suspend, gpu_vmm_region_write,
    };
    use crate::status::{GPU_VMM_BUSY, GPU_VMM_INVALID_ARGUMENT, GPU_VMM_OK, GPU_VMM_PEER};
    use gpu_vmm::{DeviceId, HandleTypes, Properties as Memory, Vendor};
    use std::fs::metadata;
    use std::os::unix::fs::MetadataExt as _;
    use std::ptr::{null, null_mut};

    #[test]
    fn offered_region_is_imported_whole() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut properties = Memory::on(DeviceId(0));
        properties.handle_types = HandleTypes::FILE_DESCRIPTOR;
        let mut memory =
            gpu_vmm::Region::builder(&host).memory(properties).reserve(Bytes::mib(8)).build().unwrap();
        for units in 1..=2 {
            memory.grow_to(Bytes::mib(2 * units)).unwrap();
        }
        let (region, backend) =
            (handles::add(Region::of(&host, memory)).unwrap(), handles::add(Backend(host)).unwrap());
        let (mut offer, mut data, mut size) = (null_mut(), null(), 0);
        let (mut imported, mut cut, mut physical, mut read) = (null_mut(), null_mut(), null_mut(), [0; 5]);
        let at = Bytes::mib(2).0 - 2;
        // SAFETY: the objects are freed after their last use, and the places are writable.
        unsafe {
            let by = GPU_VMM_OFFER_BY_PROCESS;
            assert_eq!(gpu_vmm_region_offer(region, by, &raw mut offer), GPU_VMM_OK);
            assert_eq!(gpu_vmm_offer_bytes(offer, &raw mut data, &raw mut size), GPU_VMM_OK);
            assert_eq!(gpu_vmm_region_import(backend, data, size, &raw mut imported), GPU_VMM_OK);
            // Of several pieces, none is the memory.
            assert_eq!(gpu_vmm_physical_import(backend, data, size, &raw mut physical), GPU_VMM_PEER);
            assert_eq!(gpu_vmm_region_import(backend, data, size - 1, &raw mut cut), GPU_VMM_PEER);
            assert_eq!(
                gpu_vmm_physical_import(backend, c"no offer".as_ptr().cast(), 8, &raw mut physical),
                GPU_VMM_PEER
            );
            assert_eq!(gpu_vmm_region_write(region, at, b"bytes".as_ptr().cast(), 5), GPU_VMM_OK);
            assert_eq!(gpu_vmm_region_read(imported, at, read.as_mut_ptr().cast(), 5), GPU_VMM_OK);
            assert_eq!(&read, b"bytes");
            assert_eq!(gpu_vmm_region_suspend(region, null(), false, null_mut()), GPU_VMM_BUSY);
            gpu_vmm_offer_free(offer);
            assert!(handles::find(offer).is_none());
            gpu_vmm_region_free(imported);
            gpu_vmm_region_free(region);
            crate::backend::gpu_vmm_close(backend);
        }
    }

    #[test]
    fn export_without_place_leaves_no_descriptor() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut properties = Memory::on(DeviceId(0));
        properties.handle_types = HandleTypes::FILE_DESCRIPTOR;
        let memory = PhysicalMemory::create(&host, Bytes::mib(2), properties).unwrap();
        let physical = handles::add(Physical(memory)).unwrap();
        let mut fd = -1;
        // SAFETY: the memory is not released before the last call, and the place is writable.
        assert_eq!(unsafe { gpu_vmm_physical_export_fd(physical, &raw mut fd) }, GPU_VMM_OK);
        let file = |fd: &dyn std::fmt::Display| {
            metadata(format!("/proc/self/fd/{fd}")).map(|found| (found.dev(), found.ino())).ok()
        };
        let ours = file(&fd);
        // Other tests open descriptors meanwhile, but none of this memory.
        let count = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            open.filter(|one| file(&one.as_ref().unwrap().file_name().display()) == ours).count()
        };
        let before = count();
        // SAFETY: the call refuses null.
        let status = unsafe { gpu_vmm_physical_export_fd(physical, std::ptr::null_mut()) };
        assert_eq!((status, count()), (GPU_VMM_INVALID_ARGUMENT, before));
        // SAFETY: the descriptor is this test's own, and the memory is not used any more.
        unsafe {
            libc::close(fd);
            crate::physical::gpu_vmm_physical_release(physical);
        }
    }
}
