//! Memory from its creation to its release.

use crate::rig::{Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, Error, Handle, MemoryCalls, Properties, Reservation, SyncCalls,
};
use gpu_vmm_testkit::TestKit;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "cycle::memory_is_made_used_and_given_back", needs: Needs::Device, run: full },
    Test { name: "cycle::copies_and_fills_are_done_when_they_return", needs: Needs::Device, run: copies },
    Test { name: "cycle::aliases_are_the_same_memory", needs: Needs::Device, run: aliases },
    Test {
        name: "cycle::a_handle_may_be_dropped_while_it_is_mapped",
        needs: Needs::Device,
        run: drop_while_mapped,
    },
    Test { name: "cycle::memory_keeps_its_bytes_when_it_moves", needs: Needs::Device, run: moves },
    Test { name: "cycle::out_of_memory_has_numbers", needs: Needs::Device, run: out_of_memory },
    Test { name: "cycle::a_pattern_longer_than_a_copy", needs: Needs::Device, run: long_pattern },
    Test { name: "cycle::plain_allocations", needs: Needs::Device, run: plain },
    Test { name: "cycle::two_thousand_rounds", needs: Needs::Device, run: rounds },
];

fn full(rig: &Rig) {
    let size = rig.units(3);
    let before = rig.free(ZERO);
    let mut reservation = rig.reserve(size);
    assert_eq!(rig.free(ZERO), before, "addresses use no memory");
    let handle = rig.create(ZERO, size);
    assert_eq!((handle.size(), handle.properties()), (size, Properties::on(ZERO)));
    assert_eq!(before - rig.free(ZERO), size);
    // SAFETY: the handle fits the reservation; the device is idle when it is unmapped.
    unsafe {
        reservation.map(Bytes::ZERO, &handle).unwrap();
        assert_eq!(reservation.access(Bytes::ZERO, ZERO).unwrap(), gpu_vmm_core::Access::None);
        reservation.set_access(Bytes::ZERO, size, &[read_write(ZERO)]).unwrap();
        rig.writes_all(ZERO, &reservation, Bytes::ZERO, size, 1);
        rig.backend.synchronize(ZERO).unwrap();
        reservation.unmap(Bytes::ZERO, size).unwrap();
    }
    drop(handle);
    rig.returned(&mut reservation);
    assert_eq!(rig.free(ZERO), before);
}

fn copies(rig: &Rig) {
    let size = rig.units(2);
    let mut reservation = rig.mapped(ZERO, size);
    let base = reservation.range().base;
    let half = rig.unit();
    // SAFETY: all of it is mapped for the device.
    unsafe {
        rig.backend.fill(ZERO, base, size, 0x5a).unwrap();
        let mut host = vec![0u8; size.0 as usize];
        rig.backend.copy_to_host(ZERO, &mut host, base).unwrap();
        assert!(host.iter().all(|byte| *byte == 0x5a));
        rig.backend.write_pattern(ZERO, base, half, 7).unwrap();
        rig.backend.copy(ZERO, base + half, base, half).unwrap();
        assert_eq!(rig.backend.count_wrong(ZERO, base + half, half, 7).unwrap(), 0);
        // Offsets and sizes that are not multiples of anything.
        rig.backend.fill(ZERO, base + Bytes(3), Bytes(5), 1).unwrap();
        rig.backend.copy_from_host(ZERO, base + Bytes(4), &[9, 8]).unwrap();
        rig.backend.copy(ZERO, base + Bytes(101), base + Bytes(3), Bytes(5)).unwrap();
        let mut few = [0; 5];
        rig.backend.copy_to_host(ZERO, &mut few, base + Bytes(101)).unwrap();
        assert_eq!(few, [1, 9, 8, 1, 1]);
        // Empty ranges.
        rig.backend.copy_from_host(ZERO, base, &[]).unwrap();
        rig.backend.copy_to_host(ZERO, &mut [], base).unwrap();
        rig.backend.copy(ZERO, base, base + half, Bytes::ZERO).unwrap();
        rig.backend.fill(ZERO, base, Bytes::ZERO, 1).unwrap();
        reservation.unmap(Bytes::ZERO, size).unwrap();
    }
}

fn aliases(rig: &Rig) {
    let unit = rig.unit();
    let handle = rig.create(ZERO, unit);
    let mut here = rig.reserve(rig.units(3));
    let mut there = rig.reserve(unit);
    // SAFETY: three free places for one handle.
    unsafe {
        here.map(Bytes::ZERO, &handle).unwrap();
        here.map(rig.units(2), &handle).unwrap();
        there.map(Bytes::ZERO, &handle).unwrap();
        here.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        here.set_access(rig.units(2), unit, &[read_write(ZERO)]).unwrap();
        there.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        rig.writes_all(ZERO, &here, Bytes::ZERO, unit, 11);
        for at in [here.range().base + rig.units(2), there.range().base] {
            assert_eq!(rig.backend.count_wrong(ZERO, at, unit, 11).unwrap(), 0);
        }
        here.unmap(Bytes::ZERO, unit).unwrap();
        assert_eq!(rig.backend.count_wrong(ZERO, there.range().base, unit, 11).unwrap(), 0);
        here.unmap(rig.units(2), unit).unwrap();
        there.unmap(Bytes::ZERO, unit).unwrap();
    }
}

fn drop_while_mapped(rig: &Rig) {
    let before = rig.free(ZERO);
    let mut reservation = rig.mapped(ZERO, rig.unit());
    assert_eq!(before - rig.free(ZERO), rig.unit(), "the mapping holds the memory");
    rig.works(ZERO, &reservation, Bytes::ZERO, rig.unit(), 3);
    // SAFETY: one whole mapping, no longer used.
    unsafe { reservation.unmap(Bytes::ZERO, rig.unit()) }.unwrap();
    rig.returned(&mut reservation);
    assert_eq!(rig.free(ZERO), before, "the last mapping releases it");
}

fn moves(rig: &Rig) {
    let unit = rig.unit();
    let handle = rig.create(ZERO, unit);
    let mut reservation = rig.reserve(rig.units(4));
    for round in 0..4 {
        let offset = rig.units(round);
        // SAFETY: the handle is mapped at one place at a time.
        unsafe {
            reservation.map(offset, &handle).unwrap();
            reservation.set_access(offset, unit, &[read_write(ZERO)]).unwrap();
            let at = reservation.range().base + offset;
            if round == 0 {
                rig.backend.write_pattern(ZERO, at, unit, 5).unwrap();
            }
            assert_eq!(rig.backend.count_wrong(ZERO, at, unit, 5).unwrap(), 0, "round {round}");
            reservation.unmap(offset, unit).unwrap();
        }
    }
}

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

fn long_pattern(rig: &Rig) {
    let size = rig.units(9);
    let mut reservation = rig.mapped(ZERO, size);
    let base = reservation.range().base;
    rig.writes_all(ZERO, &reservation, Bytes::ZERO, size, 42);
    // SAFETY: all of it is mapped.
    unsafe {
        let last = base + (size - Bytes(8));
        rig.backend.fill(ZERO, last, Bytes(1), 0).unwrap();
        rig.backend.fill(ZERO, base, Bytes(1), 0).unwrap();
        let wrong = rig.backend.count_wrong(ZERO, base, size, 42).unwrap();
        assert_eq!(wrong, 2, "the first word of the first copy and the last of the last");
        reservation.unmap(Bytes::ZERO, size).unwrap();
    }
}

fn plain(rig: &Rig) {
    let before = rig.free(ZERO);
    let size = rig.units(2);
    let at = rig.backend.allocate_plain(ZERO, size).unwrap();
    assert!(rig.free(ZERO) < before);
    // SAFETY: an allocation of this size, freed once.
    unsafe {
        rig.backend.write_pattern(ZERO, at, size, 1).unwrap();
        assert_eq!(rig.backend.count_wrong(ZERO, at, size, 1).unwrap(), 0);
        assert_eq!(
            rig.backend.count_wrong(ZERO, at, size, 2).unwrap(),
            size.0 / 8,
            "every word differs with another seed"
        );
        rig.backend.free_plain(ZERO, at, size).unwrap();
    }
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
