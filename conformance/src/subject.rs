//! The subject of a case: a backend, the chosen device, and helpers that reach further.

use crate::fork_server::{Child, ForkServer, Request};
use crate::target::Target;
use gpu_vmm_core::{
    Access, Address, Bytes, Detail, DeviceId, Error, PhysicalMemory, Placement, Properties, Region,
    RegionBuilder,
};
use gpu_vmm_testkit::TestKit;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ends a case or a rule as skipped, as a raw call does that the driver lacks.
pub(crate) fn skip(reason: impl Into<String>) -> ! {
    gpu_vmm_testkit::raw::missing(reason)
}

/// Returns the value, or ends the case as skipped if this device or version does not support the operation.
pub(crate) fn or_skip<T>(result: gpu_vmm_core::Result<T>) -> T {
    match result.map_err(Error::into_detail) {
        Ok(value) => value,
        Err(Detail::Unsupported { reason, .. }) => skip(reason),
        Err(error) => panic!("{error}"),
    }
}

thread_local! {
    static NOTE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sets the note of a case that passes: a count, a seed.
pub(crate) fn note(text: impl Into<String>) {
    NOTE.set(text.into());
}

/// Takes the note that the case on this thread has set.
pub(crate) fn take_note() -> String {
    NOTE.take()
}

/// The access to a region that a case fills.
pub(crate) const RW: Access = Access::ReadWrite;

/// A backend under test.
#[derive(Debug)]
pub(crate) struct Subject<B: TestKit> {
    pub(crate) backend: B,
    /// The chosen device. A case uses its memory and runs its work there, unless the case says otherwise.
    pub(crate) device: DeviceId,
    pub(crate) target: Arc<dyn Target<B>>,
    /// The running case, which a second process needs to know.
    pub(crate) case: &'static str,
    /// The server for other processes; unit tests have none.
    pub(crate) server: Option<Arc<ForkServer>>,
    /// True if a timed case must end soon: the run is not counted yet.
    pub(crate) brief: bool,
}

impl<B: TestKit> Subject<B> {
    /// Returns the same subject with another backend and chosen device.
    pub(crate) fn of(&self, backend: B, device: DeviceId) -> Self {
        let (target, server) = (Arc::clone(&self.target), self.server.clone());
        Self { backend, device, target, case: self.case, server, brief: self.brief }
    }

    /// Ends the case as skipped if no kernel can be compiled: work then cannot be queued on a stream, and copies fault in their own
    /// way.
    pub(crate) fn needs_kernels(&self) {
        if self.backend.pattern_by() == "copies" {
            skip("no kernel can be compiled here, and copies write and check the pattern");
        }
    }

    /// Ends the case as skipped if an access that the device may not make can end the process in any way.
    pub(crate) fn needs_faults(&self) {
        if !self.backend.reports_faults() {
            skip("this backend does not report accesses that its device may not make");
        }
    }

    /// Returns the free memory of every usable device.
    pub(crate) fn free(&self) -> Vec<Bytes> {
        let devices = self.backend.devices().iter().filter(|device| device.unusable.is_none());
        devices.map(|device| self.backend.memory_info(device.id).unwrap().free).collect()
    }

    /// Returns the free memory of the chosen device.
    pub(crate) fn free_here(&self) -> Bytes {
        self.backend.memory_info(self.device).unwrap().free
    }

    /// Returns the unit of the sizes in cases: the unit of addresses, so that a region of whole units can be filled and extended.
    pub(crate) fn unit(&self) -> Bytes {
        self.backend.reservation_unit().bytes()
    }

    /// Returns the smallest size that can be created and mapped.
    pub(crate) fn granularity(&self) -> Bytes {
        self.backend.granularity().bytes()
    }

    /// Returns the size of `count` units.
    pub(crate) fn units(&self, count: u64) -> Bytes {
        Bytes(self.unit().0 * count)
    }

    /// Builds a region of `units` units that grows with the chosen device's memory.
    pub(crate) fn region(&self, units: u64) -> RegionBuilder<'_, B> {
        Region::builder(&self.backend).on(self.device).reserve(self.units(units))
    }

    /// Returns the properties with which memory of the chosen device is created.
    pub(crate) fn properties(&self) -> Properties {
        Properties::on(self.device)
    }

    /// Creates `units` units of the chosen device's memory in one allocation.
    pub(crate) fn memory(&self, units: u64) -> PhysicalMemory<B> {
        PhysicalMemory::create(&self.backend, self.units(units), self.properties()).unwrap()
    }

    /// Returns true if this driver's version has the quirk.
    pub(crate) fn has_quirk(&self, id: &str) -> bool {
        self.backend.quirks().iter().any(|quirk| quirk.id == id)
    }

    /// Finds `units` of free addresses that every driver accepts as a hint: CUDA moves hints into its own arena, low in the
    /// address space.
    pub(crate) fn hole(&self, units: u64) -> Address {
        // Cases on host memory run in parallel and must not find the same hole. Cases on a driver run one after the other and
        // reuse the same places, because HIP 6 keeps all addresses that it ever reserved.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let first = if self.target.is_fresh() { NEXT.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let places = (first..first + 64).map(|step| Address(0x1000_0000_0000 + ((step % 64) << 40)));
        let free = |place: &Address| self.region(units).at(Placement::Exact(*place)).build().is_ok();
        places.into_iter().find(free).expect("a hole in the address space")
    }

    /// Returns another device, if it and the chosen device can access each other's memory, or the reason why none was found.
    pub(crate) fn peer(&self) -> Result<DeviceId, String> {
        let a = self.device;
        let usable = self.backend.devices().iter().filter(|device| device.unusable.is_none());
        let others: Vec<DeviceId> = usable.map(|device| device.id).filter(|id| *id != a).collect();
        if others.is_empty() {
            return Err(format!("the {} backend has one usable device", self.backend.vendor()));
        }
        let reach = |b: &&DeviceId| {
            self.backend.can_access(a, **b).unwrap() && self.backend.can_access(**b, a).unwrap()
        };
        let found = others.iter().find(reach).copied();
        found.ok_or_else(|| "the devices cannot reach each other's memory".to_owned())
    }

    /// Returns the chosen device and its [peer](Subject::peer), or ends the case as skipped.
    pub(crate) fn two_devices(&self) -> (DeviceId, DeviceId) {
        match self.peer() {
            Ok(peer) => (self.device, peer),
            Err(reason) => skip(reason),
        }
    }

    /// Starts a second process that runs the case's other part, on a backend of its own.
    pub(crate) fn child(&self) -> Child {
        let server = self.server.as_ref().expect("a subject of the suite");
        let request = Request::Child {
            target: self.target.name().to_owned(),
            case: self.case.to_owned(),
            device: self.device.0,
        };
        server.spawn(&request).expect("a second process")
    }
}
