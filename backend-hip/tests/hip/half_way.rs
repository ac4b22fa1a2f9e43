//! Failures below HIP: each HSA call that an operation of the backend makes fails once, in a run of its own.
//!
//! The operation may still succeed if HIP has another way. Otherwise it returns an error and changes nothing: it
//! succeeds when it is repeated, its memory works, and no object leaks. `known` lists the cases in which HIP itself
//! prevents that.

mod known;
mod simulation;
mod sweep;

use crate::rig::{ONE, Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, CopyCalls, DeviceId, Handle, MemoryCalls, Properties, Region,
    Reservation, StagingRing, Stream, SyncCalls, WaitFor,
};
use gpu_vmm_hip::HipBackend;
use gpu_vmm_testkit::TestKit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use sweep::Sweep;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "half_way::memory", needs: Needs::Peers, run: memory },
    Test { name: "half_way::addresses", needs: Needs::Peers, run: addresses },
    Test { name: "half_way::mappings", needs: Needs::Peers, run: mappings },
    Test { name: "half_way::access_of_two_devices", needs: Needs::Peers, run: two_devices },
    Test { name: "half_way::copies", needs: Needs::Peers, run: copies },
    Test { name: "half_way::regions", needs: Needs::Peers, run: regions },
];

fn memory(rig: &Rig) {
    let sweep = Sweep::new(rig);
    let properties = Properties::on(ZERO).shareable();
    // SAFETY: a unit.
    let create = || unsafe { rig.backend.create(rig.unit(), &properties) };
    sweep.each("create", || None, |made| create().map(|handle| *made = Some(handle)), drop);
    let shareable = || (create().unwrap(), None);
    sweep.each("export", shareable, |(handle, fd)| handle.export().map(|made| *fd = Some(made)), drop);
    if !rig.has_quirk("import-leaks") {
        let exported = || (create().unwrap().export().unwrap(), None);
        let import = |(fd, made): &mut (OwnedFd, Option<_>)| {
            // SAFETY: the descriptor names a unit, exported here.
            let handle = unsafe { rig.backend.import(fd.as_fd(), rig.unit(), &properties) };
            handle.map(|handle| *made = Some(handle))
        };
        sweep.each("import", exported, import, drop);
    }
    let pin = |made: &mut Option<_>| rig.backend.pin(rig.unit()).map(|pinned| *made = Some(pinned));
    sweep.each("pin", || None, pin, drop);
    sweep.end();
}

fn addresses(rig: &Rig) {
    let sweep = Sweep::new(rig);
    let emptied = || {
        rig.backend.release_kept_addresses().unwrap();
        let at = rig.reserve(rig.units(3)).range().base;
        rig.backend.release_kept_addresses().unwrap();
        (at, None)
    };
    let reserve = |(at, made): &mut (_, Option<_>)| {
        // SAFETY: multiples of the granularity.
        let reserved = unsafe { rig.backend.reserve(rig.units(3), rig.alignment(), Some(*at)) };
        reserved.map(|reservation| *made = Some(reservation))
    };
    sweep.each("reserve", emptied, reserve, drop);
    let used = || {
        let mut reservation = rig.mapped(ZERO, rig.unit());
        // SAFETY: one whole mapping that no device uses.
        unsafe { reservation.unmap(Bytes::ZERO, rig.unit()) }.unwrap();
        reservation
    };
    sweep.each(
        "return_memory",
        used,
        |reservation| {
            reservation.regain()?;
            // SAFETY: nothing is mapped.
            unsafe { reservation.return_memory() }
        },
        drop,
    );
    sweep.each(
        "release_kept_addresses",
        || drop(rig.reserve(rig.units(3))),
        |()| rig.backend.release_kept_addresses().map(drop),
        drop,
    );
    sweep.end();
}

fn mappings(rig: &Rig) {
    let sweep = Sweep::new(rig);
    let unit = rig.unit();
    let whole = rig.units(2);
    let two = || {
        let mut reservation = rig.reserve(whole);
        let handles = [rig.create(ZERO, unit), rig.create(ZERO, unit)];
        // SAFETY: the handles are adjacent in the empty reservation.
        unsafe {
            reservation.map(Bytes::ZERO, &handles[0]).unwrap();
            reservation.map(unit, &handles[1]).unwrap();
        }
        reservation
    };
    let accessible = || {
        let mut reservation = two();
        // SAFETY: two whole mappings.
        unsafe { reservation.set_access(Bytes::ZERO, whole, &[read_write(ZERO)]) }.unwrap();
        rig.works(ZERO, &reservation, Bytes::ZERO, whole, 3);
        reservation
    };
    let emptied = |mut reservation: gpu_vmm_hip::HipReservation| {
        for place in [Bytes::ZERO, unit] {
            // SAFETY: one whole mapping that no device uses.
            unsafe { reservation.unmap(place, unit) }.unwrap();
        }
    };
    sweep.each(
        "map",
        || (rig.reserve(unit), rig.create(ZERO, unit)),
        // SAFETY: the handle fits the empty reservation.
        |(reservation, handle)| unsafe { reservation.map(Bytes::ZERO, handle) },
        |(mut reservation, handle)| {
            drop(handle);
            // SAFETY: one whole mapping, which no work uses when it is unmapped.
            unsafe {
                reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
                rig.works(ZERO, &reservation, Bytes::ZERO, unit, 2);
                reservation.unmap(Bytes::ZERO, unit).unwrap();
            }
        },
    );
    sweep.each(
        "set_access",
        two,
        // SAFETY: two whole mappings.
        |reservation| unsafe { reservation.set_access(Bytes::ZERO, whole, &[read_write(ZERO)]) },
        |reservation| {
            rig.works(ZERO, &reservation, Bytes::ZERO, whole, 4);
            emptied(reservation);
        },
    );
    if rig.backend.unmaps_runs() {
        sweep.each(
            "unmap of a run",
            accessible,
            // SAFETY: two adjacent whole mappings that no device uses.
            |reservation| unsafe { reservation.unmap(Bytes::ZERO, whole) },
            drop,
        );
    }
    sweep.each(
        "unmap",
        || {
            let mut reservation = accessible();
            // SAFETY: one whole mapping that no device uses.
            unsafe { reservation.unmap(unit, unit) }.unwrap();
            reservation
        },
        // SAFETY: as above.
        |reservation| unsafe { reservation.unmap(Bytes::ZERO, unit) },
        drop,
    );
    sweep.each(
        "dma_buf",
        || (accessible(), None),
        |(reservation, made)| {
            // SAFETY: one whole mapping.
            unsafe { reservation.dma_buf(ZERO, unit, unit) }.map(|fd| *made = Some(fd))
        },
        |(reservation, _)| emptied(reservation),
    );
    sweep.end();
}

fn two_devices(rig: &Rig) {
    let sweep = Sweep::new(rig);
    let unit = rig.unit();
    let mapped = || {
        let mut reservation = rig.reserve(unit);
        let handle = rig.create(ZERO, unit);
        // SAFETY: the handle fits the empty reservation.
        unsafe { reservation.map(Bytes::ZERO, &handle) }.unwrap();
        reservation
    };
    let both = [read_write(ZERO), read_write(ONE)];
    let works = |mut reservation: gpu_vmm_hip::HipReservation| {
        for device in [ZERO, ONE] {
            rig.works(device, &reservation, Bytes::ZERO, unit, u64::from(device.0) + 7);
        }
        // SAFETY: one whole mapping that no device uses.
        unsafe { reservation.unmap(Bytes::ZERO, unit) }.unwrap();
    };
    sweep.each(
        "set_access of two devices",
        mapped,
        // SAFETY: one whole mapping.
        |reservation| unsafe { reservation.set_access(Bytes::ZERO, unit, &both) },
        works,
    );
    // The owner's access is removed for a moment and must be restored, whichever call failed.
    sweep.each(
        "set_access of a peer",
        || rig.mapped(ZERO, unit),
        |reservation| {
            // SAFETY: one whole mapping.
            let set = unsafe { reservation.set_access(Bytes::ZERO, unit, &both[1..]) };
            sweep.stop();
            rig.works(ZERO, reservation, Bytes::ZERO, unit, 5);
            set
        },
        works,
    );
    sweep.end();
}

fn copies(rig: &Rig) {
    let sweep = Sweep::new(rig);
    let unit = rig.unit();
    let (whole, length) = (rig.units(2), unit.0 as usize);
    let prepare = || {
        let reservation = rig.mapped(ZERO, whole);
        let base = reservation.range().base;
        // SAFETY: all of it is mapped for the device.
        unsafe {
            rig.backend.write_pattern(ZERO, base, unit, 1).unwrap();
            rig.backend.fill(ZERO, base + unit, unit, 9).unwrap();
        }
        (reservation, vec![0u8; length])
    };
    type State = (gpu_vmm_hip::HipReservation, Vec<u8>);
    let has_pattern = |(reservation, _): State| {
        // SAFETY: as above.
        let wrong = unsafe { rig.backend.count_wrong(ZERO, reservation.range().base + unit, unit, 1) };
        assert_eq!(wrong.unwrap(), 0);
        rig.unmapped(reservation);
    };
    sweep.each(
        "copy",
        prepare,
        |(reservation, _)| {
            let base = reservation.range().base;
            // SAFETY: as above.
            unsafe { rig.backend.copy(ZERO, base + unit, base, unit) }
        },
        has_pattern,
    );
    sweep.each(
        "copies with the host",
        prepare,
        |(reservation, host)| {
            let base = reservation.range().base;
            // SAFETY: as above.
            unsafe {
                rig.backend.copy_to_host(ZERO, host, base)?;
                rig.backend.copy_from_host(ZERO, base + unit, host)
            }
        },
        has_pattern,
    );
    sweep.each(
        "fill",
        prepare,
        // SAFETY: as above.
        |(reservation, _)| unsafe { rig.backend.fill(ZERO, reservation.range().base, unit, 5) },
        |(reservation, mut host)| {
            // SAFETY: as above.
            unsafe { rig.backend.copy_to_host(ZERO, &mut host, reservation.range().base) }.unwrap();
            assert!(host.iter().all(|byte| *byte == 5));
            rig.unmapped(reservation);
        },
    );
    let pinned = rig.backend.pin(unit).unwrap();
    sweep.each(
        "copy stream",
        prepare,
        |(reservation, _)| {
            let base = reservation.range().base;
            let mut copies = rig.backend.copy_stream(ZERO)?;
            // SAFETY: as above; only this test uses the host memory, and the stream is waited for.
            unsafe {
                copies.copy_to_host(pinned.start().as_ptr(), base, unit)?;
                copies.copy_from_host(base + unit, pinned.start().as_ptr(), unit)?;
            }
            copies.finish()
        },
        has_pattern,
    );
    drop(pinned);
    let event = |(): &mut ()| {
        let mut event = rig.backend.event(ZERO)?;
        event.record(Stream::DEFAULT)?;
        event.hold(Stream::DEFAULT)?;
        event.wait()?;
        event.is_done().map(|done| assert!(done))
    };
    sweep.each("event", || (), event, drop);
    sweep.each("synchronize", || (), |()| rig.backend.synchronize(ZERO), drop);
    sweep.end();
}

type Pair = (Region<HipBackend>, Region<HipBackend>);

fn regions(rig: &Rig) {
    let sweep = Sweep::new(rig);
    let unit = rig.unit();
    let filled = |seed| {
        let mut region = Region::builder(&rig.backend).on(ZERO).reserve(rig.units(4)).build().unwrap();
        region.grow_to(unit).unwrap();
        region.grow_to(rig.units(2)).unwrap();
        region.write_pattern(ZERO, Bytes::ZERO, rig.units(2), seed).unwrap();
        region
    };
    let holds = |region: &Region<HipBackend>, seed| {
        assert_eq!(region.count_wrong(ZERO, Bytes::ZERO, rig.units(2), seed).unwrap(), 0);
    };
    let idle = || WaitFor::all_devices();
    let ring = Arc::new(StagingRing::new(&rig.backend, 1, unit).unwrap());
    sweep.each(
        "region: grow_to",
        || filled(11),
        |region| region.grow_to(rig.units(3)).map(drop),
        |mut region| {
            holds(&region, 11);
            region.fill(rig.units(2), unit, 1).unwrap();
        },
    );
    sweep.each(
        "region: shrink_to",
        || filled(12),
        |region| region.shrink_to(unit, idle()).map(drop),
        |mut region| {
            region.grow_to(rig.units(2)).unwrap();
            region.write_pattern(ZERO, Bytes::ZERO, rig.units(2), 12).unwrap();
            holds(&region, 12);
        },
    );
    sweep.each(
        "region: unmap",
        || filled(13),
        |region| {
            let answer = region.unmap(Bytes::ZERO, rig.units(2), idle());
            sweep.stop();
            if answer.is_err() {
                holds(region, 13);
            }
            answer
        },
        drop,
    );
    let set = |region: &mut Region<HipBackend>, device: DeviceId, access| {
        region.set_access(Bytes::ZERO, rig.units(2), device, access)
    };
    sweep.each(
        "region: set_access",
        || filled(14),
        |region| {
            let answer = set(region, ZERO, Access::Read);
            sweep.stop();
            holds(region, 14);
            answer
        },
        |region| holds(&region, 14),
    );
    let suspend = |region: &mut Region<HipBackend>| {
        region.suspend(&BackingStore::pageable(Arc::clone(&ring)), idle()).map(drop)
    };
    sweep.each(
        "region: suspend",
        || filled(15),
        suspend,
        |mut region| {
            region.resume().unwrap();
            holds(&region, 15);
        },
    );
    sweep.each(
        "region: resume",
        || {
            let mut region = filled(19);
            suspend(&mut region).unwrap();
            region
        },
        |region| region.resume().map(drop),
        |region| holds(&region, 19),
    );
    sweep.each(
        "region: swap",
        || (filled(16), filled(17)),
        |(first, second): &mut Pair| {
            let answer = first.swap_all(second, idle());
            sweep.stop();
            if answer.is_err() {
                holds(first, 16);
                holds(second, 17);
            }
            answer
        },
        |(first, second)| {
            holds(&first, 17);
            holds(&second, 16);
        },
    );
    if rig.lacks(Needs::Peers).is_none() {
        sweep.each(
            "region: access of a peer",
            || filled(18),
            |region| {
                let answer = set(region, ONE, Access::ReadWrite);
                sweep.stop();
                holds(region, 18);
                answer
            },
            |region| {
                assert_eq!(region.count_wrong(ONE, Bytes::ZERO, rig.units(2), 18).unwrap(), 0);
            },
        );
    }
    sweep.end();
}
