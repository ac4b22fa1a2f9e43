//! Who may use what is mapped: `cuMemSetAccess`, `cuMemGetAccess`.
//!
//! Measured: a range of whole mappings, with holes or without; devices that are not named keep what they have.
#![allow(unsafe_code)] // exported to C

use crate::c::{AccessDescription, Location, Out, access, given, list, location};
use crate::code::{Answer, Code};
use crate::context;
use crate::device;
use crate::reserve::end_of;
use crate::settings::settings;
use crate::state::{Object, State, state};
use crate::violation::{note, refuse};

fn device_at(place: Location) -> Answer<usize> {
    if place.kind != location::DEVICE {
        return Err(refuse(Code::INVALID_VALUE, format_args!("{place:?}")));
    }
    let device = usize::try_from(place.id).ok().filter(|device| *device < settings().gpus);
    device.ok_or_else(|| refuse(Code::INVALID_DEVICE, format_args!("{place:?}")))
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
        // All is looked at before anything is changed.
        for description in descriptions {
            let device = device_at(description.location)?;
            if !matches!(description.flags, access::NONE | access::READ | access::READ_WRITE) {
                return Err(refuse(Code::INVALID_VALUE, format_args!("access {:#x}", description.flags)));
            }
            context::check_device(device)?;
            for start in &starts {
                self.check_reach(device, *start, description.flags)?;
            }
        }
        for start in starts {
            let Some(mapping) = self.mappings.get_mut(&start) else { continue };
            for description in descriptions {
                mapping.access[device_at(description.location)?] = description.flags;
            }
        }
        Ok(())
    }

    /// Whether a device can reach what is mapped there at all.
    fn check_reach(&self, device: usize, start: u64, flags: u32) -> Answer {
        let handle = self.mappings.get(&start).and_then(|mapping| self.handles.get(&mapping.handle));
        match handle.map(|handle| &handle.object) {
            Some(Object::Memory { memory, .. }) if !device::reaches(device, memory.device) => Err(refuse(
                Code::INVALID_DEVICE,
                format_args!("device {device} cannot reach memory of device {}", memory.device),
            )),
            Some(Object::Multicast { team, .. }) if flags != access::NONE => {
                self.teams.get(team).ok_or(Code::UNKNOWN)?.check_access(device)
            }
            _ => Ok(()),
        }
    }
}

cuda! {
    /// Sets what devices may do.
    fn cuMemSetAccess(at: u64, size: usize, descriptions: *const AccessDescription, count: usize) {
        // SAFETY: so many are listed.
        let descriptions = unsafe { list(descriptions, count) }?;
        state().set_access(at, size as u64, descriptions)
    }

    /// Answers what one may do.
    fn cuMemGetAccess(out: Out<'_, u64>, place: Option<&Location>, at: u64) {
        let (out, place) = (given(out, "flags")?, given(place, "location")?);
        let device = device_at(*place)?;
        let Some(allowed) = state().mapping(at).map(|(_, mapping)| mapping.access[device]) else {
            return Err(refuse(Code::INVALID_VALUE, format_args!("nothing is mapped at {at:#x}")));
        };
        out.write(u64::from(allowed));
        Ok(())
    }
}
