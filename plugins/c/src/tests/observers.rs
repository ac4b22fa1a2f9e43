//! The notifications that observers of a region receive, and the changes that they can refuse.

use super::*;
use crate::callback::is_running;
use crate::observer::{
    GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_CHANGED, GPU_VMM_OUTCOME_POISONED, GPU_VMM_OUTCOME_UNCHANGED,
    Registered,
};
use gpu_vmm::{BackingChange as Change, BackingObserver, BackingOutcome};

/// What the callbacks have noted, and the status that the next ones return.
#[derive(Default)]
struct Notes {
    before: Vec<(String, u32)>,
    after: Vec<(String, u32, u32)>,
    released: u32,
    answer: Status,
}

/// The name of the operation.
unsafe fn name(change: &BackingChange) -> String {
    // SAFETY: a string that is valid during the callback.
    unsafe { CStr::from_ptr(change.operation) }.to_str().unwrap().to_owned()
}

unsafe extern "C" fn before(context: *mut c_void, change: *const BackingChange) -> Status {
    // SAFETY: the context belongs to a test, and the change is valid during the callback; so below.
    unsafe {
        let (notes, change) = (&mut *context.cast::<Notes>(), &*change);
        notes.before.push((name(change), change.effect));
        notes.answer
    }
}

unsafe extern "C" fn after(context: *mut c_void, change: *const BackingChange, outcome: u32) {
    // SAFETY: as above.
    unsafe {
        let (notes, change) = (&mut *context.cast::<Notes>(), &*change);
        notes.after.push((name(change), change.effect, outcome));
    }
}

unsafe extern "C" fn released(context: *mut c_void) {
    // SAFETY: as above.
    unsafe { (*context.cast::<Notes>()).released += 1 }
}

fn observer(context: *mut c_void) -> Observer {
    Observer { context, before: Some(before), after: Some(after), released: Some(released), reserved: [0; 4] }
}

#[test]
fn observer_refuses_by_every_other_status() {
    let backend = open(&HostConfig::new());
    let region = one_unit(backend);
    let mut notes = Notes { answer: -5, ..Notes::default() };
    let mut first = Notes::default();
    let (context, earlier) = (&raw mut notes, &raw mut first);
    // SAFETY: as above.
    unsafe {
        let mut ids = [0; 2];
        for (id, context) in ids.iter_mut().zip([earlier, context]) {
            let observer = observer(context.cast());
            assert_eq!(gpu_vmm_region_on_backing_change(region, &raw const observer, id), GPU_VMM_OK);
        }
        assert_eq!(gpu_vmm_region_unmap(region, 0, UNIT, false), GPU_VMM_BUSY);
        assert!(last_error().contains("its callback returned status -5"), "{}", last_error());
        assert_eq!(
            result(|place| gpu_vmm_region_mapping(region, 0, place)).length,
            UNIT,
            "it is still mapped"
        );
        assert_eq!((*context).before.len(), 1);
        assert!((*context).after.is_empty(), "an observer that refuses receives no outcome");
        let changes = [("unmap".to_owned(), GPU_VMM_BACKING_REMOVED, GPU_VMM_OUTCOME_UNCHANGED)];
        assert_eq!((*earlier).after, changes);
        assert_eq!(gpu_vmm_region_remove_observer(region, ids[1]), GPU_VMM_OK);
        assert_eq!(((*context).released, (*earlier).released), (1, 0));
        assert_eq!(gpu_vmm_region_remove_observer(region, ids[1]), GPU_VMM_NOT_FOUND);
        assert_eq!(last_error(), format!("remove observer: the region has no observer {}", ids[1]));
        assert_eq!(gpu_vmm_region_unmap(region, 0, UNIT, false), GPU_VMM_OK);
        assert_eq!((*context).before.len(), 1, "it receives nothing more");
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
    assert_eq!((notes.released, first.released), (1, 1));
}

unsafe extern "C" fn after_a_change(context: *mut c_void, _: *const BackingChange, _: u32) {
    // SAFETY: the context belongs to the test below.
    unsafe { (*context.cast::<Vec<bool>>()).push(is_running()) }
}

unsafe extern "C" fn at_the_end(context: *mut c_void) {
    // SAFETY: as above.
    unsafe { (*context.cast::<Vec<bool>>()).push(is_running()) }
}

/// Calls of gpu-vmm in such a callback must not wait for a lock that the outer call holds.
#[test]
fn is_running_holds_in_all_callbacks() {
    let backend = open(&HostConfig::new());
    let region = one_unit(backend);
    let mut running = Vec::<bool>::new();
    let context = &raw mut running;
    let observer = Observer {
        context: context.cast(),
        before: None,
        after: Some(after_a_change),
        released: Some(at_the_end),
        reserved: [0; 4],
    };
    // SAFETY: as above.
    unsafe {
        assert_eq!(gpu_vmm_region_on_backing_change(region, &raw const observer, null_mut()), GPU_VMM_OK);
        assert_eq!(gpu_vmm_region_unmap(region, 0, UNIT, false), GPU_VMM_OK);
        gpu_vmm_region_free(region);
        gpu_vmm_close(backend);
    }
    assert_eq!(running, [true; 2]);
}

/// Passes changes to an observer of C, with this outcome.
struct WithOutcome(Registered, BackingOutcome);

impl BackingObserver for WithOutcome {
    fn before(&self, change: &Change<'_>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.before(change)
    }

    fn after(&self, change: &Change<'_>, _: BackingOutcome) {
        self.0.after(change, self.1);
    }
}

#[test]
fn each_outcome_has_its_number() {
    let host: AnyBackend = HostConfig::new().open().unwrap().into();
    for (outcome, number) in [
        (BackingOutcome::Changed, GPU_VMM_OUTCOME_CHANGED),
        (BackingOutcome::Unchanged, GPU_VMM_OUTCOME_UNCHANGED),
        (BackingOutcome::Poisoned, GPU_VMM_OUTCOME_POISONED),
    ] {
        let mut notes = Notes::default();
        let context = &raw mut notes;
        // SAFETY: the notes live until the region has been dropped.
        let registered = unsafe { Registered::new(observer(context.cast())) };
        let mut region = gpu_vmm::Region::builder(&host).reserve(Bytes(UNIT)).build().unwrap();
        region.grow_to(Bytes(UNIT)).unwrap();
        region.on_backing_change(WithOutcome(registered, outcome));
        drop(region);
        assert_eq!(notes.after.len(), 1);
        assert_eq!((notes.after[0].1, notes.after[0].2), (GPU_VMM_BACKING_REMOVED, number), "{outcome:?}");
        assert_eq!(notes.released, 1);
    }
}
