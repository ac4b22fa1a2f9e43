//! Multicast objects: `cuMulticast...`. They are recorded: arguments and the order of calls are checked as the
//! documentation has them, and no bytes go through an object.
//!
//! An object is made for a number of devices; all are added before anything is bound or mapped; what was bound is
//! unbound before its handle is released; and the object's memory is bound in its own granularity. Where the real driver
//! waits for devices to be added, this answers `CUDA_ERROR_ILLEGAL_STATE`, which is a violation: a program of one process
//! would wait for ever.
#![allow(unsafe_code)] // exported to C

use crate::c::{GRANULARITY, MulticastProperties, Out, given, handle_type};
use crate::code::{Answer, Code};
use crate::settings::settings;
use crate::state::{Object, State, state};
use crate::violation::{note, refuse};
use std::collections::BTreeMap;

/// An object behind a handle.
#[derive(Clone)]
pub(crate) struct Multicast {
    size: u64,
    /// How many devices it is for.
    wanted: usize,
    /// A bit for each device that was added.
    added: u32,
    /// What was bound, by device and place in the object: its size.
    bound: BTreeMap<(usize, u64), u64>,
}

impl Multicast {
    /// The size that it is mapped with, once all devices are added.
    pub(crate) fn mappable(&self) -> Answer<u64> {
        let added = self.added.count_ones() as usize;
        if added < self.wanted {
            let what = format_args!("{added} of {} devices are added", self.wanted);
            return Err(refuse(Code::ILLEGAL_STATE, what));
        }
        Ok(self.size)
    }

    fn bind(&mut self, device: usize, offset: u64, size: u64) -> Answer {
        self.mappable()?;
        let what = |what: &str| {
            refuse(Code::INVALID_VALUE, format_args!("{size:#x} at {offset:#x} of device {device}: {what}"))
        };
        if size == 0 || !size.is_multiple_of(GRANULARITY) || !offset.is_multiple_of(GRANULARITY) {
            return Err(what("no whole granules"));
        }
        if self.added & (1 << device) == 0 {
            return Err(what("the device was not added"));
        }
        let Some(end) = offset.checked_add(size).filter(|end| *end <= self.size) else {
            return Err(what("it ends behind the object"));
        };
        let overlaps = |((other, start), length): (&(usize, u64), &u64)| {
            *other == device && *start < end && start + length > offset
        };
        if self.bound.iter().any(overlaps) {
            return Err(what("something is bound there"));
        }
        self.bound.insert((device, offset), size);
        Ok(())
    }
}

/// Notes what is still bound in an object whose last reference was given up.
pub(crate) fn check_release(state: &State, raw: u64) {
    if let Some(handle) = state.handles.get(&raw)
        && let Object::Multicast(object) = &handle.object
        && handle.references == 0
        && !object.bound.is_empty()
    {
        note(format_args!("{} parts are still bound", object.bound.len()));
    }
}

fn check(properties: &MulticastProperties) -> Answer {
    let MulticastProperties { devices, size, handle_types, flags } = *properties;
    if handle_types & u64::from(handle_type::FABRIC) != 0 {
        return Err(Code::NOT_PERMITTED);
    }
    let is_right = (1..=settings().gpus).contains(&(devices as usize))
        && size != 0
        && (size as u64).is_multiple_of(GRANULARITY)
        && handle_types <= u64::from(handle_type::FILE_DESCRIPTOR)
        && flags == 0;
    if is_right { Ok(()) } else { Err(refuse(Code::INVALID_VALUE, format_args!("{properties:?}"))) }
}

impl State {
    fn multicast(&mut self, raw: u64) -> Answer<&mut Multicast> {
        match &mut self.handle(raw)?.object {
            Object::Multicast(object) => Ok(object),
            Object::Memory { .. } => {
                Err(refuse(Code::INVALID_VALUE, format_args!("handle {raw:#x} is no multicast object's")))
            }
        }
    }

    fn add_device(&mut self, raw: u64, device: i32) -> Answer {
        let object = self.multicast(raw)?;
        let Some(device) = usize::try_from(device).ok().filter(|device| *device < settings().gpus) else {
            return Err(refuse(Code::INVALID_DEVICE, format_args!("device {device}")));
        };
        if object.added & (1 << device) != 0 || object.added.count_ones() as usize == object.wanted {
            let what = format_args!("device {device} is added already, or one too many");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        object.added |= 1 << device;
        Ok(())
    }

    fn bind_memory(&mut self, raw: u64, offset: u64, from: u64, from_offset: u64, size: u64) -> Answer {
        let (memory, _) = self.memory_of(from)?;
        let end = from_offset.checked_add(size).filter(|end| *end <= memory.size);
        if end.is_none() || !from_offset.is_multiple_of(GRANULARITY) {
            let what = format_args!("{size:#x} from {from_offset:#x} of memory of {:#x}", memory.size);
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        self.multicast(raw)?.bind(memory.device, offset, size)
    }

    fn bind_address(&mut self, raw: u64, offset: u64, at: u64, size: u64) -> Answer {
        let wrong = |what: &str| refuse(Code::INVALID_VALUE, format_args!("{size:#x} at {at:#x}: {what}"));
        let (base, mapping) = self.mapping(at).ok_or_else(|| wrong("nothing is mapped there"))?;
        if at.checked_add(size).is_none_or(|end| end > base + mapping.size) {
            return Err(wrong("it ends behind the mapping"));
        }
        let handle = self.handles.get(&mapping.handle).map(|handle| &handle.object);
        let Some(Object::Memory { memory, .. }) = handle else {
            return Err(wrong("no memory is mapped there"));
        };
        let device = memory.device;
        self.multicast(raw)?.bind(device, offset, size)
    }

    fn unbind(&mut self, raw: u64, device: i32, offset: u64, size: u64) -> Answer {
        let object = self.multicast(raw)?;
        let key = (usize::try_from(device).unwrap_or(usize::MAX), offset);
        if object.bound.get(&key) != Some(&size) {
            let what = format_args!("{size:#x} at {offset:#x} of device {device} was not bound as one");
            return Err(refuse(Code::INVALID_VALUE, what));
        }
        object.bound.remove(&key);
        Ok(())
    }
}

fn check_flags(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}"))) }
}

cuda! {
    /// Makes an object.
    fn cuMulticastCreate(out: Out<'_, u64>, properties: Option<&MulticastProperties>) {
        let (out, properties) = (given(out, "mcHandle")?, given(properties, "prop")?);
        check(properties)?;
        let object = Multicast {
            size: properties.size as u64,
            wanted: properties.devices as usize,
            added: 0,
            bound: BTreeMap::new(),
        };
        out.write(state().new_handle(Object::Multicast(object)));
        Ok(())
    }

    /// Adds a device, for good.
    fn cuMulticastAddDevice(handle: u64, device: i32) {
        state().add_device(handle, device)
    }

    /// Binds memory by its handle.
    fn cuMulticastBindMem(handle: u64, offset: usize, from: u64, from_offset: usize, size: usize, flags: u64) {
        check_flags(flags)?;
        state().bind_memory(handle, offset as u64, from, from_offset as u64, size as u64)
    }

    /// Binds memory by its address.
    fn cuMulticastBindAddr(handle: u64, offset: usize, at: u64, size: usize, flags: u64) {
        check_flags(flags)?;
        state().bind_address(handle, offset as u64, at, size as u64)
    }

    /// Takes what was bound out again.
    fn cuMulticastUnbind(handle: u64, device: i32, offset: usize, size: usize) {
        state().unbind(handle, device, offset as u64, size as u64)
    }

    /// What objects are made in.
    fn cuMulticastGetGranularity(out: Out<'_, usize>, properties: Option<&MulticastProperties>, option: u32) {
        let (out, properties) = (given(out, "granularity")?, given(properties, "prop")?);
        check(properties)?;
        if option > 1 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("option {option}")));
        }
        out.write(GRANULARITY as usize);
        Ok(())
    }
}
