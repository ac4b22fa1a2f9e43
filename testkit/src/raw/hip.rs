//! HIP's own part: a device number makes a device current, and the form of an imported descriptor depends on the
//! version.

use crate::raw::abi::Code;
use crate::raw::library::{Library, required};
use crate::raw::table::Symbol;
use crate::raw::{ImportBy, Own};
use gpu_vmm_core::Vendor;

pub(crate) struct Hip {
    set_device: unsafe extern "C" fn(i32) -> i32,
    enable_peer: Symbol<unsafe extern "C" fn(i32, u32) -> i32>,
    copy_peer: Symbol<unsafe extern "C" fn(u64, i32, u64, i32, usize) -> i32>,
    version: i32,
}

impl Hip {
    pub(crate) fn start(library: &Library) -> Result<Self, String> {
        let get_version: unsafe extern "C" fn(*mut i32) -> i32 = required(library, "hipRuntimeGetVersion")?;
        let mut version = 0;
        // SAFETY: the function writes one number.
        match unsafe { get_version(&raw mut version) } {
            0 => Ok(Self {
                set_device: required(library, "hipSetDevice")?,
                enable_peer: Symbol::find(library, "hipDeviceEnablePeerAccess"),
                copy_peer: Symbol::find(library, "hipMemcpyPeer"),
                version,
            }),
            code => Err(format!("hipRuntimeGetVersion returned {code}")),
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

    fn enable_peer(&self, peer: i32) -> Code {
        // SAFETY: HIP checks the number; flags must be zero.
        Code(unsafe { self.enable_peer.get()(peer, 0) })
    }

    unsafe fn copy_peer(&self, to: u64, to_device: i32, from: u64, from_device: i32, length: usize) -> Code {
        // SAFETY: the caller's promise; HIP checks the numbers of devices.
        Code(unsafe { self.copy_peer.get()(to, to_device, from, from_device, length) })
    }
}
