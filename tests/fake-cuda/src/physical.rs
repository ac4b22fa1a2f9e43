//! Physical memory: `cuMemCreate`, `cuMemRelease`, and queries about it.
//!
//! Measured: memory of the host has the same granularity as a device's. Memory requested anywhere on the host is created on
//! node 0, as its properties report, and cannot be shared. The granularity is also reported for combinations that cannot be
//! created. Memory is taken at once, and freed when it has no handle, no mapping and no descriptor any more.
#![allow(unsafe_code)] // exported to C

use crate::c::{
    COMPRESSION_GENERIC, GRANULARITY, Location, Out, PINNED, Properties, given, handle_type, location,
};
use crate::code::{Answer, Code};
use crate::device::check_virtual_memory;
use crate::memory::{Home, Kind, Memory};
use crate::settings::{Compression, settings};
use crate::state::{Held, Object, State, state};
use crate::violation::refuse;
use crate::{context, fabric, host};
use std::ptr::null_mut;
use std::sync::Arc;

/// Returns the location for these properties. Checks them against the documentation.
fn home_of(properties: &Properties) -> Answer<Home> {
    let Properties { kind, location: Location { kind: place, id }, .. } = *properties;
    let wrong = |code, what: &str| Err(refuse(code, format_args!("{what} in {properties:?}")));
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
    match place {
        location::DEVICE => match usize::try_from(id).ok().filter(|id| *id < settings().gpus) {
            Some(device) => Ok(Home::Device(device)),
            None => wrong(Code::INVALID_DEVICE, "device"),
        },
        location::HOST if host::is_known() => Ok(Home::Node(host::NODE)),
        location::HOST_NUMA if host::is_known() && id == host::NODE => Ok(Home::Node(id)),
        // A program finds out the nodes by trying.
        location::HOST_NUMA if host::is_known() => Err(Code::INVALID_VALUE),
        _ => wrong(Code::INVALID_VALUE, "location"),
    }
}

/// Refuses memory of the host that is compressed or flagged for RDMA, and shareable memory without a node.
fn check_host(properties: &Properties) -> Answer {
    let Properties { handle_types, location: Location { kind: place, .. }, compression, rdma, .. } =
        *properties;
    let is_shared = place == location::HOST && handle_types != handle_type::NONE;
    let is_flagged = place != location::DEVICE && (compression, rdma) != (0, 0);
    if is_shared || is_flagged {
        return Err(refuse(Code::INVALID_VALUE, format_args!("memory of the host with {properties:?}")));
    }
    Ok(())
}

/// Checks the handle types for export.
fn check_handle_types(types: u32) -> Answer {
    const KNOWN: u32 = handle_type::FILE_DESCRIPTOR | handle_type::FABRIC;
    if types & !KNOWN != 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("handle types {types:#x}")));
    }
    if types & handle_type::FABRIC != 0 { fabric::check() } else { Ok(()) }
}

fn create(size: u64, properties: &Properties, flags: u64) -> Answer<u64> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(refuse(Code::INVALID_VALUE, format_args!("size {size:#x}, flags {flags:#x}")));
    }
    let home = home_of(properties)?;
    check_host(properties)?;
    check_handle_types(properties.handle_types)?;
    let kind = Kind {
        home,
        handle_types: properties.handle_types,
        // Compression is a request; RDMA takes precedence.
        compression: match settings().compression {
            Compression::All if properties.rdma == 0 => properties.compression,
            _ => 0,
        },
        rdma: properties.rdma,
    };
    let mut state = state();
    if let Some(device) = home.device() {
        context::check_device(device)?;
        state.charge(device, size)?;
    }
    let Ok(memory) = Memory::new(size, kind) else {
        home.device().into_iter().for_each(|device| state.discharge(device, size));
        return Err(Code::OUT_OF_MEMORY);
    };
    Ok(state.hold(Arc::new(memory), false))
}

impl State {
    /// Creates a handle of memory.
    pub(crate) fn hold(&mut self, memory: Arc<Memory>, imported: bool) -> u64 {
        let fresh = || Held { memory: Arc::clone(&memory), handles: 0, exported: false, charged: !imported };
        self.memories.entry(memory.identity).or_insert_with(fresh).handles += 1;
        self.new_handle(Object::Memory { memory, imported })
    }

    fn retain(&mut self, at: u64) -> Answer<u64> {
        // A program finds out by asking: measured for plain allocations, the host's addresses and unmapped ones.
        let raw = self.mapping(at).map(|(_, mapping)| mapping.handle).ok_or(Code::INVALID_VALUE)?;
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
            // Measured: imported memory reports neither these nor the flag for RDMA.
            handle_types: if imported { handle_type::NONE } else { memory.kind.handle_types },
            location: memory.kind.home.location(),
            win32_metadata: null_mut(),
            compression: memory.kind.compression,
            rdma: if imported { 0 } else { memory.kind.rdma },
            usage: 0,
            reserved: [0; 4],
        })
    }
}

cuda! {
    /// Creates memory of a device or of the host.
    fn cuMemCreate(out: Out<'_, u64>, size: usize, properties: Option<&Properties>, flags: u64) {
        let (out, properties) = (given(out, "handle")?, given(properties, "prop")?);
        check_virtual_memory()?;
        out.write(create(size as u64, properties, flags)?);
        Ok(())
    }

    /// Releases a reference.
    fn cuMemRelease(handle: u64) {
        state().release(handle)
    }

    /// Returns the handle of the memory mapped at an address, with one more reference.
    fn cuMemRetainAllocationHandle(out: Out<'_, u64>, at: u64) {
        given(out, "handle")?.write(state().retain(at)?);
        Ok(())
    }

    /// Returns the granularity for memory of these properties.
    fn cuMemGetAllocationGranularity(out: Out<'_, usize>, properties: Option<&Properties>, option: u32) {
        let (out, properties) = (given(out, "granularity")?, given(properties, "prop")?);
        check_virtual_memory()?;
        home_of(properties)?;
        if option > 1 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("option {option}")));
        }
        // The recommended granularity is larger, so that a mistaken option shows.
        out.write(GRANULARITY as usize * if option == 1 { 2 } else { 1 });
        Ok(())
    }

    /// Returns the properties of memory.
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<'_, Properties>, handle: u64) {
        given(out, "prop")?.write(state().properties(handle)?);
        Ok(())
    }
}
