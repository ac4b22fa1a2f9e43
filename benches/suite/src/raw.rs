//! The driver's own calls with Rust types, and with errors instead of codes.
#![allow(unsafe_code)]

use crate::stop::{StepResult, Stop};
use gpu_vmm_core::{Address, Bytes, DeviceId, Stream, Vendor};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::abi::{self, AccessDesc, Code, Location, Prop};
use gpu_vmm_testkit::raw::{Driver, ImportBy};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The driver of a backend, with the device for all calls. The library or this module must have reserved the addresses of
/// mappings, and the library must map nothing there meanwhile.
#[derive(Clone)]
pub(crate) struct Raw {
    driver: Arc<dyn Driver>,
    device: DeviceId,
}

/// Physical memory.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    number: u64,
    pub(crate) size: Bytes,
}

/// A plain allocation.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    pub(crate) at: Address,
    pub(crate) size: Bytes,
}

/// Page-locked memory of the host.
#[derive(Clone, Copy)]
pub(crate) struct Pinned(*mut c_void);

// SAFETY: the memory is the process's and bound to no thread.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Copies to other memory of the host, of the same size.
    pub(crate) fn copy_to(self, to: *mut u8, size: Bytes) {
        // SAFETY: both have this size, and no stream uses them.
        unsafe { to.copy_from_nonoverlapping(self.0.cast(), number(size)) };
    }

    /// Copies from other memory of the host, of the same size.
    pub(crate) fn copy_from(self, from: *const u8, size: Bytes) {
        // SAFETY: as above.
        unsafe { from.copy_to_nonoverlapping(self.0.cast(), number(size)) };
    }
}

/// A stream.
#[derive(Clone, Copy)]
pub(crate) struct RawStream(*mut c_void);

// SAFETY: a stream is a name that the driver accepts from any thread.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// Returns the stream for the library.
    pub(crate) fn stream(self) -> Stream<'static> {
        // SAFETY: streams of benchmarks are never destroyed.
        unsafe { Stream::from_raw(self.0) }
    }
}

fn number(size: Bytes) -> usize {
    size.0 as usize
}

impl Raw {
    pub(crate) fn below<B: TestKit>(backend: &B, device: DeviceId) -> Result<Self, String> {
        Ok(Self { driver: gpu_vmm_testkit::raw::below(backend, device, None)?.into(), device })
    }

    /// Returns the same driver for another device.
    pub(crate) fn on(&self, device: DeviceId) -> Self {
        Self { driver: Arc::clone(&self.driver), device }
    }

    /// Returns the vendor's name of a call.
    pub(crate) fn name(&self, cuda: &str, hip: &str, host: &str) -> String {
        match self.driver.vendor() {
            Vendor::Cuda => cuda,
            Vendor::Hip => hip,
            _ => host,
        }
        .to_owned()
    }

    fn check(&self, call: &str, code: Code) -> StepResult {
        match code {
            Code::SUCCESS => Ok(()),
            code => Err(Stop::Failed(format!(
                "the driver's {call} returned {} ({})",
                self.driver.name(code),
                code.0
            ))),
        }
    }

    /// Makes the device the calling thread's current one.
    pub(crate) fn enter(&self) -> StepResult {
        self.check("make current", self.driver.make_current(self.device.0 as i32))
    }

    fn location(&self) -> Location {
        Location { kind: abi::DEVICE, id: self.device.0 as i32 }
    }

    pub(crate) fn reserve(&self, size: Bytes) -> StepResult<Address> {
        let mut address = 0;
        // SAFETY: one address is written.
        let code = unsafe { self.driver.address_reserve(&raw mut address, number(size), 0, 0, 0) };
        self.check("reserve", code)?;
        Ok(Address(address))
    }

    pub(crate) fn free_addresses(&self, at: Address, size: Bytes) -> StepResult {
        // SAFETY: the driver checks numbers.
        self.check("address free", unsafe { self.driver.address_free(at.0, number(size)) })
    }

    pub(crate) fn create(&self, size: Bytes) -> StepResult<Handle> {
        self.create_for(size, abi::NO_HANDLE)
    }

    pub(crate) fn create_shareable(&self, size: Bytes) -> StepResult<Handle> {
        self.create_for(size, abi::DESCRIPTOR)
    }

    fn create_for(&self, size: Bytes, handle_types: i32) -> StepResult<Handle> {
        let prop = Prop {
            kind: abi::PINNED,
            handle_types,
            location: self.location(),
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let mut handle = 0;
        // SAFETY: one handle is written, one description read.
        let code = unsafe { self.driver.create(&raw mut handle, number(size), &raw const prop, 0) };
        self.check("create", code)?;
        Ok(Handle { number: handle, size })
    }

    /// Maps a whole handle at a free place.
    pub(crate) fn map(&self, at: Address, handle: Handle) -> StepResult {
        // SAFETY: the driver checks numbers.
        self.check("map", unsafe { self.driver.map(at.0, number(handle.size), 0, handle.number, 0) })
    }

    /// Gives the device read and write access to consecutive mappings.
    pub(crate) fn open(&self, at: Address, size: Bytes) -> StepResult {
        let access = AccessDesc { location: self.location(), flags: abi::RW };
        // SAFETY: one description is read.
        let code = unsafe { self.driver.set_access(at.0, number(size), &raw const access, 1) };
        self.check("set access", code)
    }

    /// Unmaps consecutive mappings.
    pub(crate) fn unmap(&self, at: Address, size: Bytes) -> StepResult {
        // SAFETY: nothing uses them.
        self.check("unmap", unsafe { self.driver.unmap(at.0, number(size)) })
    }

    pub(crate) fn release(&self, handle: Handle) -> StepResult {
        // SAFETY: the driver checks numbers.
        self.check("release", unsafe { self.driver.release(handle.number) })
    }

    /// Exports memory that was created for sharing as a descriptor.
    pub(crate) fn export(&self, handle: Handle) -> StepResult<OwnedFd> {
        let mut fd: i32 = -1;
        // SAFETY: for this type the driver writes one int.
        let code = unsafe { self.driver.export((&raw mut fd).cast(), handle.number, abi::DESCRIPTOR, 0) };
        self.check("export", code)?;
        // SAFETY: the driver passes the descriptor's ownership.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports the memory of a descriptor that a driver has exported.
    pub(crate) fn import(&self, fd: BorrowedFd<'_>, size: Bytes) -> StepResult<Handle> {
        let (mut handle, mut descriptor) = (0, fd.as_raw_fd());
        let shareable = match self.driver.import_by() {
            ImportBy::Value => std::ptr::without_provenance_mut(descriptor as usize),
            ImportBy::Pointer => (&raw mut descriptor).cast(),
            ImportBy::Unknown => {
                return Err(Stop::Skipped(
                    "the way in which this version imports a descriptor is unknown".to_owned(),
                ));
            }
        };
        // SAFETY: a driver has exported the descriptor, which is passed in this version's form.
        let code = unsafe { self.driver.import(&raw mut handle, shareable, abi::DESCRIPTOR) };
        self.check("import", code)?;
        Ok(Handle { number: handle, size })
    }

    pub(crate) fn plain(&self, size: Bytes) -> StepResult<Plain> {
        let mut at = 0;
        // SAFETY: one address is written.
        self.check("allocate", unsafe { self.driver.allocate(&raw mut at, number(size)) })?;
        Ok(Plain { at: Address(at), size })
    }

    pub(crate) fn free(&self, plain: Plain) -> StepResult {
        // SAFETY: nothing uses it.
        self.check("free", unsafe { self.driver.free(plain.at.0) })
    }

    /// Copies the beginning of one allocation to another.
    pub(crate) fn copy(&self, to: Plain, from: Plain, length: Bytes) -> StepResult {
        let length = number(length.min(to.size).min(from.size));
        // SAFETY: both have at least `length` bytes.
        self.check("copy", unsafe { self.driver.copy_on_device(to.at.0, from.at.0, length) })
    }

    /// Gives the current device access to another's plain allocations: without it the driver copies through the host.
    pub(crate) fn enable_peer(&self, peer: DeviceId) -> StepResult {
        match self.driver.enable_peer(peer.0 as i32) {
            Code::PEER_ALREADY_ENABLED => Ok(()),
            code => self.check("enable peer access", code),
        }
    }

    /// Copies another device's allocation to one of this device with the same size.
    pub(crate) fn copy_peer(&self, to: Plain, from: Plain, peer: DeviceId) -> StepResult {
        let (here, there) = (self.device.0 as i32, peer.0 as i32);
        // SAFETY: both have this size.
        let code = unsafe { self.driver.copy_peer(to.at.0, here, from.at.0, there, number(to.size)) };
        self.check("copy peer", code)
    }

    /// Writes zeros, and waits.
    pub(crate) fn clear(&self, plain: &Plain) -> StepResult {
        // SAFETY: the allocation has this size.
        self.check("set", unsafe { self.driver.set(plain.at.0, 0, number(plain.size)) })?;
        self.synchronize()
    }

    pub(crate) fn synchronize(&self) -> StepResult {
        // SAFETY: it takes no argument.
        self.check("synchronize", unsafe { self.driver.synchronize() })
    }

    /// Creates a stream that waits for no other one. It is not destroyed: benchmarks end soon.
    pub(crate) fn stream(&self) -> StepResult<RawStream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: one stream is written.
        let code = unsafe { self.driver.stream_create(&raw mut stream, abi::NON_BLOCKING) };
        self.check("stream create", code)?;
        Ok(RawStream(stream))
    }

    pub(crate) fn wait_for(&self, stream: RawStream) -> StepResult {
        // SAFETY: streams are never destroyed.
        self.check("stream synchronize", unsafe { self.driver.stream_synchronize(stream.0) })
    }

    /// Sets how much memory the device's own pool keeps.
    pub(crate) fn keep_in_pool(&self, most: Bytes) -> StepResult {
        let (mut pool, mut keep) = (std::ptr::null_mut(), most.0);
        // SAFETY: one pool is written.
        let code = unsafe { self.driver.default_pool(&raw mut pool, self.device.0 as i32) };
        self.check("default pool", code)?;
        // SAFETY: the threshold is a number of 64 bits.
        let code = unsafe { self.driver.pool_set(pool, abi::RELEASE_THRESHOLD, (&raw mut keep).cast()) };
        self.check("pool set attribute", code)
    }

    pub(crate) fn allocate_async(&self, size: Bytes, stream: RawStream) -> StepResult<u64> {
        let mut at = 0;
        // SAFETY: one address is written, and the stream is never destroyed.
        let code = unsafe { self.driver.allocate_async(&raw mut at, number(size), stream.0) };
        self.check("allocate on a stream", code)?;
        Ok(at)
    }

    pub(crate) fn free_async(&self, at: u64, stream: RawStream) -> StepResult {
        // SAFETY: nothing uses it, and the stream is never destroyed.
        self.check("free on a stream", unsafe { self.driver.free_async(at, stream.0) })
    }

    /// Allocates page-locked memory and writes to it, so that nothing is populated while a copy is timed.
    pub(crate) fn pin(&self, size: Bytes) -> StepResult<Pinned> {
        let pinned = self.pin_unwritten(size)?;
        // SAFETY: the allocation has this size.
        unsafe { pinned.0.cast::<u8>().write_bytes(1, number(size)) };
        Ok(pinned)
    }

    pub(crate) fn pin_unwritten(&self, size: Bytes) -> StepResult<Pinned> {
        let mut start = std::ptr::null_mut();
        // SAFETY: one address is written.
        let code = unsafe { self.driver.host_allocate(&raw mut start, number(size), abi::PORTABLE) };
        self.check("allocate page-locked memory", code)?;
        Ok(Pinned(start))
    }

    pub(crate) fn unpin(&self, pinned: Pinned) -> StepResult {
        // SAFETY: nothing uses it.
        self.check("free page-locked memory", unsafe { self.driver.host_free(pinned.0) })
    }

    /// Queues a copy to page-locked memory of the same size.
    pub(crate) fn copy_out(&self, to: Pinned, from: Plain, stream: RawStream) -> StepResult {
        // SAFETY: both have this size, and are unused until the stream has been waited for.
        let code = unsafe { self.driver.copy_to_host_later(to.0, from.at.0, number(from.size), stream.0) };
        self.check("copy to the host", code)
    }

    /// Queues a copy from page-locked memory of the same size.
    pub(crate) fn copy_back(&self, to: Plain, from: Pinned, stream: RawStream) -> StepResult {
        // SAFETY: as above.
        let code = unsafe { self.driver.copy_from_host_later(to.at.0, from.0, number(to.size), stream.0) };
        self.check("copy from the host", code)
    }
}
