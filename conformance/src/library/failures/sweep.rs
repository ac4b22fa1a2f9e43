//! Each driver call of an operation fails, one in each round: the state before is restored, and a second try succeeds.
#![allow(unsafe_code)] // frees reservations that were left until the end of the process

use super::bench::Bench;
use super::row::{Row, UNDONE};
use super::saved::InFile;
use super::start::{Start, far};
use super::state::State;
use crate::leaks::TRIES;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, Detail, Error, Operation, Result};
use gpu_vmm_testkit::{Live, TestKit};
use std::cell::OnceCell;
use std::rc::Rc;

/// A subject, and free addresses that the benches use one after the other.
pub(super) struct Sweep<'a, B: TestKit> {
    pub(super) subject: &'a Subject<B>,
    hole: Address,
    /// The file from which benches restore a region.
    file: OnceCell<Rc<InFile>>,
}

/// What an operation does if no call fails.
pub(super) struct Reference {
    pub(super) calls: u64,
    before: State,
    after: State,
}

impl Reference {
    /// Fails if the state after a successful operation differs from the reference.
    pub(super) fn check<B: TestKit>(&self, row: &Row<B>, after: &State, at: &str) {
        let [mut seen, mut right] = [after, &self.after].map(State::shape);
        if row.poisons {
            // `poisoning_has_failed` counts the objects that could not be unmapped.
            [seen.live, right.live] = [Live::default(); 2];
        }
        if row.brings_back {
            assert_eq!(after.contents(), self.after.contents(), "{at}, and then success");
        }
        if row.may_keep_capacity {
            assert_eq!(seen.without_capacity(), right.without_capacity(), "{at}, and then success");
        } else {
            assert_eq!(seen, right, "{at}, and then success");
        }
    }
}

impl<'a, B: TestKit> Sweep<'a, B> {
    pub(super) fn new(subject: &'a Subject<B>) -> Self {
        Self { subject, hole: subject.hole(64), file: OnceCell::new() }
    }

    pub(super) fn bench(&self, start: Start) -> Bench<B> {
        let make = || Rc::new(InFile::new(self.subject, far(self.subject, self.hole)));
        let file = start.is_in_file().then(|| Rc::clone(self.file.get_or_init(make)));
        Bench::new(self.subject, self.hole, start, file)
    }

    pub(super) fn state(&self, bench: &Bench<B>) -> State {
        State::of(bench, self.subject)
    }

    pub(super) fn reference(&self, row: &Row<B>) -> Reference {
        let mut bench = self.bench(row.start);
        let before = self.state(&bench);
        bench.backend.fail(0, 0);
        (row.run)(&mut bench).unwrap_or_else(|error| panic!("{row}: {error}"));
        let calls = bench.backend.stop();
        assert!(calls > 0, "{row} reaches no driver");
        let after = self.state(&bench);
        assert!(after != before || row.only_looks, "{row} does nothing");
        assert!(!row.brings_back || after.is_whole(), "{row} brings back something else: {after:?}");
        Reference { calls, before, after }
    }

    /// Returns the state of an unused bench of the row.
    pub(super) fn before(&self, bench: &Bench<B>, reference: &Reference) -> State {
        reference.before.of_another(bench, self.subject)
    }

    /// Sweeps over all failure points of one row. Returns their number.
    pub(super) fn row(&self, row: &Row<B>) -> u64 {
        let reference = self.reference(row);
        let mut points = 0;
        for failing in 0..reference.calls {
            let failed = self.point(row, &reference, failing, false);
            points += 1;
            if failed == Some(Operation::SetAccess.name()) {
                self.point(row, &reference, failing, true);
                points += 1;
            }
        }
        points
    }

    /// Lets one driver call fail, or lets it succeed and report a failure. Returns the call's name if the operation failed
    /// because of it.
    fn point(
        &self,
        row: &Row<B>,
        reference: &Reference,
        failing: u64,
        carried_out: bool,
    ) -> Option<&'static str> {
        self.unless_disturbed(|| {
            let mut bench = self.bench(row.start);
            let before = self.before(&bench, reference);
            bench.backend.set_access_though_failing(carried_out);
            bench.backend.fail(failing, 1);
            let result = (row.run)(&mut bench);
            let calls = bench.backend.stop();
            let at = format!("{row}, driver call {failing} failing");
            let failed = match result {
                Ok(()) => {
                    assert!(
                        (row.has_wish || row.poisons) && calls > failing,
                        "{at}: the failure was not reported"
                    );
                    reference.check(row, &self.state(&bench), &at);
                    if row.poisons {
                        self.poisoning_has_failed(bench, &[failing], &at);
                        return Ok(None);
                    }
                    None
                }
                Err(error) => {
                    assert_eq!(injected(&error), Some(failing), "{at}: {error}");
                    assert!(
                        calls == failing + 1 || row.has_wish || UNDONE.contains(&row.of),
                        "{row} undoes something, and no case makes that fail"
                    );
                    same_state(row, &bench, &before, self.state(&bench), &error, &at)?;
                    (row.run)(&mut bench).unwrap_or_else(|error| panic!("{at}, the second time: {error}"));
                    reference.check(row, &self.state(&bench), &at);
                    error.driver_error().map(|source| source.call)
                }
            };
            self.nothing_is_left(bench, &at);
            Ok(failed)
        })
    }

    /// Drops a bench, and checks that the driver has no object of it left.
    pub(super) fn nothing_is_left(&self, bench: Bench<B>, at: &str) {
        let backend = bench.end();
        assert_eq!(backend.live(), Live::default(), "{at}: objects are left after all was dropped");
        self.no_destructor_failed(at);
    }

    /// Drops a bench in which freed memory could not be poisoned: the log must contain the failure.
    pub(super) fn poisoning_has_failed(&self, bench: Bench<B>, failing: &[u64], at: &str) {
        let logged = self.subject.backend.drop_log().take_last();
        let error = logged.unwrap_or_else(|| panic!("{at}: the failure was not logged"));
        assert!(injected(&error).is_some_and(|number| failing.contains(&number)), "{at}: {error}");
        let left = self.reclaim(bench, at);
        if let [_] = failing {
            let is_stuck = error.driver_error().is_some_and(|source| source.call == Operation::Unmap.name());
            assert_eq!(left > 0, is_stuck, "{at}: {error}, and {left} reservations were left");
        }
    }

    /// Drops a bench, and frees the reservations that were left until the end of the process. Returns their number.
    pub(super) fn reclaim(&self, bench: Bench<B>, at: &str) -> usize {
        let backend = bench.end();
        // SAFETY: the bench and its regions are dropped.
        let left = unsafe { backend.reclaim() }.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(backend.live(), Live::default(), "{at}: objects are left besides the poisoned ones");
        self.no_destructor_failed(at);
        left
    }

    pub(super) fn no_destructor_failed(&self, at: &str) {
        if let Some(error) = self.subject.backend.drop_log().take_last() {
            panic!("{at}: a destructor failed: {error}");
        }
    }

    /// Repeats a round if only free memory was not as expected.
    pub(super) fn unless_disturbed<T>(&self, round: impl Fn() -> Result<T, Disturbed>) -> T {
        let mut last = None;
        for _ in 0..TRIES {
            match round() {
                Ok(value) => return value,
                Err(disturbed) => last = Some(disturbed),
            }
        }
        panic!("{}, each of {TRIES} times", last.map_or_else(String::new, |disturbed| disturbed.0))
    }
}

/// Free memory was not as expected.
pub(super) struct Disturbed(String);

/// Fails if a failure has changed state that it must not change.
pub(super) fn same_state<B: TestKit>(
    row: &Row<B>,
    bench: &Bench<B>,
    before: &State,
    after: State,
    error: &Error,
    at: &str,
) -> Result<(), Disturbed> {
    // If the elements could not be written, a vector keeps the memory that it has allocated for them.
    let has_grown = error.driver_error().is_some_and(|source| {
        [Operation::CopyFromHost.name(), Operation::Fill.name()].contains(&source.call)
    });
    let comparable = |state: State| match row.writes {
        Some((from, to)) => state.without_contents(bench.at(from), bench.at(to)),
        None if row.may_keep_capacity && has_grown => state.without_capacity(),
        None => state,
    };
    let (mut before, mut after) = (comparable(before.clone()), comparable(after));
    let free: [Vec<Bytes>; 2] = [&mut before.free, &mut after.free].map(std::mem::take);
    assert_eq!(after, before, "{at}");
    if free[0] == free[1] {
        return Ok(());
    }
    Err(Disturbed(format!("{at}: free memory was {:?} and is {:?}", free[0], free[1])))
}

/// Returns the number of the injected failure that caused this error.
pub(crate) fn injected(error: &Error) -> Option<u64> {
    match error.detail() {
        Detail::Driver { source, context } if source.name == "INJECTED" => {
            assert_eq!(error.operation().name(), source.call);
            context.strip_prefix("driver call ")?.parse().ok()
        }
        _ => None,
    }
}
