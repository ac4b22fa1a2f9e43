//! Invalid reservations.

use crate::case::cases;
use crate::library::tools::refused;
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Address, Bytes, Detail, ErrorKind, Operation, Placement, Region};
use gpu_vmm_testkit::TestKit;

cases! { "reserve":
    /// Reserving zero bytes is refused.
    none_at_all,
    /// More addresses than a process can have are refused before a driver call, when reserving and when growing.
    more_than_addresses,
    /// Once the process has no room left, a reservation fails as out of address space, and says what to do. Dropping one makes room.
    @isolated no_room_left,
    /// An alignment that is zero, not a power of two or above 2^46 is refused.
    absurd_alignment,
    /// A hint that is not a multiple of the granularity is refused, exact or preferred, although drivers accept it.
    misaligned_hints,
    /// A hint that is not a multiple of the requested alignment is refused.
    hints_beside_their_alignment,
    /// A hint from which the size exceeds the end of the address space is refused.
    hints_that_overflow,
}

fn none_at_all<B: TestKit>(subject: &Subject<B>) {
    refused!(Region::builder(&subject.backend).reserve(Bytes(0)).build(), Detail::ZeroSize);
}

fn more_than_addresses<B: TestKit>(subject: &Subject<B>) {
    for size in [Bytes(u64::MAX), Bytes(u64::MAX - subject.unit().0), Bytes(1 << 48)] {
        refused!(
            Region::builder(&subject.backend).reserve(size).build(),
            Detail::ExceedsAddressSpace { .. },
            size
        );
        let mut region = subject.region(1).build().unwrap();
        refused!(region.grow_to(size), Detail::ExceedsAddressSpace { .. }, size);
    }
}

fn no_room_left<B: TestKit>(subject: &Subject<B>) {
    if cfg!(windows) {
        skip("on Windows, a reservation of 2 TiB and more may never return");
    }
    // A quarter of the address space of a process, and less and less of it.
    let mut size = Bytes(1 << 45);
    let mut regions = Vec::new();
    let error = loop {
        match subject.region(1).reserve(size).build() {
            Ok(region) => regions.push(region),
            Err(error) if size < Bytes::gib(256) => break error,
            Err(_) => size = Bytes(size.0 / 2),
        }
        assert!(regions.len() < 1024, "{} reservations, of {size} at last, all found room", regions.len());
    };
    assert_eq!((error.operation(), error.kind()), (Operation::Reserve, ErrorKind::OutOfAddressSpace));
    let text = error.to_string();
    assert!(text.contains(&size.to_string()) && text.contains("reserve less"), "{text}");
    regions.truncate(regions.len() - 1);
    subject.region(1).reserve(size).build().unwrap();
}

fn absurd_alignment<B: TestKit>(subject: &Subject<B>) {
    for alignment in
        [Bytes(0), Bytes(3), Bytes(u64::MAX), Bytes(1 << 47), Bytes(1 << 63), subject.unit() + Bytes(1)]
    {
        refused!(subject.region(1).alignment(alignment).build(), Detail::BadAlignment { .. }, alignment.0);
    }
}

fn misaligned_hints<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(1);
    for address in [base + Bytes(1), base + Bytes(4096), Address(0x1234)] {
        for at in [Placement::Exact(address), Placement::Prefer(address)] {
            refused!(subject.region(1).at(at).build(), Detail::Unaligned { what: "address", .. }, address);
        }
    }
}

fn hints_beside_their_alignment<B: TestKit>(subject: &Subject<B>) {
    let address = subject.hole(2) + subject.unit();
    let at = Placement::Exact(address);
    refused!(subject.region(1).alignment(Bytes::gib(1)).at(at).build(), Detail::Unaligned { .. }, address);
    subject.region(1).at(at).build().unwrap();
}

fn hints_that_overflow<B: TestKit>(subject: &Subject<B>) {
    let beyond = Address(u64::MAX - subject.unit().0 + 1);
    refused!(subject.region(2).at(Placement::Exact(beyond)).build(), Detail::Overflow { .. }, beyond);
}
