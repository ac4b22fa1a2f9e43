use gpu_vmm_core::*;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(windows)]
use std::os::windows::io::BorrowedHandle;

#[derive(Clone, Debug)]
struct Forward<B>(B);

macro_rules! identity { () => {
fn vendor(&self) -> Vendor { self.0.vendor() }
fn instance(&self) -> InstanceId { self.0.instance() }
fn driver(&self) -> DriverInfo { self.0.driver() }
fn devices(&self) -> &[Device] { self.0.devices() }
fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> { self.0.memory_info(device) }
fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> { self.0.can_access(device, owner) }
fn capabilities(&self, device: DeviceId) -> Result<Vec<Capability>> { self.0.capabilities(device) }
fn quirks(&self) -> Vec<Quirk> { self.0.quirks() }
fn unmaps_runs(&self) -> bool { self.0.unmaps_runs() }
fn check_host_access(&self, operation: Operation, properties: &Properties) -> Result<()> { self.0.check_host_access(operation, properties) }
fn drop_log(&self) -> &DropLog { self.0.drop_log() }
fn deferred(&self) -> &Deferred { self.0.deferred() }
} }
macro_rules! memory { () => {
type Handle = B::Handle;
type Reservation = B::Reservation;
unsafe fn create(&self, size: Bytes, properties: &Properties) -> Result<Self::Handle> { unsafe { self.0.create(size, properties) } }
#[cfg(unix)]
unsafe fn import(&self, fd: BorrowedFd<'_>, size: Bytes, properties: &Properties) -> Result<Self::Handle> { unsafe { self.0.import(fd, size, properties) } }
#[cfg(windows)]
unsafe fn import_win32( &self, from: BorrowedHandle<'_>, size: Bytes, properties: &Properties, ) -> Result<Self::Handle> { unsafe { self.0.import_win32(from, size, properties) } }
unsafe fn import_fabric( &self, handle: &FabricHandle, size: Bytes, properties: &Properties, ) -> Result<Self::Handle> { unsafe { self.0.import_fabric(handle, size, properties) } }
unsafe fn reserve( &self, size: Bytes, alignment: Alignment, hint: Option<Address>, ) -> Result<Self::Reservation> { unsafe { self.0.reserve(size, alignment, hint) } }
} }
macro_rules! copies { () => {
unsafe fn copy_from_host(&self, device: DeviceId, to: Address, from: &[u8]) -> Result<()> { unsafe { self.0.copy_from_host(device, to, from) } }
unsafe fn copy_to_host(&self, device: DeviceId, to: &mut [u8], from: Address) -> Result<()> { unsafe { self.0.copy_to_host(device, to, from) } }
unsafe fn copy(&self, device: DeviceId, to: Address, from: Address, length: Bytes) -> Result<()> { unsafe { self.0.copy(device, to, from, length) } }
unsafe fn fill(&self, device: DeviceId, at: Address, length: Bytes, value: u8) -> Result<()> { unsafe { self.0.fill(device, at, length, value) } }
fn pin(&self, size: Bytes) -> Result<Box<dyn Pinned>> { self.0.pin(size) }
fn copy_stream(&self, device: DeviceId) -> Result<Box<dyn CopyStream>> { self.0.copy_stream(device) }
} }
macro_rules! waiting { () => {
fn synchronize(&self, device: DeviceId) -> Result<()> { self.0.synchronize(device) }
fn synchronize_stream(&self, device: DeviceId, stream: Stream<'_>) -> Result<()> { self.0.synchronize_stream(device, stream) }
fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> { self.0.event(device) }
fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> { self.0.is_capturing(stream) }
fn queries_spoil_captures(&self) -> bool { self.0.queries_spoil_captures() }
} }
