//! Which backend and which device the work is done on.

use crate::Answer;
use crate::args::BackendChoice;
use crate::say;
use gpu_vmm::{AnyBackend, Backend, DeviceId, Vendor};
use gpu_vmm_testkit::short;

/// Opens the backend that is asked for; with `any` it is the best that has a usable device.
pub(crate) fn backend(choice: BackendChoice) -> Answer<AnyBackend> {
    let named = match choice.vendor() {
        None => AnyBackend::preferred()?,
        named => named,
    };
    match named {
        Some(vendor) => Ok(AnyBackend::open(vendor)?),
        None => best(|vendor| AnyBackend::open(vendor).map_err(|error| short(&error)).and_then(usable)),
    }
}

/// What can be had of the vendor to be preferred, each asked in turn. Where that is not a GPU's, standard error says why.
pub(crate) fn best<T>(mut have: impl FnMut(Vendor) -> Result<T, String>) -> Answer<T> {
    let mut missing = Vec::new();
    for vendor in AnyBackend::BUILT_IN {
        match have(*vendor) {
            Ok(found) => {
                if *vendor == Vendor::Host {
                    say(&format!("no GPU found{}; using host memory", reasons(&missing)));
                }
                return Ok(found);
            }
            Err(reason) => missing.push((*vendor, reason)),
        }
    }
    Err(format!("no backend can be used{}; `gpu-vmm info` tells more", reasons(&missing)).into())
}

/// The device of that ordinal; where none is named, the first that is usable, or the first at all for its reason.
pub(crate) fn device(backend: &AnyBackend, ordinal: Option<u32>) -> DeviceId {
    let first = || backend.devices().iter().find(|device| device.unusable.is_none());
    ordinal.map(DeviceId).or_else(|| first().map(|device| device.id)).unwrap_or_default()
}

/// The backend, if it has a device that can be used.
fn usable(backend: AnyBackend) -> Result<AnyBackend, String> {
    let reasons: Vec<&String> =
        backend.devices().iter().map_while(|device| device.unusable.as_ref()).collect();
    match reasons.first() {
        Some(reason) if reasons.len() == backend.devices().len() => {
            Err(format!("no usable device: {reason}"))
        }
        _ => Ok(backend),
    }
}

fn reasons(missing: &[(Vendor, String)]) -> String {
    if missing.is_empty() {
        return " (this program was built without a GPU's backend)".to_owned();
    }
    let each: Vec<String> = missing.iter().map(|(vendor, reason)| format!("{vendor}: {reason}")).collect();
    format!(" ({})", each.join("; "))
}
