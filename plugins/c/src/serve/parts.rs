//! Layouts: what lies where in a region of a server.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::{held, status};
use crate::handles::{Kind, Object};
use crate::properties::check_reserved;
use crate::status::{CallResult, Failure, GPU_VMM_NOT_FOUND, GPU_VMM_PEER, Status};
use crate::texts::{check_place, clear, give, give_box, give_if_wanted, object, required, take_box, value};
use gpu_vmm::dlpack::{DLDataType, DLDataTypeCode, TensorView};
use gpu_vmm::extend::Lock;
use gpu_vmm::serve::Layout as Described;
use gpu_vmm::{Bytes, Operation};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null;

/// The limit of DLPack's consumers, as for gpu_vmm_region_dlpack.
const MAX_DIMENSIONS: usize = 32;

/// The named parts of a region, such as the tensors of a model, and a program's own notes about the contents.
/// Calls of several threads take turns.
#[derive(Debug)]
pub struct Layout(Lock<Contents>);

// SAFETY: no other type has the kind.
unsafe impl Object for Layout {
    const KIND: Kind = Kind::Layout;
}

/// A named part of a region: a tensor for gpu_vmm_region_dlpack. All zeros but the name is an invalid part: set the element type.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The name.
    pub name: *const c_char,
    /// The offset of the first element in the region.
    pub offset: u64,
    /// DLDataType's `code`.
    pub code: u8,
    /// DLDataType's `bits`.
    pub bits: u8,
    /// DLDataType's `lanes`.
    pub lanes: u16,
    /// The number of dimensions, at most 32.
    pub ndim: i32,
    /// The number of elements in each dimension. May be null without dimensions.
    pub shape: *const i64,
    /// The distance in elements between neighbours in each dimension; null for row-major order.
    pub strides: *const i64,
    /// Must be zero. Later versions place their settings here.
    pub reserved: [u64; 4],
}

/// Values by their names, in the order in which they were added. A value stays where it is until it is replaced.
#[derive(Debug)]
struct Named<T> {
    list: Vec<(CString, T)>,
    places: BTreeMap<CString, usize>,
}

impl<T> Named<T> {
    const fn new() -> Self {
        Self { list: Vec::new(), places: BTreeMap::new() }
    }

    fn set(&mut self, name: CString, value: T) {
        if let Some(place) = self.places.get(&name) {
            self.list[*place] = (name, value);
        } else {
            self.places.insert(name.clone(), self.list.len());
            self.list.push((name, value));
        }
    }

    fn find(&self, what: &str, name: &CStr) -> CallResult<&(CString, T)> {
        let place = self.places.get(name).copied();
        let missing = || {
            let text = format!("layout: there is no {what} {name:?}");
            Failure::new(GPU_VMM_NOT_FOUND, text)
        };
        place.and_then(|place| self.list.get(place)).ok_or_else(missing)
    }

    fn at(&self, what: &str, index: u64) -> CallResult<&(CString, T)> {
        let found = usize::try_from(index).ok().and_then(|index| self.list.get(index));
        found.ok_or_else(|| {
            let count = self.list.len();
            Failure::new(GPU_VMM_NOT_FOUND, format!("layout: there is no {what} {index}; there are {count}"))
        })
    }
}

#[derive(Debug)]
struct Contents {
    parts: Named<TensorView>,
    notes: Named<CString>,
}

impl Layout {
    /// Copies a layout that another process may have written.
    pub(super) fn of(from: &Described) -> CallResult<Self> {
        let mut contents = Contents { parts: Named::new(), notes: Named::new() };
        for (name, view) in &from.parts {
            let dimensions = view.shape.len();
            let strides = view.strides.as_ref().map_or(dimensions, Vec::len);
            if dimensions > MAX_DIMENSIONS || strides != dimensions {
                let text =
                    format!("layout: the part {name:?} has {dimensions} dimensions and {strides} strides");
                return Err(Failure::new(GPU_VMM_PEER, text));
            }
            contents.parts.set(received("name", name)?, view.clone());
        }
        for (key, value) in &from.notes {
            contents.notes.set(received("key", key)?, received("note", value)?);
        }
        Ok(Self(Lock::new(contents)))
    }

    /// Returns the layout for a commit.
    pub(super) fn described(&self, operation: Operation) -> CallResult<Described> {
        let contents = held(&self.0, operation)?;
        let mut layout = Described::default();
        for (name, view) in &contents.parts.list {
            layout.parts.insert(name.to_string_lossy().into_owned(), view.clone());
        }
        for (key, note) in &contents.notes.list {
            layout.notes.insert(key.to_string_lossy().into_owned(), note.to_string_lossy().into_owned());
        }
        Ok(layout)
    }
}

/// Returns a text of another process as C can have it.
fn received(what: &str, text: &str) -> CallResult<CString> {
    let wrong = |_| Failure::new(GPU_VMM_PEER, format!("layout: the {what} {text:?} contains a zero byte"));
    CString::new(text).map_err(wrong)
}

/// Returns a text of the caller.
///
/// # Safety
///
/// As for [`required`].
unsafe fn given(what: &str, text: *const c_char) -> CallResult<CString> {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { required(what, text) }?;
    CString::new(text).map_err(|_| Failure::invalid(format!("{what} contains a zero byte")))
}

/// Creates an empty layout, for gpu_vmm_lease_commit. Free it with gpu_vmm_layout_free.
///
/// # Safety
///
/// `layout` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_new(layout: *mut *mut Layout) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(layout) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give_box("layout", layout, || Layout::of(&Described::default())) }
    })
}

/// Frees a layout. Null does nothing.
///
/// # Safety
///
/// `layout` is null or comes from gpu_vmm_layout_new or gpu_vmm_lease_layout, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_free(layout: *mut Layout) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(layout) }
}

/// Adds a part to a layout, or replaces the part of that name. The call copies everything that `part` points to.
///
/// # Safety
///
/// `layout` is null or a layout. `part` is null or points to a part whose `name` is null or a string, and whose `shape` and `strides` are
/// null or point to `ndim` numbers each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_set_part(layout: *const Layout, part: *const Part) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (layout, part) = unsafe { (object("layout", layout)?, value("part", part)?) };
        check_reserved("part", part.reserved)?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { given("name", part.name) }?;
        let ndim = usize::try_from(part.ndim).ok().filter(|ndim| *ndim <= MAX_DIMENSIONS);
        let ndim = ndim.ok_or_else(|| Failure::invalid("part: ndim is not between 0 and 32"))?;
        if ndim > 0 && part.shape.is_null() {
            return Err(Failure::invalid(format!("part: shape is null, and ndim is {ndim}")));
        }
        let numbers = |from: *const i64| match ndim {
            0 => Vec::new(),
            // SAFETY: the caller guarantees `ndim` numbers.
            _ => unsafe { std::slice::from_raw_parts(from, ndim) }.to_vec(),
        };
        let view = TensorView {
            offset: Bytes(part.offset),
            dtype: DLDataType { code: DLDataTypeCode(part.code), bits: part.bits, lanes: part.lanes },
            shape: numbers(part.shape),
            strides: (!part.strides.is_null()).then(|| numbers(part.strides)),
            read_only: true,
        };
        held(&layout.0, Operation::Commit)?.parts.set(name, view);
        Ok(())
    })
}

/// Adds a note to a layout, or replaces the note of that key.
///
/// # Safety
///
/// `layout` is null or a layout. `key` and `note` are null or a string each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_set_note(
    layout: *const Layout,
    key: *const c_char,
    note: *const c_char,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (layout, key, note) =
            unsafe { (object("layout", layout)?, given("key", key)?, given("note", note)?) };
        held(&layout.0, Operation::Commit)?.notes.set(key, note);
        Ok(())
    })
}

/// Returns the number of parts and the number of notes. Each may be null.
///
/// # Safety
///
/// `layout` is null or a layout. `parts` and `notes` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_sizes(
    layout: *const Layout,
    parts: *mut u64,
    notes: *mut u64,
) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(parts);
        clear(notes);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let contents = held(&unsafe { object("layout", layout) }?.0, Operation::Commit)?;
        // SAFETY: as above.
        unsafe {
            give_if_wanted(parts, contents.parts.list.len() as u64);
            give_if_wanted(notes, contents.notes.list.len() as u64);
        }
        Ok(())
    })
}

/// Returns a part by its index. The parts of a lease are in the order of their names, the parts of a new layout in the order in which they
/// were added. What `part` points to is valid until the part is replaced or the layout is freed.
///
/// Returns GPU_VMM_NOT_FOUND if there are fewer.
///
/// # Safety
///
/// `layout` is null or a layout. `part` is null or points to a writable part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_part(layout: *const Layout, index: u64, part: *mut Part) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { give_part(layout, part, |parts| parts.at("part", index)) }
}

/// Returns a part by its name, as gpu_vmm_layout_part does.
///
/// Returns GPU_VMM_NOT_FOUND if there is none.
///
/// # Safety
///
/// `layout` is null or a layout. `name` is null or a string. `part` is null or points to a writable part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_find_part(
    layout: *const Layout,
    name: *const c_char,
    part: *mut Part,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { give_part(layout, part, |parts| parts.find("part", &given("name", name)?)) }
}

/// Writes the part that `find` returns.
///
/// # Safety
///
/// As for [`gpu_vmm_layout_part`].
unsafe fn give_part(
    layout: *const Layout,
    part: *mut Part,
    find: impl FnOnce(&Named<TensorView>) -> CallResult<&(CString, TensorView)>,
) -> Status {
    // SAFETY: null or writable for a part, for which all zeros is valid, as the caller guarantees.
    unsafe { clear(part) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let contents = held(&unsafe { object("layout", layout) }?.0, Operation::Commit)?;
        let (name, view) = find(&contents.parts)?;
        let DLDataType { code, bits, lanes } = view.dtype;
        let numbers = |list: &[i64]| if list.is_empty() { null() } else { list.as_ptr() };
        let found = Part {
            name: name.as_ptr(),
            offset: view.offset.0,
            code: code.0,
            bits,
            lanes,
            ndim: view.shape.len() as i32, // MAX_DIMENSIONS at most
            shape: numbers(&view.shape),
            strides: view.strides.as_deref().map_or(null(), numbers),
            reserved: [0; 4],
        };
        // SAFETY: as above.
        unsafe { give("part", part, found) }
    })
}

/// Returns a note by its index, as gpu_vmm_layout_part returns a part. The texts are valid until the note is replaced or the layout is
/// freed.
///
/// Returns GPU_VMM_NOT_FOUND if there are fewer.
///
/// # Safety
///
/// `layout` is null or a layout. `key` and `note` are null or point to a writable pointer each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_note(
    layout: *const Layout,
    index: u64,
    key: *mut *const c_char,
    note: *mut *const c_char,
) -> Status {
    // SAFETY: each is null or writable for a pointer, as the caller guarantees.
    unsafe {
        clear(key);
        clear(note);
    };
    status(|| {
        check_place("key", key)?;
        check_place("note", note)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let contents = held(&object("layout", layout)?.0, Operation::Commit)?;
            let (name, text) = contents.notes.at("note", index)?;
            give("key", key, name.as_ptr())?;
            give("note", note, text.as_ptr())
        }
    })
}

/// Returns a note by its key, as gpu_vmm_layout_note does.
///
/// Returns GPU_VMM_NOT_FOUND if there is none.
///
/// # Safety
///
/// `layout` is null or a layout. `key` is null or a string. `note` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_layout_find_note(
    layout: *const Layout,
    key: *const c_char,
    note: *mut *const c_char,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(note) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let contents = held(&object("layout", layout)?.0, Operation::Commit)?;
            give("note", note, contents.notes.find("note", &given("key", key)?)?.1.as_ptr())
        }
    })
}
