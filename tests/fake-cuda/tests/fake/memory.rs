//! Addresses, memory, mappings, access, descriptors.

use crate::child::{Case, case, with};
use crate::rig::{
    BLOCK, Cuda, G, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, READ,
    READ_WRITE, UNKNOWN, description, properties,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) const CASES: &[Case] = &[
    case("nothing_works_before_init", nothing_works_before_init),
    case("wrong_arguments_are_refused", wrong_arguments_are_refused),
    case("a_reservation_is_freed_as_it_was_made", a_reservation_is_freed_as_it_was_made),
    case("a_mapping_is_whole", a_mapping_is_whole),
    case("access_is_each_mappings_own", access_is_each_mappings_own),
    case("memory_lives_as_long_as_anything_stands_for_it", memory_lives_as_long_as_anything_stands_for_it),
    case("a_handle_is_released_as_often_as_it_was_had", a_handle_is_released_as_often_as_it_was_had),
    case("adjacent_reservations_act_as_one", adjacent_reservations_act_as_one),
    with(&[("P2P", "0")], "a_device_out_of_reach_gets_no_access", a_device_out_of_reach_gets_no_access),
    with(&[("MEM_MB", "256")], "memory_ends", memory_ends),
    case("what_an_address_is", what_an_address_is),
    case("imports_are_one_memory", imports_are_one_memory),
];

fn nothing_works_before_init(cuda: &Cuda) {
    let mut out = 0usize;
    cuda.refuses("cuMemAddressReserve", &[(&raw mut out).addr(), G, 0, 0, 0], 3);
    cuda.ok("cuDriverGetVersion", &[(&raw mut out).addr()]);
    assert_eq!(out, 13_000);
    cuda.init();
    // Virtual memory needs no context; the other calls do.
    let base = cuda.reserve(G);
    cuda.free(base, G);
    cuda.refuses("cuMemAlloc_v2", &[(&raw mut out).addr(), G], INVALID_CONTEXT);
    cuda.refuses("cuCtxSynchronize", &[], INVALID_CONTEXT);
}

fn wrong_arguments_are_refused(cuda: &Cuda) {
    cuda.init();
    let mut out = 0usize;
    let out = (&raw mut out).addr();
    // Size, alignment, hint, flags.
    for arguments in [[0, 0, 0, 0], [G, 3, 0, 0], [G, 0, 0x1234, 0], [G, 0, 0, 1]] {
        let all: Vec<usize> = [out].into_iter().chain(arguments).collect();
        cuda.refuses("cuMemAddressReserve", &all, INVALID_VALUE);
    }
    let right = properties(0, 0);
    for (size, flags) in [(0, 0), (G + 1, 0), (G, 1)] {
        cuda.refuses("cuMemCreate", &[out, size, right.as_ptr().addr(), flags], INVALID_VALUE);
    }
    cuda.refuses("cuMemCreate", &[out, G, properties(9, 0).as_ptr().addr(), 0], INVALID_DEVICE);
    cuda.refuses("cuMemCreate", &[out, G, 0, 0], INVALID_VALUE);
    cuda.refuses("cuMemCreate", &[0, G, right.as_ptr().addr(), 0], INVALID_VALUE);
    // Type, handle types of Windows, location, compression, reserved fields.
    for (place, value) in [(0, 9), (1, 2), (2, 9), (2, 0), (6, 2), (7, 1)] {
        let mut wrong = right;
        wrong[place] = value;
        cuda.refuses("cuMemCreate", &[out, G, wrong.as_ptr().addr(), 0], INVALID_VALUE);
    }
    let base = cuda.mapped(BLOCK);
    for (device, access, code) in [(0, 2, INVALID_VALUE), (9, 3, INVALID_DEVICE)] {
        let wrong = description(device, access);
        cuda.refuses("cuMemSetAccess", &[base, BLOCK, wrong.as_ptr().addr(), 1], code);
    }
    let right = description(0, READ);
    cuda.refuses("cuMemSetAccess", &[base, BLOCK, right.as_ptr().addr(), 0], INVALID_VALUE);
    cuda.refuses("cuMemSetAccess", &[base, G, right.as_ptr().addr(), 1], INVALID_VALUE);
    assert_eq!(cuda.access(base, 0), 3);
    cuda.take_away(base, BLOCK);
}

fn a_reservation_is_freed_as_it_was_made(cuda: &Cuda) {
    cuda.init();
    let (base, handle) = (cuda.reserve(2 * BLOCK), cuda.create(0, G));
    cuda.map(base + G, G, handle);
    cuda.refuses("cuMemAddressFree", &[base, 2 * BLOCK], INVALID_VALUE);
    cuda.unmap(base + G, G);
    for (at, size) in [(base, BLOCK), (base + BLOCK, BLOCK), (base, 4 * BLOCK)] {
        cuda.refuses("cuMemAddressFree", &[at, size], INVALID_VALUE);
    }
    cuda.free(base, 2 * BLOCK);
    cuda.refuses("cuMemAddressFree", &[base, 2 * BLOCK], INVALID_VALUE);
    cuda.refuses("cuMemMap", &[base, G, 0, handle, 0], INVALID_VALUE);
    cuda.release(handle);
}

fn a_mapping_is_whole(cuda: &Cuda) {
    cuda.init();
    let base = cuda.reserve(BLOCK);
    let (first, second) = (cuda.create(0, 2 * G), cuda.create(0, G));
    cuda.map(base, 2 * G, first);
    cuda.refuses("cuMemMap", &[base + G, G, 0, second, 0], INVALID_VALUE);
    cuda.refuses("cuMemUnmap", &[base, G], INVALID_VALUE);
    cuda.refuses("cuMemUnmap", &[base + G, 2 * G], INVALID_VALUE);
    cuda.refuses("cuMemUnmap", &[base, 2 * BLOCK], INVALID_VALUE);
    cuda.map(base + 2 * G, G, second);
    // Several whole mappings at once; their access is removed with them.
    cuda.grant(base, 3 * G, 0, READ_WRITE);
    cuda.unmap(base, 3 * G);
    cuda.map(base, 2 * G, first);
    assert_eq!(cuda.access(base, 0), 0);
    let mut out = 0usize;
    let place = [1u32, 0];
    let nothing_there = [(&raw mut out).addr(), place.as_ptr().addr(), base + 2 * G];
    cuda.refuses("cuMemGetAccess", &nothing_there, INVALID_VALUE);
    cuda.release(first);
    cuda.release(second);
    cuda.unmap(base, 2 * G);
    cuda.free(base, BLOCK);
}

fn access_is_each_mappings_own(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (base, handle) = (cuda.reserve(BLOCK), cuda.create(0, G));
    cuda.map(base, G, handle);
    cuda.map(base + G, G, handle);
    cuda.release(handle);
    cuda.grant(base, G, 0, READ_WRITE);
    assert_eq!((cuda.access(base, 0), cuda.access(base + G, 0), cuda.access(base, 1)), (3, 0, 0));
    cuda.ok("cuMemsetD8_v2", &[base, 7, G]);
    let mut byte = [0u8];
    let to = byte.as_mut_ptr().addr();
    // The driver refuses copies that the device may not do, and continues to work.
    cuda.answers("cuMemcpyDtoH_v2", &[to, base + G, 1], INVALID_VALUE);
    cuda.grant(base + G, G, 0, READ);
    cuda.answers("cuMemsetD8_v2", &[base + G, 8, G], INVALID_VALUE);
    cuda.ok("cuMemcpyDtoH_v2", &[to, base + G, 1]);
    assert_eq!(byte, [7]);
    cuda.unmap(base, 2 * G);
    cuda.free(base, BLOCK);
}

fn memory_lives_as_long_as_anything_stands_for_it(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let before = cuda.free_memory();
    let (base, handle) = (cuda.reserve(BLOCK), cuda.create_shareable(G));
    assert_eq!(cuda.free_memory(), before - G);
    cuda.map(base, G, handle);
    cuda.release(handle);
    assert_eq!(cuda.free_memory(), before - G);
    // Any address in a mapping yields its handle.
    assert_eq!(cuda.get("cuMemRetainAllocationHandle", &[base + 4096]), handle);
    let fd = cuda.export(handle);
    cuda.release(handle);
    cuda.unmap(base, G);
    assert_eq!(cuda.free_memory(), before - G, "a descriptor keeps the memory");
    // SAFETY: the call has just created it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    assert_eq!(cuda.free_memory(), before);
    cuda.free(base, BLOCK);
}

fn a_handle_is_released_as_often_as_it_was_had(cuda: &Cuda) {
    cuda.init();
    let (base, handle) = (cuda.reserve(BLOCK), cuda.create(0, G));
    cuda.map(base, G, handle);
    cuda.get("cuMemRetainAllocationHandle", &[base]);
    cuda.release(handle);
    cuda.release(handle);
    cuda.refuses("cuMemRelease", &[handle], INVALID_VALUE);
    cuda.refuses("cuMemMap", &[base + G, G, 0, handle, 0], INVALID_VALUE);
    cuda.unmap(base, G);
    cuda.free(base, BLOCK);
    cuda.refuses("cuMemRelease", &[handle], INVALID_VALUE);
    cuda.refuses("cuMemRelease", &[0x1234_5678], INVALID_VALUE);
}

fn adjacent_reservations_act_as_one(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let first = cuda.reserve_at(0x1000_0000_0000, BLOCK);
    let second = cuda.reserve_at(first + BLOCK, BLOCK);
    assert_eq!(second, first + BLOCK);
    let (at, handle) = (second - G, cuda.create(0, 2 * G));
    cuda.accepts("cuMemMap", &[at, 2 * G, 0, handle, 0]);
    cuda.release(handle);
    cuda.grant(at, 2 * G, 0, READ_WRITE);
    cuda.ok("cuMemsetD8_v2", &[at, 1, 2 * G]);
    cuda.ok("cuCtxSynchronize", &[]);
    cuda.unmap(at, 2 * G);
    cuda.refuses("cuMemAddressFree", &[first, 2 * BLOCK], INVALID_VALUE);
    cuda.free(first, BLOCK);
    cuda.free(second, BLOCK);
}

fn a_device_out_of_reach_gets_no_access(cuda: &Cuda) {
    cuda.init();
    let mut can = -1i32;
    cuda.ok("cuDeviceCanAccessPeer", &[(&raw mut can).addr(), 0, 1]);
    assert_eq!(can, 0);
    let base = cuda.mapped(G);
    let peer = description(1, READ);
    cuda.refuses("cuMemSetAccess", &[base, G, peer.as_ptr().addr(), 1], INVALID_DEVICE);
    cuda.take_away(base, G);
}

fn memory_ends(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let free = cuda.free_memory();
    let all = cuda.create(0, free);
    assert_eq!(cuda.free_memory(), 0);
    let (mut out, right) = (0usize, properties(0, 0));
    let one_more = [(&raw mut out).addr(), G, right.as_ptr().addr(), 0];
    cuda.answers("cuMemCreate", &one_more, OUT_OF_MEMORY);
    cuda.answers("cuMemAlloc_v2", &[(&raw mut out).addr(), 1], OUT_OF_MEMORY);
    // Each device has its own memory, and addresses take none.
    let other = cuda.create(1, G);
    let base = cuda.reserve(1 << 40);
    cuda.free(base, 1 << 40);
    cuda.release(other);
    cuda.release(all);
    assert_eq!(cuda.free_memory(), free);
}

fn what_an_address_is(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let base = cuda.mapped(BLOCK);
    let (mut start, mut size) = (0usize, 0usize);
    let range = [(&raw mut start).addr(), (&raw mut size).addr(), base + 12_345];
    cuda.ok("cuMemGetAddressRange_v2", &range);
    assert_eq!((start, size), (base, BLOCK));
    cuda.refuses("cuMemFree_v2", &[base], INVALID_VALUE);
    let mut ordinal = -1i32;
    cuda.ok("cuPointerGetAttribute", &[(&raw mut ordinal).addr(), 9, base]);
    assert_eq!(ordinal, 0);
    let plain = cuda.get("cuMemAlloc_v2", &[1000]);
    let (mut legacy, mut bytes) = (-1i32, 0usize);
    let (numbers, to) = ([10u32, 12], [(&raw mut legacy).addr(), (&raw mut bytes).addr()]);
    cuda.ok("cuPointerGetAttributes", &[2, numbers.as_ptr().addr(), to.as_ptr().addr(), plain]);
    assert_eq!((legacy, bytes), (1, 1000));
    cuda.ok("cuMemFree_v2", &[plain]);
    let mut fd = -1i32;
    cuda.ok("cuMemGetHandleForAddressRange", &[(&raw mut fd).addr(), base, BLOCK, 1, 0]);
    // SAFETY: the call has just created it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    cuda.take_away(base, BLOCK);
    let gone = [(&raw mut fd).addr(), base, BLOCK, 1, 0];
    cuda.refuses("cuMemGetHandleForAddressRange", &gone, INVALID_VALUE);
}

fn imports_are_one_memory(cuda: &Cuda) {
    cuda.init();
    cuda.enter(0);
    let (before, handle) = (cuda.free_memory(), cuda.create_shareable(G));
    let fd = cuda.export(handle);
    // SAFETY: the call has just created it.
    let owned = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let imports = [0; 2].map(|_| cuda.get("cuMemImportFromShareableHandle", &[fd, 1]));
    assert!(imports[0] != imports[1] && !imports.contains(&handle));
    assert_eq!(cuda.free_memory(), before - G);
    drop(owned);
    // SAFETY: opens a file that always exists.
    let other = unsafe { OwnedFd::from_raw_fd(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY)) };
    let (mut none, number) = (0usize, other.as_raw_fd() as usize);
    cuda.answers("cuMemImportFromShareableHandle", &[(&raw mut none).addr(), number, 1], UNKNOWN);
    let base = cuda.reserve(BLOCK);
    // The size of an import is unknown; the documentation requires that it is mapped from its beginning.
    cuda.answers("cuMemMap", &[base, 2 * G, 0, imports[0], 0], NOT_SUPPORTED);
    cuda.refuses("cuMemMap", &[base, G, G, imports[0], 0], NOT_SUPPORTED);
    for (place, handle) in [handle, imports[0], imports[1]].into_iter().enumerate() {
        cuda.map(base + place * G, G, handle);
        cuda.release(handle);
    }
    cuda.grant(base, 3 * G, 0, READ_WRITE);
    cuda.ok("cuMemsetD8_v2", &[base, 9, G]);
    let mut byte = [0u8];
    cuda.ok("cuMemcpyDtoH_v2", &[byte.as_mut_ptr().addr(), base + 2 * G + 77, 1]);
    assert_eq!(byte, [9]);
    cuda.unmap(base, 2 * G);
    assert_eq!(cuda.free_memory(), before - G);
    cuda.unmap(base + 2 * G, G);
    cuda.free(base, BLOCK);
    assert_eq!(cuda.free_memory(), before);
}
