//! Memory of regions, vectors and blocks as arguments of cudarc.
#![allow(unsafe_code)]

use crate::support::*;
use cudarc::driver::{CudaContext, CudaStream, DeviceSlice, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{AnyBackend, host::HostBackend};
use gpu_vmm_core::{
    Access, Backend, BackingStore, Bytes, Detail, DeviceVec, ErrorKind, Operation, Region, Result, Stream,
    WaitFor,
};
use gpu_vmm_cuda::{CudaBackend, MaybeCuda, MemoryView, MemoryViewMut, cudarc};
use gpu_vmm_testkit::TestKit;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Creates a stream of cudarc in the primary context.
fn stream() -> Arc<CudaStream> {
    CudaContext::new(DEVICE.0 as usize).unwrap().new_stream().unwrap()
}

fn region<B: Backend>(backend: &B, size: Bytes) -> Region<B> {
    let mut region = Region::builder(backend).on(DEVICE).reserve(Bytes::gib(1)).build().unwrap();
    region.grow_to(size).unwrap();
    region
}

/// Returns the detail and text of an error, after checking its operation.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T>) -> (Detail, String) {
    let error = answer.unwrap_err();
    assert_eq!(error.operation(), Operation::ViewMemory, "{error}");
    (error.detail().clone(), error.to_string())
}

/// cudarc writes and reads a region, a vector and a block.
fn copies<B: MaybeCuda>(backend: &B) {
    let stream = stream();
    let mut region = region(backend, granules(backend.as_cuda().unwrap(), 1));
    let mut view = MemoryViewMut::<u32>::new(&stream, &mut region, Bytes(8), 3).unwrap();
    stream.memcpy_htod(&[1, 2, 3], &mut view).unwrap();
    stream.memset_zeros(&mut view.as_view_mut().slice_mut(..1)).unwrap();
    assert!(Arc::ptr_eq(DeviceSlice::stream(&view), &stream));
    drop(view);
    assert_eq!(
        stream.clone_dtoh(&MemoryView::<u16>::new(&stream, &region, Bytes(10), 4).unwrap()).unwrap(),
        [0, 2, 0, 3]
    );

    let mut vec = DeviceVec::from_slice(backend, DEVICE, &[1.0f64, 2.0]).unwrap();
    stream.memcpy_htod(&[3.0], &mut MemoryViewMut::of_vec(&stream, &mut vec).unwrap()).unwrap();
    let view = MemoryView::of_vec(&stream, &vec).unwrap();
    assert_eq!(stream.clone_dtoh(&view).unwrap(), [3.0, 2.0]);
    assert_eq!(format!("{view:?}"), "MemoryView of 2 x f64");
    assert!(Arc::ptr_eq(DeviceSlice::stream(&view), &stream));
    drop(view);
    vec.truncate(0);
    assert_eq!(MemoryView::of_vec(&stream, &vec).unwrap().len(), 0);

    let pool = Pool::builder(backend).build().unwrap();
    // SAFETY: the registration ends before the stream.
    let registered =
        unsafe { pool.register_stream(backend.as_cuda().unwrap().stream(&stream).unwrap()) }.unwrap();
    let mut block = registered.alloc(Bytes(12)).unwrap();
    let mut view = MemoryViewMut::<u32>::new(&stream, &mut block, Bytes(4), 2).unwrap();
    stream.memcpy_htod(&[5, 6], &mut view).unwrap();
    assert_eq!(stream.clone_dtoh(&*view).unwrap(), [5, 6]);
    drop(view);
    let (detail, text) = refused(MemoryView::<u32>::new(&stream, &block, Bytes(4), 3));
    assert!(matches!(detail, Detail::OutOfRange { limit: Bytes(12), .. }), "{text}");
    let store = BackingStore::pinned(backend, Bytes::mib(32)).unwrap();
    pool.suspend("", &store, WaitFor::all_devices()).unwrap();
    let error = MemoryView::<u32>::new(&stream, &block, Bytes(4), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
}

pub(crate) fn cudarc_copies_regions_vectors_and_blocks(backend: &CudaBackend) {
    copies(backend);
    copies(&AnyBackend::from(backend.clone()));
}

pub(crate) fn a_kernel_takes_views(backend: &CudaBackend) {
    let (stream, size) = (stream(), granules(backend, 1));
    let module = stream.context().load_module(Ptx::from_src(include_str!("../../src/kernels.ptx"))).unwrap();
    let write_pattern = module.load_function("gpu_vmm_write_pattern").unwrap();
    let count_wrong = module.load_function("gpu_vmm_count_wrong").unwrap();
    let (mut words, mut counts) =
        (region(backend, size), DeviceVec::from_slice(backend, DEVICE, &[0u64; 2]).unwrap());
    let (count, seed) = (size.0 / 8, 77u64);

    let mut view = MemoryViewMut::<u64>::new(&stream, &mut words, Bytes(0), count as usize).unwrap();
    let mut launch = stream.launch_builder(&write_pattern);
    launch.arg(&mut view).arg(&count).arg(&seed);
    // SAFETY: the kernel writes exactly these words.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1024)) }.unwrap();
    drop(view);

    let view = MemoryView::<u64>::new(&stream, &words, Bytes(0), count as usize).unwrap();
    let mut counted = MemoryViewMut::of_vec(&stream, &mut counts).unwrap();
    let mut launch = stream.launch_builder(&count_wrong);
    launch.arg(&view).arg(&count).arg(&seed).arg(&mut counted);
    // SAFETY: the kernel reads exactly these words, and writes two counters.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1024)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&*counted).unwrap(), [count, 0]);
}

pub(crate) fn view_is_of_memory_with_access(backend: &CudaBackend) {
    let (stream, size) = (stream(), granules(backend, 1));
    let mut region = region(backend, size);
    let view = |offset, count| refused(MemoryView::<u32>::new(&stream, &region, Bytes(offset), count));
    let (detail, text) = view(6, 10);
    assert!(matches!(detail, Detail::Unsupported { .. }), "{text}");
    assert!(text.contains("10 elements of type u32 (4 bytes each, alignment 4 B)"), "{text}");
    assert!(text.contains("offset 6 B"), "{text}");
    let (detail, text) = view(4, size.0 as usize / 4);
    assert!(matches!(detail, Detail::NotMapped { hole, .. } if hole == size), "{text}");
    let (detail, text) = view(Bytes::gib(1).0 + 4, 0);
    assert!(matches!(detail, Detail::OutOfRange { .. }), "{text}");
    let (detail, text) = view(0, usize::MAX);
    assert!(matches!(detail, Detail::TooManyElements { element: 4, .. }), "{text}");
    let (detail, text) = refused(MemoryView::<()>::new(&stream, &region, Bytes(0), 1));
    assert!(matches!(detail, Detail::Unsupported { .. }), "{text}");
    MemoryView::<u32>::new(&stream, &region, size, 0).unwrap();

    region.set_access(Bytes(0), size, DEVICE, Access::Read).unwrap();
    MemoryView::<u32>::new(&stream, &region, Bytes(0), 1).unwrap();
    let (detail, text) = refused(MemoryViewMut::<u32>::new(&stream, &mut region, Bytes(0), 1));
    assert!(matches!(detail, Detail::NoAccess { have: Access::Read, .. }), "{text}");

    // A vector on another device, which this one may only read.
    if let Some(other) = backend.devices().get(1) {
        let builder = Region::builder(backend).on(other.id).access(DEVICE, Access::Read);
        let mut vec = DeviceVec::<u32, _>::build(builder).unwrap();
        vec.extend_from_slice(&[4, 5]).unwrap();
        let view = MemoryView::of_vec(&stream, &vec).unwrap();
        assert_eq!(stream.clone_dtoh(&view).unwrap(), [4, 5]);
        drop(view);
        let (detail, text) = refused(MemoryViewMut::of_vec(&stream, &mut vec));
        assert!(matches!(detail, Detail::NoAccess { have: Access::Read, .. }), "{text}");
    }

    let store = BackingStore::pinned(backend, size).unwrap();
    region.suspend(&store, WaitFor::all_devices()).unwrap();
    let (detail, text) = refused(MemoryView::<u32>::new(&stream, &region, Bytes(0), 1));
    assert!(matches!(detail, Detail::Suspended { .. }), "{text}");
    region.resume().unwrap();
    MemoryView::<u32>::new(&stream, &region, Bytes(0), 1).unwrap();

    let host = AnyBackend::from(HostBackend::open().unwrap());
    let mut memory = Region::builder(&host).build().unwrap();
    memory.grow_to(Bytes::mib(2)).unwrap();
    let (detail, text) = refused(MemoryView::<u8>::new(&stream, &memory, Bytes(0), 1));
    assert!(matches!(detail, Detail::Unsupported { .. }) && text.contains("host backend"), "{text}");
}

pub(crate) fn unordered_stream_is_refused(backend: &CudaBackend) {
    let elsewhere = backend.stream_elsewhere(DEVICE).unwrap();
    let region = region(backend, granules(backend, 1));
    std::thread::scope(|scope| {
        // cudarc makes the context the thread's current one.
        scope.spawn(|| {
            let device = CudaContext::new(DEVICE.0 as usize).unwrap().cu_device();
            let context = elsewhere.context().unwrap().cast();
            // SAFETY: the context is the device's and stays alive; it is not dropped here, which would destroy it.
            let context = unsafe { CudaContext::from_raw_context(DEVICE.0 as usize, device, context) };
            let context = ManuallyDrop::new(context.unwrap());
            let stream = context.new_stream().unwrap();
            let (detail, text) = refused(MemoryView::<u8>::new(&stream, &region, Bytes(0), 1));
            assert!(matches!(detail, Detail::Unsupported { .. }) && text.contains("does not wait"), "{text}");
            // Its default stream has the name of the one that the backend uses.
            let default = context.default_stream();
            let error = backend.stream(&default).unwrap_err();
            assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
            // SAFETY: the context outlives the backend.
            let ours = unsafe { CudaBackend::with_context(DEVICE, context.cu_ctx().cast()) }.unwrap();
            ours.stream(&default).unwrap();
            let memory = self::region(&ours, granules(backend, 1));
            MemoryView::<u8>::new(&stream, &memory, Bytes(0), 1).unwrap();
            // The work in the primary context is waited for as well.
            MemoryView::<u8>::new(&self::stream(), &memory, Bytes(0), 1).unwrap();
        });
    });

    let pool = Pool::builder(backend).build().unwrap();
    let (stream, other) = (stream(), stream());
    // SAFETY: both streams live until the blocks and the registrations are gone.
    let [ours, others] = [&stream, &other]
        .map(|stream| unsafe { pool.register_stream(backend.stream(stream).unwrap()) }.unwrap());
    let mut block: Block<CudaBackend> = ours.alloc(Bytes(64)).unwrap();
    let (detail, text) = refused(MemoryView::<u8>::new(&other, &block, Bytes(0), 1));
    assert!(matches!(detail, Detail::Unsupported { .. }) && text.contains("record_use"), "{text}");
    others.record_use(&mut block).unwrap();
    MemoryView::<u8>::new(&other, &block, Bytes(0), 1).unwrap();
    MemoryView::<u8>::new(&stream, &block, Bytes(0), 1).unwrap();
    let block = pool.request(Bytes(64)).stream(Stream::DEFAULT).alloc().unwrap();
    MemoryView::<u8>::new(&stream.context().default_stream(), &block, Bytes(0), 1).unwrap();
}

pub(crate) fn a_view_orders_streams(backend: &CudaBackend) {
    const SIZE: Bytes = Bytes::mib(512);
    let stream = stream();
    let other = stream.context().new_stream().unwrap();
    let mut region = region(backend, SIZE);
    let mut view = MemoryViewMut::<u64>::new(&stream, &mut region, Bytes(0), SIZE.0 as usize / 8).unwrap();
    // The event precedes the last write: a thread that has waited for that write finds the event complete.
    let fill = |view: &mut MemoryViewMut<'_, u64>| {
        (0..32).for_each(|_| other.memset_zeros(view).unwrap());
        let event = other.record_event(None).unwrap();
        other.memset_zeros(view).unwrap();
        assert!(!event.is_complete(), "the work is done before it can be waited for");
        event
    };
    let event = fill(&mut view);
    stream.clone_dtoh(&view.slice(..1)).unwrap();
    assert!(event.is_complete(), "a read on one stream has not waited for a write on another");
    let event = fill(&mut view);
    drop(view);
    stream.clone_dtoh(&MemoryView::<u8>::new(&stream, &region, Bytes(0), 1).unwrap()).unwrap();
    assert!(event.is_complete(), "the view's stream has not waited for the other when the view was dropped");
}
