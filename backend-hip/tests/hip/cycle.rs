//! A device without free memory, and memory that is created and released many times.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{Backend, Bytes, Detail, Error, MemoryCalls, Properties, Reservation};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "cycle::out_of_memory_has_numbers", needs: Needs::Device, run: out_of_memory },
    Test { name: "cycle::two_thousand_rounds", needs: Needs::Device, run: rounds },
];

fn out_of_memory(rig: &Rig) {
    let info = rig.backend.memory_info(ZERO).unwrap();
    let size = Bytes(info.free.0 / rig.unit().0 * rig.unit().0) + rig.unit();
    // SAFETY: a multiple of the granularity.
    let error = unsafe { rig.backend.create(size, &Properties::on(ZERO)) }.expect_err("more than is free");
    let Detail::OutOfMemory { requested, free, total, source, .. } = error.detail() else {
        panic!("{error:?}");
    };
    assert_eq!((*requested, *free, *total), (size, info.free, info.total));
    assert_eq!((source.call, source.code), ("hipMemCreate", 2));
    assert_eq!(rig.hip("hipGetLastError", 0), 0, "HIP's last error is cleared");
    assert!(matches!(
        rig.backend.allocate_plain(ZERO, size).as_ref().map_err(Error::detail),
        Err(Detail::OutOfMemory { .. })
    ));
}

/// On HIP 6 this crashes if HIP gets freed addresses again.
fn rounds(rig: &Rig) {
    for round in 0..2000 {
        let mut reservation = rig.mapped(ZERO, rig.units(2));
        rig.works(ZERO, &reservation, Bytes::ZERO, rig.units(2), round);
        // SAFETY: one whole mapping, no longer used.
        unsafe { reservation.unmap(Bytes::ZERO, rig.units(2)) }.unwrap();
    }
}
