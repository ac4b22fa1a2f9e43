//! The driver's functions for cases: each call states its expected result, and whether it is a violation.

use crate::child::library;
use gpu_vmm_core::{DeviceId, Error};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_fake_cuda::Counts;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const ILLEGAL_STATE: u32 = 401;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
pub(crate) const NOT_PERMITTED: u32 = 800;
pub(crate) const NOT_SUPPORTED: u32 = 801;
pub(crate) const UNKNOWN: u32 = 999;

/// The granularity of memory, and the unit of addresses.
pub(crate) const G: usize = 2 << 20;
pub(crate) const BLOCK: usize = 32 << 20;
/// The granularity of multicast.
pub(crate) const M: usize = 4 << 20;

/// `CUmemLocationType`: the host, and one of its nodes.
pub(crate) const HOST: u32 = 2;
pub(crate) const HOST_NUMA: u32 = 3;

pub(crate) const READ: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;

pub(crate) const DEVICE: DeviceId = DeviceId(0);
pub(crate) const OTHER: DeviceId = DeviceId(1);

pub(crate) fn open() -> CudaBackend {
    CudaBackend::open().unwrap()
}

/// Returns the driver's call that failed, and its code.
pub(crate) fn answered(error: &Error) -> (&'static str, i64) {
    let source = error.driver_error().unwrap();
    (source.call, source.code)
}

/// The library.
pub(crate) struct Cuda(Library);

impl Cuda {
    pub(crate) fn load() -> Self {
        // SAFETY: the fake driver's library only hides symbols when it is loaded.
        Self(unsafe { Library::open(Some(library()), RTLD_NOW | RTLD_LOCAL) }.expect("the fake driver"))
    }

    /// Starts the driver.
    pub(crate) fn init(&self) {
        self.ok("cuInit", &[0]);
    }

    pub(crate) fn has(&self, function: &str) -> bool {
        // SAFETY: only the address is used.
        unsafe { self.0.get::<*const ()>(function) }.is_ok()
    }

    /// Calls a function with integers and pointers; it ignores superfluous arguments.
    pub(crate) fn call(&self, function: &str, arguments: &[usize]) -> u32 {
        type A = usize;
        type Function = unsafe extern "C" fn(A, A, A, A, A, A, A, A, A, A, A) -> u32;
        let mut all = [0; 11];
        all[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, e, f, g, h, i, j, k] = all;
        // SAFETY: the cases pass the arguments of the header, in the function's number of places; with this calling
        // convention the caller removes superfluous ones.
        unsafe { self.0.get::<Function>(function).expect(function)(a, b, c, d, e, f, g, h, i, j, k) }
    }

    pub(crate) fn violations(&self) -> u64 {
        // SAFETY: the fake driver's function of this name takes no argument.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>("fake_cuda_violations").unwrap()() }
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // SAFETY: the fake driver's function of this name writes the structure.
        unsafe {
            self.0.get::<unsafe extern "C" fn(*mut Counts)>("fake_cuda_counts").unwrap()(&raw mut counts);
        }
        counts
    }

    #[track_caller]
    fn expect(&self, function: &str, arguments: &[usize], code: u32, violations: u64) {
        let before = self.violations();
        assert_eq!(self.call(function, arguments), code, "{function}({arguments:#x?})");
        assert_eq!(self.violations() - before, violations, "violations by {function}({arguments:#x?})");
    }

    /// Requires success without a violation.
    #[track_caller]
    pub(crate) fn ok(&self, function: &str, arguments: &[usize]) {
        self.expect(function, arguments, SUCCESS, 0);
    }

    /// Requires a code without a violation.
    #[track_caller]
    pub(crate) fn answers(&self, function: &str, arguments: &[usize], code: u32) {
        self.expect(function, arguments, code, 0);
    }

    /// Requires a code and a violation.
    #[track_caller]
    pub(crate) fn refuses(&self, function: &str, arguments: &[usize], code: u32) {
        self.expect(function, arguments, code, 1);
    }

    /// Requires success and a violation.
    #[track_caller]
    pub(crate) fn accepts(&self, function: &str, arguments: &[usize]) {
        self.expect(function, arguments, SUCCESS, 1);
    }

    /// Calls a function that writes one number through its first parameter, and returns the number.
    #[track_caller]
    pub(crate) fn get(&self, function: &str, arguments: &[usize]) -> usize {
        let mut out = 0usize;
        let all: Vec<usize> = [(&raw mut out).addr()].into_iter().chain(arguments.iter().copied()).collect();
        self.ok(function, &all);
        out
    }

    #[track_caller]
    pub(crate) fn reserve_at(&self, hint: usize, size: usize) -> usize {
        self.get("cuMemAddressReserve", &[size, 0, hint, 0])
    }

    #[track_caller]
    pub(crate) fn reserve(&self, size: usize) -> usize {
        self.reserve_at(0, size)
    }

    #[track_caller]
    pub(crate) fn free(&self, base: usize, size: usize) {
        self.ok("cuMemAddressFree", &[base, size]);
    }

    #[track_caller]
    pub(crate) fn create(&self, device: u32, size: usize) -> usize {
        self.get("cuMemCreate", &[size, properties(device, 0).as_ptr().addr(), 0])
    }

    #[track_caller]
    pub(crate) fn create_shareable(&self, size: usize) -> usize {
        self.create_shareable_on(0, size)
    }

    #[track_caller]
    pub(crate) fn create_shareable_on(&self, device: u32, size: usize) -> usize {
        self.get("cuMemCreate", &[size, properties(device, 1).as_ptr().addr(), 0])
    }

    #[track_caller]
    pub(crate) fn release(&self, handle: usize) {
        self.ok("cuMemRelease", &[handle]);
    }

    #[track_caller]
    pub(crate) fn release_all(&self, handles: &[usize]) {
        for handle in handles {
            self.release(*handle);
        }
    }

    #[track_caller]
    pub(crate) fn map(&self, at: usize, size: usize, handle: usize) {
        self.ok("cuMemMap", &[at, size, 0, handle, 0]);
    }

    #[track_caller]
    pub(crate) fn grant(&self, at: usize, size: usize, device: u32, access: u32) {
        self.ok("cuMemSetAccess", &[at, size, description(device, access).as_ptr().addr(), 1]);
    }

    #[track_caller]
    pub(crate) fn unmap(&self, at: usize, size: usize) {
        self.ok("cuMemUnmap", &[at, size]);
    }

    #[track_caller]
    pub(crate) fn access(&self, at: usize, device: u32) -> usize {
        self.get("cuMemGetAccess", &[[1u32, device].as_ptr().addr(), at])
    }

    /// Sets the CPU's access to a granule, by a type of location.
    #[track_caller]
    pub(crate) fn let_cpu(&self, at: usize, kind: u32, allowed: u32) {
        self.ok("cuMemSetAccess", &[at, G, [kind, 0, allowed].as_ptr().addr(), 1]);
    }

    /// Returns the CPU's reported access, by a type of location.
    #[track_caller]
    pub(crate) fn cpu_may(&self, at: usize, kind: u32) -> usize {
        self.get("cuMemGetAccess", &[[kind, 0u32].as_ptr().addr(), at])
    }

    /// Creates a granule of such memory.
    #[track_caller]
    pub(crate) fn create_as(&self, wanted: [u32; 8]) -> usize {
        self.get("cuMemCreate", &[G, wanted.as_ptr().addr(), 0])
    }

    /// Returns the properties that the driver reports for memory.
    #[track_caller]
    pub(crate) fn told(&self, handle: usize) -> [u32; 8] {
        let mut told = [0u32; 8];
        self.ok("cuMemGetAllocationPropertiesFromHandle", &[told.as_mut_ptr().addr(), handle]);
        told
    }

    /// Creates a reservation that begins with a granule of such memory, which device 0 may read and write.
    #[track_caller]
    pub(crate) fn mapped_as(&self, wanted: [u32; 8]) -> usize {
        self.hold(self.create_as(wanted), G)
    }

    /// Creates a reservation of one piece of device 0's memory that it may read and write.
    #[track_caller]
    pub(crate) fn mapped(&self, size: usize) -> usize {
        self.hold(self.create(0, size), size)
    }

    #[track_caller]
    fn hold(&self, handle: usize, size: usize) -> usize {
        let base = self.reserve(size);
        self.map(base, size, handle);
        self.grant(base, size, 0, READ_WRITE);
        self.release(handle);
        base
    }

    /// Unmaps and frees it.
    #[track_caller]
    pub(crate) fn take_away(&self, base: usize, size: usize) {
        self.unmap(base, size);
        self.free(base, size);
    }

    #[track_caller]
    pub(crate) fn export(&self, handle: usize) -> usize {
        let mut fd = -1i32;
        self.ok("cuMemExportToShareableHandle", &[(&raw mut fd).addr(), handle, 1, 0]);
        fd as usize
    }

    /// Makes a device's primary context current for the thread.
    pub(crate) fn enter(&self, device: usize) -> usize {
        let context = self.get("cuDevicePrimaryCtxRetain", &[device]);
        self.ok("cuCtxSetCurrent", &[context]);
        context
    }

    /// Returns the free memory of the current context's device.
    #[track_caller]
    pub(crate) fn free_memory(&self) -> usize {
        let mut total = 0usize;
        self.get("cuMemGetInfo_v2", &[(&raw mut total).addr()])
    }

    /// Fails if anything except contexts and their modules is left.
    pub(crate) fn check_what_is_left(&self) {
        let counts = self.counts();
        let Counts { contexts, modules, .. } = counts;
        assert_eq!(counts, Counts { contexts, modules, ..Counts::default() }, "left behind");
    }
}

/// `CUmemAllocationProp`: type, handle types, location, and zeros.
pub(crate) fn properties(device: u32, handle_types: u32) -> [u32; 8] {
    properties_at(1, device, handle_types)
}

/// The properties for a location of this type.
pub(crate) fn properties_at(kind: u32, id: u32, handle_types: u32) -> [u32; 8] {
    [1, handle_types, kind, id, 0, 0, 0, 0]
}

/// `CUmemAccessDesc`.
pub(crate) fn description(device: u32, access: u32) -> [u32; 3] {
    [1, device, access]
}
