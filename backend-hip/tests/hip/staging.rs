//! Page-locked memory, and copies on copy streams.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{AddressRange, Backend, Bytes, CopyCalls, Detail, MemoryCalls, Operation, Reservation};
use std::slice;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "staging::pinned_memory_is_what_hip_copies_fastest", needs: Needs::Device, run: pinned },
    Test { name: "staging::unmapped_fill_error_names_the_range", needs: Needs::Device, run: not_filled },
];

/// HIP reports the memory as host memory that is locked for its devices.
fn pinned(rig: &Rig) {
    let size = rig.unit() + Bytes(4096);
    let pinned = rig.backend.pin(size).unwrap();
    assert_eq!(pinned.size(), size);
    let start = pinned.start().as_ptr();
    assert_eq!(start.addr() % 4096, 0, "at a page");
    // SAFETY: only this test uses the memory.
    let bytes = unsafe { slice::from_raw_parts_mut(start, size.0 as usize) };
    bytes.fill(7);
    assert!(bytes.iter().all(|byte| *byte == 7));
    let mut flags = 0u32;
    assert_eq!(rig.hip2("hipHostGetFlags", (&raw mut flags).addr(), start.addr()), 0, "HIP allocated it");
    assert_eq!(flags & 1, 1, "for all devices: {flags:#x}");
    drop(pinned);
    assert_ne!(rig.hip2("hipHostGetFlags", (&raw mut flags).addr(), start.addr()), 0, "it was freed");
    rig.hip("hipGetLastError", 0);
}

/// HIP finds no memory there, and writes nothing.
fn not_filled(rig: &Rig) {
    // SAFETY: the size is a unit.
    let reservation =
        unsafe { rig.backend.reserve(rig.unit(), rig.backend.granularity().into(), None) }.unwrap();
    let nothing = AddressRange { base: reservation.range().base, size: Bytes(48) };
    // SAFETY: the addresses are this test's, and no memory is mapped there.
    let error = unsafe { rig.backend.fill(ZERO, nothing.base, nothing.size, 1) }.expect_err("no memory");
    let Detail::Driver { source, context } = error.detail() else { panic!("{error}") };
    assert_eq!((error.operation(), source.call), (Operation::Fill, "hipMemsetAsync"), "{error}");
    assert_eq!(*context, format!("{nothing} by device 0"));
    assert_eq!(rig.hip("hipGetLastError", 0), 0);
}
