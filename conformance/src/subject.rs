//! What a case is run on: a backend, the device that was chosen, and means to get at more.

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

/// Ends a case or a rule as skipped, as a call does that is not there.
pub(crate) fn skip(reason: impl Into<String>) -> ! {
    gpu_vmm_testkit::raw::missing(reason)
}

/// What not every device or version can do ends the case as skipped, with the reason.
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

/// Leaves something to say of a case that passes: a count, a seed.
pub(crate) fn note(text: impl Into<String>) {
    NOTE.set(text.into());
}

/// What the case on this thread has left to say.
pub(crate) fn take_note() -> String {
    NOTE.take()
}

/// What is in a region that a case fills.
pub(crate) const RW: Access = Access::ReadWrite;

/// A backend under test.
#[derive(Debug)]
pub(crate) struct Subject<B: TestKit> {
    pub(crate) backend: B,
    /// The device that was chosen; its memory and its work, unless a case says otherwise.
    pub(crate) device: DeviceId,
    pub(crate) target: Arc<dyn Target<B>>,
    /// The case that runs, for the process that it may ask for.
    pub(crate) case: &'static str,
    /// Where other processes come from; unit tests have none.
    pub(crate) server: Option<Arc<ForkServer>>,
}

impl<B: TestKit> Subject<B> {
    /// Free memory of every usable device.
    pub(crate) fn free(&self) -> Vec<Bytes> {
        let devices = self.backend.devices().iter().filter(|device| device.unusable.is_none());
        devices.map(|device| self.backend.memory_info(device.id).unwrap().free).collect()
    }

    /// Free memory of the chosen device.
    pub(crate) fn free_here(&self) -> Bytes {
        self.backend.memory_info(self.device).unwrap().free
    }

    /// What cases count in: the unit of addresses, so that a region of so many units can be filled and extended.
    pub(crate) fn unit(&self) -> Bytes {
        self.backend.reservation_unit().bytes()
    }

    /// The least that can be created and mapped.
    pub(crate) fn granularity(&self) -> Bytes {
        self.backend.granularity().bytes()
    }

    /// `count` units.
    pub(crate) fn units(&self, count: u64) -> Bytes {
        Bytes(self.unit().0 * count)
    }

    /// A region of so many units, which grows with the chosen device's memory.
    pub(crate) fn region(&self, units: u64) -> RegionBuilder<'_, B> {
        Region::builder(&self.backend).on(self.device).reserve(self.units(units))
    }

    /// What memory of the chosen device is created with.
    pub(crate) fn properties(&self) -> Properties {
        Properties::on(self.device)
    }

    /// So many units of the chosen device's memory in one piece.
    pub(crate) fn memory(&self, units: u64) -> PhysicalMemory<B> {
        PhysicalMemory::create(&self.backend, self.units(units), self.properties()).unwrap()
    }

    /// True where this driver's version has the quirk.
    pub(crate) fn has_quirk(&self, id: &str) -> bool {
        self.backend.quirks().iter().any(|quirk| quirk.id == id)
    }

    /// Where `units` of addresses are free, at a place that every driver takes as a hint: CUDA moves hints into its own
    /// arena, low in the address space.
    pub(crate) fn hole(&self, units: u64) -> Address {
        // Cases on host memory run side by side, and must not find the same hole. A driver's run one after the other, and
        // come back to the same places, since HIP 6 keeps what it has ever reserved.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let first = if self.target.is_fresh() { NEXT.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let places = (first..first + 64).map(|step| Address(0x1000_0000_0000 + ((step % 64) << 40)));
        let free = |place: &Address| self.region(units).at(Placement::Exact(*place)).build().is_ok();
        places.into_iter().find(free).expect("a hole in the address space")
    }

    /// Another device, of which each can reach the other's memory, or why there is none.
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

    /// The chosen device and its [peer](Subject::peer), or the end of the case.
    pub(crate) fn two_devices(&self) -> (DeviceId, DeviceId) {
        match self.peer() {
            Ok(peer) => (self.device, peer),
            Err(reason) => skip(reason),
        }
    }

    /// A second process that runs the case's other side, on a backend of its own.
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
