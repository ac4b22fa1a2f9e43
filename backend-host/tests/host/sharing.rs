//! Memory shared between processes, and descriptors that a host backend did not export.

use crate::child::{alone, is_child, spawn};
use crate::range::{Range, create, create_as, free};
use crate::{GRANULE, ONE};
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, Error, Feature, Handle, HandleTypes, MemoryCalls, PhysicalMemory,
    Properties, Region, Result,
};
use gpu_vmm_host::{HostBackend, HostConfig, HostHandle};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

const SHARED: Properties = Properties::on(ONE).shareable();

fn machine() -> HostBackend {
    HostConfig::new().memory(Bytes::mib(16)).open().unwrap()
}

fn import(host: &HostBackend, fd: impl AsFd, size: Bytes) -> Result<HostHandle> {
    // SAFETY: the host backend checks the descriptor and its size itself.
    unsafe { host.import(fd.as_fd(), size, &SHARED) }
}

#[test]
fn exported_memory_is_the_same_memory() {
    let (exporter, importer) = (machine(), machine());
    let handle = create_as(&exporter, Bytes::mib(4), SHARED).unwrap();
    let fd = handle.export().unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let imported = import(&importer, &fd, Bytes::mib(4)).unwrap();
    drop(fd);
    assert_eq!((imported.size(), imported.properties()), (Bytes::mib(4), SHARED));

    let (mut ours, mut theirs) = (Range::new(&exporter, Bytes::mib(4)), Range::new(&importer, Bytes::mib(4)));
    ours.put(Bytes::ZERO, &handle);
    theirs.put(Bytes::ZERO, &imported);
    ours.write(ONE, Bytes::mib(3), b"to them").unwrap();
    assert_eq!(theirs.read(ONE, Bytes::mib(3), 7).unwrap(), b"to them");
    theirs.write(ONE, Bytes::ZERO, b"back").unwrap();
    assert_eq!(ours.read(ONE, Bytes::ZERO, 4).unwrap(), b"back");

    // It counts where it was created, and lives as long as any process holds it.
    assert_eq!((free(&exporter, ONE), free(&importer, ONE)), (Bytes::mib(12), Bytes::mib(16)));
    ours.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
    drop((handle, ours));
    assert_eq!(free(&exporter, ONE), Bytes::mib(16));
    drop(exporter);
    assert_eq!(theirs.read(ONE, Bytes::mib(3), 7).unwrap(), b"to them");
    let again = import(&importer, imported.export().unwrap(), Bytes::mib(4)).unwrap();
    theirs.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
    drop(imported);
    theirs.put(Bytes::ZERO, &again);
    assert_eq!(theirs.read(ONE, Bytes::ZERO, 4).unwrap(), b"back");
    theirs.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
}

/// The check is the core's, so that it is the same for all drivers.
#[test]
fn handles_of_another_system_are_refused_for_the_reason_that_the_capability_tells() {
    let host = machine();
    let told = host.capabilities(ONE).unwrap();
    let told = told.iter().find(|one| one.feature == Feature::Win32Handle).unwrap();
    let elsewhere = Properties::on(ONE).exported_as(HandleTypes::WIN32);
    let mut region = Region::builder(&host).reserve(GRANULE).memory(elsewhere).build().unwrap();
    let fd = create_as(&host, GRANULE, SHARED).unwrap().export().unwrap();
    // SAFETY: the memory matches its description, except for its handle type.
    let imported = unsafe { PhysicalMemory::import(&host, fd.as_fd(), GRANULE, elsewhere) };
    let refusals = [
        PhysicalMemory::create(&host, GRANULE, elsewhere).map(drop),
        PhysicalMemory::create(&host, GRANULE, elsewhere.shareable()).map(drop),
        imported.map(drop),
        region.grow_to(GRANULE).map(drop),
    ];
    for refused in refusals {
        let Err(Detail::Unsupported { reason, .. }) = refused.as_ref().map_err(Error::detail) else {
            panic!("{refused:?}")
        };
        assert_eq!((told.available, &told.note), (false, reason));
    }
    assert!(PhysicalMemory::create(&host, GRANULE, SHARED).is_ok());
}

/// The child receives the memory as its standard input.
#[test]
fn another_process_has_the_same_memory() {
    let host = machine();
    let mut range = Range::new(&host, GRANULE);
    if is_child() {
        let imported = import(&host, std::io::stdin(), GRANULE).unwrap();
        range.put(Bytes::ZERO, &imported);
        assert_eq!(range.read(ONE, Bytes(100), 6).unwrap(), b"parent");
        range.write(ONE, Bytes(100), b"child!").unwrap();
        range.unmap(Bytes::ZERO, GRANULE).unwrap();
        return;
    }
    let handle = create_as(&host, GRANULE, SHARED).unwrap();
    range.put(Bytes::ZERO, &handle);
    range.write(ONE, Bytes(100), b"parent").unwrap();
    let status = spawn("sharing::another_process_has_the_same_memory", handle.export().unwrap());
    assert!(status.success(), "{status}");
    assert_eq!(range.read(ONE, Bytes(100), 6).unwrap(), b"child!");
    range.unmap(Bytes::ZERO, GRANULE).unwrap();
}

#[test]
fn memory_that_was_not_created_for_it_is_not_exported() {
    let host = machine();
    let error = create(&host, ONE, GRANULE).unwrap().export().unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("shareable")),
        "{error}"
    );
}

#[test]
fn the_size_of_exported_memory_cannot_be_changed() {
    let fd = create_as(&machine(), GRANULE, SHARED).unwrap().export().unwrap();
    for size in [0, GRANULE.0 * 2] {
        assert_eq!(rustix::fs::ftruncate(&fd, size), Err(rustix::io::Errno::PERM));
    }
}

/// The seals are sealed too: memory that could be sealed against writing could not be mapped for writing any more.
#[test]
fn no_seal_can_be_added_and_none_may_be_missing() {
    let host = machine();
    let fd = create_as(&host, GRANULE, SHARED).unwrap().export().unwrap();
    assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(rustix::io::Errno::PERM));
    let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL];
    for missing in all {
        let fd = memfd_create("less", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, GRANULE.0).unwrap();
        let seals = all.into_iter().filter(|seal| *seal != missing).collect::<SealFlags>();
        fcntl_add_seals(&fd, seals).unwrap();
        let error = import(&host, &fd, GRANULE).unwrap_err();
        assert_eq!(error.driver_error().unwrap().call, "fcntl(F_GET_SEALS)", "without {missing:?}: {error}");
    }
}

/// Host memory has none of the flags, however it was asked for.
#[test]
fn memory_has_no_flags_that_the_host_cannot_grant() {
    let (exporter, importer) = (machine(), machine());
    let asked = SHARED.compressible().remote_dma();
    let created = create_as(&exporter, GRANULE, asked).unwrap();
    let fd = created.export().unwrap();
    // SAFETY: the host backend checks the descriptor and its size itself.
    let imported = unsafe { importer.import(fd.as_fd(), GRANULE, &asked) }.unwrap();
    assert_eq!((created.properties(), imported.properties()), (SHARED, SHARED));
}

#[test]
fn descriptors_are_closed_on_exec_and_are_no_standard_streams() {
    alone("sharing::descriptors_are_closed_on_exec_and_are_no_standard_streams", || {
        let host = machine();
        let handle = create_as(&host, GRANULE, SHARED).unwrap();
        let files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let ours = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("memfd:gpu-vmm-host"))
        };
        let numbers: Vec<i32> = files
            .filter(ours)
            .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
            .collect();
        // The backend's own file, and that of the memory.
        assert_eq!(numbers.len(), 2);
        for number in numbers {
            // SAFETY: the call returns the flags of an open descriptor.
            assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, libc::FD_CLOEXEC);
        }
        // SAFETY: this process reads no input.
        assert_eq!(unsafe { libc::close(0) }, 0);
        assert!(handle.export().unwrap().as_raw_fd() > 2);
    });
}

#[test]
fn what_is_no_exported_memory_is_refused() {
    let host = machine();
    let text = |fd: OwnedFd, size| {
        let error = import(&host, fd, size).unwrap_err();
        assert_eq!(error.driver_error().unwrap().name, "EINVAL");
        error.to_string()
    };
    let exported = create_as(&host, Bytes::mib(4), SHARED).unwrap().export().unwrap();
    let found = text(exported, GRANULE);
    assert!(found.contains("has 4 MiB, not 2 MiB"), "{found}");

    let unsealed = rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, GRANULE.0).unwrap();
    let null = File::open("/dev/null").unwrap().into();
    let program = File::open(std::env::current_exe().unwrap()).unwrap().into();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    for fd in [unsealed, null, program, socket.into()] {
        let found = text(fd, GRANULE);
        assert!(found.contains("not a memfd of sealed size"), "{found}");
    }
    // SAFETY: as in import.
    let result = unsafe { host.import(std::io::stdin().as_fd(), GRANULE, &Properties::on(DeviceId(7))) };
    assert!(matches!(result.as_ref().map_err(Error::detail), Err(Detail::NoSuchDevice { .. })));
}
