//! Pairs of functions for `CUDAPluggableAllocator`s of PyTorch's memory pools (`torch.cuda.MemPool`), each with a tag.
//!
//! PyTorch hands over nothing but size, device and stream; so each tag has functions of its own. Behind them PyTorch's own
//! allocator cuts large pieces into tensors.

use super::process::device;
use crate::call::{run, status};
use crate::status::{Answer, Failure, Status, keep};
use crate::texts::{check_place, clear, give, required};
use gpu_vmm::Stream;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

type Alloc = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);

/// So many tags can have functions.
const SLOTS: usize = 64;

/// The tags that have functions, by their number.
static TAGS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Memory for a pool of PyTorch; null where there is none, which PyTorch tells as it tells the driver's.
unsafe extern "C" fn alloc<const SLOT: usize>(
    size: isize,
    number: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let result = run(|| {
        let tag = TAGS.lock().unwrap_or_else(PoisonError::into_inner).get(SLOT).copied();
        // SAFETY: PyTorch gives its own streams, and keeps them for as long as the process runs.
        device(number)?.alloc(tag, size, unsafe { Stream::from_raw(stream) })
    });
    result.unwrap_or_else(|failure| {
        keep(failure);
        std::ptr::null_mut()
    })
}

unsafe extern "C" fn free(block: *mut c_void, _size: isize, number: c_int, _stream: *mut c_void) {
    // Nobody asks for the status; the text is the thread's last error.
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

/// The number of a tag, which gets one where it has none.
fn slot(tag: &str) -> Answer<usize> {
    let mut tags = TAGS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = tags.iter().position(|known| *known == tag) {
        return Ok(known);
    }
    if tags.len() == SLOTS {
        return Err(Failure::invalid(format!("functions for {tag:?}: {SLOTS} tags have some already")));
    }
    // Functions cannot be taken back either.
    tags.push(Box::leak(Box::from(tag)));
    Ok(tags.len() - 1)
}

/// A pair of functions for a CUDAPluggableAllocator of a torch.cuda.MemPool, whose memory has this tag. At most 64 tags. Unlike
/// gpu_vmm_torch_alloc, `alloc` gives null where there is no memory.
///
/// # Safety
///
/// `tag` is null or a string; `alloc_function` and `free_function` are null or room for a pointer each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_functions(
    tag: *const c_char,
    alloc_function: *mut *mut c_void,
    free_function: *mut *mut c_void,
) -> Status {
    // SAFETY: null or room for a pointer each, as the caller says.
    unsafe {
        clear(alloc_function);
        clear(free_function);
    };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            check_place("alloc_function", alloc_function)?;
            check_place("free_function", free_function)?;
            let slot = slot(required("tag", tag)?)?;
            give("alloc_function", alloc_function, ALLOCS[slot] as *mut c_void)?;
            give("free_function", free_function, free as Free as *mut c_void)
        }
    })
}
