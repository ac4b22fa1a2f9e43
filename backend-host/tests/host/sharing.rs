//! Memory shared between processes, and descriptors that a host backend did not export.

use crate::child::alone;
use crate::range::create_as;
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

/// The check is the core's, so that it is the same for all drivers.
#[test]
fn foreign_handle_types_have_capability_reason() {
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

#[test]
fn exported_memory_size_is_fixed() {
    let fd = create_as(&machine(), GRANULE, SHARED).unwrap().export().unwrap();
    for size in [0, GRANULE.0 * 2] {
        assert_eq!(rustix::fs::ftruncate(&fd, size), Err(rustix::io::Errno::PERM));
    }
}

/// The seals are sealed too: memory that could be sealed against writing could not be mapped for writing any more.
#[test]
fn imported_seals_must_match_exactly() {
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
fn memory_has_no_unsupported_flags() {
    let (exporter, importer) = (machine(), machine());
    let asked = SHARED.compressible().remote_dma();
    let created = create_as(&exporter, GRANULE, asked).unwrap();
    let fd = created.export().unwrap();
    // SAFETY: the host backend checks the descriptor and its size itself.
    let imported = unsafe { importer.import(fd.as_fd(), GRANULE, &asked) }.unwrap();
    assert_eq!((created.properties(), imported.properties()), (SHARED, SHARED));
}

#[test]
fn descriptors_close_on_exec_above_two() {
    alone("sharing::descriptors_close_on_exec_above_two", || {
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
        // The backend's own file, and the memory's.
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
