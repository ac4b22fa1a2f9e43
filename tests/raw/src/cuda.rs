//! CUDA alone: the driver is started, and a context is what makes a device current. The devices' primary contexts are
//! used, as the CUDA runtime and gpu-vmm use them.

use crate::abi::Code;
use crate::library::{Library, required};
use crate::{ImportBy, Own};
use gpu_vmm_core::Vendor;
use std::ffi::c_void;

type Context = *mut c_void;

pub(crate) struct Cuda {
    set_current: unsafe extern "C" fn(Context) -> i32,
    retain: unsafe extern "C" fn(*mut Context, i32) -> i32,
    devices: usize,
}

impl Cuda {
    pub(crate) fn start(library: &Library, devices: usize) -> Result<Self, String> {
        let init: unsafe extern "C" fn(u32) -> i32 = required(library, "cuInit")?;
        // SAFETY: flags must be zero; the call may be made any number of times.
        match unsafe { init(0) } {
            0 => Ok(Self {
                set_current: required(library, "cuCtxSetCurrent")?,
                retain: required(library, "cuDevicePrimaryCtxRetain")?,
                devices,
            }),
            code => Err(format!("cuInit answered {code}")),
        }
    }
}

impl Own for Cuda {
    fn vendor(&self) -> Vendor {
        Vendor::Cuda
    }

    /// The context is retained once a call, and never released: it lives as long as the process.
    fn make_current(&self, device: i32) -> Code {
        if usize::try_from(device).map_or(true, |device| device >= self.devices) {
            return Code::INVALID_DEVICE;
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the device exists, and one context is written.
        match unsafe { (self.retain)(&raw mut context, device) } {
            // SAFETY: the context is retained.
            0 => Code(unsafe { (self.set_current)(context) }),
            code => Code(code),
        }
    }

    fn import_by(&self) -> ImportBy {
        ImportBy::Value
    }
}
