//! The test kit's pattern: kernels write and check it if they can be compiled, otherwise copies; both find wrong words.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{Address, Bytes, CopyCalls, Detail, DeviceId, Error, Reservation};
use gpu_vmm_testkit::{TestKit, Walked};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "testkit::it_is_told_what_writes_the_pattern", needs: Needs::Device, run: told },
    Test { name: "testkit::every_wrong_word_is_found", needs: Needs::Device, run: found },
    Test { name: "testkit::a_list_is_followed", needs: Needs::Device, run: walked },
];

fn told(rig: &Rig) {
    let reason = rig.backend.no_kernels_because(ZERO).unwrap();
    let expected = if reason.is_none() { "a kernel" } else { "copies" };
    assert_eq!(rig.backend.pattern_by(), expected, "{reason:?}");
    assert!(reason.is_none_or(|reason| !reason.is_empty()));
    if let Some(reason) = reason {
        eprintln!("by copies: {reason}");
    }
    let missing = rig.backend.no_kernels_because(DeviceId(99));
    assert!(
        matches!(
            missing.as_ref().map_err(Error::detail),
            Err(Detail::Driver { .. } | Detail::NoSuchDevice { .. })
        ),
        "{missing:?}"
    );
}

fn found(rig: &Rig) {
    let size = rig.units(3);
    let mut reservation = rig.mapped(ZERO, size);
    let at = reservation.range().base;
    let spoil = |at: Address| {
        // SAFETY: within the memory that is mapped here for this device.
        unsafe { rig.backend.copy_from_host(ZERO, at, &[0xa5; 8]) }.unwrap();
    };
    let wrong = |length: Bytes, seed: u64| {
        // SAFETY: as above.
        unsafe { rig.backend.count_wrong(ZERO, at, length, seed) }.unwrap()
    };
    // SAFETY: as above.
    unsafe { rig.backend.write_pattern(ZERO, at, size, 11) }.unwrap();
    assert_eq!(wrong(size, 11), 0);
    assert_eq!(wrong(size, 12), size.0 / 8, "with another seed every word differs");
    spoil(at);
    spoil(at + rig.unit());
    spoil(at + (size - Bytes(8)));
    assert_eq!(wrong(size, 11), 3);
    assert_eq!(wrong(size - Bytes(8), 11), 2, "words beyond the length are not checked");
    assert_eq!(wrong(Bytes::ZERO, 11), 0);
    // SAFETY: one whole mapping, no longer used.
    unsafe { reservation.unmap(Bytes::ZERO, size) }.unwrap();
}

/// Nodes in two reservations and in no particular order.
fn walked(rig: &Rig) {
    let (mut one, mut two) = (rig.mapped(ZERO, rig.units(2)), rig.mapped(ZERO, rig.unit()));
    let (a, b) = (one.range().base, two.range().base);
    let last = rig.units(2) - Bytes(16);
    let nodes =
        [(a + (rig.unit() - Bytes(8)), 10), (b, 200), (a, u64::MAX), (b + Bytes(160), 3000), (a + last, 7)];
    for (place, (at, value)) in nodes.iter().enumerate() {
        let next = nodes.get(place + 1).map_or(0, |(next, _)| next.0);
        let node = [next, *value];
        // SAFETY: within the memory that is mapped here for this device.
        unsafe { rig.backend.copy_from_host(ZERO, *at, bytemuck::bytes_of(&node)) }.unwrap();
    }
    // SAFETY: the list was written above.
    let walk = |head: Address, most: u64| unsafe { rig.backend.walk_list(ZERO, head, most) }.unwrap();
    assert_eq!(walk(nodes[0].0, u64::MAX), Walked { nodes: 5, sum: 3216 }, "the sum wraps around");
    assert_eq!(walk(nodes[0].0, 2), Walked { nodes: 2, sum: 210 });
    assert_eq!(walk(nodes[3].0, 5), Walked { nodes: 2, sum: 3007 });
    assert_eq!(walk(nodes[0].0, 0), Walked::default());
    assert_eq!(walk(Address(0), 9), Walked::default(), "an empty list");
    // SAFETY: whole mappings, no longer used.
    unsafe {
        one.unmap(Bytes::ZERO, rig.units(2)).unwrap();
        two.unmap(Bytes::ZERO, rig.unit()).unwrap();
    }
}
