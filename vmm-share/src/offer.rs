//! Memory as data: what is shared without a socket, over MPI or any other network, or through a file.
#![allow(unsafe_code)]

use crate::ImportOptions;
use crate::PeerError;
use crate::exporter_state::ExporterState;
use crate::importer_state::{Claim, ImporterState};
use crate::manifest::{Origin, SharedMapping, SharedPiece};
#[cfg(target_os = "linux")]
use crate::pidfd::{self, Token};
use gpu_vmm_core::{
    Backend, Bytes, Detail, Error, FabricHandle, Operation, PhysicalMemory, Properties, Region, Result,
};
use serde::{Deserialize, Serialize};
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, OwnedFd};

/// What the bytes of an offer begin with: a name, and a number that is another one for each form of what follows.
const HEADER: [u8; 8] = *b"gpu-vmm\x01";

/// The most bytes of an offer: there is room for the most pieces and mappings that a region can have.
const MAX_BYTES: usize = 32 << 20;

/// How another process gets at the memory of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum By {
    /// Fabric handles, for processes on all machines of a fabric. The memory must have been created
    /// [for them](gpu_vmm_core::HandleTypes::FABRIC).
    Fabric,
    /// The exporter's process and its descriptors there, for processes on this machine that may reach into it
    /// (`pidfd_getfd`: the same user, and no restriction of ptrace in between).
    #[cfg(target_os = "linux")]
    Process,
}

/// A region, or a piece of memory, as plain data.
///
/// It serialises with serde, and has a form of its own as [bytes](Offer::to_bytes). Whoever has an offer by fabric handles
/// has the memory, so it is to be treated as a secret. One by process names a descriptor of any process, and importing it
/// reaches into that one with the rights of the importer: it is to be taken from somebody who is trusted with them. An offer
/// is good for as long as its [`Offered`] is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    origin: Origin,
    base: u64,
    end: u64,
    pieces: Vec<SharedPiece>,
    mappings: Vec<SharedMapping>,
    handles: Handles,
}

/// One for each piece.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Handles {
    Fabric(Vec<FabricHandle>),
    #[cfg(target_os = "linux")]
    Process(Vec<Token>),
}

/// What makes an offer good: the memory, and the descriptors that it names. It has to be there until everybody has imported
/// it who is to.
#[derive(Debug)]
pub struct Offered<B: Backend> {
    offer: Offer,
    _memory: Vec<PhysicalMemory<B>>,
    #[cfg(target_os = "linux")]
    _descriptors: Vec<OwnedFd>,
}

impl<B: Backend> Offered<B> {
    /// Offers a region as it is now. What is mapped in it later is not part of it.
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] for memory that was not created for it, or where a device has no UUID, [`Detail::Poisoned`], or
    /// what the driver or the system answers.
    pub fn new(region: &Region<B>, by: By) -> Result<Self> {
        let operation = Operation::Offer;
        let news = ExporterState::new().news(operation, region)?;
        let memory = news.memory.iter().copied().cloned().collect();
        Self::of_claim(operation, region.backend(), news.claim, memory, by)
    }

    /// Offers one piece of memory.
    ///
    /// # Errors
    ///
    /// Those of [`Offered::new`], and [`Detail::ForeignHandle`].
    pub fn of_memory(backend: &B, memory: &PhysicalMemory<B>, by: By) -> Result<Self> {
        let operation = Operation::OfferMemory;
        memory.check_belongs_to(operation, backend)?;
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
        by: By,
    ) -> Result<Self> {
        let Claim { base, end, pieces, mappings, .. } = claim;
        #[cfg(target_os = "linux")]
        let mut descriptors = Vec::new();
        let handles = match by {
            By::Fabric => {
                Handles::Fabric(memory.iter().map(PhysicalMemory::export_fabric).collect::<Result<_>>()?)
            }
            #[cfg(target_os = "linux")]
            By::Process => {
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

    /// The offer, to be given to others.
    #[must_use]
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }
}

impl Offer {
    /// The offer as bytes, which another process of the same version of gpu-vmm reads with [`Offer::from_bytes`].
    ///
    /// # Errors
    ///
    /// [`Detail::Unsupported`] where the serialiser refuses, which for this data it does not.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, HEADER.to_vec())
            .map_err(|error| Error::new(Operation::Offer, Detail::Unsupported { reason: error.to_string() }))
    }

    /// Reads an offer.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] for bytes that are not an offer of this form, all of it and nothing else, and for one that
    /// contradicts itself.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let operation = Operation::ReadOffer;
        let bad = |why: String| Error::of_extension(operation, PeerError::BadMessage { why });
        if bytes.len() > MAX_BYTES {
            return Err(bad(format!("an offer of {} bytes; {MAX_BYTES} are the most", bytes.len())));
        }
        let body = bytes.strip_prefix(&HEADER).ok_or_else(|| {
            let found = &bytes[..bytes.len().min(HEADER.len())];
            bad(format!("an offer begins with {HEADER:02x?}, and this with {found:02x?}"))
        })?;
        let (offer, rest): (Self, _) =
            postcard::take_from_bytes(body).map_err(|error| bad(error.to_string()))?;
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes are behind the offer", rest.len())));
        }
        offer.claim(operation)?;
        Ok(offer)
    }

    /// How much memory it is: all pieces together, each once.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        self.pieces.iter().map(|piece| Bytes(piece.size)).sum()
    }

    /// Takes the region in, as one transaction. CUDA: `cuMemImportFromShareableHandle`, HIP:
    /// `hipMemImportFromShareableHandle`. A piece of memory that was offered alone becomes a region of it.
    ///
    /// # Errors
    ///
    /// [`PeerError::BadMessage`] for an offer that contradicts itself; [`Detail::Mismatch`] where it is another vendor's memory,
    /// of a device that is not here, or in units that are not those here; [`PeerError::Gone`] where the process that
    /// offered it has ended; [`Detail::AddressTaken`]; what the driver or the system answers. Nothing is left behind.
    pub fn import<B: Backend>(&self, backend: &B, import: &ImportOptions) -> Result<Region<B>> {
        let operation = Operation::ImportOffer;
        let claim = self.claim(operation)?;
        let memory = self.memories(operation, backend)?;
        let mut book = ImporterState::default();
        book.take(&claim, memory);
        let wanted: Vec<_> =
            book.mappings().map(|(offset, _, memory)| import.wanted(offset, memory.clone())).collect();
        import.region(operation, backend, book.base(), &wanted)
    }

    /// Takes the memory of an offer of one piece in.
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
                PeerError::BadMessage { why: format!("{count} pieces, and not one") },
            )
        };
        if count != 1 {
            return Err(several());
        }
        self.memories(operation, backend)?.pop().ok_or_else(several)
    }

    /// What the offer says, if it does not contradict itself.
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

    /// The memory of all pieces.
    fn memories<B: Backend>(&self, operation: Operation, backend: &B) -> Result<Vec<PhysicalMemory<B>>> {
        self.origin.check(operation, backend)?;
        let checked = SharedPiece::check_all(operation, backend, &self.pieces)?;
        match &self.handles {
            Handles::Fabric(handles) => {
                let import = |(handle, (size, properties)): (&FabricHandle, (Bytes, Properties))| {
                    // SAFETY: as for a descriptor, but that it comes through whatever network the caller trusts. CUDA
                    // refuses bytes that are no handle of its fabric, and `cuMemMap` another size than the memory's.
                    unsafe { PhysicalMemory::import_fabric(backend, handle, size, properties) }
                };
                handles.iter().zip(checked).map(import).collect()
            }
            #[cfg(target_os = "linux")]
            Handles::Process(tokens) => {
                // All first: a process that ends on the way is seen before the driver has any of it.
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
