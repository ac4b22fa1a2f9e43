//! Tensors as their owner has them, until a consumer takes them over.
#![allow(unsafe_code)]

use super::abi::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_READ_ONLY};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A tensor of version 1 of DLPack. Dropping it calls its deleter.
#[derive(Debug)]
pub struct Tensor(NonNull<DLManagedTensorVersioned>);

/// A tensor as it was before version 1 of DLPack, for consumers that know no other. Dropping it calls its deleter.
#[derive(Debug)]
pub struct LegacyTensor(NonNull<DLManagedTensor>);

impl Tensor {
    /// The tensor as its consumer sees it.
    #[must_use]
    pub fn dl_tensor(&self) -> &DLTensor {
        &self.managed().dl_tensor
    }

    /// The version of the structure.
    #[must_use]
    pub fn version(&self) -> DLPackVersion {
        self.managed().version
    }

    /// True where the consumer is told not to write.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.managed().flags & FLAG_READ_ONLY != 0
    }

    /// Gives it to a consumer, who calls the deleter once, from any thread.
    #[must_use = "the tensor keeps its memory until its deleter is called"]
    pub fn into_raw(self) -> NonNull<DLManagedTensorVersioned> {
        ManuallyDrop::new(self).0
    }

    /// Takes a tensor over, as a consumer.
    ///
    /// # Safety
    ///
    /// It is a whole structure of major version 1 whose deleter nobody else calls, and any thread may.
    #[must_use]
    pub unsafe fn from_raw(tensor: NonNull<DLManagedTensorVersioned>) -> Self {
        Self(tensor)
    }

    fn managed(&self) -> &DLManagedTensorVersioned {
        // SAFETY: it lives until its deleter is called, which is when this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter {
            // SAFETY: nobody else calls it, and nothing looks at the tensor any more.
            unsafe { deleter(self.0.as_ptr()) }
        }
    }
}

impl LegacyTensor {
    /// The tensor as its consumer sees it.
    #[must_use]
    pub fn dl_tensor(&self) -> &DLTensor {
        &self.managed().dl_tensor
    }

    /// Gives it to a consumer, who calls the deleter once, from any thread.
    #[must_use = "the tensor keeps its memory until its deleter is called"]
    pub fn into_raw(self) -> NonNull<DLManagedTensor> {
        ManuallyDrop::new(self).0
    }

    /// Takes a tensor over, as a consumer.
    ///
    /// # Safety
    ///
    /// It is a whole structure whose deleter nobody else calls, and any thread may.
    #[must_use]
    pub unsafe fn from_raw(tensor: NonNull<DLManagedTensor>) -> Self {
        Self(tensor)
    }

    fn managed(&self) -> &DLManagedTensor {
        // SAFETY: it lives until its deleter is called, which is when this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for LegacyTensor {
    fn drop(&mut self) {
        if let Some(deleter) = self.managed().deleter {
            // SAFETY: nobody else calls it, and nothing looks at the tensor any more.
            unsafe { deleter(self.0.as_ptr()) }
        }
    }
}

// SAFETY: its deleter may be called from any thread; the one of a region's drops values that may go to any.
unsafe impl Send for Tensor {}
// SAFETY: a shared one is only looked at.
unsafe impl Sync for Tensor {}
// SAFETY: as for `Tensor`.
unsafe impl Send for LegacyTensor {}
// SAFETY: as for `Tensor`.
unsafe impl Sync for LegacyTensor {}
