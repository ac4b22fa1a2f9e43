//! Pairs of functions for the `CUDAPluggableAllocator` of a PyTorch memory pool (`torch.cuda.MemPool`), one pair for each tag.
//!
//! PyTorch passes only size, device and stream, so each tag needs its own functions. PyTorch's own allocator divides the memory
//! that they return into tensors.

use super::process::device;
use crate::call::{run, status};
use crate::status::{CallResult, Failure, Status, keep};
use crate::texts::{check_place, clear, give, required};
use gpu_vmm::Stream;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

type Alloc = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);

/// The number of tags that can have functions.
const SLOTS: usize = 64;

/// The tags that have functions, by their number. Without a lock, which another thread could hold while the process forks.
static TAGS: [OnceLock<Box<str>>; SLOTS] = [const { OnceLock::new() }; SLOTS];

/// Allocates memory for a pool of PyTorch. Returns null if memory is short, which PyTorch reports like the driver's own error.
unsafe extern "C" fn alloc<const SLOT: usize>(
    size: isize,
    number: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let result = run(|| {
        let tag = TAGS[SLOT].get().map(|tag| &**tag);
        // SAFETY: PyTorch passes its own streams, and keeps them for as long as the process runs.
        device(number)?.alloc(tag, size, unsafe { Stream::from_raw(stream) })
    });
    result.unwrap_or_else(|failure| {
        keep(failure);
        std::ptr::null_mut()
    })
}

unsafe extern "C" fn free(block: *mut c_void, _size: isize, number: c_int, _stream: *mut c_void) {
    // PyTorch takes no status; the text stays the thread's last error.
    let _ = status(|| device(number)?.free(block));
}

macro_rules! slots {
    ($($tens:literal)*) => {
        [$(
            alloc::<{ $tens * 8 }>, alloc::<{ $tens * 8 + 1 }>, alloc::<{ $tens * 8 + 2 }>, alloc::<{ $tens * 8 + 3 }>,
            alloc::<{ $tens * 8 + 4 }>, alloc::<{ $tens * 8 + 5 }>, alloc::<{ $tens * 8 + 6 }>, alloc::<{ $tens * 8 + 7 }>,
        )*]
    };
}

static ALLOCS: [Alloc; SLOTS] = slots!(0 1 2 3 4 5 6 7);

/// Returns the slot of a tag, which gets the next one if it has none.
fn slot(tag: &str) -> CallResult<usize> {
    TAGS.iter().position(|place| **place.get_or_init(|| tag.into()) == *tag).ok_or_else(|| {
        Failure::invalid(format!("functions for the tag {tag:?}: the limit of {SLOTS} tags is reached"))
    })
}

/// Returns a pair of functions for the CUDAPluggableAllocator of a torch.cuda.MemPool, whose memory gets this tag. There can be 64
/// such tags. Unlike gpu_vmm_torch_alloc, the returned function returns null if memory is short.
///
/// # Safety
///
/// `tag` is null or a string. `alloc_function` and `free_function` are null or point to a writable pointer each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_functions(
    tag: *const c_char,
    alloc_function: *mut *mut c_void,
    free_function: *mut *mut c_void,
) -> Status {
    // SAFETY: each is null or writable for a pointer, as the caller guarantees.
    unsafe {
        clear(alloc_function);
        clear(free_function);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            check_place("alloc_function", alloc_function)?;
            check_place("free_function", free_function)?;
            let slot = slot(required("tag", tag)?)?;
            give("alloc_function", alloc_function, ALLOCS[slot] as *mut c_void)?;
            give("free_function", free_function, free as Free as *mut c_void)
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_tag_slot_has_own_functions() {
        let slots = (0..SLOTS).map(|number| slot(&format!("tag {number}")).unwrap()).collect::<Vec<_>>();
        assert!(slots.iter().copied().eq(0..64));
        assert!(slot("one more").unwrap_err().text.contains("64"));
        assert_eq!(slot("tag 63").unwrap(), 63, "a tag keeps its functions");
        let functions = ALLOCS.map(|function| function as usize);
        assert!((1..SLOTS).all(|slot| !functions[..slot].contains(&functions[slot])));
    }
}
