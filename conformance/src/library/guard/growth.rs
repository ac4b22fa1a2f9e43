//! Growth of guarded regions: within their addresses, or by a move.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::Subject;
use gpu_vmm_core::{Address, AddressRange, Bytes, Detail, DeviceVec, Error, GrowthKind, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "guard":
    /// A guarded region grows to its last address and not into its guard, although nothing is mapped there, and the refusal makes
    /// no driver call.
    no_growth_into_the_guard,
    /// A guarded region that may move keeps its contents and has a guard of the same size at its new address.
    moved_with_its_guard,
    /// A vector on a guarded region grows if it may move; otherwise the growth is refused, and the vector is unchanged.
    vectors,
}

fn no_growth_into_the_guard<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(16) + subject.unit());
    for builder in [subject.region(2), subject.region(2).extend_by(subject.unit())] {
        let mut region = builder.guarded().at(at).build().unwrap();
        let grown = region.grow_to(subject.units(2)).unwrap();
        assert_eq!((grown.how, grown.end), (GrowthKind::Within, subject.units(2)));
        subject.write(&mut region, Bytes(0), subject.units(2), 1);
        let before = (region.range(), region.end(), region.mappings().count());
        for answer in [
            region.grow_to(subject.units(2) + subject.granularity()),
            region.grow_to(subject.units(8)),
            region.grow_to_on(subject.device, subject.units(3)),
        ] {
            refused!(answer, Detail::Guarded { .. }, region.range().end(), region.guard());
        }
        assert_eq!((region.range(), region.end(), region.mappings().count()), before);
        subject.check(&region, Bytes(0), subject.units(2), 1);
    }
}

/// Returns true if no addresses directly before or behind a range can be reserved.
fn is_shut_in<B: TestKit>(subject: &Subject<B>, range: AddressRange) -> bool {
    let before = Address(range.base.0 - subject.unit().0);
    [before, range.end()].into_iter().all(|beside| {
        let taken = subject.region(1).at(Placement::Exact(beside)).build();
        matches!(taken.as_ref().map_err(Error::detail), Err(Detail::AddressTaken { .. }))
    })
}

fn moved_with_its_guard<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(8) + subject.units(2);
    let guarded = || subject.region(1).guard(subject.units(2)).at(Placement::Exact(base)).build();
    let mut region = guarded().unwrap();
    region.grow_to(subject.unit()).unwrap();
    subject.write(&mut region, Bytes(0), subject.unit(), 1);
    let growth = region.grow_or_move(subject.units(3), idle()).unwrap();
    assert_eq!((growth.how, growth.address), (GrowthKind::Remapped, region.address()));
    assert_ne!(region.address(), base);
    assert_eq!(region.guard(), subject.units(2));
    assert!(is_shut_in(subject, region.range()), "{}", region.range());
    subject.check(&region, Bytes(0), subject.unit(), 1);
    subject.write(&mut region, Bytes(0), subject.units(3), 2);
    subject.check(&region, Bytes(0), subject.units(3), 2);
    // All old addresses are free, including the guard's.
    let again: Region<B> = guarded().unwrap();
    drop((region, again));
}

fn vectors<B: TestKit>(subject: &Subject<B>) {
    let new = || DeviceVec::<u64, B>::build(subject.region(1).guarded()).unwrap();
    let count = (subject.unit().0 / 8) as usize;
    let (mut fixed, mut movable) = (new(), new().movable());
    for vector in [&mut fixed, &mut movable] {
        vector.resize(count, 3).unwrap();
    }
    refused!(fixed.push(4), Detail::Guarded { .. });
    assert_eq!((fixed.len(), fixed.get(count - 1).unwrap()), (count, 3));
    movable.push(4).unwrap();
    assert_eq!((movable.get(count - 1).unwrap(), movable.get(count).unwrap()), (3, 4));
    assert_eq!(movable.region().guard(), subject.unit());
}
