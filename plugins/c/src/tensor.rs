//! DLPack tensors of a region, which PyTorch, CuPy, JAX and NumPy take without a copy.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::{quietly, status};
use crate::region::Region;
use crate::status::{Failure, Status};
use crate::texts::{clear, give_if_wanted, object};
use gpu_vmm::dlpack::{DLDataType, DLDataTypeCode, DLDevice, LegacyTensor, Tensor, TensorView};
use gpu_vmm::{Backend as _, Bytes, DeviceId, Operation};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Exports a part of a region, from `offset` bytes on, as a DLPack tensor. The memory stays as long as the tensor exists, also
/// after the region grows or is freed.
///
/// `code`, `bits` and `lanes` are the fields of DLDataType. `shape` and `strides`, in elements, have `ndim` numbers each, at most 32.
/// Null strides mean row-major order. `tensor` receives a `DLManagedTensorVersioned *` if `versioned` is true, else a
/// `DLManagedTensor *`, which cannot express `read_only`.
///
/// # Safety
///
/// `region` is null or a region. `shape` and `strides` are null or point to `ndim` numbers each. `tensor` is null or points to a
/// writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_dlpack(
    region: *const Region,
    offset: u64,
    code: u8,
    bits: u8,
    lanes: u16,
    ndim: i32,
    shape: *const i64,
    strides: *const i64,
    read_only: bool,
    versioned: bool,
    tensor: *mut *mut c_void,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(tensor) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let ndim = usize::try_from(ndim).ok().filter(|ndim| *ndim <= 32);
        let ndim = ndim.ok_or_else(|| Failure::invalid("export a tensor: ndim is not between 0 and 32"))?;
        if tensor.is_null() || ndim > 0 && shape.is_null() {
            return Err(Failure::invalid(
                "export a tensor: shape, or tensor, the place for the result, is null",
            ));
        }
        let numbers = |from: *const i64| match (from.is_null(), ndim) {
            (true, _) | (_, 0) => Vec::new(),
            // SAFETY: the caller guarantees `ndim` numbers.
            _ => unsafe { std::slice::from_raw_parts(from, ndim) }.to_vec(),
        };
        let view = TensorView {
            offset: Bytes(offset),
            dtype: DLDataType { code: DLDataTypeCode(code), bits, lanes },
            shape: numbers(shape),
            strides: (!strides.is_null()).then(|| numbers(strides)),
            read_only,
        };
        let raw: *mut c_void = if versioned {
            region.memory.dlpack(None, &view)?.into_raw().as_ptr().cast()
        } else {
            region.memory.dlpack_unversioned(None, &view)?.into_raw().as_ptr().cast()
        };
        // SAFETY: the place is writable, as the caller guarantees.
        unsafe { tensor.write(raw) };
        Ok(())
    })
}

/// Calls the deleter of a tensor that no other library has taken. Null does nothing.
///
/// # Safety
///
/// `tensor` is null or comes from gpu_vmm_region_dlpack with the same `versioned`, and its deleter was not called yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_dlpack_delete(tensor: *mut c_void, versioned: bool) {
    let Some(tensor) = NonNull::new(tensor) else { return };
    quietly(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if versioned {
                drop(Tensor::from_raw(tensor.cast()));
            } else {
                drop(LegacyTensor::from_raw(tensor.cast()));
            }
        }
    });
}

/// Returns a device as DLPack names it: its type (1 for host memory, 2 for CUDA, 10 for ROCm) and its number. Each of the two
/// may be null.
///
/// # Safety
///
/// `backend` is null or an open backend. `device_type` and `device_id` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_dlpack_device(
    backend: *const Backend,
    device: u32,
    device_type: *mut i32,
    device_id: *mut i32,
) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(device_type);
        clear(device_id);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let backend = unsafe { object("backend", backend) }?;
        backend.0.device(Operation::QueryDevice, DeviceId(device))?;
        let named = DLDevice::of(backend.0.vendor(), DeviceId(device));
        // SAFETY: guaranteed by the caller.
        unsafe {
            give_if_wanted(device_type, named.device_type.0);
            give_if_wanted(device_id, named.device_id);
        }
        Ok(())
    })
}
