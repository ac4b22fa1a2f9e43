//! Loads the runtime, once per process.
#![allow(unsafe_code)] // a static reference

use crate::device_state::DeviceState;
use crate::driver::Driver;
use crate::kept_addresses::KeptAddresses;
use crate::kernels::Compiled;
use crate::loader::Loaded;
use crate::quirks::Quirks;
use crate::{device, loader};
use gpu_vmm_core::extend::{Deferred, DriverProcess, DropLog, InstanceId, Process};
use gpu_vmm_core::{Detail, Error, Operation, Result, Vendor};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

static OPENED: OnceLock<Arc<Driver>> = OnceLock::new();
/// The lock that is held while the runtime is loaded and its devices are listed, and its process. Never freed.
static OPENING: AtomicPtr<(Process, Mutex<()>)> = AtomicPtr::new(null_mut());
/// The process that first loaded the runtime, usable or not. A forked child of it cannot use the runtime.
static LOADED_IN: OnceLock<Process> = OnceLock::new();
/// Why the runtime has no device in that process, if that was found out there.
static NO_DEVICE: OnceLock<String> = OnceLock::new();

/// Returns the error for a runtime without a device, if the runtime was opened and had none. A forked child has none either.
fn without_device() -> Option<Error> {
    let reason = NO_DEVICE.get().filter(|_| OPENED.get().is_none())?;
    Some(Error::new(Operation::Open, Detail::NoDevice { vendor: Vendor::Hip, reason: reason.clone() }))
}

/// Returns the lock of this process. A forked child makes its own: a thread of its parent may have held that one at the fork.
fn opening() -> &'static Mutex<()> {
    let current = Process::current();
    let mut own: *mut (Process, Mutex<()>) = null_mut();
    loop {
        let known = OPENING.load(Ordering::Acquire);
        // SAFETY: it is null or comes from a box that is never freed.
        match unsafe { known.as_ref() } {
            Some((process, lock)) if *process == current => return lock,
            _ if own.is_null() => own = Box::into_raw(Box::new((current, Mutex::new(())))),
            _ => {}
        }
        // If another thread was first, its lock is taken, and this one's is left over.
        let _ = OPENING.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Driver {
    /// Returns the process's driver. The first successful call loads it.
    pub(crate) fn open() -> Result<Arc<Self>> {
        const OPERATION: Operation = Operation::Open;
        if let Some(process) = LOADED_IN.get() {
            DriverProcess::new(*process)
                .check(OPERATION)
                .map_err(|error| without_device().unwrap_or(error))?;
        }
        if let Some(driver) = OPENED.get() {
            return Ok(Arc::clone(driver));
        }
        let _opening = opening().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = OPENED.get() {
            return Ok(Arc::clone(driver));
        }
        let loaded = loader::load()?;
        let process = *LOADED_IN.get_or_init(Process::current);
        let driver = Arc::new(Self::start(loaded, process).inspect_err(|error| {
            if let Detail::NoDevice { reason, .. } = error.detail() {
                NO_DEVICE.get_or_init(|| reason.clone());
            }
        })?);
        Ok(Arc::clone(OPENED.get_or_init(|| driver)))
    }

    fn start(loaded: Loaded, process: Process) -> Result<Self> {
        let Loaded { hip, name, folder, version } = loaded;
        let mut driver = Self {
            hip,
            quirks: Quirks::of(version),
            process: DriverProcess::new(process),
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
        driver.process.watch_exit();
        driver.states = driver.devices.iter().map(|_| DeviceState::default()).collect();
        Ok(driver)
    }
}
