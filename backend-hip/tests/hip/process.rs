//! The backend exists once per process, and cannot be used in a forked child.

use crate::rig::{Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, DeviceId, Error, MemoryCalls, Operation, Properties, Reservation,
    Stream, SyncCalls,
};
use gpu_vmm_hip::HipBackend;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "process::all_that_is_opened_is_one", needs: Needs::Device, run: one },
    Test { name: "process::forked_child_fails_and_drops_nothing", needs: Needs::Device, run: forked },
    Test { name: "process::quirks_are_those_of_the_version", needs: Needs::Device, run: quirks },
    Test { name: "process::what_is_left_mapped_is_told", needs: Needs::Device, run: left_mapped },
];

fn one(rig: &Rig) {
    let again = HipBackend::open().unwrap();
    assert_eq!(again.instance(), rig.backend.instance());
    assert!(HipBackend::is_loaded());
    rig.backend.synchronize_stream(DeviceId(0), Stream::DEFAULT).unwrap();
}

fn forked(rig: &Rig) {
    let unit = rig.unit();
    let mut reservation = rig.mapped(ZERO, unit);
    let handle = rig.create(ZERO, unit);
    let spare = rig.reserve(unit);
    let failed_drops = rig.backend.drop_log().count();
    let is_forked = |error: Error| matches!(error.detail(), Detail::Forked);
    // SAFETY: the child makes only calls that return without the driver, and exits at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: each of these must return before it reaches the driver.
        let answers = unsafe {
            [
                HipBackend::open().map(drop).is_err_and(is_forked),
                rig.backend.create(unit, &Properties::on(ZERO)).map(drop).is_err_and(is_forked),
                rig.backend.reserve(unit, rig.alignment(), None).map(drop).is_err_and(is_forked),
                rig.backend.memory_info(ZERO).map(drop).is_err_and(is_forked),
                rig.backend.synchronize(ZERO).is_err_and(is_forked),
                rig.backend.capabilities(ZERO).map(drop).is_err_and(is_forked),
                rig.backend.fill(ZERO, reservation.range().base, unit, 0).is_err_and(is_forked),
                reservation.unmap(Bytes::ZERO, unit).is_err_and(is_forked),
                reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).is_err_and(is_forked),
                rig.backend.release_kept_addresses().map(drop).is_err_and(is_forked),
            ]
        };
        drop(handle);
        drop(spare);
        drop(reservation);
        let wrong = answers.iter().position(|answer| !answer).map_or(0, |index| index as i32 + 1);
        let dropped = rig.backend.drop_log().count() != failed_drops;
        // SAFETY: exits without the runtime's exit handlers.
        unsafe { libc::_exit(if wrong == 0 && dropped { 100 } else { wrong }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was forked above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the child's first wrong answer");
    rig.works(ZERO, &reservation, Bytes::ZERO, unit, 1);
    drop((handle, spare));
    // SAFETY: one whole mapping, no longer used.
    unsafe { reservation.unmap(Bytes::ZERO, unit) }.unwrap();
}

fn quirks(rig: &Rig) {
    let version = rig.backend.driver().version_number;
    let quirks = rig.backend.quirks();
    assert!(!quirks.is_empty() && quirks.iter().all(|quirk| quirk.is_in(version)));
    assert_eq!(rig.has_quirk("free-races"), version < 70_000_000);
    assert_eq!(rig.has_quirk("access-sums"), (70_000_000..71_200_000).contains(&version));
}

/// An unmap where no mapping begins is an error that does not reach HIP, which could crash.
fn left_mapped(rig: &Rig) {
    let before = rig.backend.drop_log().count();
    let mut reservation = rig.mapped(ZERO, rig.unit());
    // SAFETY: no mapping begins there, so the call returns an error before it reaches HIP.
    let error = unsafe { reservation.unmap(rig.unit(), rig.unit()) }.expect_err("nothing is mapped there");
    assert!(
        matches!(error.detail(), Detail::Unsupported { .. }) && error.operation() == Operation::Unmap,
        "{error:?}"
    );
    assert_eq!(rig.backend.drop_log().count(), before);
    // SAFETY: one whole mapping, no longer used.
    unsafe { reservation.unmap(Bytes::ZERO, rig.unit()) }.unwrap();
}
