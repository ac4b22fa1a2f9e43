//! The structures of C that tensors are handed over in, as `dlpack.h` of version 1.0 has them.
//!
//! What is an enumeration there is a number here: a newer library may give a number that no one here knows.

use crate::types::{DeviceId, Vendor};
use std::ffi::c_void;

/// Nobody may write what is in the tensor.
pub const FLAG_READ_ONLY: u64 = 1 << 0;
/// The tensor is a copy that its producer made for this consumer. No tensor of a region is.
pub const FLAG_IS_COPIED: u64 = 1 << 1;

/// The version of a structure. What it is made of differs where the major number does.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DLPackVersion {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl DLPackVersion {
    /// The version that is written here.
    pub const CURRENT: Self = Self { major: 1, minor: 0 };
}

/// What kind of device a tensor is on.
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
    /// Its kind.
    pub device_type: DLDeviceType,
    /// Its ordinal among the devices of this kind; 0 for the CPU.
    pub device_id: i32,
}

impl DLDevice {
    /// What DLPack calls a vendor's device. The host's memory is one device, whichever of them it is shared out to.
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

/// What kind of number an element is.
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
    /// What kind of number.
    pub code: DLDataTypeCode,
    /// How many bits one has.
    pub bits: u8,
    /// How many there are in an element: 1, or more for vector types.
    pub lanes: u16,
}

impl DLDataType {
    /// 32 bits of floating point.
    pub const F32: Self = Self::scalar(DLDataTypeCode::FLOAT, 32);
    /// 64 bits of floating point.
    pub const F64: Self = Self::scalar(DLDataTypeCode::FLOAT, 64);
    /// 16 bits of floating point.
    pub const F16: Self = Self::scalar(DLDataTypeCode::FLOAT, 16);
    /// 16 bits of floating point with the exponent of 32 bits.
    pub const BF16: Self = Self::scalar(DLDataTypeCode::BFLOAT, 16);
    /// A signed number of 32 bits.
    pub const I32: Self = Self::scalar(DLDataTypeCode::INT, 32);
    /// A signed number of 64 bits.
    pub const I64: Self = Self::scalar(DLDataTypeCode::INT, 64);
    /// A byte.
    pub const U8: Self = Self::scalar(DLDataTypeCode::UINT, 8);

    /// One number of so many bits.
    #[must_use]
    pub const fn scalar(code: DLDataTypeCode, bits: u8) -> Self {
        Self { code, bits, lanes: 1 }
    }
}

/// A tensor that nobody owns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// Where its memory is. A tensor of a region has its first element here.
    pub data: *mut c_void,
    /// Which device it is on.
    pub device: DLDevice,
    /// How many dimensions there are.
    pub ndim: i32,
    /// The type of an element.
    pub dtype: DLDataType,
    /// The size of each dimension.
    pub shape: *mut i64,
    /// How many elements the next one of each dimension is away. A tensor of a region always has them.
    pub strides: *mut i64,
    /// Where the first element is, from `data` on: 0 in a tensor of a region.
    pub byte_offset: u64,
}

/// A tensor with an owner, before version 1: it cannot say that nobody may write it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// What the consumer calls once with this structure when it has done.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor with an owner.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of this structure.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// What the consumer calls once with this structure when it has done.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`FLAG_READ_ONLY`] and others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    /// The numbers are those of a C compiler for `dlpack.h` of version 1.0, on any 64-bit system.
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
        assert_eq!((FLAG_READ_ONLY, FLAG_IS_COPIED), (1, 2));
        assert_eq!(DLPackVersion::CURRENT, DLPackVersion { major: 1, minor: 0 });
    }
}
