//! Tensors before a consumer owns them.
#![allow(unsafe_code)]

use super::abi::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_READ_ONLY};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A tensor of version 1 of DLPack. Dropping it calls its deleter.
#[derive(Debug)]
pub struct Tensor(NonNull<DLManagedTensorVersioned>);

/// A tensor from before version 1 of DLPack, for consumers that support no other. Dropping it calls its deleter.
#[derive(Debug)]
pub struct LegacyTensor(NonNull<DLManagedTensor>);

impl Tensor {
    /// Returns the tensor as its consumer sees it.
    #[must_use]
    pub fn dl_tensor(&self) -> &DLTensor {
        &self.managed().dl_tensor
    }

    /// Returns the version of the structure.
    #[must_use]
    pub fn version(&self) -> DLPackVersion {
        self.managed().version
    }

    /// Reports whether consumers must not write the tensor.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.managed().flags & FLAG_READ_ONLY != 0
    }

    /// Returns the raw structure for a consumer, which calls the deleter once, from any thread.
    #[must_use = "the tensor keeps its memory until its deleter is called"]
    pub fn into_raw(self) -> NonNull<DLManagedTensorVersioned> {
        ManuallyDrop::new(self).0
    }

    /// Takes ownership of a raw structure, as a consumer does.
    ///
    /// # Safety
    ///
    /// It is a complete structure of major version 1. Its deleter is called by no other code and can be called from any thread.
    #[must_use]
    pub unsafe fn from_raw(tensor: NonNull<DLManagedTensorVersioned>) -> Self {
        Self(tensor)
    }

    fn managed(&self) -> &DLManagedTensorVersioned {
        // SAFETY: the structure exists until its deleter is called, which happens when this value is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter {
            // SAFETY: no other code calls the deleter, and no reference to the tensor exists any more.
            unsafe { deleter(self.0.as_ptr()) }
        }
    }
}

impl LegacyTensor {
    /// Returns the tensor as its consumer sees it.
    #[must_use]
    pub fn dl_tensor(&self) -> &DLTensor {
        &self.managed().dl_tensor
    }

    /// Returns the raw structure for a consumer, which calls the deleter once, from any thread.
    #[must_use = "the tensor keeps its memory until its deleter is called"]
    pub fn into_raw(self) -> NonNull<DLManagedTensor> {
        ManuallyDrop::new(self).0
    }

    /// Takes ownership of a raw structure, as a consumer does.
    ///
    /// # Safety
    ///
    /// It is a complete structure. Its deleter is called by no other code and can be called from any thread.
    #[must_use]
    pub unsafe fn from_raw(tensor: NonNull<DLManagedTensor>) -> Self {
        Self(tensor)
    }

    fn managed(&self) -> &DLManagedTensor {
        // SAFETY: the structure exists until its deleter is called, which happens when this value is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for LegacyTensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter {
            // SAFETY: no other code calls the deleter, and no reference to the tensor exists any more.
            unsafe { deleter(self.0.as_ptr()) }
        }
    }
}

// SAFETY: the deleter can be called from any thread; a region's deleter drops values that can be sent to any thread.
unsafe impl Send for Tensor {}
// SAFETY: shared references only read the tensor.
unsafe impl Sync for Tensor {}
// SAFETY: as for `Tensor`.
unsafe impl Send for LegacyTensor {}
// SAFETY: as for `Tensor`.
unsafe impl Sync for LegacyTensor {}

#[cfg(test)]
mod tests {
    use super::super::abi::{DLDataType, DLDevice, DLDeviceType};
    use super::*;
    use std::ptr::null_mut;

    /// DLPack's flag of a tensor that is a copy, which none of a region is.
    const FLAG_IS_COPIED: u64 = 1 << 1;

    #[test]
    fn only_one_flag_makes_tensor_read_only() {
        let later = 1 << 63;
        for others in [0, FLAG_IS_COPIED, later, FLAG_IS_COPIED | later] {
            for (flags, read_only) in [(others, false), (others | FLAG_READ_ONLY, true)] {
                let dl_tensor = DLTensor {
                    data: null_mut(),
                    device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
                    ndim: 0,
                    dtype: DLDataType::U8,
                    shape: null_mut(),
                    strides: null_mut(),
                    byte_offset: 0,
                };
                let mut managed = DLManagedTensorVersioned {
                    version: DLPackVersion::CURRENT,
                    manager_ctx: null_mut(),
                    deleter: None,
                    flags,
                    dl_tensor,
                };
                // SAFETY: the structure is complete, outlives the tensor, and has no deleter.
                let tensor = unsafe { Tensor::from_raw(NonNull::from(&mut managed)) };
                assert_eq!(tensor.is_read_only(), read_only, "{flags:#x}");
            }
        }
    }
}
