//! Runs a list of jobs on one and a half times as many threads as there are cores, since jobs often wait.

use crate::trouble::Answer;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

/// Calls `work` for each element, and returns the results in the order of `all`. A free thread takes the next element. An
/// error ends its thread, and is returned once the other threads are done.
pub(crate) fn each<T: Send, A: Send>(all: Vec<T>, work: impl Fn(T) -> Answer<A> + Sync) -> Answer<Vec<A>> {
    let count = all.len();
    let left = Mutex::new(all.into_iter().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || -> Answer<Vec<(usize, A)>> {
        std::iter::from_fn(next).map(|(index, one)| Ok((index, work(one)?))).collect()
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let at_once = cores + cores.div_ceil(2);
    let answers: Answer<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once.min(count)).map(|_| scope.spawn(run)).collect();
        let join = |thread: ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let mut answers: Vec<_> = answers?.into_iter().flatten().collect();
    answers.sort_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trouble::Trouble;

    #[test]
    fn answers_are_in_order() {
        let doubled: Vec<u32> = (0..100).map(|one| one * 2).collect();
        assert_eq!(each((0..100).collect(), |one: u32| Ok(one * 2)).unwrap(), doubled);
        assert!(each(Vec::new(), |one: u32| Ok(one)).unwrap().is_empty());
    }

    #[test]
    fn an_error_is_told() {
        let work = |one| if one == 7 { Err(Trouble::new("seven")) } else { Ok(()) };
        assert_eq!(each(vec![1, 7, 3], work).unwrap_err().to_string(), "seven");
    }
}
