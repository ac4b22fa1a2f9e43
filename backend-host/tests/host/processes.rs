//! Forked children: calls fail there, and the objects they drop stay the parent's.

use crate::child::alone;
use crate::range::{Range, create, create_as, free};
use crate::{GRANULE, ONE};
use gpu_vmm_core::{
    Access, Address, Backend, Bytes, Detail, Error, Handle, MemoryCalls, Properties, SyncCalls,
};
use gpu_vmm_host::HostConfig;

/// Runs `body` in a forked child and waits for it.
fn in_fork(body: impl FnOnce()) {
    // SAFETY: the process was started for this test; it has the test's thread and the harness's, which waits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above; the status is this function's.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the forked child failed");
}

/// Returns whether the process has a mapping at an address.
fn is_taken(at: Address) -> bool {
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (number(from)..number(to)).contains(&at.0)
    })
}

fn assert_forked<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result.as_ref().map_err(Error::detail), Err(Detail::Forked)), "{result:?}");
}

/// The forked child is a process of its own: what it has opened works there, and not in its own child.
#[test]
fn grandchild_process_is_refused_too() {
    alone("processes::grandchild_process_is_refused_too", || {
        let host = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
        in_fork(|| {
            let own = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
            drop(create(&own, ONE, GRANULE).unwrap());
            in_fork(|| {
                assert_forked(create(&own, ONE, GRANULE));
                assert_forked(create(&host, ONE, GRANULE));
            });
            assert_forked(create(&host, ONE, GRANULE));
        });
        drop(create(&host, ONE, GRANULE).unwrap());
    });
}

#[test]
fn forked_child_is_refused_without_change() {
    alone("processes::forked_child_is_refused_without_change", || {
        let host = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
        let handle = create(&host, ONE, GRANULE).unwrap();
        let shared = create_as(&host, GRANULE, Properties::on(ONE).shareable()).unwrap();
        let loose = create(&host, ONE, GRANULE).unwrap();
        let mut range = Range::new(&host, Bytes::mib(8));
        range.put(Bytes::ZERO, &handle);
        range.put(GRANULE, &shared);
        range.write(ONE, Bytes::ZERO, b"parent's").unwrap();
        range.write(ONE, GRANULE, b"shared").unwrap();
        let mut elsewhere = Range::new(&host, GRANULE);
        elsewhere.put(Bytes::ZERO, &loose);
        elsewhere.write(ONE, Bytes::ZERO, b"loose").unwrap();
        elsewhere.unmap(Bytes::ZERO, GRANULE).unwrap();
        let empty = Range::new(&host, GRANULE);

        // The fork duplicates the owners, so that the child has its own copies to drop.
        let mut owners = Some((handle, shared, loose, range, elsewhere, empty));
        in_fork(|| {
            let Some((handle, shared, loose, mut range, elsewhere, empty)) = owners.take() else { return };
            let fd = std::fs::File::open("/dev/null").unwrap();
            assert_forked(create(&host, ONE, GRANULE));
            assert_forked(host.memory_info(ONE));
            assert_forked(host.can_access(ONE, ONE));
            assert_forked(host.capabilities(ONE));
            assert_forked(host.synchronize(ONE));
            assert_forked(host.allocate_plain(ONE, GRANULE));
            assert_forked(Range::aligned(&host, GRANULE, GRANULE, None).map(|_| ()));
            // SAFETY: refused before the descriptor is read.
            assert_forked(unsafe {
                host.import(std::os::fd::AsFd::as_fd(&fd), GRANULE, &Properties::on(ONE))
            });
            assert_forked(shared.export());
            assert_forked(range.map(Bytes::mib(4), &loose));
            assert_forked(range.unmap(Bytes::ZERO, GRANULE));
            assert_forked(range.grant(Bytes::ZERO, GRANULE, ONE, Access::None));
            assert_forked(range.access(Bytes::ZERO, ONE));
            assert_forked(range.read(ONE, Bytes::ZERO, 1));
            assert_forked(range.write(ONE, Bytes::ZERO, b"x"));
            assert_forked(range.fill(ONE, Bytes::ZERO, GRANULE, 0));
            let addresses = [range.at(Bytes::ZERO), range.at(GRANULE), empty.at(Bytes::ZERO)];
            drop((handle, shared, loose, range, elsewhere, empty));
            assert!(addresses.into_iter().all(is_taken));
            assert_eq!(host.drop_log().count(), 0);
            drop(host.clone());
        });

        let (handle, shared, loose, mut range, mut elsewhere, _empty) = owners.unwrap();
        assert_eq!(range.read(ONE, Bytes::ZERO, 8).unwrap(), b"parent's");
        assert_eq!(range.read(ONE, GRANULE, 6).unwrap(), b"shared");
        elsewhere.put(Bytes::ZERO, &loose);
        assert_eq!(elsewhere.read(ONE, Bytes::ZERO, 5).unwrap(), b"loose");
        elsewhere.unmap(Bytes::ZERO, GRANULE).unwrap();
        range.unmap(Bytes::ZERO, Bytes::mib(4)).unwrap();
        drop((handle, shared, loose));
        assert_eq!(free(&host, ONE), Bytes::mib(64));
        assert_eq!(host.drop_log().count(), 0);
    });
}

#[test]
fn forked_child_can_open_own_backend() {
    alone("processes::forked_child_can_open_own_backend", || {
        let _parents = HostConfig::new().open().unwrap();
        in_fork(|| {
            let host = HostConfig::new().memory(Bytes::mib(8)).open().unwrap();
            let handle = create(&host, ONE, GRANULE).unwrap();
            let mut range = Range::new(&host, GRANULE);
            range.put(Bytes::ZERO, &handle);
            range.write(ONE, Bytes::ZERO, b"own").unwrap();
            range.unmap(Bytes::ZERO, GRANULE).unwrap();
        });
    });
}
