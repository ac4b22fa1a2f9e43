//! Reservations: their addresses, and which parts can be mapped, unmapped and protected.

use crate::range::{Range, create};
use crate::{GRANULE, ONE};
use gpu_vmm_core::{Access, AddressRange, Backend, Bytes, CopyCalls, Detail, Error, Reservation};
use gpu_vmm_host::{HostBackend, HostConfig};

fn host() -> HostBackend {
    HostConfig::new().memory(Bytes::gib(4)).open().unwrap()
}

fn base(range: &Range) -> u64 {
    range.inner.range().base.0
}

fn assert_invalid(result: Result<(), Error>) {
    let error = result.unwrap_err();
    assert_eq!(error.driver_error().map(|source| source.name.as_ref()), Some("EINVAL"), "{error}");
}

#[test]
fn free_hint_is_kept_unlike_taken_one() {
    let host = host();
    // The upper half stays reserved, so that another thread cannot map a larger range that includes the lower half. Between
    // dropping and reserving again the lower half can still be taken.
    let kept = (0..20).any(|_| {
        let free = Range::new(&host, Bytes::gib(1));
        let at = base(&free);
        drop(free);
        let again = Range::aligned(&host, Bytes::gib(1), GRANULE, Some(at)).unwrap();
        base(&again) == at
    });
    assert!(kept);

    let taken = Range::new(&host, Bytes::mib(4));
    for hint in [base(&taken), base(&taken) + GRANULE.0, base(&taken) - GRANULE.0] {
        let other = Range::aligned(&host, Bytes::mib(4), GRANULE, Some(hint)).unwrap();
        assert_ne!(base(&other), hint);
    }
}

#[test]
fn an_unusable_hint_is_a_wish() {
    let host = host();
    let unusable = [0, 1, 4096, GRANULE.0 + 1, 1 << 62, u64::MAX, u64::MAX - GRANULE.0 + 1];
    for hint in unusable {
        let range = Range::aligned(&host, Bytes::mib(4), GRANULE, Some(hint)).unwrap();
        assert_ne!(base(&range), hint);
        assert_eq!(base(&range) % GRANULE.0, 0);
    }
    // Aligned to the granularity but not as requested.
    let free = base(&Range::aligned(&host, GRANULE, Bytes::gib(1), None).unwrap());
    let range = Range::aligned(&host, GRANULE, Bytes::gib(1), Some(free + GRANULE.0)).unwrap();
    assert_eq!(base(&range) % Bytes::gib(1).0, 0);
}

#[test]
fn too_many_addresses_are_an_error() {
    let size = Bytes::gib(1 << 20);
    let error = Range::aligned(&host(), size, GRANULE, None).err().unwrap();
    assert!(
        matches!(error.detail(), Detail::OutOfAddresses { requested, .. } if *requested == size),
        "{error}"
    );
    assert!(error.to_string().ends_with("; reserve less, or drop other reservations first"), "{error}");
    let source = error.driver_error().unwrap();
    assert_eq!((source.call, source.name.as_ref()), ("mmap", "ENOMEM"), "{error}");
    assert!(!source.description.contains("max_map_count"), "{error}");
}

#[test]
fn partial_mappings_are_refused_without_change() {
    let host = host();
    let (large, small) = (create(&host, ONE, Bytes::mib(4)).unwrap(), create(&host, ONE, GRANULE).unwrap());
    let mut range = Range::new(&host, Bytes::mib(10));
    range.put(Bytes::ZERO, &large);
    range.put(Bytes::mib(6), &small);
    range.write(ONE, Bytes::ZERO, b"kept").unwrap();

    for (offset, length) in [(0, 2), (2, 2), (0, 6), (0, 8), (4, 2), (4, 4), (6, 4), (8, 4), (10, 2), (0, 0)]
    {
        let (offset, length) = (Bytes::mib(offset), Bytes::mib(length));
        assert_invalid(range.unmap(offset, length));
        assert_invalid(range.grant(offset, length, ONE, Access::None));
    }
    for offset in [0, 2, 6, 10, u64::MAX >> 20] {
        assert_invalid(range.map(Bytes::mib(offset), &small));
    }
    assert_invalid(range.map(Bytes::mib(4), &large));
    let error = range.map(Bytes::mib(5), &large).unwrap_err().to_string();
    let other = AddressRange { base: range.at(Bytes::mib(6)), size: GRANULE };
    assert!(error.contains(&format!("something is mapped at {other}")), "{error}");
    assert_invalid(range.map(Bytes(u64::MAX - 4095), &small));

    assert_eq!(range.read(ONE, Bytes::ZERO, 4).unwrap(), b"kept");
    assert_eq!(range.access(Bytes::mib(6), ONE).unwrap(), Access::ReadWrite);
    assert_invalid(range.access(Bytes::mib(5), ONE).map(|_| ()));
    range.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
    range.unmap(Bytes::mib(6), GRANULE).unwrap();
}

#[test]
fn mapped_reservation_drop_is_logged() {
    let host = host();
    let handle = create(&host, ONE, GRANULE).unwrap();
    let mut range = Range::new(&host, Bytes::mib(4));
    range.put(GRANULE, &handle);
    let at = range.at(GRANULE);
    drop(range);
    assert_eq!(host.drop_log().count(), 1);
    let text = host.drop_log().take_last().unwrap().to_string();
    assert!(text.contains("still mapped") && text.contains(&at.to_string()), "{text}");
    // SAFETY: memory that is still mapped can still be used, which is what the test checks.
    unsafe { host.fill(ONE, at, GRANULE, 1) }.unwrap();
}
