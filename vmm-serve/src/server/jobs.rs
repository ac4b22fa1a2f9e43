//! The creation of memory: the one place where the server calls the driver.

use super::Server;
use super::books::{Book, Promise, place_of};
use super::connection::Role;
use super::job::{Job, Plan};
use super::program::Wanted;
use super::region::Region;
use crate::ServeError;
use crate::protocol::Reply;
use crate::sizes::{HANDLE, MAX_HANDLES};
use gpu_vmm_core::{Backend, Bytes, DeviceId, Granularity, Properties};
use std::collections::VecDeque;
use std::sync::Arc;

impl<B: Backend> Server<B> {
    /// Plans the memory of a new region, and counts it.
    pub(super) fn job_of_new_region(
        &mut self,
        size: Bytes,
        handle: Bytes,
        properties: Properties,
        (least, owner): (Granularity, u32),
    ) -> Result<Job<B>, ServeError> {
        let handle = if handle.is_zero() { HANDLE } else { handle };
        let handle = Bytes(handle.0.min(size.0).checked_next_multiple_of(least.bytes().0).unwrap_or(size.0));
        let count = size.0.div_ceil(handle.0);
        if count > MAX_HANDLES as u64 {
            return Err(ServeError::bad(format!(
                "{size} in handles of {handle} are {count} handles, and the limit is {MAX_HANDLES}"
            )));
        }
        self.job(size.0, properties, owner, Plan::New { handle, least })
    }

    /// Plans new memory for some handles of a region, and counts it.
    pub(super) fn job_of_renewal(
        &mut self,
        (properties, owner): (Properties, u32),
        plan: VecDeque<(u32, Bytes)>,
    ) -> Result<Job<B>, ServeError> {
        let size = plan.iter().map(|(_, size)| size.0).sum();
        self.job(size, properties, owner, Plan::Renewal(plan))
    }

    /// Begins a job, if the budget of its place and the limit of its owner have room for it. It waits if others wait, or if programs have
    /// what is missing: they are asked for it, or end.
    fn job(
        &mut self,
        size: u64,
        properties: Properties,
        owner: u32,
        plan: Plan,
    ) -> Result<Job<B>, ServeError> {
        let (place, book) = (place_of(&properties), self.books.of(&properties));
        let room = self.room(place, &book);
        let of_owner = self.granted(&book, |user| user == owner);
        self.check_user(owner, &book, size.saturating_sub(of_owner))?;
        if size > room.saturating_add(self.granted(&book, |_| true)) {
            return Err(self.over_budget(size, place, &book));
        }
        let mut job = Job { properties, promise: Promise::of(&book, 0), lacks: None, made: Vec::new(), plan };
        let fits = size <= room.min(self.room_of_user(owner, &book));
        if fits && !self.is_any_waiting(place) && self.settles_until().is_none() {
            job.begin(size);
        } else {
            let wanted = self.wanted(place, owner, (size, size));
            job.lacks = Some(Wanted { until: wanted.since + self.options.to_answer(), ..wanted });
        }
        Ok(job)
    }

    fn over_budget(&self, requested: u64, place: DeviceId, book: &Arc<Book>) -> ServeError {
        let granted = self.granted(book, |_| true);
        let (held, budget) = (book.held(), self.budget(place));
        let old = held.saturating_sub(self.named(Some(book)) + granted);
        ServeError::OverBudget { requested, held, old, budget }
    }

    /// Returns the size of the memory of all regions and of writers, in one place or everywhere.
    pub(super) fn named(&self, place: Option<&Arc<Book>>) -> u64 {
        let is_there =
            |memory: &Properties| place.is_none_or(|book| Arc::ptr_eq(book, &self.books.of(memory)));
        let regions = self.regions.0.values().filter(|region| is_there(&region.properties));
        let regions: u64 = regions.map(Region::bytes).sum();
        let leases = self.connections.values().filter_map(|one| one.lease());
        let writers = leases.map(|lease| {
            let made = lease.job.as_ref().filter(|job| is_there(&job.properties)).map_or(0, Job::bytes);
            let fresh = lease.fresh.values().filter(|handle| is_there(&handle.memory.properties()));
            made + fresh.map(|handle| handle.size().0).sum::<u64>()
        });
        regions + writers.sum::<u64>()
    }

    /// Creates one handle for one client. Clients have it by turns.
    pub(super) fn work(&mut self) {
        let mut jobs = self.connections.iter().filter(|(_, one)| one.has_job()).map(|(id, _)| *id);
        let first = jobs.clone().next();
        let Some(id) = jobs.find(|id| *id > self.worked).or(first) else { return };
        self.worked = id;
        let number = self.number();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(lease) = connection.lease_mut() else { return };
        let Some(mut job) = lease.job.take() else { return };
        let created = job.create_one(&self.backend, number).map_err(|error| {
            let requested = job.bytes();
            ServeError::NoMemory { requested, why: error.to_string() }
        });
        let created = created.and_then(|()| job.check_descriptors(self.options.clients));
        match created {
            Err(error) => self.job_failed(id, &job, error),
            Ok(()) if job.is_done() => self.job_done(id, job),
            Ok(()) => lease.job = Some(job),
        }
    }

    pub(super) fn job_failed(&mut self, id: u64, job: &Job<B>, why: ServeError) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.refuse(why);
        if matches!(job.plan, Plan::New { .. }) {
            // Without memory there is no region to have a lease of.
            self.forget_region_in_creation(id);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.role = Role::Idle { since: std::time::Instant::now() };
            }
        }
    }

    fn job_done(&mut self, id: u64, job: Job<B>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(lease) = connection.lease_mut() else { return };
        lease.holds.extend(job.made.iter().map(|(_, handle)| Arc::clone(handle)));
        lease.fresh.extend(job.made.iter().map(|(index, handle)| (*index, Arc::clone(handle))));
        let count = job.made.len() as u32;
        let reply = match job.plan {
            Plan::Renewal(_) => Reply::Renewed { count },
            Plan::New { .. } => {
                let (kind, region) = (lease.kind, self.regions.get(&lease.name, lease.region));
                let (address, size) = region.map_or((0, 0), |region| (region.address, region.size));
                Reply::Granted { kind, address, size, handles: count, epoch: 0, layout: false }
            }
        };
        connection.put(reply);
        connection.put_handles(&job.made);
    }
}
