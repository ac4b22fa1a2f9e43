//! Memory that returns only with its addresses (quirk `memory-stays-until-free`): they are freed and reserved again.

use crate::counts::take_freed;
use crate::rig::{Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{Address, Alignment, Backend, Bytes, Detail, Error, MemoryCalls, Operation, Reservation};
use gpu_vmm_hip::HipReservation;
use gpu_vmm_testkit::raw::loaded;
use std::ffi::CStr;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "renewal::memory_comes_back_and_addresses_stay", needs: Needs::Device, run: comes_back },
    Test { name: "renewal::memory_stays_where_the_quirk_says_so", needs: Needs::Device, run: stays },
    Test { name: "renewal::nothing_is_freed_without_need", needs: Needs::Device, run: without_need },
    Test { name: "renewal::what_is_mapped_stays", needs: Needs::Device, run: still_mapped },
    Test { name: "renewal::another_reservation_takes_the_addresses", needs: Needs::Device, run: taken },
    Test { name: "renewal::lost_addresses_are_not_freed", needs: Needs::Device, run: dropped_without },
    Test { name: "renewal::no_other_reservation_comes_between", needs: Needs::Device, run: threads },
];

const QUIRK: &str = "memory-stays-until-free";

/// Calls a function of the simulated runtime, if that is below HIP.
fn simulation(name: &CStr, argument: usize) -> Option<u64> {
    let hsa = loaded("libhsa-runtime64.so.1")?;
    // SAFETY: the tests name functions of the simulation, which take one argument in a register.
    unsafe {
        let function = hsa.get::<unsafe extern "C" fn(usize) -> u64>(name.to_bytes_with_nul()).ok()?;
        Some(function(argument))
    }
}

/// Returns the number of frees of addresses, if it is counted.
fn frees() -> Option<u64> {
    simulation(c"hsa_sim_call_count", c"hsa_amd_vmem_address_free".as_ptr().expose_provenance())
}

/// Maps memory over the whole reservation, uses it, and unmaps it.
fn used(rig: &Rig, reservation: &mut HipReservation, seed: u64) {
    let size = reservation.range().size;
    let handle = rig.create(ZERO, size);
    // SAFETY: the handle fits the empty reservation; the device is idle when it is unmapped.
    unsafe {
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation.set_access(Bytes::ZERO, size, &[read_write(ZERO)]).unwrap();
        rig.works(ZERO, reservation, Bytes::ZERO, size, seed);
        reservation.unmap(Bytes::ZERO, size).unwrap();
    }
}

fn comes_back(rig: &Rig) {
    let before = rig.free(ZERO);
    // SAFETY: multiples of the granularity; the second one is a part of the range that HIP returns.
    let aligned = unsafe { rig.backend.reserve(rig.units(3), Alignment::new(Bytes::gib(1)).unwrap(), None) };
    for mut reservation in [rig.reserve(rig.units(3)), aligned.unwrap()] {
        for round in 0..3 {
            used(rig, &mut reservation, round);
            rig.returned(&mut reservation);
            assert_eq!(rig.free(ZERO), before, "round {round}");
        }
        let at = reservation.range().base;
        // SAFETY: multiples of the granularity.
        let other = unsafe { rig.backend.reserve(rig.unit(), rig.alignment(), Some(at)) }.unwrap();
        assert_ne!(other.range().base, at, "the addresses are still reserved");
    }
}

/// Checks that the simulation keeps memory as the quirk says, so that the tests above can fail.
fn stays(rig: &Rig) {
    let keeps = rig.has_quirk(QUIRK) && std::env::var("HSA_SIM_KEEPS_MEMORY").is_ok_and(|value| value == "1");
    let before = rig.free(ZERO);
    let mut reservation = rig.reserve(rig.units(3));
    used(rig, &mut reservation, 1);
    let left = before - rig.free(ZERO);
    if simulation(c"hsa_sim_call_count", 0).is_some() {
        assert_eq!(left, if keeps { rig.units(3) } else { Bytes::ZERO });
    }
    drop(reservation);
    assert_eq!(rig.free(ZERO), before);
}

fn without_need(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(2));
    let frees_while = |work: &mut dyn FnMut()| {
        let before = frees();
        work();
        frees().zip(before).map(|(after, before)| after - before)
    };
    let none = frees().map(|_| 0);
    assert_eq!(frees_while(&mut || rig.returned(&mut reservation)), none, "it was never used");
    used(rig, &mut reservation, 1);
    let once = frees().map(|_| u64::from(rig.has_quirk(QUIRK)));
    assert_eq!(frees_while(&mut || rig.returned(&mut reservation)), once);
    assert_eq!(frees_while(&mut || rig.returned(&mut reservation)), none, "not used since");
    assert_eq!(frees_while(&mut || reservation.regain().unwrap()), none, "it has its addresses");
}

fn still_mapped(rig: &Rig) {
    let mut reservation = rig.mapped(ZERO, rig.unit());
    if rig.has_quirk(QUIRK) {
        // SAFETY: HIP must not be called while memory is mapped; the test checks that.
        let error = unsafe { reservation.return_memory() }.expect_err("memory is mapped");
        assert!(
            matches!(error.detail(), Detail::Unsupported { .. })
                && error.operation() == Operation::ReturnMemory,
            "{error}"
        );
    }
    rig.works(ZERO, &reservation, Bytes::ZERO, rig.unit(), 1);
    // SAFETY: one whole mapping, no longer used.
    unsafe { reservation.unmap(Bytes::ZERO, rig.unit()) }.unwrap();
}

/// Returns a reservation whose addresses were taken by other code, if the simulation can do that.
fn lost(rig: &Rig) -> Option<HipReservation> {
    let mut reservation = rig.reserve(rig.units(2));
    used(rig, &mut reservation, 1);
    if !rig.has_quirk(QUIRK) || !take_freed(true) {
        return None;
    }
    let wanted = reservation.range().base;
    // SAFETY: nothing is mapped.
    let error = unsafe { reservation.return_memory() }.expect_err("other code took the addresses");
    is_taken(&error, Operation::ReturnMemory, wanted);
    Some(reservation)
}

#[track_caller]
fn is_taken(error: &Error, operation: Operation, address: Address) {
    match error.detail() {
        Detail::AddressTaken { wanted, offered } => {
            assert_eq!((error.operation(), *wanted), (operation, address));
            assert_ne!(offered, wanted);
        }
        other => panic!("{other}"),
    }
}

fn taken(rig: &Rig) {
    let before = rig.free(ZERO);
    let Some(mut reservation) = lost(rig) else { return };
    assert_eq!(rig.free(ZERO), before, "the memory was returned nevertheless");
    let unit = rig.unit();
    let handle = rig.create(ZERO, unit);
    // SAFETY: none of these calls may reach HIP, because the addresses belong to other code.
    let refused = unsafe {
        [
            reservation.map(Bytes::ZERO, &handle),
            reservation.unmap(Bytes::ZERO, unit),
            reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]),
            reservation.access(Bytes::ZERO, ZERO).map(drop),
            reservation.dma_buf(ZERO, Bytes::ZERO, unit).map(drop),
            reservation.return_memory(),
        ]
    };
    for (number, answer) in refused.into_iter().enumerate() {
        let error = answer.expect_err("the addresses are lost");
        assert!(error.to_string().contains("regain"), "{number}: {error}");
        assert!(error.driver_error().is_none(), "{number}: {error}");
    }
    let at = reservation.range().base;
    is_taken(&reservation.regain().expect_err("they are still taken"), Operation::RegainAddresses, at);
    take_freed(false);
    reservation.regain().unwrap();
    reservation.regain().unwrap();
    assert_eq!(reservation.range().base, at);
    used(rig, &mut reservation, 2);
    rig.returned(&mut reservation);
}

fn dropped_without(rig: &Rig) {
    let Some(reservation) = lost(rig) else { return };
    let (failed, freed) = (rig.backend.drop_log().count(), frees());
    drop(reservation);
    assert_eq!((rig.backend.drop_log().count(), frees()), (failed, freed));
    take_freed(false);
}

/// While one thread frees addresses for a moment, other threads reserve ranges of that size.
fn threads(rig: &Rig) {
    let reserve = |count: usize| (0..count).map(|_| rig.reserve(rig.units(1))).collect::<Vec<_>>();
    thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut reservation = rig.reserve(rig.units(1));
                for round in 0..200 {
                    used(rig, &mut reservation, number * 1000 + round);
                    rig.returned(&mut reservation);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..1000 {
                drop(reserve(4));
            }
        });
    });
}
