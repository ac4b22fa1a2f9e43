//! What rules work with: the raw calls with Rust's types, and guards that give back what a rule has made.
//!
//! The methods are safe though they pass on whatever a rule wants to know about: numbers, which the driver has to check.
//! Addresses are those of reservations made here, or ones where nothing is, so that nothing of this process's own is
//! reached. A driver that crashes all the same ends a process that is there for that.

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

/// What a call came to.
pub(super) type Answer<T> = Result<T, Refusal>;

/// A loaded driver with one device that was chosen.
pub(super) struct Lab {
    driver: Box<dyn Driver>,
    /// The chosen device.
    pub(super) device: i32,
    /// What sizes are counted in: the granularity, and on GPUs at least 2 MiB.
    pub(super) unit: usize,
    /// What reservations have to be multiples of to follow each other: on CUDA more than the granularity.
    pub(super) stretch: usize,
    /// HIP 6 loses a reservation that comes where one has been freed: then none is freed but where that is the rule.
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
        lab.warm_up().map_err(|refusal| refusal.to_string())?;
        Ok(lab)
    }

    /// Fills and copies once: what drivers take for that at first use is not to be counted as a rule's.
    fn warm_up(&self) -> Answer<()> {
        let plain = self.allocate(self.unit);
        self.set(plain.address, 1, self.unit)?;
        self.write(plain.address, &[2; 64])?;
        self.read(plain.address, 64).map(drop)
    }

    /// A rule begins.
    pub(super) fn begin(&self) {
        self.imports.store(0, Ordering::Relaxed);
        // Whatever the last one has left current.
        self.driver.make_current(self.device);
    }

    /// How often this rule has imported memory, which HIP 6 never gives back.
    pub(super) fn imports(&self) -> usize {
        self.imports.load(Ordering::Relaxed)
    }

    /// True where what was done, though right, leaves a driver in which nothing else should be looked at.
    pub(super) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Relaxed)
    }

    /// For what cannot be undone.
    pub(super) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    pub(super) fn vendor(&self) -> Vendor {
        self.driver.vendor()
    }

    pub(super) fn is(&self, vendor: Vendor) -> bool {
        self.vendor() == vendor
    }

    /// Ends a rule that is another vendor's.
    pub(super) fn only(&self, vendor: Vendor, why: &str) {
        if !self.is(vendor) {
            skip(why);
        }
    }

    /// Ends a rule that does not apply to a vendor.
    pub(super) fn not(&self, vendor: Vendor, why: &str) {
        if self.is(vendor) {
            skip(why);
        }
    }

    /// The chosen device's memory.
    pub(super) fn prop(&self) -> Prop {
        self.prop_of(self.device)
    }

    /// A device's memory.
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

    /// The chosen device's memory, to be exported as a descriptor.
    pub(super) fn shareable(&self) -> Prop {
        Prop { handle_types: abi::DESCRIPTOR, ..self.prop() }
    }

    /// An access of the chosen device's.
    pub(super) fn grant(&self, flags: i32) -> AccessDesc {
        grant_to(self.device, flags)
    }

    /// Another device, of which each can reach the other's memory, or the end of the rule.
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

    /// What was refused though it is what every program does: nothing can be said then.
    pub(super) fn must<T>(&self, answer: Answer<T>) -> T {
        answer.unwrap_or_else(|refusal| panic!("what the rule begins with was refused: {refusal}"))
    }

    /// So many units of addresses.
    pub(super) fn addresses(&self, units: usize) -> Reserved<'_> {
        self.must(self.reserve(units * self.unit, 0, 0, 0))
    }

    /// So many units of the chosen device's memory.
    pub(super) fn memory(&self, units: usize) -> Memory<'_> {
        self.must(self.create(units * self.unit, &self.prop(), 0))
    }

    /// Where nothing is mapped and nothing reserved: far from where drivers and systems put things.
    pub(super) const fn nowhere(&self) -> u64 {
        0x5000_0000_0000
    }

    /// Two reservations, each of a stretch, of which one begins where the other ends.
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
        skip("no two reservations were given side by side")
    }
}

/// A device as a place.
pub(super) const fn place(device: i32) -> Location {
    Location { kind: abi::DEVICE, id: device }
}

/// An access of a device's.
pub(super) const fn grant_to(device: i32, flags: i32) -> AccessDesc {
    AccessDesc { location: place(device), flags }
}
