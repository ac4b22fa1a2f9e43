//! Handles of a pool for its kinds of memory.

use crate::{Pool, PoolStats};
#[allow(unused_imports)] // named in documentation
use gpu_vmm_core::Detail;
use gpu_vmm_core::{Backend, Operation, Properties, Result};
use std::sync::Arc;

impl<B: Backend> Pool<B> {
    /// Returns the same pool for blocks of another kind of memory, such as host memory or memory that can be exported. The handle has
    /// the tag of this one: a tag belongs to a kind, and the same name in two kinds is two tags.
    ///
    /// All kinds share the budget. Each has addresses, streams, tags and statistics of its own, and exists as long as the pool. The
    /// properties decide: equal ones are one kind. Memory with the properties of [`PoolBuilder::memory`](crate::PoolBuilder::memory), or
    /// plain device memory without it, is the pool's own kind. [`first_supported`](gpu_vmm_core::first_supported) chooses properties that
    /// the device supports.
    ///
    /// ```
    /// # use gpu_vmm_core::{Backend, Bytes, DeviceId, Location, Properties, Result};
    /// # use gpu_vmm_pool::Pool;
    /// # fn example<B: Backend>(backend: &B) -> Result<()> {
    /// let pool = Pool::builder(backend).budget(Bytes::gib(4)).build()?;
    /// let host = pool.with_memory(Properties::on(DeviceId(0)).located(Location::Host))?;
    /// host.allow_access(DeviceId::HOST)?;
    /// let (on_device, on_host) = (pool.alloc(Bytes::mib(3))?, host.alloc(Bytes::mib(3))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Detail::Unsupported) or the driver's error for memory that the driver does not create, for properties of another
    /// device, for more than 64 kinds, and on a device without virtual memory management; [`Forked`](Detail::Forked) in a forked child.
    pub fn with_memory(&self, properties: Properties) -> Result<Self> {
        let operation = Operation::CreatePool;
        self.owner.inner.process.check(operation)?;
        let owner = match self.kinds.find(properties) {
            Some(owner) => owner,
            None => self.kinds.add(operation, properties)?,
        };
        let tag = Arc::clone(&self.tag);
        Self { owner, tag, kinds: Arc::clone(&self.kinds) }.tagged(&self.tag.name)
    }

    /// Returns the properties of the memory that this handle allocates.
    #[must_use]
    pub fn memory(&self) -> Properties {
        self.owner.memory()
    }

    /// Returns the statistics of each kind of memory of the pool, the pool's own kind first. [`stats`](Pool::stats) has those of this
    /// handle's kind alone. Other threads may change a kind while the next one is read. None in a forked child.
    #[must_use]
    pub fn kinds(&self) -> Vec<(Properties, PoolStats)> {
        match self.owner.inner.process.is_this() {
            true => self.kinds.all().iter().map(|owner| (owner.memory(), owner.stats())).collect(),
            false => Vec::new(),
        }
    }
}
