//! Access to mappings: `cuMemSetAccess`, `cuMemGetAccess`.
//!
//! Measured: a range of whole mappings, with holes or without; devices that are not named keep their access. The CPU gets
//! access to memory of the host alone. Either type of host location works, with any node number. The CPU's access is reported
//! under `HOST_NUMA` alone; under `HOST` the report is always read and write.
#![allow(unsafe_code)] // exported to C

use crate::c::{AccessDescription, Location, Out, access, given, list, location};
use crate::code::{Answer, Code};
use crate::context;
use crate::device;
use crate::host;
use crate::memory::Home;
use crate::reserve::end_of;
use crate::settings::settings;
use crate::state::{Object, State, state};
use crate::violation::{note, refuse};

/// The device or host that gets access.
#[derive(Clone, Copy)]
enum Who {
    Device(usize),
    /// The CPU, named by a type of location.
    Host(u32),
}

fn who(place: Location) -> Answer<Who> {
    match place.kind {
        location::DEVICE => {
            let device = usize::try_from(place.id).ok().filter(|device| *device < settings().gpus);
            let device = device.ok_or_else(|| refuse(Code::INVALID_DEVICE, format_args!("{place:?}")))?;
            Ok(Who::Device(device))
        }
        location::HOST | location::HOST_NUMA if host::is_known() => Ok(Who::Host(place.kind)),
        _ => Err(refuse(Code::INVALID_VALUE, format_args!("{place:?}"))),
    }
}

impl State {
    fn set_access(&mut self, at: u64, size: u64, descriptions: &[AccessDescription]) -> Answer {
        let end = end_of(at, size)?;
        let starts = self.whole_mappings(at, end)?;
        if starts.is_empty() {
            return Err(refuse(
                Code::INVALID_VALUE,
                format_args!("nothing is mapped at {at:#x} to {end:#x}"),
            ));
        }
        if starts.iter().map(|start| self.mappings[start].size).sum::<u64>() < size {
            note(format_args!("{at:#x} to {end:#x} has holes"));
        }
        // Everything is checked before any change.
        for description in descriptions {
            let who = who(description.location)?;
            if !matches!(description.flags, access::NONE | access::READ | access::READ_WRITE) {
                return Err(refuse(Code::INVALID_VALUE, format_args!("access {:#x}", description.flags)));
            }
            if let Who::Device(device) = who {
                context::check_device(device)?;
            }
            for start in &starts {
                self.check_reach(who, *start, description.flags)?;
            }
        }
        for start in starts {
            for description in descriptions {
                match who(description.location)? {
                    Who::Host(_) => self.show(start, description.flags)?,
                    Who::Device(device) => {
                        if let Some(mapping) = self.mappings.get_mut(&start) {
                            mapping.access[device] = description.flags;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives the CPU access to a mapping, or removes it.
    fn show(&mut self, start: u64, allowed: u32) -> Answer {
        let Some(mapping) = self.mappings.get_mut(&start) else { return Ok(()) };
        if let Some(Object::Memory { memory, .. }) =
            self.handles.get(&mapping.handle).map(|handle| &handle.object)
        {
            memory.show(start, allowed).map_err(|_| Code::OUT_OF_MEMORY)?;
            mapping.host = allowed;
        }
        Ok(())
    }

    /// Refuses access that is impossible: a device can reach the host's memory, but the CPU can reach no device's.
    fn check_reach(&self, who: Who, start: u64, flags: u32) -> Answer {
        let handle = self.mappings.get(&start).and_then(|mapping| self.handles.get(&mapping.handle));
        let memory = match (handle.map(|handle| &handle.object), who) {
            (Some(Object::Memory { memory, .. }), _) => memory,
            (Some(Object::Multicast { team, .. }), Who::Device(device)) if flags != access::NONE => {
                return self.teams.get(team).ok_or(Code::UNKNOWN)?.check_access(device);
            }
            _ => return Ok(()),
        };
        let home = memory.kind.home;
        match who {
            Who::Device(device) if home.device().is_none_or(|owner| device::reaches(device, owner)) => Ok(()),
            Who::Host(_) if matches!(home, Home::Node(_)) => Ok(()),
            Who::Device(device) => Err(refuse(
                Code::INVALID_DEVICE,
                format_args!("device {device} cannot reach memory of {home:?}"),
            )),
            Who::Host(_) => {
                Err(refuse(Code::NOT_SUPPORTED, format_args!("the CPU cannot reach memory of {home:?}")))
            }
        }
    }
}

cuda! {
    /// Sets the access of devices.
    fn cuMemSetAccess(at: u64, size: usize, descriptions: *const AccessDescription, count: usize) {
        // SAFETY: the caller's array has `count` descriptions.
        let descriptions = unsafe { list(descriptions, count) }?;
        state().set_access(at, size as u64, descriptions)
    }

    /// Returns the access of a device or the host.
    fn cuMemGetAccess(out: Out<'_, u64>, place: Option<&Location>, at: u64) {
        let (out, place) = (given(out, "flags")?, given(place, "location")?);
        let (who, state) = (who(*place)?, state());
        let Some((_, mapping)) = state.mapping(at) else {
            return Err(refuse(Code::INVALID_VALUE, format_args!("nothing is mapped at {at:#x}")));
        };
        let allowed = match who {
            Who::Device(device) => mapping.access[device],
            Who::Host(location::HOST) => access::READ_WRITE,
            Who::Host(_) => mapping.host,
        };
        out.write(u64::from(allowed));
        Ok(())
    }
}
