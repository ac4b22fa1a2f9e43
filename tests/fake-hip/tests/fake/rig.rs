//! Helpers for cases: the backend, HIP's own functions, and the check for leaks at the end.

use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, Capability, DeviceId, Feature, PhysicalMemory, Properties, Region,
    RegionBuilder,
};
use gpu_vmm_fake_hip::Counts;
use gpu_vmm_hip::HipBackend;
use libloading::os::unix::{Library, RTLD_LAZY};

pub(crate) const ZERO: DeviceId = DeviceId(0);
pub(crate) const ONE: DeviceId = DeviceId(1);
/// The unit of all sizes.
pub(crate) const UNIT: usize = 2 << 20;

/// Mappings, as offset and size in units. The access of each is set by a call of its own.
pub(crate) const UNEQUAL: [(u64, u64); 4] = [(0, 1), (1, 2), (3, 1), (4, 5)];

pub(crate) fn units(count: u64) -> Bytes {
    Bytes(UNIT as u64 * count)
}

pub(crate) fn alignment() -> Alignment {
    Alignment::new(units(1)).expect("a power of two")
}

pub(crate) fn found(all: &[Capability], feature: Feature) -> &Capability {
    all.iter().find(|one| one.feature == feature).expect("each is reported")
}

/// Like [`Result::expect`], but panics with an error's message instead of its fields.
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

/// Requires an error with this kind of detail.
macro_rules! fails {
    ($answer:expr, $kind:ident) => {
        match &$answer {
            Err(error) if matches!(error.detail(), gpu_vmm_core::Detail::$kind { .. }) => {}
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("success, and no {}", stringify!($kind)),
        }
    };
}

pub(crate) struct Rig {
    pub(crate) backend: HipBackend,
    library: Library,
    /// The objects that the case leaves on purpose.
    pub(crate) left: Counts,
}

impl Rig {
    pub(crate) fn open() -> Self {
        let backend = HipBackend::open().expect("the fake driver opens");
        let name = backend.driver().library;
        // SAFETY: nothing is loaded, so no code runs.
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

    /// Panics for failures in destructors, and for objects that remain beyond those that the version and the case leave.
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

    /// Returns whether the version can share memory.
    pub(crate) fn shares(&self) -> bool {
        !self.backend.driver().version.starts_with("6.1.")
    }

    /// Returns the device that HIP reports for an address.
    pub(crate) fn owner(&self, at: Address) -> i32 {
        // hipPointerAttribute_t: the second number is the device.
        let mut attributes = [0i32; 8];
        self.hip("hipPointerGetAttributes", [attributes.as_mut_ptr().addr(), at.0 as usize, 0]);
        attributes[1]
    }

    pub(crate) fn free(&self, device: DeviceId) -> Bytes {
        self.backend.memory_info(device).expect("numbers").free
    }

    pub(crate) fn region(&self, count: u64) -> RegionBuilder<'_, HipBackend> {
        Region::builder(&self.backend).reserve(units(count))
    }

    /// Returns a region with the mappings of [`UNEQUAL`].
    pub(crate) fn unequal_region(&self) -> Region<HipBackend> {
        let mut region = self.region(16).build().must("addresses");
        for (offset, size) in UNEQUAL {
            region.grow_to(units(offset + size)).must("growth");
        }
        region
    }

    pub(crate) fn memory(&self, device: DeviceId, count: u64) -> PhysicalMemory<HipBackend> {
        PhysicalMemory::create(&self.backend, units(count), Properties::on(device)).expect("memory")
    }

    /// Calls a function of HIP with integers and pointers; it ignores superfluous arguments.
    pub(crate) fn hip(&self, function: &str, arguments: [usize; 3]) -> i32 {
        type Function = unsafe extern "C" fn(usize, usize, usize) -> i32;
        let [a, b, c] = arguments;
        // SAFETY: the cases pass the arguments of HIP's headers; all are in registers, where superfluous ones do no harm.
        unsafe { self.library.get::<Function>(function).expect(function)(a, b, c) }
    }
}

/// An address that no system chooses by itself.
pub(crate) const FAR: Address = Address(0x1000_0000_0000);
