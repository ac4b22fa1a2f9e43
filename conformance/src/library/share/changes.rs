//! How an importer follows a region: at one address, with memory of several devices, through a full socket.

use super::channels::{SOON, channel_from, channel_to, movable_region, move_away, receive, share};
use crate::case::cases;
use crate::fork_server::Child;
use crate::leaks;
use crate::library::sharing::{or_cannot_share, shareable, shareable_on};
use crate::library::tools::{has, idle, mapped, write};
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, GrowthKind, Placement, Properties};
use gpu_vmm_share::PeerError;
use gpu_vmm_share::{Allowed, Channel, Event, ImportOptions};
use gpu_vmm_testkit::TestKit;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use std::os::fd::{AsRawFd, OwnedFd};

cases! { "share":
    /// An importer that must use the exporter's address refuses growth that does not fit there, stays where it is, and
    /// applies the growth when it fits.
    stays_at_one_address with applies_at_one_address,
    /// An importer at the exporter's address follows a region that has moved and is otherwise unchanged.
    moved_and_as_it_was with follows_the_address,
    /// Each piece of a region belongs to the same device in the importer.
    pieces_of_two_devices with imports_from_two_devices,
    /// If a change exceeds the room in the socket, the exporter continues when the importer reads.
    more_than_the_socket_holds with reads_when_it_is_full,
}

const SEED: u64 = 1700;

fn stays_at_one_address<B: TestKit>(subject: &Subject<B>) {
    let memory = Properties::on(subject.device).shareable();
    let place = Placement::Exact(subject.hole(4));
    let mut region = subject.region(1).memory(memory).at(place).build().unwrap();
    or_cannot_share(subject, region.grow_to(subject.unit()));
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    child.receive::<()>();
    or_cannot_share(subject, region.grow_to(subject.units(2)));
    write(subject, &mut region, SEED);
    exporter.publish(&region).unwrap();
    let refused = exporter.wait_applied(SOON).unwrap_err();
    assert!(matches!(refused.extension(), Some(PeerError::Refused { .. })), "{refused}");
    child.send(());
    exporter.wait_applied(SOON).unwrap();
    assert!(child.receive::<bool>(), "the importer reads other bytes");
    drop(exporter);
    child.finish();
}

fn applies_at_one_address<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new().same_address(), channel_from(peer));
    let place = imported.region().address();
    let wall = subject.region(1).at(Placement::Exact(place + subject.unit())).build().unwrap();
    peer.send(());
    let event = imported.next(SOON).unwrap();
    assert!(matches!(event, Some(Event::Changed(_))), "{event:?}");
    let answer = imported.apply_or_move(idle());
    assert!(matches!(answer.as_ref().map_err(Error::detail), Err(Detail::AddressTaken { .. })), "{answer:?}");
    leaks::counts_import();
    assert_eq!((imported.region().address(), imported.region().end()), (place, subject.unit()));
    drop(wall);
    peer.receive::<()>();
    assert_eq!(imported.apply_or_move(idle()).unwrap(), GrowthKind::Extended);
    leaks::counts_import();
    assert_eq!((imported.region().address(), imported.region().end()), (place, subject.units(2)));
    peer.send(has(subject, imported.region(), SEED));
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn moved_and_as_it_was<B: TestKit>(subject: &Subject<B>) {
    let mut region = movable_region(subject);
    write(subject, &mut region, SEED);
    let end = region.end();
    let mut child = subject.child();
    let mut exporter = share(subject, channel_to(&mut child), &region);
    move_away(subject, &mut region);
    assert_eq!(region.shrink_to(end, idle()).unwrap().end, end);
    assert!(exporter.publish(&region).unwrap(), "the new address is not a change");
    let refused = exporter.wait_applied(SOON).unwrap_err();
    assert!(matches!(refused.extension(), Some(PeerError::Refused { .. })), "{refused}");
    exporter.wait_applied(SOON).unwrap();
    assert_eq!(child.receive::<(u64, bool)>(), (region.address().0, true));
    drop(exporter);
    child.finish();
}

fn follows_the_address<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new().same_address(), channel_from(peer));
    let (end, event) = (imported.region().end(), imported.next(SOON).unwrap());
    assert!(matches!(event, Some(Event::Changed(change)) if change.end == end), "{event:?}");
    // Without permission to move, the region stays, and the exporter receives the reason.
    let address = imported.region().address();
    let error = imported.apply(idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::Mismatch { what: "address", .. }), "{error}");
    assert_eq!(imported.region().address(), address);
    assert_eq!(imported.apply_or_move(idle()).unwrap(), GrowthKind::Remapped);
    peer.send((imported.region().address().0, has(subject, imported.region(), SEED)));
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

fn pieces_of_two_devices<B: TestKit>(subject: &Subject<B>) {
    let (one, other) = subject.two_devices();
    let owners = [one, other, one];
    let memory = owners.map(|owner| shareable_on(subject, owner, 1));
    let mut region = mapped(subject, &memory.each_ref());
    for (owner, at) in owners.into_iter().zip(0..) {
        region.write_pattern(owner, subject.units(at), subject.unit(), SEED + at).unwrap();
    }
    let mut child = subject.child();
    let exporter = share(subject, channel_to(&mut child), &region);
    child.send(owners.map(|owner| owner.0));
    child.receive::<()>();
    drop(exporter);
    child.finish();
}

fn imports_from_two_devices<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    let owners = peer.receive::<[u32; 3]>().map(DeviceId);
    let found: Vec<DeviceId> = imported.region().mappings().map(|one| one.memory.device()).collect();
    assert_eq!(found, owners);
    for (owner, at) in owners.into_iter().zip(0..) {
        let place = subject.units(at);
        assert_eq!(imported.region().count_wrong(owner, place, subject.unit(), SEED + at).unwrap(), 0);
    }
    peer.send(());
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

/// The number of changes, of several messages each.
const CHANGES: u64 = 16;

/// The socket's buffer size, less than the changes need even after the kernel raises it to its minimum.
const ROOM: usize = 4096;

fn more_than_the_socket_holds<B: TestKit>(subject: &Subject<B>) {
    let (memory, unit) = (shareable(subject, 1), subject.unit());
    let mut region = subject.region(2).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    let mut child = subject.child();
    let (channel, socket) = narrow_channel_to(&mut child);
    let mut exporter = share(subject, channel, &region);
    std::thread::scope(|scope| {
        let peer = &child.peer;
        scope.spawn(move || {
            wait_until_full(&socket);
            peer.send(());
        });
        for change in 0..CHANGES {
            if change % 2 == 0 {
                subject.open(&mut region, unit, &memory);
            } else {
                region.unmap(unit, unit, idle()).unwrap();
            }
            assert!(exporter.publish(&region).unwrap());
        }
    });
    exporter.wait_applied(SOON).unwrap();
    drop(exporter);
    child.finish();
}

fn reads_when_it_is_full<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut imported = receive(subject, ImportOptions::new(), channel_from(peer));
    peer.receive::<()>();
    for revision in 1..=CHANGES {
        let event = imported.next(SOON).unwrap();
        assert!(matches!(event, Some(Event::Changed(change)) if change.revision == revision), "{event:?}");
    }
    imported.apply_or_move(idle()).unwrap();
    assert_eq!(imported.region().end(), subject.unit());
    assert_eq!(imported.next(SOON).unwrap(), Some(Event::Gone));
}

/// A channel to the second process whose socket has a small buffer, and that socket.
fn narrow_channel_to(child: &mut Child) -> (Channel, OwnedFd) {
    let (ours, theirs) = Channel::pair().unwrap();
    child.send_fd(theirs.into_socket());
    let socket = ours.into_socket();
    set_socket_send_buffer_size(&socket, ROOM).unwrap();
    let same = socket.try_clone().unwrap();
    (Channel::from_socket(socket, Allowed::same_user()).unwrap(), same)
}

/// Waits until a socket has no room for another message, as Linux counts it. On other systems this ends too, although the
/// socket may not be full.
#[allow(unsafe_code)] // rustix does not have this call
fn wait_until_full(socket: &OwnedFd) {
    const TRIES: u32 = 1 << 20;
    let room = socket_send_buffer_size(socket).unwrap();
    for _ in 0..TRIES {
        let mut queued: libc::c_int = 0;
        // SAFETY: the socket is open, and the kernel writes one number.
        let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
        if answer != 0 || usize::try_from(queued).is_ok_and(|queued| queued >= room) {
            return;
        }
        std::thread::yield_now();
    }
}
