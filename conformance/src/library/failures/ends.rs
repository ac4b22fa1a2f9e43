//! The end of a region: its destructor cannot return an error, so it records failures in the drop log.

use super::start::Start;
use super::sweep::{Sweep, injected};
use crate::report::FAILURE_POINTS;
use crate::subject::{Subject, note};
use gpu_vmm_core::{Error, Operation, WaitFor};
use gpu_vmm_testkit::{Live, TestKit};

/// The object that exists apart from the region: one allocation.
const BESIDE: Live = Live { handles: 1, reservations: 0, mappings: 0, bindings: 0 };

pub(super) fn close<B: TestKit>(subject: &Subject<B>) {
    let sweep = Sweep::new(subject);
    let mut points = 0;
    for first in 0.. {
        let calls = {
            let (answer, calls, left) = closed(&sweep, &[first]);
            let Err(error) = answer else { break };
            assert_eq!(injected(&error), Some(first), "{error}");
            // The destructor tries again.
            assert!(left.is_none(), "after driver call {first} failed: {left:?}");
            calls
        };
        points += 1;
        for second in first + 1..calls {
            let (answer, _, logged) = closed(&sweep, &[first, second]);
            assert_eq!(injected(&answer.unwrap_err()), Some(first));
            if let Some(error) = logged {
                assert_eq!(injected(&error), Some(second), "{error}");
            }
            points += 1;
        }
    }
    assert!(points > 10, "{points} points");
    note(format!("{FAILURE_POINTS}{points}"));
}

/// Closes a region while these driver calls fail. Returns the result, the number of calls, and what the destructor has
/// logged. Checks that the destructor has logged an error exactly if something was left behind.
fn closed<B: TestKit>(sweep: &Sweep<'_, B>, failing: &[u64]) -> (Result<(), Error>, u64, Option<Error>) {
    let mut bench = sweep.bench(Start::EXTENDED);
    let region = bench.take_region().expect("a region");
    bench.backend.fail_each(failing);
    let answer = region.close(WaitFor::all_devices());
    let calls = bench.backend.stop();
    let logged = sweep.subject.backend.drop_log().take_last();
    assert_eq!(logged.is_none(), bench.backend.live() == BESIDE, "{failing:?}: {logged:?}");
    sweep.reclaim(bench, "close");
    (answer, calls, logged)
}

pub(super) fn dropped<B: TestKit>(subject: &Subject<B>) {
    let sweep = Sweep::new(subject);
    let mut points = 0;
    for failing in 0.. {
        let mut bench = sweep.bench(Start::EXTENDED);
        let count = subject.backend.drop_log().count();
        let region = bench.take_region();
        bench.backend.fail(failing, 1);
        drop(region);
        let calls = bench.backend.stop();
        let logged = subject.backend.drop_log().take_last();
        if calls <= failing {
            assert!(logged.is_none() && bench.backend.live() == BESIDE, "{logged:?}");
            break;
        }
        assert_eq!(subject.backend.drop_log().count(), count + 1);
        assert_eq!(logged.as_ref().and_then(injected), Some(failing), "{logged:?}");
        assert_ne!(bench.backend.live(), BESIDE, "memory that could not be unmapped was freed");
        let left = sweep.reclaim(bench, "drop");
        if logged.is_some_and(|error| error.operation() == Operation::Unmap) {
            assert_eq!(left, 1, "more than the one reservation with a mapping is left");
        }
        points += 1;
    }
    assert!(points > 2, "{points} points");
    note(format!("{FAILURE_POINTS}{points}"));
}
