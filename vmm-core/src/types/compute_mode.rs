//! The number of processes that may compute on a device.

use std::fmt;

/// Which processes may create contexts on a device, as its administrator has set it (`nvidia-smi --compute-mode`).
///
/// CUDA: `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`; HIP: `hipDeviceAttributeComputeMode`, which AMD's runtime always reports as the default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One process at a time. Another process gets an error when it first needs a context, as for a copy.
    ExclusiveProcess,
    /// No process.
    Prohibited,
}

impl ComputeMode {
    /// Reads the attribute's value. The drivers of both vendors use the same numbers; unknown ones return `None`.
    #[must_use]
    pub const fn from_attribute(value: i32) -> Option<Self> {
        match value {
            0 => Some(Self::Default),
            2 => Some(Self::Prohibited),
            3 => Some(Self::ExclusiveProcess),
            _ => None,
        }
    }

    /// Returns `default`, `exclusive process` or `prohibited`, the name that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::ExclusiveProcess => "exclusive process",
            Self::Prohibited => "prohibited",
        }
    }
}

impl fmt::Display for ComputeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_by_number() {
        let names = [0, 1, 2, 3, 4].map(|value| ComputeMode::from_attribute(value).map(ComputeMode::name));
        assert_eq!(names, [Some("default"), None, Some("prohibited"), Some("exclusive process"), None]);
    }
}
