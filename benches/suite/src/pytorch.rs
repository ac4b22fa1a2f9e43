//! PyTorch's caching allocator through its C interface, in the libraries of an installed PyTorch, so that the times include
//! no Python.
#![allow(unsafe_code)]

use crate::allocator::Allocator;
use crate::raw::Raw;
use crate::stop::{StepResult, Stop};
use gpu_vmm_core::Bytes;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::c_void;
use std::path::Path;

/// `AOTITorchError aoti_torch_cuda_caching_allocator_raw_alloc(uint64_t, void**)`, as in PyTorch's `shim.h`.
type RawAlloc = unsafe extern "C" fn(u64, *mut *mut c_void) -> i32;
/// `AOTITorchError aoti_torch_cuda_caching_allocator_raw_delete(void*)`
type RawDelete = unsafe extern "C" fn(*mut c_void) -> i32;
/// `AOTITorchError aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, AtenTensorHandle*)`
type EmptyStrided = unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut *mut c_void) -> i32;
/// `int32_t aoti_torch_device_type_cuda()`
type Number = unsafe extern "C" fn() -> i32;

/// PyTorch's caching allocator, on the current stream.
pub(crate) struct Torch {
    raw: Raw,
    alloc: RawAlloc,
    delete: RawDelete,
}

/// A block of PyTorch's allocator.
pub(crate) struct TorchBlock(*mut c_void);

// SAFETY: an address that PyTorch frees from any thread.
unsafe impl Send for TorchBlock {}

impl Torch {
    /// Loads PyTorch's libraries from its folder `lib`. They stay loaded until the process ends.
    pub(crate) fn load(folder: &Path, raw: &Raw) -> StepResult<Self> {
        let cpu = open(folder, "libtorch_cpu.so")?;
        let cuda = open(folder, "libtorch_cuda.so")?;
        let this = Self {
            raw: raw.clone(),
            alloc: find(&cuda, "aoti_torch_cuda_caching_allocator_raw_alloc")?,
            delete: find(&cuda, "aoti_torch_cuda_caching_allocator_raw_delete")?,
        };
        let empty: EmptyStrided = find(&cpu, "aoti_torch_empty_strided")?;
        let device: Number = find(&cpu, "aoti_torch_device_type_cuda")?;
        let bytes: Number = find(&cpu, "aoti_torch_dtype_uint8")?;
        let (length, stride, mut tensor) = (1, 1, std::ptr::null_mut());
        // The first tensor starts PyTorch's CUDA. It is never freed: benchmarks end soon.
        // SAFETY: one length and one stride are read, one tensor is written.
        let code =
            unsafe { empty(1, &raw const length, &raw const stride, bytes(), device(), 0, &raw mut tensor) };
        check("aoti_torch_empty_strided", code)?;
        Ok(this)
    }
}

impl Allocator for Torch {
    type Block = TorchBlock;

    fn name(&self) -> String {
        "PyTorch".to_owned()
    }

    fn alloc(&self, size: Bytes) -> StepResult<TorchBlock> {
        let mut block = std::ptr::null_mut();
        // SAFETY: one address is written.
        check("raw_alloc", unsafe { (self.alloc)(size.0, &raw mut block) })?;
        Ok(TorchBlock(block))
    }

    fn free(&self, TorchBlock(block): TorchBlock) -> StepResult {
        // SAFETY: it was allocated above, and is freed once.
        check("raw_delete", unsafe { (self.delete)(block) })
    }

    fn enter(&self) -> StepResult {
        self.raw.enter()
    }
}

fn check(call: &str, code: i32) -> StepResult {
    match code {
        0 => Ok(()),
        _ => Err(Stop::Failed(format!("PyTorch's {call} failed; see its message on standard error"))),
    }
}

fn open(folder: &Path, name: &str) -> StepResult<Library> {
    let path = folder.join(name);
    // SAFETY: the initializers of PyTorch's libraries, which are meant to be loaded into any process.
    unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|error| Stop::Skipped(format!("{} cannot be loaded: {error}", path.display())))
}

fn find<F: Copy>(library: &Library, name: &str) -> StepResult<F> {
    // SAFETY: the caller names the function's type from PyTorch's `shim.h`.
    unsafe { library.get::<F>(name) }
        .map(|function| *function)
        .map_err(|error| Stop::Skipped(format!("this PyTorch has no {name}: {error}")))
}
