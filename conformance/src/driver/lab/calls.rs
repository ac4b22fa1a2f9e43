//! The calls, each with its result as a `Result` and with a guard for the object it creates.
#![allow(unsafe_code)] // calls into drivers

use super::guards::{Capture, Mapping, Memory, Plain, Reserved, Stream};
use super::{CallResult, Lab, Refusal};
use crate::subject::skip;
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::ImportBy;
use gpu_vmm_testkit::raw::abi::{self, AccessDesc, Code, IpcHandle, Location, Prop};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

// SAFETY of every call here: pointers refer to values of this function, or to a caller's slice with its length. All other
// arguments are numbers that the driver must check, as the module `lab` says.
impl Lab {
    /// Converts a code to a result; `call` is the function's name without the vendor's prefix.
    fn answer<T>(&self, call: &str, code: Code, value: T) -> CallResult<T> {
        if code == Code::SUCCESS {
            return Ok(value);
        }
        let prefix = match self.vendor() {
            Vendor::Cuda => "cu",
            Vendor::Hip => "hip",
            _ => "the counterpart of cu",
        };
        Err(Refusal { call: format!("{prefix}{call}"), code, name: self.driver.name(code) })
    }

    pub(in crate::driver) fn make_current(&self, device: i32) {
        let code = self.driver.make_current(device);
        self.must(self.answer("(make a device current)", code, ()));
    }

    pub(in crate::driver) fn reserve(
        &self,
        size: usize,
        alignment: usize,
        hint: u64,
        flags: u64,
    ) -> CallResult<Reserved<'_>> {
        let mut base = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.address_reserve(&raw mut base, size, alignment, hint, flags) };
        self.answer("MemAddressReserve", code, ())?;
        Ok(Reserved::new(self, base, size))
    }

    pub(in crate::driver) fn address_free(&self, base: u64, size: usize) -> CallResult<()> {
        // SAFETY: as said above.
        let code = unsafe { self.driver.address_free(base, size) };
        if self.keeps_addresses {
            self.spoil();
        }
        self.answer("MemAddressFree", code, ())
    }

    pub(in crate::driver) fn create(&self, size: usize, prop: &Prop, flags: u64) -> CallResult<Memory<'_>> {
        let mut handle = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.create(&raw mut handle, size, prop, flags) };
        self.answer("MemCreate", code, ())?;
        Ok(Memory::new(self, handle, size))
    }

    pub(in crate::driver) fn release(&self, handle: u64) -> CallResult<()> {
        // SAFETY: as said above.
        self.answer("MemRelease", unsafe { self.driver.release(handle) }, ())
    }

    /// Makes the call alone, without a guard: success does not guarantee that memory is mapped.
    pub(in crate::driver) fn map_raw(
        &self,
        address: u64,
        size: usize,
        offset: usize,
        handle: u64,
        flags: u64,
    ) -> CallResult<()> {
        // SAFETY: as said above.
        let code = unsafe { self.driver.map(address, size, offset, handle, flags) };
        self.answer("MemMap", code, ())
    }

    /// Maps a whole allocation where nothing is mapped.
    pub(in crate::driver) fn map(&self, address: u64, memory: &Memory<'_>) -> Mapping<'_> {
        self.must(self.map_raw(address, memory.size, 0, memory.handle, 0));
        Mapping::new(self, address, memory.size)
    }

    /// Maps a whole allocation, readable and writable for the chosen device.
    pub(in crate::driver) fn map_rw(&self, address: u64, memory: &Memory<'_>) -> Mapping<'_> {
        let mapping = self.map(address, memory);
        self.must(self.set_access(address, memory.size, &[self.grant(abi::RW)]));
        mapping
    }

    pub(in crate::driver) fn unmap(&self, address: u64, size: usize) -> CallResult<()> {
        // SAFETY: as said above.
        self.answer("MemUnmap", unsafe { self.driver.unmap(address, size) }, ())
    }

    pub(in crate::driver) fn set_access(
        &self,
        address: u64,
        size: usize,
        descs: &[AccessDesc],
    ) -> CallResult<()> {
        // SAFETY: as said above.
        let code = unsafe { self.driver.set_access(address, size, descs.as_ptr(), descs.len()) };
        self.answer("MemSetAccess", code, ())
    }

    pub(in crate::driver) fn get_access(&self, place: Location, address: u64) -> CallResult<i32> {
        // A number that no driver returns.
        let mut flags = 0xbad;
        // SAFETY: as said above.
        let code = unsafe { self.driver.get_access(&raw mut flags, &raw const place, address) };
        self.answer("MemGetAccess", code, flags as i32)
    }

    /// Returns the chosen device's access at an address.
    pub(in crate::driver) fn access_at(&self, address: u64) -> CallResult<i32> {
        self.get_access(super::place(self.device), address)
    }

    /// Returns true if memory is mapped at the address.
    pub(in crate::driver) fn is_mapped(&self, address: u64) -> bool {
        self.access_at(address).is_ok()
    }

    pub(in crate::driver) fn granularity(&self, prop: &Prop, option: i32) -> CallResult<usize> {
        let mut granularity = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.granularity(&raw mut granularity, prop, option) };
        self.answer("MemGetAllocationGranularity", code, granularity)
    }

    pub(in crate::driver) fn properties(&self, handle: u64) -> CallResult<Prop> {
        let mut prop = Prop { kind: -1, location: super::place(-1), ..self.prop() };
        // SAFETY: as said above.
        let code = unsafe { self.driver.properties(&raw mut prop, handle) };
        self.answer("MemGetAllocationPropertiesFromHandle", code, prop)
    }

    /// Returns the handle alone: the rule decides whether it is valid and must be released.
    pub(in crate::driver) fn retain(&self, address: u64) -> CallResult<u64> {
        let mut handle = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.retain(&raw mut handle, address) };
        self.answer("MemRetainAllocationHandle", code, handle)
    }

    pub(in crate::driver) fn export(&self, handle: u64, kind: i32, flags: u64) -> CallResult<OwnedFd> {
        let mut fd = [-1_i32; 16];
        // SAFETY: as said above. No type of handle is longer.
        let code = unsafe { self.driver.export((&raw mut fd).cast(), handle, kind, flags) };
        // SAFETY: on success, the caller owns the returned descriptor.
        self.answer("MemExportToShareableHandle", code, ()).map(|()| unsafe { OwnedFd::from_raw_fd(fd[0]) })
    }

    /// Imports a descriptor in the way this version expects.
    pub(in crate::driver) fn import(&self, fd: i32) -> CallResult<Memory<'_>> {
        let mut fd = fd;
        match self.driver.import_by() {
            ImportBy::Value => self.import_raw(fd as usize as *mut c_void),
            ImportBy::Pointer => self.import_raw((&raw mut fd).cast()),
            ImportBy::Unknown => {
                skip("how a descriptor is imported depends on the build, and the wrong way crashes")
            }
        }
    }

    /// Exports and imports memory, for a second handle to it.
    pub(in crate::driver) fn imported(&self, memory: &Memory<'_>) -> Memory<'_> {
        let fd = self.must(self.export(memory.handle, abi::DESCRIPTOR, 0));
        self.must(self.import(fd.as_raw_fd())).sized(memory.size)
    }

    /// Imports a handle. The driver does not report the size, so it is 0.
    pub(in crate::driver) fn import_raw(&self, shareable: *mut c_void) -> CallResult<Memory<'_>> {
        let mut handle = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.import(&raw mut handle, shareable, abi::DESCRIPTOR) };
        self.answer("MemImportFromShareableHandle", code, ())?;
        self.imports.fetch_add(1, Ordering::Relaxed);
        Ok(Memory::new(self, handle, 0))
    }

    pub(in crate::driver) fn imports_by(&self) -> ImportBy {
        self.driver.import_by()
    }

    /// Returns base and size of the allocation that contains an address.
    pub(in crate::driver) fn address_range(&self, address: u64) -> CallResult<(u64, usize)> {
        let (mut base, mut size) = (0, 0);
        // SAFETY: as said above.
        let code = unsafe { self.driver.address_range(&raw mut base, &raw mut size, address) };
        self.answer("MemGetAddressRange", code, (base, size))
    }

    /// Exports a range as one dma-buf.
    pub(in crate::driver) fn dma_buf(&self, address: u64, size: usize) -> CallResult<OwnedFd> {
        let mut fd = -1_i32;
        // SAFETY: as said above.
        let code =
            unsafe { self.driver.handle_for_range((&raw mut fd).cast(), address, size, abi::DMA_BUF, 0) };
        // SAFETY: on success, the caller owns the returned descriptor.
        self.answer("MemGetHandleForAddressRange", code, ()).map(|()| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Returns free and total memory of the current device.
    pub(in crate::driver) fn memory_info(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: as said above.
        let code = unsafe { self.driver.memory_info(&raw mut free, &raw mut total) };
        self.must(self.answer("MemGetInfo", code, (free, total)))
    }

    pub(in crate::driver) fn allocate(&self, size: usize) -> Plain<'_> {
        let mut address = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.allocate(&raw mut address, size) };
        self.must(self.answer("MemAlloc", code, ()));
        Plain { lab: self, address }
    }

    pub(in crate::driver) fn free(&self, address: u64) -> CallResult<()> {
        // SAFETY: as said above.
        self.answer("MemFree", unsafe { self.driver.free(address) }, ())
    }

    pub(in crate::driver) fn ipc_handle(&self, address: u64) -> CallResult<()> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: as said above.
        let code = unsafe { self.driver.ipc_handle(&raw mut handle, address) };
        self.answer("IpcGetMemHandle", code, ())
    }

    /// Copies from the host and waits: CUDA's call returns when pageable bytes are staged, before they reach the device.
    pub(in crate::driver) fn write(&self, to: u64, bytes: &[u8]) -> CallResult<()> {
        // SAFETY: as said above.
        let code = unsafe { self.driver.copy_from_host(to, bytes.as_ptr().cast(), bytes.len()) };
        self.answer("MemcpyHtoD", code, ())?;
        self.synchronize()
    }

    pub(in crate::driver) fn read(&self, from: u64, length: usize) -> CallResult<Vec<u8>> {
        let mut bytes = vec![0xee; length];
        // SAFETY: as said above.
        let code = unsafe { self.driver.copy_to_host(bytes.as_mut_ptr().cast(), from, length) };
        self.answer("MemcpyDtoH", code, bytes)
    }

    /// Reads a byte with the CPU. If the driver reported access that the CPU lacks, this ends the process.
    pub(in crate::driver) fn peek(&self, at: u64) -> u8 {
        // SAFETY: the rule has granted the CPU access, and no device is at work.
        unsafe { std::ptr::with_exposed_provenance::<u8>(at as usize).read_volatile() }
    }

    /// Sets bytes and waits.
    pub(in crate::driver) fn set(&self, at: u64, value: u8, length: usize) -> CallResult<()> {
        // SAFETY: as said above.
        let code = unsafe { self.driver.set(at, value, length) };
        self.answer("MemsetD8", code, ())?;
        self.synchronize()
    }

    pub(in crate::driver) fn set_later(
        &self,
        at: u64,
        value: u8,
        length: usize,
        stream: &Stream<'_>,
    ) -> CallResult<()> {
        // SAFETY: as said above; the stream is alive.
        let code = unsafe { self.driver.set_later(at, value, length, stream.raw) };
        self.answer("MemsetD8Async", code, ())
    }

    pub(in crate::driver) fn synchronize(&self) -> CallResult<()> {
        // SAFETY: as said above.
        self.answer("CtxSynchronize", unsafe { self.driver.synchronize() }, ())
    }

    /// Creates a stream that does not synchronize with other streams.
    pub(in crate::driver) fn stream(&self) -> Stream<'_> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: as said above.
        let code = unsafe { self.driver.stream_create(&raw mut raw, abi::NON_BLOCKING) };
        self.must(self.answer("StreamCreate", code, ()));
        Stream { lab: self, raw }
    }

    pub(in crate::driver) fn capture<'a>(&'a self, stream: &'a Stream<'a>, mode: i32) -> Capture<'a> {
        // SAFETY: as said above; the stream is alive.
        let code = unsafe { self.driver.begin_capture(stream.raw, mode) };
        self.must(self.answer("StreamBeginCapture", code, ()));
        Capture { stream: Some(stream) }
    }

    pub(in crate::driver) fn device_count(&self) -> i32 {
        let mut count = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.device_count(&raw mut count) };
        self.must(self.answer("DeviceGetCount", code, count))
    }

    pub(in crate::driver) fn attribute(&self, attribute: i32) -> CallResult<i32> {
        let mut value = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.device_attribute(&raw mut value, attribute, self.device) };
        self.answer("DeviceGetAttribute", code, value)
    }

    pub(in crate::driver) fn can_access(&self, device: i32, peer: i32) -> bool {
        let mut can = 0;
        // SAFETY: as said above.
        let code = unsafe { self.driver.can_access(&raw mut can, device, peer) };
        self.must(self.answer("DeviceCanAccessPeer", code, can != 0))
    }

    /// Makes a call with one null pointer and otherwise correct arguments.
    pub(in crate::driver) fn with_null(&self, null: Null) -> CallResult<()> {
        let (prop, here) = (self.prop(), super::place(self.device));
        let (mut number, mut size) = (0_u64, 0_usize);
        let number = &raw mut number;
        let nothing = std::ptr::null_mut::<u64>();
        let driver = &self.driver;
        // SAFETY: as said above. The driver must refuse the null pointer.
        let (call, code) = unsafe {
            match null {
                Null::Reserve => ("MemAddressReserve", driver.address_reserve(nothing, self.unit, 0, 0, 0)),
                Null::Create => ("MemCreate", driver.create(nothing, self.unit, &raw const prop, 0)),
                Null::CreateProp => ("MemCreate", driver.create(number, self.unit, std::ptr::null(), 0)),
                Null::Granularity => (
                    "MemGetAllocationGranularity",
                    driver.granularity(std::ptr::null_mut(), &raw const prop, abi::MINIMUM),
                ),
                Null::GranularityProp => (
                    "MemGetAllocationGranularity",
                    driver.granularity(&raw mut size, std::ptr::null(), abi::MINIMUM),
                ),
                Null::SetAccess(at) => {
                    ("MemSetAccess", driver.set_access(at, self.unit, std::ptr::null(), 1))
                }
                Null::GetAccess(at) => ("MemGetAccess", driver.get_access(nothing, &raw const here, at)),
                Null::GetAccessPlace(at) => ("MemGetAccess", driver.get_access(number, std::ptr::null(), at)),
                Null::Properties(handle) => {
                    ("MemGetAllocationPropertiesFromHandle", driver.properties(std::ptr::null_mut(), handle))
                }
                Null::Retain(at) => ("MemRetainAllocationHandle", driver.retain(nothing, at)),
                Null::Export(handle) => (
                    "MemExportToShareableHandle",
                    driver.export(std::ptr::null_mut(), handle, abi::DESCRIPTOR, 0),
                ),
            }
        };
        self.answer(call, code, ())
    }

    pub(super) fn destroy_stream(&self, stream: *mut c_void) {
        // SAFETY: as said above. The guard owns the stream.
        unsafe { self.driver.stream_destroy(stream) };
    }

    /// Returns true if a stream still has work to do.
    pub(super) fn is_busy(&self, stream: *mut c_void) -> bool {
        // SAFETY: as said above.
        unsafe { self.driver.stream_query(stream) == Code::NOT_READY }
    }

    pub(super) fn wait(&self, stream: *mut c_void) -> CallResult<()> {
        // SAFETY: as said above.
        self.answer("StreamSynchronize", unsafe { self.driver.stream_synchronize(stream) }, ())
    }

    /// Ends a capture and destroys the captured graph.
    pub(super) fn end_capture(&self, stream: *mut c_void) -> CallResult<()> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: as said above.
        let code = unsafe { self.driver.end_capture(stream, &raw mut graph) };
        if code == Code::SUCCESS && !graph.is_null() {
            // SAFETY: as said above. The graph was created just now.
            unsafe { self.driver.graph_destroy(graph) };
        }
        self.answer("StreamEndCapture", code, ())
    }
}

/// The call and its pointer that is null; the fields are correct values for the other arguments.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver) enum Null {
    Reserve,
    Create,
    CreateProp,
    Granularity,
    GranularityProp,
    SetAccess(u64),
    GetAccess(u64),
    GetAccessPlace(u64),
    Properties(u64),
    Retain(u64),
    Export(u64),
}
