//! A whole set of mappings at once: a region becomes what another process has.
//!
//! What is mapped already and is to stay is not touched, and no device loses it for a moment. The rest is one
//! transaction, as everything here.

use super::builder::Placement;
use super::layout::Part;
use super::map::{check_addresses, check_reach};
use super::table::{Mapping, Piece};
use super::{Region, check_aligned};
use crate::driver::{Backend, Done};
use crate::memory::Physical;
use crate::types::{AccessMap, Bytes, Properties, Result};

/// A mapping that a region is to have.
#[derive(Debug)]
pub(crate) struct Wanted<B: Backend> {
    pub(crate) offset: Bytes,
    pub(crate) memory: Physical<B>,
    /// Of a mapping that is new. One that is there already keeps what it has.
    pub(crate) access: AccessMap,
}

impl<B: Backend> Wanted<B> {
    fn piece(&self) -> Piece<B> {
        Piece { offset: self.offset, mapping: Mapping::new(self.memory.clone(), self.access) }
    }
}

impl<B: Backend> Region<B> {
    /// Refuses a region that is suspended, or of which some part is out of use.
    pub(crate) fn check_all(&self, operation: &'static str) -> Result<()> {
        self.check_active(operation)?;
        self.layout.check_in_use(operation)
    }

    /// Makes these the mappings of the region, at the address that it has: all, or it is as before. They come in order of
    /// their offsets, overlap nothing, and end below 2^47. Where they go beyond the reservation, just what is needed is
    /// reserved behind it. What goes is waited for.
    pub(crate) fn arrange(
        &mut self,
        operation: &'static str,
        wanted: &[Wanted<B>],
        done: Done<'_>,
    ) -> Result<()> {
        self.check_active(operation)?;
        let gone = self.unwanted(wanted);
        for part in &gone {
            self.layout.table.check_whole(operation, part.offset, part.length)?;
        }
        let new: Vec<Piece<B>> =
            wanted.iter().filter(|one| self.kept(one).is_none()).map(Wanted::piece).collect();
        self.check_pieces(operation, &new)?;
        check_addresses(operation, self.address(), &new)?;
        let (reserved, end) = (self.reserved(), end_of(wanted));
        if end > reserved {
            self.extend_by(operation, self.addresses(operation, end - reserved)?)?;
        }
        self.exchange(operation, &gone, &new, done).inspect_err(|_| self.take_back(reserved))
    }

    /// The same at another address: a range of at least twice the size wherever the driver likes, or exactly what is
    /// needed where it is said. What has access is waited for.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))] // changes come over sockets
    pub(crate) fn arrange_elsewhere(
        &mut self,
        operation: &'static str,
        wanted: &[Wanted<B>],
        placement: Placement,
        done: Done<'_>,
    ) -> Result<()> {
        self.check_all(operation)?;
        let pieces: Vec<Piece<B>> =
            wanted.iter().map(|one| self.kept(one).unwrap_or_else(|| one.piece())).collect();
        self.check_pieces(operation, &pieces)?;
        let target = end_of(wanted).max(Bytes(1));
        let layout = match placement {
            Placement::Anywhere => self.reserve_for_move(operation, target, &pieces)?,
            _ => self.reserve_elsewhere(operation, target, placement, &pieces)?,
        };
        self.move_to(layout, &pieces, done)
    }

    /// Refuses mappings that [`arrange`](Self::arrange) would refuse, before there is anything to be arranged.
    pub(crate) fn check_wanted(&self, operation: &'static str, wanted: &[Wanted<B>]) -> Result<()> {
        let pieces: Vec<Piece<B>> = wanted.iter().map(Wanted::piece).collect();
        self.check_pieces(operation, &pieces)?;
        check_addresses(operation, self.address(), &pieces)
    }

    /// The mapping that is there already.
    fn kept(&self, wanted: &Wanted<B>) -> Option<Piece<B>> {
        let (offset, mapping) = self.layout.table.at(wanted.offset)?;
        let is_it = offset == wanted.offset && mapping.memory.is_same_as(&wanted.memory);
        is_it.then(|| Piece { offset, mapping: mapping.clone() })
    }

    /// What is mapped and not wanted, in runs without a hole.
    fn unwanted(&self, wanted: &[Wanted<B>]) -> Vec<Part> {
        let gone = self.layout.table.iter().filter(|(offset, mapping)| {
            let place = wanted.binary_search_by_key(offset, |one| one.offset);
            !place.is_ok_and(|place| wanted[place].memory.is_same_as(&mapping.memory))
        });
        Part::joined(gone.map(|(offset, mapping)| Part { offset, length: mapping.length() }))
    }

    /// Refuses memory of another backend, offsets that are not aligned, and devices that cannot reach the memory.
    fn check_pieces(&self, operation: &'static str, pieces: &[Piece<B>]) -> Result<()> {
        for Piece { offset, mapping } in pieces {
            let memory = &mapping.memory;
            memory.check_belongs_to(operation, &self.backend)?;
            check_aligned(operation, "offset", offset.0, self.granularity)?;
            check_aligned(operation, "length", memory.size().0, self.granularity)?;
        }
        let ways = pieces.iter().map(|Piece { mapping, .. }| (mapping.access, mapping.memory.properties()));
        self.check_ways(operation, ways)
    }

    /// Refuses access for devices that cannot reach the memory.
    pub(super) fn check_ways(
        &self,
        operation: &'static str,
        ways: impl Iterator<Item = (AccessMap, Properties)>,
    ) -> Result<()> {
        let mut reached = None;
        for way in ways {
            if reached.replace(way) != Some(way) {
                for grant in way.0.grants() {
                    check_reach(&self.backend, operation, grant.device, &way.1)?;
                }
            }
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        operation: &'static str,
        gone: &[Part],
        new: &[Piece<B>],
        done: Done<'_>,
    ) -> Result<()> {
        for piece in new {
            self.check_seams(operation, piece.offset, piece.mapping.length())?;
        }
        if let (Some(first), Some(last)) = (gone.first(), gone.last()) {
            self.wait(&self.layout, first.offset, last.end() - first.offset, done)?;
        }
        self.layout.exchange(gone, new)
    }
}

/// Where the last of them ends.
fn end_of<B: Backend>(wanted: &[Wanted<B>]) -> Bytes {
    wanted.last().map_or(Bytes::ZERO, |one| one.offset + one.memory.size())
}
