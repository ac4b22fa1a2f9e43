//! CUDA's own part: the driver must be initialized, and a context makes a device current. The devices' primary contexts
//! are used, as in the CUDA runtime and gpu-vmm.

use crate::raw::abi::Code;
use crate::raw::library::{Library, required};
use crate::raw::table::Symbol;
use crate::raw::{ImportBy, Own};
use gpu_vmm_core::Vendor;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

type Context = *mut c_void;

pub(crate) struct Cuda {
    set_current: unsafe extern "C" fn(Context) -> i32,
    retain: unsafe extern "C" fn(*mut Context, i32) -> i32,
    enable_peer: Symbol<unsafe extern "C" fn(Context, u32) -> i32>,
    copy_peer: Symbol<unsafe extern "C" fn(u64, Context, u64, Context, usize) -> i32>,
    /// Each device's context, null until it is first needed. It lives as long as the process.
    contexts: Vec<AtomicPtr<c_void>>,
}

impl Cuda {
    pub(crate) fn start(library: &Library, devices: usize) -> Result<Self, String> {
        let init: unsafe extern "C" fn(u32) -> i32 = required(library, "cuInit")?;
        // SAFETY: flags must be zero; the call may be repeated.
        match unsafe { init(0) } {
            0 => Ok(Self {
                set_current: required(library, "cuCtxSetCurrent")?,
                retain: required(library, "cuDevicePrimaryCtxRetain")?,
                enable_peer: Symbol::find(library, "cuCtxEnablePeerAccess"),
                copy_peer: Symbol::find(library, "cuMemcpyPeer"),
                contexts: (0..devices).map(|_| AtomicPtr::default()).collect(),
            }),
            code => Err(format!("cuInit returned {code}")),
        }
    }

    fn context(&self, device: i32) -> Result<Context, Code> {
        let place = usize::try_from(device).ok().and_then(|device| self.contexts.get(device));
        let place = place.ok_or(Code::INVALID_DEVICE)?;
        let mut context = place.load(Ordering::Relaxed);
        if context.is_null() {
            // SAFETY: the device exists, and the function writes one context.
            match unsafe { (self.retain)(&raw mut context, device) } {
                0 => place.store(context, Ordering::Relaxed),
                code => return Err(Code(code)),
            }
        }
        Ok(context)
    }
}

impl Own for Cuda {
    fn vendor(&self) -> Vendor {
        Vendor::Cuda
    }

    fn make_current(&self, device: i32) -> Code {
        match self.context(device) {
            // SAFETY: the context is retained.
            Ok(context) => Code(unsafe { (self.set_current)(context) }),
            Err(code) => code,
        }
    }

    fn import_by(&self) -> ImportBy {
        ImportBy::Value
    }

    fn enable_peer(&self, peer: i32) -> Code {
        match self.context(peer) {
            // SAFETY: the context is retained; flags must be zero.
            Ok(context) => Code(unsafe { self.enable_peer.get()(context, 0) }),
            Err(code) => code,
        }
    }

    unsafe fn copy_peer(&self, to: u64, to_device: i32, from: u64, from_device: i32, length: usize) -> Code {
        match (self.context(to_device), self.context(from_device)) {
            // SAFETY: the caller's promise; the contexts are retained.
            (Ok(there), Ok(here)) => Code(unsafe { self.copy_peer.get()(to, there, from, here, length) }),
            (Err(code), _) | (_, Err(code)) => code,
        }
    }
}
