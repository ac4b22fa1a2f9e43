//! Panics of cases and rules, and the outcomes they become.

use crate::outcome::{Outcome, Verdict};
use gpu_vmm_testkit::raw::Missing;
use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records the place of each panic from now on, and prints no panic.
pub(crate) fn note() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line()));
        PLACE.with(|last| *last.borrow_mut() = place);
    }));
}

/// Returns the place of this thread's last panic since [`note`].
fn last_place() -> Option<String> {
    PLACE.with(|last| last.borrow_mut().take())
}

/// Converts the panic that ended a case or a rule into an outcome.
pub(crate) fn ended_by(panic: Box<dyn Any + Send>) -> Outcome {
    let panic = match panic.downcast::<Missing>() {
        Ok(missing) => return Outcome::new(Verdict::Skipped, missing.0),
        Err(panic) => panic,
    };
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let said = said.unwrap_or_else(|| "it panicked".to_owned());
    Outcome::failed(match last_place() {
        Some(place) => format!("{said} ({place})"),
        None => said,
    })
}
