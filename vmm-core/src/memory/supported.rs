//! The choice of a kind of memory: the first of several that a device supports, by trial.

use crate::driver::Backend;
use crate::memory::PhysicalMemory;
use crate::types::{Detail, Error, ErrorKind, HandleTypes, Operation, Properties, Result};
use std::fmt;

/// The first of several kinds of memory that a device supports. [`first_supported`] returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SupportedMemory {
    /// The properties of the supported memory, one of those in the list.
    pub properties: Properties,
    /// The kinds before it in the list, each with the reason why the device does not support it.
    pub refused: Vec<(Properties, String)>,
}

impl fmt::Display for SupportedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.properties)?;
        self.refused.iter().try_for_each(|(properties, reason)| write!(f, "; not {properties}: {reason}"))
    }
}

/// Returns the first of several kinds of memory that a device supports, and the reason for each kind before it. The result is for the
/// builder of a region or of a pool, or for [`PhysicalMemory::create`].
///
/// Each kind is tried: one granule of the memory is created, and exported by each of its handle types, because some drivers create
/// memory that they cannot export. A kind that requests compression is supported if the driver grants it.
///
/// ```
/// # use gpu_vmm_core::{Backend, DeviceId, HandleTypes, Properties, Region, Result, first_supported};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let plain = Properties::on(DeviceId(0));
/// let preferred = [plain.exported_as(HandleTypes::FABRIC), plain.shareable(), plain];
/// let memory = first_supported(backend, &preferred)?.properties;
/// let region = Region::builder(backend).memory(memory).build()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Detail::Unsupported`] with all reasons if the device supports none. An error that shows nothing about a kind, such as
/// [`Detail::NoSuchDevice`] or [`Detail::OutOfMemory`].
pub fn first_supported<B: Backend>(backend: &B, preferred: &[Properties]) -> Result<SupportedMemory> {
    let mut refused = Vec::new();
    for properties in preferred {
        match try_memory(backend, properties) {
            Ok(()) => return Ok(SupportedMemory { properties: *properties, refused }),
            Err(error) => refused.push((*properties, reason_of(error)?)),
        }
    }
    let reasons: Vec<_> =
        refused.iter().map(|(properties, reason)| format!("{properties}: {reason}")).collect();
    let reason = match reasons.is_empty() {
        true => "the list of kinds of memory is empty; name at least one".to_owned(),
        false => format!("the device has none of these kinds of memory: {}", reasons.join("; ")),
    };
    Err(Error::new(Operation::CreateMemory, Detail::Unsupported { reason }))
}

/// Creates one granule of memory, and exports it by each of its handle types.
///
/// # Errors
///
/// Those of [`PhysicalMemory::create`], and of its functions that export.
fn try_memory<B: Backend>(backend: &B, properties: &Properties) -> Result<()> {
    const OPERATION: Operation = Operation::CreateMemory;
    let device = backend.device(OPERATION, properties.device)?;
    // Regions and pools are plain allocations there.
    if device.no_virtual_memory.is_some() && *properties == Properties::on(properties.device) {
        return Ok(());
    }
    let granule = backend.granularity_of(OPERATION, properties)?.bytes();
    let memory = PhysicalMemory::create(backend, granule, *properties)?;
    if properties.compressible && !memory.properties().compressible {
        let reason = "the driver creates such memory without compression".to_owned();
        return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
    }
    if properties.remote_dma && !memory.properties().remote_dma {
        let reason = "the driver creates such memory without remote DMA".to_owned();
        return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
    }
    if properties.handle_types.contains(HandleTypes::NATIVE) {
        #[cfg(unix)]
        memory.export()?;
        #[cfg(windows)]
        memory.export_win32()?;
    }
    if properties.handle_types.contains(HandleTypes::FABRIC) {
        memory.export_fabric()?;
    }
    Ok(())
}

/// Returns why a trial has failed, or its error if that shows nothing about the kind of memory.
fn reason_of(error: Error) -> Result<String> {
    match (error.kind(), error.detail()) {
        (_, Detail::Unsupported { reason }) => Ok(reason.clone()),
        (ErrorKind::Unsupported | ErrorKind::Driver | ErrorKind::AccessDenied, _) => Ok(error.to_string()),
        _ => Err(error),
    }
}
