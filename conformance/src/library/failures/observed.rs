//! The rows of the table with observers on their regions: each change of memory is announced, and its outcome is reported once, on
//! every path.

use super::bench::Bench;
use super::edges::Faulty;
use super::operations;
use super::row::Row;
use super::sweep::{Sweep, same_state};
use crate::library::registrar::{Change, Registrar, Reply};
use crate::report::FAILURE_POINTS;
use crate::subject::{Subject, note};
use gpu_vmm_core::{
    BackingEffect, BackingOutcome, Bytes, Detail, Error, ErrorKind, MemoryId, Region, Result,
};
use gpu_vmm_testkit::TestKit;

/// The operations that change the memory behind addresses, and those that may do so.
const CHANGING: &[&str] = &[
    "Region::unmap",
    "Region::shrink_to",
    "Region::grow_to",
    "Region::grow_or_move",
    "Region::swap",
    "Region::swap_all",
    "Region::move_to_device",
    "BankedRegion::select",
    "BankedRegion::hide",
    "BankedRegion::remove_bank",
    "Region::suspend",
    "Region::suspend_into",
    "Region::resume",
    "Region::resume_from",
    "DeviceVec::push",
    "DeviceVec::shrink_to_fit",
    "DeviceVec::suspend",
    "DeviceVec::resume",
];

fn rows<B: TestKit>(subject: &Subject<B>) -> Vec<Row<B>> {
    let has_peer = subject.peer().is_ok();
    let mut rows = operations::all::<B>();
    rows.retain(|row| CHANGING.contains(&row.of) && (has_peer || !row.start.peer));
    rows
}

/// A mapping of a region.
#[derive(Debug)]
struct Mapped {
    place: (u64, Bytes, Bytes),
    memory: MemoryId,
    poisoned: bool,
}

impl PartialEq for Mapped {
    fn eq(&self, other: &Self) -> bool {
        (self.place, &self.memory, self.poisoned) == (other.place, &other.memory, other.poisoned)
    }
}

/// The mappings of one region of a bench, and its observer.
struct Watched {
    registrar: Registrar,
    before: Vec<Mapped>,
}

fn mappings<B: TestKit>(region: Option<&Region<Faulty<B>>>) -> Vec<Mapped> {
    let Some(region) = region else { return Vec::new() };
    let base = region.address().0;
    let mapped = region.mappings().map(|one| Mapped {
        place: (base, one.offset, one.length),
        memory: one.memory.id(),
        poisoned: one.poisoned,
    });
    mapped.collect()
}

/// The regions of a bench: the one under test and the second one.
fn seen<B: TestKit>(bench: &Bench<B>) -> [Vec<Mapped>; 2] {
    [mappings(bench.seen_region()), mappings(bench.seen_beside())]
}

fn watch<B: TestKit>(bench: &mut Bench<B>) -> [Watched; 2] {
    let before = seen(bench);
    let registrars = [(); 2].map(|()| Registrar::default());
    bench.observe(registrars.each_ref().map(Clone::clone));
    let mut registrars = registrars.into_iter();
    before.map(|before| Watched { registrar: registrars.next().expect("one for each"), before })
}

fn is_in(mapped: &Mapped, change: &Change) -> bool {
    let (base, offset, length) = mapped.place;
    let within = |part: &gpu_vmm_core::OffsetRange| part.offset <= offset && offset + length <= part.end();
    change.address.0 == base && change.parts.iter().any(within)
}

/// Checks the calls of the observers after an operation. Returns the number of changes that were announced.
fn check<B: TestKit>(
    row: &Row<B>,
    watched: &[Watched; 2],
    bench: &Bench<B>,
    result: &Result<()>,
    at: &str,
) -> usize {
    let mut count = 0;
    for (Watched { registrar, before }, after) in watched.iter().zip(seen(bench)) {
        let changes = registrar.changes(at);
        count += changes.len();
        let stays = |mapped: &Mapped| after.iter().any(|other| other == mapped);
        for mapped in before.iter().filter(|mapped| !stays(mapped)) {
            let is_reported = |(change, outcome): &(Change, BackingOutcome)| {
                *outcome != BackingOutcome::Unchanged && is_in(mapped, change)
            };
            assert!(
                changes.iter().any(is_reported),
                "{at}: {mapped:?} is gone, and only {changes:?} was reported"
            );
        }
        for (change, outcome) in &changes {
            let lost = matches!(result.as_ref().map_err(Error::detail), Err(Detail::AddressesLost { .. }));
            let poisoned = after.iter().any(|mapped| mapped.poisoned);
            match outcome {
                BackingOutcome::Changed => assert!(
                    // A vector that has moved keeps the new address if its elements cannot be written.
                    result.is_ok() || lost || row.may_keep_capacity,
                    "{at}: {change:?}: {result:?}"
                ),
                BackingOutcome::Unchanged => {
                    // An operation that first requests more than it needs tries again with less.
                    let tries = if row.has_wish && result.is_ok() { changes.len() } else { 1 };
                    assert!(
                        result.is_err() || tries > 1,
                        "{at}: nothing changed in a call that succeeded: {change:?}"
                    );
                    for mapped in before.iter().filter(|mapped| is_in(mapped, change)) {
                        assert!(stays(mapped) || tries > 1, "{at}: {mapped:?} has changed: {change:?}");
                    }
                }
                BackingOutcome::Poisoned => assert!(poisoned, "{at}: nothing is poisoned: {change:?}"),
            }
            if change.effect == BackingEffect::Restored && *outcome == BackingOutcome::Changed {
                let comes = after.iter().filter(|mapped| is_in(mapped, change)).count();
                assert!(comes > 0, "{at}: nothing was mapped: {change:?}");
            }
        }
    }
    count
}

/// Returns the number of changes that a row announces if it succeeds.
fn announced<B: TestKit>(sweep: &Sweep<'_, B>, row: &Row<B>) -> (usize, u64) {
    let mut bench = sweep.bench(row.start);
    let watched = watch(&mut bench);
    bench.backend.fail(0, 0);
    let result = (row.run)(&mut bench);
    let calls = bench.backend.stop();
    let count = check(row, &watched, &bench, &result, &row.to_string());
    result.unwrap_or_else(|error| panic!("{row}: {error}"));
    if row.of.contains("resume") {
        assert_eq!(count, 1, "{row}: resuming is a change");
    }
    (count, calls)
}

/// Drops a bench in which rollbacks may have failed.
fn end<B: TestKit>(sweep: &Sweep<'_, B>, bench: Bench<B>, at: &str) {
    // The failure of a poisoning, which the operation does not report.
    sweep.subject.backend.drop_log().take_last();
    sweep.reclaim(bench, at);
}

/// Lets each driver call fail, alone and together with all that follow it.
pub(crate) fn failing<B: TestKit>(subject: &Subject<B>) {
    let sweep = Sweep::new(subject);
    let mut points = 0;
    for row in rows(subject) {
        let (count, calls) = announced(&sweep, &row);
        for first in 0..calls {
            for failing in [vec![first], (first..first + 64).collect()] {
                let at = format!("{row}, {} driver calls from {first} on failing", failing.len());
                let mut bench = sweep.bench(row.start);
                let watched = watch(&mut bench);
                bench.backend.fail_each(&failing);
                let result = (row.run)(&mut bench);
                bench.backend.stop();
                let announced = check(&row, &watched, &bench, &result, &at);
                let most = if row.has_wish { count.max(1) * 2 } else { count.max(1) };
                assert!(announced <= most, "{at}: {announced} changes were announced instead of {count}");
                if ["Region::resume", "DeviceVec::resume"].contains(&row.of) {
                    assert_eq!(announced, 1, "{at}: the resume has failed, and was not announced");
                }
                end(&sweep, bench, &at);
                points += 1;
            }
        }
    }
    assert!(points > 100, "{points} points");
    note(format!("{FAILURE_POINTS}{points}"));
}

/// Lets the last of three observers refuse each change: the state is as before, and the other two learn that.
pub(crate) fn refused<B: TestKit>(subject: &Subject<B>) {
    let sweep = Sweep::new(subject);
    let mut refusals = 0;
    for row in rows(subject) {
        let (count, _) = announced(&sweep, &row);
        if count == 0 {
            continue;
        }
        let at = format!("{row}, refused");
        for reply in [Reply::Refuse, Reply::PanicBefore] {
            sweep.unless_disturbed(|| {
                let mut bench = sweep.bench(row.start);
                let before = sweep.state(&bench);
                let watched = watch(&mut bench);
                let refusing = Registrar::default();
                refusing.reply(reply);
                bench.observe([refusing.clone(), Registrar::default()]);
                let result = (row.run)(&mut bench);
                let error = result.as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{at}: {error}");
                assert!(matches!(error.detail(), Detail::Vetoed { .. }), "{at}: {error}");
                assert!(error.to_string().contains(Registrar::REASON), "{at}: {error}");
                check(&row, &watched, &bench, &result, &at);
                let calls = refusing.calls();
                assert!(
                    matches!(calls[..], [(_, None)]),
                    "{at}: an observer that refuses is called once: {calls:?}"
                );
                let after = sweep.state(&bench);
                same_state(&row, &bench, &before, after, error, &at)?;
                refusing.reply(Reply::Agree);
                (row.run)(&mut bench).unwrap_or_else(|error| panic!("{at}, the second time: {error}"));
                assert!(!refusing.changes(&at).is_empty(), "{at}, and then agreed");
                sweep.nothing_is_left(bench, &at);
                Ok(())
            });
            refusals += 1;
        }
    }
    assert!(refusals > 20, "{refusals} refusals");
    note(format!("{refusals} refusals"));
}
