//! Addresses below a limit.

use crate::case::cases;
use crate::library::tools::{assert_names, idle, refused};
use crate::subject::{Subject, skip};
use gpu_vmm_core::{Address, Bytes, Detail, Error, Placement, Region, Result};
use gpu_vmm_testkit::TestKit;

cases! { "reserve":
    /// All addresses of a region below a limit are below it, with its guards, and the region can be used.
    below_a_limit,
    /// A region below a limit stays there when it grows behind its end, and when it moves.
    below_a_limit_after_growth,
    /// A limit that leaves no room is refused before the driver is called; one that leaves no free addresses is an error with the
    /// address that the driver offered.
    below_too_little,
}

/// The addresses that hardware with 40 bits reaches.
const LIMIT: Address = Address(1 << 40);

/// Returns the region, or skips the case if this process has no free addresses there.
fn below<B: TestKit>(result: Result<Region<B>>) -> Region<B> {
    match result.map_err(Error::into_detail) {
        Err(detail @ Detail::NotBelow { .. }) => skip(detail.to_string()),
        result => result.unwrap(),
    }
}

fn below_a_limit<B: TestKit>(subject: &Subject<B>) {
    for guard in [Bytes(0), Bytes(1)] {
        let builder = subject.region(4).at(Placement::Below(LIMIT)).guard(guard);
        let mut region = below(builder.build());
        assert!(region.range().end() + region.guard() <= LIMIT, "{:?}", region.range());
        region.grow_to(subject.units(2)).unwrap();
        subject.write(&mut region, Bytes(0), subject.units(2), 1);
        subject.check(&region, Bytes(0), subject.units(2), 1);
    }
}

fn below_a_limit_after_growth<B: TestKit>(subject: &Subject<B>) {
    let mut region = below(subject.region(1).at(Placement::Below(LIMIT)).build());
    region.grow_to(subject.units(1)).unwrap();
    subject.write(&mut region, Bytes(0), subject.units(1), 1);
    let tight = Placement::Below(region.range().end());
    for units in 2..6 {
        region.grow_or_move(subject.units(units), idle()).unwrap();
        assert!(region.range().end() <= LIMIT, "{:?}", region.range());
    }
    subject.check(&region, Bytes(0), subject.units(1), 1);
    // The limit of this one is the end of the first one, so it cannot be extended beyond.
    let mut other = below(subject.region(1).at(tight).build());
    while other.range().end() < region.range().end() && other.reserved() < subject.units(4) {
        match other.grow_to(other.reserved() + subject.units(1)) {
            Ok(_) => {}
            Err(error)
                if matches!(error.detail(), Detail::NotBelow { .. } | Detail::OutgrewReservation { .. }) =>
            {
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let Placement::Below(limit) = tight else { return };
    assert!(other.range().end() <= limit, "{:?}", other.range());
}

fn below_too_little<B: TestKit>(subject: &Subject<B>) {
    let small = Placement::Below(Address(subject.units(1).0));
    refused!(@Reserve subject.region(2).at(small).build(), Detail::ExceedsAddressSpace { .. }, subject.units(2));
    let limit = Address(subject.units(1).0);
    match subject.region(1).at(Placement::Below(limit)).build() {
        Err(error) => {
            assert!(matches!(error.detail(), Detail::NotBelow { .. }), "{error}");
            assert_names(&error, &[limit.to_string(), subject.units(1).to_string()]);
        }
        Ok(region) => panic!("{:?}", region.range()),
    }
}
