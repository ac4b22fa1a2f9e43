//! The choice of a kind of memory by trial, and the granularity that a driver recommends.

use crate::{GRANULE, ONE};
use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, DeviceId, ErrorKind, Granularity, HandleTypes, Location, MemoryCalls,
    Operation, Properties, Region, Result, SyncCalls, first_supported,
};
use gpu_vmm_host::{HostBackend, HostConfig, HostHandle, HostReservation};
use gpu_vmm_testkit::FaultInject;

const PLAIN: Properties = Properties::on(ONE);
const FABRIC: Properties = PLAIN.exported_as(HandleTypes::FABRIC);

fn host() -> FaultInject<HostBackend> {
    FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap())
}

#[test]
fn first_kind_that_works_is_chosen() {
    let backend = host();
    let node = PLAIN.located(Location::HostNode(0));
    let preferred = [FABRIC, node, PLAIN.compressible(), PLAIN.shareable(), PLAIN];
    let found = first_supported(&backend, &preferred).unwrap();
    assert_eq!(found.properties, PLAIN.shareable());
    let refused: Vec<_> = found.refused.iter().map(|(properties, _)| *properties).collect();
    assert_eq!(refused, [FABRIC, node, PLAIN.compressible()]);
    for ((_, reason), word) in
        found.refused.iter().zip(["within one machine only", "node", "without compression"])
    {
        assert!(reason.contains(word), "{reason}");
    }
    let text = found.to_string();
    assert!(
        text.contains("exportable as file descriptor; not device memory of device 0, exportable"),
        "{text}"
    );
    assert!(first_supported(&backend, &[PLAIN.located(Location::Host)]).unwrap().refused.is_empty());
    assert_eq!(backend.live().handles, 0, "a trial left memory");
}

#[test]
fn list_without_supported_kind_is_an_error() {
    let backend = host();
    for (preferred, words) in [(&[FABRIC][..], "exportable as fabric handle: "), (&[], "is empty")] {
        let error = first_supported(&backend, preferred).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(words), "{error}");
    }
    // These show nothing about the kind.
    let error = first_supported(&backend, &[Properties::on(DeviceId(7)), PLAIN]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchDevice);
    let full = Region::builder(&backend).build().and_then(|mut region| {
        region.grow_to(Bytes::mib(64))?;
        Ok(region)
    });
    assert_eq!(first_supported(&backend, &[PLAIN]).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop(full.unwrap());
    let plain = HostConfig::new().without_virtual_memory().open().unwrap();
    assert_eq!(first_supported(&plain, &[FABRIC, PLAIN]).unwrap().properties, PLAIN);
}

#[test]
fn refused_creation_has_the_driver_error() {
    let backend = host();
    backend.fail(1, 1);
    let found = first_supported(&backend, &[PLAIN.shareable(), PLAIN]).unwrap();
    assert!(backend.stop() >= 1);
    assert_eq!((found.properties, found.refused.len()), (PLAIN, 1));
    assert!(!found.refused[0].1.is_empty(), "{found}");
}

/// A driver that recommends twice the granularity.
#[derive(Clone, Debug)]
struct Recommends {
    host: HostBackend,
}

// SAFETY: every call is passed to the host backend, whose granularity divides the recommended one.
unsafe impl Backend for Recommends {
    forward!(host: vendor, instance, driver, devices, memory_info, can_access, capabilities, quirks, unmaps_runs);
    forward!(host: granularity, granularity_of, check_host_access, reservation_unit, drop_log, deferred);

    fn recommended_granularity(&self, operation: Operation, properties: &Properties) -> Result<Granularity> {
        let unit = self.host.granularity_of(operation, properties)?;
        Granularity::new(unit.bytes() * 2).ok_or_else(|| {
            gpu_vmm_core::Error::new(operation, Detail::Unsupported { reason: "it overflows".to_owned() })
        })
    }
}

// SAFETY: as above.
unsafe impl MemoryCalls for Recommends {
    type Handle = HostHandle;

    type Reservation = HostReservation;

    forward!(host: MemoryCalls);
}

// SAFETY: as above.
unsafe impl CopyCalls for Recommends {
    forward!(host: CopyCalls);
}

// SAFETY: as above.
unsafe impl SyncCalls for Recommends {
    forward!(host: SyncCalls);
}

#[test]
fn region_grows_in_recommended_units() {
    let backend = Recommends { host: HostConfig::new().memory(Bytes::mib(64)).open().unwrap() };
    for (recommended, unit) in [(false, GRANULE), (true, GRANULE * 2)] {
        let builder = Region::builder(&backend).reserve(Bytes::mib(32));
        let mut region =
            if recommended { builder.recommended_granularity() } else { builder }.build().unwrap();
        assert_eq!(region.granularity().bytes(), unit);
        region.grow_to(Bytes(1)).unwrap();
        assert_eq!(region.mapped(), unit);
        assert!(region.address().is_aligned_to(unit));
        assert_eq!(region.settings().recommended, recommended);
    }
}
