//! Parts of a region as DLPack tensors, which PyTorch, CuPy, JAX and NumPy take without a copy.
//!
//! Unsafe, since it is called from C.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::{quietly, status};
use crate::region::Region;
use crate::status::{Failure, Status};
use crate::texts::{clear, give_if_wanted, object};
use gpu_vmm::dlpack::{DLDataTypeCode, DLDevice, DataType, LegacyTensor, Tensor, TensorView};
use gpu_vmm::{Backend as _, Bytes, DeviceId, Operation};
use std::ffi::c_void;
use std::ptr::NonNull;

/// A DLPack tensor over a part of a region, from `offset` bytes on; the region's memory stays as long as the tensor does, also
/// when the region has grown or was freed.
///
/// `code`, `bits` and `lanes` are DLDataType's; `shape` and `strides`, in elements, have `ndim` numbers each; null for strides
/// is row after row. `tensor` gets a `DLManagedTensorVersioned *` where `versioned` is true, else a `DLManagedTensor *`, which
/// cannot say that it is read-only.
///
/// # Safety
///
/// `region` is null or a region; `shape` is null or `ndim` numbers, `strides` as well; `tensor` is null or room for a pointer.
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
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(tensor) };
    status(|| {
        // SAFETY: as the caller says.
        let region = unsafe { object("region", region) }?;
        let ndim = usize::try_from(ndim).ok().filter(|ndim| *ndim <= 32);
        let ndim = ndim.ok_or_else(|| Failure::invalid("export a tensor: ndim is not between 0 and 32"))?;
        if tensor.is_null() || ndim > 0 && shape.is_null() {
            return Err(Failure::invalid(
                "export a tensor: shape, or tensor, where the result is to go, is null",
            ));
        }
        let numbers = |from: *const i64| match (from.is_null(), ndim) {
            (true, _) | (_, 0) => Vec::new(),
            // SAFETY: there are so many numbers, as the caller says.
            _ => unsafe { std::slice::from_raw_parts(from, ndim) }.to_vec(),
        };
        let view = TensorView {
            offset: Bytes(offset),
            dtype: DataType { code: DLDataTypeCode(code), bits, lanes },
            shape: numbers(shape),
            strides: (!strides.is_null()).then(|| numbers(strides)),
            read_only,
        };
        let raw: *mut c_void = if versioned {
            region.memory.dlpack(None, &view)?.into_raw().as_ptr().cast()
        } else {
            region.memory.dlpack_unversioned(None, &view)?.into_raw().as_ptr().cast()
        };
        // SAFETY: there is room, as the caller says.
        unsafe { tensor.write(raw) };
        Ok(())
    })
}

/// Calls the deleter of a tensor that nobody has taken. Null is nothing.
///
/// # Safety
///
/// `tensor` is null or one that gpu_vmm_region_dlpack gave with the same `versioned`, whose deleter nobody has called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_dlpack_delete(tensor: *mut c_void, versioned: bool) {
    let Some(tensor) = NonNull::new(tensor) else { return };
    quietly(|| {
        // SAFETY: as the caller says.
        unsafe {
            if versioned {
                drop(Tensor::from_raw(tensor.cast()));
            } else {
                drop(LegacyTensor::from_raw(tensor.cast()));
            }
        }
    });
}

/// DLPack's name for a device: its type (1 memory of the host, 2 CUDA, 10 ROCm) and its number.
///
/// # Safety
///
/// `backend` is null or an open one; `device_type` and `device_id` are null or room for a number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_dlpack_device(
    backend: *const Backend,
    device: u32,
    device_type: *mut i32,
    device_id: *mut i32,
) -> Status {
    // SAFETY: null or room for a number each, as the caller says.
    unsafe {
        clear(device_type);
        clear(device_id);
    };
    status(|| {
        // SAFETY: as the caller says.
        let backend = unsafe { object("backend", backend) }?;
        backend.0.device(Operation::QueryDevice, DeviceId(device))?;
        let named = DLDevice::of(backend.0.vendor(), DeviceId(device));
        // SAFETY: as the caller says.
        unsafe {
            give_if_wanted(device_type, named.device_type.0);
            give_if_wanted(device_id, named.device_id);
        }
        Ok(())
    })
}
