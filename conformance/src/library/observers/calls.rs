//! The calls of each operation that succeeds, and the operations that make none.

use crate::case::cases;
use crate::library::registrar::{Change, Registrar};
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::extend::MappedMemory;
use gpu_vmm_core::{
    AccessMap, Address, BackingEffect, BackingOutcome, BackingStore, BankedRegion, Bytes, MovePath,
    OffsetRange, Operation, Placement, Region,
};
use gpu_vmm_testkit::TestKit;

cases! { "observers":
    /// Unmapping and shrinking report the ranges whose memory is removed.
    removals,
    /// Suspending and resuming report all mapped ranges, with the holes between them left out.
    suspension,
    /// A swap is reported to the observers of both regions, each with the ranges of its own region.
    swaps,
    /// Each selection of a bank is reported: the first, an exchange, one after hiding; hiding is too. The selected bank again is not.
    banks,
    /// A move to another device reports the ranges whose memory is replaced.
    device_moves,
    /// A region that moves to grow reports its old address and the new one.
    address_moves,
    /// A change of the whole layout, as an importer receives it, reports what changes; additions alone are not reported.
    layouts,
    /// Growing, mapping, writing and setting access report nothing, and neither do calls that are refused for their arguments.
    nothing_to_report,
    /// An observer that was removed is not called again, and the others are.
    removed_observers,
    /// Several observers are called in the order in which they were added.
    order,
}

/// A region with granules 0 and 1 mapped one by one, a hole, and granule 3.
fn region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(8).build().unwrap();
    for at in [0, 1, 3] {
        subject.open(&mut region, subject.granules(at), &subject.piece(1));
    }
    region
}

/// A range in granules.
pub(super) fn part<B: TestKit>(subject: &Subject<B>, from: u64, count: u64) -> OffsetRange {
    OffsetRange { offset: subject.granules(from), length: subject.granules(count) }
}

#[track_caller]
fn assert_one(
    registrar: &Registrar,
    operation: Operation,
    effect: BackingEffect,
    address: Address,
    parts: &[OffsetRange],
) {
    let right = Change { operation, effect, address, parts: parts.to_vec() };
    assert_eq!(registrar.changes(operation.name()), [(right, BackingOutcome::Changed)]);
}

#[track_caller]
fn assert_none(registrar: &Registrar) {
    assert_eq!(registrar.calls(), []);
}

fn removals<B: TestKit>(subject: &Subject<B>) {
    let (mut region, registrar) = (region(subject), Registrar::default());
    region.on_backing_change(registrar.clone());
    let (at, effect) = (region.address(), BackingEffect::Removed);
    region.unmap(Bytes(0), subject.granules(1), idle()).unwrap();
    assert_one(&registrar, Operation::Unmap, effect, at, &[part(subject, 0, 1)]);
    let _ = region.shrink_to(subject.granules(1), idle()).unwrap();
    assert_one(&registrar, Operation::Shrink, effect, at, &[part(subject, 1, 1), part(subject, 3, 1)]);
    let _ = region.shrink_to(Bytes(0), idle()).unwrap();
    assert_none(&registrar);
}

fn suspension<B: TestKit>(subject: &Subject<B>) {
    let (mut region, registrar) = (region(subject), Registrar::default());
    region.on_backing_change(registrar.clone());
    let (at, parts) = (region.address(), [part(subject, 0, 2), part(subject, 3, 1)]);
    let store = BackingStore::nothing();
    for _ in 0..2 {
        region.suspend(&store, idle()).unwrap();
        assert_one(&registrar, Operation::Suspend, BackingEffect::Removed, at, &parts);
        assert!(region.suspend(&store, idle()).unwrap().already);
        assert_none(&registrar);
        region.resume().unwrap();
        assert_one(&registrar, Operation::Resume, BackingEffect::Restored, at, &parts);
        assert!(region.resume().unwrap().already);
        assert_none(&registrar);
    }
    let mut list = Vec::new();
    region.suspend_into(&store, idle(), &mut list).unwrap();
    assert_one(&registrar, Operation::Suspend, BackingEffect::Removed, at, &parts);
    region.resume_from(&mut list).unwrap();
    assert_one(&registrar, Operation::Resume, BackingEffect::Restored, at, &parts);
}

fn swaps<B: TestKit>(subject: &Subject<B>) {
    let (mut one, mut other) = (region(subject), region(subject));
    let registrars = [(); 2].map(|()| Registrar::default());
    one.on_backing_change(registrars[0].clone());
    other.on_backing_change(registrars[1].clone());
    one.swap(Bytes(0), &mut other, subject.granules(3), subject.granules(1), idle()).unwrap();
    let (operation, effect) = (Operation::Swap, BackingEffect::Replaced);
    assert_one(&registrars[0], operation, effect, one.address(), &[part(subject, 0, 1)]);
    assert_one(&registrars[1], operation, effect, other.address(), &[part(subject, 3, 1)]);
    one.swap_all(&mut other, idle()).unwrap();
    let parts = [part(subject, 0, 2), part(subject, 3, 1)];
    assert_one(&registrars[0], operation, effect, one.address(), &parts);
    assert_one(&registrars[1], operation, effect, other.address(), &parts);
}

fn banks<B: TestKit>(subject: &Subject<B>) {
    let (mut banked, registrar) = (BankedRegion::build(subject.space(4)).unwrap(), Registrar::default());
    let observer = banked.on_backing_change(registrar.clone());
    let at = banked.address();
    let (small, large) =
        (banked.add_bank(subject.granules(1)).unwrap(), banked.add_bank(subject.granules(2)).unwrap());
    assert_none(&registrar);
    let select = Operation::SelectBank;
    banked.select(small, idle()).unwrap();
    assert_one(&registrar, select, BackingEffect::Restored, at, &[part(subject, 0, 1)]);
    banked.select(small, idle()).unwrap();
    assert_none(&registrar);
    banked.select(large, idle()).unwrap();
    assert_one(&registrar, select, BackingEffect::Replaced, at, &[part(subject, 0, 2)]);
    banked.hide(idle()).unwrap();
    assert_one(&registrar, Operation::HideBank, BackingEffect::Removed, at, &[part(subject, 0, 2)]);
    banked.select(large, idle()).unwrap();
    assert_one(&registrar, select, BackingEffect::Restored, at, &[part(subject, 0, 2)]);
    banked.select(small, idle()).unwrap();
    assert_one(&registrar, select, BackingEffect::Replaced, at, &[part(subject, 0, 2)]);
    banked.select(large, idle()).unwrap();
    assert_one(&registrar, select, BackingEffect::Replaced, at, &[part(subject, 0, 2)]);
    banked.remove_bank(large, idle()).unwrap();
    assert_one(&registrar, Operation::HideBank, BackingEffect::Removed, at, &[part(subject, 0, 2)]);
    assert!(banked.remove_observer(observer));
    banked.select(small, idle()).unwrap();
    assert_none(&registrar);
}

fn device_moves<B: TestKit>(subject: &Subject<B>) {
    let (_, other) = subject.two_devices();
    let (mut region, registrar) = (region(subject), Registrar::default());
    region.on_backing_change(registrar.clone());
    region.move_to_device(other, MovePath::Fastest(None), idle()).unwrap();
    let parts = [part(subject, 0, 2), part(subject, 3, 1)];
    assert_one(&registrar, Operation::MoveToDevice, BackingEffect::Replaced, region.address(), &parts);
    region.move_to_device(other, MovePath::Fastest(None), idle()).unwrap();
    assert_none(&registrar);
}

fn address_moves<B: TestKit>(subject: &Subject<B>) {
    let hole = subject.hole(8);
    let mut region = subject.region(1).at(Placement::Exact(hole)).build().unwrap();
    let _wall = subject.region(1).at(Placement::Exact(hole + subject.unit())).build().unwrap();
    let registrar = Registrar::default();
    region.on_backing_change(registrar.clone());
    region.grow_or_move(subject.granules(1), idle()).unwrap();
    assert_none(&registrar);
    region.grow_or_move(subject.units(2), idle()).unwrap();
    let effect = BackingEffect::Moved { to: region.address() };
    assert_ne!(region.address(), hole);
    assert_one(&registrar, Operation::Grow, effect, hole, &[part(subject, 0, 1)]);
}

fn layouts<B: TestKit>(subject: &Subject<B>) {
    let (mut region, registrar) = (subject.space(8).build().unwrap(), Registrar::default());
    region.on_backing_change(registrar.clone());
    let access = AccessMap::NONE.with(subject.device, RW);
    let pieces = [1, 1, 2].map(|granules| subject.piece(granules));
    let wanted = |which: &[(u64, usize)]| -> Vec<MappedMemory<B>> {
        let one = |(at, piece): &(u64, usize)| MappedMemory {
            offset: subject.granules(*at),
            memory: pieces[*piece].clone(),
            access,
        };
        which.iter().map(one).collect()
    };
    let (operation, at) = (Operation::ApplyChange, region.address());
    region.apply_layout(operation, &wanted(&[(0, 0)]), idle()).unwrap();
    region.apply_layout(operation, &wanted(&[(0, 0), (1, 1)]), idle()).unwrap();
    assert_none(&registrar);
    region.apply_layout(operation, &wanted(&[(0, 0), (1, 2)]), idle()).unwrap();
    assert_one(&registrar, operation, BackingEffect::Replaced, at, &[part(subject, 1, 2)]);
    region.apply_layout(operation, &wanted(&[(1, 2)]), idle()).unwrap();
    assert_one(&registrar, operation, BackingEffect::Removed, at, &[part(subject, 0, 1)]);
    region.apply_layout_elsewhere(operation, &wanted(&[(1, 2)]), Placement::Anywhere, idle()).unwrap();
    let effect = BackingEffect::Moved { to: region.address() };
    assert_one(&registrar, operation, effect, at, &[part(subject, 1, 2)]);
}

fn nothing_to_report<B: TestKit>(subject: &Subject<B>) {
    let (mut region, registrar) = (subject.space(8).build().unwrap(), Registrar::default());
    region.on_backing_change(registrar.clone());
    let granule = subject.granules(1);
    region.grow_to(granule).unwrap();
    region.grow_with(&[subject.piece(1)]).unwrap();
    subject.open(&mut region, subject.granules(3), &subject.piece(1));
    region.write(Bytes(0), &[1]).unwrap();
    region.fill(Bytes(0), granule, 2).unwrap();
    region.set_access(Bytes(0), granule, subject.device, gpu_vmm_core::Access::Read).unwrap();
    region.unmap(Bytes(0), subject.granules(4), idle()).unwrap_err();
    region.unmap(Bytes(1), granule, idle()).unwrap_err();
    let _ = region.shrink_to(subject.granules(8), idle()).unwrap_err();
    let clone = region.mappings().next().unwrap().memory.clone();
    region.suspend(&BackingStore::nothing(), idle()).unwrap_err();
    drop(clone);
    assert_none(&registrar);
    let mut empty = subject.space(1).build().unwrap();
    empty.on_backing_change(registrar.clone());
    empty.suspend(&BackingStore::nothing(), idle()).unwrap();
    empty.resume().unwrap();
    drop(empty);
    assert_none(&registrar);
}

fn removed_observers<B: TestKit>(subject: &Subject<B>) {
    let (mut region, registrars) = (region(subject), [(); 2].map(|()| Registrar::default()));
    let ids = registrars.each_ref().map(|one| region.on_backing_change(one.clone()));
    assert_ne!(ids[0], ids[1]);
    assert!(region.remove_observer(ids[0]) && !region.remove_observer(ids[0]));
    region.unmap(Bytes(0), subject.granules(1), idle()).unwrap();
    assert_none(&registrars[0]);
    assert_eq!(registrars[1].changes("unmap").len(), 1);
    assert!(region.remove_observer(ids[1]));
    let later = region.on_backing_change(registrars[0].clone());
    assert!(!ids.contains(&later), "an identifier is not used again");
    region.unmap(subject.granules(1), subject.granules(1), idle()).unwrap();
    assert_eq!(registrars[0].changes("unmap").len(), 1);
    assert_none(&registrars[1]);
}

fn order<B: TestKit>(subject: &Subject<B>) {
    use gpu_vmm_core::{BackingChange, BackingObserver};
    use std::sync::{Arc, Mutex};

    struct Numbered(u32, Arc<Mutex<Vec<u32>>>);

    impl BackingObserver for Numbered {
        fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            self.1.lock().unwrap().push(self.0);
            Ok(())
        }

        fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {
            self.1.lock().unwrap().push(10 + self.0);
        }
    }

    let (mut region, calls) = (region(subject), Arc::default());
    for number in 0..3 {
        region.on_backing_change(Numbered(number, Arc::clone(&calls)));
    }
    region.unmap(Bytes(0), subject.granules(1), idle()).unwrap();
    assert_eq!(*calls.lock().unwrap(), [0, 1, 2, 10, 11, 12]);
}
