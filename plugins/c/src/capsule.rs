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
