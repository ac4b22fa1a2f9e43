//! Parts of a region as tensors for other libraries, without a copy: [DLPack](https://dmlc.github.io/dlpack/latest/).
//!
//! A [`SharedRegion`] is a region that tensors have a share in. [`SharedRegion::dlpack`] makes a [`Tensor`] of a part of it,
//! which PyTorch, JAX, CuPy, NumPy and others take over as it is: they get the address, and call back when they have done.
//!
//! ```
//! # use gpu_vmm_core::dlpack::{DataType, SharedRegion, TensorView};
//! # use gpu_vmm_core::{Backend, Bytes, ErrorKind, Region, Result, WaitFor};
//! # fn example<B: Backend>(backend: &B) -> Result<()> {
//! let shared = SharedRegion::new(Region::builder(backend).reserve(Bytes::gib(64)).build()?);
//! shared.grow_to(Bytes::mib(2))?;
//! let tensor = shared.dlpack(None, &TensorView::new(Bytes(0), DataType::F32, [512, 1024]))?;
//! let data = tensor.dl_tensor().data;
//!
//! // More memory behind what is there: the tensor stays good. It keeps the region, whoever else has dropped it.
//! shared.grow_to(Bytes::mib(64))?;
//! assert_eq!(tensor.dl_tensor().data, data);
//! let error = shared.shrink_to(Bytes(0), WaitFor::all_devices()).unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Busy);
//!
//! let raw = tensor.into_raw(); // for a consumer, who calls the deleter
//! # // SAFETY: it was made above, and nobody else has it.
//! # drop(unsafe { gpu_vmm_core::dlpack::Tensor::from_raw(raw) });
//! # Ok(())
//! # }
//! ```
//!
//! # What holds while a tensor lives
//!
//! - Its addresses stay reserved, and its memory mapped with the access that it had, also when every [`SharedRegion`] has
//!   been dropped and when the region has grown. With the last of all, tensors included, the region is dropped, which waits
//!   for the devices: a deleter must not be called where a driver allows no calls, as in a stream's host function.
//! - Calls that take memory away, [`SharedRegion::shrink_to`] and [`SharedRegion::suspend`], fail with
//!   [`Detail::Exported`](crate::Detail::Exported). [`SharedRegion::shrink_exported_to`] and
//!   [`SharedRegion::suspend_exported`] insist: the consumer must not touch memory that is gone.
//! - Nothing is waited for: work that is queued on streams and writes what is in the tensor has to be ordered before its
//!   consumer by whoever hands it over.
//! - It begins wherever the view says. Some consumers want more than a multiple of the element, 256 bytes for example.
//! - It may lie in [several reservations](crate::Region::reservations), where the region grew behind the first. Kernels see no
//!   difference, but a driver may refuse a single copy over the border: reserve enough at first.
//!
//! | file | subject |
//! |---|---|
//! | `abi` | the structures of C, as `dlpack.h` has them |
//! | `view` | which elements of a region a tensor is to have |
//! | `shared` | a region that tensors have a share in |
//! | `export` | a view checked against the region, and what is freed by the deleter |
//! | `tensor` | the tensors as their owner has them |

mod abi;
mod export;
mod shared;
mod tensor;
mod view;

pub use abi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPackVersion, DLTensor, FLAG_IS_COPIED, FLAG_READ_ONLY,
};
pub use shared::SharedRegion;
pub use tensor::{LegacyTensor, Tensor};
pub use view::{DataType, MAX_DIMENSIONS, TensorView};
