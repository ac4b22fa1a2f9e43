//! Strings from and to C, objects behind pointers, and out-parameters.
//!
//! Uses unsafe code: all of it reads or writes through pointers from C.
#![allow(unsafe_code)]

use crate::call::status;
use crate::handles::{self, Object};
use crate::status::{CallResult, Failure};
use gpu_vmm::Bytes;
use serde::Serialize;
use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::path::Path;

/// Reads an optional string: `None` for null.
///
/// # Safety
///
/// The pointer is null or points to a zero-terminated string that does not change during `'a`.
pub(crate) unsafe fn optional<'a>(what: &str, text: *const c_char) -> CallResult<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    Ok(Some(utf8(what, unsafe { CStr::from_ptr(text) })?))
}

fn utf8<'a>(what: &str, text: &'a CStr) -> CallResult<&'a str> {
    text.to_str().map_err(|_| Failure::invalid(format!("{what} is not valid UTF-8: {text:?}")))
}

/// Reads an optional string that can contain a path: any bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
///
/// As for [`optional`].
pub(crate) unsafe fn optional_os<'a>(what: &str, text: *const c_char) -> CallResult<Option<&'a OsStr>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    #[cfg(unix)]
    let text = {
        let _ = what;
        std::os::unix::ffi::OsStrExt::from_bytes(text.to_bytes())
    };
    #[cfg(not(unix))]
    let text = OsStr::new(utf8(what, text)?);
    Ok(Some(text))
}

/// Reads a required path, as [`optional_os`] does.
///
/// # Safety
///
/// As for [`optional`].
pub(crate) unsafe fn path<'a>(what: &str, text: *const c_char) -> CallResult<&'a Path> {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { optional_os(what, text) }?;
    text.map(Path::new).ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Reads a required string.
///
/// # Safety
///
/// As for [`optional`].
pub(crate) unsafe fn required<'a>(what: &str, text: *const c_char) -> CallResult<&'a str> {
    // SAFETY: guaranteed by the caller.
    unsafe { optional(what, text) }?.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Borrows the object that a pointer of C names. A pointer that names none is an error.
///
/// # Safety
///
/// No other thread frees the object during `'a`.
pub(crate) unsafe fn object<'a, T: Object>(what: &str, pointer: *const T) -> CallResult<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { handles::find(pointer) }.ok_or_else(|| Failure::invalid(wrong(what, pointer)))
}

/// Why a pointer names no object.
fn wrong<T>(what: &str, pointer: *const T) -> String {
    if pointer.is_null() {
        return format!("{what} is null");
    }
    format!(
        "{what} is {pointer:p}, which names no such object; it was freed, is of another type or does not come from this library"
    )
}

/// Borrows a struct of the caller.
///
/// # Safety
///
/// The pointer is null or points to a `T` that does not change during `'a`.
pub(crate) unsafe fn value<'a, T>(what: &str, pointer: *const T) -> CallResult<&'a T> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is null")))
}

/// Borrows the caller's bytes. Null is allowed if `size` is 0.
///
/// # Safety
///
/// The pointer is null or points to `size` bytes that do not change during `'a`.
pub(crate) unsafe fn bytes<'a>(what: &str, from: *const c_void, size: u64) -> CallResult<&'a [u8]> {
    let size = checked(what, from.is_null(), size)?;
    // SAFETY: guaranteed by the caller; `checked` has compared the size with the largest size of a slice.
    Ok(if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from.cast(), size) } })
}

/// Borrows the caller's buffer. Null is allowed if `size` is 0.
///
/// # Safety
///
/// The pointer is null or points to `size` writable bytes that nothing else accesses during `'a`.
pub(crate) unsafe fn room<'a>(what: &str, to: *mut c_void, size: u64) -> CallResult<&'a mut [u8]> {
    let size = checked(what, to.is_null(), size)?;
    // SAFETY: guaranteed by the caller; `checked` has compared the size with the largest size of a slice.
    Ok(if size == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(to.cast(), size) } })
}

fn checked(what: &str, is_null: bool, size: u64) -> CallResult<usize> {
    if is_null && size > 0 {
        return Err(Failure::invalid(format!("{what} is null, but its size is {}", Bytes(size))));
    }
    let size = isize::try_from(size).map_err(|_| {
        Failure::invalid(format!("{what}: {} exceed the largest possible buffer", Bytes(size)))
    })?;
    Ok(size.unsigned_abs())
}

/// Sets an out-parameter to zero before a function's work, so that it holds zero or null after an error.
///
/// # Safety
///
/// The pointer is null or writable for a `T`, for which all zeros is a valid value.
pub(crate) unsafe fn clear<T>(place: *mut T) {
    if !place.is_null() {
        // SAFETY: the place is writable, as the caller guarantees.
        unsafe { place.write_bytes(0, 1) };
    }
}

/// Reports an error if an out-parameter is null.
pub(crate) fn check_place<T>(what: &str, place: *mut T) -> CallResult {
    if place.is_null() {
        return Err(Failure::invalid(format!("{what}, the place for the result, is null")));
    }
    Ok(())
}

/// Writes a result to an out-parameter.
///
/// # Safety
///
/// The pointer is null or writable for a `T`.
pub(crate) unsafe fn give<T>(what: &str, place: *mut T, value: T) -> CallResult {
    check_place(what, place)?;
    // SAFETY: guaranteed by the caller.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a result to an optional out-parameter; null skips it.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_if_wanted<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { place.write(value) };
    }
}

/// Moves an object to the heap and passes its ownership to the caller.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_box<T: Object>(
    what: &str,
    place: *mut *mut T,
    value: impl FnOnce() -> CallResult<T>,
) -> CallResult {
    check_place(what, place)?;
    let pointer = handles::add(value()?);
    let pointer =
        pointer.ok_or_else(|| Failure::invalid(format!("{what}: there are too many objects; free some")))?;
    // SAFETY: guaranteed by the caller.
    unsafe { place.write(pointer) };
    Ok(())
}

/// Takes back an object from [`give_box`] and drops it. Null does nothing. A pointer that names no object changes the text of the
/// thread's last error only.
///
/// # Safety
///
/// No other thread uses the object.
pub(crate) unsafe fn take_box<T: Object>(pointer: *mut T) {
    if pointer.is_null() {
        return;
    }
    let _ = status(|| {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { take_object("free: the object", pointer) }?);
        Ok(())
    });
}

/// Takes back an object from [`give_box`]. A pointer that names none is an error.
///
/// # Safety
///
/// No other thread uses the object.
pub(crate) unsafe fn take_object<T: Object>(what: &str, pointer: *mut T) -> CallResult<Box<T>> {
    // SAFETY: guaranteed by the caller.
    unsafe { handles::take(pointer) }.ok_or_else(|| Failure::invalid(wrong(what, pointer)))
}

/// Writes a value as JSON, whose ownership passes to the caller.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_json(place: *mut *mut c_char, value: &impl Serialize) -> CallResult {
    // Before the text is made, which would leak.
    check_place("json", place)?;
    let text = serde_json::to_string(value).map_err(|error| Failure::invalid(error.to_string()))?;
    // SAFETY: guaranteed by the caller.
    unsafe { give_text("json", place, text) }
}

/// Writes a text, whose ownership passes to the caller.
///
/// # Safety
///
/// As for [`give`].
pub(crate) unsafe fn give_text(what: &str, place: *mut *mut c_char, text: String) -> CallResult {
    check_place(what, place)?;
    let text = CString::new(text).map_err(|error| Failure::invalid(format!("{what}: {error}")))?;
    // SAFETY: guaranteed by the caller.
    unsafe { give(what, place, text.into_raw()) }
}

/// Frees a string that a function of this library returned. Null does nothing.
///
/// # Safety
///
/// `text` is null or comes from a function of this library, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: `into_raw` made it in `give_text`, as the caller guarantees.
        drop(unsafe { CString::from_raw(text) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::GPU_VMM_INVALID_ARGUMENT;
    use serde::Serializer;
    use std::cell::Cell;

    /// A value that notes whether it was written.
    struct Noted(Cell<bool>);

    impl Serialize for Noted {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.set(true);
            serializer.serialize_unit()
        }
    }

    #[test]
    fn wrong_texts_and_sizes_are_refused() {
        let (nothing, mut place) = (std::ptr::null(), 0_u64);
        let (one, large) = ((&raw mut place).cast_const().cast(), isize::MAX as u64 + 1);
        let invalid = Some(GPU_VMM_INVALID_ARGUMENT);
        // SAFETY: the text ends with a zero, and nothing is read through the other pointers.
        unsafe {
            let text = optional("text", c"\xff".as_ptr());
            assert_eq!(text.err().map(|failure| failure.status), invalid);
            assert!(matches!(optional("text", std::ptr::null()), Ok(None)));
            for (from, size, expected) in
                [(nothing, 1, invalid), (nothing, 0, None), (one, large, invalid), (one, 8, None)]
            {
                assert_eq!(bytes("from", from, size).err().map(|failure| failure.status), expected, "{size}");
                assert_eq!(room("to", from.cast_mut(), size).err().map(|failure| failure.status), expected);
            }
        }
    }

    #[test]
    fn error_names_argument_and_problem() {
        let nothing = std::ptr::null_mut::<u64>();
        let text = |failure: Option<Failure>| failure.map(|failure| failure.text.into_owned());
        let said = |text: &str| Some(text.to_owned());
        // SAFETY: null is refused, and so is a pointer that names no object.
        unsafe {
            assert_eq!(text(required("tag", std::ptr::null()).err()), said("tag is null"));
            let invalid = optional("tag", c"\xffx".as_ptr()).err();
            assert_eq!(text(invalid), said("tag is not valid UTF-8: \"\\xffx\""));
            assert_eq!(text(value("observer", nothing).err()), said("observer is null"));
            assert_eq!(text(give("size", nothing, 1).err()), said("size, the place for the result, is null"));
            let none = std::ptr::null::<crate::region::Region>();
            assert_eq!(text(object("region", none).err()), said("region is null"));
            let wrong = std::ptr::without_provenance::<crate::region::Region>(0x40);
            let expected = "region is 0x40, which names no such object; it was freed, is of another type or does not come from this \
                            library";
            assert_eq!(text(object("region", wrong).err()), said(expected));
            let null = bytes("from", std::ptr::null(), 2048);
            assert_eq!(text(null.err()), said("from is null, but its size is 2 KiB"));
            let large = bytes("from", (&raw const expected).cast(), 1 << 63);
            assert_eq!(text(large.err()), said("from: 8388608 TiB exceed the largest possible buffer"));
        }
    }

    #[test]
    fn wrong_free_sets_the_last_error() {
        let wrong = std::ptr::without_provenance_mut::<crate::region::Region>(0x40);
        // SAFETY: the pointer names no object, which is refused.
        unsafe { take_box(wrong) };
        let text = crate::tests::last_error();
        assert!(text.starts_with("free: the object is 0x40, which names no such object"), "{text}");
    }

    #[test]
    fn text_without_place_is_not_made() {
        let value = Noted(Cell::new(false));
        // SAFETY: the call refuses null.
        let answer = unsafe { give_json(std::ptr::null_mut(), &value) };
        assert_eq!(answer.map_err(|failure| failure.status), Err(GPU_VMM_INVALID_ARGUMENT));
        assert!(!value.0.get(), "the text would leak");
    }
}
