//! Contexts and streams: which are created, which are used, and that the thread's own context does not change.
#![allow(unsafe_code)]

use crate::children::spawn;
use crate::support::*;
use cudarc::driver::{CudaContext, CudaStream, sys};
use gpu_vmm_core::{
    Address, Backend, Bytes, CopyCalls, Detail, DeviceId, Operation, Reservation, Stream, SyncCalls,
};
use gpu_vmm_cuda::{CudaBackend, CudaReservation, cudarc};

pub(crate) fn virtual_memory_needs_none(_: &CudaBackend) {
    spawn("bare");
}

/// Returns the thread's current context, through cudarc's own loading of the driver.
fn current() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is valid for one context, and the driver has been started.
    let result = unsafe { sys::cuCtxGetCurrent(&raw mut context) };
    assert_eq!(result, sys::cudaError_enum::CUDA_SUCCESS);
    context
}

/// Calls every function that needs a context.
fn use_contexts(backend: &CudaBackend) {
    let (mut reservation, base) = mapped(backend);
    let size = reservation.range().size;
    write(backend, base, b"bytes");
    assert_eq!(read(backend, base, 5), b"bytes");
    write_pattern(backend, DEVICE, base, size, 51);
    assert_eq!(count_wrong(backend, DEVICE, base, size, 51), 0);
    backend.memory_info(DEVICE).unwrap();
    let (pinned, mut copy_stream) = (backend.pin(size).unwrap(), backend.copy_stream(DEVICE).unwrap());
    // SAFETY: both sides have this many bytes, and no code touches them until the copy stream has finished.
    unsafe { copy_stream.copy_to_host(pinned.start().as_ptr(), base, size) }.unwrap();
    copy_stream.finish().unwrap();
    drop((pinned, copy_stream));
    walk(backend, Address(0), 1);
    backend.synchronize(DEVICE).unwrap();
    unmap(&mut reservation, Bytes::ZERO, size);
}

/// Maps a granule.
fn mapped(backend: &CudaBackend) -> (CudaReservation, Address) {
    let size = granules(backend, 1);
    let mut reservation = reserve(backend, size, None);
    map(&mut reservation, Bytes::ZERO, &create(backend, size));
    let base = at(&reservation, Bytes::ZERO);
    (reservation, base)
}

pub(crate) fn the_threads_own_stays_current(backend: &CudaBackend) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(current().is_null());
            use_contexts(backend);
            // Failing calls also leave the current context alone.
            let (mut reservation, base) = mapped(backend);
            unmap(&mut reservation, Bytes::ZERO, granules(backend, 1));
            // SAFETY: the driver is known to check that memory is mapped there.
            unsafe { backend.copy_from_host(DEVICE, base, &[1]) }.unwrap_err();
            assert!(current().is_null());
        });
        scope.spawn(|| {
            let last = backend.devices().len() - 1;
            let context = CudaContext::new(last).unwrap();
            assert_eq!(current(), context.cu_ctx());
            use_contexts(backend);
            assert_eq!(current(), context.cu_ctx());
        });
    });
}

/// Queues many fills of memory on a stream, without waiting.
pub(crate) fn queue_fills(stream: &CudaStream, base: Address, size: Bytes, value: u8) {
    stream.context().bind_to_thread().unwrap();
    for _ in 0..32 {
        // SAFETY: the bytes are mapped, and the caller waits before they are unmapped.
        let result = unsafe { sys::cuMemsetD8Async(base.0, value, size.0 as usize, stream.cu_stream()) };
        assert_eq!(result, sys::cudaError_enum::CUDA_SUCCESS);
    }
}

pub(crate) fn is_idle(stream: &CudaStream) -> bool {
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the stream is live.
    let result = unsafe { sys::cuStreamQuery(stream.cu_stream()) };
    result == sys::cudaError_enum::CUDA_SUCCESS
}

/// Queues work on the stream, and checks that waiting for it waits, from a thread without a current context.
fn wait_for(backend: &CudaBackend, stream: &CudaStream) {
    let size = Bytes::gib(1);
    let mut reservation = reserve(backend, size, None);
    map(&mut reservation, Bytes::ZERO, &create(backend, size));
    let base = at(&reservation, Bytes::ZERO);
    queue_fills(stream, base, size, 0x77);
    assert!(!is_idle(stream), "the work is done before it can be waited for");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(current().is_null());
            backend.synchronize_stream(DeviceId(0), backend.stream(stream).unwrap()).unwrap();
            assert!(current().is_null());
        });
    });
    assert!(is_idle(stream));
    assert_eq!(read(backend, base + Bytes(size.0 - 1), 1), [0x77]);
    unmap(&mut reservation, Bytes::ZERO, size);
}

pub(crate) fn cudarcs_context_and_streams_are_used(backend: &CudaBackend) {
    let context = CudaContext::new(0).unwrap();
    let ours = CudaBackend::with_cudarc(&context).unwrap();
    assert_eq!(ours.instance(), backend.instance());
    assert!(CudaBackend::is_loaded());
    use_contexts(&ours);
    let stream = context.new_stream().unwrap();
    wait_for(&ours, &stream);
    wait_for(backend, &stream);

    // One backend maps the other's memory, and the context lives as long as the objects made with it.
    let size = granules(backend, 1);
    let handle = create(&ours, size);
    let mut reservation = reserve(backend, size, None);
    map(&mut reservation, Bytes::ZERO, &handle);
    drop((stream, context, ours));
    write(backend, at(&reservation, Bytes::ZERO), b"still there");
    unmap(&mut reservation, Bytes::ZERO, size);
}

pub(crate) fn default_streams_are_waited_for(backend: &CudaBackend) {
    let context = CudaContext::new(0).unwrap();
    let ours = CudaBackend::with_cudarc(&context).unwrap();
    wait_for(&ours, &context.default_stream());
    wait_for(backend, &context.default_stream());
    // SAFETY: null is the default stream.
    let null = unsafe { Stream::from_raw(std::ptr::null_mut()) };
    ours.synchronize_stream(DeviceId(0), null).unwrap();
}

pub(crate) fn a_per_thread_stream_is_refused(backend: &CudaBackend) {
    let context = CudaContext::new(0).unwrap();
    let stream = context.per_thread_stream();
    for backend in [backend, &CudaBackend::with_cudarc(&context).unwrap()] {
        let error = backend.stream(&stream).unwrap_err();
        assert!(
            matches!(error.detail(), Detail::Unsupported { .. }) && error.operation() == Operation::UseStream,
            "{error}"
        );
        let same = Stream::PER_THREAD.check_shared(Operation::UseStream).unwrap_err();
        assert_eq!(error.to_string(), same.to_string());
    }
}

pub(crate) fn a_raw_context_is_used(backend: &CudaBackend) {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the context outlives the backend.
    let ours = unsafe { CudaBackend::with_context(DeviceId(0), context.cu_ctx().cast()) }.unwrap();
    use_contexts(&ours);
    assert_eq!(ours.drop_log().count(), 0);
    let none = DeviceId(backend.devices().len() as u32);
    // SAFETY: as above.
    let error = unsafe { CudaBackend::with_context(none, context.cu_ctx().cast()) }.unwrap_err();
    assert!(matches!(error.detail(), Detail::NoSuchDevice { .. }), "{error}");
}

pub(crate) fn a_context_of_another_device_is_refused(_: &CudaBackend) {
    let context = CudaContext::new(1).unwrap();
    // SAFETY: the context is alive.
    let error = unsafe { CudaBackend::with_context(DeviceId(0), context.cu_ctx().cast()) }.unwrap_err();
    let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
    let expected = "the context belongs to device 1, not to device 0";
    assert_eq!((&**reason, error.operation()), (expected, Operation::Open));
}
