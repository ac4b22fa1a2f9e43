//! Memory shared as plain data, without a socket: over MPI or any other network, or through a file.
#![allow(unsafe_code)]

use crate::ImportOptions;
use crate::PeerError;
use crate::exporter_state::ExporterState;
use crate::importer_state::{Claim, ImporterState};
use crate::manifest::{Origin, SharedMapping, SharedPiece};
#[cfg(target_os = "linux")]
use crate::pidfd::{self, Token};
use gpu_vmm_core::extend::span;
use gpu_vmm_core::{
    Backend, Bytes, Detail, Error, FabricHandle, Operation, PhysicalMemory, Properties, Region, Result,
};
use serde::{Deserialize, Serialize};
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, OwnedFd};

/// The first bytes of an encoded offer: a name, and the version of the encoding.
const HEADER: [u8; 8] = *b"gpu-vmm\x01";

/// The limit of an encoded offer in bytes. The largest region fits.
const MAX_BYTES: usize = 32 << 20;

/// The means by which another process imports the memory of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ImportMethod {
    /// By fabric handles, for processes on all machines of a fabric. The memory must have been created
    /// [for them](gpu_vmm_core::HandleTypes::FABRIC).
    Fabric,
    /// By the exporter's process and its descriptors, for processes on this machine that may take descriptors from it
    /// (`pidfd_getfd`: the same user, without restrictions of ptrace).
    #[cfg(target_os = "linux")]
    Process,
}

/// A region, or a piece of memory, as plain data.
///
/// It serialises with serde, and has an encoding of its own as [bytes](Offer::to_bytes). It is valid as long as its [`Offered`]
/// exists.
///
/// Treat an offer by fabric handles as a secret: every process that has it can map the memory. An offer by process names a
/// descriptor of any process, and importing it takes that descriptor with the rights of the importer: import offers only from
/// senders that you trust with these rights.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    origin: Origin,
    base: u64,
    end: u64,
    pieces: Vec<SharedPiece>,
    mappings: Vec<SharedMapping>,
    handles: Handles,
}

/// One handle for each piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Handles {
    Fabric(Vec<FabricHandle>),
    #[cfg(target_os = "linux")]
    Process(Vec<Token>),
}

/// The memory of an offer, and the descriptors that it names. Keep it until all importers have imported the offer. Any thread may have
/// it, and several may read the offer.
#[derive(Debug)]
pub struct Offered<B: Backend> {
    offer: Offer,
    _memory: Vec<PhysicalMemory<B>>,
    #[cfg(target_os = "linux")]
    _descriptors: Vec<OwnedFd>,
}

impl<B: Backend> Offered<B> {
    /// Offers a region as it is now. Later changes of its mappings are not part of the offer.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for memory that was not created for it, or if a device has no UUID; [`Detail::Poisoned`]; errors
    /// of the driver or the system.
    pub fn new(region: &Region<B>, by: ImportMethod) -> Result<Self> {
        let operation = Operation::Offer;
        span!(Offer, address = %region.address(), bytes = region.mapped().0);
        let changes = ExporterState::new().changes(operation, region)?;
        let memory = changes.memory.iter().copied().cloned().collect();
        Self::of_claim(operation, region.backend(), changes.claim, memory, by)
    }

    /// Offers one piece of memory.
    ///
    /// # Errors
    ///
    /// Those of [`Offered::new`], and [`Detail::ForeignHandle`].
    pub fn of_memory(backend: &B, memory: &PhysicalMemory<B>, by: ImportMethod) -> Result<Self> {
        let operation = Operation::OfferMemory;
        memory.check_belongs_to(operation, backend)?;
        span!(OfferMemory, bytes = memory.size().0);
        let piece = SharedPiece::of(operation, backend, 0, memory)?;
        let claim = Claim {
            end: piece.size,
            pieces: vec![piece],
            mappings: vec![SharedMapping { offset: 0, piece: 0 }],
            ..Claim::default()
        };
        Self::of_claim(operation, backend, claim, vec![memory.clone()], by)
    }

    fn of_claim(
        operation: Operation,
        backend: &B,
        claim: Claim,
        memory: Vec<PhysicalMemory<B>>,
        by: ImportMethod,
    ) -> Result<Self> {
        let Claim { base, end, pieces, mappings, .. } = claim;
        #[cfg(target_os = "linux")]
        let mut descriptors = Vec::new();
        let handles = match by {
            ImportMethod::Fabric => {
                Handles::Fabric(memory.iter().map(PhysicalMemory::export_fabric).collect::<Result<_>>()?)
            }
            #[cfg(target_os = "linux")]
            ImportMethod::Process => {
                descriptors = memory.iter().map(PhysicalMemory::export).collect::<Result<Vec<OwnedFd>>>()?;
                let tokens = descriptors.iter().map(|fd| pidfd::of_this(operation, fd.as_fd()));
                Handles::Process(tokens.collect::<Result<_>>()?)
            }
        };
        #[cfg(not(target_os = "linux"))]
        let _ = operation;
        Ok(Self {
            offer: Offer { origin: Origin::of(backend), base, end, pieces, mappings, handles },
            _memory: memory,
            #[cfg(target_os = "linux")]
            _descriptors: descriptors,
        })
    }

    /// Returns the offer, to be sent to other processes.
    #[must_use]
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }
}

impl Offer {
    /// Encodes the offer. Another process with the same version of gpu-vmm decodes it with [`Offer::from_bytes`].
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] if the serialiser fails, which it does not for this data.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, HEADER.to_vec())
            .map_err(|error| Error::new(Operation::Offer, Detail::Unsupported { reason: error.to_string() }))
    }

    /// Decodes an offer.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] for bytes that are not exactly one encoded offer, and for an offer that contradicts itself.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let operation = Operation::ReadOffer;
        let bad = |why: String| Error::of_extension(operation, PeerError::BadMessage { why });
        if bytes.len() > MAX_BYTES {
            return Err(bad(format!("an offer of {} bytes, and the limit is {MAX_BYTES}", bytes.len())));
        }
        let body = bytes.strip_prefix(&HEADER).ok_or_else(|| {
            let found = &bytes[..bytes.len().min(HEADER.len())];
            bad(format!("an offer begins with {HEADER:02x?}, and these bytes begin with {found:02x?}"))
        })?;
        let (offer, rest): (Self, _) =
            postcard::take_from_bytes(body).map_err(|error| bad(error.to_string()))?;
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes follow the offer", rest.len())));
        }
        offer.claim(operation)?;
        Ok(offer)
    }

    /// Returns the size of all pieces together, each counted once.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        self.pieces.iter().map(|piece| Bytes(piece.size)).sum()
    }

    /// Imports the region, as one transaction. An offer of one piece of memory becomes a region of that piece. CUDA:
    /// `cuMemImportFromShareableHandle`; HIP: `hipMemImportFromShareableHandle`.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] for an offer that contradicts itself; [`Detail::Mismatch`] for memory of another vendor, of a
    /// device that this process does not see, or of another granularity; [`PeerError::Gone`] if the process that offered it has
    /// ended; [`Detail::AddressTaken`]; errors of the driver or the system. Then nothing is mapped or held.
    pub fn import<B: Backend>(&self, backend: &B, import: &ImportOptions) -> Result<Region<B>> {
        let operation = Operation::ImportOffer;
        let claim = self.claim(operation)?;
        span!(ImportOffer, bytes = self.memory().0);
        let memory = self.memories(operation, backend)?;
        let mut state = ImporterState::default();
        state.record(&claim, memory);
        let wanted: Vec<_> =
            state.mappings().map(|(offset, _, memory)| import.wanted(offset, memory.clone())).collect();
        import.region(operation, backend, state.base(), &wanted)
    }

    /// Imports the memory of an offer of one piece.
    ///
    /// # Errors
    ///
    /// Those of [`Offer::import`], and [`PeerError::BadMessage`] for an offer of several pieces or of none.
    pub fn import_memory<B: Backend>(&self, backend: &B) -> Result<PhysicalMemory<B>> {
        let operation = Operation::ImportOffer;
        self.claim(operation)?;
        let count = self.pieces.len();
        let several = || {
            Error::of_extension(
                operation,
                PeerError::BadMessage {
                    why: format!("the offer has {count} pieces, and exactly one was expected"),
                },
            )
        };
        if count != 1 {
            return Err(several());
        }
        span!(ImportOffer, bytes = self.memory().0);
        self.memories(operation, backend)?.pop().ok_or_else(several)
    }

    /// Checks the offer and returns it as a claim.
    fn claim(&self, operation: Operation) -> Result<Claim> {
        let handles = match &self.handles {
            Handles::Fabric(handles) => handles.len(),
            #[cfg(target_os = "linux")]
            Handles::Process(tokens) => tokens.len(),
        };
        if handles != self.pieces.len() {
            let why = format!("{handles} handles for {} pieces", self.pieces.len());
            return Err(Error::of_extension(operation, PeerError::BadMessage { why }));
        }
        let claim = Claim {
            base: self.base,
            end: self.end,
            removed: Vec::new(),
            pieces: self.pieces.clone(),
            mappings: self.mappings.clone(),
        };
        ImporterState::<()>::default().check(operation, &claim)?;
        Ok(claim)
    }

    /// Imports the memory of all pieces.
    fn memories<B: Backend>(&self, operation: Operation, backend: &B) -> Result<Vec<PhysicalMemory<B>>> {
        self.origin.check(operation, backend)?;
        let checked = SharedPiece::check_all(operation, backend, &self.pieces)?;
        match &self.handles {
            Handles::Fabric(handles) => {
                let import = |(handle, (size, properties)): (&FabricHandle, (Bytes, Properties))| {
                    // SAFETY: as for a descriptor, except that the handle comes over a network that the caller trusts. CUDA
                    // refuses bytes that are no handle of its fabric, and `cuMemMap` refuses any size but the memory's.
                    unsafe { PhysicalMemory::import_fabric(backend, handle, size, properties) }
                };
                handles.iter().zip(checked).map(import).collect()
            }
            #[cfg(target_os = "linux")]
            Handles::Process(tokens) => {
                // All descriptors are fetched before the first import: if the process ends meanwhile, no driver call was made.
                let descriptors = tokens.iter().map(|token| pidfd::fetch(operation, token));
                let descriptors: Vec<OwnedFd> = descriptors.collect::<Result<_>>()?;
                let import = |(descriptor, (size, properties)): (&OwnedFd, (Bytes, Properties))| {
                    super::memory::import(backend, descriptor.as_fd(), size, properties)
                };
                descriptors.iter().zip(checked).map(import).collect()
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use gpu_vmm_core::{DeviceId, DeviceUuid};

    /// An offer of pieces of one unit each, which are mapped one behind the other.
    fn offer(count: u32, handles: usize) -> Offer {
        const UNIT: u64 = 4096;
        let piece = |id| SharedPiece {
            id,
            size: UNIT,
            granularity: UNIT,
            device: DeviceUuid([7; 16]),
            kind: Properties::on(DeviceId(0)).into(),
        };
        Offer {
            origin: Origin { vendor: "host".to_owned(), library: "1".to_owned() },
            base: 0,
            end: u64::from(count) * UNIT,
            pieces: (0..count).map(piece).collect(),
            mappings: (0..count)
                .map(|piece| SharedMapping { offset: u64::from(piece) * UNIT, piece })
                .collect(),
            handles: Handles::Fabric(vec![FabricHandle([0; 64]); handles]),
        }
    }

    #[test]
    fn offer_has_one_handle_per_piece() {
        let read = |count, handles| Offer::from_bytes(&offer(count, handles).to_bytes().unwrap());
        assert_eq!(read(2, 2).unwrap(), offer(2, 2));
        for handles in [1, 3] {
            let error = read(2, handles).unwrap_err();
            assert_eq!(error.operation(), Operation::ReadOffer);
            assert!(error.to_string().ends_with(&format!("{handles} handles for 2 pieces")), "{error}");
        }
    }

    #[test]
    fn the_longest_offer_is_read() {
        let error = |length| Offer::from_bytes(&vec![0; length]).unwrap_err().to_string();
        assert!(error(MAX_BYTES).contains("an offer begins with [67, 70, 75"), "{}", error(MAX_BYTES));
        let longer = error(MAX_BYTES + 1);
        assert!(longer.contains("an offer of 33554433 bytes, and the limit is 33554432"), "{longer}");
    }
}
