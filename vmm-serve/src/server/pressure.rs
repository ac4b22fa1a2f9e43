//! Requests that wait for memory which programs have, in rounds of questions.
//!
//! A request is a program's, or that of a writer for a region's memory. They are served in the order of [`Waits::order`]. The server asks one program at a time for what the first one lacks, of the lowest
//! priority first: each for what it does not use, and then each for what can sleep. A round ends when all have answered, or are late. A
//! request is refused when its time is over and a round has ended that began after it came.

use super::Server;
use super::connection::Connection;
use super::program::{OpenQuestion, Program, Waits, Wanted};
use crate::protocol::Reply;
use gpu_vmm_core::{Backend, DeviceId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The pause between two rounds, while no program gives anything.
const PAUSE: Duration = Duration::from_millis(250);

/// The rounds of questions on one device.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// The programs that were asked in this half of the round.
    asked: BTreeSet<u64>,
    /// True in the second half, in which programs are asked for what can sleep.
    sleeps: bool,
    /// The number of rounds that have ended.
    ended: u64,
    /// True if something has changed since the round began: another round follows at once.
    is_stale: bool,
    /// No round begins before this.
    paused: Option<Instant>,
    /// Requests that there is no room for have rounds by turns.
    turn: usize,
    /// The connection that the round is for.
    serves: u64,
}

impl Pressure {
    /// Returns the number of ended rounds after which one has ended that begins from now on.
    pub(super) fn whole_rounds(&self) -> u64 {
        self.ended + u64::from(!self.asked.is_empty() || self.sleeps)
    }

    /// Lets a round begin that asks everybody, after the one that is under way.
    pub(super) fn restart(&mut self) {
        self.is_stale = true;
        self.paused = None;
    }

    /// Forgets a round that no request waits for any more.
    pub(super) fn forget_round(&mut self) {
        self.asked.clear();
        self.sleeps = false;
    }

    /// Ends a round. The next one begins after a pause if all have had their turn and nothing has changed.
    fn end_round(&mut self, now: Instant, is_last: bool) {
        self.forget_round();
        self.ended += 1;
        let pauses = is_last && !std::mem::take(&mut self.is_stale);
        self.paused = Some(if pauses { now + PAUSE } else { now });
    }
}

impl<B: Backend> Server<B> {
    pub(super) fn pressure(&mut self, place: DeviceId) -> &mut Pressure {
        self.pressures.entry(place).or_default()
    }

    /// Serves the requests that wait, as far as there is memory, and asks for more.
    pub(super) fn press(&mut self) {
        (self.has_ended, self.pressed) = (false, Instant::now());
        self.note_late();
        let waiting = self.connections.values().filter_map(Connection::waits);
        let mut places: Vec<DeviceId> = waiting.map(|waits| waits.place).collect();
        places.sort_unstable();
        places.dedup();
        for place in places {
            // What waits behind a request that is refused may have room.
            while {
                let blocked = self.serve(place);
                self.refuse_late(place, &blocked)
            } {}
        }
    }

    /// Serves the requests of a device in their order, and asks for one of those that it has no room for. Returns these.
    ///
    /// A request that the device, or the limit of its user, has no room for lets later ones wait. Once a whole round has been in vain for it,
    /// requests of programs that have memory are served all the same: what it waits for may be theirs, and come back only when they go on. So
    /// are those of writers, which are few.
    fn serve(&mut self, place: DeviceId) -> BTreeSet<u64> {
        let mut blocked = Vec::new();
        if self.settles_until().is_some() {
            return BTreeSet::new();
        }
        let waiting = self.waiting(place);
        let mut waiting: Vec<_> = waiting
            .map(|(id, waits)| ((waits.order(self.pressed), id), waits.wanted.clone(), waits.passes))
            .collect();
        waiting.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let book = self.books.at(place);
        // Whether a round has been in vain for what comes first, of the device and of each user.
        let (mut of_device, mut of_users) = (None, BTreeMap::new());
        for ((_, id), wanted, passes) in waiting {
            let user = wanted.user;
            let mut before = [of_device, of_users.get(&user).copied()].into_iter().flatten();
            if !before.all(|in_vain| in_vain && passes) {
                continue;
            }
            let (of_user, room) = (self.room_of_user(user, &book), self.room(place, &book));
            if wanted.least <= of_user.min(room) {
                self.grant_waiting(id, &wanted, of_user.min(room));
            } else if wanted.least > of_user {
                of_users.entry(user).or_insert(wanted.was_in_vain);
                // Others cannot help if the user's limit is too low.
                blocked.push((id, wanted.least - of_user, Some(user)));
            } else {
                of_device.get_or_insert(wanted.was_in_vain);
                blocked.push((id, wanted.least - room, None));
            }
        }
        // They have rounds by turns.
        if let Some(turn) = self.pressure(place).turn.checked_rem(blocked.len()) {
            let (id, missing, only) = blocked[turn];
            self.ask(id, (missing, blocked.len()), only, place);
        }
        blocked.into_iter().map(|(id, ..)| id).collect()
    }

    /// Returns the requests that wait on a device, by the numbers of their connections.
    pub(super) fn waiting(&self, place: DeviceId) -> impl Iterator<Item = (u64, Waits<'_>)> {
        let waiting = self.connections.iter().filter_map(|(id, one)| Some((*id, one.waits()?)));
        waiting.filter(move |(_, waits)| waits.place == place)
    }

    /// Returns true if a request waits on a device.
    pub(super) fn is_any_waiting(&self, place: DeviceId) -> bool {
        self.waiting(place).next().is_some()
    }

    /// Returns a request that comes now and waits until a whole round has ended.
    pub(super) fn wanted(&mut self, place: DeviceId, user: u32, (least, most): (u64, u64)) -> Wanted {
        if !self.is_any_waiting(place) {
            self.pressure(place).forget_round();
        }
        let (now, rounds) = (Instant::now(), self.pressure(place).whole_rounds());
        self.pressure(place).restart();
        Wanted { number: 0, user, least, most, since: now, until: now, rounds, was_in_vain: false }
    }

    fn grant_waiting(&mut self, id: u64, wanted: &Wanted, room: u64) {
        let limit = self.options.program_limit.map_or(u64::MAX, |limit| limit.0);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(job) = connection.lease_mut().and_then(|lease| lease.job.as_mut()) {
            return job.begin(wanted.least);
        }
        let Some(program) = connection.program_mut() else { return };
        let most = wanted.most.min(limit.saturating_sub(program.grant.left())).max(wanted.least);
        let bytes = most.min(room);
        program.wants = None;
        program.grant.raise(bytes);
        connection.put(Reply::Budget { number: wanted.number, granted: Ok(bytes) });
    }

    /// Asks the next program of a round, unless one is asked already.
    fn ask(&mut self, id: u64, (missing, of): (u64, usize), only: Option<u32>, place: DeviceId) {
        let now = self.pressed;
        let is_asked = |program: &Program| program.asked.is_some_and(|asked| !asked.is_late);
        if self.programs().any(|(_, _, program)| program.place == place && is_asked(program)) {
            return;
        }
        let pressure = self.pressure(place);
        if pressure.paused.is_some_and(|until| until > now) {
            return;
        }
        pressure.paused = None;
        if pressure.serves != id {
            pressure.forget_round();
            pressure.serves = id;
        }
        loop {
            let pressure = self.pressures.entry(place).or_default();
            if pressure.asked.is_empty() && !pressure.sleeps {
                pressure.is_stale = false;
            }
            let asked = &pressure.asked;
            let candidates =
                self.connections.iter().filter_map(|(other, one)| Some((*other, one, one.program()?)));
            let next = candidates.filter(|(other, one, program)| {
                let serves = program.place == place && program.grant.left() > 0 && !program.is_late();
                let helps = *other != id && only.is_none_or(|user| one.peer.user_number() == user);
                serves && helps && !asked.contains(other)
            });
            let next = next.min_by_key(|(other, _, program)| {
                (program.priority, std::cmp::Reverse(program.grant.left()), *other)
            });
            match next.map(|(other, _, _)| other) {
                Some(other) => {
                    let sleeps = pressure.sleeps;
                    pressure.asked.insert(other);
                    let (ask, until) = (self.number(), now + self.options.to_answer());
                    let Some(connection) = self.connections.get_mut(&other) else { return };
                    if let Some(program) = connection.program_mut() {
                        program.asked = Some(OpenQuestion { ask, until, is_late: false });
                    }
                    connection.put(Reply::Ask { ask, bytes: missing, sleeps });
                    return;
                }
                None if !pressure.sleeps => {
                    pressure.asked.clear();
                    pressure.sleeps = true;
                }
                None => {
                    pressure.turn = pressure.turn.wrapping_add(1);
                    pressure.end_round(now, pressure.turn.is_multiple_of(of));
                    if let Some(wanted) = self.connections.get_mut(&id).and_then(Connection::wanted_mut) {
                        wanted.was_in_vain = true;
                    }
                    return;
                }
            }
        }
    }

    /// Passes over programs that have not answered in time.
    fn note_late(&mut self) {
        for connection in self.connections.values_mut() {
            if let Some(program) = connection.program_mut()
                && let Some(asked) = &mut program.asked
            {
                asked.is_late |= asked.until <= self.pressed;
            }
        }
    }

    /// Refuses requests whose time is over, after a whole round for them. Returns true if there was one. A writer's time is over with the
    /// round, unless a program is ending whose memory will be free.
    fn refuse_late(&mut self, place: DeviceId, blocked: &BTreeSet<u64>) -> bool {
        let (now, ended) = (self.pressed, self.pressure(place).ended);
        let is_any_ending = self.lingering.iter().any(|one| one.is_program_on(place));
        let late = self.waiting(place).filter(|(id, Waits { wanted, is_writers, .. })| {
            let is_tried = if blocked.contains(id) { wanted.was_in_vain } else { ended > wanted.rounds };
            is_tried && (wanted.until <= now || (*is_writers && !is_any_ending))
        });
        let late: Vec<(u64, Wanted)> = late.map(|(id, waits)| (id, waits.wanted.clone())).collect();
        let is_any = !late.is_empty();
        for (id, wanted) in late {
            let book = self.books.at(place);
            let room = self.room(place, &book);
            let of_user = self.check_user(wanted.user, &book, wanted.least);
            let no_room = || self.no_room(id, place, (wanted.least, room, wanted.waited_ms()));
            let why = of_user.err().unwrap_or_else(no_room);
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if let Some(job) = connection.lease_mut().and_then(|lease| lease.job.take()) {
                self.job_failed(id, &job, why);
                continue;
            }
            if let Some(program) = connection.program_mut() {
                program.wants = None;
            }
            connection.put(Reply::Budget { number: wanted.number, granted: Err(why) });
        }
        is_any
    }

    /// Returns when the server must act for programs that wait.
    pub(super) fn press_at(&self) -> Option<Instant> {
        let settles = self.settles_until();
        let waiting = self.connections.values().filter_map(Connection::waits).flat_map(|waits| {
            let paused = self.pressures.get(&waits.place).and_then(|pressure| pressure.paused);
            // A wait that is over goes on until the round ends. There are no rounds before the server has settled.
            [settles.or(paused), Some(waits.wanted.until).filter(|until| *until > self.pressed)]
        });
        let asked =
            self.programs().filter_map(|(_, _, program)| program.asked.filter(|asked| !asked.is_late));
        waiting.flatten().chain(asked.map(|asked| asked.until)).min()
    }
}
