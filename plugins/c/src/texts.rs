//! Strings from and to C, objects behind pointers, and places for results.
//!
//! Unsafe, since all of it goes through C's pointers.
#![allow(unsafe_code)]

use crate::call::quietly;
use crate::status::{Answer, Failure};
use gpu_vmm::Bytes;
use serde::Serialize;
use std::ffi::{CStr, CString, c_char, c_void};

/// A string, or none where the pointer is null.
///
/// # Safety
///
/// The pointer is null or one to a string that ends with a zero and stays as it is for `'a`.
pub(crate) unsafe fn optional<'a>(what: &str, text: *const c_char) -> Answer<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::invalid(format!("{what} is no UTF-8: {text:?}")))?;
    Ok(Some(text))
}

/// A string that has to be there.
///
/// # Safety
///
/// As for [`optional`].
pub(crate) unsafe fn required<'a>(what: &str, text: *const c_char) -> Answer<&'a str> {
    // SAFETY: as the caller says.
    unsafe { optional(what, text) }?.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// What a pointer points to.
///
/// # Safety
///
/// The pointer is null or one to a `T` that stays for `'a`.
pub(crate) unsafe fn object<'a, T>(what: &str, pointer: *const T) -> Answer<&'a T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Bytes that the caller has; null is none of them.
///
/// # Safety
///
/// The pointer is null or one to `size` bytes that stay as they are for `'a`.
pub(crate) unsafe fn bytes<'a>(what: &str, from: *const c_void, size: u64) -> Answer<&'a [u8]> {
    let size = checked(what, from.is_null(), size)?;
    // SAFETY: as the caller says; the size is one that a slice can have.
    Ok(if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from.cast(), size) } })
}

/// Room for bytes.
///
/// # Safety
///
/// The pointer is null or one to room for `size` bytes that nobody else uses for `'a`.
pub(crate) unsafe fn room<'a>(what: &str, to: *mut c_void, size: u64) -> Answer<&'a mut [u8]> {
    let size = checked(what, to.is_null(), size)?;
    // SAFETY: as the caller says; the size is one that a slice can have.
    Ok(if size == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(to.cast(), size) } })
}

fn checked(what: &str, is_null: bool, size: u64) -> Answer<usize> {
    if is_null && size > 0 {
        return Err(Failure::invalid(format!("{what} is null, and there are to be {}", Bytes(size))));
    }
    let size = isize::try_from(size)
        .map_err(|_| Failure::invalid(format!("{what}: no process has {} in one piece", Bytes(size))))?;
    Ok(size.unsigned_abs())
}

/// Sets an out-parameter to zero before a function's work: after an error it holds zero or null, never what lay there before.
///
/// # Safety
///
/// The pointer is null or one to room for a `T`, for which all zeros is a value.
pub(crate) unsafe fn clear<T>(place: *mut T) {
    if !place.is_null() {
        // SAFETY: there is room, as the caller says.
        unsafe { place.write_bytes(0, 1) };
    }
}

/// An error where a result has no place to go.
pub(crate) fn check_place<T>(what: &str, place: *mut T) -> Answer {
    if place.is_null() {
        return Err(Failure::invalid(format!("{what}, where the result is to go, is null")));
    }
    Ok(())
}

/// Puts a result where the caller wants it.
///
/// # Safety
///
/// The pointer is null or one to room for a `T`.
pub(crate) unsafe fn give<T>(what: &str, place: *mut T, value: T) -> Answer {
    check_place(what, place)?;
    // SAFETY: as the caller says.
    unsafe { place.write(value) };
    Ok(())
}

/// As [`give`], where null says that nobody wants to know.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_if_wanted<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as the caller says.
        unsafe { place.write(value) };
    }
}

/// Gives an object away, in a box of its own.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_box<T>(
    what: &str,
    place: *mut *mut T,
    value: impl FnOnce() -> Answer<T>,
) -> Answer {
    check_place(what, place)?;
    let value = Box::into_raw(Box::new(value()?));
    // SAFETY: as the caller says.
    unsafe { place.write(value) };
    Ok(())
}

/// Takes an object back that [`give_box`] gave, and drops it.
///
/// # Safety
///
/// The pointer is null or one that [`give_box`] gave and that was not taken back yet.
pub(crate) unsafe fn take_box<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: as the caller says.
        let object = unsafe { Box::from_raw(pointer) };
        quietly(|| drop(object));
    }
}

/// Gives a value as JSON.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_json(place: *mut *mut c_char, value: &impl Serialize) -> Answer {
    let text = serde_json::to_string(value).map_err(|error| Failure::invalid(error.to_string()))?;
    let text = CString::new(text).map_err(|error| Failure::invalid(error.to_string()))?;
    // SAFETY: as the caller says.
    unsafe { give("json", place, text.into_raw()) }
}

/// Frees a string that a function gave. Null is nothing.
///
/// # Safety
///
/// `text` is null or a string that a function of this library gave, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it was given by `into_raw`, as the caller says.
        drop(unsafe { CString::from_raw(text) });
    }
}
