//! For each quirk that is met by never making the call, or by nothing: the call, made directly on HIP's own functions.

use crate::child::Case;
use crate::host;
use crate::rig::{INVALID_VALUE, READ, READ_WRITE, Rig, SUCCESS, UNIT, pointer};

pub(crate) struct Row {
    pub(crate) quirk: &'static str,
    pub(crate) versions: &'static [&'static str],
    pub(crate) case: Case,
    /// What the process ends with, where it does.
    pub(crate) ends_with: Option<&'static str>,
    /// What the case finds, where it goes on.
    pub(crate) shows: &'static str,
}

const fn ends(
    quirk: &'static str,
    versions: &'static [&'static str],
    (name, run): (&'static str, fn(&mut Rig)),
    text: &'static str,
) -> Row {
    Row { quirk, versions, case: Case { name, run }, ends_with: Some(text), shows: "" }
}

const fn shows(
    quirk: &'static str,
    versions: &'static [&'static str],
    (name, run): (&'static str, fn(&mut Rig)),
    shows: &'static str,
) -> Row {
    Row { quirk, versions, case: Case { name, run }, ends_with: None, shows }
}

const SIX: &[&str] = &["6.1", "6.2", "6.3"];
const SEVEN: &[&str] = &["7.0", "7.1", "7.12", "7.14", "7.15"];
const UP_TO_7_12: &[&str] = &["6.1", "6.2", "7.0", "7.1", "7.12"];
const ALL: &[&str] = &["6.1", "6.2", "7.0", "7.1", "7.12", "7.14", "7.15"];

pub(crate) const ROWS: &[Row] = &[
    shows("hint-is-a-wish", ALL, ("taken_hint", taken_hint), "another address, and success"),
    ends(
        "map-beyond-reservation",
        UP_TO_7_12,
        ("map_beyond", map_beyond),
        "across the end of its reservation",
    ),
    shows("map-reports-nothing", UP_TO_7_12, ("blind_map", blind_map), "success where nothing can be mapped"),
    shows("map-offset", ALL, ("map_offset", map_offset), "refused"),
    shows("one-reservation", ALL, ("two_reservations", two_reservations), "refused across the border"),
    ends("unmap-of-nothing", SIX, ("unmap_nothing", unmap_nothing), "where nothing is mapped"),
    shows("unmap-one-mapping", SIX, ("unmap_part", unmap_part), "the mapping is forgotten and stays"),
    ends(
        "unmap-does-not-wait",
        &["7.0", "7.14", "7.15"],
        ("unmap_busy", unmap_busy),
        "nothing is mapped there",
    ),
    shows("access-rounds-up", SIX, ("access_of_a_part", access_of_a_part), "all of the mapping is set"),
    ends("access-change-is-a-gap", ALL, ("access_busy", access_busy), "its access is being changed"),
    ends("read-only-is-hardware", ALL, ("write_to_read_only", write_to_read_only), "read-only page"),
    shows("free-ignores-size", ALL, ("free_a_part", free_a_part), "all of the reservation is freed"),
    ends("free-while-mapped", ALL, ("free_mapped", free_mapped), "was freed while this was mapped"),
    ends("free-of-unknown", UP_TO_7_12, ("free_twice", free_twice), "not reserved, or not any more"),
    shows("release-frees-nothing", &["6.2", "6.4.1"], ("release", release), "physical memory is left"),
    ends(
        "retain-does-not-count",
        &["6.1", "7.0", "7.1", "7.2"],
        ("retain", retain),
        "is no handle, or was released",
    ),
    shows("hipfree-succeeds", ALL, ("hip_free", hip_free), "success, and HIP has forgotten the mapping"),
    shows("ipc-handle-accepted", ALL, ("ipc_handle", ipc_handle), "success for mapped memory"),
    shows(
        "fill-opens-access",
        &["7.0", "7.1", "7.12"],
        ("fill", fill),
        "the current device has access afterwards",
    ),
    shows("import-leaks", &["6.3"], ("imports", imports), "physical memory is left"),
    shows(
        "host-access-appears",
        &["6.1", "6.2", "7.0", "7.1"],
        ("host_access", host::no_access),
        "refused, or device 0's",
    ),
    shows(
        "host-memory-is-the-devices",
        &["7.0", "7.1", "7.2", "7.12", "7.14"],
        ("host_memory", host::host_memory),
        "the device's free memory falls",
    ),
    shows(
        "range-is-one-mapping",
        SEVEN,
        ("range_of_two", host::range_of_two),
        "a descriptor of the first alone",
    ),
    shows("range-leaks", SEVEN, ("range_leaks", host::range_leaks), "physical memory is left"),
    ends("host-access-on-imports", &["7.15"], ("host_import", host_import), "hipMemSetAccess for the host"),
    shows(
        "owner-last",
        &["7.14", "7.15"],
        ("late_peer", late_peer),
        "a peer that comes after the owner corrupts",
    ),
    shows(
        "reserve-says-no-memory",
        SIX,
        ("reserve_wrong", reserve_wrong),
        "OutOfMemory for a size of 0 and an alignment of 3",
    ),
    shows("access-unchecked", SIX, ("access_unchecked", access_unchecked), "any place and any flags are set"),
    ends("export-to-null", &["6.2", "6.3"], ("export_to_null", export_to_null), "through a null pointer"),
    shows(
        "codes-by-version",
        ALL,
        ("codes", codes),
        "OutOfMemory or InvalidValue, InvalidValue or InvalidDevice",
    ),
    shows(
        "codes-by-version",
        SEVEN,
        ("errors_stick", errors_stick),
        "an error is told after calls that succeeded",
    ),
];

fn taken_hint(rig: &mut Rig) {
    let first = rig.reserve(UNIT);
    let second = rig.reserve_at(first, UNIT);
    assert_ne!(first, second);
    let unaligned = rig.reserve_at(first + UNIT + 12, UNIT);
    assert_ne!(unaligned, first + UNIT + 12);
    [first, second, unaligned].iter().for_each(|base| rig.call("hipMemAddressFree", &[*base, UNIT]));
}

fn map_beyond(rig: &mut Rig) {
    let base = rig.reserve(2 * UNIT);
    let handle = rig.create(0, 2 * UNIT, false);
    rig.hip("hipMemMap", &[base + UNIT, 2 * UNIT, 0, handle, 0]);
}

fn blind_map(rig: &mut Rig) {
    let (base, first) = rig.mapped(2 * UNIT, UNIT);
    let second = rig.create(0, UNIT, false);
    rig.call("hipMemMap", &[base, UNIT, 0, second, 0]); // there is a mapping
    rig.call("hipMemMap", &[base - 64 * UNIT, UNIT, 0, second, 0]); // nothing is reserved
    rig.call("hipMemMap", &[base + UNIT, 12, 0, second, 0]); // no pages
    assert_eq!(rig.access(0, base + UNIT).0, INVALID_VALUE);
    rig.end(base, UNIT, first);
    rig.call("hipMemRelease", &[second]);
    // And a reference is left of each, with the memory.
    rig.left.handles = 1;
    rig.left.physical = 1;
}

fn map_offset(rig: &mut Rig) {
    let base = rig.reserve(UNIT);
    let handle = rig.create(0, 2 * UNIT, false);
    assert_eq!(rig.hip("hipMemMap", &[base, UNIT, UNIT, handle, 0]), INVALID_VALUE);
    rig.call("hipMemRelease", &[handle]);
    rig.call("hipMemAddressFree", &[base, UNIT]);
}

fn two_reservations(rig: &mut Rig) {
    let far = 0x1000_0000_0000;
    assert_eq!((rig.reserve_at(far, UNIT), rig.reserve_at(far + UNIT, UNIT)), (far, far + UNIT));
    let handles = [far, far + UNIT].map(|at| {
        let handle = rig.create(0, UNIT, false);
        rig.call("hipMemMap", &[at, UNIT, 0, handle, 0]);
        handle
    });
    assert_eq!(rig.set(0, far, 2 * UNIT, READ_WRITE), INVALID_VALUE);
    assert_eq!(
        (rig.set(0, far, UNIT, READ_WRITE), rig.set(0, far + UNIT, UNIT, READ_WRITE)),
        (SUCCESS, SUCCESS)
    );
    let host = vec![1u8; 2 * UNIT];
    assert_eq!(rig.hip("hipMemcpy", &[far, host.as_ptr().addr(), 2 * UNIT, 1]), INVALID_VALUE);
    rig.end(far, UNIT, handles[0]);
    rig.end(far + UNIT, UNIT, handles[1]);
}

fn unmap_nothing(rig: &mut Rig) {
    let base = rig.reserve(UNIT);
    rig.hip("hipMemUnmap", &[base, UNIT]);
}

fn unmap_part(rig: &mut Rig) {
    let (base, handle) = rig.mapped(2 * UNIT, 2 * UNIT);
    rig.call("hipMemUnmap", &[base, UNIT]);
    assert_eq!(rig.access(0, base + UNIT).0, INVALID_VALUE);
    rig.call("hipMemRelease", &[handle]);
    rig.left = rig.counts();
    assert_eq!(rig.left.mapped, 1);
}

fn unmap_busy(rig: &mut Rig) {
    let (base, _) = rig.mapped(UNIT, UNIT);
    assert_eq!(rig.set(0, base, UNIT, READ_WRITE), SUCCESS);
    rig.call("hipMemset", &[base, 1, UNIT]);
    // On 7.0 to 7.12 the current device's work is waited for: so another one is made current.
    rig.call("hipSetDevice", &[1]);
    rig.call("hipMemUnmap", &[base, UNIT]);
    rig.call("hipSetDevice", &[0]);
    rig.hip("hipDeviceSynchronize", &[]);
}

fn access_of_a_part(rig: &mut Rig) {
    let (base, handle) = rig.mapped(2 * UNIT, 2 * UNIT);
    assert_eq!(rig.set(0, base, UNIT, READ_WRITE), SUCCESS);
    assert_eq!(rig.access(0, base + UNIT), (SUCCESS, READ_WRITE as u64));
    rig.end(base, 2 * UNIT, handle);
}

fn reserve_wrong(rig: &mut Rig) {
    const OUT_OF_MEMORY: i32 = 2;
    let mut base = 0usize;
    for (size, alignment) in [(0, 0), (UNIT, 3)] {
        let answer = rig.hip("hipMemAddressReserve", &[(&raw mut base).addr(), size, alignment, 0, 0]);
        assert_eq!(answer, OUT_OF_MEMORY);
    }
}

fn access_unchecked(rig: &mut Rig) {
    let (base, handle) = rig.mapped(UNIT, UNIT);
    for (kind, flags) in [(0, READ_WRITE), (0x77, READ), (1, 77)] {
        assert_eq!(rig.set_for(kind, 0, base, UNIT, flags), SUCCESS);
        assert_eq!(rig.access(0, base), (SUCCESS, flags as u64));
    }
    rig.end(base, UNIT, handle);
}

fn export_to_null(rig: &mut Rig) {
    let handle = rig.create(0, UNIT, true);
    rig.hip("hipMemExportToShareableHandle", &[0, handle, 1, 0]);
}

fn access_busy(rig: &mut Rig) {
    let (base, _) = rig.mapped(UNIT, UNIT);
    assert_eq!(rig.set(0, base, UNIT, READ_WRITE), SUCCESS);
    rig.call("hipMemset", &[base, 1, UNIT]);
    assert_eq!(rig.set(0, base, UNIT, READ_WRITE), SUCCESS, "the access that is there");
    rig.set(0, base, UNIT, READ);
}

fn write_to_read_only(rig: &mut Rig) {
    let (base, _) = rig.mapped(UNIT, UNIT);
    assert_eq!(rig.set(0, base, UNIT, READ), SUCCESS);
    rig.hip("hipMemcpy", &[base, b"bytes".as_ptr().addr(), 5, 1]);
}

fn free_a_part(rig: &mut Rig) {
    let base = rig.reserve(4 * UNIT);
    rig.call("hipMemAddressFree", &[base + UNIT, 4096]);
    assert_eq!(rig.reserve_at(base, 4 * UNIT), base, "all of it is free");
    rig.call("hipMemAddressFree", &[base, 4 * UNIT]);
}

fn free_mapped(rig: &mut Rig) {
    let (base, _) = rig.mapped(UNIT, UNIT);
    let expected =
        if ["6.1.", "6.2."].iter().any(|old| rig.version().starts_with(old)) { SUCCESS } else { 999 };
    assert_eq!(rig.hip("hipMemAddressFree", &[base, UNIT]), expected);
    rig.hip("hipMemUnmap", &[base, UNIT]);
}

fn free_twice(rig: &mut Rig) {
    let base = rig.reserve(UNIT);
    rig.call("hipMemAddressFree", &[base, UNIT]);
    rig.hip("hipMemAddressFree", &[base, UNIT]);
}

fn release(rig: &mut Rig) {
    let handle = rig.create(0, UNIT, false);
    rig.call("hipMemRelease", &[handle]);
    assert_eq!((rig.counts().handles, rig.counts().physical), (0, 1));
}

fn retain(rig: &mut Rig) {
    let (base, handle) = rig.mapped(UNIT, UNIT);
    let mut again = 0usize;
    rig.call("hipMemRetainAllocationHandle", &[(&raw mut again).addr(), base]);
    assert_eq!(again, handle);
    rig.call("hipMemRelease", &[again]);
    rig.call("hipMemRelease", &[handle]);
    rig.hip("hipMemUnmap", &[base, UNIT]);
}

fn hip_free(rig: &mut Rig) {
    let (base, handle) = rig.mapped(UNIT, UNIT);
    rig.call("hipFree", &[base]);
    assert_eq!(rig.access(0, base).0, INVALID_VALUE);
    rig.call("hipMemRelease", &[handle]);
    rig.left = rig.counts();
}

fn ipc_handle(rig: &mut Rig) {
    let (base, handle) = rig.mapped(UNIT, UNIT);
    let mut bytes = [0u8; 64];
    rig.call("hipIpcGetMemHandle", &[bytes.as_mut_ptr().addr(), base]);
    rig.end(base, UNIT, handle);
}

fn fill(rig: &mut Rig) {
    let (base, handle) = rig.mapped(UNIT, UNIT);
    assert_eq!(rig.set(0, base, UNIT, READ_WRITE), SUCCESS);
    rig.call("hipSetDevice", &[1]);
    rig.call("hipMemset", &[base, 1, UNIT]);
    rig.call("hipDeviceSynchronize", &[]);
    assert_eq!(rig.access(1, base), (SUCCESS, READ_WRITE as u64));
    rig.call("hipSetDevice", &[0]);
    rig.end(base, UNIT, handle);
}

/// A handle that came in from a descriptor, which stays open; and the one that it is of.
fn imported(rig: &Rig) -> (usize, usize) {
    let handle = rig.create(0, UNIT, true);
    let mut fd = -1i32;
    rig.call("hipMemExportToShareableHandle", &[(&raw mut fd).addr(), handle, 1, 0]);
    let from = if rig.has("import-wants-pointer") { (&raw mut fd).addr() } else { fd as usize };
    let mut imported = 0usize;
    rig.call("hipMemImportFromShareableHandle", &[(&raw mut imported).addr(), from, 1]);
    (handle, imported)
}

fn imports(rig: &mut Rig) {
    let (handle, imported) = imported(rig);
    rig.call("hipMemRelease", &[imported]);
    rig.call("hipMemRelease", &[handle]);
    rig.left.physical = 1;
    assert_eq!(rig.counts().handles, 0);
}

fn host_import(rig: &mut Rig) {
    let base = rig.reserve(2 * UNIT);
    let (handle, imported) = imported(rig);
    rig.call("hipMemMap", &[base, UNIT, 0, handle, 0]);
    rig.call("hipMemMap", &[base + UNIT, UNIT, 0, imported, 0]);
    assert_eq!(rig.set_for(2, 0, base, UNIT, READ_WRITE), SUCCESS);
    // SAFETY: the host has just been given access.
    unsafe { pointer(base).cast::<u8>().write(5) };
    assert_eq!(rig.set_for(2, 0, base + UNIT, UNIT, READ_WRITE), SUCCESS, "hipMemSetAccess for the host");
}

fn late_peer(rig: &mut Rig) {
    let (base, handle) = rig.mapped(UNIT, UNIT);
    assert_eq!(rig.set(0, base, UNIT, READ_WRITE), SUCCESS);
    rig.call("hipMemcpy", &[base, b"bytes".as_ptr().addr(), 5, 1]);
    assert_eq!(rig.set(1, base, UNIT, READ), SUCCESS);
    let mut bytes = [0u8; 5];
    rig.call("hipMemcpy", &[bytes.as_mut_ptr().addr(), base, 5, 2]);
    assert_ne!(&bytes, b"bytes");
    rig.end(base, UNIT, handle);
}

fn codes(rig: &mut Rig) {
    let is_six = rig.version().starts_with('6');
    let mut base = 0usize;
    let mut reserve =
        |size, alignment| rig.hip("hipMemAddressReserve", &[(&raw mut base).addr(), size, alignment, 0, 0]);
    let bad = if is_six { 2 } else { 1 };
    assert_eq!((reserve(0, 0), reserve(12, 0), reserve(UNIT, 3)), (bad, bad, bad));
    assert_eq!(rig.try_create(9, UNIT, false).0, if is_six { 1 } else { 101 });
    assert_eq!(rig.try_create(0, 12, false).0, INVALID_VALUE);
    assert_eq!(rig.try_create(0, UNIT << 20, false).0, 2);
    let (shared, handle) = rig.try_create(0, UNIT, true);
    assert_eq!(shared, if rig.version().starts_with("6.1.") { 801 } else { SUCCESS });
    if shared == SUCCESS {
        rig.call("hipMemRelease", &[handle]);
    }
}

fn errors_stick(rig: &mut Rig) {
    assert_eq!(rig.try_create(0, 12, false).0, INVALID_VALUE);
    rig.call("hipDeviceSynchronize", &[]);
    assert_eq!(rig.hip("hipGetLastError", &[]), INVALID_VALUE);
}
