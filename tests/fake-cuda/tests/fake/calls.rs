//! gpu-vmm-cuda over the fake driver: what the errors of calls on contexts, kernels and graphs say, and copies of no bytes.

use crate::child::{Case, case, with};
use crate::failures::{DEVICE, OTHER, logged, open, told, unsupported};
use crate::rig::Cuda;
use gpu_vmm_core::{
    Address, AddressRange, Backend, Bytes, CopyCalls, Detail, DeviceId, HandleTypes, MemoryCalls, Operation,
    PhysicalMemory, Properties, Region, Stream, SyncCalls,
};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_testkit::{CaptureMode, TestKit};

/// A device that is not there.
const NONE: DeviceId = DeviceId(7);
const SIZE: Bytes = Bytes::mib(2);

pub(crate) const CASES: &[Case] = &[
    with(
        &[("FAIL", "cuDevicePrimaryCtxRetain:1:2,cuCtxPushCurrent_v2:1:999")],
        "a_context_that_cannot_be_used_names_itself_or_its_device",
        a_context_that_cannot_be_used,
    ),
    with(
        &[(
            "FAIL",
            "cuCtxGetCurrent:1:999,cuCtxGetDevice:2:999,cuStreamGetCtx:1:999,cuStreamSynchronize:1:999",
        )],
        "a_wait_that_fails_names_its_thread_context_or_stream",
        a_wait_that_fails,
    ),
    with(
        &[("FAIL", "cuModuleLoadDataEx:1:218,cuModuleGetFunction:1:500,cuLaunchKernel:1:999")],
        "a_kernel_that_fails_names_its_text_function_or_size",
        a_kernel_that_fails,
    ),
    with(
        &[("FAIL", "cuStreamBeginCapture_v2:1:999,cuGraphLaunch:1:999,cuGraphExecDestroy:1:999")],
        "a_graph_that_fails_names_its_stream",
        a_graph_that_fails,
    ),
    with(
        &[("FAIL", "cuCtxCreate_v2:1:2,cuCtxDestroy_v2:1:999")],
        "a_context_that_is_not_destroyed_is_logged",
        a_context_that_is_not_destroyed,
    ),
    with(
        &[("FAIL", "cuCtxPopCurrent_v2:1:1")],
        "a_new_context_that_stays_current_is_destroyed",
        a_new_context_that_stays_current,
    ),
    with(
        &[("FAIL", "cuCtxPopCurrent_v2:1:700,cuThreadExchangeStreamCaptureMode:2:700")],
        "what_is_not_restored_on_a_lost_device_is_not_logged",
        what_is_not_restored_on_a_lost_device,
    ),
    with(
        &[("FAIL", "cuDeviceTotalMem_v2:1:999")],
        "a_device_that_cannot_be_used_has_no_other_contexts",
        a_device_that_cannot_be_used,
    ),
    with(
        &[("FAIL", "cuMemGetHandleForAddressRange:1:1")],
        "a_dma_buf_that_fails_names_its_range",
        a_dma_buf_that_fails,
    ),
    with(
        &[("FAIL", "cuMemcpyHtoD_v2:1+:1,cuMemcpyDtoH_v2:1+:1,cuMemcpyDtoD_v2:1+:1,cuMemsetD8_v2:1+:1")],
        "copies_of_no_bytes_do_not_call_the_driver",
        copies_of_no_bytes_do_not_call_the_driver,
    ),
    with(
        &[("FABRIC", "1"), ("FAIL", "cuMemExportToShareableHandle:1:999")],
        "a_fabric_handle_that_is_not_exported_names_the_memory",
        a_fabric_handle_that_is_not_exported,
    ),
    case("handles_of_another_system_are_refused", handles_of_another_system),
    case("a_device_that_is_not_there_has_no_streams_and_contexts", a_device_that_is_not_there),
    case("an_event_names_the_device_of_a_foreign_stream", an_event_names_the_device_of_a_foreign_stream),
];

fn region(backend: &CudaBackend) -> Region<CudaBackend> {
    let mut region = Region::builder(backend).on(DEVICE).reserve(SIZE).build().unwrap();
    region.grow_to(SIZE).unwrap();
    region
}

fn a_context_that_cannot_be_used(_: &Cuda) {
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
fn a_wait_that_fails(cuda: &Cuda) {
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

fn a_kernel_that_fails(cuda: &Cuda) {
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

fn a_graph_that_fails(cuda: &Cuda) {
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

fn a_context_that_is_not_destroyed(cuda: &Cuda) {
    let backend = open();
    let made = told(backend.stream_elsewhere(DEVICE).map(drop));
    assert_eq!(made, (Operation::CreateContext, "cuCtxCreate_v2", "device 0".to_owned()));
    drop(backend.stream_elsewhere(DEVICE).unwrap());
    assert_eq!(logged(&backend), (Operation::DestroyContext, "cuCtxDestroy_v2"));
    assert_eq!((cuda.counts().contexts, cuda.counts().streams), (1, 0));
}

fn a_new_context_that_stays_current(cuda: &Cuda) {
    let backend = open();
    let (operation, call, context) = told(backend.stream_elsewhere(DEVICE).map(drop));
    assert_eq!((operation, call), (Operation::CreateContext, "cuCtxPopCurrent_v2"));
    assert!(context.starts_with("context "), "{context}");
    assert_eq!((cuda.counts().contexts, backend.drop_log().count()), (0, 0));
}

/// The call under the guard has reported the loss.
fn what_is_not_restored_on_a_lost_device(cuda: &Cuda) {
    let backend = open();
    backend.memory_info(DEVICE).unwrap();
    assert_ne!(cuda.get("cuCtxPopCurrent_v2", &[]), 0, "the call did nothing");
    drop(backend.pin(SIZE).unwrap());
    assert_eq!(backend.drop_log().count(), 0);
}

fn a_device_that_cannot_be_used(cuda: &Cuda) {
    let backend = open();
    let error = backend.stream_elsewhere(DEVICE).map(drop).unwrap_err();
    assert!(error.to_string().contains("cuDeviceTotalMem_v2"), "{error}");
    assert_eq!((error.operation(), cuda.counts().contexts), (Operation::CreateContext, 0));
}

fn a_dma_buf_that_fails(_: &Cuda) {
    let backend = open();
    let region = region(&backend);
    let range = AddressRange { base: region.address(), size: SIZE }.to_string();
    let exported = told(region.dma_bufs(Bytes::ZERO, SIZE));
    assert_eq!(exported, (Operation::ExportDmaBuf, "cuMemGetHandleForAddressRange", range));
}

/// As for a slice without elements, the address need not be mapped.
fn copies_of_no_bytes_do_not_call_the_driver(cuda: &Cuda) {
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

fn a_fabric_handle_that_is_not_exported(_: &Cuda) {
    let properties = Properties::on(OTHER).exported_as(HandleTypes::FABRIC);
    let memory = PhysicalMemory::create(&open(), SIZE, properties).unwrap();
    let exported = told(memory.export_fabric());
    let context = format!("2 MiB of {properties}");
    assert_eq!(exported, (Operation::ExportMemory, "cuMemExportToShareableHandle", context));
}

/// Neither creating nor importing reaches the driver.
fn handles_of_another_system(cuda: &Cuda) {
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

fn a_device_that_is_not_there(cuda: &Cuda) {
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

fn an_event_names_the_device_of_a_foreign_stream(_: &Cuda) {
    let backend = open();
    let (mut event, foreign) = (backend.event(DEVICE).unwrap(), backend.own_stream(OTHER).unwrap());
    let error = event.record(foreign.stream()).unwrap_err();
    let Detail::ForeignStream { theirs, ours } = error.detail() else { panic!("{error}") };
    assert!(theirs.starts_with("device 1, context ") && ours.starts_with("device 0, context "), "{error}");
}
