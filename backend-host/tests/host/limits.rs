//! Behavior at the limits of a process, and that nothing stays allocated. Each test runs in a process of its own.

use crate::child::alone;
use crate::range::{Range, create, create_as, free, properties_of};
use crate::{ONE, SMALL};
use gpu_vmm_core::extend::HostPages;
use gpu_vmm_core::{
    Access, Backend, Bytes, CopyCalls, Detail, ErrorKind, MemoryCalls, Operation, Properties, Reservation,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
}

fn machine() -> HostBackend {
    HostConfig::new().granularity(SMALL).memory(Bytes::gib(16)).open().unwrap()
}

#[test]
fn only_shared_memory_needs_descriptors() {
    alone("limits::only_shared_memory_needs_descriptors", || {
        limit(Resource::Nofile, 32);
        let host = machine();
        let handles: Vec<_> = (0..1000).map(|_| create(&host, ONE, SMALL).unwrap()).collect();
        let before = free(&host, ONE);
        let mut shared = Vec::new();
        let error = loop {
            match create_as(&host, SMALL, Properties::on(ONE).shareable()) {
                Ok(handle) => shared.push(handle),
                Err(error) => break error,
            }
            assert!(shared.len() < 32);
        };
        let source = error.driver_error().unwrap();
        assert_eq!((source.call, source.name.as_ref()), ("memfd_create", "EMFILE"), "{error}");
        assert!(source.description.contains("RLIMIT_NOFILE"), "{error}");
        assert_eq!(before - free(&host, ONE), Bytes(SMALL.0 * shared.len() as u64));
        let error = gpu_vmm_core::Handle::export(&shared[0]).unwrap_err();
        assert_eq!(error.driver_error().unwrap().name, "EMFILE", "{error}");
        assert!(HostBackend::open().is_err());
        shared.clear();
        create_as(&host, SMALL, Properties::on(ONE).shareable()).unwrap();
        drop(handles);
        assert_eq!(free(&host, ONE), Bytes::gib(16));
    });
}

/// Adjacent addresses are not adjacent in the file, so the kernel merges no mappings.
#[test]
fn too_many_mappings_are_a_clear_error() {
    alone("limits::too_many_mappings_are_a_clear_error", || {
        let most: u64 =
            std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        if most > 1 << 20 {
            eprintln!("vm.max_map_count is {most}: too many to reach in a test");
            return;
        }
        let host = machine();
        let handle = create(&host, ONE, SMALL).unwrap();
        let size = Bytes(SMALL.0 * (most + 8));
        let mut range = Range::new(&host, size);
        let mut end = Bytes::ZERO;
        let other = Range::new(&host, size);
        let error = loop {
            match range.map(end, &handle) {
                Ok(()) => end += SMALL,
                Err(error) => break error,
            }
        };
        let source = error.driver_error().unwrap();
        assert_eq!((source.call, source.name.as_ref()), ("mmap", "ENOMEM"), "{error}");
        assert!(
            source.description.contains(&format!("kernel allows {most}; raise vm.max_map_count")),
            "{error}"
        );
        assert!(!error.is_out_of_memory());
        assert!(range.access(end, ONE).is_err());

        // Existing mappings stay usable and can be removed: by dropping a range, in the middle, and as a run.
        let middle = Bytes(SMALL.0 * 1000);
        range.unmap(middle, SMALL).unwrap();
        range.map(middle, &handle).unwrap();
        drop(other);
        range.grant(end - SMALL, SMALL, ONE, Access::ReadWrite).unwrap();
        range.write(ONE, end - SMALL, b"works").unwrap();
        range.unmap(Bytes::ZERO, end).unwrap();
        range.put(Bytes::ZERO, &handle);
        assert_eq!(range.read(ONE, Bytes::ZERO, 5).unwrap(), b"works");
        range.unmap(Bytes::ZERO, SMALL).unwrap();
    });
}

#[test]
fn too_little_address_space_is_an_error() {
    alone("limits::too_little_address_space_is_an_error", || {
        let host = machine();
        limit(Resource::As, 1 << 30);
        if getrlimit(Resource::As).current != Some(1 << 30) {
            eprintln!("qemu-user ignores limits of address space, which would be its own: nothing tested");
            return;
        }
        let error = Range::aligned(&host, Bytes::gib(2), SMALL, None).err().unwrap();
        assert_eq!(error.driver_error().unwrap().name, "ENOMEM", "{error}");
        assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace, "{error}");
        let text = error.to_string();
        assert!(text.contains("2 GiB") && text.contains("(ulimit -v) is 1 GiB, of which"), "{text}");
        // Host memory that a suspension cannot get.
        for error in [
            HostPages::new(Operation::Suspend, Bytes::gib(2)).err().unwrap(),
            host.pin(Bytes::gib(2)).err().unwrap(),
        ] {
            assert!(error.is_out_of_memory(), "{error}");
            assert!(error.to_string().contains("(ulimit -v) is 1 GiB"), "{error}");
        }
        let error = host.allocate_plain(ONE, Bytes::gib(2)).unwrap_err();
        assert!(matches!(error.detail(), Detail::OutOfMemory { .. }), "{error}");
        assert_eq!(free(&host, ONE), Bytes::gib(16));
        Range::new(&host, Bytes::mib(256));
    });
}

fn left_behind() -> (usize, usize) {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (mappings, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

fn memory_of_the_process() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("RssShmem")).unwrap();
    Bytes::kib(line.split_whitespace().nth(1).unwrap().parse().unwrap())
}

/// All operations, half of them invalid.
fn work() {
    let host = machine();
    let mut range = Range::aligned(&host, Bytes::mib(64), Bytes::gib(1), None).unwrap();
    let hinted = Range::aligned(&host, Bytes::mib(1), SMALL, Some(range.at(Bytes::ZERO).0)).unwrap();
    let handles: Vec<_> = (0..8)
        .map(|index| create_as(&host, Bytes::mib(2), properties_of(ONE, index % 2 == 0)).unwrap())
        .collect();
    for (index, handle) in handles.iter().enumerate() {
        range.put(Bytes::mib(4 * index as u64), handle);
        range.fill(ONE, Bytes::mib(4 * index as u64), Bytes::mib(2), 1).unwrap();
        assert!(range.map(Bytes::mib(4 * index as u64 + 1), handle).is_err());
    }
    let exported = gpu_vmm_core::Handle::export(&handles[0]).unwrap();
    assert!(create(&host, ONE, Bytes::gib(17)).is_err());
    let plain = host.allocate_plain(ONE, Bytes::mib(3)).unwrap();
    // SAFETY: allocated above and unused.
    unsafe { host.free_plain(ONE, plain, Bytes::mib(3)) }.unwrap();
    host.capabilities(ONE).unwrap();
    for index in 0..8 {
        range.unmap(Bytes::mib(4 * index), Bytes::mib(2)).unwrap();
    }
    assert_eq!(host.drop_log().count(), 0);
    drop((handles, exported, hinted));
    assert_eq!(free(&host, ONE), Bytes::gib(16));
    assert_eq!(range.inner.range().size, Bytes::mib(64));
}

#[test]
fn nothing_is_left_behind() {
    alone("limits::nothing_is_left_behind", || {
        work();
        let before = left_behind();
        for _ in 0..25 {
            work();
        }
        assert_eq!(left_behind(), before);
    });
}

#[test]
fn released_memory_goes_back_to_the_machine() {
    alone("limits::released_memory_goes_back_to_the_machine", || {
        let host = machine();
        let size = Bytes::mib(64);
        let mut range = Range::new(&host, size);
        let file_blocks = || {
            let files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let store = |path: &std::path::PathBuf| {
                std::fs::read_link(path)
                    .is_ok_and(|link| link.to_string_lossy().contains("memfd:gpu-vmm-host"))
            };
            files.filter(store).map(|path| rustix::fs::stat(&path).unwrap().st_blocks * 512).sum::<i64>()
        };
        let handle = create(&host, ONE, size).unwrap();
        range.put(Bytes::ZERO, &handle);
        range.fill(ONE, Bytes::ZERO, size, 1).unwrap();
        assert!(memory_of_the_process() >= size);
        assert_eq!(file_blocks(), size.0 as i64);
        drop(handle);
        range.unmap(Bytes::ZERO, size).unwrap();
        assert!(memory_of_the_process() < Bytes::mib(1));
        assert_eq!(file_blocks(), 0);
    });
}
