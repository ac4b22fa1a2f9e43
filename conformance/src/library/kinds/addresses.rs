//! Memory with a larger granularity than its region: it is always mapped at a multiple of its own granularity.

use super::{SEED, mapped};
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{
    BankedRegion, Bytes, Detail, Error, Granularity, GrowthKind, Location, Operation, PhysicalMemory,
    Placement, Properties, Region,
};
use gpu_vmm_testkit::TestKit;

cases! { "kinds":
    /// Memory with a larger granularity than its region is mapped only at multiples of that larger granularity.
    larger_granularity,
    /// When a region moves, memory with a larger granularity stays at aligned addresses, with and without a guard, move after
    /// move.
    a_move_keeps_the_granularity,
    /// A move is refused if the region holds memory of a larger granularity at an offset that no new address could align.
    a_move_that_no_address_suits,
    /// A bank is selected only at addresses that are multiples of its memory's granularity.
    sets_of_a_larger_granularity,
}

/// All memory types that a backend could support.
fn kinds<B: TestKit>(subject: &Subject<B>) -> [Properties; 6] {
    let plain = subject.properties();
    [
        plain,
        plain.shareable(),
        plain.compressible(),
        plain.remote_dma(),
        plain.located(Location::Host),
        plain.located(Location::HostNode(0)),
    ]
}

/// The memory types whose granularity is larger than the granularity of all devices. Skips the case if there is none.
fn larger<B: TestKit>(subject: &Subject<B>) -> Vec<(Properties, Granularity)> {
    let own = |properties| {
        Some((properties, subject.backend.granularity_of(Operation::QueryGranularity, &properties).ok()?))
    };
    let least = subject.backend.granularity();
    let found: Vec<_> = kinds(subject).into_iter().filter_map(own).filter(|(_, own)| *own > least).collect();
    if found.is_empty() {
        skip("all memory types here have the same granularity");
    }
    found
}

fn larger_granularity<B: TestKit>(subject: &Subject<B>) {
    for (properties, own) in larger(subject) {
        let (memory, region) = mapped(subject, properties);
        assert_eq!((memory.granularity(), region.granularity()), (own, own));
        // A region with a smaller granularity accepts the memory at an aligned address.
        let least = subject.granules(1);
        let mut small = subject.space(8 * own.bytes().0 / least.0).build().unwrap();
        let base = small.address().0;
        let offset = Bytes(base.next_multiple_of(own.bytes().0) - base);
        let error = small.map(offset + least, &memory).unwrap_err();
        assert_unaligned(&error, own);
        subject.open(&mut small, offset, &memory);
        subject.write(&mut small, offset, memory.size(), SEED);
        subject.check(&small, offset, memory.size(), SEED);
    }
}

fn a_move_keeps_the_granularity<B: TestKit>(subject: &Subject<B>) {
    for (properties, own) in larger(subject) {
        let memory = PhysicalMemory::create(&subject.backend, own.bytes(), properties).unwrap();
        for guard in [Bytes::ZERO, Bytes(1)] {
            let size = own.bytes().max(subject.unit());
            let builder = || Region::builder(&subject.backend).on(subject.device).reserve(size).guard(guard);
            // A region keeps an alignment that the caller requested, so this region is built without one, at an address that
            // happens to be aligned.
            let aligned = builder().alignment(own.bytes()).build().unwrap().address();
            let mut region = builder().at(Placement::Exact(aligned)).build().unwrap();
            subject.open(&mut region, Bytes(0), &memory);
            subject.write(&mut region, Bytes(0), memory.size(), SEED);
            // An unaligned move would reach an aligned address by chance, hence several rounds.
            for _ in 0..4 {
                let behind = Placement::Exact(region.range().end());
                let wall = guard.is_zero().then(|| subject.region(1).at(behind).build());
                // If another case holds those addresses now, they may be free again when the region grows.
                let is_walled = wall.as_ref().is_none_or(Result::is_ok);
                let target = region.reserved() + subject.granules(1);
                let growth = region.grow_or_move(target, idle()).unwrap();
                assert!(growth.how == GrowthKind::Remapped || !is_walled, "{growth:?}");
                assert!(own.divides(Bytes(growth.address.0)), "{} at {}", own, growth.address);
                assert_eq!(region.mapping_at(Bytes(0)).unwrap().memory.granularity(), own);
                subject.check(&region, Bytes(0), memory.size(), SEED);
                let _ = region.shrink_to(memory.size(), idle()).unwrap();
            }
        }
    }
}

fn a_move_that_no_address_suits<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.unit();
    for (properties, own) in larger(subject) {
        if own.bytes() <= unit {
            skip("all addresses are reserved in units of the largest granularity");
        }
        let memory = PhysicalMemory::create(&subject.backend, own.bytes(), properties).unwrap();
        // One unit before an aligned address.
        let size = own.bytes() + unit;
        let place = subject.hole(4 * size.0 / unit.0).checked_add(own.bytes() - unit).unwrap();
        let builder = Region::builder(&subject.backend).on(subject.device).reserve(size);
        let mut region = builder.at(Placement::Exact(place)).build().unwrap();
        subject.open(&mut region, unit, &memory);
        subject.write(&mut region, unit, memory.size(), SEED);
        let _wall = subject.region(1).at(Placement::Exact(region.range().end())).build().unwrap();
        let (before, free) = (region.range(), subject.free());
        let error = region.grow_or_move(size + unit, idle()).unwrap_err();
        assert_unaligned(&error, own);
        assert_eq!((region.range(), subject.free()), (before, free), "the refused move changed the region");
        subject.check(&region, unit, memory.size(), SEED);
    }
}

fn sets_of_a_larger_granularity<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.unit();
    for (properties, own) in larger(subject) {
        if own.bytes() <= unit {
            skip("all addresses are reserved in units of the largest granularity");
        }
        let piece = || PhysicalMemory::create(&subject.backend, own.bytes(), properties).unwrap();
        let size = own.bytes() + own.bytes();
        let hole = subject.hole(4 * size.0 / unit.0);
        let slots = |place| {
            let builder = Region::builder(&subject.backend).on(subject.device).reserve(size);
            BankedRegion::build(builder.at(Placement::Exact(place))).unwrap()
        };
        let mut odd = slots(hole.checked_add(unit).unwrap());
        assert_unaligned(&odd.add_bank_of(vec![piece()]).unwrap_err(), own);
        drop(odd);
        let mut even = slots(hole);
        let set = even.add_bank_of(vec![piece(), piece()]).unwrap();
        even.select(set, idle()).unwrap();
        even.write_pattern(subject.device, Bytes(0), size, SEED).unwrap();
        subject.check(even.region(), Bytes(0), size, SEED);
    }
}

/// Fails unless the error says that the address is not a multiple of the memory's own granularity.
#[track_caller]
fn assert_unaligned(error: &Error, own: Granularity) {
    assert!(
        matches!(error.detail(), Detail::Unaligned { what: "address", granularity, .. } if *granularity == own),
        "{error}"
    );
}
