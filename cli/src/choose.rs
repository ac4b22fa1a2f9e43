//! The choice of the backend and the device.

use crate::CliResult;
use crate::args::BackendChoice;
use crate::say;
use gpu_vmm::{AnyBackend, Backend, DeviceId, Vendor};
use gpu_vmm_testkit::short;

/// Opens the chosen backend; for `any` the best one with a usable device.
pub(crate) fn backend(choice: BackendChoice) -> CliResult<AnyBackend> {
    let named = match choice.vendor() {
        None => AnyBackend::preferred()?,
        named => named,
    };
    match named {
        Some(vendor) => Ok(AnyBackend::open(vendor)?),
        None => best(|vendor| AnyBackend::open(vendor).map_err(|error| short(&error)).and_then(usable)),
    }
}

/// Tries the vendors in order of preference and returns the first result. If that is the host's, standard error says
/// why.
pub(crate) fn best<T>(mut have: impl FnMut(Vendor) -> Result<T, String>) -> CliResult<T> {
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
    Err(format!("no backend can be used{}; see `gpu-vmm info`", reasons(&missing)).into())
}

/// Returns the device of an ordinal. Without one, the first usable device; if there is none, device 0, whose error says
/// why.
pub(crate) fn device(backend: &AnyBackend, ordinal: Option<u32>) -> DeviceId {
    let first = || backend.devices().iter().find(|device| device.unusable.is_none());
    ordinal.map(DeviceId).or_else(|| first().map(|device| device.id)).unwrap_or_default()
}

/// Returns the backend if it has a usable device.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn first_usable_vendor_is_taken() {
        let mut tried = Vec::new();
        let answer = best(|vendor| -> Result<(), String> {
            tried.push(vendor);
            Err(format!("no {vendor} here"))
        });
        assert_eq!(tried, AnyBackend::BUILT_IN);
        let missing: Vec<_> = tried.iter().map(|vendor| (*vendor, format!("no {vendor} here"))).collect();
        let expected = format!("no backend can be used{}; see `gpu-vmm info`", reasons(&missing));
        assert_eq!(answer.unwrap_err().to_string(), expected);
        for (place, last) in AnyBackend::BUILT_IN.iter().enumerate() {
            let mut tried = 0;
            let found = best(|vendor| {
                tried += 1;
                if vendor == *last { Ok(vendor) } else { Err(String::new()) }
            });
            assert_eq!((found.unwrap(), tried), (*last, place + 1));
        }
        let two = [(Vendor::Cuda, "old".to_owned()), (Vendor::Host, "full".to_owned())];
        assert_eq!(reasons(&two), " (cuda: old; host: full)");
        assert_eq!(reasons(&[]), " (this program was built without a GPU's backend)");
    }

    #[cfg(feature = "host")]
    #[test]
    fn named_device_is_taken_or_first() {
        let backend: AnyBackend = gpu_vmm::host::HostConfig::new().devices(3).open().unwrap().into();
        let devices = [None, Some(0), Some(2), Some(9)].map(|ordinal| device(&backend, ordinal));
        assert_eq!(devices, [0, 0, 2, 9].map(DeviceId), "one that does not exist is refused later");
        assert!(usable(backend).is_ok());
    }
}
