//! Moving data: `hipMemcpy`, `hipMemset`, and waiting. Each device has one queue, its null stream, whose work is done
//! when it is waited for.
#![allow(unsafe_code, non_snake_case)] // HIP's interface

use crate::c::{Answer, HipError, call, current, fault, require, stop};
use crate::state::{Mapping, Source, State};
use std::ffi::{c_int, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Access that a device needs: `hipMemAccessFlagsProtRead`, `hipMemAccessFlagsProtReadWrite`.
const READ: u32 = 1;
const READ_WRITE: u32 = 3;
/// What RDNA4 can map without faulting.
const UNIT: usize = 2 << 20;
/// What comes out of a mapping that was corrupted.
const GARBAGE: u8 = 0xa5;

/// Something queued on a stream, and the device that will do it.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) by: usize,
    pub(crate) to: usize,
    pub(crate) size: usize,
    pub(crate) what: What,
}

#[derive(Clone, Copy)]
pub(crate) enum What {
    Fill(u8),
    CopyFrom(usize),
    /// From an address of a device's to `to`, which is the host's.
    ToHost(usize),
    /// From an address of the host's.
    FromHost(usize),
}

/// `hipMemcpyHostToDevice`, `hipMemcpyDeviceToHost`, `hipMemcpyDeviceToDevice`.
pub(crate) const TO_DEVICE: c_int = 1;
pub(crate) const TO_HOST: c_int = 2;
const ON_DEVICE: c_int = 3;

/// # Safety
///
/// As HIP has it: a side that is the host's is as long as is said.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int) -> HipError {
    call(|state| {
        require(!to.is_null() && !from.is_null())?;
        match kind {
            _ if size == 0 => Ok(()),
            TO_DEVICE => {
                let device = state.engine_beside(from.addr(), to.addr(), size)?;
                // SAFETY: the host's side is that long, as the caller promises.
                let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
                state.finish(current());
                state.write(device, to.addr(), bytes);
                Ok(())
            }
            TO_HOST => {
                let device = state.engine_beside(to.addr(), from.addr(), size)?;
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), size) };
                state.finish(current());
                state.read(device, from.addr(), bytes);
                Ok(())
            }
            ON_DEVICE => {
                let by = state.engine(from.addr(), size)?;
                state.engine(to.addr(), size)?;
                let work = Work { by, to: to.addr(), size, what: What::CopyFrom(from.addr()) };
                state.devices[current()].queue.push_back(work);
                Ok(())
            }
            _ => Err(HipError::INVALID_VALUE),
        }
    })
}

/// # Safety
///
/// None: the address is looked up.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemset(at: *mut c_void, value: c_int, size: usize) -> HipError {
    call(|state| {
        require(!at.is_null())?;
        if size == 0 {
            return Ok(());
        }
        let at = at.addr();
        state.engine(at, size)?;
        if state.bucket.fill_opens_access
            && let Some((start, _)) = state.reservation(at).and_then(|found| found.mapping(at))
            && let Some(mapping) = state.mapped_mut(start)
        {
            mapping.access[current()] = READ_WRITE;
        }
        let work = Work { by: current(), to: at, size, what: What::Fill(value as u8) };
        state.devices[current()].queue.push_back(work);
        Ok(())
    })
}

/// # Safety
///
/// None: streams are looked up.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamSynchronize(stream: *mut c_void) -> HipError {
    call(|state| {
        if !stream.is_null() {
            return state.finish_stream(stream.addr());
        }
        state.finish(current());
        Ok(())
    })
}

/// # Safety
///
/// None.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceSynchronize() -> HipError {
    call(|state| {
        state.finish(current());
        Ok(())
    })
}

impl State {
    /// The device that does a copy with this side. HIP looks at the side's first byte and at how much is reserved.
    fn engine(&self, at: usize, size: usize) -> Answer<usize> {
        let place = self.place(at).ok_or(HipError::INVALID_VALUE)?;
        let (_, mapping) = place.mapping(at).ok_or(HipError::INVALID_VALUE)?;
        require(size <= place.end() - at)?;
        Ok(if self.bucket.copy_by_source { mapping.device } else { current() })
    }

    /// The same for a copy to or from the host's memory at an address.
    pub(crate) fn engine_beside(&self, host: usize, at: usize, size: usize) -> Answer<usize> {
        let device = self.engine(at, size)?;
        Ok(if self.bucket.pinned_by_first && self.is_locked(host) { 0 } else { device })
    }

    /// Does all that is queued on a device's null stream.
    pub(crate) fn finish(&mut self, device: usize) {
        while let Some(work) = self.devices[device].queue.pop_front() {
            self.work(work);
        }
    }

    pub(crate) fn work(&mut self, Work { by, to, size, what }: Work) {
        let bytes = match what {
            What::Fill(value) => vec![value; size],
            What::CopyFrom(from) | What::ToHost(from) => {
                let mut bytes = vec![0; size];
                self.read(by, from, &mut bytes);
                bytes
            }
            // SAFETY: whoever queued the copy keeps the host's side until it is done.
            What::FromHost(from) => unsafe {
                std::slice::from_raw_parts(with_exposed_provenance(from), size).to_vec()
            },
        };
        if let What::ToHost(_) = what {
            let to = with_exposed_provenance_mut::<u8>(to);
            // SAFETY: as above.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), size) };
        } else {
            self.write(by, to, &bytes);
        }
    }

    /// True where work that a device will do touches the mapping at an address.
    pub(crate) fn is_waiting_for(&self, device: usize, at: usize) -> bool {
        let Some(mapping) = self.mapped(at) else { return false };
        let touches = |start: usize, size: usize| start < at + mapping.size && at < start + size;
        let queues = self.devices.iter().map(|device| &device.queue);
        let queues = queues.chain(self.streams.values().map(|stream| &stream.queue));
        queues.flatten().filter(|work| work.by == device).any(|work| {
            let reads = matches!(
                work.what, What::CopyFrom(from) | What::ToHost(from) if touches(from, work.size)
            );
            reads || touches(work.to, work.size)
        })
    }

    fn read(&self, device: usize, from: usize, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let (start, mapping) = self.touch(device, from + done, READ);
            let offset = from + done - start;
            let length = (mapping.size - offset).min(to.len() - done);
            let part = &mut to[done..done + length];
            if mapping.is_corrupt {
                part.fill(GARBAGE);
            } else if let Source::Physical(number) = mapping.source
                && let Err(error) = self.memory(number).memory.read(offset, part)
            {
                stop(format_args!("the memory behind {start:#x} cannot be read: {error}"));
            }
            done += length;
        }
    }

    fn write(&self, device: usize, to: usize, from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            let (start, mapping) = self.touch(device, to + done, READ_WRITE);
            let offset = to + done - start;
            let length = (mapping.size - offset).min(from.len() - done);
            if let Source::Physical(number) = mapping.source
                && !mapping.is_corrupt
                && let Err(error) = self.memory(number).memory.write(offset, &from[done..done + length])
            {
                stop(format_args!("the memory behind {start:#x} cannot be written: {error}"));
            }
            done += length;
        }
    }

    /// The mapping that a device meets at an address, or the end of the process.
    fn touch(&self, device: usize, address: usize, need: u32) -> (usize, &Mapping) {
        let Some((start, mapping)) = self.place(address).and_then(|place| place.mapping(address)) else {
            fault(device, address, "Page not present: nothing is mapped there");
        };
        let have = mapping.access[device];
        if have & need != need {
            let reason = match have {
                0 => "Page not present: the device has no access",
                _ => "Write access to a read-only page",
            };
            fault(device, address, reason);
        }
        if mapping.handle != 0 && !(start.is_multiple_of(UNIT) && mapping.size.is_multiple_of(UNIT)) {
            fault(device, address, "Page not present: this card maps no less than 2 MiB");
        }
        (start, mapping)
    }
}
