//! Rules 9 and 10: what is absent is said, and forked children touch nothing. And the types cross threads.

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, DeviceId, DeviceVec, Done, Error, Physical, Properties, Region, Workbench};

cases! { "process":
    /// types cross threads.
    types_cross_threads,
    /// many threads.
    many_threads,
    /// a forked child gets errors.
    a_forked_child_gets_errors,
    /// capabilities have reasons.
    capabilities_have_reasons,
    /// quirks have evidence.
    quirks_have_evidence,
}

fn types_cross_threads<B: Workbench>(_: &Subject<B>) {
    fn both<T: Send + Sync>() {}
    both::<B>();
    both::<Region<B>>();
    both::<Physical<B>>();
    both::<DeviceVec<f32, B>>();
    both::<Error>();
}

fn many_threads<B: Workbench>(subject: &Subject<B>) {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let mut region = subject.region(4).build().unwrap();
                    region.grow_to(subject.units(1 + (thread + round) % 4)).unwrap();
                    region.write_pattern(subject.device, Bytes(0), region.end(), thread).unwrap();
                    assert_eq!(
                        region.count_wrong(subject.device, Bytes(0), region.end(), thread).unwrap(),
                        0
                    );
                    region.shrink_to(Bytes(0), Done::when_devices_idle()).unwrap();
                }
            });
        }
    });
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn a_forked_child_gets_errors<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.write_pattern(subject.device, Bytes(0), region.end(), 1).unwrap();
    // SAFETY: the child calls into gpu-vmm, which touches no driver there, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let forked = |result: gpu_vmm_core::Result<()>| matches!(result, Err(Error::Forked { .. }));
        let backend = &subject.backend;
        let checks = [
            forked(Physical::create(backend, subject.unit(), Properties::on(subject.device)).map(drop)),
            forked(Region::builder(backend).reserve(subject.unit()).build().map(drop)),
            forked(region.grow_to(subject.units(3)).map(drop)),
            forked(region.read(Bytes(0), &mut [0])),
            forked(region.unmap(Bytes(0), subject.units(2), Done::when_devices_idle())),
            forked(backend.memory_info(subject.device).map(drop)),
            forked(backend.capabilities(subject.device).map(drop)),
        ];
        drop(region);
        let failed = checks.iter().position(|held| !held).map_or(0, |index| index as i32 + 1);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(failed) }
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "this check did not hold in the child");
    // The parent has everything still.
    assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 1).unwrap(), 0);
}

#[cfg(not(unix))]
fn a_forked_child_gets_errors<B: Workbench>(_: &Subject<B>) {
    crate::subject::skip("this system has no fork");
}

fn capabilities_have_reasons<B: Workbench>(subject: &Subject<B>) {
    let capabilities = subject.backend.capabilities(subject.device).unwrap();
    assert!(
        capabilities
            .iter()
            .any(|capability| capability.feature == gpu_vmm_core::Feature::VirtualMemory
                && capability.available)
    );
    for capability in &capabilities {
        assert!(
            capability.available || !capability.note.is_empty(),
            "{} is missing without a reason",
            capability.feature
        );
    }
    let error = subject.backend.capabilities(DeviceId(99)).unwrap_err();
    assert!(matches!(error, Error::NoSuchDevice { .. }), "{error}");
}

fn quirks_have_evidence<B: Workbench>(subject: &Subject<B>) {
    let version = subject.backend.driver().version_number;
    for quirk in subject.backend.quirks() {
        assert!(quirk.is_in(version), "{} is not of version {version}", quirk.id);
        for text in [quirk.id, quirk.effect, quirk.handling, quirk.evidence] {
            assert!(!text.is_empty(), "{quirk:?}");
        }
    }
}
