//! Programs that have a part of a device's budget, and what they request.

use super::Server;
use super::books::{Book, Promise};
use super::connection::{Connection, Role};
use super::leave::{Left, is_same_process};
use super::peer::Peer;
use super::program::{Program, Wanted};
use super::region::Region;
use crate::ServeError;
use crate::name;
use crate::protocol::{Join, MAX_WAIT_MS, ProgramReport, Reply, WITH_PROGRAMS};
use gpu_vmm_core::{Backend, Bytes, DeviceId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after the start of a server in which pools join that an earlier server knew, which was killed.
pub(super) const TO_RETURN: Duration = Duration::from_secs(1);

/// How many holders a refusal names.
const NAMED: usize = 8;

impl<B: Backend> Server<B> {
    /// Begins a program.
    pub(super) fn join(&mut self, id: u64, join: Join) -> Result<(), ServeError> {
        let Join { name, device, priority, holds } = join;
        name::check(&name).map_err(ServeError::bad)?;
        let known = self.backend.devices().iter().find(|known| known.uuid == Some(device));
        let place = known.map(|known| known.id);
        let place =
            place.ok_or_else(|| ServeError::bad(format!("the server does not see the device {device}")))?;
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        if connection.version < WITH_PROGRAMS {
            return Err(ServeError::bad("programs are known from version 2 of the protocol on"));
        }
        if priority > 0 && !self.is_own(&connection.peer) {
            return Err(ServeError::bad(format!(
                "the priority {priority} of user {}: those above 0 are for the server's own user and for root",
                connection.peer.user_number()
            )));
        }
        let (user, book) = (connection.peer.user_number(), self.books.at(place));
        // What a connection of this pool has left that has ended without notice.
        let earlier = self.left_by(id, (&name, holds), place);
        let of_earlier = earlier.map_or(0, |at| self.lingering[at].grant().map_or(0, Promise::left));
        let more = holds.saturating_sub(of_earlier);
        self.check_program(0, holds)?;
        self.check_user(user, &book, more)?;
        let room = self.room(place, &book);
        if more > room {
            return Err(self.no_room(id, place, (more, room, 0)));
        }
        earlier.map(|at| self.lingering.swap_remove(at));
        self.note_join(holds);
        let grant = Promise::of(&book, holds);
        let program = Program {
            name,
            device,
            place,
            priority,
            grant,
            wants: None,
            asked: None,
            report: ProgramReport::default(),
            described: None,
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Program(Box::new(program));
            connection.put(Reply::Joined);
        }
        Ok(())
    }

    /// Returns the place of what an earlier connection of the same pool has left. Of several pools with one name, the pool that had about
    /// as much: what the others have left counts until they come.
    fn left_by(&self, id: u64, (name, holds): (&str, u64), place: DeviceId) -> Option<usize> {
        let peer = &self.connections.get(&id)?.peer;
        let process = peer.handle.as_ref()?;
        let left = self.lingering.iter().enumerate().filter_map(|(at, one)| match &one.left {
            Left::Program { program, .. } if program.name == name && program.place == place => {
                let is_same = is_same_process((&one.process, one.number()), (process, peer.process));
                is_same.then(|| (program.grant.left().abs_diff(holds), at))
            }
            _ => None,
        });
        left.min().map(|(_, at)| at)
    }

    /// Records what a program wants, or grants or refuses it at once.
    pub(super) fn reserve(
        &mut self,
        id: u64,
        number: u64,
        (least, most): (u64, u64),
        (wait_ms, asks): (u64, bool),
    ) {
        let Some(program) = self.connections.get(&id).and_then(|one| one.program()) else { return };
        let (place, book, has) = (program.place, Arc::clone(program.grant.book()), program.grant.left());
        let user = self.connections.get(&id).map_or(u32::MAX, |one| one.peer.user_number());
        // Requests may have been served last long ago, before that time.
        let is_settling = self.settles_until().is_some_and(|until| until > Instant::now());
        let possible = self.check_program(has, least).and_then(|()| self.check_possible(id, (has, least)));
        let granted = possible.and_then(|()| {
            let room = self.room(place, &book).min(self.room_of_user(user, &book));
            // Who waits goes first.
            let is_first = !self.is_any_waiting(place) && !is_settling;
            let most =
                most.max(least).min(self.options.program_limit.map_or(u64::MAX, |limit| limit.0 - has));
            match (room >= least && is_first, asks) {
                (true, _) => Ok(Some(most.min(room))),
                (false, true) => Ok(None),
                (false, false) => Err(self.no_room(id, place, (least, room, 0))),
            }
        });
        let waits = matches!(granted, Ok(None)).then(|| self.wanted(place, user, (least, most)));
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(program) = connection.program_mut() else { return };
        match granted {
            Ok(None) => {
                let wait = Duration::from_millis(wait_ms.min(MAX_WAIT_MS));
                program.wants = waits.map(|wanted| Wanted { number, until: wanted.since + wait, ..wanted });
            }
            Ok(Some(bytes)) => {
                program.wants = None;
                program.grant.raise(bytes);
                connection.put(Reply::Budget { number, granted: Ok(bytes) });
            }
            Err(error) => {
                program.wants = None;
                connection.put(Reply::Budget { number, granted: Err(error) });
            }
        }
    }

    /// Takes back what a program gives.
    pub(super) fn give(&mut self, id: u64, ask: u64, bytes: u64) {
        let Some(program) = self.connections.get_mut(&id).and_then(|one| one.program_mut()) else { return };
        let bytes = bytes.min(program.grant.left());
        program.grant.lower(bytes);
        if let Some(wanted) = &mut program.wants {
            // It needs that again.
            (wanted.least, wanted.most) =
                (wanted.least.saturating_add(bytes), wanted.most.saturating_add(bytes));
        }
        let (place, is_late) = (program.place, program.is_late());
        program.asked.take_if(|asked| asked.ask == ask);
        if ask == 0 || is_late {
            // Not the answer to a question of this round: it may change what others can get.
            self.pressure(place).restart();
        }
    }

    pub(super) fn report(&mut self, id: u64, report: ProgramReport) {
        let Some(program) = self.connections.get_mut(&id).and_then(|one| one.program_mut()) else { return };
        let can_sleep = report.can_sleep > program.report.can_sleep;
        (program.report, program.described) = (report, Some(Instant::now()));
        let place = program.place;
        if can_sleep {
            self.pressure(place).restart();
        }
    }

    /// Ends a program whose pool has no memory any more.
    pub(super) fn leave(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let place = connection.program().map(|program| program.place);
        connection.end_when_sent();
        place.into_iter().for_each(|place| self.pressure(place).restart());
    }

    /// Returns the programs that are connected.
    pub(super) fn programs(&self) -> impl Iterator<Item = (u64, &Connection<B>, &Program)> {
        self.connections.iter().filter_map(|(id, one)| Some((*id, one, one.program()?)))
    }

    /// Returns the parts of the budget that programs have, connected or not, with their users.
    pub(super) fn grants(&self) -> impl Iterator<Item = (u32, &Promise)> {
        let connected = self.programs().map(|(_, one, program)| (one.peer.user_number(), &program.grant));
        connected.chain(self.lingering.iter().filter_map(|one| Some((one.user(), one.grant()?))))
    }

    /// Returns what programs of some users have of a book, connected or not.
    pub(super) fn granted(&self, book: &Arc<Book>, is_user: impl Fn(u32) -> bool) -> u64 {
        let on_it = self.grants().filter(|(user, grant)| is_user(*user) && Arc::ptr_eq(grant.book(), book));
        on_it.map(|(_, grant)| grant.left()).sum()
    }

    /// Returns the most that regions and programs may have on a device together.
    pub(super) fn budget(&self, place: DeviceId) -> u64 {
        let total =
            || self.backend.devices().iter().find(|device| device.id == place).map(|one| one.total_memory);
        self.options.budget.or_else(total).map_or(u64::MAX, |budget| budget.0)
    }

    /// Returns what is free of a device's budget.
    pub(super) fn room(&self, place: DeviceId, book: &Book) -> u64 {
        self.budget(place).saturating_sub(book.held())
    }

    /// Returns what a user may have more, of regions and of the budget, in one place.
    pub(super) fn room_of_user(&self, user: u32, place: &Arc<Book>) -> u64 {
        let Some(limit) = self.options.limit_of_user(user) else { return u64::MAX };
        limit.0.saturating_sub(self.held_by_user(user, place))
    }

    fn held_by_user(&self, user: u32, place: &Arc<Book>) -> u64 {
        let is_there = |region: &&Region<B>| Arc::ptr_eq(&self.books.of(&region.properties), place);
        // A new region that waits for its memory is a request, and has none.
        let waits = |region: &Region<B>| {
            let writer = region.writer.filter(|_| region.epoch == 0);
            writer.and_then(|id| self.connections.get(&id)?.waits()).is_some()
        };
        let regions = self.regions.0.values().filter(|region| region.owner == user && !waits(region));
        let regions: u64 = regions.filter(is_there).map(|region| region.size).sum();
        regions + self.granted(place, |other| other == user)
    }

    /// Fails if a user would have more than its limit.
    pub(super) fn check_user(&self, user: u32, place: &Arc<Book>, more: u64) -> Result<(), ServeError> {
        match self.options.limit_of_user(user) {
            Some(limit) if more > self.room_of_user(user, place) => Err(ServeError::OverLimit {
                whose: format!("user {user}"),
                limit: limit.0,
                has: self.held_by_user(user, place),
                requested: more,
            }),
            _ => Ok(()),
        }
    }

    fn check_program(&self, has: u64, requested: u64) -> Result<(), ServeError> {
        match self.options.program_limit {
            Some(Bytes(limit)) if has.saturating_add(requested) > limit => {
                let whose = "each program".to_owned();
                Err(ServeError::OverLimit { whose, limit, has, requested })
            }
            _ => Ok(()),
        }
    }

    /// Fails for what a program could not have even if all others gave back all that they have. Such a request would only let others wait
    /// and give.
    fn check_possible(&self, id: u64, (has, requested): (u64, u64)) -> Result<(), ServeError> {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let Some(program) = connection.program() else { return Ok(()) };
        let (user, all) = (connection.peer.user_number(), has.saturating_add(requested));
        match self.options.limit_of_user(user) {
            Some(Bytes(limit)) if all > limit => {
                let has = self.held_by_user(user, program.grant.book());
                Err(ServeError::OverLimit { whose: format!("user {user}"), limit, has, requested })
            }
            _ if all > self.budget(program.place) => {
                let room = self.room(program.place, program.grant.book());
                Err(self.no_room(id, program.place, (requested, room, 0)))
            }
            _ => Ok(()),
        }
    }

    /// Notes that a pool has joined with memory: the server may have been started again, and others come too.
    fn note_join(&mut self, holds: u64) {
        self.is_again |= holds > 0 && Instant::now() < self.returns_until;
    }

    /// Returns until when pools may still come that an earlier server knew. Until then nothing is granted that they may hold.
    pub(super) fn settles_until(&self) -> Option<Instant> {
        Some(self.returns_until).filter(|until| self.is_again && *until > self.pressed)
    }

    /// Returns true for the server's own user and for root.
    pub(super) fn is_own(&self, peer: &Peer) -> bool {
        peer.is_root() || peer.user == Some(rustix::process::geteuid().as_raw())
    }

    /// Returns true if a peer may see the name of a user's program.
    pub(super) fn sees(&self, peer: &Peer, user: u32) -> bool {
        self.is_own(peer) || peer.user == Some(user)
    }

    /// Returns why a program gets nothing: who holds the most, and who did not answer.
    pub(super) fn no_room(
        &self,
        id: u64,
        place: DeviceId,
        (requested, free, waited_ms): (u64, u64, u64),
    ) -> ServeError {
        let Some(asking) = self.connections.get(&id) else { return ServeError::bad("the program has ended") };
        let book = self.books.at(place);
        let shown = |one: &Connection<B>, program: &Program| {
            program.shown(one.peer.process, self.sees(&asking.peer, one.peer.user_number()))
        };
        let on_it = || self.programs().filter(|(other, _, program)| *other != id && program.place == place);
        let mut holders: Vec<(u64, String)> =
            on_it().map(|(_, one, program)| (program.grant.left(), shown(one, program))).collect();
        let ended = self.lingering.iter().filter_map(|one| Some((one.grant()?, one.number())));
        let ended = ended.filter(|(grant, _)| Arc::ptr_eq(grant.book(), &book));
        holders.extend(
            ended.map(|(grant, number)| (grant.left(), format!("process {number}, no longer connected"))),
        );
        holders.push((self.named(Some(&book)), "regions".to_owned()));
        holders.retain(|(bytes, _)| *bytes > 0);
        holders.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let holders = holders.iter().take(NAMED).map(|(bytes, who)| format!("{} has {}", who, Bytes(*bytes)));
        let late = on_it().filter(|(_, _, program)| program.is_late());
        let unanswered = late.take(NAMED).map(|(_, one, program)| shown(one, program));
        ServeError::NoRoom {
            requested,
            budget: self.budget(place),
            free,
            waited_ms,
            holders: holders.collect::<Vec<_>>().join(", "),
            unanswered: unanswered.collect::<Vec<_>>().join(", "),
        }
    }
}
