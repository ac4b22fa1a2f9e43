//! Patterns that kernels write and check.
//!
//! The kernels are PTX text, which the driver compiles for the present GPU when they are first used in a context. So neither
//! building nor running this crate needs a toolkit.
//!
//! Unsafe, since it calls the driver and runs code on a device.
#![allow(unsafe_code)]

mod graph;

use crate::backend::CudaBackend;
use crate::driver::Opened;
use crate::ffi::{
    CuContext, CuFunction, CuModule, CuResult, CuStream, JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE, STREAM_BLOCKING,
    STREAM_NON_BLOCKING,
};
use crate::kernels::Kernels;
use crate::own_context::OwnContext;
use crate::stream::OwnStream;
use gpu_vmm_core::testkit::{
    CaptureMode, Count, Graph, PATTERN_WORD, TestKit, Walked, WorkStream, round_seeds,
};
use gpu_vmm_core::{Address, Bytes, Detail, DeviceId, Error, Granularity, Operation, Result, Stream};
use std::ffi::{CStr, c_void};
use std::ptr::{from_mut, null_mut, without_provenance_mut};
use std::sync::PoisonError;

/// The PTX text, with the terminating zero that the driver requires.
const IMAGE: &str = concat!(include_str!("kernels.ptx"), "\0");

const THREADS: u32 = 256;
/// Enough to fill any existing GPU several times over; each thread processes as many words as needed.
const MAX_BLOCKS: u64 = 4096;

/// The blocks, threads and stream of a kernel launch.
#[derive(Clone, Copy)]
struct Grid {
    blocks: u32,
    threads: u32,
    stream: CuStream,
}

impl Grid {
    /// The whole device, in the current context's default stream.
    fn wide(words: u64) -> Self {
        let blocks = words.div_ceil(u64::from(THREADS)).clamp(1, MAX_BLOCKS) as u32;
        Self { blocks, threads: THREADS, stream: CuStream::NULL }
    }

    /// One thread, in the current context's default stream.
    const fn single() -> Self {
        Self { blocks: 1, threads: 1, stream: CuStream::NULL }
    }

    /// One warp, deliberately slow.
    const fn slow(stream: CuStream) -> Self {
        Self { blocks: 1, threads: 32, stream }
    }
}

impl Opened {
    /// Returns the kernels of the device's context, which is current.
    fn kernels(&self, operation: Operation, device: DeviceId) -> Result<Kernels> {
        let mut loaded =
            self.context(operation, device)?.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = *loaded {
            return Ok(kernels);
        }
        let kernels = self.load_kernels(operation)?;
        *loaded = Some(kernels);
        Ok(kernels)
    }

    /// Returns the kernels of the current context, which is the device's or another one. For another one they are loaded in each
    /// call and unloaded when the context is destroyed.
    fn kernels_in(&self, operation: Operation, device: DeviceId, context: CuContext) -> Result<Kernels> {
        if self.context(operation, device)?.raw == context {
            self.kernels(operation, device)
        } else {
            self.load_kernels(operation)
        }
    }

    /// Loads the kernels into the current context.
    fn load_kernels(&self, operation: Operation) -> Result<Kernels> {
        let module = self.compile(operation)?;
        Ok(Kernels {
            module,
            write_pattern: self.function(operation, module, c"gpu_vmm_write_pattern")?,
            count_wrong: self.function(operation, module, c"gpu_vmm_count_wrong")?,
            walk_list: self.function(operation, module, c"gpu_vmm_walk_list")?,
        })
    }

    /// Makes the driver compile the text for the current context's device.
    fn compile(&self, operation: Operation) -> Result<CuModule> {
        let mut log = [0u8; 4096];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_SIZE];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), without_provenance_mut(log.len())];
        let mut module = CuModule::NULL;
        let _relaxed = self.relax(operation)?;
        // SAFETY: the text ends in a zero; the two options have one value each, a buffer and its length, and the pointers are valid
        // during the call.
        let result = unsafe {
            (self.functions().module_load)(
                &raw mut module,
                IMAGE.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        self.check(operation, "cuModuleLoadDataEx", result, || {
            // The driver ends its message with a zero; if it wrote none, the first byte is zero.
            let text = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            format!("compiling kernels.ptx; the compiler says: {:?}", text.trim())
        })?;
        Ok(module)
    }

    fn function(&self, operation: Operation, module: CuModule, name: &'static CStr) -> Result<CuFunction> {
        let mut function = CuFunction::NULL;
        // SAFETY: the pointer is valid for one function, the module is loaded, and the name ends in a zero.
        let result =
            unsafe { (self.functions().module_get_function)(&raw mut function, module, name.as_ptr()) };
        self.check(operation, "cuModuleGetFunction", result, || name.to_string_lossy().into_owned())?;
        Ok(function)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    ///
    /// The kernel and the stream belong to the current context; the kernel takes these parameters and may access the memory that
    /// they point to.
    unsafe fn launch(
        &self,
        operation: Operation,
        function: CuFunction,
        Grid { blocks, threads, stream }: Grid,
        parameters: &mut [u64],
    ) -> Result<()> {
        let mut pointers = [null_mut::<c_void>(); 4];
        for (pointer, parameter) in pointers.iter_mut().zip(parameters) {
            *pointer = from_mut(parameter).cast();
        }
        // SAFETY: the grid is within the limits of every device; the driver reads the parameters before it returns; the rest is the
        // caller's promise.
        let result = unsafe {
            (self.functions().launch_kernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        self.check(operation, "cuLaunchKernel", result, || format!("{blocks} blocks of {threads} threads"))
    }

    /// Runs a kernel that writes its result into words on the device, waits for it and returns the words. The words are set to
    /// `before` first, so that the caller can tell whether the kernel ran.
    ///
    /// # Safety
    ///
    /// The device's context is current, and the caller allows all work that `start` queues on its default stream.
    unsafe fn ask<const WORDS: usize>(
        &self,
        operation: Operation,
        device: DeviceId,
        before: [u64; WORDS],
        start: impl FnOnce([Address; WORDS]) -> Result<()>,
    ) -> Result<[u64; WORDS]> {
        let size = Bytes(WORDS as u64 * PATTERN_WORD.0);
        let base = self.allocate_plain(device, size)?;
        let places = std::array::from_fn(|word| base + Bytes(word as u64 * PATTERN_WORD.0));
        let before = before.map(u64::to_ne_bytes);
        // SAFETY: the words are on the device, and exactly their bytes are written and read; the kernel is the caller's promise.
        // Copy, kernel and copy are ordered by one stream.
        let answer = unsafe {
            self.memcpy_from_host(device, base, before.as_flattened())
                .and_then(|()| start(places))
                .and_then(|()| self.finish_default(operation))
                .and_then(|()| {
                    let mut words = [[0; PATTERN_WORD.0 as usize]; WORDS];
                    self.memcpy_to_host(device, words.as_flattened_mut(), base)?;
                    Ok(words.map(u64::from_ne_bytes))
                })
        };
        // SAFETY: the words were allocated above, and the kernel has finished or died with its context.
        let freed = unsafe { self.free_plain(device, base, size) };
        let answer = answer?;
        freed.map(|()| answer)
    }
}

impl TestKit for CudaBackend {
    fn pattern_by(&self) -> &'static str {
        "a kernel"
    }

    fn reports_faults(&self) -> bool {
        true
    }

    unsafe fn write_pattern(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<()> {
        const OPERATION: Operation = Operation::WritePattern;
        let words = words(OPERATION, at, length)?;
        let _entered = self.opened.enter_device(OPERATION, device)?;
        let kernels = self.opened.kernels(OPERATION, device)?;
        // SAFETY: the kernel takes address, count and seed, and writes exactly the words that the caller allows.
        unsafe {
            self.opened.launch(OPERATION, kernels.write_pattern, Grid::wide(words), &mut [at.0, words, seed])
        }?;
        self.opened.finish_default(OPERATION)
    }

    unsafe fn count_wrong(&self, device: DeviceId, at: Address, length: Bytes, seed: u64) -> Result<u64> {
        const OPERATION: Operation = Operation::CheckPattern;
        let words = words(OPERATION, at, length)?;
        let _entered = self.opened.enter_device(OPERATION, device)?;
        let kernels = self.opened.kernels(OPERATION, device)?;
        let grid = Grid::wide(words);
        let count = Count::begin();
        // SAFETY: the kernel takes address, count, seed and the first of the two counters, and reads exactly the words that the
        // caller allows.
        let ended = unsafe {
            self.opened.ask(OPERATION, device, count.start(), |[counted, _]| {
                self.opened.launch(OPERATION, kernels.count_wrong, grid, &mut [at.0, words, seed, counted.0])
            })
        };
        count.end(OPERATION, words, ended?)
    }

    unsafe fn walk_list(&self, device: DeviceId, head: Address, most: u64) -> Result<Walked> {
        const OPERATION: Operation = Operation::WalkList;
        words(OPERATION, head, Bytes::ZERO)?;
        let _entered = self.opened.enter_device(OPERATION, device)?;
        let kernels = self.opened.kernels(OPERATION, device)?;
        // SAFETY: the kernel takes the first address, the number of nodes and the words for its result; the addresses that it
        // follows are nodes by the caller's promise.
        let answer = unsafe {
            self.opened.ask(OPERATION, device, Walked::UNWRITTEN, |[nodes, sum]| {
                let parameters = &mut [head.0, most, nodes.0, sum.0];
                self.opened.launch(OPERATION, kernels.walk_list, Grid::single(), parameters)
            })
        };
        Walked::written(OPERATION, answer?)
    }

    fn own_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        Ok(Box::new(OwnStream::new(Operation::CreateStream, &self.opened, device, STREAM_NON_BLOCKING)?))
    }

    fn blocking_stream(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        Ok(Box::new(OwnStream::new(Operation::CreateStream, &self.opened, device, STREAM_BLOCKING)?))
    }

    fn stream_elsewhere(&self, device: DeviceId) -> Result<Box<dyn WorkStream>> {
        const OPERATION: Operation = Operation::CreateContext;
        let context = OwnContext::new(OPERATION, &self.opened, device)?;
        Ok(Box::new(OwnStream::elsewhere(OPERATION, context, STREAM_NON_BLOCKING)?))
    }

    fn in_context_of(&self, stream: &dyn WorkStream, act: &mut dyn FnMut()) -> Result<()> {
        const OPERATION: Operation = Operation::EnterContext;
        self.opened.here(OPERATION)?;
        let _entered = self.opened.enter(OPERATION, own_context(OPERATION, stream)?)?;
        act();
        Ok(())
    }

    unsafe fn open_in_context_of(&self, device: DeviceId, stream: &dyn WorkStream) -> Result<Self> {
        let context = own_context(Operation::Open, stream)?;
        // SAFETY: the context lives as long as the stream, which outlives the backend by the caller's promise.
        unsafe { Self::with_context(device, context.0) }
    }

    unsafe fn begin_capture(&self, device: DeviceId, stream: Stream<'_>, mode: CaptureMode) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.opened.start_capture(device, stream, mode) }
    }

    fn end_capture(&self, device: DeviceId, stream: Stream<'_>) -> Result<Box<dyn Graph>> {
        self.opened.finish_capture(device, stream)
    }

    unsafe fn start_pattern_on(
        &self,
        device: DeviceId,
        stream: Stream<'_>,
        at: Address,
        length: Bytes,
        seed: u64,
        rounds: u32,
    ) -> Result<()> {
        const OPERATION: Operation = Operation::WritePattern;
        let words = words(OPERATION, at, length)?;
        let stream = CuStream(stream.as_raw());
        let context = self.opened.context_for(OPERATION, device, stream)?;
        let _entered = self.opened.enter(OPERATION, context)?;
        let kernels = self.opened.kernels_in(OPERATION, device, context)?;
        let grid = Grid::slow(stream);
        for seed in round_seeds(seed, rounds) {
            // SAFETY: as in `write_pattern`; the stream belongs to the current context.
            unsafe { self.opened.launch(OPERATION, kernels.write_pattern, grid, &mut [at.0, words, seed]) }?;
        }
        Ok(())
    }
}

/// Returns the context that was created for a stream.
fn own_context(operation: Operation, stream: &dyn WorkStream) -> Result<CuContext> {
    let missing = || {
        Error::new(operation, Detail::Unsupported { reason: "the stream has no context of its own".into() })
    };
    stream.context().map(CuContext).ok_or_else(missing)
}

/// Returns the number of pattern words in a part. A part that does not begin and end between words would fault on the device, which
/// destroys its context.
fn words(operation: Operation, at: Address, length: Bytes) -> Result<u64> {
    let unaligned = |what, value| match Granularity::new(PATTERN_WORD) {
        Some(granularity) => Err(Error::new(operation, Detail::Unaligned { what, value, granularity })),
        None => Ok(0),
    };
    if !at.is_aligned_to(PATTERN_WORD) {
        return unaligned("address", at.0);
    }
    if !length.0.is_multiple_of(PATTERN_WORD.0) {
        return unaligned("length", length.0);
    }
    Ok(length.0 / PATTERN_WORD.0)
}

impl WorkStream for OwnStream {
    fn stream(&self) -> Stream<'_> {
        // SAFETY: the stream lives as long as it is borrowed.
        unsafe { Stream::from_raw(self.raw().0) }
    }

    fn context(&self) -> Option<*mut c_void> {
        self.own.as_ref().map(|own| own.raw.0)
    }

    fn is_done(&self) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryStream;
        let _entered = self.enter(OPERATION)?;
        let _relaxed = self.backend.relax(OPERATION)?;
        // SAFETY: the stream is live, and its context is current.
        match unsafe { (self.backend.functions().stream_query)(self.raw()) } {
            CuResult::NOT_READY => Ok(false),
            result => {
                let context = || format!("stream {:?}", self.raw());
                self.backend.check(OPERATION, "cuStreamQuery", result, context).map(|()| true)
            }
        }
    }
}
