//! Page-locked memory, and copies on copy streams.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{
    AddressRange, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, ErrorKind, MemoryCalls, Operation,
    Reservation,
};
use gpu_vmm_testkit::TestKit;
use std::slice;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "staging::pinned_memory_is_what_hip_copies_fastest", needs: Needs::Device, run: pinned },
    Test { name: "staging::pinned_memory_that_cannot_be_had", needs: Needs::Device, run: not_pinned },
    Test { name: "staging::copies_overlap_with_other_work", needs: Needs::Device, run: copies },
    Test { name: "staging::each_device_has_copy_streams", needs: Needs::TwoDevices, run: of_each_device },
    Test { name: "staging::a_fill_of_no_memory_names_its_range", needs: Needs::Device, run: not_filled },
    Test { name: "staging::a_forked_child_leaves_them_alone", needs: Needs::Device, run: forked },
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

fn not_pinned(rig: &Rig) {
    let error = rig.backend.pin(Bytes::ZERO).map(drop).expect_err("no bytes");
    assert_eq!(
        (error.operation(), error.kind()),
        (Operation::PinMemory, ErrorKind::InvalidArgument),
        "{error}"
    );
    let error = rig.backend.pin(Bytes::gib(1 << 20)).map(drop).expect_err("a pebibyte");
    assert_eq!(error.driver_error().map(|source| source.call), Some("hipHostMalloc"), "{error}");
    assert_eq!(rig.hip("hipGetLastError", 0), 0);
    let error = rig.backend.copy_stream(DeviceId(99)).map(drop).expect_err("no such device");
    assert!(matches!(error.detail(), Detail::NoSuchDevice { device: DeviceId(99), .. }), "{error}");
}

/// Copies on a copy stream while the null stream has other work; both are right once they have finished.
fn copies(rig: &Rig) {
    let size = rig.units(8);
    let mut reservation = rig.mapped(ZERO, rig.units(16));
    let (first, second) = (reservation.range().base, reservation.range().base + size);
    let (out, back) = (rig.backend.pin(size).unwrap(), rig.backend.pin(size).unwrap());
    // SAFETY: all of it is mapped for the device; no code accesses the pinned memory before the copy stream has
    // finished.
    unsafe {
        rig.backend.write_pattern(ZERO, first, size, 5).unwrap();
        let mut copy_stream = rig.backend.copy_stream(ZERO).unwrap();
        copy_stream.finish().unwrap();
        copy_stream.copy_to_host(out.start().as_ptr(), first, size).unwrap();
        rig.backend.write_pattern(ZERO, second, size, 6).unwrap();
        copy_stream.finish().unwrap();
        let bytes = slice::from_raw_parts(out.start().as_ptr(), size.0 as usize);
        back.start().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        assert_eq!(rig.backend.count_wrong(ZERO, second, size, 6).unwrap(), 0);
        // The copies run in order, so the later one remains.
        copy_stream.copy_from_host(second, back.start().as_ptr(), size).unwrap();
        copy_stream.copy_from_host(second + Bytes(8), back.start().as_ptr(), Bytes(8)).unwrap();
        copy_stream.copy_from_host(second, back.start().as_ptr(), Bytes::ZERO).unwrap();
        drop(copy_stream);
        assert_eq!(rig.backend.count_wrong(ZERO, second, size, 5).unwrap(), 1, "the drop waited");
        reservation.unmap(Bytes::ZERO, rig.units(16)).unwrap();
    }
}

/// Tests plain copies and copy streams with page-locked memory on each device.
fn of_each_device(rig: &Rig) {
    let size = rig.units(9);
    let pinned = rig.backend.pin(size).unwrap();
    for device in [ZERO, DeviceId(1)] {
        let mut reservation = rig.mapped(device, size);
        let at = reservation.range().base;
        // SAFETY: all of it is mapped for the device, which owns it.
        unsafe {
            rig.backend.write_pattern(device, at, size, 9).unwrap();
            let bytes = slice::from_raw_parts_mut(pinned.start().as_ptr(), size.0 as usize);
            rig.backend.copy_to_host(device, bytes, at).unwrap();
            assert!(bytes.iter().any(|byte| *byte != 0));
            rig.backend.fill(device, at, size, 0).unwrap();
            rig.backend.copy_from_host(device, at, bytes).unwrap();
            assert_eq!(rig.backend.count_wrong(device, at, size, 9).unwrap(), 0);
            let mut copy_stream = rig.backend.copy_stream(device).unwrap();
            copy_stream.copy_to_host(pinned.start().as_ptr(), at, size).unwrap();
            copy_stream.finish().unwrap();
            rig.backend.fill(device, at, size, 0).unwrap();
            copy_stream.copy_from_host(at, pinned.start().as_ptr(), size).unwrap();
            copy_stream.finish().unwrap();
            assert_eq!(rig.backend.count_wrong(device, at, size, 9).unwrap(), 0);
            assert_eq!(rig.current_device(), 0);
            reservation.unmap(Bytes::ZERO, size).unwrap();
        }
    }
}

fn forked(rig: &Rig) {
    let pinned = rig.backend.pin(rig.unit()).unwrap();
    let mut copy_stream = rig.backend.copy_stream(ZERO).unwrap();
    let failed = rig.backend.drop_log().count();
    // SAFETY: the child makes only calls that return without the driver, and exits at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_forked = |error: Error| matches!(error.detail(), Detail::Forked);
        let answers = [
            rig.backend.pin(rig.unit()).map(drop).is_err_and(is_forked),
            rig.backend.copy_stream(ZERO).map(drop).is_err_and(is_forked),
            copy_stream.finish().is_err_and(is_forked),
        ];
        drop((pinned, copy_stream));
        let good = answers == [true; 3] && rig.backend.drop_log().count() == failed;
        // SAFETY: exits without the runtime's exit handlers.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was forked above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    copy_stream.finish().unwrap();
}
