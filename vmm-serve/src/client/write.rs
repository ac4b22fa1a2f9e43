//! New contents of a region.

use super::Lease;
use crate::ServeError;
use crate::layout::Layout;
use crate::protocol::{LeaseKind, Reply, Request};
use crate::sealed;
use gpu_vmm_core::{
    Access, Backend, Bytes, Detail, Error, OffsetRange, Operation, PhysicalMemory, Result, WaitFor,
};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What new memory of a writer contains.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RenewContents {
    /// The contents of the memory that it replaces, copied on the device.
    Copy,
    /// Undefined bytes, of no other user.
    Undefined,
}

impl<B: Backend> Lease<B> {
    /// Replaces the memory of a part by new memory, which this lease may write to. Readers keep the old memory until they map the
    /// next epoch. Whole handles are replaced; the range that is returned contains the part. Memory that was replaced since the
    /// last commit stays as it is.
    ///
    /// The call waits as `done` says before it unmaps the old memory here. The new memory counts against the server's budget
    /// beside the old one; as for a new region, programs are asked for what the budget lacks.
    ///
    /// # Errors
    ///
    /// [`ServeError::ReadLease`]; [`ServeError::OverBudget`], [`ServeError::NoRoom`], [`ServeError::NoMemory`] and [`ServeError::Dropped`];
    /// [`Detail::OutOfRange`]; errors of the connection and of the driver. What was replaced before the error stays so; a second call does
    /// the rest, and [`commit`](Self::commit) fails until then.
    pub fn renew(
        &mut self,
        offset: Bytes,
        length: Bytes,
        contents: RenewContents,
        done: WaitFor<'_>,
    ) -> Result<Range<Bytes>> {
        let operation = Operation::RenewMemory;
        self.check_writer(operation)?;
        // After a commit without a reply, what was new is read-only.
        self.exchange.operation = operation;
        self.exchange.check_in_step()?;
        let Some((first, count)) = self.touching(offset, length) else {
            let limit = self.region.end();
            let range = OffsetRange { offset, length };
            return Err(Error::new(operation, Detail::OutOfRange { range, limit }));
        };
        let mut at = first;
        while at < first + count {
            let is_new = |index: &u32| self.fresh.contains_key(index);
            let run = (at..first + count).take_while(|index| !is_new(index)).count() as u32;
            if run > 0 {
                self.renew_run(operation, at..at + run, contents, done)?;
            }
            at += run.max(1);
        }
        let start = |index: u32| {
            self.handles.iter().take(index as usize).fold(Bytes::ZERO, |sum, memory| sum + memory.size())
        };
        Ok(start(first)..start(first + count))
    }

    /// Replaces handles, none of which is new.
    fn renew_run(
        &mut self,
        operation: Operation,
        run: Range<u32>,
        contents: RenewContents,
        done: WaitFor<'_>,
    ) -> Result<()> {
        let Range { start: first, end } = run.clone();
        let request = Request::Renew { first, count: end - first };
        let count = self.request(operation, &request, &[], |reply| match reply {
            Reply::Renewed { count } if *count == end - first => Some(*count),
            _ => None,
        })?;
        // From here on the server has counted them as new.
        self.unmapped.extend(run.clone());
        let Self { exchange, handles, region, .. } = self;
        let fits = |index: u32, size| {
            run.contains(&index) && handles.get(index as usize).is_some_and(|memory| memory.size().0 == size)
        };
        let new = exchange.receive_handles(region.backend(), count, fits)?;
        if contents == RenewContents::Copy {
            for (index, memory) in &new {
                memory.copy_from(Bytes::ZERO, &handles[*index as usize], Bytes::ZERO, memory.size())?;
            }
        }
        let indexes: Vec<u32> = new.iter().map(|(index, _)| *index).collect();
        self.fresh.extend(new);
        if let Err(error) = self.arrange(operation, done) {
            for index in indexes {
                self.fresh.remove(&index);
            }
            return Err(error);
        }
        self.unmapped.retain(|index| !run.contains(index));
        Ok(())
    }

    /// Makes the new memory the region's next epoch, for clients that open the region from now on and for readers when they
    /// [apply](Self::apply) it, and returns its number. A layout replaces the former one.
    ///
    /// The call first takes the right to write to the new memory from the device, for which it waits for all work on the device.
    /// This lease then has the epoch mapped read-only.
    ///
    /// # Errors
    ///
    /// [`ServeError::ReadLease`], [`ServeError::Dropped`]; errors of the connection and of the driver. The new memory is then writable
    /// and uncommitted, as before. If the connection is lost before the reply, the epoch may have been committed: the memory stays
    /// read-only, and the lease has no further requests.
    pub fn commit(&mut self, layout: Option<&Layout>) -> Result<u64> {
        let operation = Operation::Commit;
        self.check_writer(operation)?;
        if let Some(index) = self.unmapped.first() {
            let why =
                format!("handle {index} was not mapped by an earlier renewal, which must be repeated first");
            return Err(Error::of_extension(operation, ServeError::bad(why)));
        }
        let file: Option<OwnedFd> = match layout {
            None => None,
            Some(layout) => {
                let bytes = layout.encode().map_err(|error| Error::of_extension(operation, error))?;
                Some(sealed::file(operation, &bytes)?)
            }
        };
        self.set_fresh_access(Access::Read)?;
        let committed = self.send_commit(operation, file.as_ref());
        let epoch = match committed {
            Ok(epoch) => epoch,
            Err(error) => {
                // Without a reply, it may be the epoch, which does not change.
                if !self.exchange.is_lost() {
                    // The error of the commit says more.
                    let _ = self.set_fresh_access(Access::ReadWrite);
                }
                return Err(error);
            }
        };
        for (index, memory) in std::mem::take(&mut self.fresh) {
            self.handles[index as usize] = memory;
        }
        self.epoch = epoch;
        if let Some(layout) = layout {
            self.layout = layout.as_received();
        }
        Ok(epoch)
    }

    fn send_commit(&mut self, operation: Operation, file: Option<&OwnedFd>) -> Result<u64> {
        let descriptors: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
        let request = Request::Commit { layout: file.is_some() };
        self.request(operation, &request, &descriptors, |reply| match reply {
            Reply::Committed { epoch } => Some(*epoch),
            _ => None,
        })
    }

    /// Makes this write lease a read lease, so that another client can write. New memory that was not committed is lost, and
    /// the epoch's memory is mapped in its place; the call waits as `done` says before that.
    ///
    /// # Errors
    ///
    /// [`ServeError::ReadLease`], [`ServeError::BadRequest`] for a region that was never committed; errors of the connection and of
    /// the driver.
    pub fn downgrade(&mut self, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::DowngradeLease;
        self.check_writer(operation)?;
        if self.epoch == 0 {
            let error = ServeError::bad("the region is not committed yet");
            return Err(Error::of_extension(operation, error));
        }
        let fresh = std::mem::take(&mut self.fresh);
        if let Err(error) = self.arrange(operation, done) {
            self.fresh = fresh;
            return Err(error);
        }
        // From here on the new memory is lost here; a second call says so to the server.
        self.unmapped.extend(fresh.keys());
        self.request(operation, &Request::Downgrade, &[], |reply| {
            (*reply == Reply::Downgraded).then_some(())
        })?;
        self.kind = LeaseKind::Read;
        self.unmapped.clear();
        Ok(())
    }

    /// Sends a request and waits for its reply, of which `expected` returns the contents. Meanwhile the server may report, once, that
    /// the region was dropped.
    fn request<T>(
        &mut self,
        operation: Operation,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        expected: impl FnOnce(&Reply) -> Option<T>,
    ) -> Result<T> {
        self.exchange.operation = operation;
        self.exchange.check_in_step()?;
        self.exchange.send(request, descriptors)?;
        let reply = loop {
            match self.exchange.receive_memory() {
                Ok((Reply::Dropped, _)) if !self.is_dropped => self.is_dropped = true,
                Ok((reply, _)) => break reply,
                Err(error) => {
                    if error.extension::<ServeError>().is_none() {
                        self.exchange.lose();
                    }
                    return Err(error);
                }
            }
        };
        match expected(&reply) {
            Some(contents) => Ok(contents),
            None => {
                self.exchange.lose();
                self.exchange.out_of_turn(&reply, "the reply to a request")
            }
        }
    }

    fn check_writer(&self, operation: Operation) -> Result<()> {
        match self.kind {
            LeaseKind::Write => Ok(()),
            LeaseKind::Read => {
                Err(Error::of_extension(operation, ServeError::ReadLease { name: self.name.clone() }))
            }
        }
    }

    /// Sets the device's access to all new memory.
    fn set_fresh_access(&mut self, access: Access) -> Result<()> {
        let Self { region, handles, fresh, .. } = self;
        let mut offset = Bytes::ZERO;
        let mut changed: Vec<(Bytes, Bytes)> = Vec::new();
        for (index, memory) in handles.iter().enumerate() {
            let size = memory.size();
            if fresh.contains_key(&(index as u32)) {
                match changed.last_mut() {
                    // Neighbours change in one call, which waits once for the device.
                    Some((at, length)) if *at + *length == offset => *length += size,
                    _ => changed.push((offset, size)),
                }
            }
            offset += size;
        }
        let Some(device) = handles.first().map(PhysicalMemory::device) else { return Ok(()) };
        changed.into_iter().try_for_each(|(offset, length)| region.set_access(offset, length, device, access))
    }
}
