//! The backend's description of itself, and valid and invalid configurations.

use crate::range::{Range, create, create_as, free};
use crate::{GRANULE, ONE, SMALL, TWO};
use gpu_vmm_core::multicast::Team;
use gpu_vmm_core::{
    Address, Backend, Bytes, Capability, CopyCalls, Detail, DeviceId, Error, Evidence, FabricHandle, Feature,
    Handle, HandleTypes, Location, MemoryCalls, Operation, Properties, Reservation, Stream, SyncCalls,
    Vendor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::TestKit;
use std::os::fd::AsFd;

#[test]
fn the_default_machine_is_this_one() {
    let host = HostBackend::open().unwrap();
    let [device] = host.devices() else { panic!("{:?}", host.devices()) };
    assert_eq!((device.id, device.name.as_str()), (ONE, "host memory 0"));
    assert_eq!(device.granularity.bytes(), Bytes::mib(2));
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(device.total_memory, Bytes::mib(kib / 2048 * 2));
    let info = host.memory_info(ONE).unwrap();
    assert_eq!((info.free, info.total), (device.total_memory, device.total_memory));
    assert_eq!(host.vendor(), Vendor::Host);
    assert!(host.unmaps_runs());
    // Other ways to the same configuration.
    assert_eq!(format!("{:?}", HostConfig::default()), format!("{:?}", HostConfig::new()));
    assert!(!HostConfig::new().unmapping_singly().open().unwrap().unmaps_runs());
}

#[test]
fn the_driver_is_the_kernel() {
    let driver = HostBackend::open().unwrap().driver();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(driver.version, release.trim());
    let major: u32 = release.split('.').next().unwrap().parse().unwrap();
    assert_eq!(driver.version_number / 1000, major);
    assert_eq!(driver.library, "the kernel's memfd_create and mmap");
}

/// The number of this boot, which all processes of the machine read, and the device's ordinal.
#[test]
fn uuid_depends_on_boot_and_ordinal() {
    let host = HostConfig::new().devices(3).open().unwrap();
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let boot = text.map(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap());
    for (ordinal, device) in (0u32..).zip(host.devices()) {
        assert_eq!((device.id, &*device.name), (DeviceId(ordinal), &*format!("host memory {ordinal}")));
        let uuid = device.uuid.map(|uuid| u128::from_be_bytes(uuid.0));
        assert_eq!(uuid, boot.map(|boot| boot.wrapping_add(ordinal.into())), "{ordinal}");
    }
}

#[test]
fn host_memory_has_its_own_granularity() {
    let granularities = |config: HostConfig| {
        let host = config.devices(2).granularity(SMALL).open().unwrap();
        [Location::Device, Location::Host].map(|location| {
            let properties = Properties::on(TWO).located(location);
            host.granularity_of(Operation::QueryGranularity, &properties).unwrap().bytes()
        })
    };
    assert_eq!(granularities(HostConfig::new()), [SMALL, SMALL]);
    assert_eq!(granularities(HostConfig::new().host_granularity(SMALL)), [SMALL, SMALL]);
    assert_eq!(granularities(HostConfig::new().host_granularity(GRANULE)), [SMALL, GRANULE]);
}

#[test]
fn plain_devices_have_no_capability() {
    let host = HostConfig::new().devices(2).without_virtual_memory().open().unwrap();
    let reason = host.devices()[1].no_virtual_memory.clone().unwrap();
    assert_eq!((&*reason, &host.devices()[1].unusable), ("the host backend was opened without it", &None));
    let found = host.capabilities(TWO).unwrap();
    let [only] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (only.feature, only.available, only.found_by),
        (Feature::VirtualMemory, false, Evidence::Design)
    );
    assert_eq!(only.note, reason);
}

#[test]
fn what_no_machine_can_have_is_refused() {
    let page = Bytes(rustix::param::page_size() as u64);
    let base = HostConfig::new;
    let of_device =
        |asked| format!("a granularity of {asked}; it must be a power of two and at least a page, {page}");
    let of_host = |asked| {
        format!("a granularity of {asked} for the host's memory; it must be 2 MiB or a larger power of two")
    };
    for (config, expected) in [
        (base().devices(0), "0 devices; there can be 1 to 127".to_owned()),
        (base().devices(DeviceId::LIMIT + 1), "128 devices; there can be 1 to 127".to_owned()),
        (base().granularity(Bytes::kib(3)), of_device(Bytes::kib(3))),
        (base().granularity(Bytes(page.0 / 2)), of_device(Bytes(page.0 / 2))),
        (base().granularity(Bytes::ZERO), of_device(Bytes::ZERO)),
        (base().host_granularity(Bytes::mib(3)), of_host("3 MiB")),
        (base().host_granularity(Bytes::mib(1)), of_host("1 MiB")),
        (
            base().memory(Bytes::mib(1)),
            "1 MiB of memory a device; it must be at least the granularity, 2 MiB".to_owned(),
        ),
    ] {
        let error = config.open().unwrap_err();
        let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
        assert_eq!((reason.as_str(), error.operation()), (expected.as_str(), Operation::Open));
    }
    let most =
        base().devices(DeviceId::LIMIT).memory(Bytes(page.0 * 5 + 1)).granularity(page).open().unwrap();
    assert_eq!(most.devices().len(), 127);
    assert_eq!(most.memory_info(DeviceId(126)).unwrap().total, Bytes(page.0 * 5));
    let error = most.memory_info(DeviceId(127)).unwrap_err();
    assert!(matches!(error.detail(), Detail::NoSuchDevice { count: 127, .. }), "{error}");
}

fn find(host: &HostBackend, feature: Feature) -> Capability {
    host.capabilities(ONE).unwrap().into_iter().find(|one| one.feature == feature).unwrap()
}

#[test]
fn capabilities_say_how_they_were_found_out() {
    let host = HostConfig::new().devices(2).open().unwrap();
    let fixed = find(&host, Feature::FixedAddress);
    assert_eq!((fixed.available, fixed.found_by), (true, Evidence::Trial), "{fixed:?}");
    for capability in host.capabilities(TWO).unwrap() {
        assert!(capability.available || !capability.note.is_empty(), "{capability:?}");
        let is_tried = capability.feature == Feature::FixedAddress;
        assert_eq!(capability.found_by == Evidence::Design, !is_tried, "{capability:?}");
    }
    assert!(find(&host, Feature::PeerAccess).available);
    let apart = HostConfig::new().devices(2).without_peers().open().unwrap();
    assert!(find(&apart, Feature::PeerAccess).note.contains("without peers"));
    assert!(find(&HostBackend::open().unwrap(), Feature::PeerAccess).note.contains("no other device"));
    assert!(matches!(
        host.capabilities(DeviceId(2)).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
}

#[test]
fn each_feature_has_its_answer_once() {
    let host = HostConfig::new().devices(2).open().unwrap();
    assert_eq!(format!("{host:?}"), "host memory, devices: 2");
    let found: Vec<_> =
        host.capabilities(TWO).unwrap().into_iter().map(|one| (one.feature, one.available)).collect();
    let expected = [
        (Feature::VirtualMemory, true),
        (Feature::FixedAddress, true),
        (Feature::ReadOnlyAccess, true),
        (Feature::PeerAccess, true),
        (Feature::FileDescriptor, true),
        (Feature::Win32Handle, false),
        (Feature::FabricHandle, false),
        (Feature::Multicast, false),
        (Feature::HostAccess, true),
        (Feature::HostMemory, true),
        (Feature::HostNodeMemory, false),
        (Feature::Compression, false),
        (Feature::RemoteDma, false),
        (Feature::DmaBuf, false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn each_call_refuses_missing_device() {
    let host = HostConfig::new().devices(2).open().unwrap();
    let none = DeviceId(2);
    let properties = Properties::on(none).shareable();
    let exported = create_as(&host, GRANULE, Properties::on(ONE).shareable()).unwrap().export().unwrap();
    // SAFETY: a granule that was just exported; nothing is mapped, copied or filled.
    let answers = unsafe {
        [
            (host.memory_info(none).map(drop), Operation::QueryMemory),
            (host.can_access(ONE, none).map(drop), Operation::QueryPeerAccess),
            (host.can_access(none, ONE).map(drop), Operation::QueryPeerAccess),
            (host.capabilities(none).map(drop), Operation::QueryCapabilities),
            (host.granularity_of(Operation::Grow, &properties).map(drop), Operation::Grow),
            (host.create(GRANULE, &properties).map(drop), Operation::CreateMemory),
            (host.import(exported.as_fd(), GRANULE, &properties).map(drop), Operation::ImportMemory),
            (host.allocate_plain(none, GRANULE).map(drop), Operation::Allocate),
            (host.free_plain(none, Address(GRANULE.0), GRANULE), Operation::Free),
            (host.copy_from_host(none, Address(GRANULE.0), &[1]), Operation::CopyFromHost),
            (host.copy_to_host(none, &mut [1], Address(GRANULE.0)), Operation::CopyToHost),
            (host.copy(none, Address(GRANULE.0), Address(0), Bytes(1)), Operation::Copy),
            (host.fill(none, Address(GRANULE.0), Bytes(1), 0), Operation::Fill),
            (host.copy_stream(none).map(drop), Operation::CreateStream),
            (host.own_stream(none).map(drop), Operation::CreateStream),
            (host.event(none).map(drop), Operation::CreateEvent),
            (host.synchronize(none), Operation::WaitForDevice),
            (host.synchronize_stream(none, Stream::DEFAULT), Operation::WaitForStream),
        ]
    };
    for (answer, operation) in answers {
        let error = answer.unwrap_err();
        assert_eq!(error.operation(), operation);
        let Detail::NoSuchDevice { device, vendor, count } = error.detail() else { panic!("{error}") };
        assert_eq!((*device, *vendor, *count), (none, Vendor::Host, 2), "{operation}");
    }
}

#[test]
fn multicast_is_refused_with_the_capabilitys_reason() {
    let host = HostConfig::new().devices(2).open().unwrap();
    let error = Team::builder(&host).size(GRANULE).device(ONE).device(TWO).create().unwrap_err();
    let Detail::Unsupported { reason, .. } = error.detail() else { panic!("{error}") };
    assert_eq!(*reason, find(&host, Feature::Multicast).note);
}

/// A refusal has the reason that the capability has.
#[test]
fn unsupported_exports_have_the_capability_reason() {
    let host = HostConfig::new().memory(Bytes::mib(8)).open().unwrap();
    let plain = Properties::on(ONE);
    let reason = |error: Error| match error.detail() {
        Detail::Unsupported { reason } => (error.operation(), reason.clone()),
        _ => panic!("{error}"),
    };
    let [node, fabric, dma_buf] = [Feature::HostNodeMemory, Feature::FabricHandle, Feature::DmaBuf]
        .map(|feature| find(&host, feature).note);
    let on_node = plain.located(Location::HostNode(0));
    let asked = host.granularity_of(Operation::QueryGranularity, &on_node).unwrap_err();
    assert_eq!(reason(asked), (Operation::QueryGranularity, node.clone()));
    let refused = |properties| reason(create_as(&host, GRANULE, properties).unwrap_err());
    assert_eq!(refused(on_node), (Operation::CreateMemory, node));
    assert_eq!(refused(plain.exported_as(HandleTypes::FABRIC)), (Operation::CreateMemory, fabric.clone()));
    let win32 = find(&host, Feature::Win32Handle).note;
    assert_eq!(refused(plain.exported_as(HandleTypes::WIN32)), (Operation::CreateMemory, win32));
    let handle = create(&host, ONE, GRANULE).unwrap();
    assert_eq!(reason(handle.export_fabric().unwrap_err()), (Operation::ExportMemory, fabric.clone()));
    // SAFETY: refused before anything is read.
    let imported = unsafe { host.import_fabric(&FabricHandle([0; FabricHandle::LENGTH]), GRANULE, &plain) };
    assert_eq!(reason(imported.unwrap_err()), (Operation::ImportMemory, fabric));
    let mut range = Range::new(&host, GRANULE);
    range.put(Bytes::ZERO, &handle);
    // SAFETY: one whole mapping.
    let exported = unsafe { range.inner.dma_buf(ONE, Bytes::ZERO, GRANULE) };
    assert_eq!(reason(exported.unwrap_err()), (Operation::ExportDmaBuf, dma_buf));
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
    assert_eq!(free(&host, ONE), Bytes::mib(6));
}

#[test]
fn peers_are_as_configured() {
    for (config, reach) in [(HostConfig::new(), true), (HostConfig::new().without_peers(), false)] {
        let host = config.devices(2).open().unwrap();
        assert!(host.can_access(TWO, TWO).unwrap());
        assert_eq!(host.can_access(ONE, TWO).unwrap(), reach);
        for (device, owner) in [(ONE, DeviceId(2)), (DeviceId(2), ONE)] {
            assert!(matches!(
                host.can_access(device, owner).as_ref().map_err(Error::detail),
                Err(Detail::NoSuchDevice { .. })
            ));
        }
    }
}

#[test]
fn there_is_nothing_to_wait_for() {
    let host = HostBackend::open().unwrap();
    host.synchronize(ONE).unwrap();
    assert!(matches!(
        host.synchronize(TWO).as_ref().map_err(Error::detail),
        Err(Detail::NoSuchDevice { .. })
    ));
    // SAFETY: null is the default stream of every vendor.
    host.synchronize_stream(DeviceId(0), unsafe { Stream::from_raw(std::ptr::null_mut()) }).unwrap();
    // SAFETY: the host backend reads only the number, which none of its streams has.
    let other = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(8)) };
    for error in [
        host.synchronize_stream(DeviceId(0), other).unwrap_err(),
        host.is_capturing(other).unwrap_err(),
        host.event(ONE).unwrap().hold(other).unwrap_err(),
    ] {
        let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
        assert_eq!(reason, "0x8 is not a stream of the host backend; pass one that it created");
    }
    // The number has its device in the low bits: this one is of the sixth.
    // SAFETY: as above.
    let sixth = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(128 + 5)) };
    let error = host.synchronize_stream(ONE, sixth).unwrap_err();
    assert!(matches!(error.detail(), Detail::NoSuchDevice { device: DeviceId(5), count: 1, .. }), "{error}");
}

#[test]
fn quirks_are_those_of_this_kernel() {
    let host = HostBackend::open().unwrap();
    let ids: Vec<_> = host.quirks().iter().map(|quirk| quirk.id).collect();
    assert!(ids.contains(&"joint-access") && ids.contains(&"mapping-limit"), "{ids:?}");
    assert_eq!(ids.contains(&"hint-without-noreplace"), host.driver().version_number < 4017);
}
