//! gpu-vmm-cuda over the fake driver: what the errors of calls on contexts, kernels and graphs say, and copies of no bytes.

use crate::failures::{logged, told, unsupported};
use crate::rig::{Cuda, DEVICE, OTHER, open};
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, CopyCalls, Detail, DeviceId, HandleTypes, MemoryCalls, Operation,
    PhysicalMemory, Properties, Region, Stream, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::{CaptureMode, TestKit};

/// A device that is not there.
const NONE: DeviceId = DeviceId(7);
const SIZE: Bytes = Bytes::mib(2);

cases! {
    unusable_context_names_itself [FAIL = "cuDevicePrimaryCtxRetain:1:2,cuCtxPushCurrent_v2:1:999"];
    failed_wait_names_its_context
        [FAIL = "cuCtxGetCurrent:1:999,cuCtxGetDevice:2:999,cuStreamGetCtx:1:999,cuStreamSynchronize:1:999"];
    failed_kernel_names_its_function
        [FAIL = "cuModuleLoadDataEx:1:218,cuModuleGetFunction:1:500,cuLaunchKernel:1:999"];
    failed_graph_names_its_stream
        [FAIL = "cuStreamBeginCapture_v2:1:999,cuGraphLaunch:1:999,cuGraphExecDestroy:1:999"];
    undestroyed_context_is_logged [FAIL = "cuCtxCreate_v2:1:2,cuCtxDestroy_v2:1:999"];
    new_context_left_current_is_destroyed [FAIL = "cuCtxPopCurrent_v2:1:1"];
    lost_device_logs_no_unrestored_state [FAIL = "cuCtxPopCurrent_v2:1:700,cuThreadExchangeStreamCaptureMode:2:700"];
    unusable_device_has_no_other_contexts [FAIL = "cuDeviceTotalMem_v2:1:999"];
    failed_dma_buf_names_its_range [FAIL = "cuMemGetHandleForAddressRange:1:1"];
    empty_copies_call_no_driver
        [FAIL = "cuMemcpyHtoD_v2:1+:1,cuMemcpyDtoH_v2:1+:1,cuMemcpyDtoD_v2:1+:1,cuMemsetD8_v2:1+:1"];
    failed_fabric_export_names_the_memory [FABRIC = "1", FAIL = "cuMemExportToShareableHandle:1:999"];
    foreign_handle_types_are_refused;
    missing_device_has_no_streams;
    event_names_the_foreign_streams_device;
}

fn region(backend: &CudaBackend) -> Region<CudaBackend> {
    let mut region = Region::builder(backend).on(DEVICE).reserve(SIZE).build().unwrap();
    region.grow_to(SIZE).unwrap();
    region
}

fn unusable_context_names_itself(_: &Cuda) {
    let backend = open();
    let context = "device 1".to_owned();
    assert_eq!(
        told(backend.memory_info(OTHER)),
        (Operation::QueryMemory, "cuDevicePrimaryCtxRetain", context)
    );
    let (operation, call, context) = told(backend.memory_info(OTHER));
    assert_eq!((operation, call), (Operation::QueryMemory, "cuCtxPushCurrent_v2"));
    assert!(context.starts_with("context "), "{context}");
    backend.memory_info(OTHER).unwrap();
}

/// The second `cuCtxGetDevice` is that for the thread's current context.
fn failed_wait_names_its_context(cuda: &Cuda) {
    let backend = open();
    let own = backend.own_stream(DEVICE).unwrap();
    let waited = told(backend.synchronize(DEVICE));
    assert_eq!(waited, (Operation::WaitForDevice, "cuCtxGetCurrent", "this thread".to_owned()));
    cuda.enter(0);
    backend.synchronize(DEVICE).unwrap();
    let (operation, call, context) = told(backend.synchronize(DEVICE));
    assert_eq!((operation, call), (Operation::WaitForDevice, "cuCtxGetDevice"));
    assert!(context.starts_with("context "), "{context}");
    for call in ["cuStreamGetCtx", "cuStreamSynchronize"] {
        let (operation, failed, context) = told(backend.synchronize_stream(DEVICE, own.stream()));
        assert_eq!((operation, failed), (Operation::WaitForStream, call));
        assert!(context.starts_with("stream "), "{context}");
    }
    backend.synchronize_stream(DEVICE, own.stream()).unwrap();
    assert_eq!(cuda.violations(), 0);
}

fn failed_kernel_names_its_function(cuda: &Cuda) {
    let backend = open();
    let mut region = region(&backend);
    let mut write = || region.write_pattern(DEVICE, Bytes::ZERO, SIZE, 1);
    let (operation, call, context) = told(write());
    assert_eq!((operation, call), (Operation::WritePattern, "cuModuleLoadDataEx"));
    assert!(context.starts_with("compiling kernels.ptx; the compiler says: "), "{context}");
    let context = "gpu_vmm_write_pattern".to_owned();
    assert_eq!(told(write()), (Operation::WritePattern, "cuModuleGetFunction", context));
    let context = "1024 blocks of 256 threads".to_owned();
    assert_eq!(told(write()), (Operation::WritePattern, "cuLaunchKernel", context));
    write().unwrap();
    assert_eq!(cuda.violations(), 0);
}

fn failed_graph_names_its_stream(cuda: &Cuda) {
    let backend = open();
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the capture is ended below.
    let begin = || unsafe { backend.begin_capture(DEVICE, own.stream(), CaptureMode::Relaxed) };
    let (operation, call, context) = told(begin());
    assert_eq!((operation, call), (Operation::BeginCapture, "cuStreamBeginCapture_v2"));
    assert!(context.starts_with("stream ") && context.ends_with(", Relaxed"), "{context}");
    begin().unwrap();
    let graph = backend.end_capture(DEVICE, own.stream()).unwrap();
    // SAFETY: the graph has no work.
    let (operation, call, context) = told(unsafe { graph.launch(own.stream()) });
    assert_eq!((operation, call), (Operation::LaunchGraph, "cuGraphLaunch"));
    assert!(context.starts_with("stream "), "{context}");
    drop(graph);
    assert_eq!(logged(&backend), (Operation::DestroyGraph, "cuGraphExecDestroy"));
    assert_eq!(cuda.counts().graphs, 1);
    // The fake driver numbers its objects in steps of 0x100 (src/work.rs), and the graph was the last.
    cuda.enter(0);
    let next = cuda.get("cuEventCreate", &[2]);
    cuda.ok("cuGraphExecDestroy", &[next - 0x100]);
    cuda.ok("cuEventDestroy_v2", &[next]);
}

fn undestroyed_context_is_logged(cuda: &Cuda) {
    let backend = open();
    let made = told(backend.stream_elsewhere(DEVICE).map(drop));
    assert_eq!(made, (Operation::CreateContext, "cuCtxCreate_v2", "device 0".to_owned()));
    drop(backend.stream_elsewhere(DEVICE).unwrap());
    assert_eq!(logged(&backend), (Operation::DestroyContext, "cuCtxDestroy_v2"));
    assert_eq!((cuda.counts().contexts, cuda.counts().streams), (1, 0));
}

fn new_context_left_current_is_destroyed(cuda: &Cuda) {
    let backend = open();
    let (operation, call, context) = told(backend.stream_elsewhere(DEVICE).map(drop));
    assert_eq!((operation, call), (Operation::CreateContext, "cuCtxPopCurrent_v2"));
    assert!(context.starts_with("context "), "{context}");
    assert_eq!((cuda.counts().contexts, backend.drop_log().count()), (0, 0));
}

/// The call under the guard has reported the loss.
fn lost_device_logs_no_unrestored_state(cuda: &Cuda) {
    let backend = open();
    backend.memory_info(DEVICE).unwrap();
    assert_ne!(cuda.get("cuCtxPopCurrent_v2", &[]), 0, "the call did nothing");
    drop(backend.pin(SIZE).unwrap());
    assert_eq!(backend.drop_log().count(), 0);
}

fn unusable_device_has_no_other_contexts(cuda: &Cuda) {
    let backend = open();
    let error = backend.stream_elsewhere(DEVICE).map(drop).unwrap_err();
    assert!(error.to_string().contains("cuDeviceTotalMem_v2"), "{error}");
    assert_eq!((error.operation(), cuda.counts().contexts), (Operation::CreateContext, 0));
}

fn failed_dma_buf_names_its_range(_: &Cuda) {
    let backend = open();
    let region = region(&backend);
    let range = AddressRange { base: region.address(), size: SIZE }.to_string();
    let exported = told(region.dma_bufs(Bytes::ZERO, SIZE));
    assert_eq!(exported, (Operation::ExportDmaBuf, "cuMemGetHandleForAddressRange", range));
}

/// As for a slice without elements, the address need not be mapped.
fn empty_copies_call_no_driver(cuda: &Cuda) {
    let (backend, at) = (open(), Address(1 << 21));
    // SAFETY: no byte is read or written.
    unsafe {
        backend.copy_from_host(DEVICE, at, &[]).unwrap();
        backend.copy_to_host(DEVICE, &mut [], at).unwrap();
        backend.copy(DEVICE, at, at, Bytes::ZERO).unwrap();
        backend.fill(DEVICE, at, Bytes::ZERO, 1).unwrap();
    }
    assert_eq!(cuda.violations(), 0);
}

fn failed_fabric_export_names_the_memory(_: &Cuda) {
    let properties = Properties::on(OTHER).exported_as(HandleTypes::FABRIC);
    let memory = PhysicalMemory::create(&open(), SIZE, properties).unwrap();
    let exported = told(memory.export_fabric());
    let context = format!("2 MiB of {properties}");
    assert_eq!(exported, (Operation::ExportMemory, "cuMemExportToShareableHandle", context));
}

/// Neither creating nor importing reaches the driver.
fn foreign_handle_types_are_refused(cuda: &Cuda) {
    use std::os::fd::AsFd;
    let (backend, properties) = (open(), Properties::on(DEVICE).exported_as(HandleTypes::WIN32));
    let reason = HandleTypes::WIN32.missing_here().unwrap();
    // SAFETY: the size is a multiple of the granularity. The handle type is refused before the descriptor is used, and standard
    // input is no memory, which a driver would refuse as well.
    unsafe {
        assert_eq!(unsupported(backend.create(SIZE, &properties)), reason);
        assert_eq!(unsupported(backend.import(std::io::stdin().as_fd(), SIZE, &properties)), reason);
    }
    let memory = PhysicalMemory::create(&backend, SIZE, Properties::on(DEVICE)).unwrap();
    assert_eq!((memory.properties().handle_types.is_empty(), cuda.violations()), (true, 0));
}

fn missing_device_has_no_streams(cuda: &Cuda) {
    let backend = open();
    let own = backend.own_stream(DEVICE).unwrap();
    let context = cuda.enter(0);
    // SAFETY: the context is alive as long as the process, and no backend is opened with it.
    let opened = unsafe { CudaBackend::with_context(NONE, std::ptr::with_exposed_provenance_mut(context)) };
    let waited = [own.stream(), Stream::DEFAULT].map(|stream| backend.synchronize_stream(NONE, stream));
    for (answer, operation) in [
        (opened.map(drop), Operation::Open),
        (backend.stream_elsewhere(NONE).map(drop), Operation::CreateContext),
    ]
    .into_iter()
    .chain(waited.map(|waited| (waited, Operation::WaitForStream)))
    {
        let error = answer.unwrap_err();
        let Detail::NoSuchDevice { device, count, .. } = error.detail() else { panic!("{error}") };
        assert_eq!((error.operation(), *device, *count), (operation, NONE, 2));
    }
    assert_eq!(cuda.violations(), 0);
}

fn event_names_the_foreign_streams_device(_: &Cuda) {
    let backend = open();
    let (mut event, foreign) = (backend.event(DEVICE).unwrap(), backend.own_stream(OTHER).unwrap());
    let error = event.record(foreign.stream()).unwrap_err();
    let Detail::ForeignStream { theirs, ours } = error.detail() else { panic!("{error}") };
    assert!(theirs.starts_with("device 1, context ") && ours.starts_with("device 0, context "), "{error}");
}
