//! A linked list in a device's memory, traversed by a kernel.
#![allow(unsafe_code)]

use crate::children::spawn;
use crate::support::*;
use gpu_vmm_core::{Address, Bytes, Detail, Reservation};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_testkit::{TestKit, Walked, pattern_word};

/// Walks a list.
pub(crate) fn walk(backend: &CudaBackend, head: Address, most: u64) -> gpu_vmm_core::Result<Walked> {
    // SAFETY: tests build lists in memory that they have mapped.
    unsafe { backend.walk_list(DEVICE, head, most) }
}

pub(crate) fn lists_are_walked(backend: &CudaBackend) {
    const NODES: u64 = 10_007;
    let (granule, size) = (granules(backend, 1), granules(backend, 4));
    let mut reservation = reserve(backend, size, None);
    for place in 0..4 {
        map(&mut reservation, Bytes(place * granule.0), &create(backend, granule));
    }
    let base = at(&reservation, Bytes::ZERO);
    // Each node is at another place, across all mappings; successive nodes are far apart.
    let slots = size.0 / 16;
    let place = |node: u64| base + Bytes(node * 7919 % slots * 16);
    let mut bytes = vec![0; size.0 as usize];
    let mut sum = 0u64;
    for node in 0..NODES {
        let next = if node + 1 < NODES { place(node + 1).0 } else { 0 };
        let value = pattern_word(9, node);
        sum = sum.wrapping_add(value);
        let at = (place(node).0 - base.0) as usize;
        bytes[at..at + 8].copy_from_slice(&next.to_ne_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&value.to_ne_bytes());
    }
    write(backend, base, &bytes);
    let first = |count: u64| Walked {
        nodes: count,
        sum: (0..count).fold(0u64, |sum, node| sum.wrapping_add(pattern_word(9, node))),
    };
    assert_eq!(walk(backend, place(0), u64::MAX).unwrap(), Walked { nodes: NODES, sum });
    for most in [0, 1, NODES - 1, NODES] {
        assert_eq!(walk(backend, place(0), most).unwrap(), first(most));
    }
    assert_eq!(walk(backend, place(NODES - 1), 9).unwrap().nodes, 1);
    assert_eq!(walk(backend, Address(0), 9).unwrap(), Walked::default());
    // The walk of a list without an end stops at the limit.
    write(backend, place(NODES - 1), &place(0).0.to_ne_bytes());
    assert_eq!(walk(backend, place(0), 3 * NODES).unwrap().nodes, 3 * NODES);
    let error = walk(backend, base + Bytes(4), 1).unwrap_err();
    assert!(matches!(error.detail(), Detail::Unaligned { .. }), "{error}");
    unmap(&mut reservation, Bytes::ZERO, size);
    assert_eq!(reservation.range().size, size);
}

pub(crate) fn a_list_that_leaves_its_memory_loses_the_device(_: &CudaBackend) {
    spawn("lost-list", None);
}
