//! HIP alone: a device is made current by its number, and how a descriptor is imported depends on the version.

use crate::abi::Code;
use crate::library::{Library, required};
use crate::{ImportBy, Own};
use gpu_vmm_core::Vendor;

pub(crate) struct Hip {
    set_device: unsafe extern "C" fn(i32) -> i32,
    version: i32,
}

impl Hip {
    pub(crate) fn start(library: &Library) -> Result<Self, String> {
        let get_version: unsafe extern "C" fn(*mut i32) -> i32 = required(library, "hipRuntimeGetVersion")?;
        let mut version = 0;
        // SAFETY: one number is written.
        match unsafe { get_version(&raw mut version) } {
            0 => Ok(Self { set_device: required(library, "hipSetDevice")?, version }),
            code => Err(format!("hipRuntimeGetVersion answered {code}")),
        }
    }
}

impl Own for Hip {
    fn vendor(&self) -> Vendor {
        Vendor::Hip
    }

    fn make_current(&self, device: i32) -> Code {
        // SAFETY: HIP checks the number.
        Code(unsafe { (self.set_device)(device) })
    }

    fn import_by(&self) -> ImportBy {
        match self.version {
            ..70_000_000 => ImportBy::Pointer,
            70_100_000.. => ImportBy::Value,
            _ => ImportBy::Unknown,
        }
    }
}
