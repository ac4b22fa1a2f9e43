//! A second driver call fails, in what a resume does after the first. The error reports both, and the region stays suspended.
//! A later resume succeeds unless a mapping could not be removed.

use super::row::Row;
use super::sweep::{Reference, Sweep, injected, same_state};
use super::undo::{by_plan, each_pair};
use gpu_vmm_core::{Bytes, Detail, Error, RegionState};
use gpu_vmm_testkit::TestKit;

/// Sweeps over all pairs of failure points of one row, and over all points from which every call fails. Returns their number.
pub(super) fn row<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>) -> u64 {
    each_pair(sweep, row, point)
}

fn point<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>, reference: &Reference, failing: &[u64]) {
    let at = format!("{row}, driver calls {failing:?} failing");
    sweep.unless_disturbed(|| {
        let mut bench = sweep.bench(row.start);
        let before = sweep.before(&bench, reference);
        bench.backend.fail_each(failing);
        let error = (row.run)(&mut bench).expect_err("the failure was not reported");
        bench.backend.stop();
        let region = bench.seen_region().expect("a region");
        assert!(matches!(region.state(), RegionState::Suspended { .. }), "{at}: {:?}", region.state());
        let is_clean = region.mapped() == Bytes(0);
        match error.detail() {
            Detail::RollbackFailed { .. } => assert!(by_plan(&error, failing), "{at}: {error}"),
            _ => {
                assert!(is_clean, "{at}: memory is still mapped, and the error does not report it");
                assert!(injected(&error).is_some_and(|number| failing.contains(&number)), "{at}: {error}");
                same_state(row, &bench, &before, sweep.state(&bench), &error, &at)?;
            }
        }
        let second = (row.run)(&mut bench);
        if is_clean {
            second.unwrap_or_else(|error| panic!("{at}, the second time: {error}"));
            reference.check(row, &sweep.state(&bench), &at);
            sweep.nothing_is_left(bench, &at);
        } else {
            assert!(
                matches!(second.as_ref().map_err(Error::detail), Err(Detail::Poisoned { .. })),
                "{at}, the second time: {second:?}"
            );
            let left = sweep.reclaim(bench, &at);
            assert!(left > 0, "{at}: the region is poisoned although nothing was left behind");
        }
        Ok(())
    });
}
