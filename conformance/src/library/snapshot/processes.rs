//! A list whose nodes hold device addresses, written by one process and walked in another.
#![allow(unsafe_code)] // walks along addresses

use super::{restore_one, save};
use crate::case::cases;
use crate::library::folder::Folder;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, DeviceId, Placement, Region};
use gpu_vmm_snapshot::{Restore, SnapshotFile};
use gpu_vmm_testkit::{TestKit, Walked};

cases! { "snapshot":
    /// After another process has restored a region from a file, its device can walk a list in the region by the device
    /// addresses in its nodes.
    a_list_is_walked_in_another_process with restores_and_walks,
    /// The list can also be walked on another device than the one that wrote it.
    a_list_is_walked_on_another_device with restores_and_walks,
    /// A snapshot by a process that is killed after writing it is complete.
    the_writer_is_killed with writes_and_waits,
}

/// A power of two, so that steps of an odd length reach all nodes.
const NODES: u64 = 64;
const STEP: u64 = 37;

/// The result of a walk along the whole list.
const WALKED: Walked = Walked { nodes: NODES, sum: (NODES - 1) * NODES / 2 * 3 + NODES };

/// Writes a list that jumps through a whole region. Returns its head.
fn write_list<B: TestKit>(region: &mut Region<B>) -> Address {
    let far = region.end().0 / NODES;
    let place = |number: u64| region.address() + Bytes(number * STEP % NODES * far);
    let address = region.address();
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let next = if number + 1 < NODES { place(number + 1).0 } else { 0 };
        let value = number * 3 + 1;
        nodes.push((place(number), [next.to_le_bytes(), value.to_le_bytes()].concat()));
    }
    for (at, node) in nodes {
        region.write(Bytes(at.0 - address.0), &node).unwrap();
    }
    address
}

fn walk<B: TestKit>(subject: &Subject<B>, device: DeviceId, head: Address) -> Walked {
    // SAFETY: the list is in a region that is mapped and that the device may read.
    unsafe { subject.backend.walk_list(device, head, NODES * 2) }.unwrap()
}

/// A region of two pieces with a list in it.
fn with_list<B: TestKit>(subject: &Subject<B>, place: Address) -> (Region<B>, Address) {
    let mut region = subject.space(4).at(Placement::Exact(place)).tag("list").build().unwrap();
    for at in [0, 2] {
        subject.open(&mut region, subject.granules(at), &subject.piece(2));
    }
    let head = write_list(&mut region);
    assert_eq!(walk(subject, subject.device, head), WALKED);
    (region, head)
}

/// The file, the head of the list, and the device that restores and walks it.
type RestoreRequest = (String, u64, u32);

fn walked_elsewhere<B: TestKit>(subject: &Subject<B>, device: DeviceId) {
    let folder = Folder::new();
    let (region, head) = with_list(subject, subject.hole(4));
    let (file, _) = save(&folder, "list", &[&region]);
    drop(region);
    let mut child = subject.child();
    let request: RestoreRequest = (file.path().to_str().unwrap().to_owned(), head.0, device.0);
    child.send(request);
    assert_eq!(child.receive::<(u64, u64)>(), (WALKED.nodes, WALKED.sum));
    child.finish();
}

fn restores_and_walks<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (path, head, device) = peer.receive::<RestoreRequest>();
    let file = SnapshotFile::open(path).unwrap();
    let options = Restore::new().device(subject.device, DeviceId(device));
    let restored = restore_one(&subject.backend, &options, &file);
    assert_eq!(restored.region.tag(), "list");
    let walked = walk(subject, DeviceId(device), Address(head));
    peer.send((walked.nodes, walked.sum));
}

fn a_list_is_walked_in_another_process<B: TestKit>(subject: &Subject<B>) {
    walked_elsewhere(subject, subject.device);
}

fn a_list_is_walked_on_another_device<B: TestKit>(subject: &Subject<B>) {
    walked_elsewhere(subject, subject.two_devices().1);
}

fn the_writer_is_killed<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let mut child = subject.child();
    child.send(folder.file("list").to_str().unwrap().to_owned());
    let head = Address(child.receive());
    child.kill();
    child.finish_by(libc::SIGKILL);
    let file = SnapshotFile::open(folder.file("list")).unwrap();
    let restored = restore_one(&subject.backend, &Restore::new(), &file);
    assert!(!restored.has_moved());
    assert_eq!(walk(subject, subject.device, head), WALKED);
}

fn writes_and_waits<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let path = peer.receive::<String>();
    // Addresses that no other process has reserved: HIP 6 keeps all that it has ever reserved, and the parent reserves these
    // too.
    let place = Address(0x3900_0000_0000 + (u64::from(std::process::id() % 4096) << 30));
    let (region, head) = with_list(subject, place);
    let ring = super::ring(&subject.backend);
    let snapshot = gpu_vmm_snapshot::Snapshot::new(&ring).region(&region);
    snapshot.write(path, crate::library::tools::idle()).unwrap();
    peer.send(head.0);
    peer.receive::<()>();
}
