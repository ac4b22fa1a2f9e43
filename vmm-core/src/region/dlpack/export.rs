//! Checking a view against its region, and the memory that the consumer's call of the deleter frees.
#![allow(unsafe_code)]

use super::abi::{
    DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_READ_ONLY,
};
use super::shared::{Export, TensorRegion};
use super::tensor::{LegacyTensor, Tensor};
use super::view::{LaidOut, TensorView};
use crate::driver::Backend;
use crate::region::{Accessor, Region};
use crate::types::{Access, Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Result, Vendor};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

const OPERATION: Operation = Operation::ExportTensor;

impl<B: Backend> TensorRegion<B> {
    /// Exports a part of the region as a tensor for another library.
    ///
    /// The tensor is on the device that owns the memory. That device needs read access, and write access unless the view is
    /// read-only. `device` names the device that the caller expects; `None` accepts any. [`DeviceId::HOST`] exports memory to
    /// which the CPU has access as a tensor of the CPU. On host memory every tensor is on the CPU.
    ///
    /// # Errors
    ///
    /// [`Detail::BadTensor`] for a view that is invalid in itself, or that lies in memory of several devices or of another device
    /// than `device`; [`Detail::OutOfRange`], [`Detail::NotMapped`], [`Detail::NoAccess`] or [`Detail::Poisoned`] for the part
    /// between the first element and the last; [`Detail::Suspended`]; [`Detail::Forked`].
    pub fn dlpack(&self, device: Option<DeviceId>, view: &TensorView) -> Result<Tensor> {
        let exported: NonNull<DLManagedTensorVersioned> = self.exported(device, view)?;
        // SAFETY: this function has just created it, in the version that gpu-vmm writes, and it has no other owner.
        Ok(unsafe { Tensor::from_raw(exported) })
    }

    /// Exports a part of the region as [`TensorRegion::dlpack`] does, for libraries that do not support version 1 of DLPack.
    ///
    /// # Errors
    ///
    /// Those of [`TensorRegion::dlpack`], and [`Detail::BadTensor`] for a read-only view, since such a tensor has no flag for it.
    pub fn dlpack_unversioned(&self, device: Option<DeviceId>, view: &TensorView) -> Result<LegacyTensor> {
        if view.read_only {
            let reason = "a tensor without a version cannot say that it is read-only; export one with a version, or a \
                          view that is not read-only";
            return Err(Error::new(OPERATION, Detail::BadTensor { reason: reason.to_owned() }));
        }
        let exported: NonNull<DLManagedTensor> = self.exported(device, view)?;
        // SAFETY: this function has just created it, and it has no other owner.
        Ok(unsafe { LegacyTensor::from_raw(exported) })
    }

    fn exported<M: Managed>(&self, device: Option<DeviceId>, view: &TensorView) -> Result<NonNull<M>> {
        let LaidOut { shape, strides, length } = view.lay_out(OPERATION)?;
        let region = self.lock(OPERATION)?;
        let tensor = DLTensor {
            device: place(&region, device, view, length)?,
            data: (region.address() + view.offset).as_ptr(),
            ndim: shape.len() as i32, // MAX_DIMENSIONS at most
            dtype: view.dtype,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let managed = M::new::<B>(tensor, view.read_only);
        let export = self.export(&region);
        Ok(Held { managed, shape, strides, _export: export }.hand_out())
    }
}

/// Checks the memory of a view's elements and returns the device that they are on.
fn place<B: Backend>(
    region: &Region<B>,
    device: Option<DeviceId>,
    view: &TensorView,
    length: Bytes,
) -> Result<DLDevice> {
    let by = match device {
        Some(device) if device.is_host() => Accessor::Device(device),
        _ => Accessor::Owner,
    };
    let need = if view.read_only { Access::Read } else { Access::ReadWrite };
    let offset = view.offset;
    let segments = region.segments(OPERATION, offset, length, need, by)?;
    let limit = region.reserved();
    if offset > limit {
        return Err(Error::new(
            OPERATION,
            Detail::OutOfRange { range: OffsetRange { offset, length }, limit },
        ));
    }
    if device.is_some_and(DeviceId::is_host) {
        return Ok(DLDevice::of(Vendor::Host, DeviceId::HOST));
    }
    let bad = |reason| Err(Error::new(OPERATION, Detail::BadTensor { reason }));
    let owner = segments.first().map_or_else(|| owner_at(region, offset), |first| first.device);
    if let Some(other) = segments.iter().find(|segment| segment.device != owner) {
        let at = Bytes(other.address.0 - region.address().0);
        return bad(format!(
            "{length} at offset {offset} are memory of {owner}, and from offset {at} on of {}; a tensor is on one device; \
             export one tensor for each part",
            other.device
        ));
    }
    match device {
        Some(wanted) if wanted != owner => bad(format!(
            "{length} at offset {offset} are memory of {owner}, not of {wanted}; pass that device, or none"
        )),
        _ => Ok(DLDevice::of(region.backend().vendor(), owner)),
    }
}

/// The owner of the memory at an offset, or of the memory that growth would map there.
fn owner_at<B: Backend>(region: &Region<B>, offset: Bytes) -> DeviceId {
    let there = region.mapping_at(offset).map(|mapping| mapping.memory.device());
    there.unwrap_or_else(|| region.growing_memory().device)
}

/// All data of an exported tensor. It contains the consumer's structure, which points into it.
struct Held<M, B: Backend> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _export: Export<B>,
}

impl<M: Managed, B: Backend> Held<M, B> {
    fn hand_out(self) -> NonNull<M> {
        let held = NonNull::from(Box::leak(Box::new(self))).as_ptr();
        // SAFETY: it was just created and has no other owner. From here on only these pointers reach it, until the deleter turns
        // it into a box again.
        unsafe {
            let shape = (*held).shape.as_mut_ptr();
            let strides = (*held).strides.as_mut_ptr();
            (*held).managed.point(held.cast(), shape, strides);
            NonNull::new_unchecked(&raw mut (*held).managed)
        }
    }

    /// Frees an exported tensor. A panic must not leave this function, because the consumer is not Rust code.
    ///
    /// # Safety
    ///
    /// `context` comes from `hand_out` of these types, and this is the only call for it.
    unsafe fn free(context: *mut c_void) {
        let free = || {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(context.cast::<Self>()) });
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(free)) {
            // Dropping it could panic as well.
            std::mem::forget(panic);
        }
    }
}

/// One of the two structures for consumers.
trait Managed: Sized {
    /// The structure without its pointers.
    fn new<B: Backend>(tensor: DLTensor, read_only: bool) -> Self;

    fn point(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64);
}

impl Managed for DLManagedTensorVersioned {
    fn new<B: Backend>(dl_tensor: DLTensor, read_only: bool) -> Self {
        Self {
            version: DLPackVersion::CURRENT,
            manager_ctx: ptr::null_mut(),
            deleter: Some(delete::<B>),
            flags: if read_only { FLAG_READ_ONLY } else { 0 },
            dl_tensor,
        }
    }

    fn point(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
        self.manager_ctx = context;
        (self.dl_tensor.shape, self.dl_tensor.strides) = (shape, strides);
    }
}

impl Managed for DLManagedTensor {
    fn new<B: Backend>(dl_tensor: DLTensor, _read_only: bool) -> Self {
        Self { dl_tensor, manager_ctx: ptr::null_mut(), deleter: Some(delete_unversioned::<B>) }
    }

    fn point(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
        self.manager_ctx = context;
        (self.dl_tensor.shape, self.dl_tensor.strides) = (shape, strides);
    }
}

/// # Safety
///
/// `TensorRegion::<B>::dlpack` has returned the tensor, and this is the only call for it; or it is null.
unsafe extern "C" fn delete<B: Backend>(tensor: *mut DLManagedTensorVersioned) {
    if !tensor.is_null() {
        // SAFETY: the caller's promise.
        unsafe { Held::<DLManagedTensorVersioned, B>::free((*tensor).manager_ctx) }
    }
}

/// # Safety
///
/// `TensorRegion::<B>::dlpack_unversioned` has returned the tensor, and this is the only call for it; or it is null.
unsafe extern "C" fn delete_unversioned<B: Backend>(tensor: *mut DLManagedTensor) {
    if !tensor.is_null() {
        // SAFETY: the caller's promise.
        unsafe { Held::<DLManagedTensor, B>::free((*tensor).manager_ctx) }
    }
}
