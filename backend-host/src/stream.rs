//! Checking the streams that callers pass.

use crate::host::Host;
use crate::stream_names::{DEVICES, default_of, device_of};
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, Result, Stream};

/// Returns the device and the name of a stream. The default stream belongs to `device`.
pub(crate) fn of(
    host: &Host,
    operation: Operation,
    device: DeviceId,
    stream: Stream<'_>,
) -> Result<(DeviceId, usize)> {
    host.device_memory(operation, device)?;
    Ok(match check(host, operation, stream)? {
        None => (device, default_of(device)),
        Some(own) => (own, stream.as_raw().addr()),
    })
}

/// Returns the name of a stream that must belong to `device`.
pub(crate) fn on(host: &Host, operation: Operation, device: DeviceId, stream: Stream<'_>) -> Result<usize> {
    match of(host, operation, device, stream)? {
        (own, _) if own != device => Err(Error::new(
            operation,
            Detail::ForeignStream { theirs: own.to_string(), ours: device.to_string() },
        )),
        (_, name) => Ok(name),
    }
}

/// Returns the device of a stream, `None` for the default one; an error if it is not a stream of the host backend.
pub(crate) fn check(host: &Host, operation: Operation, stream: Stream<'_>) -> Result<Option<DeviceId>> {
    host.process.check(operation)?;
    let name = stream.as_raw().addr();
    if name == 0 {
        return Ok(None);
    }
    if name < DEVICES {
        let reason = format!("{name:#x} is not a stream of the host backend; pass one that it created");
        return Err(Error::new(operation, Detail::Unsupported { reason }));
    }
    let device = device_of(name);
    host.device_memory(operation, device).map(|_| Some(device))
}
