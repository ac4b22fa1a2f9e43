//! Optional calls that a backend refuses. A case that fails because of such a refusal is skipped, with the backend's reason.
#![allow(unsafe_code)] // frees a plain allocation

use crate::outcome::{Outcome, Verdict};
use crate::target::Target;
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, Feature, PhysicalMemory, Properties, Result};
use gpu_vmm_testkit::TestKit;

/// Returns the outcome of a case, as skipped if the case failed because of a call that the backend always refuses.
///
/// The backend is asked only after a failure, and never if its target [is complete](Target::is_complete).
pub(crate) fn or_skipped<B: TestKit>(
    outcome: Outcome,
    target: &dyn Target<B>,
    backend: &B,
    device: DeviceId,
) -> Outcome {
    if outcome.verdict != Verdict::Failed || target.is_complete() {
        return outcome;
    }
    let found = refusals(backend, device).into_iter().find(|refusal| outcome.note.contains(&refusal.text));
    found.map_or(outcome, |refusal| Outcome::new(Verdict::Skipped, refusal.reason))
}

struct Refusal {
    /// The part of a failure's text that shows the refusal.
    text: String,
    reason: String,
}

/// Makes each optional call once, correctly, and returns the refusals.
fn refusals<B: TestKit>(backend: &B, device: DeviceId) -> Vec<Refusal> {
    let size = backend.granularity().bytes();
    let answers = [
        plain(backend, device, size),
        backend.pin(size).map(drop),
        backend.copy_stream(device).map(drop),
        backend.event(device).map(drop),
        backend.own_stream(device).map(drop),
        PhysicalMemory::create(backend, size, Properties::on(device).shareable()).map(drop),
    ];
    let reasons = answers.into_iter().filter_map(|answer| match answer.map_err(Error::into_detail) {
        Err(Detail::Unsupported { reason }) => Some(reason),
        _ => None,
    });
    let mut all: Vec<_> =
        reasons.map(|reason| Refusal { text: format!("not supported: {reason}"), reason }).collect();
    let capabilities = backend.capabilities(device).unwrap_or_default();
    let fixed = capabilities.into_iter().find(|one| one.feature == Feature::FixedAddress && !one.available);
    if let Some(missing) = fixed {
        // A hint that was not followed.
        all.push(Refusal { text: "the driver returned".to_owned(), reason: missing.note });
    }
    if backend.devices().iter().any(|one| one.id == device && one.uuid.is_none()) {
        let text = "reports no UUID".to_owned();
        all.push(Refusal { text, reason: format!("{device} has no UUID, by which sharing names it") });
    }
    all
}

fn plain<B: TestKit>(backend: &B, device: DeviceId, size: Bytes) -> Result<()> {
    let at = backend.allocate_plain(device, size)?;
    // SAFETY: it was just allocated with this size, and nothing uses it.
    unsafe { backend.free_plain(device, at, size) }
}
