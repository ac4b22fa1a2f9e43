//! Banks of a banked region on host memory.

use super::*;
use crate::banked::{
    Banked, GPU_VMM_NO_BANK, gpu_vmm_banked_add, gpu_vmm_banked_add_physical, gpu_vmm_banked_address,
    gpu_vmm_banked_hide, gpu_vmm_banked_on_backing_change, gpu_vmm_banked_read, gpu_vmm_banked_remove,
    gpu_vmm_banked_select, gpu_vmm_banked_selected, gpu_vmm_banked_write,
};
use crate::status::{GPU_VMM_NOT_MAPPED, GPU_VMM_OUT_OF_RANGE};

/// A banked region of two units of addresses.
fn banked(backend: *const Backend) -> *mut Banked {
    let options = region_options(2 * UNIT);
    // SAFETY: the backend is open, and the options are valid for the call.
    result(|place| unsafe { gpu_vmm_banked_new(backend, &raw const options, place) })
}

/// The text that is written to a bank.
const TEXT: [[u8; 5]; 2] = [*b"first", *b"other"];

fn write(banked: *const Banked, offset: u64, bytes: &[u8]) -> Status {
    // SAFETY: the banked region is not freed yet.
    unsafe { gpu_vmm_banked_write(banked, offset, bytes.as_ptr().cast(), bytes.len() as u64) }
}

fn read(banked: *const Banked, offset: u64) -> Result<[u8; 5], Status> {
    let mut bytes = [0; 5];
    // SAFETY: as above.
    match unsafe { gpu_vmm_banked_read(banked, offset, bytes.as_mut_ptr().cast(), 5) } {
        GPU_VMM_OK => Ok(bytes),
        status => Err(status),
    }
}

#[test]
fn each_bank_keeps_its_contents_at_the_one_address() {
    let backend = open(&HostConfig::new());
    let banked = banked(backend);
    // SAFETY: the objects are freed after their last use, and the places are writable.
    unsafe {
        let selected = || result(|place| gpu_vmm_banked_selected(banked, place));
        let address = result(|place| gpu_vmm_banked_address(banked, place));
        assert_eq!(
            address,
            handles::find(banked).unwrap().0.lock(Operation::LockRegion).unwrap().address().0
        );
        let banks = [UNIT, 2 * UNIT].map(|size| result(|place| gpu_vmm_banked_add(banked, size, place)));
        assert_ne!(banks[0], banks[1]);
        assert_eq!(selected(), GPU_VMM_NO_BANK, "an added bank is not mapped");
        assert_eq!((write(banked, 0, b"x"), read(banked, 0)), (GPU_VMM_NOT_MAPPED, Err(GPU_VMM_NOT_MAPPED)));
        for (bank, text) in banks.iter().zip(&TEXT) {
            assert_eq!(gpu_vmm_banked_select(banked, *bank), GPU_VMM_OK);
            assert_eq!((selected(), write(banked, UNIT - 5, text)), (*bank, GPU_VMM_OK));
        }
        assert_eq!(write(banked, 2 * UNIT - 5, b"endof"), GPU_VMM_OK);
        for (bank, text) in banks.iter().zip(TEXT) {
            assert_eq!(gpu_vmm_banked_select(banked, *bank), GPU_VMM_OK);
            assert_eq!(read(banked, UNIT - 5), Ok(text));
        }
        assert_eq!(gpu_vmm_banked_hide(banked), GPU_VMM_OK);
        assert_eq!((selected(), read(banked, 0)), (GPU_VMM_NO_BANK, Err(GPU_VMM_NOT_MAPPED)));
        assert_eq!(gpu_vmm_banked_remove(banked, banks[1]), GPU_VMM_OK);
        let gone = [gpu_vmm_banked_remove(banked, banks[1]), gpu_vmm_banked_select(banked, banks[1])];
        assert_eq!(gone, [GPU_VMM_NOT_FOUND; 2]);
        assert_eq!(gpu_vmm_banked_select(banked, banks[0]), GPU_VMM_OK);
        assert_eq!(read(banked, UNIT - 5), Ok(TEXT[0]), "the other bank stays");
        assert_eq!(gpu_vmm_banked_remove(banked, banks[0]), GPU_VMM_OK);
        assert_eq!(selected(), GPU_VMM_NO_BANK, "a selected bank is hidden first");
        let more = [(); 3].map(|()| result(|place| gpu_vmm_banked_add(banked, UNIT, place)));
        assert_eq!((gpu_vmm_banked_select(banked, more[2]), selected()), (GPU_VMM_OK, more[2]));
        let mut free = 0;
        gpu_vmm_banked_free(banked);
        assert_eq!(gpu_vmm_memory(backend, 0, &raw mut free, null_mut()), GPU_VMM_OK);
        assert_eq!(free, handles::find(backend).unwrap().0.devices()[0].total_memory.0, "all is released");
        gpu_vmm_close(backend);
    }
}

#[test]
fn a_bank_of_existing_memory_has_its_pieces_in_their_order() {
    let backend = open(&HostConfig::new());
    let banked = banked(backend);
    let pieces = TEXT.map(|_| physical(backend, &of_device(0), UNIT).cast_const());
    let mut bank = 7;
    // SAFETY: as above.
    unsafe {
        let mut add = |pieces: *const *const Physical, count| {
            gpu_vmm_banked_add_physical(banked, pieces, count, &raw mut bank)
        };
        assert_eq!(add(null(), 1), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "physicals is null, but its count is 1");
        assert_eq!(add(pieces.as_ptr(), u64::MAX), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "add bank: count exceeds the address space");
        let three = [pieces[0], pieces[1], pieces[0]];
        assert_eq!(add(three.as_ptr(), 3), GPU_VMM_OUT_OF_RANGE, "{}", last_error());
        assert_eq!(add([pieces[0], null()].as_ptr(), 2), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "one of physicals is null");
        assert_eq!(add(pieces.as_ptr(), 2), GPU_VMM_OK, "{}", last_error());
        assert_eq!(gpu_vmm_banked_select(banked, bank), GPU_VMM_OK);
        for (place, text) in [0, UNIT].into_iter().zip(&TEXT) {
            assert_eq!(write(banked, place, text), GPU_VMM_OK);
        }
        for (piece, text) in pieces.iter().zip(TEXT) {
            let mut found = [0; 5];
            handles::find(*piece).unwrap().0.read(Bytes::ZERO, &mut found).unwrap();
            assert_eq!(found, text);
            gpu_vmm_physical_release(piece.cast_mut());
        }
        assert_eq!(read(banked, UNIT), Ok(TEXT[1]), "the bank keeps the memory");
        gpu_vmm_banked_free(banked);
        gpu_vmm_close(backend);
    }
}

#[test]
fn an_observer_of_a_banked_region_is_notified_of_each_bank() {
    let backend = open(&HostConfig::new());
    let banked = banked(backend);
    let mut told = Told::new();
    let context = (&raw mut told).cast();
    let observer = Observer { context, before: Some(note), after: None, released: None, reserved: [0; 4] };
    let wrong = Observer { reserved: [0, 0, 0, 1], ..observer };
    // SAFETY: as above; the context lives until the end.
    unsafe {
        assert_eq!(gpu_vmm_banked_on_backing_change(banked, null()), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(gpu_vmm_banked_on_backing_change(banked, &raw const wrong), GPU_VMM_INVALID_ARGUMENT);
        assert_eq!(gpu_vmm_banked_on_backing_change(banked, &raw const observer), GPU_VMM_OK);
        let address = result(|place| gpu_vmm_banked_address(banked, place));
        let bank = result(|place| gpu_vmm_banked_add(banked, UNIT, place));
        assert_eq!(gpu_vmm_banked_select(banked, bank), GPU_VMM_OK);
        assert_eq!(gpu_vmm_banked_hide(banked), GPU_VMM_OK);
        assert_eq!(*context.cast::<Told>(), vec![(address, 0, vec![(0, UNIT)]); 2]);
        gpu_vmm_banked_free(banked);
        gpu_vmm_close(backend);
    }
}

/// A banked region, and the status of a call with it from its own callback.
struct Inner {
    banked: *mut Banked,
    status: Status,
}

unsafe extern "C" fn ask(context: *mut c_void, _: *const BackingChange) -> Status {
    // SAFETY: the context is that of the test, and the banked region lives.
    unsafe {
        let inner = &mut *context.cast::<Inner>();
        let mut bank = 7;
        inner.status = gpu_vmm_banked_selected(inner.banked, &raw mut bank);
        if bank == 0 { GPU_VMM_OK } else { GPU_VMM_INTERNAL }
    }
}

#[test]
fn a_call_from_a_callback_does_not_wait_for_the_region_that_changes() {
    let backend = open(&HostConfig::new());
    let mut inner = Inner { banked: banked(backend), status: GPU_VMM_OK };
    let context = &raw mut inner;
    let observer = Observer {
        context: context.cast(),
        before: Some(ask),
        after: None,
        released: None,
        reserved: [0; 4],
    };
    // SAFETY: as above.
    unsafe {
        let banked = (*context).banked;
        assert_eq!(gpu_vmm_banked_on_backing_change(banked, &raw const observer), GPU_VMM_OK);
        let bank = result(|place| gpu_vmm_banked_add(banked, UNIT, place));
        assert_eq!(gpu_vmm_banked_select(banked, bank), GPU_VMM_OK, "{}", last_error());
        assert_eq!((*context).status, GPU_VMM_BUSY);
        let text = "the object is in use by another call, for which a callback does not wait";
        assert!(last_error().ends_with(text), "{}", last_error());
        gpu_vmm_banked_free(banked);
        gpu_vmm_close(backend);
    }
}
