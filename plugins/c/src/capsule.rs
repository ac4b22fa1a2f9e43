//! What Python calls when a DLPack capsule goes.
//!
//! In C, since it may be called while an exception is on its way, when no Python code can be run without losing that.
//!
//! Unsafe, since it is called from C.
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

/// The capsules whose tensor nobody has taken: who takes one renames the capsule.
const NAMES: [(&CStr, bool); 2] = [(c"dltensor", false), (c"dltensor_versioned", true)];

/// Says where Python's PyCapsule_IsValid, PyCapsule_GetPointer and Py_IsFinalizing are, which gpu_vmm_python_capsule_dropped
/// needs; the last may be null. The first time holds. Null is nothing.
///
/// # Safety
///
/// They are null or these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_python_capsules(
    is_valid: *const c_void,
    get_pointer: *const c_void,
    is_finalizing: *const c_void,
) {
    if !is_valid.is_null() && !get_pointer.is_null() {
        // SAFETY: they are functions of these types, as the caller says.
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

/// The destructor of a capsule with a DLPack tensor: where nobody has taken the tensor, calls its deleter.
///
/// # Safety
///
/// `capsule` is a PyObject * of a capsule, whose tensor gpu_vmm_region_dlpack gave; the caller has Python's lock, as Python has
/// when it calls a destructor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_python_capsule_dropped(capsule: *mut c_void) {
    let Some(python) = PYTHON.get() else { return };
    // At the interpreter's end what is left is left to the process's: no driver is called then.
    // SAFETY: it takes nothing.
    if python.is_finalizing.is_some_and(|is_finalizing| unsafe { is_finalizing() } != 0) {
        return;
    }
    for (name, versioned) in NAMES {
        // SAFETY: it is a capsule, as the caller says, and Python's functions do not look at an exception that is on its way.
        // Under this name its tensor is one that nobody has taken.
        unsafe {
            if (python.is_valid)(capsule, name.as_ptr()) == 1 {
                gpu_vmm_dlpack_delete((python.get_pointer)(capsule, name.as_ptr()), versioned);
            }
        }
    }
}
