//! Opening the backends that are built in and work on this machine.

use crate::AnyBackend;
use gpu_vmm_core::{Backend, Detail, Error, ErrorKind, Operation, Result, Vendor};

/// The result of opening one vendor's backend.
#[derive(Debug)]
pub struct OpenResult {
    /// The vendor.
    pub vendor: Vendor,
    /// The backend, or the reason why it could not be opened.
    pub backend: Result<AnyBackend>,
}

impl AnyBackend {
    /// The vendors that are built in, in order of preference: GPUs before host memory.
    pub const BUILT_IN: &[Vendor] = &[
        #[cfg(feature = "cuda")]
        Vendor::Cuda,
        #[cfg(feature = "hip")]
        Vendor::Hip,
        #[cfg(feature = "host")]
        Vendor::Host,
    ];

    /// The name of the environment variable that chooses the backend of [`AnyBackend::open_best`]: `cuda`, `hip` or `host`.
    pub const VARIABLE: &str = "GPU_VMM_BACKEND";

    /// Opens the backend of a vendor, given as a [`Vendor`] or by its name.
    ///
    /// ```
    /// # #[cfg(feature = "host")] {
    /// use gpu_vmm::{AnyBackend, Backend, Vendor};
    ///
    /// assert_eq!(AnyBackend::open("host")?.vendor(), Vendor::Host);
    /// assert_eq!(AnyBackend::open(Vendor::Host)?.vendor(), Vendor::Host);
    /// # }
    /// # Ok::<(), gpu_vmm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Detail::LibraryNotFound`], [`Detail::LibraryRefused`], [`Detail::NoDevice`] with the reason; [`Detail::Unsupported`] for
    /// a vendor that is not built in, and for an unknown name.
    pub fn open(vendor: impl TryInto<Vendor, Error: Into<Error>>) -> Result<Self> {
        match vendor.try_into().map_err(Into::into)? {
            #[cfg(feature = "cuda")]
            Vendor::Cuda => gpu_vmm_cuda::CudaBackend::open().map(Self::Cuda),
            #[cfg(feature = "hip")]
            Vendor::Hip => gpu_vmm_hip::HipBackend::open().map(Self::Hip),
            #[cfg(feature = "host")]
            Vendor::Host => gpu_vmm_host::HostBackend::open().map(Self::Host),
            other => Err(Error::new(
                Operation::Open,
                Detail::Unsupported {
                    reason: format!("this program was built without the feature `{other}`"),
                },
            )),
        }
    }

    /// Opens every backend that is built in and returns the results in the order of [`AnyBackend::BUILT_IN`].
    #[must_use]
    pub fn probe() -> Vec<OpenResult> {
        Self::BUILT_IN
            .iter()
            .map(|vendor| OpenResult { vendor: *vendor, backend: Self::open(*vendor) })
            .collect()
    }

    /// Returns the vendor that the environment variable [`GPU_VMM_BACKEND`](Self::VARIABLE) names, if it is set.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for an unknown name.
    pub fn preferred() -> Result<Option<Vendor>> {
        let Some(name) = std::env::var_os(Self::VARIABLE).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let name = name.to_string_lossy();
        name.parse().map(Some).map_err(|_: Error| {
            let reason = format!("{} is {name:?}; set it to cuda, hip or host", Self::VARIABLE);
            Error::new(Operation::Open, Detail::Unsupported { reason })
        })
    }

    /// Opens the backend that the environment variable [`GPU_VMM_BACKEND`](Self::VARIABLE) names, or the best one with a usable
    /// device.
    ///
    /// Without the variable, it tries first the backend whose library the process has already loaded, such as HIP's in a process
    /// with PyTorch for ROCm, then any GPU's, then host memory.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] in a child of a process that has initialized a driver, and [`Detail::Exiting`] while such a process
    /// exits: host memory does not replace that GPU's. Those of [`AnyBackend::open`] for the backend that the variable names. If it is not set and no backend can be opened, the
    /// error of the last one. If backends can be opened and none has a usable device, the first of them is returned.
    pub fn open_best() -> Result<Self> {
        if let Some(vendor) = Self::preferred()? {
            return Self::open(vendor);
        }
        let reason =
            "this program was built without any backend; turn on the feature `cuda`, `hip` or `host`";
        let none = Error::new(Operation::Open, Detail::Unsupported { reason: reason.into() });
        let vendors = loaded_first(Self::BUILT_IN, is_loaded);
        let is_usable = |backend: &Self| backend.devices().iter().any(|device| device.unusable.is_none());
        let is_final = |error: &Error| matches!(error.kind(), ErrorKind::Forked | ErrorKind::Exiting);
        best(vendors.into_iter().map(Self::open), is_usable, is_final, none)
    }
}

/// Returns the vendors, first those whose libraries are loaded, otherwise in their order.
fn loaded_first(vendors: &[Vendor], is_loaded: impl Fn(Vendor) -> bool) -> Vec<Vendor> {
    let mut vendors = vendors.to_vec();
    vendors.sort_by_key(|vendor| !is_loaded(*vendor));
    vendors
}

/// Returns the first backend that is usable. Otherwise the first that could be opened: its devices say why they are unusable.
/// Otherwise the last error, or `none`. An error that is final comes before the backends that follow.
fn best<T, E>(
    opened: impl Iterator<Item = std::result::Result<T, E>>,
    is_usable: impl Fn(&T) -> bool,
    is_final: impl Fn(&E) -> bool,
    none: E,
) -> std::result::Result<T, E> {
    let (mut unusable, mut error) = (None, none);
    for one in opened {
        match one {
            Ok(backend) if is_usable(&backend) => return Ok(backend),
            Ok(backend) => _ = unusable.get_or_insert(backend),
            Err(why) if is_final(&why) => return Err(why),
            Err(why) => error = why,
        }
    }
    unusable.ok_or(error)
}

/// Reports whether the process has already loaded a vendor's library.
fn is_loaded(vendor: Vendor) -> bool {
    match vendor {
        #[cfg(feature = "cuda")]
        Vendor::Cuda => gpu_vmm_cuda::CudaBackend::is_loaded(),
        #[cfg(feature = "hip")]
        Vendor::Hip => gpu_vmm_hip::HipBackend::is_loaded(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_without_a_usable_device_is_better_than_none() {
        let best_of = |opened: &[std::result::Result<i32, i32>]| {
            best(opened.iter().copied(), |one| *one > 0, |error| *error > 9, 0)
        };
        assert_eq!(best_of(&[Err(1), Ok(-1), Ok(2), Ok(3)]), Ok(2));
        assert_eq!(best_of(&[Ok(-1), Ok(-2), Err(1)]), Ok(-1));
        assert_eq!(best_of(&[Err(1), Err(2)]), Err(2));
        assert_eq!(best_of(&[]), Err(0));
        assert_eq!(
            best_of(&[Err(1), Err(10), Ok(2)]),
            Err(10),
            "another backend replaces one that was forked"
        );
        assert_eq!(best_of(&[Ok(2), Err(10)]), Ok(2));
    }

    #[cfg(not(feature = "hip"))]
    #[test]
    fn a_backend_that_is_not_built_in_names_its_feature() {
        let error = AnyBackend::open(Vendor::Hip).map(drop).unwrap_err();
        let Detail::Unsupported { reason } = error.detail() else { panic!("{error}") };
        assert_eq!(reason, "this program was built without the feature `hip`");
        assert_eq!(error.operation(), Operation::Open);
    }

    #[test]
    fn a_vendor_whose_library_is_loaded_comes_first() {
        let (cuda, hip, host) = (Vendor::Cuda, Vendor::Hip, Vendor::Host);
        let of = |loaded: &[Vendor]| loaded_first(&[cuda, hip, host], |vendor| loaded.contains(&vendor));
        assert_eq!(of(&[]), [cuda, hip, host]);
        assert_eq!(of(&[hip]), [hip, cuda, host]);
        assert_eq!(of(&[hip, cuda]), [cuda, hip, host]);
    }

    #[test]
    fn probing_tells_of_every_vendor_what_became_of_it() {
        let found = AnyBackend::probe();
        let vendors: Vec<Vendor> = found.iter().map(|found| found.vendor).collect();
        assert_eq!(vendors, AnyBackend::BUILT_IN, "those that cannot be opened too");
        for OpenResult { vendor, backend } in found {
            match backend {
                Ok(backend) => assert_eq!(backend.vendor(), vendor),
                Err(error) => assert!(!error.to_string().is_empty(), "{vendor} without a reason"),
            }
        }
    }

    /// The variable is the process's, so each value is read in a process of its own.
    #[cfg(feature = "host")]
    #[test]
    fn the_variable_chooses_the_backend() -> std::result::Result<(), Box<dyn std::error::Error>> {
        const NAME: &str = "open::tests::the_variable_chooses_the_backend";
        const EXPECTED: &str = "GPU_VMM_TEST_EXPECTED";
        if let Ok(expected) = std::env::var(EXPECTED) {
            let named = AnyBackend::preferred().map(|vendor| vendor.map_or("none", Vendor::name));
            assert_eq!(named.unwrap_or("error"), expected);
            if ["host", "error"].contains(&&*expected) {
                let best = AnyBackend::open_best().map(|backend| backend.vendor().name());
                assert_eq!(best.unwrap_or("error"), expected);
            }
            return Ok(());
        }
        for (value, expected) in [("", "none"), ("host", "host"), ("hip", "hip"), ("vulkan", "error")] {
            let mut command = std::process::Command::new(std::env::current_exe()?);
            command.args(["--exact", NAME]).env(AnyBackend::VARIABLE, value).env(EXPECTED, expected);
            let output = command.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{value:?}: {text}");
        }
        Ok(())
    }
}
