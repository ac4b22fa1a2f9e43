//! Addresses that another process can reserve too, with this driver or another vendor's.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::peer::Peer;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Address, AddressRange, Bytes, Detail, GrowthKind, Placement, Region, RegionBuilder};
use gpu_vmm_testkit::TestKit;

cases! { "reserve":
    /// A restorable region is in the address window in which both vendors accept hints and other allocations are not placed,
    /// and its device can use its memory.
    restorable_in_the_window,
    /// A restorable region is aligned, mapped and grown in units that every driver supports, whatever this driver's units
    /// are.
    restorable_in_portable_units,
    /// Another process can reserve and use the addresses of a restorable region while this process has them.
    restorable_in_another_process with has_the_same_addresses,
    /// Two processes choose different places, so that a third process can restore the regions of both.
    restorable_by_chance with chooses_places,
    /// A restorable region is extended behind its end like any region, and stays portable.
    restorable_and_extended,
    /// A restorable region that has to move is restorable at its new address too.
    restorable_and_moved,
    /// A restorable region can be guarded, and another process can reserve its address.
    restorable_and_guarded with has_the_same_addresses,
    /// A restorable region has the requested alignment, up to 1 TiB.
    restorable_and_aligned,
    /// A size or a guard beyond the window is refused before a driver call, with the size of the window.
    restorable_beyond_the_window,
    /// If all of many places are taken, the error has the window and the address that the driver offered instead.
    @isolated restorable_where_all_is_taken,
    /// A region at an exact address can be portable too.
    portable_at_an_exact_address,
}

/// The window in which restorable regions are placed.
const WINDOW: AddressRange = AddressRange { base: Address(0x3800_0000_0000), size: Bytes::gib(24 << 10) };

/// The units in which every driver can map and reserve.
const UNITS: [Bytes; 2] = [Bytes::mib(2), Bytes::mib(32)];

fn restorable<B: TestKit>(subject: &Subject<B>, size: Bytes) -> RegionBuilder<'_, B> {
    Region::builder(&subject.backend).on(subject.device).reserve(size).at(Placement::Restorable)
}

fn is_in_window(range: AddressRange) -> bool {
    WINDOW.base <= range.base && range.end() <= WINDOW.end()
}

/// Grows a region to its first granule, and uses that with the device.
fn used<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>) {
    let granule = region.granularity().bytes();
    let grown = region.grow_to(Bytes(1)).unwrap();
    assert_eq!((grown.end, region.mapped()), (granule, granule));
    subject.write(region, Bytes(0), granule, 1);
    subject.check(region, Bytes(0), granule, 1);
}

fn restorable_in_the_window<B: TestKit>(subject: &Subject<B>) {
    let mut regions: Vec<Region<B>> = [Bytes(1), Bytes::gib(1), Bytes::gib(1024)]
        .map(|size| restorable(subject, size).build().unwrap())
        .into();
    for region in &mut regions {
        assert!(is_in_window(region.range()), "{}", region.range());
        used(subject, region);
    }
}

fn assert_portable<B: TestKit>(subject: &Subject<B>, region: &Region<B>) {
    let [memory, addresses] = UNITS;
    let granularity = region.granularity().bytes();
    assert!(region.is_portable());
    assert_eq!(granularity, memory.max(subject.granularity()));
    for range in region.reservations() {
        assert!(range.base.is_aligned_to(granularity), "{range}");
        assert!(range.size.0.is_multiple_of(addresses.max(subject.unit()).0), "{range}");
    }
    for mapping in region.mappings() {
        assert!(mapping.offset.0.is_multiple_of(memory.0) && mapping.length.0.is_multiple_of(memory.0));
    }
}

fn restorable_in_portable_units<B: TestKit>(subject: &Subject<B>) {
    let [memory, addresses] = UNITS;
    let mut region = restorable(subject, addresses + Bytes(1)).build().unwrap();
    assert!(region.address().is_aligned_to(addresses));
    used(subject, &mut region);
    region.grow_to(memory + memory + Bytes(1)).unwrap();
    assert_portable(subject, &region);
    region
        .map(region.end(), &subject.piece(region.granularity().bytes().0 / subject.granularity().0))
        .unwrap();
    assert_portable(subject, &region);
    // A size that another driver could not map is refused here too.
    let finer = subject.granularity();
    if finer < memory {
        refused!(region.map(region.end(), &subject.piece(1)), Detail::Unaligned { .. }, region.granularity());
        refused!(
            region.unmap(region.end() - finer, finer, idle()),
            Detail::Unaligned { .. },
            region.granularity()
        );
    }
}

fn restorable_in_another_process<B: TestKit>(subject: &Subject<B>) {
    let regions: Vec<Region<B>> =
        [1, 3].map(|count| restorable(subject, Bytes(UNITS[1].0 * count)).build().unwrap()).into();
    let places: Vec<(u64, u64)> =
        regions.iter().map(|region| (region.address().0, region.reserved().0)).collect();
    let mut child = subject.child();
    child.send(&places);
    child.receive::<()>();
    child.finish();
}

fn has_the_same_addresses<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let places: Vec<(u64, u64)> = peer.receive();
    let at = |(address, size): &(u64, u64)| {
        let at = Placement::Exact(Address(*address));
        restorable(subject, Bytes(*size)).at(at).portable().build().unwrap()
    };
    for mut region in places.iter().map(at).collect::<Vec<_>>() {
        used(subject, &mut region);
        assert_portable(subject, &region);
    }
    peer.send(());
}

/// A few restorable regions, and their addresses. A later region may have the address of one that has ended (HIP 6).
fn chosen<B: TestKit>(subject: &Subject<B>) -> (Vec<Region<B>>, Vec<u64>) {
    let few: Vec<Region<B>> = (0..6).map(|_| restorable(subject, Bytes(1)).build().unwrap()).collect();
    let places = few.iter().map(|region| region.address().0).collect();
    (few, places)
}

fn restorable_by_chance<B: TestKit>(subject: &Subject<B>) {
    let mut child = subject.child();
    let ((_live, mut places), theirs): (_, Vec<u64>) = (chosen(subject), child.receive());
    child.finish();
    places.extend(chosen(subject).1);
    places.extend(theirs);
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    // One collision among almost a million places is possible.
    assert!(places.len() + 1 >= count, "{places:x?}");
}

fn chooses_places<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    peer.send(chosen(subject).1);
}

fn restorable_and_extended<B: TestKit>(subject: &Subject<B>) {
    let mut region = restorable(subject, Bytes(1)).build().unwrap();
    used(subject, &mut region);
    let (address, reserved) = (region.address(), region.reserved());
    let growth = region.grow_to(reserved + Bytes(1)).unwrap();
    assert_eq!((growth.how, growth.address), (GrowthKind::Extended, address));
    assert_eq!(growth.end, reserved + region.granularity().bytes());
    assert_portable(subject, &region);
    subject.check(&region, Bytes(0), region.granularity().bytes(), 1);
}

fn restorable_and_moved<B: TestKit>(subject: &Subject<B>) {
    let mut region = restorable(subject, Bytes(1)).build().unwrap();
    used(subject, &mut region);
    let behind = Placement::Exact(region.range().end());
    let _wall = subject.region(1).at(behind).build().unwrap();
    let growth = region.grow_or_move(region.reserved() + Bytes(1), idle()).unwrap();
    assert_eq!(growth.how, GrowthKind::Remapped);
    assert!(is_in_window(region.range()), "{}", region.range());
    assert_portable(subject, &region);
    subject.check(&region, Bytes(0), region.granularity().bytes(), 1);
}

fn restorable_and_guarded<B: TestKit>(subject: &Subject<B>) {
    let mut region = restorable(subject, Bytes(1)).guarded().build().unwrap();
    assert!(region.guard().0.is_multiple_of(UNITS[1].0) && region.guard() >= subject.unit());
    let range = region.range();
    let all = AddressRange {
        base: Address(range.base.0 - region.guard().0),
        size: range.size + region.guard() + region.guard(),
    };
    assert!(is_in_window(all), "{all}");
    used(subject, &mut region);
    assert_portable(subject, &region);
    let mut child = subject.child();
    child.send([(range.base.0, range.size.0)]);
    child.receive::<()>();
    child.finish();
}

fn restorable_and_aligned<B: TestKit>(subject: &Subject<B>) {
    // For 64 TiB, the largest alignment, an H200 reports that it is out of memory.
    for alignment in [Bytes(1), Bytes::gib(1), Bytes::gib(1 << 10)] {
        let mut region = restorable(subject, Bytes(1)).alignment(alignment).build().unwrap();
        assert!(region.address().is_aligned_to(alignment) && is_in_window(region.range()));
        used(subject, &mut region);
    }
}

fn restorable_beyond_the_window<B: TestKit>(subject: &Subject<B>) {
    let size = WINDOW.size + Bytes(1);
    refused!(restorable(subject, size).build(), Detail::ExceedsAddressSpace { .. }, WINDOW.size);
    let guard = Bytes::gib(12 << 10);
    let guarded = restorable(subject, Bytes(1)).guard(guard).build();
    refused!(guarded, Detail::ExceedsAddressSpace { .. }, WINDOW.size);
}

fn restorable_where_all_is_taken<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(WINDOW.base);
    let Ok(taken) = restorable(subject, WINDOW.size).at(at).build() else {
        skip("the driver cannot reserve the whole window in one piece")
    };
    for builder in [restorable(subject, Bytes(1)), restorable(subject, Bytes(1)).guarded()] {
        let error = builder.build().unwrap_err();
        let Detail::NotRestorable { tries, window, wanted, offered } = error.detail() else {
            panic!("{error}")
        };
        assert_eq!((*tries, *window), (16, WINDOW));
        assert!(WINDOW.contains(*wanted) && !WINDOW.contains(*offered), "{wanted} and {offered}");
    }
    drop(taken);
    used(subject, &mut restorable(subject, Bytes(1)).build().unwrap());
}

fn portable_at_an_exact_address<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(Bytes::gib(1).0 / subject.unit().0);
    let at = Placement::Exact(base);
    let mut region = subject.region(1).at(at).portable().build().unwrap();
    assert_eq!(region.address(), base);
    used(subject, &mut region);
    assert_portable(subject, &region);
}
