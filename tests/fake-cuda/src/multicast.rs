//! Multicast objects: `cuMulticast...`. Arguments and the order of calls are checked against the documentation, more strictly
//! than by any known driver. A kernel's store to an object, which models a `multimem.st`, goes to all memory that this
//! process has bound to it.
//!
//! An object is created for a number of devices. Processes must add all of them before binding or mapping anything. Every
//! device must have bound memory before any gets access. The object must be unmapped before anything is unbound, and
//! everything unbound before it is released; the memory must stay until then. Objects have their own granularity, which
//! differs from memory's, so that code cannot confuse the two. The real driver waits for devices or for bindings of other
//! processes; the fake driver returns `CUDA_ERROR_ILLEGAL_STATE`, a violation, because a program with one process would wait
//! forever.
#![allow(unsafe_code)] // exported to C

use crate::c::{
    GRANULARITY, MULTICAST_MINIMUM, MULTICAST_RECOMMENDED, MulticastProperties, Out, given, handle_type,
};
use crate::code::{Answer, Code};
use crate::device::device as device_of;
use crate::memory::Identity;
use crate::settings::settings;
use crate::state::{Object, State, state};
use crate::team::Team;
use crate::violation::{note, refuse};

/// Checks properties, with a size in multiples of `granularity`.
fn check(properties: &MulticastProperties, granularity: u64) -> Answer {
    let MulticastProperties { devices, size, handle_types, flags } = *properties;
    if !settings().multicast {
        return Err(refuse(Code::NOT_SUPPORTED, format_args!("no device supports multicast")));
    }
    if handle_types & u64::from(handle_type::FABRIC) != 0 {
        return Err(Code::NOT_PERMITTED);
    }
    let is_right = (1..=settings().gpus).contains(&(devices as usize))
        && size != 0
        && (size as u64).is_multiple_of(granularity)
        && handle_types <= u64::from(handle_type::FILE_DESCRIPTOR)
        && flags == 0;
    if is_right { Ok(()) } else { Err(refuse(Code::INVALID_VALUE, format_args!("{properties:?}"))) }
}

impl State {
    /// Returns the object behind a handle that the program holds.
    fn team(&mut self, raw: u64) -> Answer<&mut Team> {
        let Object::Multicast { team, .. } = self.handle(raw)?.object else {
            return Err(refuse(
                Code::INVALID_VALUE,
                format_args!("handle {raw:#x} is no multicast object's"),
            ));
        };
        self.teams.get_mut(&team).ok_or(Code::UNKNOWN)
    }

    /// Creates a handle of an object.
    pub(crate) fn hold_team(&mut self, team: Team, imported: bool) -> u64 {
        let identity = team.identity;
        self.teams.entry(identity).or_insert(team);
        self.new_handle(Object::Multicast { team: identity, imported })
    }

    fn bind_memory(&mut self, raw: u64, offset: u64, from: u64, from_offset: u64, size: u64) -> Answer {
        let (memory, imported) = self.memory_of(from)?;
        let shareable = imported || memory.kind.handle_types != 0;
        self.team(raw)?.bind(offset, memory, from_offset, size, shareable)
    }

    fn unbind(&mut self, raw: u64, device: i32, offset: u64, size: u64) -> Answer {
        let device = device_of(device)?;
        let identity = self.team(raw)?.identity;
        if self.is_mapped(identity) {
            note(format_args!("the object is still mapped"));
        }
        self.team(raw)?.unbind(device, offset, size)
    }

    fn handles_of(&self, identity: Identity) -> impl Iterator<Item = &crate::state::Handle> {
        let is_one = move |handle: &&crate::state::Handle| matches!(handle.object, Object::Multicast { team, .. } if team == identity);
        self.handles.values().filter(is_one)
    }

    fn is_mapped(&self, identity: Identity) -> bool {
        self.handles_of(identity).any(|handle| handle.mappings > 0)
    }

    /// Notes a wrong release of a handle's last reference: the object is mapped, or has bindings and no other handle.
    pub(crate) fn check_release(&self, raw: u64) {
        let Some(handle) = self.handles.get(&raw).filter(|handle| handle.references == 0) else { return };
        let Object::Multicast { team, .. } = handle.object else { return };
        if handle.mappings > 0 {
            note(format_args!("the object is still mapped"));
        }
        let bound = self.teams.get(&team).map_or(0, |team| team.bound.len());
        if bound > 0 && self.handles_of(team).all(|handle| handle.references == 0) {
            note(format_args!("{bound} parts are still bound"));
        }
    }

    /// Notes memory that is freed while it is bound.
    pub(crate) fn check_unbound(&self, memory: Identity) {
        let mut bound = self.teams.values().flat_map(|team| team.bound.values());
        if bound.any(|bound| bound.memory.identity == memory) {
            note(format_args!("the memory is still bound to a multicast object"));
        }
    }

    /// Drops an object without a handle.
    pub(crate) fn drop_team_if_unused(&mut self, identity: Identity) {
        if self.handles_of(identity).next().is_none() {
            self.teams.remove(&identity);
        }
    }
}

fn check_flags(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}"))) }
}

cuda! {
    /// Creates an object.
    fn cuMulticastCreate(out: Out<'_, u64>, properties: Option<&MulticastProperties>) {
        let (out, properties) = (given(out, "mcHandle")?, given(properties, "prop")?);
        check(properties, MULTICAST_MINIMUM)?;
        let team = Team::new(properties).map_err(|_| Code::OUT_OF_MEMORY)?;
        out.write(state().hold_team(team, false));
        Ok(())
    }

    /// Adds a device permanently.
    fn cuMulticastAddDevice(handle: u64, device: i32) {
        let device = device_of(device)?;
        state().team(handle)?.add(device)
    }

    /// Binds memory by its handle.
    fn cuMulticastBindMem(handle: u64, offset: usize, from: u64, from_offset: usize, size: usize, flags: u64) {
        check_flags(flags)?;
        state().bind_memory(handle, offset as u64, from, from_offset as u64, size as u64)
    }

    /// Unbinds memory.
    fn cuMulticastUnbind(handle: u64, device: i32, offset: usize, size: usize) {
        state().unbind(handle, device, offset as u64, size as u64)
    }

    /// Returns the granularity of objects. The size in the properties need not be a multiple of it yet.
    fn cuMulticastGetGranularity(out: Out<'_, usize>, properties: Option<&MulticastProperties>, option: u32) {
        let (out, properties) = (given(out, "granularity")?, given(properties, "prop")?);
        check(properties, GRANULARITY)?;
        out.write(match option {
            0 => MULTICAST_MINIMUM as usize,
            1 => MULTICAST_RECOMMENDED as usize,
            _ => return Err(refuse(Code::INVALID_VALUE, format_args!("option {option}"))),
        });
        Ok(())
    }
}
