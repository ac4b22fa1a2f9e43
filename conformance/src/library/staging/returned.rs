//! Memory that is returned to its device while its addresses stay, by the backend's own calls.
#![allow(unsafe_code)] // the backend's own calls

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Detail, Grant, Placement, Reservation};
use gpu_vmm_testkit::TestKit;

cases! { "staging":
    /// Memory that was mapped in a reservation is free on its device again, and the addresses stay reserved and can be mapped
    /// again.
    returned_memory,
    /// Returning memory when nothing was mapped, and regaining addresses when none was lost, succeed without effect.
    nothing_to_return,
}

/// Reserves addresses for `units` units with the backend's own call.
fn reservation<B: TestKit>(subject: &Subject<B>, units: u64) -> B::Reservation {
    let alignment = subject.backend.reservation_unit().into();
    // SAFETY: the size is a multiple of the unit of addresses.
    unsafe { subject.backend.reserve(subject.units(units), alignment, None) }.unwrap()
}

fn returned_memory<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let mut reservation = reservation(subject, 4);
    let (range, device) = (reservation.range(), subject.device);
    let size = subject.units(3);
    for seed in 0..3 {
        // SAFETY: the handle fits into the empty reservation, and each call has ended before the memory is unmapped.
        unsafe {
            let handle = subject.backend.create(size, &subject.properties()).unwrap();
            reservation.map(subject.unit(), &handle).unwrap();
            drop(handle);
            reservation.set_access(subject.unit(), size, &[Grant { device, access: RW }]).unwrap();
            let at = range.base + subject.unit();
            subject.backend.write_pattern(device, at, size, seed).unwrap();
            assert_eq!(subject.backend.count_wrong(device, at, size, seed).unwrap(), 0);
            subject.backend.synchronize(device).unwrap();
            reservation.unmap(subject.unit(), size).unwrap();
            reservation.return_memory().unwrap();
        }
        assert_eq!(reservation.range(), range);
        if !subject.has_quirk("release-frees-nothing") {
            assert_eq!(subject.free(), before, "memory is still in use after the return");
        }
        let taken = subject.region(1).at(Placement::Exact(range.base)).build().unwrap_err();
        assert!(matches!(taken.detail(), Detail::AddressTaken { .. }), "{taken}");
    }
}

fn nothing_to_return<B: TestKit>(subject: &Subject<B>) {
    let mut reservation = reservation(subject, 1);
    let range = reservation.range();
    for _ in 0..2 {
        // SAFETY: nothing is mapped.
        unsafe { reservation.return_memory() }.unwrap();
        reservation.regain().unwrap();
    }
    assert_eq!(reservation.range(), range);
}
