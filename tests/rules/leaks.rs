//! What cases leave behind below HIP, where the simulated HSA runtime counts it.
#![allow(unsafe_code)] // asks the simulation

#[cfg(all(unix, feature = "hip"))]
#[path = "../../backend-hip/tests/hip/counts.rs"]
mod counts;

#[cfg(all(unix, feature = "hip"))]
mod of_hip {
    use super::counts::Counts;
    use gpu_vmm::{AnyBackend, Backend};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// How many imports there were. HIP's cases run one after the other.
    static IMPORTS: AtomicUsize = AtomicUsize::new(0);

    pub(crate) fn counts_import() {
        IMPORTS.fetch_add(1, Ordering::Relaxed);
    }

    /// What is there before a case.
    pub(crate) struct Before {
        counts: Option<Counts>,
        imports: usize,
    }

    impl Before {
        pub(crate) fn now() -> Self {
            Self { counts: Counts::now(), imports: IMPORTS.load(Ordering::Relaxed) }
        }

        /// Fails where a case of HIP's has left anything.
        pub(crate) fn check(&self, backend: &AnyBackend) -> Result<(), String> {
            let AnyBackend::Hip(hip) = backend else { return Ok(()) };
            let imports = IMPORTS.load(Ordering::Relaxed) - self.imports;
            Counts::check(self.counts, imports, |id| hip.quirks().iter().any(|quirk| quirk.id == id))
        }

        /// At the end of all cases addresses go that HIP 6 makes the backend keep.
        pub(crate) fn check_addresses(&self, backend: &AnyBackend) -> Result<(), String> {
            let AnyBackend::Hip(hip) = backend else { return Ok(()) };
            hip.release_kept_addresses().map_err(|error| error.to_string())?;
            Counts::check_addresses(self.counts)
        }
    }
}

#[cfg(not(all(unix, feature = "hip")))]
mod of_hip {
    use gpu_vmm::AnyBackend;

    #[cfg(unix)]
    pub(crate) fn counts_import() {}

    pub(crate) struct Before;

    impl Before {
        pub(crate) fn now() -> Self {
            Self
        }

        pub(crate) fn check(&self, _: &AnyBackend) -> Result<(), String> {
            Ok(())
        }

        pub(crate) fn check_addresses(&self, _: &AnyBackend) -> Result<(), String> {
            Ok(())
        }
    }
}

pub(crate) use of_hip::*;
