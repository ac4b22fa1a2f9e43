//! What a case is run on.

use gpu_vmm::{
    Address, AnyBackend, Backend, Bytes, DeviceId, Physical, Placement, Properties, Region, RegionBuilder,
};

#[cfg(feature = "host")]
use gpu_vmm::host::{HostBackend, HostConfig};

/// A case: its name and what it does; it panics where a rule does not hold.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Subject),
}

/// Lists the functions of a module as cases named after both.
macro_rules! cases {
    ($module:literal: $($case:ident),* $(,)?) => {
        pub(crate) const CASES: &[crate::subject::Case] =
            &[$(crate::subject::Case { name: concat!($module, "::", stringify!($case)), run: $case }),*];
    };
}
pub(crate) use cases;

/// A backend under test.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) backend: AnyBackend,
    /// How a host of its own is made for each case.
    #[cfg(feature = "host")]
    host: HostConfig,
}

/// A case that cannot run here, thrown as a panic's payload.
pub(crate) struct Skip(pub(crate) String);

/// Ends a case as ignored.
pub(crate) fn skip(reason: impl Into<String>) -> ! {
    std::panic::resume_unwind(Box::new(Skip(reason.into())))
}

/// What is in a region that a case fills.
pub(crate) const RW: gpu_vmm::Access = gpu_vmm::Access::ReadWrite;

impl Subject {
    pub(crate) fn new(backend: AnyBackend) -> Self {
        Self {
            backend,
            #[cfg(feature = "host")]
            host: HostConfig::new(),
        }
    }

    /// The subject for one case. Each case has a simulated host of its own, with two devices; a GPU is what it is.
    pub(crate) fn fresh(&self) -> Self {
        #[cfg(feature = "host")]
        if matches!(self.backend, AnyBackend::Host(_)) {
            return Self { backend: host(self.host.clone()).into(), ..self.clone() };
        }
        self.clone()
    }

    /// Free memory of every device.
    pub(crate) fn free(&self) -> Vec<Bytes> {
        let devices = self.backend.devices().iter().filter(|device| device.unusable.is_none());
        devices.map(|device| self.backend.memory_info(device.id).unwrap().free).collect()
    }

    /// What cases count in: the unit of addresses, so that a region of so many units can be filled and extended.
    pub(crate) fn unit(&self) -> Bytes {
        self.backend.reservation_unit().bytes()
    }

    /// The least that can be created and mapped.
    pub(crate) fn granularity(&self) -> Bytes {
        self.backend.granularity().bytes()
    }

    /// `count` units.
    pub(crate) fn units(&self, count: u64) -> Bytes {
        Bytes(self.unit().0 * count)
    }

    pub(crate) fn region(&self, units: u64) -> RegionBuilder<'_, AnyBackend> {
        Region::builder(&self.backend).reserve(self.units(units))
    }

    pub(crate) fn memory(&self, units: u64) -> Physical<AnyBackend> {
        Physical::create(&self.backend, self.units(units), Properties::on(DeviceId(0))).unwrap()
    }

    /// Where `units` of addresses are free, at a place that every driver takes as a hint: CUDA moves hints into its own
    /// arena, low in the address space.
    pub(crate) fn hole(&self, units: u64) -> Address {
        let places = (0..64).map(|step| Address(0x1000_0000_0000 + (step << 40)));
        let free = |place: &Address| self.region(units).at(Placement::Exact(*place)).build().is_ok();
        places.into_iter().find(free).unwrap()
    }

    /// Two devices of which each can reach the other's memory, or the end of the case.
    pub(crate) fn two_devices(&self) -> (DeviceId, DeviceId) {
        let (a, b) = (DeviceId(0), DeviceId(1));
        if self.backend.devices().len() < 2 {
            skip(format!("the {} backend has one device", self.backend.vendor()));
        }
        if !self.backend.can_access(a, b).unwrap() || !self.backend.can_access(b, a).unwrap() {
            skip("the devices cannot reach each other's memory");
        }
        (a, b)
    }
}

/// A simulated host with two devices of 1 GiB each, in units small enough that cases are quick.
#[cfg(feature = "host")]
pub(crate) fn host(config: HostConfig) -> HostBackend {
    config.devices(2).memory(Bytes::gib(1)).granularity(Bytes::kib(64)).open().unwrap()
}

/// The backends to run on, by name, or why not.
pub(crate) fn subjects() -> Vec<(&'static str, Result<Subject, String>)> {
    let chosen = std::env::var("GPU_VMM_TEST_BACKENDS").ok();
    let chosen: Option<Vec<&str>> = chosen.as_deref().map(|names| names.split(',').collect());
    let mut subjects = Vec::new();
    for found in AnyBackend::probe() {
        let name = found.vendor.name();
        let wanted = chosen.as_ref().map(|names| names.contains(&name));
        if wanted == Some(false) {
            continue;
        }
        let usable = found.backend.map_err(|error| error.to_string()).and_then(|backend| {
            match backend.device("test", DeviceId(0)) {
                Ok(_) => Ok(Subject::new(backend)),
                Err(error) => Err(error.to_string()),
            }
        });
        if let (Some(true), Err(reason)) = (wanted, &usable) {
            eprintln!("GPU_VMM_TEST_BACKENDS names {name}, and it cannot be had: {reason}");
            std::process::exit(1);
        }
        #[cfg(feature = "host")]
        if let (true, Ok(host)) = (name == "host", &usable) {
            let singly = Subject { host: HostConfig::new().unmapping_singly(), ..host.clone() };
            subjects.push(("host, unmapping singly", Ok(singly)));
        }
        subjects.push((name, usable));
    }
    subjects
}
