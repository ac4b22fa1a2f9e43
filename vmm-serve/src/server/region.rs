//! The regions of a server.

use super::books::{Counted, Handle};
use super::peer::Peer;
use crate::protocol::LeaseKind;
use crate::{Mode, ServeError};
use gpu_vmm_core::{Backend, Bytes, Properties};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// A region.
#[derive(Debug)]
pub(super) struct Region<B: Backend> {
    /// Tells it from an earlier region of the same name.
    pub(super) id: u64,
    pub(super) owner: u32,
    pub(super) group: u32,
    pub(super) mode: Mode,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) properties: Properties,
    /// The number of commits. A region of epoch 0 is being created, and seen by its owner alone.
    pub(super) epoch: u64,
    /// The memory of the epoch, in order.
    pub(super) handles: Vec<Arc<Handle<B>>>,
    pub(super) layout: Option<Arc<Layout>>,
    /// The connection with the write lease.
    pub(super) writer: Option<u64>,
}

/// A layout that a client has sent.
#[derive(Debug)]
pub(super) struct Layout {
    /// Its number in this server.
    pub(super) id: u64,
    pub(super) file: OwnedFd,
    pub(super) size: u64,
    #[expect(dead_code, reason = "counts until it is dropped")]
    pub(super) counted: Counted,
}

impl<B: Backend> Region<B> {
    /// Fails if a peer may not have a lease. A region that it may not even read does not exist for it.
    pub(super) fn check(&self, name: &str, peer: &Peer, kind: LeaseKind) -> Result<(), ServeError> {
        let (reads, writes) = self.rights(peer);
        match kind {
            _ if !reads => Err(not_found(name)),
            LeaseKind::Write if !writes => Err(self.denied(name, peer, "write to")),
            _ => Ok(()),
        }
    }

    fn rights(&self, peer: &Peer) -> (bool, bool) {
        if peer.is_root() {
            return (true, true);
        }
        self.mode.rights(self.is_owned_by(peer), peer.is_in(self.group))
    }

    /// Returns true if the peer can see the region in lists.
    pub(super) fn is_seen_by(&self, peer: &Peer) -> bool {
        self.is_owned_by(peer) || self.epoch > 0 && self.rights(peer).0
    }

    fn is_owned_by(&self, peer: &Peer) -> bool {
        peer.user == Some(self.owner)
    }

    /// Fails if the peer may not drop the region: its owner may, and root.
    pub(super) fn check_drop(&self, name: &str, peer: &Peer) -> Result<(), ServeError> {
        match self.is_owned_by(peer) || peer.is_root() {
            true => Ok(()),
            false if self.is_seen_by(peer) => Err(self.denied(name, peer, "drop")),
            false => Err(not_found(name)),
        }
    }

    fn denied(&self, name: &str, peer: &Peer, action: &str) -> ServeError {
        let (name, action, user) = (name.to_owned(), action.to_owned(), peer.user_number());
        ServeError::Denied { name, action, user, owner: self.owner, mode: self.mode.bits() }
    }

    pub(super) fn overlaps(&self, address: u64, size: u64) -> bool {
        address < self.address.saturating_add(self.size) && self.address < address.saturating_add(size)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.handles.iter().map(|handle| handle.size().0).sum()
    }

    pub(super) fn sizes(&self) -> impl Iterator<Item = Bytes> {
        self.handles.iter().map(|handle| handle.size())
    }
}

/// A request for a lease that is not free.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) name: String,
    pub(super) kind: LeaseKind,
    pub(super) wait_ms: u64,
    pub(super) until: Instant,
}

/// Regions by their names.
#[derive(Debug)]
pub(super) struct Regions<B: Backend>(pub(super) BTreeMap<String, Region<B>>);

impl<B: Backend> Default for Regions<B> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<B: Backend> Regions<B> {
    /// Returns the region of a lease, unless it was dropped.
    pub(super) fn get(&self, name: &str, id: u64) -> Option<&Region<B>> {
        self.0.get(name).filter(|region| region.id == id)
    }

    pub(super) fn get_mut(&mut self, name: &str, id: u64) -> Option<&mut Region<B>> {
        self.0.get_mut(name).filter(|region| region.id == id)
    }

    /// Returns the region that a peer may have a lease of, if it is there now. One that it may not even read is not there: the peer waits as
    /// for a region that will be created.
    pub(super) fn open(&self, wait: &Waiting, peer: &Peer) -> Result<Option<&Region<B>>, ServeError> {
        let Some(region) = self.0.get(&wait.name).filter(|region| region.epoch > 0) else { return Ok(None) };
        match region.check(&wait.name, peer, wait.kind) {
            Err(ServeError::NotFound { .. }) => return Ok(None),
            checked => checked?,
        }
        Ok((wait.kind == LeaseKind::Read || region.writer.is_none()).then_some(region))
    }

    /// Returns the error of a wait that is over.
    pub(super) fn why_busy(&self, wait: &Waiting, peer: &Peer) -> ServeError {
        match self.0.get(&wait.name).filter(|region| region.epoch > 0) {
            None => not_found(&wait.name),
            Some(region) => match region.check(&wait.name, peer, wait.kind) {
                Err(error) => error,
                Ok(()) => ServeError::Busy {
                    name: wait.name.clone(),
                    lease: wait.kind.name().to_owned(),
                    waited_ms: wait.wait_ms,
                    why: "another client has the write lease".to_owned(),
                },
            },
        }
    }
}

pub(super) fn not_found(name: &str) -> ServeError {
    ServeError::NotFound { name: name.to_owned() }
}
