//! The error of a driver without devices.

use crate::types::{Detail, Error, Operation, Vendor};

/// Creates the error of a driver that has no device, with the values of those variables that are set: they can hide devices.
#[must_use]
pub fn no_device(vendor: Vendor, mut reason: String, variables: &[&str]) -> Error {
    for name in variables {
        if let Some(value) = std::env::var_os(name) {
            reason.push_str(&format!("; {name} is {value:?}"));
        }
    }
    Error::new(Operation::Open, Detail::NoDevice { vendor, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_variables_are_named() {
        // Cargo sets the one for each test.
        let error =
            no_device(Vendor::Hip, "0 devices".to_owned(), &["CARGO_PKG_NAME", "NO_VARIABLE_OF_THIS_NAME"]);
        let text = format!("0 devices; CARGO_PKG_NAME is {:?}", env!("CARGO_PKG_NAME"));
        assert!(error.to_string().ends_with(&text), "{error}");
    }
}
