//! The pointers by which C names objects. They are no addresses, so a wrong one is found without reading through it.
//!
//! A pointer has the number of a slot and the slot's generation. Freeing an object ends the generation: a pointer to a freed object, to
//! an object of another kind, or to anything else is an error. Finding and freeing take no lock, so that a forked child can do both
//! whatever other threads did at the fork.
//!
//! Uses unsafe code: slots hold objects of all types.
#![allow(unsafe_code)]

use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Backend = 1,
    Banked,
    Capture,
    Checkpoint,
    Client,
    CopyQueue,
    Event,
    Exporter,
    Followed,
    Imported,
    Layout,
    Lease,
    Listener,
    Multicast,
    Offer,
    PageList,
    Physical,
    Pinned,
    Pool,
    Region,
}

/// A type of the objects that C names.
///
/// # Safety
///
/// No other type has the same kind.
pub(crate) unsafe trait Object {
    /// Its kind.
    const KIND: Kind;
}

/// The place of one object at a time.
#[derive(Debug)]
struct Slot {
    /// The generation in the upper half, and in the lower half the kind of the object; zero for none.
    tag: AtomicU64,
    object: AtomicPtr<()>,
    /// The next free slot: its number plus one, zero for none.
    next: AtomicU32,
}

/// The number of slots of the first chunk. Each further chunk has twice as many as the one before.
const FIRST: u32 = 64;
/// Together more than 10^9 slots.
const CHUNKS: usize = 24;

/// The first slots of the chunks, which are never freed; null for a chunk that does not exist yet.
static SLOTS: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
/// The number of slots that were ever used.
static USED: AtomicU32 = AtomicU32::new(0);
/// The first free slot in the lower half, as in [`Slot::next`]. The upper half counts the changes, so that an exchange fails if
/// another thread has taken and returned the same slot meanwhile.
static FREE: AtomicU64 = AtomicU64::new(0);

const _: () = assert!(usize::BITS == 64, "a pointer has a slot and a generation of 32 bits each");

/// Returns the chunk of a slot and its place there.
fn place(number: u32) -> (usize, usize) {
    let shifted = u64::from(number) + u64::from(FIRST);
    let chunk = shifted.ilog2() - FIRST.ilog2();
    (chunk as usize, (shifted - (u64::from(FIRST) << chunk)) as usize)
}

/// Returns a slot that exists.
fn slot(number: u32) -> Option<&'static Slot> {
    let (chunk, at) = place(number);
    let first = SLOTS.get(chunk)?.load(Ordering::Acquire);
    // SAFETY: a chunk that exists is never freed, and `at` is less than its length.
    (!first.is_null()).then(|| unsafe { &*first.add(at) })
}

/// Returns the generation of a slot that was never used. Two copies of the library in one process, such as a shared and a static one, have
/// other ones: a pointer of the one names nothing in the other.
fn first_generation() -> u32 {
    const PAGE_BITS: u32 = 12;
    // Small enough that billions of generations follow.
    ((&raw const SLOTS).addr() >> PAGE_BITS) as u32 & 0x3fff_ffff | 1
}

/// Returns a slot, and creates its chunk if necessary.
fn created(number: u32) -> Option<&'static Slot> {
    let (chunk, _) = place(number);
    let first = SLOTS.get(chunk)?;
    if first.load(Ordering::Acquire).is_null() {
        // No thread waits for another one that creates it: a forked child would wait for ever.
        let tag = u64::from(first_generation()) << 32;
        let empty =
            |_| Slot { tag: AtomicU64::new(tag), object: AtomicPtr::default(), next: AtomicU32::new(0) };
        let made: Box<[Slot]> = (0..(FIRST as usize) << chunk).map(empty).collect();
        let made = Box::into_raw(made);
        if first.compare_exchange(null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    slot(number)
}

/// Takes a free slot, or one that was never used.
fn take_slot() -> Option<(u32, &'static Slot)> {
    let mut head = FREE.load(Ordering::Acquire);
    while let Some(number) = (head as u32).checked_sub(1) {
        let free = slot(number)?;
        let next = u64::from(free.next.load(Ordering::Relaxed)) | changed(head);
        match FREE.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some((number, free)),
            Err(now) => head = now,
        }
    }
    let number = USED.fetch_add(1, Ordering::Relaxed);
    Some((number, created(number)?))
}

fn return_slot(number: u32, slot: &Slot) {
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        slot.next.store(head as u32, Ordering::Relaxed);
        let next = u64::from(number + 1) | changed(head);
        match FREE.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Returns the upper half of the head of the free slots after one more change.
fn changed(head: u64) -> u64 {
    ((head >> 32).wrapping_add(1)) << 32
}

/// Returns the generation that a pointer names and its slot.
fn parts<T>(pointer: *const T) -> Option<(u64, u32, &'static Slot)> {
    let bits = pointer.addr() as u64;
    let number = (bits as u32).checked_sub(1)?;
    Some((bits >> 32, number, slot(number)?))
}

/// Moves an object to the heap and returns a pointer for C; `None` if there are too many objects.
pub(crate) fn add<T: Object>(object: T) -> Option<*mut T> {
    let (number, slot) = take_slot()?;
    let generation = slot.tag.load(Ordering::Relaxed) >> 32;
    slot.object.store(Box::into_raw(Box::new(object)).cast(), Ordering::Relaxed);
    // Who sees the tag sees the object.
    slot.tag.store(generation << 32 | T::KIND as u64, Ordering::Release);
    Some(without_provenance_mut((generation << 32 | u64::from(number + 1)) as usize))
}

/// Returns the object that a pointer names; `None` if it names no live object of the type.
///
/// # Safety
///
/// The object is not freed during `'a`.
pub(crate) unsafe fn find<'a, T: Object>(pointer: *const T) -> Option<&'a T> {
    let (generation, _, slot) = parts(pointer)?;
    if slot.tag.load(Ordering::Acquire) != generation << 32 | T::KIND as u64 {
        return None;
    }
    // SAFETY: the tag says that the slot has an object of this kind and so of this type, which stays as the caller guarantees.
    unsafe { slot.object.load(Ordering::Relaxed).cast::<T>().as_ref() }
}

/// Takes back the object that a pointer names; `None` if it names no live object of the type. Of several calls one gets it.
///
/// # Safety
///
/// No other thread uses the object.
pub(crate) unsafe fn take<T: Object>(pointer: *const T) -> Option<Box<T>> {
    let (generation, number, slot) = parts(pointer)?;
    let tag = generation << 32 | T::KIND as u64;
    // Zero is no generation: no pointer that is null in its upper half names an object.
    let ended = (generation as u32).wrapping_add(1).max(1);
    slot.tag.compare_exchange(tag, u64::from(ended) << 32, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    let object = slot.object.swap(null_mut(), Ordering::Relaxed).cast::<T>();
    return_slot(number, slot);
    // SAFETY: `add` has made it from a box of this type, and this call alone has ended its generation.
    Some(unsafe { Box::from_raw(object) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::Arc;

    struct One(Arc<()>);
    // SAFETY: no other type of this test has the kind, and no other test uses these slots with it.
    unsafe impl Object for One {
        const KIND: Kind = Kind::Imported;
    }

    struct Other;
    // SAFETY: as above.
    unsafe impl Object for Other {
        const KIND: Kind = Kind::Checkpoint;
    }

    #[test]
    fn pointer_names_object_until_freed() {
        let counted = Arc::new(());
        let pointer = add(One(Arc::clone(&counted))).unwrap();
        // SAFETY: this thread alone uses the objects, here and below.
        unsafe {
            assert!(Arc::ptr_eq(&find(pointer).unwrap().0, &counted));
            assert!(find(pointer.cast::<Other>()).is_none() && take(pointer.cast::<Other>()).is_none());
            drop(take(pointer).unwrap());
            assert_eq!(Arc::strong_count(&counted), 1);
            let next = add(One(counted)).unwrap();
            assert_ne!(next, pointer);
            assert!(find(pointer).is_none() && take(pointer).is_none());
            assert!(take(next).is_some() && take(next).is_none());
            let _ = take(add(Other).unwrap());
        }
    }

    #[test]
    fn what_is_no_pointer_names_nothing() {
        for bits in [0, 1, 8, 1 << 32, (1 << 32) - 1, usize::MAX, usize::MAX << 32] {
            // SAFETY: no object has this kind and generation.
            assert!(unsafe { find::<Other>(without_provenance_mut(bits)) }.is_none(), "{bits:#x}");
        }
    }

    #[test]
    fn slots_have_one_place_each() {
        let mut last = None;
        for number in 0..100_000 {
            let (chunk, at) = place(number);
            let next = match last {
                None => (0, 0),
                Some((chunk, at)) if at + 1 == (FIRST as usize) << chunk => (chunk + 1, 0),
                Some((chunk, at)) => (chunk, at + 1),
            };
            assert_eq!((chunk, at), next);
            last = Some((chunk, at));
        }
        assert!(place(u32::MAX).0 >= CHUNKS && slot(u32::MAX).is_none());
    }

    #[test]
    fn threads_take_and_return_slots() {
        let counted = Arc::new(());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let mine = [(); 3].map(|()| add(One(Arc::clone(&counted))).unwrap());
                        assert!(mine[0] != mine[1] && mine[1] != mine[2] && mine[0] != mine[2]);
                        for pointer in mine {
                            // SAFETY: the pointer is this thread's own.
                            assert!(unsafe { take(pointer) }.is_some());
                        }
                    }
                });
            }
        });
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
