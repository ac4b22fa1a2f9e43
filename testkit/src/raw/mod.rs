//! The drivers' own calls for virtual memory, with nothing between: what [gpu-vmm](https://docs.rs/gpu-vmm) is tested and
//! measured beside.
//!
//! The functions are looked up anew, in the library that a backend of gpu-vmm has loaded, and called with whatever a test
//! wants to know about: they do not lean on the bindings that they help to test.
//!
//! | file | subject |
//! |---|---|
//! | `abi` | structures and numbers, the same for both vendors |
//! | `table` | the functions, under each vendor's names |
//! | `cuda`, `hip` | what is not the same |
//! | `host` | the same calls on a backend's traits, for host memory |
//! | `library`, `missing` | what is loaded, and how a call ends that is not there |
//!
//! ```
//! use gpu_vmm_core::DeviceId;
//! use gpu_vmm_host::HostBackend;
//! use gpu_vmm_testkit::raw::abi::Code;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = gpu_vmm_testkit::raw::below(&HostBackend::open()?, DeviceId(0), None)?;
//! let (mut free, mut total) = (0, 0);
//! // SAFETY: two numbers are written.
//! let code = unsafe { driver.memory_info(&raw mut free, &raw mut total) };
//! assert_eq!(code, Code::SUCCESS);
//! assert!(free <= total);
//! # Ok(())
//! # }
//! ```

#![allow(unsafe_code)] // calls into drivers

pub mod abi;
mod cuda;
mod hip;
mod host;
mod library;
mod missing;
mod table;

use abi::Code;
use gpu_vmm_core::testkit::TestKit;
use gpu_vmm_core::{Backend, DeviceId, Vendor};
pub use library::{Library, loaded};
pub use missing::{Missing, missing};
pub use table::Calls;
use table::{Column, Table};

/// How a descriptor is handed to the import, whose parameter is a pointer by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportBy {
    /// The pointer is the descriptor.
    Value,
    /// The pointer is to the descriptor.
    Pointer,
    /// One of the two, by build; the wrong one crashes.
    Unknown,
}

/// A driver: the calls, and what the vendors have each in their own way.
pub trait Driver: Calls {
    /// Whose it is.
    fn vendor(&self) -> Vendor;

    /// Makes a device the calling thread's current one.
    fn make_current(&self, device: i32) -> Code;

    /// How a descriptor is imported.
    fn import_by(&self) -> ImportBy;

    /// Lets the current device reach what another one allocates without virtual memory management: `cuCtxEnablePeerAccess`,
    /// `hipDeviceEnablePeerAccess`. [`Code::PEER_ALREADY_ENABLED`] where it does already.
    fn enable_peer(&self, peer: i32) -> Code;

    /// Copies from one device's memory to another one's: `cuMemcpyPeer`, `hipMemcpyPeer`. It may return before the bytes are
    /// there.
    ///
    /// # Safety
    ///
    /// Both have so many bytes, which nothing else uses.
    unsafe fn copy_peer(&self, to: u64, to_device: i32, from: u64, from_device: i32, length: usize) -> Code;

    /// The driver's name for a code.
    fn name(&self, code: Code) -> String;
}

/// What one vendor has and the other has not.
trait Own: Send + Sync {
    fn vendor(&self) -> Vendor;
    fn make_current(&self, device: i32) -> Code;
    fn import_by(&self) -> ImportBy;
    fn enable_peer(&self, peer: i32) -> Code;
    /// # Safety
    ///
    /// As for [`Driver::copy_peer`].
    unsafe fn copy_peer(&self, to: u64, to_device: i32, from: u64, from_device: i32, length: usize) -> Code;
}

/// A GPU's driver.
struct Gpu {
    table: Table,
    own: Box<dyn Own>,
    tell: Option<fn(&'static str)>,
}

impl Driver for Gpu {
    fn vendor(&self) -> Vendor {
        self.own.vendor()
    }

    fn make_current(&self, device: i32) -> Code {
        self.own.make_current(device)
    }

    fn import_by(&self) -> ImportBy {
        self.own.import_by()
    }

    fn enable_peer(&self, peer: i32) -> Code {
        self.own.enable_peer(peer)
    }

    unsafe fn copy_peer(&self, to: u64, to_device: i32, from: u64, from_device: i32, length: usize) -> Code {
        // SAFETY: the caller's promise.
        unsafe { self.own.copy_peer(to, to_device, from, from_device, length) }
    }

    fn name(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the function writes one pointer, to a text of the driver's own that stays.
        let asked = unsafe { self.error_name(code.0, &raw mut name) };
        if asked != Code::SUCCESS || name.is_null() {
            return "a code without a name".to_owned();
        }
        // SAFETY: as above; the text ends in a zero.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// The driver below a backend, in the library that the backend has loaded, with `device` as the calling thread's current
/// one. `tell` is told each call of a GPU's driver by name just before it is made, so that a process that dies of it has
/// said where. Host memory has no driver, and tells nothing.
///
/// # Errors
///
/// What is not there, or what the driver answered.
pub fn below<B: TestKit>(
    backend: &B,
    device: DeviceId,
    tell: Option<fn(&'static str)>,
) -> Result<Box<dyn Driver>, String> {
    let vendor = backend.vendor();
    if vendor == Vendor::Host {
        return Ok(Box::new(host::Host::new(backend.clone(), device)));
    }
    let name = Backend::driver(backend).library;
    let library = loaded(&name).ok_or(format!("{name} is not loaded, though the backend is open"))?;
    // The backend never closes it.
    let library = std::mem::ManuallyDrop::new(library);
    let (column, own): (_, Box<dyn Own>) = match vendor {
        Vendor::Cuda => (Column::Cuda, Box::new(cuda::Cuda::start(&library, backend.devices().len())?)),
        Vendor::Hip => (Column::Hip, Box::new(hip::Hip::start(&library)?)),
        other => return Err(format!("no raw calls are known for {other}")),
    };
    let gpu = Gpu { table: Table::find(&library, column), own, tell };
    match gpu.make_current(device.0 as i32) {
        Code::SUCCESS => Ok(Box::new(gpu)),
        code => Err(format!("{device} cannot be made current: {} ({})", gpu.name(code), code.0)),
    }
}
