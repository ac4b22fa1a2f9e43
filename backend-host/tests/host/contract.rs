//! A driver that returns other addresses than the ones that it was asked for.

use crate::GRANULE;
use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Address, Alignment, Backend, Bytes, CopyCalls, Detail, MemoryCalls, Operation, Placement, Region, Result,
    SyncCalls,
};
use gpu_vmm_host::{HostBackend, HostConfig, HostHandle, HostReservation};

/// A machine that reserves twice as many addresses as it is asked for. All other calls reach the host backend.
#[derive(Clone, Debug)]
struct TwiceAsMany {
    host: HostBackend,
}

// SAFETY: every call is passed to the host backend.
unsafe impl Backend for TwiceAsMany {
    forward!(host: Backend);
}

// SAFETY: as above. A reservation has more addresses than requested, all of which are the host backend's.
unsafe impl MemoryCalls for TwiceAsMany {
    type Handle = HostHandle;

    type Reservation = HostReservation;

    forward!(host: create, import, import_fabric, allocate_plain, free_plain);

    unsafe fn reserve(
        &self,
        size: Bytes,
        alignment: Alignment,
        hint: Option<Address>,
    ) -> Result<HostReservation> {
        // SAFETY: the caller meets the same requirements.
        unsafe { self.host.reserve(size + size, alignment, hint) }
    }
}

// SAFETY: every call is passed to the host backend.
unsafe impl CopyCalls for TwiceAsMany {
    forward!(host: CopyCalls);
}

// SAFETY: as above.
unsafe impl SyncCalls for TwiceAsMany {
    forward!(host: SyncCalls);
}

/// Otherwise the region would use addresses that it does not know to be its own.
#[test]
fn reservation_of_another_size_is_refused() {
    let host = TwiceAsMany { host: HostConfig::new().open().unwrap() };
    // No other test of this program uses this address: snapshots.rs counts up from 0x2100_0000_0000.
    let wanted = Address(0x2500_0000_0000);
    let places =
        [Placement::Anywhere, Placement::Prefer(wanted), Placement::Exact(wanted), Placement::Restorable];
    for place in places {
        let size = Bytes(16 * GRANULE.0);
        let error = Region::builder(&host).reserve(size).at(place).build().unwrap_err();
        let Detail::DriverContractViolated { what } = error.detail() else { panic!("{place:?}: {error}") };
        let (asked, got) = (format!("for {size} with an alignment of"), format!("({})", size + size));
        assert_eq!(error.operation(), Operation::Reserve);
        assert!(what.contains(&asked) && what.contains(&got), "{place:?}: {what}");
    }
}
