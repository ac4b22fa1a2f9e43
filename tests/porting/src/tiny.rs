use gpu_vmm::extend::{Deferred, DropLog, InstanceId, Process, host_out_of_memory, out_of_addresses};
use gpu_vmm::{
    Access, Address, AddressRange, Alignment, Backend, Bytes, Capability, CopyCalls, CopyStream, Detail, Device, DeviceId,
    DriverError, DriverInfo, Error, Event, Evidence, FabricHandle, Feature, Grant, Granularity, Handle, MemoryCalls,
    MemoryInfo, Operation, Pinned, Properties, Quirk, Region, Reservation, Result, Stream, SyncCalls, Vendor, WaitFor,
};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, atomic::{AtomicU64, Ordering}};

/// One device: an amount of host memory.
#[derive(Clone, Debug)]
pub struct Tiny(Arc<State>);

#[derive(Debug)]
pub struct State {
    instance: InstanceId,
    process: Process,
    devices: Vec<Device>,
    used: AtomicU64,
    log: DropLog,
    deferred: Deferred,
}

impl Tiny {
    pub fn open() -> Self {
        let (total_memory, granularity) = (Bytes::gib(1), Granularity::new(Bytes::kib(64)).expect("a power of two"));
        let device = Device { id: DeviceId(0), name: "tiny".into(), uuid: None, total_memory, granularity, unusable: None, no_virtual_memory: None, compute_mode: None };
        Self(Arc::new(State {
            instance: InstanceId::unique(), process: Process::current(), devices: vec![device],
            used: AtomicU64::new(0), log: DropLog::new(), deferred: Deferred::new(),
        }))
    }
}

/// An error that a driver would return.
fn refusal(call: &'static str, code: i64, name: &'static str) -> DriverError {
    DriverError { call, code, name: name.into(), description: "refused".into() }
}

fn unsupported<T>(operation: Operation, reason: &str) -> Result<T> {
    Err(Error::new(operation, Detail::Unsupported { reason: reason.to_owned() }))
}

// SAFETY: the devices never change, each opened value has an instance of its own, and the CPU gets no access to mappings.
unsafe impl Backend for Tiny {
    fn vendor(&self) -> Vendor { Vendor::Host }
    fn instance(&self) -> InstanceId { self.0.instance }
    fn driver(&self) -> DriverInfo {
        DriverInfo { version: "1.0".into(), version_number: 1, library: "this program".into() }
    }
    fn devices(&self) -> &[Device] { &self.0.devices }
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        let total = self.device(Operation::QueryMemory, device)?.total_memory;
        Ok(MemoryInfo { free: Bytes(total.0 - self.0.used.load(Ordering::Relaxed)), total })
    }
    fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        [device, owner].iter().try_for_each(|one| self.device(Operation::QueryPeerAccess, *one).map(drop))?;
        Ok(device == owner)
    }
    fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> {
        self.device(Operation::QueryCapabilities, device)?;
        let of = |feature: &Feature| match feature {
            Feature::VirtualMemory | Feature::FixedAddress | Feature::ReadOnlyAccess => {
                Capability::yes(*feature, Evidence::Design, "memfd_create, mmap and mprotect")
            }
            _ => Capability::no(*feature, Evidence::Design, "not in this example"),
        };
        Ok(Feature::ALL.iter().map(of).collect())
    }
    fn quirks(&self) -> Vec<Quirk> { Vec::new() }
    fn unmaps_runs(&self) -> bool { true }
    fn check_host_access(&self, operation: Operation, _: &Properties) -> Result<()> {
        unsupported(operation, "this backend gives the CPU no access")
    }
    fn drop_log(&self) -> &DropLog { &self.0.log }
    fn deferred(&self) -> &Deferred { &self.0.deferred }
}

/// A memfd. It counts as used until the handle and the last mapping are gone.
#[derive(Debug)]
pub struct Memory { state: Arc<State>, file: OwnedFd, size: Bytes }

impl Drop for Memory {
    fn drop(&mut self) { self.state.used.fetch_sub(self.size.0, Ordering::Relaxed); }
}

#[derive(Debug)]
pub struct TinyHandle { memory: Arc<Memory>, properties: Properties }

// SAFETY: size and properties are those of the creation, and never change.
unsafe impl Handle for TinyHandle {
    fn size(&self) -> Bytes { self.memory.size }
    fn properties(&self) -> Properties { self.properties }
    fn export(&self) -> Result<OwnedFd> { unsupported(Operation::ExportMemory, "the memory is not shareable") }
    fn export_fabric(&self) -> Result<FabricHandle> { unsupported(Operation::ExportMemory, "the memory is not shareable") }
}

/// `mmap` over addresses that the caller owns: of a file, or of nothing.
unsafe fn remap(operation: Operation, range: AddressRange, file: Option<&OwnedFd>) -> Result<()> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED, -1),
    };
    let at = unsafe { libc::mmap(range.base.as_ptr(), range.size.0 as usize, libc::PROT_NONE, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(failed(operation, "mmap", range)) } else { Ok(()) }
}

fn failed(operation: Operation, call: &'static str, range: AddressRange) -> Error {
    Error::driver(operation, DriverError::system(call, &std::io::Error::last_os_error()), range)
}

/// Addresses without access, and the mappings in them by offset.
#[derive(Debug)]
pub struct TinyReservation {
    state: Arc<State>,
    range: AddressRange,
    mapped: BTreeMap<Bytes, (Arc<Memory>, Access)>,
}

impl TinyReservation {
    fn part(&self, offset: Bytes, size: Bytes) -> AddressRange { AddressRange { base: self.range.base + offset, size } }
}

impl Drop for TinyReservation {
    fn drop(&mut self) {
        // Addresses with a mapping in them, and those of a forked child's parent, are not given back.
        if self.state.process.is_this() && self.mapped.is_empty() {
            unsafe { libc::munmap(self.range.base.as_ptr(), self.range.size.0 as usize) };
        }
    }
}

// SAFETY: the addresses are this value's until it is dropped, and each call does all of its work or none.
unsafe impl Reservation for TinyReservation {
    type Handle = TinyHandle;
    fn range(&self) -> AddressRange { self.range }
    unsafe fn map(&mut self, offset: Bytes, handle: &TinyHandle) -> Result<()> {
        self.state.process.check(Operation::Map)?;
        unsafe { remap(Operation::Map, self.part(offset, handle.size()), Some(&handle.memory.file)) }?;
        self.mapped.insert(offset, (Arc::clone(&handle.memory), Access::None));
        Ok(())
    }
    unsafe fn unmap(&mut self, offset: Bytes, length: Bytes) -> Result<()> {
        self.state.process.check(Operation::Unmap)?;
        unsafe { remap(Operation::Unmap, self.part(offset, length), None) }?;
        self.mapped.retain(|at, _| *at < offset || *at >= offset + length);
        Ok(())
    }
    unsafe fn set_access(&mut self, offset: Bytes, length: Bytes, grants: &[Grant]) -> Result<()> {
        self.state.process.check(Operation::SetAccess)?;
        let part = self.part(offset, length);
        for grant in grants {
            let rights = match grant.access {
                Access::None => libc::PROT_NONE,
                Access::Read => libc::PROT_READ,
                Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            };
            if unsafe { libc::mprotect(part.base.as_ptr(), length.0 as usize, rights) } != 0 {
                return Err(failed(Operation::SetAccess, "mprotect", part));
            }
            self.mapped.range_mut(offset..offset + length).for_each(|(_, (_, access))| *access = grant.access);
        }
        Ok(())
    }
    unsafe fn access(&self, offset: Bytes, _: DeviceId) -> Result<Access> {
        let last = self.mapped.range(..=offset).next_back();
        let found = last.filter(|(at, (memory, _))| offset < **at + memory.size).map(|(_, (_, access))| *access);
        found.ok_or_else(|| {
            Error::driver(Operation::QueryAccess, refusal("access", 22, "EINVAL"), self.part(offset, Bytes(1)))
        })
    }
    unsafe fn return_memory(&mut self) -> Result<()> { Ok(()) }
    fn regain(&mut self) -> Result<()> { Ok(()) }
    unsafe fn dma_buf(&self, _: DeviceId, _: Bytes, _: Bytes) -> Result<OwnedFd> {
        unsupported(Operation::ExportDmaBuf, "a memfd is no dma-buf")
    }
}

// SAFETY: handles and reservations have the size that was requested.
unsafe impl MemoryCalls for Tiny {
    type Handle = TinyHandle;
    type Reservation = TinyReservation;
    unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<TinyHandle> {
        let operation = Operation::CreateMemory;
        self.0.process.check(operation)?;
        let fail = |call| failed(operation, call, AddressRange { base: Address(0), size });
        let total = self.device(operation, properties.device)?.total_memory;
        // Memory of a kind that was not requested is worse than an error.
        if *properties != Properties::on(properties.device) {
            return unsupported(operation, "memory that is shared, compressed or elsewhere is not in this example");
        }
        let fits = |used: u64| used.checked_add(size.0).filter(|sum| *sum <= total.0);
        if let Err(used) = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            let source = refusal("create", 12, "ENOMEM");
            let (device, requested, free) = (properties.device, size, Bytes(total.0 - used));
            return Err(Error::new(operation, Detail::OutOfMemory { device, requested, free, total, source }));
        }
        let file = unsafe { libc::memfd_create(c"tiny".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            self.0.used.fetch_sub(size.0, Ordering::Relaxed);
            return Err(fail("memfd_create"));
        }
        let memory = Memory { state: Arc::clone(&self.0), file: unsafe { OwnedFd::from_raw_fd(file) }, size };
        if unsafe { libc::ftruncate(file, size.0 as libc::off_t) } != 0 { return Err(fail("ftruncate")); }
        Ok(TinyHandle { memory: Arc::new(memory), properties: *properties })
    }
    unsafe fn import(&self, _: BorrowedFd<'_>, _: Bytes, _: &Properties) -> Result<TinyHandle> {
        unsupported(Operation::ImportMemory, "this backend shares nothing")
    }
    unsafe fn import_fabric(&self, _: &FabricHandle, _: Bytes, _: &Properties) -> Result<TinyHandle> {
        unsupported(Operation::ImportMemory, "this backend shares nothing")
    }
    unsafe fn reserve(&self, size: Bytes, alignment: Alignment, hint: Option<Address>) -> Result<TinyReservation> {
        self.0.process.check(Operation::Reserve)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let reserve = |at: Address, size: Bytes, flags| {
            let at = unsafe { libc::mmap(at.as_ptr(), size.0 as usize, libc::PROT_NONE, flags, -1, 0) };
            if at == libc::MAP_FAILED { return Err(DriverError::system("mmap", &std::io::Error::last_os_error())); }
            Ok(AddressRange { base: Address(at as u64), size })
        };
        // The capability `FixedAddress`: a hint is followed if exactly these addresses are free.
        if let Some(hint) = hint.filter(|hint| hint.0 != 0 && hint.is_aligned_to(alignment.bytes()))
            && let Ok(range) = reserve(hint, size, flags | libc::MAP_FIXED_NOREPLACE)
        {
            return Ok(TinyReservation { state: Arc::clone(&self.0), range, mapped: BTreeMap::new() });
        }
        // The kernel aligns to pages only: reserves more, and frees what lies before and after the aligned part.
        let all = reserve(Address(0), size + alignment.bytes(), flags)
            .map_err(|source| out_of_addresses(Operation::Reserve, size, source))?;
        let range = AddressRange { base: Address(all.base.0.next_multiple_of(alignment.bytes().0)), size };
        for (from, to) in [(all.base, range.base), (range.end(), all.end())] {
            if to > from { unsafe { libc::munmap(from.as_ptr(), (to.0 - from.0) as usize) }; }
        }
        Ok(TinyReservation { state: Arc::clone(&self.0), range, mapped: BTreeMap::new() })
    }
    fn allocate_plain(&self, _: DeviceId, _: Bytes) -> Result<Address> {
        unsupported(Operation::Allocate, "this device has virtual memory management")
    }
    unsafe fn free_plain(&self, _: DeviceId, _: Address, _: Bytes) -> Result<()> {
        unsupported(Operation::Free, "this backend makes no plain allocations")
    }
}

// SAFETY: the CPU copies before a call returns.
unsafe impl CopyCalls for Tiny {
    unsafe fn copy_from_host(&self, _: DeviceId, to: Address, from: &[u8]) -> Result<()> {
        self.0.process.check(Operation::CopyFromHost)?;
        unsafe { to.as_ptr::<u8>().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }
    unsafe fn copy_to_host(&self, _: DeviceId, to: &mut [u8], from: Address) -> Result<()> {
        self.0.process.check(Operation::CopyToHost)?;
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), to.len()) };
        Ok(())
    }
    unsafe fn copy(&self, _: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> {
        self.0.process.check(Operation::Copy)?;
        unsafe { to.as_ptr::<u8>().copy_from_nonoverlapping(from.as_ptr(), length.0 as usize) };
        Ok(())
    }
    unsafe fn fill(&self, _: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> {
        self.0.process.check(Operation::Fill)?;
        unsafe { at.as_ptr::<u8>().write_bytes(value, length.0 as usize) };
        Ok(())
    }
    fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> {
        self.0.process.check(Operation::PinMemory)?;
        if size.is_zero() { return Err(Error::new(Operation::PinMemory, Detail::ZeroSize)); }
        // Words of 16 bytes, so that the memory is aligned for any type.
        let (mut words, count) = (Vec::new(), size.0.div_ceil(16) as usize);
        words.try_reserve_exact(count).map_err(|_| host_out_of_memory(Operation::PinMemory, size, refusal("pin", 12, "ENOMEM")))?;
        words.resize(count, 0);
        Ok(Box::new(TinyPinned(words.leak(), size)))
    }
    fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> {
        self.0.process.check(Operation::CreateStream)?;
        self.device(Operation::CreateStream, device)?;
        Ok(Box::new(TinyCopies(self.clone(), device)))
    }
}

// SAFETY: all work has finished when its call returns, so nothing is left to wait for.
unsafe impl SyncCalls for Tiny {
    fn synchronize(&self, device: DeviceId) -> Result<()> { self.device(Operation::WaitForDevice, device).map(drop) }
    fn synchronize_stream(&self, device: DeviceId, _: Stream<'_>) -> Result<()> { self.synchronize(device) }
    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        self.0.process.check(Operation::CreateEvent)?;
        self.device(Operation::CreateEvent, device)?;
        Ok(Box::new(TinyEvent(self.0.process)))
    }
    fn is_capturing(&self, _: Stream<'_>) -> Result<bool> { Ok(false) }
    fn queries_spoil_captures(&self) -> bool { false }
}

/// Memory of the host for copies. Only the CPU copies here, so it is not page-locked.
#[derive(Debug)]
struct TinyPinned(*mut [u128], Bytes);

// SAFETY: the memory is this value's alone.
unsafe impl Send for TinyPinned {}
// SAFETY: as above; callers order their accesses.
unsafe impl Sync for TinyPinned {}
// SAFETY: the memory is allocated until the value is dropped.
unsafe impl Pinned for TinyPinned {
    fn start(&self) -> NonNull<u8> { NonNull::new(self.0.cast()).unwrap_or(NonNull::dangling()) }
    fn size(&self) -> Bytes { self.1 }
}

impl Drop for TinyPinned {
    fn drop(&mut self) { drop(unsafe { Box::from_raw(self.0) }); }
}

/// A stream whose copies have ended when their calls return.
#[derive(Debug)]
struct TinyCopies(Tiny, DeviceId);

// SAFETY: no copy is queued.
unsafe impl CopyStream for TinyCopies {
    unsafe fn copy_to_host(&mut self, to: *mut u8, from: Address, length: Bytes) -> Result<()> {
        unsafe { self.0.copy_to_host(self.1, std::slice::from_raw_parts_mut(to, length.0 as usize), from) }
    }
    unsafe fn copy_from_host(&mut self, to: Address, from: *const u8, length: Bytes) -> Result<()> {
        unsafe { self.0.copy_from_host(self.1, to, std::slice::from_raw_parts(from, length.0 as usize)) }
    }
    unsafe fn hold(&mut self, event: &dyn Event) -> Result<()> { event.wait() }
    unsafe fn record(&mut self, event: &mut dyn Event) -> Result<()> { event.record(Stream::DEFAULT) }
    fn finish(&mut self) -> Result<()> { self.0.0.process.check(Operation::FinishCopies) }
}

/// An event. It is always done, because all work has finished when its call returns.
#[derive(Debug)]
struct TinyEvent(Process);

// SAFETY: no work runs.
unsafe impl Event for TinyEvent {
    fn record(&mut self, _: Stream<'_>) -> Result<()> { self.0.check(Operation::RecordEvent) }
    fn is_done(&self) -> Result<bool> { self.0.check(Operation::QueryEvent).map(|()| true) }
    fn wait(&self) -> Result<()> { self.0.check(Operation::WaitForEvent) }
    fn hold(&self, _: Stream<'_>) -> Result<()> { self.0.check(Operation::StreamWaitEvent) }
}

/// Grows, writes, reads and shrinks a region of the device.
pub fn try_it() -> Result<()> {
    let backend = Tiny::open();
    let mut region = Region::builder(&backend).reserve(Bytes::mib(64)).build()?;
    region.grow_to(Bytes::mib(2))?;
    region.write(Bytes(0), b"kept")?;
    region.grow_to(Bytes::mib(16))?;
    let mut bytes = [0; 4];
    region.read(Bytes(0), &mut bytes)?;
    assert_eq!(&bytes, b"kept");
    let _ = region.shrink_to(Bytes::mib(2), WaitFor::all_devices())?;
    assert!(region.grow_to(Bytes::gib(2)).is_err());
    drop(region);
    assert_eq!(backend.memory_info(DeviceId(0))?.free, Bytes::gib(1));
    Ok(())
}
