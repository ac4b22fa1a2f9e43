//! What the tests have in common: the backend, raw functions of HIP's to look behind it, and what is left at the end.

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
    /// What there was before the test, and how many drops had failed.
    before: Mutex<(Option<Counts>, u64)>,
    /// How many imports the test has made and dropped.
    imports: AtomicUsize,
}

impl Rig {
    pub(crate) fn new(backend: HipBackend) -> Self {
        let before = Mutex::new((Counts::now(), backend.drop_log().count()));
        Self { backend, before, imports: AtomicUsize::new(0) }
    }

    /// Why a test cannot run here.
    pub(crate) fn lacks(&self, needs: Needs) -> Option<String> {
        let devices = self.backend.devices();
        let wanted = &devices[..devices.len().min(if needs == Needs::Device { 1 } else { 2 })];
        if let Some(unusable) = wanted.iter().find_map(|device| device.unusable.as_ref()) {
            return Some(unusable.clone());
        }
        if needs > Needs::Device && devices.len() < 2 {
            return Some("it takes two devices and there is one".to_owned());
        }
        let reach = |device, owner| self.backend.can_access(device, owner).expect("an answer");
        (needs == Needs::Peers && !(reach(ZERO, ONE) && reach(ONE, ZERO)))
            .then(|| "devices 0 and 1 do not reach each other's memory".to_owned())
    }

    pub(crate) fn has_quirk(&self, id: &str) -> bool {
        self.backend.quirks().iter().any(|quirk| quirk.id == id)
    }

    pub(crate) fn counts_import(&self) {
        self.imports.fetch_add(1, Ordering::Relaxed);
    }

    /// The unit of everything: 2 MiB everywhere so far.
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

    /// A reservation with one mapping over all of it, which its device may read and write.
    pub(crate) fn mapped(&self, device: DeviceId, size: Bytes) -> HipReservation {
        let mut reservation = self.reserve(size);
        let handle = self.create(device, size);
        // SAFETY: the handle fits an empty reservation.
        unsafe {
            reservation.map(Bytes::ZERO, &handle).expect("a mapping");
            reservation.set_access(Bytes::ZERO, size, &[read_write(device)]).expect("access");
        }
        reservation
    }

    /// Unmaps what [`mapped`](Self::mapped) has mapped, and gives memory and addresses back.
    pub(crate) fn unmapped(&self, mut reservation: HipReservation) {
        let size = reservation.range().size;
        // SAFETY: one mapping over all of it; the tests have waited for the work on it.
        unsafe { reservation.unmap(Bytes::ZERO, size) }.expect("unmapped");
    }

    /// Sees to it that the memory of a reservation in which nothing is mapped any more is the device's again.
    pub(crate) fn returned(&self, reservation: &mut HipReservation) {
        let range = reservation.range();
        // SAFETY: nothing is mapped, as the tests know.
        unsafe { reservation.return_memory() }.expect("memory comes back");
        assert_eq!(reservation.range(), range);
    }

    /// Writes a pattern to both ends of every unit, and then reads all of it back.
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
            // SAFETY: the tests map what they name here, for this device.
            unsafe { self.backend.write_pattern(device, first + *end, END, seed + end.0) }.expect("written");
        }
        for end in &ends {
            // SAFETY: as above.
            let wrong =
                unsafe { self.backend.count_wrong(device, first + *end, END, seed + end.0) }.expect("read");
            assert_eq!(wrong, 0, "wrong words at offset {}", offset + *end);
        }
    }

    /// Writes a pattern over all of it, and reads it back.
    pub(crate) fn writes_all(
        &self,
        device: DeviceId,
        reservation: &HipReservation,
        offset: Bytes,
        length: Bytes,
        seed: u64,
    ) {
        let at = reservation.range().base + offset;
        // SAFETY: the tests map what they name here, for this device.
        let wrong = unsafe {
            self.backend.write_pattern(device, at, length, seed).expect("written");
            self.backend.count_wrong(device, at, length, seed).expect("read")
        };
        assert_eq!(wrong, 0, "wrong words of {length} at offset {offset}");
    }

    pub(crate) fn free(&self, device: DeviceId) -> Bytes {
        self.backend.memory_info(device).expect("numbers").free
    }

    /// Calls a function of HIP's own that takes one integer or a pointer to one.
    pub(crate) fn hip(&self, function: &str, argument: usize) -> u32 {
        let library = loaded(&self.backend.driver().library).expect("HIP is loaded");
        // SAFETY: the tests name functions with one argument in a register; the result is HIP's code.
        unsafe { library.get::<unsafe extern "C" fn(usize) -> u32>(function).expect(function)(argument) }
    }

    /// The same with two.
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

    /// What is left so far is not looked at in the end: the test has done it, and knows what HIP has lost.
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

/// True where the simulated GPUs were told to lack something.
pub(crate) fn simulated_without(setting: &str) -> bool {
    std::env::var(format!("HSA_SIM_{setting}")).is_ok_and(|value| value == "0")
}

/// Numbers that look random and are the same in every run (xorshift).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
