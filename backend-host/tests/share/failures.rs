//! Driver calls that fail, each in turn: earlier steps are rolled back, and the operation can be tried again.

use crate::bench::{far, full, machine, piece, put, seen, shared};
use crate::child::alone;
use crate::left::Left;
use crate::{LONG, ONE, TWO, units};
use gpu_vmm_core::{Bytes, Detail, GrowthKind, Placement, Region, Result, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Channel, Event, Exporter, ImportOptions, ImportedRegion};
use gpu_vmm_testkit::FaultInject;

const IDLE: WaitFor<'static> = WaitFor::all_devices();

type Faulty = FaultInject<HostBackend>;

/// A machine like `machine`, with a driver that unmaps one mapping per call.
fn single() -> HostBackend {
    let config = HostConfig::new().devices(2).memory(Bytes::mib(64));
    config.granularity(crate::UNIT).unmapping_singly().open().unwrap()
}

#[test]
fn failed_region_import_leaves_nothing() {
    alone("failures::failed_region_import_leaves_nothing", || {
        for partly in [false, true] {
            let (here, there) = (machine(), FaultInject::new(machine()));
            there.set_access_though_failing(partly);
            let region = full(&here);
            let before = Left::now(&there);
            let mut failed = 0;
            loop {
                let (ours, theirs) = Channel::pair().unwrap();
                let mut exporter = Exporter::share(ours, &region).unwrap();
                there.fail(failed, 1);
                let received = ImportOptions::new().access(TWO, crate::bench::RW).receive(&there, theirs);
                there.stop();
                let Err(error) = received else { break };
                let told = exporter.wait_applied(LONG).unwrap_err();
                assert!(
                    matches!(told.extension(), Some(PeerError::Refused { why, .. }) if *why == error.to_string()),
                    "{told}"
                );
                drop(exporter);
                assert_eq!(Left::now(&there), before, "call {failed}: {error}");
                failed += 1;
            }
            // Four queries whether the named device can access the memory; three imports, the reservation, four mappings, and the
            // access of two runs that a hole separates and of one run of another owner.
            assert!(failed >= 11, "{failed} calls");
        }
    });
}

/// Shares and imports a region, with a pending change that removes mappings and adds others past the reservation.
fn pending(
    there: &Faulty,
    at: Placement,
) -> (Region<HostBackend>, Exporter<HostBackend>, ImportedRegion<Faulty>) {
    let here = machine();
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new().at(at), there);
    exporter.wait_applied(LONG).unwrap();
    region.unmap(units(3), units(1), IDLE).unwrap();
    region.unmap(units(6), units(2), IDLE).unwrap();
    put(&mut region, 2, &piece(&here, TWO, 1), 5);
    put(&mut region, 7, &piece(&here, ONE, 1), 6);
    put(&mut region, 8, &piece(&here, ONE, 3), 7);
    exporter.publish(&region).unwrap();
    let told = imported.next(LONG).unwrap();
    assert!(matches!(told, Some(Event::Changed(_))), "{told:?}");
    (region, exporter, imported)
}

/// Makes each call of an operation fail, one after the other, until the operation succeeds. A failure must leave the state
/// unchanged.
fn each_call_fails(
    there: &Faulty,
    at: Placement,
    apply: impl Fn(&mut ImportedRegion<Faulty>) -> Result<GrowthKind>,
) -> (u64, GrowthKind) {
    let (region, mut exporter, mut imported) = pending(there, at);
    let before = (seen(imported.region()), imported.region().range(), Left::now(there));
    for failed in 0.. {
        there.fail(failed, 1);
        let applied = apply(&mut imported);
        let calls = there.stop();
        let error = match applied {
            Ok(grown) if calls <= failed => {
                exporter.wait_applied(LONG).unwrap();
                assert_eq!(seen(imported.region()), seen(&region));
                return (failed, grown);
            }
            // A failed call with a fallback, for example when twice the size cannot be reserved.
            Ok(grown) => panic!("call {failed} of {calls} failed and it is {grown:?}"),
            Err(error) => error,
        };
        let told = exporter.wait_applied(LONG).unwrap_err();
        assert!(
            matches!(told.extension(), Some(PeerError::Refused { why, .. }) if *why == error.to_string()),
            "{told}"
        );
        let after = (seen(imported.region()), imported.region().range(), Left::now(there));
        assert_eq!(after, before, "call {failed}: {error}");
        assert!(imported.is_behind());
    }
    unreachable!("an operation with endless calls");
}

#[test]
fn failed_change_keeps_the_region() {
    alone("failures::failed_change_keeps_the_region", || {
        for host in [machine(), single()] {
            for partly in [false, true] {
                let there = FaultInject::new(host.clone());
                there.set_access_though_failing(partly);
                let before = Left::now(&there);
                let (calls, grown) = each_call_fails(&there, far(6), |imported| imported.apply(IDLE));
                assert!(calls >= 12 && grown == GrowthKind::Extended, "{calls} {grown:?}");
                assert_eq!(Left::now(&there), before);
            }
        }
    });
}

#[test]
fn failed_relocation_keeps_the_region() {
    alone("failures::failed_relocation_keeps_the_region", || {
        let there = FaultInject::new(machine());
        let Placement::Exact(at) = far(7) else { unreachable!() };
        let behind = Placement::Exact(at.checked_add(units(8)).unwrap());
        let _wall = Region::builder(&there).reserve(units(1)).at(behind).build().unwrap();
        let before = Left::now(&there);
        for failed in 0.. {
            let (region, mut exporter, mut imported) = pending(&there, far(7));
            let state = (seen(imported.region()), imported.region().range(), Left::now(&there));
            there.fail(failed, 1);
            let applied = imported.apply_or_move(IDLE);
            let calls = there.stop();
            if let Err(error) = &applied {
                let after = (seen(imported.region()), imported.region().range(), Left::now(&there));
                assert_eq!(after, state, "call {failed}: {error}");
                exporter.wait_applied(LONG).unwrap_err();
                imported.apply_or_move(IDLE).unwrap();
            }
            // If twice the size cannot be reserved, exactly the needed size is.
            assert_eq!(imported.region().reservations().len(), 1);
            exporter.wait_applied(LONG).unwrap();
            assert_eq!(seen(imported.region()), seen(&region));
            drop((region, exporter, imported));
            assert_eq!(Left::now(&there), before);
            if calls <= failed {
                assert!(failed >= 12, "{failed} calls");
                break;
            }
        }
    });
}

#[test]
fn failed_rollback_poisons_only_its_part() {
    alone("failures::failed_rollback_poisons_only_its_part", || {
        let there = FaultInject::new(machine());
        let before = Left::now(&there);
        // A call and the one that rolls it back, or it and all that follow.
        for count in [2, u64::MAX] {
            for failed in 0.. {
                let (region, exporter, mut imported) = pending(&there, far(8));
                there.fail(failed, count);
                let applied = imported.apply(IDLE);
                there.stop();
                if applied.is_ok() {
                    assert!(failed >= 12, "{failed} calls");
                    break;
                }
                let mut end = Bytes(0);
                for mapping in imported.region().mappings() {
                    assert!(end <= mapping.offset, "two mappings overlap at {}", mapping.offset);
                    end = mapping.offset + mapping.length;
                    match imported.region().read(mapping.offset, &mut [0; 8]) {
                        Ok(()) => {}
                        Err(error) if matches!(error.detail(), Detail::Poisoned { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                // The remaining memory is unchanged.
                let mut bytes = [0; 8];
                imported.region().read(units(0), &mut bytes).unwrap();
                assert_eq!(bytes, [3; 8]);
                drop((imported, exporter, region));
                // SAFETY: the regions are gone, and no other code uses host memory.
                unsafe { there.reclaim() }.unwrap();
                assert_eq!(Left::now(&there), before, "{count} calls from {failed} on");
            }
        }
    });
}

#[test]
fn failed_export_is_published_later() {
    let (here, there) = (FaultInject::new(machine()), machine());
    let mut region = full(&here);
    let (mut exporter, mut imported) = shared(&region, &ImportOptions::new(), &there);
    put(&mut region, 2, &piece(&here, ONE, 1), 1);
    here.fail(0, 1);
    let error = exporter.publish(&region).unwrap_err();
    here.stop();
    assert!(error.to_string().contains("failed by plan"), "{error}");
    assert!(exporter.publish(&region).unwrap());
    imported.next(LONG).unwrap();
    imported.apply(IDLE).unwrap();
    exporter.wait_applied(LONG).unwrap();
    assert_eq!(seen(imported.region()), seen(&region));
}
