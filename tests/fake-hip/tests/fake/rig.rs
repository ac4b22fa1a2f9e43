//! What cases have in common: the backend, HIP's own functions, and what may be left at the end.

use gpu_vmm_core::{Address, Backend, Bytes, DeviceId, PhysicalMemory, Properties, Region, RegionBuilder};
use gpu_vmm_fake_hip::Counts;
use gpu_vmm_hip::HipBackend;
use libloading::os::unix::{Library, RTLD_LAZY};
use std::ffi::c_void;
use std::os::fd::FromRawFd;
use std::ptr::without_provenance_mut;

pub(crate) const ZERO: DeviceId = DeviceId(0);
pub(crate) const ONE: DeviceId = DeviceId(1);
/// What everything is a multiple of.
pub(crate) const UNIT: usize = 2 << 20;
/// HIP's codes.
pub(crate) const SUCCESS: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
/// HIP's accesses.
pub(crate) const READ: usize = 1;
pub(crate) const READ_WRITE: usize = 3;

pub(crate) fn units(count: u64) -> Bytes {
    Bytes(UNIT as u64 * count)
}

/// For an error's own words where [`Result::expect`] has its fields.
pub(crate) trait Must<T> {
    fn must(self, what: &str) -> T;
}

impl<T> Must<T> for gpu_vmm_core::Result<T> {
    #[track_caller]
    fn must(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) backend: HipBackend,
    library: Library,
    /// What the case knows to be left behind.
    pub(crate) left: Counts,
}

impl Rig {
    pub(crate) fn open() -> Self {
        let backend = HipBackend::open().expect("the fake driver opens");
        let name = backend.driver().library;
        // SAFETY: nothing is loaded, so nothing is run.
        let library = unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) };
        Self { backend, library: library.expect("it is loaded"), left: Counts::default() }
    }

    pub(crate) fn has(&self, quirk: &str) -> bool {
        self.backend.quirks().iter().any(|one| one.id == quirk)
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // SAFETY: the fake driver's function of this name writes the structure.
        unsafe {
            let function = self.library.get::<unsafe extern "C" fn(*mut Counts)>("fake_hip_counts");
            function.expect("it counts")(&raw mut counts);
        }
        counts
    }

    /// Whatever goes wrong in destructors, and all that is left beyond what the version and the case leave.
    pub(crate) fn check_what_is_left(&self) {
        if let Some(error) = self.backend.drop_log().take_last() {
            panic!("a destructor failed: {error}");
        }
        self.backend.release_kept_addresses().expect("addresses are given back");
        let mut counts = self.counts();
        if self.has("release-frees-nothing") {
            counts.physical = self.left.physical;
        }
        assert!(counts == self.left, "left behind: {counts:?}");
    }

    /// Major, minor and build, as `7.1.25424`.
    pub(crate) fn version(&self) -> String {
        self.backend.driver().version
    }

    /// Whose HIP says that an address is.
    pub(crate) fn owner(&self, at: Address) -> i32 {
        // hipPointerAttribute_t: the second number is the device.
        let mut attributes = [0i32; 8];
        self.call("hipPointerGetAttributes", &[attributes.as_mut_ptr().addr(), at.0 as usize]);
        attributes[1]
    }

    pub(crate) fn free(&self, device: DeviceId) -> Bytes {
        self.backend.memory_info(device).expect("numbers").free
    }

    pub(crate) fn region(&self, count: u64) -> RegionBuilder<'_, HipBackend> {
        Region::builder(&self.backend).reserve(units(count))
    }

    pub(crate) fn memory(&self, device: DeviceId, count: u64) -> PhysicalMemory<HipBackend> {
        PhysicalMemory::create(&self.backend, units(count), Properties::on(device)).expect("memory")
    }

    /// Calls a function of HIP's with integers and pointers, of which it takes the first few.
    pub(crate) fn hip(&self, function: &str, arguments: &[usize]) -> i32 {
        type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize) -> i32;
        let mut all = [0; 5];
        all[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, e] = all;
        // SAFETY: the cases give what HIP's headers say; all are passed in registers, more than are taken do no harm.
        unsafe { self.library.get::<Function>(function).expect(function)(a, b, c, d, e) }
    }

    /// The same, where it has to succeed.
    pub(crate) fn call(&self, function: &str, arguments: &[usize]) {
        assert_eq!(self.hip(function, arguments), SUCCESS, "{function}");
    }

    pub(crate) fn reserve_at(&self, hint: usize, size: usize) -> usize {
        let mut base = 0usize;
        self.call("hipMemAddressReserve", &[(&raw mut base).addr(), size, 0, hint, 0]);
        base
    }

    pub(crate) fn reserve(&self, size: usize) -> usize {
        self.reserve_at(0, size)
    }

    pub(crate) fn try_create(&self, device: usize, size: usize, shareable: bool) -> (i32, usize) {
        // hipMemAllocationProp: type, handle type, location, and what is ignored.
        let properties: [u32; 8] = [1, shareable.into(), 1, device as u32, 0, 0, 0, 0];
        let mut handle = 0usize;
        let arguments = [(&raw mut handle).addr(), size, properties.as_ptr().addr(), 0];
        (self.hip("hipMemCreate", &arguments), handle)
    }

    pub(crate) fn create(&self, device: usize, size: usize, shareable: bool) -> usize {
        let (code, handle) = self.try_create(device, size, shareable);
        assert_eq!(code, SUCCESS, "hipMemCreate");
        handle
    }

    /// A reservation of so many units with one mapping at its start.
    pub(crate) fn mapped(&self, reserved: usize, size: usize) -> (usize, usize) {
        let base = self.reserve(reserved);
        let handle = self.create(0, size, false);
        self.call("hipMemMap", &[base, size, 0, handle, 0]);
        (base, handle)
    }

    /// Sets a device's access; `kind` is the type of the location.
    pub(crate) fn set_for(&self, kind: u32, device: usize, at: usize, size: usize, access: usize) -> i32 {
        let description: [u32; 3] = [kind, device as u32, access as u32];
        self.hip("hipMemSetAccess", &[at, size, description.as_ptr().addr(), 1])
    }

    pub(crate) fn set(&self, device: usize, at: usize, size: usize, access: usize) -> i32 {
        self.set_for(1, device, at, size, access)
    }

    /// HIP's answer and what it says that a device may do.
    pub(crate) fn access(&self, device: usize, at: usize) -> (i32, u64) {
        let location: [u32; 2] = [1, device as u32];
        let mut flags = 0u64;
        (self.hip("hipMemGetAccess", &[(&raw mut flags).addr(), location.as_ptr().addr(), at]), flags)
    }

    /// How much memory is behind HIP's descriptor of a range.
    pub(crate) fn size_of_range(&self, base: usize, size: usize) -> usize {
        let mut fd = -1i32;
        self.call("hipMemGetHandleForAddressRange", &[(&raw mut fd).addr(), base, size, 1, 0]);
        // SAFETY: HIP has just given it.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.metadata().expect("a file").len() as usize
    }

    pub(crate) fn end(&self, base: usize, size: usize, handle: usize) {
        self.call("hipMemUnmap", &[base, size]);
        self.call("hipMemRelease", &[handle]);
        self.call("hipMemAddressFree", &[base, size]);
    }
}

/// A place that no system gives by itself.
pub(crate) const FAR: Address = Address(0x1000_0000_0000);

/// A pointer that is a number.
pub(crate) fn pointer(number: usize) -> *mut c_void {
    without_provenance_mut(number)
}
