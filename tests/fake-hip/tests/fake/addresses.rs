//! Memory that goes back to its device while the addresses stay reserved.

use crate::rig::{Must, Rig, ZERO, units};
use gpu_vmm_core::{Access, Alignment, Bytes, Detail, MemoryCalls, Placement, Properties, Reservation};
use gpu_vmm_test_settings::cases;

cases! {
    returned;
    mapped_memory_is_not_returned => not_returned;
}

/// Returns the mapped memory to its device, and keeps the addresses reserved.
pub(crate) fn returned(rig: &mut Rig) {
    let before = rig.free(ZERO);
    let alignment = Alignment::new(units(1)).expect("a power of two");
    // SAFETY: whole units.
    let mut reservation = unsafe { rig.backend.reserve(units(4), alignment, None) }.must("addresses");
    for _ in 0..2 {
        // SAFETY: memory that fits the empty reservation, which no device uses.
        unsafe {
            let handle = rig.backend.create(units(4), &Properties::on(ZERO)).must("memory");
            reservation.map(Bytes::ZERO, &handle).must("mapped");
            drop(handle);
            reservation.unmap(Bytes::ZERO, units(4)).must("unmapped");
            reservation.return_memory().must("returned");
        }
        if !rig.has("release-frees-nothing") {
            assert_eq!(rig.free(ZERO), before, "memory did not come back");
        }
        fails!(rig.region(1).at(Placement::Exact(reservation.range().base)).build(), AddressTaken);
    }
}

/// HIP would forget the addresses and leave the mapping. Where memory comes back by itself, there is nothing to do.
fn not_returned(rig: &mut Rig) {
    let alignment = Alignment::new(units(1)).expect("a power of two");
    // SAFETY: memory that fits the empty reservation, which no device uses.
    unsafe {
        let mut reservation = rig.backend.reserve(units(4), alignment, None).must("addresses");
        let handle = rig.backend.create(units(2), &Properties::on(ZERO)).must("memory");
        reservation.map(units(1), &handle).must("mapped");
        let answer = reservation.return_memory();
        if rig.has("memory-stays-until-free") {
            let range = reservation.range();
            let expected = format!("1 mappings (4 MiB) are left in {range}, which stay reserved");
            let error = answer.expect_err("it is mapped");
            assert!(
                matches!(error.detail(), Detail::Unsupported { reason } if *reason == expected),
                "{error}"
            );
        } else {
            answer.must("nothing to do");
        }
        assert_eq!(reservation.access(units(1), ZERO).must("still mapped"), Access::None);
        reservation.unmap(units(1), units(2)).must("unmapped");
    }
}
