//! The destructor of DLPack capsules in Python.
//!
//! It is native code because Python may call it while an exception propagates, and Python code would lose that exception.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::tensor::gpu_vmm_dlpack_delete;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

type IsValid = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
type GetPointer = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

type IsFinalizing = unsafe extern "C" fn() -> c_int;

/// Python's `PyCapsule_IsValid`, `PyCapsule_GetPointer` and `Py_IsFinalizing`.
#[derive(Clone, Copy)]
struct Python {
    is_valid: IsValid,
    get_pointer: GetPointer,
    is_finalizing: Option<IsFinalizing>,
}

static PYTHON: OnceLock<Python> = OnceLock::new();

/// The names of capsules whose tensor was not taken, and whether the tensor is versioned. A consumer that takes the tensor
/// renames the capsule.
const NAMES: [(&CStr, bool); 2] = [(c"dltensor", false), (c"dltensor_versioned", true)];

/// Sets the addresses of Python's PyCapsule_IsValid, PyCapsule_GetPointer and Py_IsFinalizing for gpu_vmm_python_capsule_dropped.
/// The last may be null. If one of the first two is null, or after the first successful call, it does nothing.
///
/// # Safety
///
/// Each is null or the address of that function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_python_capsules(
    is_valid: *const c_void,
    get_pointer: *const c_void,
    is_finalizing: *const c_void,
) {
    if !is_valid.is_null() && !get_pointer.is_null() {
        // SAFETY: the caller guarantees that they are functions of these types.
        let python = unsafe {
            Python {
                is_valid: std::mem::transmute::<*const c_void, IsValid>(is_valid),
                get_pointer: std::mem::transmute::<*const c_void, GetPointer>(get_pointer),
                is_finalizing: std::mem::transmute::<*const c_void, Option<IsFinalizing>>(is_finalizing),
            }
        };
        PYTHON.get_or_init(|| python);
    }
}

/// Destroys a capsule with a DLPack tensor: calls the tensor's deleter if no consumer has taken the tensor.
///
/// # Safety
///
/// `capsule` is a PyObject * of a capsule with a tensor from gpu_vmm_region_dlpack. The caller holds Python's global interpreter
/// lock, as Python does when it calls a destructor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_python_capsule_dropped(capsule: *mut c_void) {
    let Some(python) = PYTHON.get() else { return };
    // While the interpreter ends, no driver is called: the end of the process releases the memory.
    // SAFETY: the function takes no arguments.
    if python.is_finalizing.is_some_and(|is_finalizing| unsafe { is_finalizing() } != 0) {
        return;
    }
    for (name, versioned) in NAMES {
        // SAFETY: the caller guarantees a capsule, and Python's functions ignore a propagating exception. Under this name, no
        // consumer has taken the tensor.
        unsafe {
            if (python.is_valid)(capsule, name.as_ptr()) == 1 {
                gpu_vmm_dlpack_delete((python.get_pointer)(capsule, name.as_ptr()), versioned);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::handles;
    use crate::region::{Region, gpu_vmm_region_free};
    use crate::status::GPU_VMM_OK;
    use crate::tensor::gpu_vmm_region_dlpack;
    use gpu_vmm::{AnyBackend, Bytes, Vendor};
    use std::ptr::{null, null_mut};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A capsule for the functions below, without Python. A consumer that takes the tensor gives the capsule another name.
    struct Capsule {
        name: &'static CStr,
        tensor: *mut c_void,
    }

    unsafe extern "C" fn is_valid(capsule: *mut c_void, name: *const c_char) -> c_int {
        // SAFETY: the test passes a `Capsule`, and the name is a string.
        c_int::from(unsafe { (*capsule.cast::<Capsule>()).name == CStr::from_ptr(name) })
    }

    unsafe extern "C" fn get_pointer(capsule: *mut c_void, _: *const c_char) -> *mut c_void {
        // SAFETY: the test passes a `Capsule`.
        unsafe { (*capsule.cast::<Capsule>()).tensor }
    }

    static FINALIZING: AtomicBool = AtomicBool::new(false);

    unsafe extern "C" fn is_finalizing() -> c_int {
        FINALIZING.load(Ordering::SeqCst).into()
    }

    #[test]
    fn untaken_capsule_deletes_its_tensor() {
        let host = AnyBackend::open(Vendor::Host).unwrap();
        let mut memory = gpu_vmm::Region::builder(&host).reserve(Bytes::mib(2)).build().unwrap();
        memory.grow_to(Bytes::mib(2)).unwrap();
        let region = handles::add(Region::of(&host, memory)).unwrap();
        let (shape, is_valid) = ([16_i64], is_valid as *const c_void);
        // SAFETY: the region lives until the last call, the functions are of their types, and nothing uses the tensors' elements.
        unsafe {
            let exports = || handles::find(region).unwrap().memory.exports();
            let export = |versioned| {
                let mut tensor = null_mut();
                let (shape, place) = (shape.as_ptr(), &raw mut tensor);
                let status =
                    gpu_vmm_region_dlpack(region, 0, 1, 8, 1, 1, shape, null(), false, versioned, place);
                assert_eq!(status, GPU_VMM_OK);
                tensor
            };
            let dropped = |name, tensor| {
                let mut capsule = Capsule { name, tensor };
                gpu_vmm_python_capsule_dropped((&raw mut capsule).cast());
            };
            let tensor = export(true);
            dropped(c"dltensor_versioned", tensor);
            gpu_vmm_python_capsules(is_valid, null(), null());
            gpu_vmm_python_capsules(null(), get_pointer as *const c_void, null());
            dropped(c"dltensor_versioned", tensor);
            assert_eq!(exports(), 1, "Python's functions are not known");
            gpu_vmm_python_capsules(is_valid, get_pointer as *const c_void, is_finalizing as *const c_void);
            // Later calls change nothing.
            gpu_vmm_python_capsules(get_pointer as *const c_void, is_valid, null());
            dropped(c"used_dltensor_versioned", tensor);
            assert_eq!(exports(), 1, "a consumer has taken it");
            FINALIZING.store(true, Ordering::SeqCst);
            dropped(c"dltensor_versioned", tensor);
            assert_eq!(exports(), 1, "the interpreter ends");
            FINALIZING.store(false, Ordering::SeqCst);
            dropped(c"dltensor_versioned", tensor);
            assert_eq!(exports(), 0);
            dropped(c"dltensor", export(false));
            assert_eq!(exports(), 0, "an unversioned one");
            gpu_vmm_region_free(region);
        }
    }
}
