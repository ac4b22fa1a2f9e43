//! The tools of rules: the raw calls with Rust's types, and guards that release what a rule has created.
//!
//! The methods are safe although they pass on any number that a rule wants to test: the driver must check it. Addresses belong
//! to reservations made here or to unused places, so that no call reaches memory of this process. If a driver crashes anyway,
//! it ends only a process that exists for this purpose.

pub(super) mod calls;
mod guards;

use crate::subject::skip;
use gpu_vmm_core::{DeviceId, Vendor};
use gpu_vmm_testkit::raw::Driver;
use gpu_vmm_testkit::raw::abi::{self, AccessDesc, Code, Location, Prop};
pub(super) use guards::{Mapping, Memory, Plain, Reserved, Stream};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A call that was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) call: String,
    pub(super) code: Code,
    pub(super) name: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {} ({})", self.call, self.name, self.code.0)
    }
}

/// The result of a call.
pub(super) type CallResult<T> = Result<T, Refusal>;

/// A loaded driver and the chosen device.
pub(super) struct Lab {
    driver: Box<dyn Driver>,
    /// The chosen device.
    pub(super) device: i32,
    /// The unit of sizes: the granularity, and on GPUs at least 2 MiB.
    pub(super) unit: usize,
    /// The multiple that reservations must have to follow each other: on CUDA more than the granularity.
    pub(super) stretch: usize,
    /// HIP 6 loses a reservation that reuses freed addresses. Under that quirk, guards keep their addresses reserved.
    keeps_addresses: bool,
    spoiled: AtomicBool,
    imports: AtomicUsize,
}

impl Lab {
    pub(super) fn new(driver: Box<dyn Driver>, device: DeviceId, quirks: &[String]) -> Result<Self, String> {
        let mut lab = Self {
            driver,
            device: device.0 as i32,
            unit: 0,
            stretch: 0,
            keeps_addresses: quirks.iter().any(|quirk| quirk == "free-races"),
            spoiled: AtomicBool::new(false),
            imports: AtomicUsize::new(0),
        };
        let least = lab.granularity(&lab.prop(), abi::MINIMUM).map_err(|refusal| refusal.to_string())?;
        lab.unit = if lab.vendor() == Vendor::Host { least } else { least.max(2 << 20) };
        lab.stretch = if lab.vendor() == Vendor::Cuda { lab.unit.max(32 << 20) } else { 4 * lab.unit };
        // Host memory allocates nothing at first use, and its backend may have no plain allocations.
        if lab.vendor() == Vendor::Host {
            return Ok(lab);
        }
        lab.warm_up().map_err(|refusal| refusal.to_string())?;
        Ok(lab)
    }

    /// Fills and copies once, so that memory that drivers allocate at first use does not count as a rule's.
    fn warm_up(&self) -> CallResult<()> {
        let plain = self.allocate(self.unit);
        self.set(plain.address, 1, self.unit)?;
        self.write(plain.address, &[2; 64])?;
        self.read(plain.address, 64).map(drop)
    }

    /// Prepares for the next rule.
    pub(super) fn begin(&self) {
        self.imports.store(0, Ordering::Relaxed);
        // The last rule may have made another device current.
        self.driver.make_current(self.device);
    }

    /// Returns how often this rule has imported memory, which HIP 6 never releases.
    pub(super) fn imports(&self) -> usize {
        self.imports.load(Ordering::Relaxed)
    }

    /// Returns true if correct calls have left the driver in a state in which no other rule should run.
    pub(super) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Relaxed)
    }

    /// Marks the driver after a call that cannot be undone.
    pub(super) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    pub(super) fn vendor(&self) -> Vendor {
        self.driver.vendor()
    }

    pub(super) fn is(&self, vendor: Vendor) -> bool {
        self.vendor() == vendor
    }

    /// Skips a rule that belongs to another vendor.
    pub(super) fn only(&self, vendor: Vendor, why: &str) {
        if !self.is(vendor) {
            skip(why);
        }
    }

    /// Skips a rule that does not apply to a vendor.
    pub(super) fn not(&self, vendor: Vendor, why: &str) {
        if self.is(vendor) {
            skip(why);
        }
    }

    /// Returns the properties of the chosen device's memory.
    pub(super) fn prop(&self) -> Prop {
        self.prop_of(self.device)
    }

    /// Returns the properties of a device's memory.
    pub(super) fn prop_of(&self, device: i32) -> Prop {
        Prop {
            kind: abi::PINNED,
            handle_types: abi::NO_HANDLE,
            location: place(device),
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// Returns the properties of the chosen device's memory for export as a descriptor.
    pub(super) fn shareable(&self) -> Prop {
        Prop { handle_types: abi::DESCRIPTOR, ..self.prop() }
    }

    /// Returns an access descriptor for the chosen device.
    pub(super) fn grant(&self, flags: i32) -> AccessDesc {
        grant_to(self.device, flags)
    }

    /// Returns another device, if it and the chosen device can access each other's memory, or skips the rule.
    pub(super) fn other_device(&self) -> i32 {
        let count = self.device_count();
        if count < 2 {
            skip("there is one device");
        }
        let reach =
            |other: &i32| self.can_access(self.device, *other) && self.can_access(*other, self.device);
        let others = (0..count).filter(|other| *other != self.device);
        others.into_iter().find(reach).unwrap_or_else(|| skip("the devices cannot reach each other's memory"))
    }

    /// Returns the result of a call that every program makes. If the driver refuses it, the rule fails.
    pub(super) fn must<T>(&self, answer: CallResult<T>) -> T {
        answer.unwrap_or_else(|refusal| panic!("the rule's setup was refused: {refusal}"))
    }

    /// Reserves `units` units of addresses.
    pub(super) fn addresses(&self, units: usize) -> Reserved<'_> {
        self.must(self.reserve(units * self.unit, 0, 0, 0))
    }

    /// Creates `units` units of the chosen device's memory.
    pub(super) fn memory(&self, units: usize) -> Memory<'_> {
        self.must(self.create(units * self.unit, &self.prop(), 0))
    }

    /// Returns an address where nothing is mapped or reserved, far from where drivers and systems place memory.
    pub(super) const fn nowhere(&self) -> u64 {
        0x5000_0000_0000
    }

    /// Returns two adjacent reservations of a stretch each.
    pub(super) fn neighbours(&self) -> (Reserved<'_>, Reserved<'_>) {
        let at = |hint: u64| self.must(self.reserve(self.stretch, 0, hint, 0));
        for step in 0..16_u64 {
            let place = 0x1000_0000_0000 + (step << 40);
            let first = at(place);
            if first.base != place {
                continue;
            }
            let second = at(first.end());
            if second.base == first.end() {
                return (first, second);
            }
        }
        skip("the driver returned no two adjacent reservations")
    }
}

/// Returns a device as a location.
pub(super) const fn place(device: i32) -> Location {
    Location { kind: abi::DEVICE, id: device }
}

/// Returns an access descriptor for a device.
pub(super) const fn grant_to(device: i32, flags: i32) -> AccessDesc {
    AccessDesc { location: place(device), flags }
}
