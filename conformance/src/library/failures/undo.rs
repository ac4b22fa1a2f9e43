//! A second driver call fails, in what an operation does after the first. The error reports both, the affected range is
//! poisoned, the rest stays usable, and nothing crashes.

use super::bench::Bench;
use super::edges::{EDGE, Faulty};
use super::row::Row;
use super::state::{ObservedMapping, State};
use super::sweep::{Reference, Sweep, injected, same_state};
use crate::subject::RW;
use gpu_vmm_core::{
    Access, BackingKind, BackingStore, Bytes, Detail, DeviceId, Error, PhysicalMemory, Placement, Region,
    WaitFor,
};
use gpu_vmm_testkit::TestKit;

/// Sweeps over all pairs of failure points of one row, and over all points from which every call fails. Returns their number.
pub(super) fn row<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>) -> u64 {
    each_pair(sweep, row, point)
}

/// Does the same with any check of a set of failing calls.
pub(super) fn each_pair<B: TestKit>(
    sweep: &Sweep<'_, B>,
    row: &Row<B>,
    point: impl Fn(&Sweep<'_, B>, &Row<B>, &Reference, &[u64]),
) -> u64 {
    let reference = sweep.reference(row);
    let mut points = 0;
    for first in 0..reference.calls {
        let calls = calls_when_failing(sweep, row, first);
        for second in first + 1..calls {
            point(sweep, row, &reference, &[first, second]);
            points += 1;
        }
        if calls > first + 1 {
            point(sweep, row, &reference, &(first..first + 64).collect::<Vec<_>>());
            points += 1;
        }
    }
    points
}

/// Returns the number of calls that the operation makes if one fails.
fn calls_when_failing<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>, failing: u64) -> u64 {
    let mut bench = sweep.bench(row.start);
    bench.backend.fail(failing, 1);
    let answer = (row.run)(&mut bench);
    let calls = bench.backend.stop();
    if row.poisons && answer.is_ok() {
        sweep.poisoning_has_failed(bench, &[failing], &row.to_string());
    }
    calls
}

fn point<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>, reference: &Reference, failing: &[u64]) {
    let at = match failing {
        [first, second] => format!("{row}, driver calls {first} and {second} failing"),
        _ => format!("{row}, all driver calls from {} on failing", failing[0]),
    };
    sweep.unless_disturbed(|| {
        let mut bench = sweep.bench(row.start);
        let before = sweep.before(&bench, reference);
        bench.backend.fail_each(failing);
        let result = (row.run)(&mut bench);
        bench.backend.stop();
        let after = sweep.state(&bench);
        match result.as_ref().map_err(|error| (error, error.detail())) {
            Ok(()) => {
                assert!(row.has_wish || row.poisons, "{at}: the failure was not reported");
                reference.check(row, &after, &at);
                if row.poisons {
                    sweep.poisoning_has_failed(bench, failing, &at);
                    return Ok(());
                }
            }
            Err((whole, Detail::RollbackFailed { .. })) => {
                assert!(whole.driver_error().is_some(), "{at}: {whole}");
                assert!(by_plan(whole, failing), "{at}: {whole}");
                rest_is_as_before(row, &before, &after, &at);
                rest_works(sweep, row, &mut bench, &after, &at);
                let left = sweep.reclaim(bench, &at);
                assert!(left > 0, "{at}: a range is poisoned although nothing was left behind");
                return Ok(());
            }
            Err((_, Detail::AddressesLost { source, .. })) => {
                assert!(by_plan(source, failing), "{at}: {source}");
                if row.poisons {
                    // The memory is freed anyway, and the log reports that it could not be poisoned.
                    let logged = sweep.subject.backend.drop_log().take_last();
                    assert!(logged.is_none_or(|error| by_plan(&error, failing)), "{at}: poisoning");
                }
                bench.resume().unwrap_or_else(|error| panic!("{at}, the resume: {error}"));
                let after = sweep.state(&bench);
                if bench.store.kind() == BackingKind::Nothing {
                    assert_eq!(after.shape(), before.shape(), "{at}, and then resumed");
                } else {
                    same_state(row, &bench, &before, after, source, &at)?;
                }
            }
            Err((error, _)) => {
                assert!(injected(error).is_some_and(|number| failing.contains(&number)), "{at}: {error}");
                same_state(row, &bench, &before, after, error, &at)?;
                (row.run)(&mut bench).unwrap_or_else(|error| panic!("{at}, the second time: {error}"));
            }
        }
        sweep.nothing_is_left(bench, &at);
        Ok(())
    });
}

/// Returns true if all reported failures were injected, and are reported in the order in which they happened.
pub(super) fn by_plan(error: &Error, failing: &[u64]) -> bool {
    reported(error).is_some_and(|calls| {
        calls.is_sorted_by(|one, next| one < next) && calls.iter().all(|call| failing.contains(call))
    })
}

/// Returns the numbers of the calls whose failures an error reports, the cause before the rollback.
fn reported(error: &Error) -> Option<Vec<u64>> {
    match error.detail() {
        Detail::RollbackFailed { error, undo } => Some([reported(error)?, reported(undo)?].concat()),
        _ => injected(error).map(|call| vec![call]),
    }
}

/// Checks that mappings outside of the poisoned ranges are unchanged, and that all previous mappings still exist.
fn rest_is_as_before<B: TestKit>(row: &Row<B>, before: &State, after: &State, at: &str) {
    for (before, after) in [(&before.mappings, &after.mappings), (&before.beside, &after.beside)] {
        let find = |seen: &[ObservedMapping], like: &ObservedMapping| {
            seen.iter().find(|other| (other.offset, other.length) == (like.offset, like.length)).cloned()
        };
        for seen in after.iter().filter(|seen| !seen.poisoned) {
            assert_eq!(
                Some(seen),
                find(before, seen).as_ref(),
                "{at}: a mapping that is not poisoned has changed"
            );
        }
        for seen in before {
            let over = |other: &ObservedMapping| {
                other.poisoned
                    && other.offset < seen.offset + seen.length
                    && seen.offset < other.offset + other.length
            };
            assert!(
                find(after, seen).is_some() || row.cuts && after.iter().any(over),
                "{at}: {} at offset {} is gone",
                seen.length,
                seen.offset
            );
        }
    }
    let any = after.mappings.iter().chain(&after.beside).any(|seen| seen.poisoned);
    assert!(any || row.moves, "{at}: no range is poisoned");
    assert!(after.ranges.starts_with(&before.ranges), "{at}: {:?}, {:?}", before.ranges, after.ranges);
}

/// Checks that no operation touches a poisoned range, and that everything else works.
fn rest_works<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>, bench: &mut Bench<B>, after: &State, at: &str) {
    let (device, memory, backend) = (bench.device, bench.memory.clone(), bench.backend.clone());
    let (hole, granule) = (bench.at(2), memory.size());
    let mut region = bench.take_region().expect("a region");
    let mut beside = bench.take_beside();
    for (region, seen) in
        std::iter::once((&mut region, &after.mappings)).chain(beside.iter_mut().map(|it| (it, &after.beside)))
    {
        mappings_work(region, seen, device, &memory, at);
    }
    if region.mapping_at(hole).is_none() {
        region.map(hole, &memory).unwrap_or_else(|error| panic!("{at}: {error}"));
        region.set_access(hole, granule, device, RW).unwrap();
        region.write_pattern(device, hole, EDGE, 6).unwrap();
        assert_eq!(region.count_wrong(device, hole, EDGE, 6).unwrap(), 0, "{at}");
    }
    if !row.start.is_walled() {
        let grown = region.grow_to(region.end() + granule).unwrap_or_else(|error| panic!("{at}: {error}"));
        region.write_pattern(device, grown.end - EDGE, EDGE, 7).unwrap();
    }
    let place = Placement::Prefer(bench.hole);
    let mut other = Region::builder(&backend).on(device).reserve(granule).at(place).build().unwrap();
    other.grow_to(granule).unwrap_or_else(|error| panic!("{at}: {error}"));
    other.write_pattern(device, Bytes(0), EDGE, 8).unwrap();
    drop((region, beside, other));
    sweep.no_destructor_failed(at);
}

/// Checks that operations on poisoned mappings are refused, and that the others can be used and unmapped.
fn mappings_work<B: TestKit>(
    region: &mut Region<Faulty<B>>,
    seen: &[ObservedMapping],
    device: DeviceId,
    memory: &PhysicalMemory<Faulty<B>>,
    at: &str,
) {
    for ObservedMapping { offset, length, poisoned, access, owner, .. } in seen.iter().cloned() {
        let reported = region.mapping_at(offset).map(|mapping| mapping.poisoned);
        assert_eq!(reported, Some(poisoned), "{at}: whether the mapping at offset {offset} is poisoned");
        if poisoned {
            let answers = [
                region.read(offset, &mut [0]),
                region.write(offset + (length - Bytes(1)), &[0]),
                region.fill(offset, length, 0),
                region.write_pattern(device, offset, length, 0),
                region.count_wrong(device, offset, length, 0).map(drop),
                region.set_access(offset, length, device, RW),
                region.unmap(offset, length, WaitFor::all_devices()),
                region.map(offset, memory),
                region.shrink_to(offset, WaitFor::all_devices()).map(drop),
                region.suspend(&BackingStore::nothing(), WaitFor::all_devices()).map(drop),
            ];
            for (number, answer) in answers.into_iter().enumerate() {
                assert!(
                    matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Poisoned { .. })),
                    "{at}: answer {number}: {answer:?}"
                );
            }
        } else if access[0] == RW && owner == device {
            region.write_pattern(device, offset, EDGE, 5).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(region.count_wrong(device, offset, EDGE, 5).unwrap(), 0, "{at}");
            region.set_access(offset, length, device, Access::Read).unwrap();
            region.unmap(offset, length, WaitFor::all_devices()).unwrap();
        }
    }
}
