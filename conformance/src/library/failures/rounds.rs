//! The sweeps over the rows of one operation, one function for each kind of sweep.

use super::operations;
use super::row::Row;
use super::sweep::Sweep;
use super::{asleep, undo};
use crate::report::FAILURE_POINTS;
use crate::subject::{Subject, note, skip};
use gpu_vmm_testkit::TestKit;

/// Sweeps over the rows of one public operation.
pub(super) fn single<B: TestKit>(subject: &Subject<B>, of: &str) {
    sweep(subject, of, |sweep, row| sweep.row(row));
}

/// Sweeps over the rows of one public operation, with a second failure after the first.
pub(super) fn double<B: TestKit>(subject: &Subject<B>, of: &str) {
    sweep(subject, of, |sweep, row| undo::row(sweep, row));
}

/// Does the same for operations whose failure leaves a region suspended.
pub(super) fn asleep<B: TestKit>(subject: &Subject<B>, of: &str) {
    sweep(subject, of, |sweep, row| asleep::row(sweep, row));
}

fn sweep<B: TestKit>(subject: &Subject<B>, of: &str, row: impl Fn(&Sweep<'_, B>, &Row<B>) -> u64) {
    let rows = operations::of::<B>(of);
    assert!(!rows.is_empty(), "the table has no row of {of}");
    let peer = subject.peer();
    let (possible, left): (Vec<_>, Vec<_>) = rows.iter().partition(|row| peer.is_ok() || !row.start.peer);
    if possible.is_empty() {
        skip(peer.unwrap_err());
    }
    let sweep = Sweep::new(subject);
    let points: u64 = possible.iter().map(|operation| row(&sweep, operation)).sum();
    assert!(points > 0, "{of} reaches no driver");
    let without = if left.is_empty() { "" } else { ", without the rows for two devices" };
    note(format!("{FAILURE_POINTS}{points}{without}"));
}
