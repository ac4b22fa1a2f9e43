//! What travels beside memory: all that no driver tells the one who imports.
//!
//! Plain data from another process, and so not to be trusted: what is made of it here has been checked, against itself
//! and against the backend that is to take the memory in.

pub use gpu_vmm_core::MemoryKind;

use crate::PeerError;
use gpu_vmm_core::{
    Backend, Bytes, Detail, DeviceId, DeviceUuid, Error, Granularity, Operation, PhysicalMemory, Properties,
    Result,
};
use serde::{Deserialize, Serialize};

/// Whose driver and which library is behind shared memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// [`Vendor::name`](gpu_vmm_core::Vendor::name).
    pub vendor: String,
    /// The version of gpu-vmm.
    pub library: String,
}

impl Origin {
    /// What is said of memory of this backend.
    pub fn of<B: Backend>(backend: &B) -> Self {
        Self { vendor: backend.vendor().name().to_owned(), library: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Refuses what another vendor's driver exported, and what another version of gpu-vmm describes.
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

/// The most characters of another process's words that go into an error.
const MAX_WORDS: usize = 1000;

/// Words that another process says or is told, as they can be shown: without what a terminal would obey, and not too long.
pub(crate) fn printable(words: &str) -> String {
    words.chars().filter(|char| !char.is_control()).take(MAX_WORDS).collect()
}

/// One piece of physical memory, as the exporter describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedPiece {
    /// By what it is called in this exchange; never used twice.
    pub id: u32,
    /// How many bytes.
    pub size: u64,
    /// What its size and its addresses are a multiple of, in bytes.
    pub granularity: u64,
    /// Whose memory.
    pub device: DeviceUuid,
    /// What it was made as.
    pub kind: MemoryKind,
}

impl SharedPiece {
    /// The description of memory.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the device has no UUID by which another process could find it.
    pub fn of<B: Backend>(
        operation: Operation,
        backend: &B,
        id: u32,
        memory: &PhysicalMemory<B>,
    ) -> Result<Self> {
        let properties = memory.properties();
        let device = backend.device(operation, properties.device)?;
        let reason = || format!("the driver gives no UUID for {}", properties.device);
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

    /// Its size and properties here, where the same device may have another ordinal.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] for numbers that no memory has, [`Detail::Mismatch`] for a device that this process does
    /// not see, or a granularity that is not the one here.
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

    /// The same for each of several; what several have in common is checked once.
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

    /// What its places are a multiple of, if its size is one as well.
    pub(crate) fn unit(&self, operation: Operation) -> Result<Granularity> {
        Granularity::new(Bytes(self.granularity))
            .filter(|unit| self.size != 0 && unit.divides(Bytes(self.size)))
            .ok_or_else(|| {
                let (id, size, unit) = (self.id, self.size, self.granularity);
                let why = format!("piece {id}: {size:#x} bytes of memory in units of {unit:#x}");
                Error::of_extension(operation, PeerError::BadMessage { why })
            })
    }

    /// True where all but its number and its size is what the other one has.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        *self == Self { id: self.id, size: self.size, ..*other }
    }

    /// The device of this UUID in this process.
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
    /// Where in the region, in bytes.
    pub offset: u64,
    /// Which piece, whole.
    pub piece: u32,
}
