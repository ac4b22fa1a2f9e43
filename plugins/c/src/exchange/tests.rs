//! Exchanges of one process with itself on host memory.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::backend::{gpu_vmm_close, gpu_vmm_open};
use crate::handles;
use crate::region::{gpu_vmm_region_free, gpu_vmm_region_grow};
use crate::status::{
    GPU_VMM_ACCESS_DENIED, GPU_VMM_ADDRESS_TAKEN, GPU_VMM_BUSY, GPU_VMM_DRIVER, GPU_VMM_INVALID_ARGUMENT,
    GPU_VMM_NO_LISTENER, GPU_VMM_OK, GPU_VMM_PEER, GPU_VMM_STALE_SOCKET, GPU_VMM_TIMED_OUT,
};
use gpu_vmm::{Address, Backend as _, DeviceId, HandleTypes, Placement, Properties, Vendor};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::time::Instant;

#[test]
fn following_ends_with_the_wait() {
    let path = std::env::temp_dir().join(format!("gpu-vmm-c-silent-{}", std::process::id()));
    let _silent = Listens::bind(&path).unwrap();
    let mut backend = null_mut();
    // SAFETY: the name is a string, and the pointer is writable.
    assert_eq!(unsafe { gpu_vmm_open(c"host".as_ptr(), &raw mut backend) }, GPU_VMM_OK);
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let (began, mut followed) = (Instant::now(), null_mut());
    // SAFETY: the backend and the path are valid for the call, and the pointer is writable.
    let status = unsafe { gpu_vmm_follow(backend, name.as_ptr(), 0, 2000, &raw mut followed) };
    assert_ne!(status, GPU_VMM_OK);
    assert!(followed.is_null());
    // The refusal, which the exporter does not read, is not waited for in its turn.
    let took = began.elapsed();
    assert!(Duration::from_secs(2) <= took && took < Duration::from_secs(4), "{took:?}");
    // SAFETY: the backend was opened here and is not used any more.
    unsafe { gpu_vmm_close(backend) };
}

/// Of two processes of one user, neither admits the other as a process of another user.
#[test]
fn only_the_named_user_is_admitted() {
    // SAFETY: the calls have no arguments.
    let (us, path) = (unsafe { libc::geteuid() }, std::env::temp_dir());
    let path = path.join(format!("gpu-vmm-c-user-{}", std::process::id()));
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let mut memory = gpu_vmm::Region::builder(&host)
        .memory(Properties::on(DeviceId(0)).exported_as(HandleTypes::FILE_DESCRIPTOR))
        .reserve(Bytes(UNIT))
        .build()
        .unwrap();
    memory.grow_to(Bytes(UNIT)).unwrap();
    let region = handles::add(Region::of(&host, memory)).unwrap();
    let (backend, mut listener) = (handles::add(Backend(host)).unwrap(), null_mut());
    // SAFETY: the objects live during the calls, and the places are writable. No thread uses a place of another.
    unsafe {
        assert_eq!(gpu_vmm_listener_new(name.as_ptr(), &raw mut listener), GPU_VMM_OK);
        for (exports_to, follows, expected) in [
            (us, us, [GPU_VMM_OK; 2]),
            (us + 1, us, [GPU_VMM_ACCESS_DENIED, GPU_VMM_PEER]),
            (us, us + 1, [GPU_VMM_PEER, GPU_VMM_ACCESS_DENIED]),
        ] {
            let (from, to, listens) = (region.addr(), backend.addr(), listener.addr());
            let found = std::thread::scope(|scope| {
                let exported = scope.spawn(move || {
                    let (listener, region) =
                        (std::ptr::without_provenance(listens), std::ptr::without_provenance(from));
                    let mut exporter = null_mut();
                    let status =
                        gpu_vmm_export_to_user(listener, region, exports_to, WAIT, &raw mut exporter);
                    gpu_vmm_exporter_free(exporter);
                    status
                });
                let mut followed = null_mut();
                let backend = std::ptr::without_provenance(to);
                let status = gpu_vmm_follow_user(backend, name.as_ptr(), follows, 0, WAIT, &raw mut followed);
                gpu_vmm_followed_free(followed);
                [exported.join().unwrap(), status]
            });
            assert_eq!(found, expected, "{exports_to} {follows} of {us}");
        }
        gpu_vmm_listener_free(listener);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
}

/// Both ends of an exchange of one unit of memory, which are freed at the end.
struct Ends {
    backend: *mut Backend,
    region: *mut Region,
    exporter: *mut Exporter,
    followed: *mut Followed,
}

const UNIT: u64 = Bytes::mib(2).0;
const WAIT: u64 = 30_000; // milliseconds

fn begin(name: &str) -> Ends {
    begin_with(name, 0, |_| ())
}

/// Begins an exchange whose importer reserves this many bytes of addresses; if it is 0, as many as the memory needs. `before` is
/// called with the region before it is exported.
fn begin_with(name: &str, reserve: u64, before: impl FnOnce(*const Region)) -> Ends {
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let mut properties = Properties::on(DeviceId(0));
    properties.handle_types = HandleTypes::FILE_DESCRIPTOR;
    let mut memory =
        gpu_vmm::Region::builder(&host).memory(properties).reserve(Bytes(8 * UNIT)).build().unwrap();
    memory.grow_to(Bytes(UNIT)).unwrap();
    let region = handles::add(Region::of(&host, memory)).unwrap();
    before(region);
    let backend = handles::add(Backend(host)).unwrap();
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-{name}-{}", std::process::id()));
    let path = CString::new(file.as_os_str().as_bytes()).unwrap();
    let (mut listener, mut exporter, mut followed) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the objects live during the calls, and the places are writable. No thread uses a place of another.
    unsafe {
        assert_eq!(gpu_vmm_listener_new(path.as_ptr(), &raw mut listener), GPU_VMM_OK);
        assert_eq!(
            gpu_vmm_export(listener, region, 0, &raw mut exporter),
            GPU_VMM_TIMED_OUT,
            "no process connects"
        );
        let (from, to) = (region.addr(), backend.addr());
        std::thread::scope(|scope| {
            let status = scope.spawn(|| {
                let (backend, mut made) = (std::ptr::without_provenance(to), null_mut());
                let status = gpu_vmm_follow(backend, path.as_ptr(), reserve, WAIT, &raw mut made);
                (status, made.addr())
            });
            let region = std::ptr::without_provenance(from);
            assert_eq!(gpu_vmm_export(listener, region, WAIT, &raw mut exporter), GPU_VMM_OK);
            let (status, made) = status.join().unwrap();
            assert_eq!(status, GPU_VMM_OK);
            followed = std::ptr::without_provenance_mut(made);
        });
        gpu_vmm_listener_free(listener);
        assert!(handles::find(listener).is_none() && !file.exists());
    }
    Ends { backend, region, exporter, followed }
}

impl Ends {
    fn next(&self, milliseconds: u64) -> u32 {
        let mut event = 4711;
        // SAFETY: the region lives, and the place is writable.
        assert_eq!(unsafe { gpu_vmm_followed_next(self.followed, milliseconds, &raw mut event) }, GPU_VMM_OK);
        event
    }

    fn range(&self) -> (u64, u64) {
        let (mut address, mut size) = (0, 0);
        // SAFETY: the region lives, and the places are writable.
        let status = unsafe { gpu_vmm_followed_range(self.followed, &raw mut address, &raw mut size) };
        assert_eq!(status, GPU_VMM_OK);
        (address, size)
    }

    fn end(self) {
        // SAFETY: each object is freed once, and not used any more.
        unsafe {
            gpu_vmm_exporter_free(self.exporter);
            gpu_vmm_followed_free(self.followed);
            gpu_vmm_region_free(self.region);
            gpu_vmm_close(self.backend);
            assert!(handles::find(self.exporter).is_none() && handles::find(self.followed).is_none());
        }
    }
}

#[test]
fn followed_region_moves_only_if_allowed() {
    // What another test has mapped behind the region can go away at any time. Then the region grows where it is.
    assert!((0..20).any(|_| moves_only_if_it_may()), "the addresses behind the region are always free");
}

/// Returns false if the addresses behind the region are free.
fn moves_only_if_it_may() -> bool {
    let ends = begin("moves");
    let (begin, end) = ends.range();
    assert_eq!(end, UNIT);
    // SAFETY: the objects live, and the places are writable.
    unsafe {
        // What lies behind the region is taken, if it is not already.
        let host = &handles::find(ends.backend).unwrap().0;
        let behind = Placement::Exact(Address(begin + UNIT));
        let _taken = gpu_vmm::Region::builder(host).at(behind).reserve(Bytes(UNIT)).build();
        let mut sent = true;
        assert_eq!(gpu_vmm_exporter_wait_applied(ends.exporter, WAIT), GPU_VMM_OK);
        assert_eq!(gpu_vmm_exporter_publish(ends.exporter, ends.region, &raw mut sent), GPU_VMM_OK);
        assert!(!sent && ends.next(0) == GPU_VMM_EVENT_NONE);
        assert_eq!(gpu_vmm_region_grow(ends.region, 3 * UNIT), GPU_VMM_OK);
        assert_eq!(gpu_vmm_exporter_publish(ends.exporter, ends.region, &raw mut sent), GPU_VMM_OK);
        let status = gpu_vmm_followed_next(ends.followed, WAIT, null_mut());
        assert_eq!(status, GPU_VMM_INVALID_ARGUMENT, "there is no place for the event, which is not lost");
        assert!(sent && ends.next(WAIT) == GPU_VMM_EVENT_CHANGED);
        assert_eq!(
            gpu_vmm_exporter_wait_applied(ends.exporter, 1),
            GPU_VMM_TIMED_OUT,
            "nothing is applied yet"
        );
        let status = gpu_vmm_followed_apply(ends.followed, false);
        if status == GPU_VMM_OK {
            ends.end();
            return false;
        }
        assert_eq!(status, GPU_VMM_ADDRESS_TAKEN);
        assert_eq!(ends.range(), (begin, UNIT));
        assert_eq!(gpu_vmm_exporter_wait_applied(ends.exporter, WAIT), GPU_VMM_PEER, "it was refused");
        assert_eq!(gpu_vmm_followed_apply(ends.followed, true), GPU_VMM_OK);
        let (moved, end) = ends.range();
        assert_eq!(end, 3 * UNIT);
        if moved == begin {
            // Another test has let go of the addresses meanwhile.
            ends.end();
            return false;
        }
        assert_eq!(gpu_vmm_exporter_wait_applied(ends.exporter, WAIT), GPU_VMM_OK);
        let (text, mut read) = (b"bytes", [0; 5]);
        assert_eq!(gpu_vmm_followed_write(ends.followed, end - 5, text.as_ptr().cast(), 5), GPU_VMM_OK);
        assert_eq!(gpu_vmm_followed_read(ends.followed, end - 5, read.as_mut_ptr().cast(), 5), GPU_VMM_OK);
        assert_eq!(&read, text);
        handles::find(ends.region).unwrap().memory.read(Bytes(end - 5), &mut read).unwrap();
        assert_eq!(&read, text, "both have one memory");
    }
    ends.end();
    true
}

#[test]
fn each_end_learns_the_others_end() {
    let ends = begin("released");
    let mut outcome = 4711;
    // SAFETY: the objects live, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_exporter_wait_released(ends.exporter, 1, &raw mut outcome), GPU_VMM_TIMED_OUT);
        assert_eq!(outcome, 0, "it is cleared");
        assert_eq!(gpu_vmm_exporter_request_release(ends.exporter), GPU_VMM_OK);
        assert_eq!(ends.next(WAIT), GPU_VMM_EVENT_RELEASE_REQUESTED);
        assert_eq!(gpu_vmm_followed_release(ends.followed), GPU_VMM_OK);
        outcome = 4711;
        assert_eq!(gpu_vmm_exporter_wait_released(ends.exporter, WAIT, &raw mut outcome), GPU_VMM_OK);
        assert_eq!(outcome, GPU_VMM_RELEASED);
    }
    ends.end();
    let ends = begin("gone");
    // SAFETY: the exporter is freed once.
    unsafe { gpu_vmm_exporter_free(ends.exporter) };
    assert_eq!(ends.next(WAIT), GPU_VMM_EVENT_GONE);
    ends.end();
}

#[test]
fn a_released_import_refuses_each_call() {
    let ends = begin("refuses");
    let (mut event, mut first, mut last, mut byte) = (4711, 4711, 4711, 0_u8);
    let place = (&raw mut byte).cast();
    let refused = |status: Status| (status, crate::tests::last_error());
    // SAFETY: the objects live, and the places are writable.
    unsafe {
        assert_eq!(gpu_vmm_followed_release(ends.followed), GPU_VMM_OK);
        for (refused, operation) in [
            (refused(gpu_vmm_followed_release(ends.followed)), Operation::ReleaseImport),
            (refused(gpu_vmm_followed_apply(ends.followed, true)), Operation::ApplyChange),
            (refused(gpu_vmm_followed_next(ends.followed, WAIT, &raw mut event)), Operation::Receive),
            (
                refused(gpu_vmm_followed_range(ends.followed, &raw mut first, &raw mut last)),
                Operation::LockRegion,
            ),
            (refused(gpu_vmm_followed_read(ends.followed, 0, place, 1)), Operation::Read),
            (refused(gpu_vmm_followed_write(ends.followed, 0, place, 1)), Operation::Write),
        ] {
            let text = format!("{operation}: the region was released");
            assert_eq!(refused, (GPU_VMM_INVALID_ARGUMENT, text));
        }
    }
    assert_eq!((event, first, last), (0, 0, 0));
    ends.end();
}

/// While a stream captures, no memory can be unmapped.
#[test]
fn importer_unable_to_release_keeps_memory() {
    let ends = begin("kept");
    let mut outcome = 4711;
    // SAFETY: the objects live, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_exporter_wait_applied(ends.exporter, WAIT), GPU_VMM_OK);
        let host = handles::find(ends.backend).unwrap().0.clone();
        host.deferred().capture_begins();
        assert_eq!(gpu_vmm_followed_release(ends.followed), GPU_VMM_BUSY);
        host.deferred().capture_ends();
        assert_eq!(gpu_vmm_exporter_wait_released(ends.exporter, WAIT, &raw mut outcome), GPU_VMM_OK);
        assert_eq!(outcome, GPU_VMM_RELEASE_KEPT);
        assert_eq!(gpu_vmm_exporter_request_release(ends.exporter), GPU_VMM_PEER);
        assert!(crate::tests::last_error().contains("it keeps the memory and has ended the exchange"));
    }
    ends.end();
}

#[test]
fn region_with_tensor_is_exported_and_grows() {
    use crate::tensor::{gpu_vmm_dlpack_delete, gpu_vmm_region_dlpack};
    let (mut tensor, nothing) = (null_mut(), std::ptr::null());
    let ends = begin_with("with-a-tensor", 8 * UNIT, |region| {
        // SAFETY: the region lives, and the place is writable.
        let status = unsafe {
            gpu_vmm_region_dlpack(region, 0, 0, 8, 1, 0, nothing, nothing, false, true, &raw mut tensor)
        };
        assert_eq!(status, GPU_VMM_OK);
    });
    let mut sent = false;
    // SAFETY: the objects live, and the place is writable.
    unsafe {
        assert_eq!(gpu_vmm_region_grow(ends.region, 2 * UNIT), GPU_VMM_OK);
        assert_eq!(gpu_vmm_exporter_publish(ends.exporter, ends.region, &raw mut sent), GPU_VMM_OK);
        assert!(sent && ends.next(WAIT) == GPU_VMM_EVENT_CHANGED);
        gpu_vmm_dlpack_delete(tensor, true);
    }
    ends.end();
}

#[test]
fn an_importer_that_is_freed_is_gone() {
    let mut outcome = 4711;
    let mut ends = begin("importer-gone");
    // SAFETY: freed once; null afterwards.
    unsafe {
        assert_eq!(gpu_vmm_exporter_wait_applied(ends.exporter, WAIT), GPU_VMM_OK);
        gpu_vmm_followed_free(ends.followed);
        ends.followed = null_mut();
        assert_eq!(gpu_vmm_exporter_wait_released(ends.exporter, WAIT, &raw mut outcome), GPU_VMM_OK);
        assert_eq!(outcome, GPU_VMM_RELEASE_GONE);
    }
    ends.end();
}

#[test]
fn followed_region_reserves_requested_addresses() {
    for (name, reserve) in [("reserves", 32 * UNIT), ("reserves-no-more", 0)] {
        let ends = begin_with(name, reserve, |_| ());
        // SAFETY: the region lives.
        let reserved = unsafe {
            with(ends.followed, Operation::LockRegion, |imported| Ok(imported.region().reserved())).unwrap()
        };
        assert_eq!(reserved, Bytes(if reserve == 0 { UNIT } else { reserve }), "{name}");
        ends.end();
    }
}

#[test]
fn path_has_at_most_one_listener() {
    let file = std::env::temp_dir().join(format!("gpu-vmm-c-one-listener-{}", std::process::id()));
    let path = CString::new(file.as_os_str().as_bytes()).unwrap();
    let backend = handles::add(Backend(AnyBackend::open(Vendor::Host).unwrap())).unwrap();
    let (mut listener, mut other, mut followed) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the path is a string, the places are writable, and the objects are freed after their last use.
    unsafe {
        let status = gpu_vmm_follow(backend, path.as_ptr(), 0, WAIT, &raw mut followed);
        assert_eq!(
            (status, followed.is_null()),
            (GPU_VMM_NO_LISTENER, true),
            "it does not wait for a listener"
        );
        assert_eq!(gpu_vmm_listener_new(path.as_ptr(), &raw mut listener), GPU_VMM_OK);
        let status = gpu_vmm_listener_new(path.as_ptr(), &raw mut other);
        assert_eq!((status, other.is_null()), (GPU_VMM_DRIVER, true));
        assert!(file.exists(), "the first one stays");
        let status = gpu_vmm_listener_replace_stale(path.as_ptr(), &raw mut other);
        assert_eq!((status, other.is_null()), (GPU_VMM_DRIVER, true), "it is not stale");
        gpu_vmm_listener_free(listener);
        assert!(!file.exists());
        // Rust's own listener leaves its socket behind.
        drop(std::os::unix::net::UnixListener::bind(&file).unwrap());
        let status = gpu_vmm_follow(backend, path.as_ptr(), 0, WAIT, &raw mut followed);
        assert_eq!((status, followed.is_null()), (GPU_VMM_STALE_SOCKET, true));
        let status = gpu_vmm_listener_new(path.as_ptr(), &raw mut listener);
        assert_eq!((status, listener.is_null()), (GPU_VMM_STALE_SOCKET, true));
        assert_eq!(gpu_vmm_listener_replace_stale(path.as_ptr(), &raw mut listener), GPU_VMM_OK);
        gpu_vmm_listener_free(listener);
        assert!(!file.exists());
        gpu_vmm_close(backend);
    }
}
