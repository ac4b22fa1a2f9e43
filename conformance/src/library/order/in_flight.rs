//! Rule 7 (wait before memory is taken away), with work that is still running: which calls wait for it, and which do not.

use crate::case::cases;
use crate::library::flights::{finish, goes_on, start, start_longer};
use crate::library::tools::streams_idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, GrowthKind, PhysicalMemory, Placement, Region, WaitFor};
use gpu_vmm_testkit::TestKit;

cases! { "order":
    /// Unmapping that waits for all devices returns after the work on the memory has ended, with the work's result complete.
    unmap_waits_for_work,
    /// Unmapping that waits for a stream returns after the work on that stream has ended.
    unmap_waits_for_a_stream,
    /// Unmapping that waits for a stream does not wait for another stream's work on other memory.
    unmap_waits_for_no_other_stream,
    /// Unmapping with `WaitFor::nothing()` does not wait for work on other memory.
    a_promise_waits_for_no_work,
    /// Growth within the reservation neither waits for work on the mapped part nor disturbs it.
    growth_goes_on_beside_work,
    /// Growth by a reservation behind the first neither waits for work on the mapped part nor disturbs it.
    extension_goes_on_beside_work,
    /// Growth to another address waits for work at the old address, and the work's result is at the new address.
    moving_waits_for_work,
    /// Shrinking that waits for all devices returns after the work on the removed part has ended.
    shrinking_waits_for_work,
    /// Reducing a device's access to reading waits for the work of that device.
    taking_access_waits_for_work,
    /// Reducing a peer's access to reading waits for the peer's work, not for the memory's owner.
    reducing_peer_access_waits_for_peer,
    /// Setting the access that a device already has neither waits for its work nor disturbs it.
    the_same_access_goes_on_beside_work,
    /// Giving a second device access does not disturb the work of the first.
    a_peers_access_does_not_disturb_work,
    /// Dropping a region waits for work on its memory, and memory that is still held has the work's result.
    dropping_waits_for_work,
    /// Closing a region that waits for a stream returns after the work on that stream has ended.
    closing_waits_for_a_stream,
    /// Reading, writing and filling one part of a region does not wait for work on another part.
    copies_go_on_beside_work,
    /// Other regions can be built, filled and closed with `WaitFor::nothing()` while work runs, without waiting for it or
    /// disturbing it.
    other_regions_come_and_go_beside_work,
    /// Work on several streams can be waited for stream by stream, in any order.
    streams_are_waited_for_one_by_one,
}

/// The seed of the pattern before the work begins.
const BEFORE: u64 = 1;
/// The seed of the pattern that the work writes.
pub(super) const AFTER: u64 = 1 << 40;

/// A region with `units` units mapped, and room for more.
fn filled<B: TestKit>(subject: &Subject<B>, units: u64) -> Region<B> {
    let mut region = subject.region(units + 6).build().unwrap();
    region.grow_to(subject.units(units)).unwrap();
    region.write_pattern(subject.device, Bytes(0), region.end(), BEFORE).unwrap();
    region
}

/// A region that maps memory which can be checked after the region is gone.
pub(super) fn mapped<B: TestKit>(subject: &Subject<B>, memory: &PhysicalMemory<B>) -> Region<B> {
    let mut region = subject.region(2).build().unwrap();
    region.map(Bytes(0), memory).unwrap();
    region.set_access(Bytes(0), memory.size(), subject.device, RW).unwrap();
    region
}

/// Checks that the work's result is complete.
pub(super) fn check<B: TestKit>(subject: &Subject<B>, region: &Region<B>, offset: Bytes) {
    let wrong = region.count_wrong(subject.device, offset, subject.unit(), AFTER).unwrap();
    assert_eq!(wrong, 0, "words that the work should have written at {offset}");
}

fn unmap_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.memory(1);
    let mut region = mapped(subject, &memory);
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.unmap(Bytes(0), subject.unit(), WaitFor::all_devices()).unwrap();
    assert!(flight.is_done().unwrap(), "unmapped before the work had ended");
    check(subject, &mapped(subject, &memory), Bytes(0));
}

fn unmap_waits_for_a_stream<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.memory(1);
    let mut region = mapped(subject, &memory);
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.unmap(Bytes(0), subject.unit(), streams_idle(&[flight.stream()])).unwrap();
    assert!(flight.is_done().unwrap(), "unmapped before the work had ended");
    check(subject, &mapped(subject, &memory), Bytes(0));
}

fn unmap_waits_for_no_other_stream<B: TestKit>(subject: &Subject<B>) {
    goes_on(subject, |times| {
        let (mut region, other) = (filled(subject, 1), filled(subject, 1));
        let long = start_longer(subject, &other, Bytes(0), AFTER, 2 * times);
        let short = start(subject, &region, Bytes(0), AFTER);
        region.unmap(Bytes(0), subject.unit(), streams_idle(&[short.stream()])).unwrap();
        let went_on = !long.is_done().unwrap();
        assert!(short.is_done().unwrap(), "unmapped before the work had ended");
        finish(subject, &*long);
        check(subject, &other, Bytes(0));
        went_on
    });
}

#[allow(unsafe_code)]
fn a_promise_waits_for_no_work<B: TestKit>(subject: &Subject<B>) {
    goes_on(subject, |times| {
        let mut region = filled(subject, 1);
        region.grow_to(subject.units(2)).unwrap();
        let flight = start_longer(subject, &region, Bytes(0), AFTER, times);
        // SAFETY: the work is on the first unit; this is the second.
        region.unmap(subject.unit(), subject.unit(), unsafe { WaitFor::nothing() }).unwrap();
        let went_on = !flight.is_done().unwrap();
        finish(subject, &*flight);
        check(subject, &region, Bytes(0));
        went_on
    });
}

/// Grows step by step while work runs on the first unit. Returns whether the work was still running afterwards.
fn grow_beside_work<B: TestKit>(
    subject: &Subject<B>,
    mut region: Region<B>,
    how: GrowthKind,
    times: u32,
) -> bool {
    let (address, from) = (region.address(), region.end());
    let flight = start_longer(subject, &region, Bytes(0), AFTER, times);
    // Steps of several sizes: if sizes differ, HIP 7 sets the access of all mapped memory again.
    for units in [1, 3, 4] {
        let growth = region.grow_to(from + subject.units(units)).unwrap();
        assert_eq!((growth.how, growth.address), (how, address));
    }
    let went_on = !flight.is_done().unwrap();
    region.write_pattern(subject.device, from, subject.units(4), BEFORE).unwrap();
    finish(subject, &*flight);
    check(subject, &region, Bytes(0));
    assert_eq!(region.count_wrong(subject.device, from, subject.units(4), BEFORE).unwrap(), 0);
    went_on
}

fn growth_goes_on_beside_work<B: TestKit>(subject: &Subject<B>) {
    goes_on(subject, |times| grow_beside_work(subject, filled(subject, 2), GrowthKind::Within, times));
}

fn extension_goes_on_beside_work<B: TestKit>(subject: &Subject<B>) {
    let base = Placement::Exact(subject.hole(64));
    goes_on(subject, |times| {
        let mut region = subject.region(2).at(base).extend_by(subject.unit()).build().unwrap();
        region.grow_to(subject.units(2)).unwrap();
        grow_beside_work(subject, region, GrowthKind::Extended, times)
    });
}

fn moving_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(64);
    let mut region = subject.region(1).at(Placement::Exact(base)).build().unwrap();
    let behind = base.checked_add(subject.unit()).unwrap();
    let _in_the_way = subject.region(1).at(Placement::Exact(behind)).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let flight = start(subject, &region, Bytes(0), AFTER);
    let growth = region.grow_or_move(subject.units(2), WaitFor::all_devices()).unwrap();
    assert!(flight.is_done().unwrap(), "the old addresses were unmapped before the work had ended");
    assert_eq!(growth.how, GrowthKind::Remapped);
    check(subject, &region, Bytes(0));
}

fn shrinking_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    region.grow_to(subject.units(2)).unwrap();
    let flight = start(subject, &region, subject.unit(), AFTER);
    let _ = region.shrink_to(subject.unit(), WaitFor::all_devices()).unwrap();
    assert!(flight.is_done().unwrap(), "unmapped before the work had ended");
    assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.unit(), BEFORE).unwrap(), 0);
}

fn taking_access_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
    assert!(flight.is_done().unwrap(), "the write access was removed before the work had ended");
    check(subject, &region, Bytes(0));
}

fn reducing_peer_access_waits_for_peer<B: TestKit>(subject: &Subject<B>) {
    let (peer, owner) = subject.two_devices();
    let mut region = subject.region(2).on(owner).access(peer, RW).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.set_access(Bytes(0), subject.unit(), peer, Access::Read).unwrap();
    assert!(flight.is_done().unwrap(), "the write access was removed before the peer's work had ended");
    check(subject, &region, Bytes(0));
}

fn the_same_access_goes_on_beside_work<B: TestKit>(subject: &Subject<B>) {
    goes_on(subject, |times| {
        let mut region = filled(subject, 1);
        let flight = start_longer(subject, &region, Bytes(0), AFTER, times);
        region.set_access(Bytes(0), subject.unit(), subject.device, RW).unwrap();
        let went_on = !flight.is_done().unwrap();
        finish(subject, &*flight);
        check(subject, &region, Bytes(0));
        went_on
    });
}

fn a_peers_access_does_not_disturb_work<B: TestKit>(subject: &Subject<B>) {
    let (_, peer) = subject.two_devices();
    let mut region = filled(subject, 1);
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.set_access(Bytes(0), subject.unit(), peer, RW).unwrap();
    finish(subject, &*flight);
    check(subject, &region, Bytes(0));
    assert_eq!(region.count_wrong(peer, Bytes(0), subject.unit(), AFTER).unwrap(), 0);
}

fn dropping_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.memory(1);
    let region = mapped(subject, &memory);
    let flight = start(subject, &region, Bytes(0), AFTER);
    drop(region);
    assert!(flight.is_done().unwrap(), "dropped before the work had ended");
    check(subject, &mapped(subject, &memory), Bytes(0));
}

fn closing_waits_for_a_stream<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.memory(1);
    let region = mapped(subject, &memory);
    let flight = start(subject, &region, Bytes(0), AFTER);
    region.close(streams_idle(&[flight.stream()])).unwrap();
    assert!(flight.is_done().unwrap(), "closed before the work had ended");
    check(subject, &mapped(subject, &memory), Bytes(0));
}

fn copies_go_on_beside_work<B: TestKit>(subject: &Subject<B>) {
    goes_on(subject, |times| {
        let mut region = filled(subject, 2);
        let flight = start_longer(subject, &region, Bytes(0), AFTER, times);
        let mut bytes = [0; 4096];
        region.write(subject.unit(), &[0x5a; 4096]).unwrap();
        region.read(subject.unit(), &mut bytes).unwrap();
        region.fill(subject.unit(), Bytes(4096), 0xa5).unwrap();
        let went_on = !flight.is_done().unwrap();
        assert_eq!(bytes, [0x5a; 4096]);
        finish(subject, &*flight);
        check(subject, &region, Bytes(0));
        went_on
    });
}

#[allow(unsafe_code)]
fn other_regions_come_and_go_beside_work<B: TestKit>(subject: &Subject<B>) {
    goes_on(subject, |times| {
        let region = filled(subject, 1);
        let flight = start_longer(subject, &region, Bytes(0), AFTER, times);
        for _ in 0..3 {
            let mut other = filled(subject, 1);
            other.grow_to(subject.units(3)).unwrap();
            // SAFETY: all calls on this region have returned, and with them all work on it has ended.
            other.close(unsafe { WaitFor::nothing() }).unwrap();
        }
        let went_on = !flight.is_done().unwrap();
        finish(subject, &*flight);
        check(subject, &region, Bytes(0));
        went_on
    });
}

fn streams_are_waited_for_one_by_one<B: TestKit>(subject: &Subject<B>) {
    let regions = [3, 1, 2].map(|times| (times, filled(subject, 1)));
    let mut flights: Vec<_> = regions
        .iter()
        .map(|(times, region)| (times, region, start_longer(subject, region, Bytes(0), AFTER, *times)))
        .collect();
    flights.sort_by_key(|(times, ..)| *times);
    for (_, region, flight) in &flights {
        finish(subject, &**flight);
        check(subject, region, Bytes(0));
    }
}
