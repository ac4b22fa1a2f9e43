//! Parts of a region as tensors for other libraries, without a copy: [DLPack](https://dmlc.github.io/dlpack/latest/).
//!
//! A [`TensorRegion`] is a region from which tensors can be exported. [`TensorRegion::dlpack`] exports a part of it as a
//! [`Tensor`]. PyTorch, JAX, CuPy, NumPy and other libraries use the memory at its address and call a deleter when they no longer
//! need it.
//!
//! ```
//! # use gpu_vmm_core::dlpack::{DLDataType, TensorRegion, TensorView};
//! # use gpu_vmm_core::{Backend, Bytes, ErrorKind, Region, Result, WaitFor};
//! # fn example<B: Backend>(backend: &B) -> Result<()> {
//! let shared = TensorRegion::new(Region::builder(backend).reserve(Bytes::gib(64)).build()?);
//! shared.grow_to(Bytes::mib(2))?;
//! let tensor = shared.dlpack(None, &TensorView::new(Bytes(0), DLDataType::F32, [512, 1024]))?;
//! let data = tensor.dl_tensor().data;
//!
//! // The tensor stays valid while the region grows. It keeps the region alive, also when every `TensorRegion` is dropped.
//! shared.grow_to(Bytes::mib(64))?;
//! assert_eq!(tensor.dl_tensor().data, data);
//! let error = shared.shrink_to(Bytes(0), WaitFor::all_devices()).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Busy);
//!
//! let raw = tensor.into_raw(); // for a consumer, which calls the deleter
//! # // SAFETY: it was created above and has no other owner.
//! # drop(unsafe { gpu_vmm_core::dlpack::Tensor::from_raw(raw) });
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees while a tensor exists
//!
//! - Its addresses stay reserved, and its memory stays mapped with the access that it had, also when the region grows and when
//!   every [`TensorRegion`] has been dropped. The last `TensorRegion` or tensor to be dropped drops the region, which waits for
//!   the devices. So a deleter must not be called where a driver allows no calls, as in a stream's host function.
//! - Calls that remove memory, [`TensorRegion::shrink_to`] and [`TensorRegion::suspend`], fail with
//!   [`Detail::Exported`](crate::Detail::Exported). [`TensorRegion::shrink_exported_to`] and [`TensorRegion::suspend_exported`]
//!   remove it anyway: the consumer must not use memory that was removed.
//! - Exporting waits for nothing. The caller must order queued work that writes the tensor's memory before the consumer's work.
//! - The tensor begins where the view says. Some consumers require a larger alignment than an element's, for example 256
//!   bytes.
//! - The tensor may lie in [several reservations](crate::Region::reservations) if the region grew behind its first one. Kernels
//!   see no difference, but a driver may refuse a single copy across the border: reserve enough addresses at first.

mod abi;
mod export;
mod shared;
mod tensor;
mod view;

pub use abi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPackVersion, DLTensor, FLAG_READ_ONLY,
};
pub use shared::TensorRegion;
pub use tensor::{LegacyTensor, Tensor};
pub use view::TensorView;
