//! The drivers' own functions, called with whatever a rule wants to know about, and looked up anew: this layer does not
//! lean on the bindings that it helps to test.
//!
//! | module | what |
//! |---|---|
//! | `abi` | structures and numbers, the same for both vendors |
//! | `table` | the functions, under each vendor's names |
//! | `cuda`, `hip` | what is not the same |
//! | `host` | the same calls on a backend's traits, for host memory |
#![allow(unsafe_code)] // calls into drivers

pub(crate) mod abi;
mod cuda;
mod hip;
mod host;
mod table;

use abi::Code;
use gpu_vmm_core::{Backend, DeviceId, Vendor, Workbench};
pub(super) use table::CALLS;
use table::{Calls, Column, Table};

/// How a descriptor is handed to the import, whose parameter is a pointer by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportBy {
    /// The pointer is the descriptor.
    Value,
    /// The pointer is to the descriptor.
    Pointer,
    /// One of the two, by build; the wrong one crashes.
    Unknown,
}

/// A driver: the calls, and what the vendors have each in their own way.
pub(crate) trait Driver: Calls {
    /// Whose it is.
    fn vendor(&self) -> Vendor;

    /// Makes a device the calling thread's current one.
    fn make_current(&self, device: i32) -> Code;

    /// How a descriptor is imported.
    fn import_by(&self) -> ImportBy;

    /// The driver's name for a code.
    fn name(&self, code: Code) -> String;
}

/// What one vendor has and the other has not.
trait Own: Send + Sync {
    fn vendor(&self) -> Vendor;
    fn make_current(&self, device: i32) -> Code;
    fn import_by(&self) -> ImportBy;
}

/// A GPU's driver.
struct Gpu {
    table: Table,
    own: Box<dyn Own>,
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

/// The raw driver below a backend, in the library that the backend has loaded.
pub(crate) fn below<B: Workbench>(backend: &B, device: DeviceId) -> Result<Box<dyn Driver>, String> {
    let vendor = backend.vendor();
    if vendor == Vendor::Host {
        return Ok(Box::new(host::Host::new(backend.clone(), device)));
    }
    let name = Backend::driver(backend).library;
    let library =
        crate::counts::loaded(&name).ok_or(format!("{name} is not loaded, though the backend is open"))?;
    // The backend never closes it.
    let library = std::mem::ManuallyDrop::new(library);
    let (column, own): (_, Box<dyn Own>) = match vendor {
        Vendor::Cuda => (Column::Cuda, Box::new(cuda::Cuda::start(&library, backend.devices().len())?)),
        Vendor::Hip => (Column::Hip, Box::new(hip::Hip::start(&library)?)),
        other => return Err(format!("no raw calls are known for {other}")),
    };
    let gpu = Gpu { table: Table::find(&library, column), own };
    match gpu.make_current(device.0 as i32) {
        Code::SUCCESS => Ok(Box::new(gpu)),
        code => Err(format!("{device} cannot be made current: {} ({})", gpu.name(code), code.0)),
    }
}

/// A function that every version has.
fn required<F: Copy>(library: &table::Library, symbol: &str) -> Result<F, String> {
    // SAFETY: who asks names the function's type; the library is never closed.
    unsafe { library.get::<F>(symbol) }.map(|found| *found).map_err(|_| format!("there is no {symbol}"))
}
