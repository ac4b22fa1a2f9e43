//! Memory of other types, and the host's access to a device's memory.

use crate::rig::{Rig, ZERO, read, read_write, simulated_without};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Access, Backend, Bytes, Capability, CopyCalls, Detail, DeviceId, Error, Feature, Grant, Handle,
    HandleTypes, Location, MemoryCalls, Operation, Properties, Reservation,
};
use std::fs;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "kinds::unsupported_memory_is_refused_with_reason", needs: Needs::Device, run: refused },
    Test { name: "kinds::ignored_flags_are_reported_as_absent", needs: Needs::Device, run: ignored },
    Test { name: "kinds::host_memory_is_never_the_devices", needs: Needs::Device, run: host_memory },
    Test { name: "kinds::host_reads_and_writes_granted_memory", needs: Needs::Device, run: host_access },
    Test { name: "kinds::host_gets_mappings_of_all_sizes", needs: Needs::Device, run: host_steps },
    Test { name: "kinds::host_access_ends_with_the_mapping", needs: Needs::Device, run: closed_again },
];

const HOST: DeviceId = DeviceId::HOST;

fn capability(rig: &Rig, feature: Feature) -> Capability {
    let all = rig.backend.capabilities(ZERO).unwrap();
    all.into_iter().find(|one| one.feature == feature).expect("listed")
}

/// Returns the reason why memory is not created, and checks that no memory is used.
fn reason(rig: &Rig, properties: &Properties) -> String {
    let before = rig.free(ZERO);
    // SAFETY: a unit.
    let error = unsafe { rig.backend.create(rig.unit(), properties) }.expect_err("HIP does not support it");
    let Detail::Unsupported { reason, .. } = error.detail() else { panic!("{error}") };
    assert_eq!(rig.free(ZERO), before);
    reason.to_string()
}

fn refused(rig: &Rig) {
    let on = Properties::on(ZERO);
    for (types, feature) in
        [(HandleTypes::FABRIC, Feature::FabricHandle), (HandleTypes::WIN32, Feature::Win32Handle)]
    {
        let told = capability(rig, feature);
        assert!(!told.available && !told.note.is_empty());
        assert_eq!(reason(rig, &on.exported_as(types)), told.note);
    }
    let several = reason(rig, &on.shareable().exported_as(HandleTypes::FABRIC));
    assert!(several.contains("file descriptor and fabric handle"), "{several}");
    let error = rig.create(ZERO, rig.unit()).export_fabric().expect_err("not created for it");
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
}

fn ignored(rig: &Rig) {
    let asked = Properties::on(ZERO).compressible().remote_dma();
    // SAFETY: a unit.
    let given = unsafe { rig.backend.create(rig.unit(), &asked) }.unwrap().properties();
    let remote_dma = capability(rig, Feature::RemoteDma).available;
    assert_eq!(given, Properties { compressible: false, remote_dma, ..asked });
    assert!(!capability(rig, Feature::Compression).available);
}

/// HIP 7.0 to 7.14 return success and allocate the device's memory.
fn host_memory(rig: &Rig) {
    for (location, feature) in
        [(Location::Host, Feature::HostMemory), (Location::HostNode(0), Feature::HostNodeMemory)]
    {
        let told = capability(rig, feature);
        let properties = Properties::on(ZERO).located(location);
        assert_eq!(told.available, !rig.has_quirk("host-memory-is-the-devices"), "{told:?}");
        if !told.available {
            assert_eq!(reason(rig, &properties), told.note);
            let error = rig
                .backend
                .granularity_of(Operation::QueryGranularity, &properties)
                .expect_err("host memory does not exist");
            assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        }
    }
}

/// Whether the host can be given access. Checks that the backend's answers agree with the version's quirks.
fn has_host_access(rig: &Rig) -> bool {
    let told = capability(rig, Feature::HostAccess);
    let has_it = !rig.has_quirk("host-access-appears") && !simulated_without("LARGE_BAR");
    assert_eq!(told.available, has_it, "{told:?}");
    let checked = rig.backend.check_host_access(Operation::QueryAccess, &Properties::on(ZERO));
    match checked.as_ref().map_err(Error::detail) {
        Ok(()) => assert!(told.available),
        Err(Detail::Unsupported { reason, .. }) => {
            assert_eq!(*reason, told.note)
        }
        Err(error) => panic!("{error}"),
    }
    told.available
}

fn host_access(rig: &Rig) {
    if !has_host_access(rig) {
        return;
    }
    let unit = rig.unit();
    let mut reservation = rig.mapped(ZERO, unit);
    let at = reservation.range().base;
    // SAFETY: the CPU accesses the memory only as it may, after the device has finished; whole mappings are named.
    unsafe {
        rig.backend.copy_from_host(ZERO, at, b"from the device").unwrap();
        reservation.set_access(Bytes::ZERO, unit, &[read_write(HOST), read_write(ZERO)]).unwrap();
        assert_eq!(&at.as_ptr::<[u8; 15]>().read(), b"from the device");
        at.as_ptr::<[u8; 15]>().write(*b"from the CPU   ");
        let mut bytes = [0; 15];
        rig.backend.copy_to_host(ZERO, &mut bytes, at).unwrap();
        assert_eq!(&bytes, b"from the CPU   ");
        let error = reservation.access(Bytes::ZERO, HOST).expect_err("HIP does not report it");
        assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
        assert_eq!(reservation.access(Bytes::ZERO, ZERO).unwrap(), Access::ReadWrite);
        for (grant, rights) in [(read(HOST), "r--"), (Grant { device: HOST, access: Access::None }, "---")] {
            reservation.set_access(Bytes::ZERO, unit, &[grant]).unwrap();
            assert_eq!(rights_at(at.0).expect("mapped"), rights);
        }
        reservation.unmap(Bytes::ZERO, unit).unwrap();
    }
}

/// Host access in the patterns that HIP 7.0 to 7.2 refuse.
fn host_steps(rig: &Rig) {
    if !has_host_access(rig) {
        return;
    }
    let mut reservation = rig.reserve(rig.units(12));
    let mappings = [(0, 1), (1, 3), (4, 2), (7, 5)];
    // SAFETY: whole mappings are named, and the CPU writes only what it may.
    unsafe {
        for (place, count) in mappings {
            reservation.map(rig.units(place), &rig.create(ZERO, rig.units(count))).unwrap();
            let grants = [read_write(ZERO), read_write(HOST)];
            reservation.set_access(rig.units(place), rig.units(count), &grants).unwrap();
        }
        reservation.set_access(rig.units(1), rig.units(3), &[read(HOST)]).unwrap();
        for (place, count) in mappings {
            let at = reservation.range().base + rig.units(place);
            let rights = if place == 1 { "r--" } else { "rw-" };
            assert_eq!(rights_at(at.0).expect("mapped"), rights, "{count} units at {place}");
            rig.works(ZERO, &reservation, rig.units(place), rig.units(count), place);
            reservation.unmap(rig.units(place), rig.units(count)).unwrap();
        }
    }
}

/// Returns the CPU's permissions at an address, if it is mapped.
fn rights_at(at: u64) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).unwrap();
        (number(start) <= at && at < number(end)).then(|| rest[..3].to_owned())
    })
}

/// ROCr leaves the addresses unmapped, and the next mapping of the process could take them.
fn closed_again(rig: &Rig) {
    if !has_host_access(rig) {
        return;
    }
    for last in [Access::ReadWrite, Access::None] {
        let mut reservation = rig.mapped(ZERO, rig.units(4));
        // SAFETY: one whole mapping, which no work uses.
        unsafe {
            reservation.set_access(Bytes::ZERO, rig.units(4), &[read_write(HOST)]).unwrap();
            let grant = Grant { device: HOST, access: last };
            reservation.set_access(Bytes::ZERO, rig.units(4), &[grant]).unwrap();
            reservation.unmap(Bytes::ZERO, rig.units(4)).unwrap();
        }
        for place in 0..4 {
            let at = reservation.range().base + rig.units(place);
            assert_eq!(rights_at(at.0).as_deref(), Some("---"), "with {last} at the end");
        }
    }
}
