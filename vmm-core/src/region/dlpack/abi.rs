//! The C structures for the exchange of tensors, as in `dlpack.h` of version 1.0.
//!
//! The header's enumerations are integers here, because a newer library may use a value that this version does not know.

use crate::types::{DeviceId, Vendor};
use std::ffi::c_void;

/// Consumers must not write the tensor.
pub const FLAG_READ_ONLY: u64 = 1 << 0;

/// The version of DLPack that defines the layout of a structure. The layout changes only with the major number.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLPackVersion {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl DLPackVersion {
    /// The version that gpu-vmm writes.
    pub const CURRENT: Self = Self { major: 1, minor: 0 };
}

/// The kind of the device that a tensor is on.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DLDeviceType(pub i32);

impl DLDeviceType {
    /// `kDLCPU`
    pub const CPU: Self = Self(1);
    /// `kDLCUDA`
    pub const CUDA: Self = Self(2);
    /// `kDLROCM`
    pub const ROCM: Self = Self(10);
}

/// The device that a tensor is on.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DLDevice {
    /// The kind of the device.
    pub device_type: DLDeviceType,
    /// The ordinal of the device among the devices of this kind; 0 for the CPU.
    pub device_id: i32,
}

impl DLDevice {
    /// Returns DLPack's name for a vendor's device. All simulated devices of host memory are the one CPU.
    #[must_use]
    pub const fn of(vendor: Vendor, device: DeviceId) -> Self {
        let (device_type, device_id) = match vendor {
            Vendor::Cuda => (DLDeviceType::CUDA, device.0 as i32), // below DeviceId::LIMIT
            Vendor::Hip => (DLDeviceType::ROCM, device.0 as i32),
            Vendor::Host => (DLDeviceType::CPU, 0),
        };
        Self { device_type, device_id }
    }
}

/// The kind of number that an element consists of.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DLDataTypeCode(pub u8);

impl DLDataTypeCode {
    /// `kDLInt`
    pub const INT: Self = Self(0);
    /// `kDLUInt`
    pub const UINT: Self = Self(1);
    /// `kDLFloat`
    pub const FLOAT: Self = Self(2);
    /// `kDLOpaqueHandle`
    pub const OPAQUE_HANDLE: Self = Self(3);
    /// `kDLBfloat`
    pub const BFLOAT: Self = Self(4);
    /// `kDLComplex`
    pub const COMPLEX: Self = Self(5);
    /// `kDLBool`
    pub const BOOL: Self = Self(6);
}

/// The type of an element: `lanes` numbers of `bits` each.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DLDataType {
    /// The kind of the numbers.
    pub code: DLDataTypeCode,
    /// The number of bits of each number.
    pub bits: u8,
    /// The number of numbers in an element: 1, or more for vector types.
    pub lanes: u16,
}

impl DLDataType {
    /// A floating-point number of 32 bits.
    pub const F32: Self = Self::scalar(DLDataTypeCode::FLOAT, 32);
    /// A floating-point number of 64 bits.
    pub const F64: Self = Self::scalar(DLDataTypeCode::FLOAT, 64);
    /// A floating-point number of 16 bits.
    pub const F16: Self = Self::scalar(DLDataTypeCode::FLOAT, 16);
    /// A floating-point number of 16 bits with the exponent range of 32 bits.
    pub const BF16: Self = Self::scalar(DLDataTypeCode::BFLOAT, 16);
    /// A signed integer of 32 bits.
    pub const I32: Self = Self::scalar(DLDataTypeCode::INT, 32);
    /// A signed integer of 64 bits.
    pub const I64: Self = Self::scalar(DLDataTypeCode::INT, 64);
    /// An unsigned integer of 8 bits.
    pub const U8: Self = Self::scalar(DLDataTypeCode::UINT, 8);

    /// Returns the type of one number of `bits` bits.
    #[must_use]
    pub const fn scalar(code: DLDataTypeCode, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }
}

/// A tensor without an owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The address of its memory. In a tensor of a region, the address of the first element.
    pub data: *mut c_void,
    /// The device that the tensor is on.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of an element.
    pub dtype: DLDataType,
    /// The number of elements in each dimension.
    pub shape: *mut i64,
    /// The distance in elements between neighbours in each dimension. Never null in a tensor of a region.
    pub strides: *mut i64,
    /// The offset of the first element from `data`, in bytes: 0 in a tensor of a region.
    pub byte_offset: u64,
}

/// A tensor with an owner, from before version 1. It has no flag for read-only tensors.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Private data of the producer.
    pub manager_ctx: *mut c_void,
    /// The function that the consumer calls once with this structure when it no longer needs the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor with an owner.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of this structure.
    pub version: DLPackVersion,
    /// Private data of the producer.
    pub manager_ctx: *mut c_void,
    /// The function that the consumer calls once with this structure when it no longer needs the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`FLAG_READ_ONLY`] and other flags.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    /// The numbers come from a C compiler with `dlpack.h` of version 1.0, on any 64-bit system.
    #[test]
    fn the_structures_are_as_c_has_them() {
        assert_eq!((size_of::<DLPackVersion>(), size_of::<DLDevice>(), size_of::<DLDataType>()), (8, 8, 4));
        assert_eq!((offset_of!(DLPackVersion, major), offset_of!(DLPackVersion, minor)), (0, 4));
        assert_eq!((offset_of!(DLDevice, device_type), offset_of!(DLDevice, device_id)), (0, 4));
        let element =
            (offset_of!(DLDataType, code), offset_of!(DLDataType, bits), offset_of!(DLDataType, lanes));
        assert_eq!(element, (0, 1, 2));

        assert_eq!((size_of::<DLTensor>(), align_of::<DLTensor>()), (48, 8));
        assert_eq!((offset_of!(DLTensor, data), offset_of!(DLTensor, device)), (0, 8));
        assert_eq!((offset_of!(DLTensor, ndim), offset_of!(DLTensor, dtype)), (16, 20));
        assert_eq!((offset_of!(DLTensor, shape), offset_of!(DLTensor, strides)), (24, 32));
        assert_eq!(offset_of!(DLTensor, byte_offset), 40);

        assert_eq!(size_of::<DLManagedTensor>(), 64);
        assert_eq!(offset_of!(DLManagedTensor, dl_tensor), 0);
        assert_eq!(
            (offset_of!(DLManagedTensor, manager_ctx), offset_of!(DLManagedTensor, deleter)),
            (48, 56)
        );

        assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
        assert_eq!(offset_of!(DLManagedTensorVersioned, version), 0);
        assert_eq!(offset_of!(DLManagedTensorVersioned, manager_ctx), 8);
        assert_eq!(offset_of!(DLManagedTensorVersioned, deleter), 16);
        assert_eq!(offset_of!(DLManagedTensorVersioned, flags), 24);
        assert_eq!(offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
    }

    #[test]
    fn the_numbers_are_those_of_the_header() {
        let devices = [DLDeviceType::CPU, DLDeviceType::CUDA, DLDeviceType::ROCM];
        assert_eq!(devices.map(|device| device.0), [1, 2, 10]);
        let of = |vendor| {
            let device = DLDevice::of(vendor, DeviceId(3));
            (device.device_type.0, device.device_id)
        };
        assert_eq!([Vendor::Host, Vendor::Cuda, Vendor::Hip].map(of), [(1, 0), (2, 3), (10, 3)]);
        let codes = [
            DLDataTypeCode::INT,
            DLDataTypeCode::UINT,
            DLDataTypeCode::FLOAT,
            DLDataTypeCode::OPAQUE_HANDLE,
            DLDataTypeCode::BFLOAT,
            DLDataTypeCode::COMPLEX,
            DLDataTypeCode::BOOL,
        ];
        assert_eq!(codes.map(|code| code.0), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(FLAG_READ_ONLY, 1);
        assert_eq!(DLPackVersion::CURRENT, DLPackVersion { major: 1, minor: 0 });
    }
}
