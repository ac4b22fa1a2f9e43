//! Drivers that return success and no result, an unknown result, or the opposite attribute.

use crate::rig::{FAR, Must, ONE, Rig, UNEQUAL, ZERO, alignment, found, units};
use gpu_vmm_core::{
    Access, Backend, Bytes, CopyCalls, Detail, DeviceId, Error, Evidence, FabricHandle, Feature, Grant,
    Handle, HandleTypes, MemoryCalls, Operation, PhysicalMemory, Properties, Reservation,
};
use gpu_vmm_hip::HipReservation;
use gpu_vmm_test_settings::cases;

cases! {
    null_is_no_reservation [DOES_NOTHING = "hipMemAddressReserve"];
    null_is_no_page_locked_memory [DOES_NOTHING = "hipHostMalloc"];
    negative_descriptor_is_an_error
        [DOES_NOTHING = "hipMemExportToShareableHandle,hsa_amd_vmem_export_shareable_handle"];
    allocation_without_owner_has_no_agent [DOES_NOTHING = "hsa_amd_pointer_info"];
    unset_access_is_an_error [DOES_NOTHING = "hipMemSetAccess"];
    unknown_access_is_an_error [REPORTS_ACCESS = "2"];
    each_missing_feature_has_its_reason [NEGATES = "94,95,10011"];
    feature_of_one_device_is_its_own [NEGATES = "94@1,10011@1"];
}

const BOTH: Grant = Grant { device: ZERO, access: Access::ReadWrite };

/// Requires that a driver broke its contract in an operation, with these words.
#[track_caller]
fn broken<T>(answer: gpu_vmm_core::Result<T>, operation: Operation, words: &str) {
    let Err(error) = answer else { panic!("success, and not: {words}") };
    let Detail::DriverContractViolated { what } = error.detail() else { panic!("{error}") };
    assert_eq!((&**what, error.operation()), (words, operation));
}

#[track_caller]
fn refused<T>(answer: gpu_vmm_core::Result<T>) -> (String, Operation) {
    let Err(error) = answer else { panic!("success") };
    let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
    (reason.clone(), error.operation())
}

fn reserve(rig: &Rig, count: u64) -> HipReservation {
    // SAFETY: whole units.
    unsafe { rig.backend.reserve(units(count), alignment(), None) }.must("addresses")
}

/// Maps memory of a device at the beginning of an empty reservation.
fn map(rig: &Rig, reservation: &mut HipReservation, count: u64) -> gpu_vmm_core::Result<()> {
    // SAFETY: memory that fits the empty reservation.
    unsafe {
        let handle = rig.backend.create(units(count), &Properties::on(ZERO)).must("memory");
        reservation.map(Bytes::ZERO, &handle)
    }
}

fn unmap(reservation: &mut HipReservation, count: u64) {
    // SAFETY: the only mapping, which no device uses.
    unsafe { reservation.unmap(Bytes::ZERO, units(count)) }.must("unmapped");
}

fn null_is_no_reservation(rig: &mut Rig) {
    let words = "hipMemAddressReserve returned success and a null address for 6 MiB";
    for hint in [None, Some(FAR)] {
        // SAFETY: whole units.
        broken(unsafe { rig.backend.reserve(units(3), alignment(), hint) }, Operation::Reserve, words);
    }
}

fn null_is_no_page_locked_memory(rig: &mut Rig) {
    let words = "hipHostMalloc returned success and a null address for 4 MiB";
    broken(rig.backend.pin(units(2)), Operation::PinMemory, words);
}

fn negative_descriptor_is_an_error(rig: &mut Rig) {
    let mut reservation = reserve(rig, 1);
    map(rig, &mut reservation, 1).must("mapped");
    // SAFETY: one whole mapping.
    let dma_buf = unsafe { reservation.dma_buf(ZERO, Bytes::ZERO, units(1)) };
    let words = "hsa_amd_vmem_export_shareable_handle returned success and the descriptor -1";
    broken(dma_buf, Operation::ExportDmaBuf, words);
    unmap(&mut reservation, 1);
    if rig.shares() {
        // SAFETY: whole units.
        let handle =
            unsafe { rig.backend.create(units(1), &Properties::on(ZERO).shareable()) }.must("memory");
        let words = "hipMemExportToShareableHandle returned success and the descriptor -1";
        broken(handle.export(), Operation::ExportMemory, words);
    }
}

/// The agent of a device is needed only where HIP refuses valid calls.
fn allocation_without_owner_has_no_agent(rig: &mut Rig) {
    let mut region = rig.unequal_region();
    let mut mappings = UNEQUAL.into_iter();
    let answer = mappings
        .try_for_each(|(offset, size)| region.set_access(units(offset), units(size), ONE, Access::Read));
    if rig.has("access-sums") {
        let words = "hsa_amd_pointer_info returned kind 0 and no owner for memory on device 1";
        broken(answer, Operation::SetAccess, words);
    } else {
        answer.must("no agent is needed");
    }
}

fn unset_access_is_an_error(rig: &mut Rig) {
    let mut reservation = reserve(rig, 3);
    map(rig, &mut reservation, 2).must("mapped");
    // SAFETY: one whole mapping.
    let answer = unsafe { reservation.set_access(Bytes::ZERO, units(2), &[BOTH]) };
    let words = format!(
        "hipMemSetAccess returned success, but at offset 0 B of {} device 0 has no access instead of read and write",
        reservation.range()
    );
    broken(answer, Operation::SetAccess, &words);
    unmap(&mut reservation, 2);
}

/// Memory may be mapped where the answer is not understood, so the addresses are not freed before it is unmapped.
fn unknown_access_is_an_error(rig: &mut Rig) {
    let mut reservation = reserve(rig, 2);
    let (base, range) = (reservation.range().base, reservation.range());
    let unknown = format!("hipMemGetAccess returned the unknown access 2 at {base} for device 0");
    let answer = map(rig, &mut reservation, 1);
    let error = answer.expect_err("it is not known to be mapped").to_string();
    let at = gpu_vmm_core::AddressRange { base, size: units(1) };
    assert!(
        error.contains(&format!("hipMemMap returned success, but {at} is not known to be mapped (")),
        "{error}"
    );
    assert!(error.contains(&unknown), "{error}");
    // SAFETY: the device exists.
    broken(unsafe { reservation.access(Bytes::ZERO, ZERO) }, Operation::QueryAccess, &unknown);
    unmap(&mut reservation, 1);
    map(rig, &mut reservation, 1).expect_err("nor is this");
    drop(reservation);
    let left = rig.backend.drop_log().take_last().map(Err::<(), Error>).expect("the addresses stay");
    let words = format!("1 mappings (2 MiB) are left in {range}, which stay reserved");
    assert_eq!(refused(left), (words, Operation::FreeReservation));
    rig.left.others[..2].fill(1);
    rig.left.handles += 1;
    rig.left.physical += if rig.has("memory-stays-until-free") { 2 } else { 1 };
}

/// Of the three attributes, HIP before 7.14 knows the first only. It is 0 here, and the other two have the opposite value too.
fn each_missing_feature_has_its_reason(rig: &mut Rig) {
    const BY_DMA_BUF: &str =
        "network cards use a dma-buf of the memory, which works with and without this property";
    let all = rig.backend.capabilities(ZERO).must("capabilities");
    let version = rig.backend.driver().version;
    let is_new = rig.backend.driver().version_number >= 71_400_000;
    let unknown = |name: &str| format!("HIP {version} does not know {name}, which was added in 7.14");
    let host = found(&all, Feature::HostAccess);
    let (note, evidence) = match rig.has("host-access-appears") {
        true => (format!("HIP {version} cannot give the host access; 7.2 and later can"), Evidence::Version),
        false => ("hipDeviceAttributeIsLargeBar (10011) is 0".to_owned(), Evidence::Attribute),
    };
    assert_eq!((host.available, &host.note, host.found_by), (false, &note, evidence));
    let asked = rig.backend.check_host_access(Operation::Map, &Properties::on(ONE));
    assert_eq!(refused(asked), (note, Operation::Map));
    let remote = found(&all, Feature::RemoteDma);
    const REMOTE: &str = "hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported (94)";
    let why = if is_new { format!("{REMOTE} is 0") } else { unknown(REMOTE) };
    assert_eq!((remote.available, remote.note.clone()), (false, format!("{why}; {BY_DMA_BUF}")));
    let fabric = found(&all, Feature::FabricHandle);
    assert_eq!(fabric.available, is_new, "{}", fabric.note);
    if is_new {
        assert_eq!(fabric.found_by, Evidence::Trial);
        return by_fabric_handle(rig);
    }
    assert_eq!(fabric.note, unknown("hipDeviceAttributeHandleTypeFabricSupported (95)"));
    no_fabric_handles(rig, &fabric.note);
}

fn feature_of_one_device_is_its_own(rig: &mut Rig) {
    let all = [ZERO, ONE].map(|device| rig.backend.capabilities(device).must("capabilities"));
    let available = |feature| all.each_ref().map(|all| found(all, feature).available);
    let has_host_access = !rig.has("host-access-appears");
    assert_eq!(available(Feature::HostAccess), [has_host_access, false]);
    let checked = [ZERO, ONE]
        .map(|device| rig.backend.check_host_access(Operation::SetAccess, &Properties::on(device)).is_ok());
    assert_eq!(checked, [has_host_access, false]);
    let is_new = rig.backend.driver().version_number >= 71_400_000;
    assert_eq!(available(Feature::RemoteDma), [is_new, false]);
    let wished = [ZERO, ONE].map(|device| {
        // SAFETY: whole units.
        let handle = unsafe { rig.backend.create(units(1), &Properties::on(device).remote_dma()) };
        handle.must("memory").properties().remote_dma
    });
    assert_eq!(wished, [is_new, false]);
}

/// A fabric handle imports the same memory; other memory has none.
fn by_fabric_handle(rig: &Rig) {
    let properties = Properties::on(ONE).exported_as(HandleTypes::FABRIC);
    let memory = PhysicalMemory::create(&rig.backend, units(1), properties).must("memory");
    let handle = memory.export_fabric().must("exported");
    // SAFETY: memory of this size and device, as just exported.
    let import = |named: &FabricHandle| unsafe {
        PhysicalMemory::import_fabric(&rig.backend, named, units(1), properties)
    };
    let imported = import(&handle).must("imported");
    assert_eq!(imported.properties(), properties);
    fails!(import(&FabricHandle([0; FabricHandle::LENGTH])), Driver);
    let again = imported.export_fabric().expect_err("exported again");
    assert!(again.to_string().contains("pass on the handle"), "{again}");
    for (memory, value) in [(&memory, 5), (&imported, 6)] {
        let mut region = rig.region(1).on(ONE).build().must("addresses");
        region.map(Bytes::ZERO, memory).must("mapped");
        region.set_access(Bytes::ZERO, units(1), ONE, Access::ReadWrite).must("access");
        if value == 6 {
            assert_eq!(region.count_wrong(ONE, Bytes::ZERO, units(1), 5).must("read"), 0);
        }
        region.write_pattern(ONE, Bytes::ZERO, units(1), value).must("written");
    }
    let plain = rig.memory(ONE, 1).export_fabric().expect_err("exported");
    assert!(plain.to_string().contains("was not created for fabric handles"), "{plain}");
}

/// Each call that would need a fabric handle names its operation and says why there is none.
fn no_fabric_handles(rig: &Rig, note: &str) {
    let plain = Properties::on(DeviceId(0));
    // SAFETY: whole units.
    let handle = unsafe { rig.backend.create(units(1), &plain) }.must("memory");
    assert_eq!(refused(handle.export_fabric()), (note.to_owned(), Operation::ExportMemory));
    let named = FabricHandle([0; FabricHandle::LENGTH]);
    // SAFETY: whole units; the handle names nothing, and nothing is imported.
    unsafe {
        let imported = rig.backend.import_fabric(&named, units(1), &plain);
        assert_eq!(refused(imported), (note.to_owned(), Operation::ImportMemory));
        let created = rig.backend.create(units(1), &plain.exported_as(HandleTypes::FABRIC));
        assert_eq!(refused(created), (note.to_owned(), Operation::CreateMemory));
    }
}
