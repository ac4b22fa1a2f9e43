//! Rule 8: memory in two processes at once.

use crate::case::cases;
use crate::fork_server::Child;
use crate::library::sharing::{give, shareable, shareable_on, take};
use crate::library::tools::{has, mapped, write};
use crate::peer::Peer;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId};
use gpu_vmm_testkit::TestKit;

cases! { "share":
    /// Bytes that a device has written in one process are read by a device in another process that has imported the memory.
    same_bytes_in_both with reads_and_tells,
    /// Both processes write in turn, and each reads what the other wrote.
    both_write_in_turn with writes_in_turn,
    /// When the descriptors are closed and the exporter's handle is dropped, the importer still has the memory.
    only_the_importer_holds_it with keeps_alone,
    /// When the exporter exits, the importer still has the memory.
    the_exporter_ends with exports_and_ends,
    /// When the exporter is killed with SIGKILL while it has the memory mapped, the importer still has the memory.
    the_exporter_is_killed with exports_and_waits,
    /// When the importer is killed with SIGKILL while it has the memory mapped, the exporter's memory is unharmed and nothing
    /// leaks.
    the_importer_is_killed with writes_and_waits,
    /// An importer can pass on the descriptor that it received to a process that the exporter does not know.
    passed_on_to_a_third with passes_on,
    /// A process can import the same memory twice; both imports have its bytes, and either can be dropped first.
    imported_twice_in_another with imports_twice,
    /// A device can be given read-only access to imported memory while the exporter writes.
    imported_to_read with reads_only,
    /// Several pieces of one process's memory become one range in another process, with one pattern across all of them.
    pieces_become_one_range with maps_in_a_row,
    /// Memory of a second device belongs to that device in the importing process too, and the first device can be given
    /// access.
    memory_of_a_second_device with reads_the_second_devices,
    /// Memory is free again in both processes after the last process that holds it has released it.
    freed_after_the_last_release with holds_for_a_while,
}

/// The first seed of a case; each further pattern has another seed.
const SEED: u64 = 100;

fn same_bytes_in_both<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 2);
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    let mut child = subject.child();
    give(&mut child, &memory);
    assert_eq!(
        child.receive::<(bool, bool)>(),
        (true, false),
        "the importer must find this seed's bytes, and not another seed's"
    );
    child.finish();
}

fn reads_and_tells<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let region = mapped(subject, &[&take(subject, peer)]);
    peer.send((has(subject, &region, SEED), has(subject, &region, SEED + 1)));
}

/// The number of writes of each side.
const TURNS: u64 = 3;

fn both_write_in_turn<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let mut region = mapped(subject, &[&memory]);
    let mut child = subject.child();
    give(&mut child, &memory);
    for turn in 0..TURNS {
        write(subject, &mut region, SEED + 2 * turn);
        child.send(());
        assert!(child.receive::<bool>(), "the importer does not see the write of turn {turn}");
        assert!(has(subject, &region, SEED + 2 * turn + 1), "the importer's write is not visible");
    }
    child.finish();
}

fn writes_in_turn<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut region = mapped(subject, &[&take(subject, peer)]);
    for turn in 0..TURNS {
        peer.receive::<()>();
        let seen = has(subject, &region, SEED + 2 * turn);
        write(subject, &mut region, SEED + 2 * turn + 1);
        peer.send(seen);
    }
}

fn only_the_importer_holds_it<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    let mut child = subject.child();
    give(&mut child, &memory);
    child.receive::<()>();
    drop(memory);
    // Memory that is created now must be different memory.
    write(subject, &mut mapped(subject, &[&subject.memory(1)]), SEED + 1);
    child.send(());
    child.finish();
}

fn keeps_alone<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    // Mapped only after no other process has it.
    let memory = take(subject, peer);
    peer.send(());
    peer.receive::<()>();
    let mut region = mapped(subject, &[&memory]);
    assert!(has(subject, &region, SEED), "the bytes are lost");
    write(subject, &mut region, SEED + 2);
    assert!(has(subject, &region, SEED + 2));
}

/// Imports memory, ends or kills its exporter, and checks the memory.
fn outlives_its_exporter<B: TestKit>(subject: &Subject<B>, kill: bool) {
    let mut child = subject.child();
    let memory = take(subject, &mut child);
    if kill {
        child.kill();
        child.finish_by(libc::SIGKILL);
    } else {
        child.finish();
    }
    let mut region = mapped(subject, &[&memory]);
    assert!(has(subject, &region, SEED), "the bytes are lost");
    write(subject, &mut region, SEED + 1);
    assert!(has(subject, &region, SEED + 1));
}

fn the_exporter_ends<B: TestKit>(subject: &Subject<B>) {
    outlives_its_exporter(subject, false);
}

fn exports_and_ends<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let memory = shareable(subject, 1);
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    give(peer, &memory);
}

fn the_exporter_is_killed<B: TestKit>(subject: &Subject<B>) {
    outlives_its_exporter(subject, true);
}

fn exports_and_waits<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let memory = shareable(subject, 1);
    let mut region = mapped(subject, &[&memory]);
    write(subject, &mut region, SEED);
    give(peer, &memory);
    peer.receive::<()>();
}

fn the_importer_is_killed<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let mut region = mapped(subject, &[&memory]);
    let mut child = subject.child();
    give(&mut child, &memory);
    child.receive::<()>();
    child.kill();
    child.finish_by(libc::SIGKILL);
    assert!(has(subject, &region, SEED), "the importer's last write is lost");
    write(subject, &mut region, SEED + 1);
    assert!(has(subject, &region, SEED + 1));
}

fn writes_and_waits<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut region = mapped(subject, &[&take(subject, peer)]);
    write(subject, &mut region, SEED);
    peer.send(());
    peer.receive::<()>();
}

fn passed_on_to_a_third<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let mut region = mapped(subject, &[&memory]);
    let mut child = subject.child();
    child.send(true);
    give(&mut child, &memory);
    child.finish();
    assert!(has(subject, &region, SEED), "the third process's write is not visible");
    write(subject, &mut region, SEED + 1);
}

/// The second process passes the descriptor on; the third process writes.
fn passes_on<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    if peer.receive::<bool>() {
        let (description, fd) = (peer.receive::<(u32, u64)>(), peer.receive_fd());
        let mut third = subject.child();
        third.send(false);
        third.send(description);
        third.send_fd(fd);
        third.finish();
    } else {
        write(subject, &mut mapped(subject, &[&take(subject, peer)]), SEED);
    }
}

fn imported_twice_in_another<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let region = mapped(subject, &[&memory]);
    let mut child = subject.child();
    give(&mut child, &memory);
    give(&mut child, &memory);
    child.finish();
    assert!(has(subject, &region, SEED + 1), "the write through the second import is not visible");
}

fn imports_twice<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (first, second) = (take(subject, peer), take(subject, peer));
    assert!(!first.is_same_as(&second), "both imports are the same handle");
    let (mut one, mut two) = (mapped(subject, &[&first]), mapped(subject, &[&second]));
    write(subject, &mut one, SEED);
    assert!(has(subject, &two, SEED), "the second import is other memory");
    drop((one, first));
    write(subject, &mut two, SEED + 1);
    assert!(has(subject, &two, SEED + 1), "the second import is lost with the first");
}

fn imported_to_read<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let mut region = mapped(subject, &[&memory]);
    let mut child = subject.child();
    give(&mut child, &memory);
    for seed in [SEED, SEED + 1] {
        write(subject, &mut region, seed);
        child.send(seed);
        assert!(child.receive::<bool>(), "the importer does not read this process's write");
    }
    child.finish();
    assert!(has(subject, &region, SEED + 1), "the importer has written");
}

fn reads_only<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut region = mapped(subject, &[&take(subject, peer)]);
    region.set_access(Bytes(0), region.end(), subject.device, Access::Read).unwrap();
    for _ in 0..2 {
        let seed = peer.receive::<u64>();
        peer.send(has(subject, &region, seed));
        let refused = region.write(Bytes(0), &[0; 8]).unwrap_err();
        assert!(matches!(refused.detail(), Detail::NoAccess { have: Access::Read, .. }), "{refused}");
    }
}

fn pieces_become_one_range<B: TestKit>(subject: &Subject<B>) {
    let pieces = [2, 1, 3].map(|units| shareable(subject, units));
    let mut child = subject.child();
    pieces.iter().for_each(|piece| give(&mut child, piece));
    child.finish();
    // The same order shows the other process's pattern across all pieces; another order does not.
    let [first, second, third] = &pieces;
    assert!(has(subject, &mapped(subject, &[first, second, third]), SEED));
    assert!(!has(subject, &mapped(subject, &[second, first, third]), SEED));
}

fn maps_in_a_row<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let pieces = [(); 3].map(|()| take(subject, peer));
    let mut region = mapped(subject, &pieces.each_ref());
    assert_eq!(region.mapped(), subject.units(6));
    write(subject, &mut region, SEED);
}

fn memory_of_a_second_device<B: TestKit>(subject: &Subject<B>) {
    let (_, second) = subject.two_devices();
    let memory = shareable_on(subject, second, 1);
    let mut region = mapped(subject, &[&memory]);
    region.write_pattern(second, Bytes(0), region.end(), SEED).unwrap();
    let mut child = subject.child();
    child.send(second.0);
    give(&mut child, &memory);
    child.finish();
    assert_eq!(region.count_wrong(second, Bytes(0), region.end(), SEED + 1).unwrap(), 0);
}

fn reads_the_second_devices<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let second = DeviceId(peer.receive());
    let memory = take(subject, peer);
    assert_eq!(memory.device(), second);
    let mut region = mapped(subject, &[&memory]);
    assert_eq!(region.count_wrong(second, Bytes(0), region.end(), SEED).unwrap(), 0);
    region.set_access(Bytes(0), region.end(), subject.device, RW).unwrap();
    assert!(has(subject, &region, SEED), "the first device does not read the second device's memory");
    write(subject, &mut region, SEED + 1);
}

/// The device's free memory as both processes report it.
fn free_in_both<B: TestKit>(subject: &Subject<B>, child: &mut Child) -> [Bytes; 2] {
    child.send(());
    [subject.free_here(), Bytes(child.receive())]
}

fn freed_after_the_last_release<B: TestKit>(subject: &Subject<B>) {
    let mut child = subject.child();
    // Memory that the device needs for a process and its kernels is allocated before the counting.
    write(subject, &mut mapped(subject, &[&subject.memory(1)]), SEED);
    child.receive::<()>();
    let at_first = free_in_both(subject, &mut child);
    let memory = shareable(subject, 4);
    let created = free_in_both(subject, &mut child);
    assert_eq!(created[0], at_first[0] - memory.size());
    // A device counts the memory of all processes; a simulated one counts only its own process's memory.
    let is_counted_for_all = created[1] < at_first[1];
    give(&mut child, &memory);
    child.receive::<()>();
    drop(memory);
    let held = free_in_both(subject, &mut child);
    if is_counted_for_all {
        assert!(
            held[0] <= created[0] && held[1] <= created[1],
            "the importer's memory is not counted: {created:?}, {held:?}"
        );
    } else {
        assert_eq!(held, at_first, "the memory was still counted for its exporter");
    }
    child.send(());
    child.receive::<()>();
    if !subject.has_quirk("import-leaks") {
        let end = free_in_both(subject, &mut child);
        // A driver may have allocated memory for the mappings, less than a unit.
        let is_back = |(free, first): (&Bytes, &Bytes)| *free + subject.unit() > *first;
        assert!(
            end.iter().zip(&at_first).all(is_back),
            "memory is still in use after the last release: {at_first:?}, {end:?}"
        );
    }
    child.send(());
    child.finish();
    assert!(
        subject.free_here() + subject.unit() > at_first[0],
        "memory is still in use after the importer's end"
    );
}

fn holds_for_a_while<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    write(subject, &mut mapped(subject, &[&subject.memory(1)]), SEED);
    peer.send(());
    let tell = || {
        peer.receive::<()>();
        peer.send(subject.free_here().0);
    };
    (0..2).for_each(|_| tell());
    let memory = take(subject, peer);
    let mut region = mapped(subject, &[&memory]);
    write(subject, &mut region, SEED);
    peer.send(());
    tell();
    peer.receive::<()>();
    drop((region, memory));
    peer.send(());
    // Reports the free memory until the exporter no longer asks.
    if !subject.has_quirk("import-leaks") {
        tell();
    }
    peer.receive::<()>();
}
