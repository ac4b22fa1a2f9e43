//! The description that travels with shared memory, with the properties that the driver does not report to the importer.
//!
//! It is untrusted data from another process. The functions here check it, against itself and against the backend that imports
//! the memory.

pub use gpu_vmm_core::MemoryKind;

use crate::PeerError;
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, DeviceUuid, Error, Granularity, Operation, PhysicalMemory, Properties,
    Result,
};
use serde::{Deserialize, Serialize};

/// The vendor of shared memory, and the version of gpu-vmm that describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// [`Vendor::name`](gpu_vmm_core::Vendor::name).
    pub vendor: String,
    /// The version of gpu-vmm.
    pub library: String,
}

impl Origin {
    /// Returns the origin of this backend's memory.
    pub fn of<B: Backend>(backend: &B) -> Self {
        Self { vendor: backend.vendor().name().to_owned(), library: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Fails if another vendor's driver exported the memory, or another version of gpu-vmm describes it.
    ///
    /// # Errors
    ///
    /// [`Detail::Mismatch`].
    pub fn check<B: Backend>(&self, operation: Operation, backend: &B) -> Result<()> {
        let ours = Self::of(backend);
        let differs = |what, theirs: &str, ours: String| {
            let (theirs, ours) = (printable(theirs), format!("here it is {ours}"));
            Err(Error::new(operation, Detail::Mismatch { what, theirs, ours }))
        };
        if self.vendor != ours.vendor {
            return differs("vendor", &self.vendor, ours.vendor);
        }
        if self.library != ours.library {
            return differs("version of gpu-vmm", &self.library, ours.library);
        }
        Ok(())
    }
}

/// The limit of another process's text in an error, in characters.
const MAX_WORDS: usize = 1000;

/// Returns a text from or for another process in a form that is safe to print: without control characters, and cut at
/// 1000 characters.
#[must_use]
pub fn printable(words: &str) -> String {
    words.chars().filter(|char| !char.is_control()).take(MAX_WORDS).collect()
}

/// One piece of physical memory, as the exporter describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedPiece {
    /// Its number in this exchange, which is used once.
    pub id: u32,
    /// Its size, in bytes.
    pub size: u64,
    /// Its granularity, in bytes: its size and its addresses are multiples of it.
    pub granularity: u64,
    /// The device that owns it.
    pub device: DeviceUuid,
    /// The properties that it was created with.
    pub kind: MemoryKind,
}

impl SharedPiece {
    /// Describes memory.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the device has no UUID by which another process can find it.
    pub fn of<B: Backend>(
        operation: Operation,
        backend: &B,
        id: u32,
        memory: &PhysicalMemory<B>,
    ) -> Result<Self> {
        let properties = memory.properties();
        let device = backend.device(operation, properties.device)?;
        let reason = || format!("the driver reports no UUID for {}", properties.device);
        let device =
            device.uuid.ok_or_else(|| Error::new(operation, Detail::Unsupported { reason: reason() }))?;
        Ok(Self {
            id,
            size: memory.size().0,
            granularity: memory.granularity().bytes().0,
            device,
            kind: properties.into(),
        })
    }

    /// Returns its size and its properties in this process, where the device may have another ordinal.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] for impossible numbers; [`Detail::Mismatch`] for a device that this process does not see, or
    /// a granularity that this process does not have for such memory.
    pub fn check<B: Backend>(&self, operation: Operation, backend: &B) -> Result<(Bytes, Properties)> {
        let granularity = self.unit(operation)?;
        let bad = |what| {
            Error::of_extension(
                operation,
                PeerError::BadMessage { why: format!("piece {}: {what}", self.id) },
            )
        };
        let device = self.device(operation, backend)?;
        let properties = self.kind.of_device(device).map_err(bad)?;
        let ours = backend.granularity_of(operation, &properties)?;
        if granularity != ours {
            let (theirs, ours) = (granularity.to_string(), format!("here it is {ours}"));
            return Err(Error::new(operation, Detail::Mismatch { what: "granularity", theirs, ours }));
        }
        Ok((Bytes(self.size), properties))
    }

    /// Checks several pieces. What consecutive ones have in common is checked once.
    pub(crate) fn check_all<B: Backend>(
        operation: Operation,
        backend: &B,
        pieces: &[Self],
    ) -> Result<Vec<(Bytes, Properties)>> {
        let mut last: Option<(&Self, Properties)> = None;
        let mut checked = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let properties = match last {
                Some((like, properties)) if piece.is_like(like) => properties,
                _ => piece.check(operation, backend)?.1,
            };
            piece.unit(operation)?;
            last = Some((piece, properties));
            checked.push((Bytes(piece.size), properties));
        }
        Ok(checked)
    }

    /// Returns its granularity, if its size is a multiple of it.
    pub(crate) fn unit(&self, operation: Operation) -> Result<Granularity> {
        Granularity::new(Bytes(self.granularity))
            .filter(|unit| self.size != 0 && unit.divides(Bytes(self.size)))
            .ok_or_else(|| {
                let (id, size, unit) = (self.id, self.size, self.granularity);
                let why = format!(
                    "piece {id}: the size {size:#x} must be a nonzero multiple of the granularity {unit:#x}, a power \
                     of two"
                );
                Error::of_extension(operation, PeerError::BadMessage { why })
            })
    }

    /// Returns true if everything except the number and the size is equal.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        *self == Self { id: self.id, size: self.size, ..*other }
    }

    /// Returns this process's ordinal of the device.
    fn device<B: Backend>(&self, operation: Operation, backend: &B) -> Result<DeviceId> {
        let found = backend.devices().iter().find(|device| device.uuid == Some(self.device));
        let missing = || {
            Error::new(
                operation,
                Detail::Mismatch {
                    what: "device",
                    theirs: self.device.to_string(),
                    ours: "this process does not see it".to_owned(),
                },
            )
        };
        found.map(|device| device.id).ok_or_else(missing)
    }
}

/// One mapping of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedMapping {
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// The number of the piece, which is mapped as a whole.
    pub piece: u32,
}
