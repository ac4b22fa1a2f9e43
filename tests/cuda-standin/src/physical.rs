//! Physical memory: `cuMemCreate`, `cuMemRelease`, and what is asked about it.
//!
//! Memory is taken at once, and given back when nothing stands for it any more: no handle, no mapping, no descriptor.
#![allow(unsafe_code)] // exported to C

use crate::c::{
    COMPRESSION_GENERIC, GRANULARITY, Location, Out, PINNED, Properties, given, handle_type, location,
};
use crate::code::{Answer, Code};
use crate::context;
use crate::memory::Memory;
use crate::settings::settings;
use crate::state::{Held, Object, State, state};
use crate::violation::refuse;
use std::ptr::null_mut;
use std::sync::Arc;

/// The device that memory of these properties is made of; what they have to be, as the documentation says.
fn device_of(properties: &Properties) -> Answer<usize> {
    let Properties { kind, location: Location { kind: place, id }, .. } = *properties;
    let wrong = |code, what: &str| Err(refuse(code, format_args!("{what} in {properties:?}")));
    match place {
        location::DEVICE => {}
        location::HOST | location::HOST_NUMA => return Err(Code::NOT_SUPPORTED),
        _ => return wrong(Code::INVALID_VALUE, "location"),
    }
    if kind != PINNED {
        return wrong(Code::INVALID_VALUE, "type");
    }
    let is_zero = properties.usage == 0 && properties.reserved == [0; 4];
    if !is_zero || properties.compression > COMPRESSION_GENERIC || properties.rdma > 1 {
        return wrong(Code::INVALID_VALUE, "flags");
    }
    if !properties.win32_metadata.is_null() {
        return wrong(Code::INVALID_VALUE, "metadata of Windows");
    }
    match usize::try_from(id).ok().filter(|id| *id < settings().gpus) {
        Some(device) => Ok(device),
        None => wrong(Code::INVALID_DEVICE, "device"),
    }
}

/// What the kinds of handle come to that memory is to be exported as.
fn check_handle_types(types: u32) -> Answer {
    match types {
        handle_type::NONE | handle_type::FILE_DESCRIPTOR => Ok(()),
        // The attribute says that there are fabric handles; what they need beside the device is not there.
        _ if types & handle_type::FABRIC != 0 => Err(Code::NOT_PERMITTED),
        _ => Err(refuse(Code::NOT_SUPPORTED, format_args!("kinds of handle {types:#x}"))),
    }
}

fn create(size: u64, properties: &Properties, flags: u64) -> Answer<u64> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("size {size:#x}, flags {flags:#x}")));
    }
    let device = device_of(properties)?;
    check_handle_types(properties.handle_types)?;
    context::check_device(device)?;
    let mut state = state();
    state.charge(device, size)?;
    let Ok(mut memory) = Memory::new(device, size) else {
        state.discharge(device, size);
        return Err(Code::OUT_OF_MEMORY);
    };
    memory.handle_types = properties.handle_types;
    memory.compression = properties.compression;
    memory.rdma = properties.rdma;
    Ok(state.hold(Arc::new(memory), false))
}

impl State {
    /// A new handle of memory.
    pub(crate) fn hold(&mut self, memory: Arc<Memory>, imported: bool) -> u64 {
        let fresh = || Held { memory: Arc::clone(&memory), handles: 0, exported: false, charged: !imported };
        self.memories.entry(memory.identity).or_insert_with(fresh).handles += 1;
        self.new_handle(Object::Memory { memory, imported })
    }

    fn retain(&mut self, at: u64) -> Answer<u64> {
        let Some(raw) = self.mapping(at).map(|(_, mapping)| mapping.handle) else {
            return Err(refuse(Code::INVALID_VALUE, format_args!("nothing is mapped at {at:#x}")));
        };
        self.handles.get_mut(&raw).ok_or(Code::UNKNOWN)?.references += 1;
        Ok(raw)
    }

    fn release(&mut self, raw: u64) -> Answer {
        self.handle(raw)?.references -= 1;
        self.check_release(raw);
        self.drop_if_unused(raw);
        Ok(())
    }

    fn properties(&mut self, raw: u64) -> Answer<Properties> {
        let (memory, imported) = self.memory_of(raw)?;
        Ok(Properties {
            kind: PINNED,
            // Measured: what was imported names none.
            handle_types: if imported { handle_type::NONE } else { memory.handle_types },
            location: Location { kind: location::DEVICE, id: memory.device as i32 },
            win32_metadata: null_mut(),
            compression: memory.compression,
            rdma: memory.rdma,
            usage: 0,
            reserved: [0; 4],
        })
    }
}

cuda! {
    /// Takes memory of a device.
    fn cuMemCreate(out: Out<'_, u64>, size: usize, properties: Option<&Properties>, flags: u64) {
        let (out, properties) = (given(out, "handle")?, given(properties, "prop")?);
        out.write(create(size as u64, properties, flags)?);
        Ok(())
    }

    /// Gives a reference up.
    fn cuMemRelease(handle: u64) {
        state().release(handle)
    }

    /// The handle of what is mapped at an address, with one reference more.
    fn cuMemRetainAllocationHandle(out: Out<'_, u64>, at: u64) {
        given(out, "handle")?.write(state().retain(at)?);
        Ok(())
    }

    /// What memory of these properties is made in.
    fn cuMemGetAllocationGranularity(out: Out<'_, usize>, properties: Option<&Properties>, option: u32) {
        let (out, properties) = (given(out, "granularity")?, given(properties, "prop")?);
        device_of(properties)?;
        if option > 1 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("option {option}")));
        }
        out.write(GRANULARITY as usize);
        Ok(())
    }

    /// What memory was made with.
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<'_, Properties>, handle: u64) {
        given(out, "prop")?.write(state().properties(handle)?);
        Ok(())
    }
}
