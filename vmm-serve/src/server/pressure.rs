//! Requests that wait for memory which other programs have, in rounds of questions.
//!
//! One request at a time is served on a device: the first by [`Wanted::order`]. The server asks one program at a time for what is missing,
//! of the lowest priority first: each for what it does not use, and then each for what can sleep. A round ends when all have answered, or
//! are late. A request is refused when its time is over and a round has ended that began after it came.

use super::Server;
use super::program::{Asked, Program, Wanted};
use crate::protocol::Reply;
use gpu_vmm_core::{Backend, DeviceId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The pause between two rounds, while nobody gives anything.
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
    /// The next round within the limit of a user is for this user, or for the next one.
    user: u32,
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

    /// Forgets a round that nobody waits for any more.
    pub(super) fn forget_round(&mut self) {
        self.asked.clear();
        self.sleeps = false;
    }

    fn end_round(&mut self, now: Instant) {
        self.forget_round();
        self.ended += 1;
        self.paused = (!std::mem::take(&mut self.is_stale)).then_some(now + PAUSE);
    }
}

impl<B: Backend> Server<B> {
    pub(super) fn pressure(&mut self, place: DeviceId) -> &mut Pressure {
        self.pressures.entry(place).or_default()
    }

    /// Serves the requests that wait, as far as there is memory, and asks for more.
    pub(super) fn press(&mut self) {
        self.note_late();
        let mut places: Vec<DeviceId> = self.waiting().map(|(_, _, place)| place).collect();
        places.sort_unstable();
        places.dedup();
        for place in places {
            self.serve(place);
            self.refuse_late(place);
        }
    }

    /// Serves the requests of a device in their order. One that the device has no room for lets all later ones wait, and one for which its
    /// user's limit is too low those of the same user.
    fn serve(&mut self, place: DeviceId) {
        if self.settles_until().is_some() {
            return;
        }
        let now = Instant::now();
        let on_it = self.programs().filter(|(_, _, program)| program.place == place);
        let waiting = on_it.filter_map(|(id, one, program)| {
            let wanted = program.wants.clone()?;
            Some((wanted.order(program.priority, now), id, one.peer.user_number(), wanted))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        let book = self.books.at(place);
        let (mut of_users, mut of_device) = (BTreeMap::new(), None);
        for (_, id, user, wanted) in waiting {
            if of_users.contains_key(&user) {
                continue;
            }
            let (of_user, room) = (self.room_of_user(user, &book), self.room(place, &book));
            if wanted.least <= of_user.min(room) {
                self.grant_waiting(id, &wanted, of_user.min(room));
            } else if wanted.least > of_user {
                of_users.insert(user, (id, wanted.least - of_user));
            } else {
                of_device = Some((id, wanted.least - room));
                break;
            }
        }
        // The users have rounds by turns.
        let user = self.pressure(place).user;
        let of_user = of_users.range(user..).next().or_else(|| of_users.iter().next());
        match (of_device, of_user) {
            (Some((id, missing)), _) => self.ask(id, missing, None, place),
            // Others cannot help if the user's limit is too low.
            (None, Some((user, (id, missing)))) => self.ask(*id, *missing, Some(*user), place),
            (None, None) => {}
        }
    }

    /// Returns the programs that wait, with their devices.
    fn waiting(&self) -> impl Iterator<Item = (u64, &Wanted, DeviceId)> {
        self.programs().filter_map(|(id, _, program)| Some((id, program.wants.as_ref()?, program.place)))
    }

    /// Returns true if a request waits on a device.
    pub(super) fn is_any_waiting(&self, place: DeviceId) -> bool {
        self.waiting().any(|(_, _, on)| on == place)
    }

    fn grant_waiting(&mut self, id: u64, wanted: &Wanted, room: u64) {
        let limit = self.options.program_limit.map_or(u64::MAX, |limit| limit.0);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(program) = connection.program_mut() else { return };
        let most = wanted.most.min(limit.saturating_sub(program.grant.left())).max(wanted.least);
        let bytes = most.min(room);
        program.wants = None;
        program.grant.raise(bytes);
        connection.put(Reply::Budget { number: wanted.number, granted: Ok(bytes) });
    }

    /// Asks the next program of a round, unless one is asked already.
    fn ask(&mut self, id: u64, missing: u64, only: Option<u32>, place: DeviceId) {
        let now = Instant::now();
        let is_asked = |program: &Program| program.asked.is_some_and(|asked| !asked.is_late);
        if self.programs().any(|(_, _, program)| program.place == place && is_asked(program)) {
            return;
        }
        let pressure = self.pressure(place);
        if pressure.paused.is_some_and(|until| until > now) {
            return;
        }
        pressure.paused = None;
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
                    let (ask, until) = (self.number(), now + self.options.answer_within);
                    let Some(connection) = self.connections.get_mut(&other) else { return };
                    if let Some(program) = connection.program_mut() {
                        program.asked = Some(Asked { ask, until, is_late: false });
                    }
                    connection.put(Reply::Ask { ask, bytes: missing, sleeps });
                    return;
                }
                None if !pressure.sleeps => {
                    pressure.asked.clear();
                    pressure.sleeps = true;
                }
                None => {
                    pressure.end_round(now);
                    pressure.user = only.map_or(pressure.user, |user| user.wrapping_add(1));
                    if pressure.paused.is_some() {
                        return;
                    }
                }
            }
        }
    }

    /// Passes over programs that have not answered in time.
    fn note_late(&mut self) {
        let now = Instant::now();
        for connection in self.connections.values_mut() {
            if let Some(program) = connection.program_mut()
                && let Some(asked) = &mut program.asked
            {
                asked.is_late |= asked.until <= now;
            }
        }
    }

    /// Refuses requests whose time is over, after a whole round for them.
    fn refuse_late(&mut self, place: DeviceId) {
        let (now, ended) = (Instant::now(), self.pressure(place).ended);
        let late = self
            .waiting()
            .filter(|(_, wanted, on)| *on == place && wanted.until <= now && ended > wanted.rounds);
        let late: Vec<(u64, Wanted)> = late.map(|(id, wanted, _)| (id, wanted.clone())).collect();
        for (id, wanted) in late {
            let room = self.room(place, &self.books.at(place));
            let why = self.no_room(id, place, (wanted.least, room, wanted.waited_ms()));
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if let Some(program) = connection.program_mut() {
                program.wants = None;
            }
            connection.put(Reply::Budget { number: wanted.number, granted: Err(why) });
        }
    }

    /// Returns when the server must act for programs that wait.
    pub(super) fn press_at(&self) -> Option<Instant> {
        let waiting = self.waiting().flat_map(|(_, wanted, place)| {
            let paused = self.pressures.get(&place).and_then(|pressure| pressure.paused);
            let now = Instant::now();
            // A wait that is over goes on until the round ends.
            [paused, Some(wanted.until).filter(|until| *until > now), self.settles_until()]
        });
        let asked =
            self.programs().filter_map(|(_, _, program)| program.asked.filter(|asked| !asked.is_late));
        waiting.flatten().chain(asked.map(|asked| asked.until)).min()
    }
}
