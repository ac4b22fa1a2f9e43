//! The emulated devices: a name, a granularity, and a counted amount of memory.

use crate::config::HostConfig;
use gpu_vmm_core::{
    Bytes, Detail, Device, DeviceId, DeviceUuid, DriverInfo, Error, Granularity, MemoryInfo, Operation,
    Result,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device's total and free memory. Dropping a [`Charge`] returns its memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    total: Bytes,
    free: AtomicU64,
}

impl DeviceMemory {
    pub(crate) fn new(total: Bytes) -> Arc<Self> {
        Arc::new(Self { total, free: AtomicU64::new(total.0) })
    }

    /// Takes `size` bytes, or returns `None` if less is free.
    pub(crate) fn take(self: &Arc<Self>, size: Bytes) -> Option<Charge> {
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(size.0)).ok()?;
        Some(Charge { device_memory: Arc::clone(self), size })
    }

    pub(crate) fn info(&self) -> MemoryInfo {
        MemoryInfo { free: Bytes(self.free.load(Ordering::Acquire)), total: self.total }
    }
}

/// Memory taken from a device's free amount.
#[derive(Debug)]
pub(crate) struct Charge {
    device_memory: Arc<DeviceMemory>,
    size: Bytes,
}

impl Charge {
    /// Keeps the memory taken forever, because it could not be released.
    pub(crate) fn keep(mut self) {
        self.size = Bytes::ZERO;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device_memory.free.fetch_add(self.size.0, Ordering::AcqRel);
    }
}

/// Returns the unit in which the MMU maps and protects.
pub(crate) fn page_size() -> Bytes {
    Bytes(rustix::param::page_size() as u64)
}

/// Why the devices have no virtual memory management, if the configuration says so.
const NO_VIRTUAL_MEMORY: &str = "the host backend was opened without it";

/// Returns the devices of a configuration.
pub(crate) fn devices(config: &HostConfig) -> Result<Vec<Device>> {
    let refuse = |reason| Err(Error::new(Operation::Open, Detail::Unsupported { reason }));
    if config.devices == 0 || config.devices > DeviceId::LIMIT {
        return refuse(format!("{} devices; there can be 1 to {}", config.devices, DeviceId::LIMIT));
    }
    let page = page_size();
    let granularity = match Granularity::new(config.granularity) {
        Some(granularity) if config.granularity >= page => granularity,
        _ => {
            let granularity = config.granularity;
            return refuse(format!(
                "a granularity of {granularity}; it must be a power of two and at least a page, {page}"
            ));
        }
    };
    let wanted = config.memory.unwrap_or_else(machine_memory);
    let total_memory = wanted - Bytes(wanted.0 % granularity.bytes().0);
    if total_memory.is_zero() {
        return refuse(format!(
            "{wanted} of memory a device; it must be at least the granularity, {granularity}"
        ));
    }
    let boot = boot_id();
    let device = |ordinal| Device {
        id: DeviceId(ordinal),
        name: format!("host memory {ordinal}"),
        uuid: Some(uuid(boot, ordinal)),
        total_memory,
        granularity,
        unusable: None,
        no_virtual_memory: (!config.virtual_memory).then(|| NO_VIRTUAL_MEMORY.to_owned()),
        compute_mode: None,
    };
    Ok((0..config.devices).map(device).collect())
}

/// Returns the granularity of host memory.
pub(crate) fn host_granularity(config: &HostConfig) -> Result<Granularity> {
    let (device, host) = (config.granularity, config.host_granularity.unwrap_or(config.granularity));
    Granularity::new(host).filter(|_| host >= device).ok_or_else(|| {
        let reason = format!(
            "a granularity of {host} for the host's memory; it must be {device} or a larger power of two"
        );
        Error::new(Operation::Open, Detail::Unsupported { reason })
    })
}

/// Returns the kernel's identifier of this boot, the same in every process and container of this machine. In a sandbox without
/// `/proc/sys`, a number made of the kernel's version: processes of other machines cannot import the memory in any case.
fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let id = text.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
    id.unwrap_or_else(|| hash(rustix::system::uname().version().to_bytes()))
}

/// Returns the hash FNV-1a of a text.
fn hash(text: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// Returns the UUID of a device: memory can be shared with every host backend of this machine that has the same device number.
fn uuid(boot: u128, ordinal: u32) -> DeviceUuid {
    DeviceUuid(boot.wrapping_add(ordinal.into()).to_be_bytes())
}

fn machine_memory() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes((info.totalram as u64).saturating_mul(info.mem_unit.into()))
}

/// Describes the kernel as the driver: `6.12.9` has the version number 6012.
pub(crate) fn kernel() -> DriverInfo {
    let version = rustix::system::uname().release().to_string_lossy().into_owned();
    let version_number = version_number(&version);
    DriverInfo { version, version_number, library: "the kernel's memfd_create and mmap".to_owned() }
}

fn version_number(release: &str) -> u32 {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    major.saturating_mul(1000).saturating_add(minor.min(999))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_gives_exactly_its_memory() {
        let device_memory = DeviceMemory::new(Bytes(10));
        let first = device_memory.take(Bytes(4)).unwrap();
        assert!(device_memory.take(Bytes(7)).is_none());
        let second = device_memory.take(Bytes(6)).unwrap();
        assert_eq!(device_memory.info(), MemoryInfo { free: Bytes(0), total: Bytes(10) });
        drop(first);
        second.keep();
        assert_eq!(device_memory.info().free, Bytes(4));
    }

    /// The number that the hash's authors give for this text.
    #[test]
    fn a_text_has_its_hash() {
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn reads_kernel_releases() {
        for (release, number) in [
            ("6.12.9-arch1-1", 6012),
            ("5.4.0", 5004),
            ("6.18.44-fc-v657", 6018),
            ("4.17-rc1", 4017),
            ("7", 7000),
            ("6.999.1", 6999),
            ("6.1234", 6999),
            ("5000000.1", u32::MAX),
            ("", 0),
        ] {
            assert_eq!(version_number(release), number, "{release}");
        }
    }
}
