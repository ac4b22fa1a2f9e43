//! Operations that fail or are refused, at every driver call, and observers that panic.

use crate::case::cases;
use crate::library::failures;
use crate::library::registrar::{Registrar, Reply};
use crate::library::tools::idle;
use crate::subject::Subject;
use gpu_vmm_core::{
    Backend, BackingChange, BackingObserver, BackingOutcome, Bytes, Detail, ErrorKind, OffsetRange,
    Operation, Region,
};
use gpu_vmm_testkit::TestKit;
use std::error::Error;
use std::sync::{Arc, Mutex};

cases! { "observers":
    /// Whichever driver call fails, alone or with all that follow, each announced change is reported once as changed, unchanged or
    /// poisoned, and no memory changes without a report.
    failing_operations,
    /// An observer that refuses or panics prevents every kind of change: all is as before, and the observers that were called learn
    /// that.
    refused_operations,
    /// If the second region's observer refuses a swap, the first region's observer learns that nothing has changed.
    half_refused_swaps,
    /// An observer that panics after a change does not undo it, the others are called, and the panic is in the drop log.
    panics_afterwards,
    /// An observer may change another region. That region's observers are called in between, and if one of them refuses or panics,
    /// the first region's change is refused with the same reason.
    nested,
}

fn failing_operations<B: TestKit>(subject: &Subject<B>) {
    failures::observed::failing(subject);
}

fn refused_operations<B: TestKit>(subject: &Subject<B>) {
    failures::observed::refused(subject);
}

fn half_refused_swaps<B: TestKit>(subject: &Subject<B>) {
    let mut regions = [(); 2].map(|()| {
        let mut region = subject.region(1).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        region
    });
    let registrars = [(); 2].map(|()| Registrar::default());
    for (region, registrar) in regions.iter_mut().zip(&registrars) {
        region.on_backing_change(registrar.clone());
    }
    registrars[1].reply(Reply::Refuse);
    let [one, other] = &mut regions;
    let before = [&*one, &*other].map(|region| region.mapping_at(Bytes(0)).unwrap().memory.id());
    let error = one.swap_all(other, idle()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let whole = OffsetRange { offset: Bytes(0), length: subject.unit() };
    assert!(matches!(error.detail(), Detail::Vetoed { range, .. } if *range == whole), "{error}");
    let changes = registrars[0].changes("swap");
    assert!(matches!(changes[..], [(_, BackingOutcome::Unchanged)]), "{changes:?}");
    assert_eq!(registrars[1].calls().len(), 1);
    let after = [&*one, &*other].map(|region| region.mapping_at(Bytes(0)).unwrap().memory.id());
    assert_eq!(before, after);
    // So that dropping is not counted.
    registrars[1].reply(Reply::Agree);
}

fn panics_afterwards<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    let registrars = [(); 2].map(|()| Registrar::default());
    for registrar in &registrars {
        region.on_backing_change(registrar.clone());
    }
    registrars[0].reply(Reply::PanicAfter);
    region.unmap(Bytes(0), subject.unit(), idle()).unwrap();
    for registrar in &registrars {
        let changes = registrar.changes("unmap");
        assert!(matches!(changes[..], [(_, BackingOutcome::Changed)]), "{changes:?}");
    }
    let logged = subject.backend.drop_log().take_last().expect("the panic is logged");
    assert!(matches!(logged.detail(), Detail::ObserverPanicked { .. }), "{logged}");
    assert_eq!(logged.operation(), Operation::Unmap);
    assert!(logged.to_string().contains(Registrar::REASON), "{logged}");
    registrars[0].reply(Reply::Agree);
}

/// Unmaps another region before the memory of its own region changes.
struct Follower<B: Backend>(Arc<Mutex<Region<B>>>);

impl<B: Backend> BackingObserver for Follower<B> {
    fn before(&self, _: &BackingChange<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut other = self.0.lock().expect("no panic holds it");
        let whole = other.end();
        other.unmap(Bytes(0), whole, idle())?;
        Ok(())
    }

    fn after(&self, _: &BackingChange<'_>, _: BackingOutcome) {}
}

fn nested<B: TestKit>(subject: &Subject<B>) {
    let unit = subject.unit();
    let [mut one, other] = [(); 2].map(|()| {
        let mut region = subject.region(1).build().unwrap();
        region.grow_to(unit).unwrap();
        region
    });
    let other = Arc::new(Mutex::new(other));
    let [ours, theirs] = [(); 2].map(|()| Registrar::default());
    one.on_backing_change(Follower(Arc::clone(&other)));
    one.on_backing_change(ours.clone());
    other.lock().unwrap().on_backing_change(theirs.clone());
    for reply in [Reply::Refuse, Reply::PanicBefore] {
        theirs.reply(reply);
        let error = one.unmap(Bytes(0), unit, idle()).unwrap_err();
        let Detail::Vetoed { reason, .. } = error.detail() else { panic!("{error}") };
        assert!(reason.contains(Registrar::REASON), "{error}");
        let calls = [theirs.calls(), ours.calls()].map(|calls| calls.len());
        assert_eq!(calls, [1, 0], "{reply:?}: the second observer is not called");
        assert!(other.lock().unwrap().mapping_at(Bytes(0)).is_some());
    }
    theirs.reply(Reply::Agree);
    one.unmap(Bytes(0), unit, idle()).unwrap();
    for (registrar, address) in [(theirs, other.lock().unwrap().address()), (ours, one.address())] {
        let changes = registrar.changes("unmap");
        assert!(
            matches!(&changes[..], [(change, BackingOutcome::Changed)] if change.address == address),
            "{changes:?}"
        );
    }
}
