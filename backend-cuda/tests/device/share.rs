//! Shared memory: imports, other processes, forked children; and a process whose device is lost.
#![allow(unsafe_code)]

use crate::support::*;
use gpu_vmm_core::{
    Backend, Bytes, CopyCalls, Detail, DeviceId, Error, FabricHandle, Handle, MemoryCalls, Operation,
    Properties, Reservation, Result, Stream, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use std::os::fd::{AsFd, AsRawFd};

fn shareable() -> Properties {
    Properties::on(DEVICE).shareable()
}

pub(crate) fn an_import_is_the_same_memory(backend: &CudaBackend) {
    let size = granules(backend, 2);
    let handle = create_with(backend, size, shareable());
    let fd = handle.export().unwrap();
    assert!(fd.as_raw_fd() > 2, "{fd:?}");
    // SAFETY: the call takes an open descriptor.
    assert_ne!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } & libc::FD_CLOEXEC, 0);
    // SAFETY: the memory is of this size and these properties.
    let import = unsafe { backend.import(fd.as_fd(), size, &shareable()) }.unwrap();
    // The descriptor and the first handle are no longer needed.
    drop(fd);
    let mut reservation = reserve(backend, granules(backend, 4), None);
    map(&mut reservation, Bytes::ZERO, &handle);
    map(&mut reservation, size, &import);
    write_pattern(backend, DEVICE, at(&reservation, Bytes::ZERO), size, 31);
    assert_eq!(count_wrong(backend, DEVICE, at(&reservation, size), size, 31), 0);
    unmap(&mut reservation, Bytes::ZERO, size);
    drop(handle);
    assert_eq!(count_wrong(backend, DEVICE, at(&reservation, size), size, 31), 0);
    let error = import.export().unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
    unmap(&mut reservation, size, size);
}

pub(crate) fn forked_child_fails_and_drops_nothing(backend: &CudaBackend) {
    let size = granules(backend, 1);
    let mut reservation = reserve(backend, size, None);
    let handle = create_with(backend, size, shareable());
    map(&mut reservation, Bytes::ZERO, &handle);
    let base = at(&reservation, Bytes::ZERO);
    write_pattern(backend, DEVICE, base, size, 41);
    let fd = handle.export().unwrap();
    let spare = create(backend, size);
    let (pinned, mut copy_stream) = (backend.pin(size).unwrap(), backend.copy_stream(DEVICE).unwrap());
    let failures = backend.drop_log().count();

    // SAFETY: the child makes only calls that never reach the driver, and ends without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: each call detects that the process was forked and does nothing else.
        let answers: [Result<()>; 22] = unsafe {
            [
                CudaBackend::open().map(drop),
                backend.create(size, &Properties::on(DEVICE)).map(drop),
                backend.import(fd.as_fd(), size, &shareable()).map(drop),
                handle.export().map(drop),
                handle.export_fabric().map(drop),
                backend.import_fabric(&FabricHandle([0; 64]), size, &shareable()).map(drop),
                backend.granularity_of(Operation::QueryGranularity, &shareable()).map(drop),
                reservation.dma_buf(DEVICE, Bytes::ZERO, size).map(drop),
                reservation.unmap(Bytes::ZERO, size),
                reservation.map(Bytes::ZERO, &handle),
                reservation.set_access(Bytes::ZERO, size, &[]),
                reservation.access(Bytes::ZERO, DEVICE).map(drop),
                backend.memory_info(DEVICE).map(drop),
                backend.copy_from_host(DEVICE, base, &[0]),
                backend.capabilities(DEVICE).map(drop),
                backend.pin(size).map(drop),
                backend.copy_stream(DEVICE).map(drop),
                copy_stream.copy_to_host(pinned.start().as_ptr(), base, size),
                copy_stream.copy_from_host(base, pinned.start().as_ptr(), size),
                copy_stream.finish(),
                backend.synchronize(DEVICE),
                backend.synchronize_stream(DeviceId(0), Stream::from_raw(std::ptr::null_mut())),
            ]
        };
        let wrong = answers
            .iter()
            .position(|answer| !matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Forked)));
        drop((spare, handle, reservation, pinned, copy_stream));
        let code = match (wrong, backend.drop_log().count() == failures) {
            (None, true) => 0,
            (Some(place), _) => 100 + place as i32,
            (None, false) => 99,
        };
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and the pointer is valid for one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "100 + the place of the first call that gave no Detail::Forked");

    // The parent still has everything.
    // SAFETY: both sides have this many bytes, and no code touches them until the copy stream has finished.
    unsafe { copy_stream.copy_to_host(pinned.start().as_ptr(), base, size) }.unwrap();
    copy_stream.finish().unwrap();
    assert_eq!(count_wrong(backend, DEVICE, base, size, 41), 0);
    unmap(&mut reservation, Bytes::ZERO, size);
    map(&mut reservation, Bytes::ZERO, &spare);
    unmap(&mut reservation, Bytes::ZERO, size);
}
