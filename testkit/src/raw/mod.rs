//! The drivers' own calls for virtual memory, without gpu-vmm in between, for tests of
//! [gpu-vmm](https://docs.rs/gpu-vmm) and for comparison.
//!
//! The functions are looked up in the library that a backend of gpu-vmm has loaded. They do not use the bindings that
//! they help to test, and take any arguments that a test passes.
//!
//! ```
//! use gpu_vmm_core::DeviceId;
//! use gpu_vmm_host::HostBackend;
//! use gpu_vmm_testkit::raw::abi::Code;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = gpu_vmm_testkit::raw::below(&HostBackend::open()?, DeviceId(0), None)?;
//! let (mut free, mut total) = (0, 0);
//! // SAFETY: the function writes two numbers.
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

/// How a descriptor is passed to the import, whose parameter has a pointer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportBy {
    /// The pointer is the descriptor.
    Value,
    /// The pointer is to the descriptor.
    Pointer,
    /// One of the two, depending on the build; the wrong one crashes.
    Unknown,
}

/// A driver: the calls of both vendors, and those in which they differ.
pub trait Driver: Calls {
    /// Returns the vendor.
    fn vendor(&self) -> Vendor;

    /// Makes a device the calling thread's current one.
    fn make_current(&self, device: i32) -> Code;

    /// Returns how a descriptor is imported.
    fn import_by(&self) -> ImportBy;

    /// Lets the current device access plain allocations of another one: `cuCtxEnablePeerAccess`,
    /// `hipDeviceEnablePeerAccess`. Returns [`Code::PEER_ALREADY_ENABLED`] if it already can.
    fn enable_peer(&self, peer: i32) -> Code;

    /// Copies from one device's memory to another device's: `cuMemcpyPeer`, `hipMemcpyPeer`. The call may return before
    /// the copy has finished.
    ///
    /// # Safety
    ///
    /// Both sides have `length` bytes, and no other work uses them.
    unsafe fn copy_peer(&self, to: u64, to_device: i32, from: u64, from_device: i32, length: usize) -> Code;

    /// Returns the driver's name of a code.
    fn name(&self, code: Code) -> String;
}

/// The calls in which the vendors differ.
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
        // SAFETY: the function writes one pointer to a constant text.
        let result_code = unsafe { self.error_name(code.0, &raw mut name) };
        if result_code != Code::SUCCESS || name.is_null() {
            return "a code without a name".to_owned();
        }
        // SAFETY: as above; the text ends in a zero.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// Returns the driver below a backend, from the library that the backend has loaded, and makes `device` the calling
/// thread's current device.
///
/// `tell` is called with the name of each call of a GPU's driver just before it is made, so that the last name is known
/// if the process crashes. Host memory has no driver and calls nothing.
///
/// # Errors
///
/// The missing function or library, or the driver's error.
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
    let library = loaded(&name).ok_or(format!("{name} is not loaded, although the backend is open"))?;
    // The backend never closes it.
    let library = std::mem::ManuallyDrop::new(library);
    let (column, own): (_, Box<dyn Own>) = match vendor {
        Vendor::Cuda => (Column::Cuda, Box::new(cuda::Cuda::start(&library, backend.devices().len())?)),
        Vendor::Hip => (Column::Hip, Box::new(hip::Hip::start(&library)?)),
        other => return Err(format!("the {other} backend has no raw calls")),
    };
    let gpu = Gpu { table: Table::find(&library, column), own, tell };
    match gpu.make_current(device.0 as i32) {
        Code::SUCCESS => Ok(Box::new(gpu)),
        code => Err(format!("{device} cannot be made current: {} ({})", gpu.name(code), code.0)),
    }
}
