//! Loads the runtime, once per process.

use crate::device_state::DeviceState;
use crate::driver::Driver;
use crate::kept_addresses::KeptAddresses;
use crate::kernels::Compiled;
use crate::loader::Loaded;
use crate::quirks::Quirks;
use crate::{device, loader};
use gpu_vmm_core::extend::{Deferred, DropLog, InstanceId, Process};
use gpu_vmm_core::{Operation, Result};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static OPENED: OnceLock<Arc<Driver>> = OnceLock::new();
/// Held while the runtime is loaded and its devices are listed.
static OPENING: Mutex<()> = Mutex::new(());
/// The process that first loaded the runtime, usable or not. A forked child of it cannot use the runtime.
static LOADED_IN: OnceLock<Process> = OnceLock::new();

impl Driver {
    /// Returns the process's driver. The first successful call loads it.
    pub(crate) fn open() -> Result<Arc<Self>> {
        const OPERATION: Operation = Operation::Open;
        if let Some(process) = LOADED_IN.get() {
            process.check(OPERATION)?;
        }
        if let Some(driver) = OPENED.get() {
            return Ok(Arc::clone(driver));
        }
        let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = OPENED.get() {
            return Ok(Arc::clone(driver));
        }
        let loaded = loader::load()?;
        let process = *LOADED_IN.get_or_init(Process::current);
        let driver = Arc::new(Self::start(loaded, process)?);
        Ok(Arc::clone(OPENED.get_or_init(|| driver)))
    }

    fn start(loaded: Loaded, process: Process) -> Result<Self> {
        let Loaded { hip, name, folder, version } = loaded;
        let mut driver = Self {
            hip,
            quirks: Quirks::of(version),
            process,
            instance: InstanceId::unique(),
            drop_log: DropLog::new(),
            deferred: Deferred::new(),
            kept: KeptAddresses::default(),
            memory_comes_back: OnceLock::new(),
            exports_are_kept: OnceLock::new(),
            compiled: Compiled::default(),
            version,
            library: name,
            folder,
            devices: Vec::new(),
            states: Vec::new(),
            calls: Mutex::new(()),
        };
        driver.devices = device::all(&driver)?;
        driver.states = driver.devices.iter().map(|_| DeviceState::default()).collect();
        Ok(driver)
    }
}
