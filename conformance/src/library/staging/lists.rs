//! Lists that a device walks by the addresses in its memory.
#![allow(unsafe_code)] // addresses that a device follows

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{Access, Address, Bytes, DeviceId, Region};
use gpu_vmm_testkit::{TestKit, Walked, pattern_word};

cases! { "staging":
    /// A device walks a list over several mappings to its end, and reports the number of nodes and the sum of their values.
    a_list_is_walked,
    /// A walk ends after the requested number of nodes, also if the list is endless.
    walks_end,
    /// A walk from a null address, or of zero steps, visits no node.
    empty_walks,
    /// A device with read access only can walk a list.
    a_list_to_be_read,
    /// A device can walk a list in another device's memory that it may read.
    a_peers_list,
}

const NODES: u64 = 500;
const SEED: u64 = 900;

/// A list whose consecutive nodes are far from each other.
struct List<B: TestKit> {
    region: Region<B>,
    size: Bytes,
}

impl<B: TestKit> List<B> {
    /// The list in memory of `owner`, in two mappings.
    fn new(subject: &Subject<B>, owner: DeviceId) -> Self {
        let size = subject.granules(3);
        let mut region = subject.space(3).on(owner).build().unwrap();
        region.grow_to(subject.granules(1)).unwrap();
        region.grow_to(size).unwrap();
        let mut list = Self { region, size };
        for node in 0..NODES {
            let next = if node + 1 < NODES { list.node(node + 1) } else { Address(0) };
            list.set(node, next, pattern_word(SEED, node));
        }
        list
    }

    /// The offset of a node. Seven does not divide the number of nodes, so no two nodes share an offset.
    fn offset(&self, node: u64) -> Bytes {
        let step = self.size.0 / NODES / 8 * 8;
        Bytes(node * 7 % NODES * step)
    }

    fn node(&self, node: u64) -> Address {
        self.region.address() + self.offset(node)
    }

    fn set(&mut self, node: u64, next: Address, value: u64) {
        let bytes = [next.0, value].map(u64::to_ne_bytes);
        self.region.write(self.offset(node), bytes.as_flattened()).unwrap();
    }

    /// Walks the list with a device, from a node on.
    fn walk(&self, subject: &Subject<B>, device: DeviceId, node: u64, most: u64) -> Walked {
        // SAFETY: all nodes are in the region, which the device may read.
        unsafe { subject.backend.walk_list(device, self.node(node), most) }.unwrap()
    }
}

/// The expected result of a walk from a node on.
fn expected(from: u64, count: u64) -> Walked {
    let values = (from..from + count).map(|node| pattern_word(SEED, node % NODES));
    Walked { nodes: count, sum: values.fold(0, u64::wrapping_add) }
}

fn a_list_is_walked<B: TestKit>(subject: &Subject<B>) {
    let mut list = List::new(subject, subject.device);
    for from in [0, 1, NODES / 2, NODES - 1] {
        assert_eq!(list.walk(subject, subject.device, from, u64::MAX), expected(from, NODES - from));
    }
    // The value is added in full, and the sum wraps around.
    list.set(NODES - 1, Address(0), u64::MAX);
    list.set(NODES - 2, list.node(NODES - 1), 5);
    let last = list.walk(subject, subject.device, NODES - 2, NODES);
    assert_eq!(last, Walked { nodes: 2, sum: 4 });
}

fn walks_end<B: TestKit>(subject: &Subject<B>) {
    let mut list = List::new(subject, subject.device);
    for most in [1, 2, NODES - 1, NODES] {
        assert_eq!(list.walk(subject, subject.device, 0, most), expected(0, most));
    }
    let first = list.node(0);
    list.set(NODES - 1, first, pattern_word(SEED, NODES - 1));
    assert_eq!(list.walk(subject, subject.device, 0, 3 * NODES + 1), expected(0, 3 * NODES + 1));
}

fn empty_walks<B: TestKit>(subject: &Subject<B>) {
    let list = List::new(subject, subject.device);
    assert_eq!(list.walk(subject, subject.device, 0, 0), Walked::default());
    // SAFETY: there is no node.
    let nowhere = unsafe { subject.backend.walk_list(subject.device, Address(0), u64::MAX) };
    assert_eq!(nowhere.unwrap(), Walked::default());
}

fn a_list_to_be_read<B: TestKit>(subject: &Subject<B>) {
    let mut list = List::new(subject, subject.device);
    list.region.set_access(Bytes::ZERO, list.size, subject.device, Access::Read).unwrap();
    assert_eq!(list.walk(subject, subject.device, 0, u64::MAX), expected(0, NODES));
}

fn a_peers_list<B: TestKit>(subject: &Subject<B>) {
    let (device, owner) = subject.two_devices();
    let mut list = List::new(subject, owner);
    list.region.set_access(Bytes::ZERO, list.size, device, Access::Read).unwrap();
    assert_eq!(list.walk(subject, device, 0, u64::MAX), expected(0, NODES));
}
