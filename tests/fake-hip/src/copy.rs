//! Moves data: copies, fills, streams, page-locked memory, and waiting. Work on a stream is executed when the stream is
//! waited for.

use crate::c::{Answer, Out, fault, give, stop};
use crate::call::current;
use crate::memory::{self, UNIT};
use crate::settings::bucket;
use crate::state::{Mapping, State};
use crate::stream::{NULL, Side, Stream, Work, null};
use std::ffi::{c_int, c_uint};
use std::ops::Range;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::slice::from_raw_parts;

/// The access that a device needs: `hipMemAccessFlagsProtRead`, `hipMemAccessFlagsProtReadWrite`.
const READ: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;
/// The bytes read from a corrupted mapping.
const GARBAGE: u8 = 0xa5;

/// `hipMemcpyHostToDevice`, `hipMemcpyDeviceToHost`, `hipMemcpyDeviceToDevice`.
const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;
const ON_DEVICE: c_int = 3;

/// `hipHostMallocPortable`: the memory is page-locked for every device.
const PORTABLE: c_uint = 1;

/// The first number of streams that are created.
const FIRST: usize = 0x5b5b_0000_0000;

hip!(hipMemcpy, |state, to: usize, from: usize, size: usize, kind: c_int| {
    state.copy(null(current()), (to, from), size, kind)?;
    if kind == ON_DEVICE { Ok(()) } else { state.finish(null(current())) }
});

hip!(hipMemcpyAsync, |state, to: usize, from: usize, size: usize, kind: c_int, stream: usize| {
    state.copy(stream, (to, from), size, kind)
});

hip!(hipMemset, |state, at: usize, value: c_int, size: usize| {
    state.owner(Side::Device(at), size);
    let work = Work { by: current(), to: Side::Device(at), from: Side::Value(value as u8), size };
    state.stream(null(current())).queue.push(work);
    Ok(())
});

hip!(hipDeviceSynchronize, |state| state.finish(null(current())));
hip!(hipStreamSynchronize, |state, stream: usize| {
    state.finish(if stream == 0 { null(current()) } else { stream })
});

hip!(hipStreamCreateWithFlags, |state, stream: Out<'_, usize>, _flags: c_uint| {
    let raw = FIRST + state.number() as usize * 64;
    state.streams.insert(raw, Stream { device: current(), is_null: false, queue: Vec::new() });
    give(stream, raw)
});

hip!(hipStreamDestroy, |state, stream: usize| {
    state.finish(stream)?;
    state.streams.remove(&stream);
    Ok(())
});

hip!(hipHostMalloc, |state, at: Out<'_, usize>, size: usize, flags: c_uint| {
    rule!(flags == PORTABLE, "hipHostMalloc for one device only, with the flags {flags:#x}");
    let start = memory::plain(size)?;
    state.locked.insert(start, size);
    give(at, start)
});

hip!(hipHostFree, |state, at: usize| {
    let Some(size) = state.locked.remove(&at) else { stop(format_args!("hipHostFree({at:#x})")) };
    memory::free(at, size);
    Ok(())
});

impl State {
    pub(crate) fn stream(&mut self, raw: usize) -> &mut Stream {
        if let Some(device) = raw.checked_sub(NULL) {
            let null = || Stream { device, is_null: true, queue: Vec::new() };
            return self.streams.entry(raw).or_insert_with(null);
        }
        match self.streams.get_mut(&raw) {
            Some(stream) => stream,
            None => stop(format_args!("{raw:#x} is not a stream, or was destroyed")),
        }
    }

    /// Queues a copy.
    fn copy(&mut self, stream: usize, (to, from): (usize, usize), size: usize, kind: c_int) -> Answer {
        let (to, from) = match kind {
            TO_DEVICE => (Side::Device(to), Side::Host(from)),
            TO_HOST => (Side::Host(to), Side::Device(from)),
            ON_DEVICE => (Side::Device(to), Side::Device(from)),
            _ => stop(format_args!("a copy of kind {kind}")),
        };
        let is_locked = [to, from].iter().any(|side| matches!(side, Side::Host(at) if self.is_locked(*at)));
        let owners = [from, to].map(|side| self.owner(side, size));
        let stream = self.stream(stream);
        let by = match owners.into_iter().flatten().next() {
            _ if is_locked && bucket().pinned_by_first => 0,
            Some(owner) if bucket().copy_by_source => owner,
            _ => stream.device,
        };
        stream.queue.push(Work { by, to, from, size });
        Ok(())
    }

    /// Returns the device that HIP considers the owner of a side in device memory. It checks the first byte.
    fn owner(&self, side: Side, size: usize) -> Option<usize> {
        let Side::Device(at) = side else { return None };
        match (self.place(at), self.mapping(at)) {
            (Some(place), Some((_, mapping))) if at + size <= place.range.end => Some(mapping.handle.device),
            _ => {
                stop(format_args!("a copy or fill of {size:#x} at {at:#x}, which is not in one reservation"))
            }
        }
    }

    /// Returns whether an address is page-locked memory.
    pub(crate) fn is_locked(&self, at: usize) -> bool {
        self.locked.range(..=at).next_back().is_some_and(|(base, size)| at < base + size)
    }

    /// Executes all work queued on a stream.
    pub(crate) fn finish(&mut self, stream: usize) -> Answer {
        for Work { by, to, from, size } in std::mem::take(&mut self.stream(stream).queue) {
            let bytes = match from {
                Side::Value(value) => vec![value; size],
                Side::Device(at) => self.read(by, at, size),
                // SAFETY: the caller of the copy keeps the host's side until the copy is complete.
                Side::Host(at) => unsafe { from_raw_parts(with_exposed_provenance(at), size).to_vec() },
            };
            match to {
                Side::Device(at) => self.write(by, at, &bytes),
                // SAFETY: as above.
                Side::Host(at) => unsafe {
                    with_exposed_provenance_mut::<u8>(at).copy_from_nonoverlapping(bytes.as_ptr(), size);
                },
                Side::Value(_) => {}
            }
        }
        Ok(())
    }

    /// Returns whether queued work of a device touches a range.
    pub(crate) fn is_waiting_for(&self, device: usize, at: usize, size: usize) -> bool {
        let works = self.streams.values().flat_map(|stream| &stream.queue);
        works.filter(|work| work.by == device).any(|work| {
            let touches = |start: usize| start < at + size && at < start + work.size;
            [work.to, work.from].iter().any(|side| matches!(side, Side::Device(start) if touches(*start)))
        })
    }

    fn read(&self, device: usize, from: usize, size: usize) -> Vec<u8> {
        let mut bytes = vec![GARBAGE; size];
        for (mapping, offset, part) in self.meet(device, from, size, READ) {
            if let Some(memory) = mapping.handle.memory.get().filter(|_| !mapping.is_corrupt) {
                memory.read(offset, &mut bytes[part]);
            }
        }
        bytes
    }

    fn write(&self, device: usize, to: usize, bytes: &[u8]) {
        for (mapping, offset, part) in self.meet(device, to, bytes.len(), READ_WRITE) {
            if let Some(memory) = mapping.handle.memory.get().filter(|_| !mapping.is_corrupt) {
                memory.write(offset, &bytes[part]);
            }
        }
    }

    /// Returns the mappings that a device accesses in a range, each with an offset and its part of the range. Ends the
    /// process on a fault.
    fn meet(&self, device: usize, at: usize, size: usize, need: u32) -> Vec<(&Mapping, usize, Range<usize>)> {
        let mut met = Vec::new();
        let mut done = 0;
        while done < size {
            let address = at + done;
            let Some((start, mapping)) = self.mapping(address) else {
                fault(device, address, "Page not present: nothing is mapped there");
            };
            match mapping.access[device] {
                0 => fault(device, address, "Page not present: the device has no access"),
                have if have & need != need => fault(device, address, "Write access to a read-only page"),
                _ => {}
            }
            if !start.is_multiple_of(UNIT) || !mapping.size.is_multiple_of(UNIT) {
                fault(device, address, "Page not present: this card maps no less than 2 MiB");
            }
            let length = (start + mapping.size - address).min(size - done);
            met.push((mapping, address - start, done..done + length));
            done += length;
        }
        met
    }
}
