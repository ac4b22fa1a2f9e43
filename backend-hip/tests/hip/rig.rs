//! Helpers of the tests: the backend, raw HIP functions, and a check for leaks.

use crate::Needs;
use crate::counts::Counts;
use gpu_vmm_core::{
    Access, Alignment, Backend, Bytes, DeviceId, Grant, MemoryCalls, Properties, Reservation,
};
use gpu_vmm_hip::{HipBackend, HipHandle, HipReservation};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::loaded;
use libtest_mimic::Failed;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const ZERO: DeviceId = DeviceId(0);
pub(crate) const ONE: DeviceId = DeviceId(1);

pub(crate) struct Rig {
    pub(crate) backend: HipBackend,
    /// The counts of objects and of failed drops before the test.
    before: Mutex<(Option<Counts>, u64)>,
    /// The number of imports that the test has made and dropped.
    imports: AtomicUsize,
}

impl Rig {
    pub(crate) fn new(backend: HipBackend) -> Self {
        let before = Mutex::new((Counts::now(), backend.drop_log().count()));
        Self { backend, before, imports: AtomicUsize::new(0) }
    }

    /// Returns why a test cannot run here.
    pub(crate) fn lacks(&self, needs: Needs) -> Option<String> {
        let devices = self.backend.devices();
        let wanted = &devices[..devices.len().min(if needs == Needs::Device { 1 } else { 2 })];
        if let Some(unusable) = wanted.iter().find_map(|device| device.unusable.as_ref()) {
            return Some(unusable.clone());
        }
        if needs > Needs::Device && devices.len() < 2 {
            return Some("the test needs two devices, but there is one".to_owned());
        }
        let reach = |device, owner| self.backend.can_access(device, owner).expect("an answer");
        (needs == Needs::Peers && !(reach(ZERO, ONE) && reach(ONE, ZERO)))
            .then(|| "devices 0 and 1 cannot access each other's memory".to_owned())
    }

    pub(crate) fn has_quirk(&self, id: &str) -> bool {
        self.backend.quirks().iter().any(|quirk| quirk.id == id)
    }

    pub(crate) fn counts_import(&self) {
        self.imports.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the unit of all sizes: the largest granularity, 2 MiB on all devices so far.
    pub(crate) fn unit(&self) -> Bytes {
        let units = self.backend.devices().iter().map(|device| device.granularity.bytes());
        units.max().expect("there is a device")
    }

    pub(crate) fn units(&self, count: u64) -> Bytes {
        Bytes(self.unit().0 * count)
    }

    pub(crate) fn alignment(&self) -> Alignment {
        Alignment::new(self.unit()).expect("a power of two")
    }

    pub(crate) fn create(&self, device: DeviceId, size: Bytes) -> HipHandle {
        // SAFETY: a multiple of the granularity.
        unsafe { self.backend.create(size, &Properties::on(device)) }.expect("memory")
    }

    pub(crate) fn reserve(&self, size: Bytes) -> HipReservation {
        // SAFETY: a multiple of the granularity.
        unsafe { self.backend.reserve(size, self.alignment(), None) }.expect("addresses")
    }

    /// Returns a reservation with one mapping over all of it, which its device may read and write.
    pub(crate) fn mapped(&self, device: DeviceId, size: Bytes) -> HipReservation {
        let mut reservation = self.reserve(size);
        let handle = self.create(device, size);
        // SAFETY: the handle fits the empty reservation.
        unsafe {
            reservation.map(Bytes::ZERO, &handle).expect("a mapping");
            reservation.set_access(Bytes::ZERO, size, &[read_write(device)]).expect("access");
        }
        reservation
    }

    /// Unmaps the mapping of [`mapped`](Self::mapped), and drops the reservation.
    pub(crate) fn unmapped(&self, mut reservation: HipReservation) {
        let size = reservation.range().size;
        // SAFETY: one mapping over the whole reservation; the tests have waited for the work on it.
        unsafe { reservation.unmap(Bytes::ZERO, size) }.expect("unmapped");
    }

    /// Returns the memory of a reservation without mappings to the device.
    pub(crate) fn returned(&self, reservation: &mut HipReservation) {
        let range = reservation.range();
        // SAFETY: nothing is mapped, as the tests know.
        unsafe { reservation.return_memory() }.expect("memory is returned");
        assert_eq!(reservation.range(), range);
    }

    /// Writes a pattern to both ends of every unit, and then checks all of them.
    pub(crate) fn works(
        &self,
        device: DeviceId,
        reservation: &HipReservation,
        offset: Bytes,
        length: Bytes,
        seed: u64,
    ) {
        const END: Bytes = Bytes::kib(4);
        let first = reservation.range().base + offset;
        let units = (0..length.0).step_by(self.unit().0 as usize).map(Bytes);
        let ends: Vec<_> = units.flat_map(|unit| [unit, unit + self.unit() - END]).collect();
        for end in &ends {
            // SAFETY: the tests name memory that is mapped for this device.
            unsafe { self.backend.write_pattern(device, first + *end, END, seed + end.0) }.expect("written");
        }
        for end in &ends {
            // SAFETY: as above.
            let wrong =
                unsafe { self.backend.count_wrong(device, first + *end, END, seed + end.0) }.expect("read");
            assert_eq!(wrong, 0, "wrong words at offset {}", offset + *end);
        }
    }

    /// Writes a pattern over all of the memory, and checks it.
    pub(crate) fn writes_all(
        &self,
        device: DeviceId,
        reservation: &HipReservation,
        offset: Bytes,
        length: Bytes,
        seed: u64,
    ) {
        let at = reservation.range().base + offset;
        // SAFETY: the tests name memory that is mapped for this device.
        let wrong = unsafe {
            self.backend.write_pattern(device, at, length, seed).expect("written");
            self.backend.count_wrong(device, at, length, seed).expect("read")
        };
        assert_eq!(wrong, 0, "wrong words of {length} at offset {offset}");
    }

    pub(crate) fn free(&self, device: DeviceId) -> Bytes {
        self.backend.memory_info(device).expect("numbers").free
    }

    /// Calls a HIP function that takes one integer or pointer.
    pub(crate) fn hip(&self, function: &str, argument: usize) -> u32 {
        let library = loaded(&self.backend.driver().library).expect("HIP is loaded");
        // SAFETY: the tests name functions with one argument in a register; the result is HIP's code.
        unsafe { library.get::<unsafe extern "C" fn(usize) -> u32>(function).expect(function)(argument) }
    }

    /// Calls a HIP function that takes two integers or pointers.
    pub(crate) fn hip2(&self, function: &str, first: usize, second: usize) -> u32 {
        type Function = unsafe extern "C" fn(usize, usize) -> u32;
        let library = loaded(&self.backend.driver().library).expect("HIP is loaded");
        // SAFETY: as above, with two arguments.
        unsafe { library.get::<Function>(function).expect(function)(first, second) }
    }

    pub(crate) fn current_device(&self) -> i32 {
        let mut device = -1;
        assert_eq!(self.hip("hipGetDevice", &raw mut device as usize), 0);
        device
    }

    /// Excludes the current leaks from the final check: the test has caused them, and knows what HIP has lost.
    pub(crate) fn forgets_what_is_left(&self) {
        *self.before.lock().expect("whole") = (Counts::now(), self.backend.drop_log().count());
    }

    pub(crate) fn check_nothing_is_left(&self) -> Result<(), Failed> {
        let (before, drops_that_failed) = *self.before.lock().expect("whole");
        let failed = self.backend.drop_log().count() - drops_that_failed;
        if failed != 0 {
            return Err(format!(
                "{failed} drops failed, the last: {:?}",
                self.backend.drop_log().take_last()
            )
            .into());
        }
        let imports = self.imports.load(Ordering::Relaxed);
        Ok(Counts::check(before, imports, |id| self.has_quirk(id))?)
    }
}

pub(crate) fn read_write(device: DeviceId) -> Grant {
    Grant { device, access: Access::ReadWrite }
}

pub(crate) fn read(device: DeviceId) -> Grant {
    Grant { device, access: Access::Read }
}

/// True if the simulated GPUs were set to lack a feature.
pub(crate) fn simulated_without(setting: &str) -> bool {
    std::env::var(format!("HSA_SIM_{setting}")).is_ok_and(|value| value == "0")
}

/// Reproducible pseudo-random numbers (xorshift).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
