//! `cargo test-all mutations`: mutates a copy of the library, and requires the tests to catch each mutation.

mod list;
mod runner;
mod tree;

use crate::arguments::Part;
use crate::cargo;
use crate::layout::Layout;
use crate::queue;
use crate::trouble::{Answer, Doing, Trouble};
use list::{List, Mutation, On};
use runner::{OnDriver, Runner};
use std::fs;
use std::time::Instant;

/// The number of retries for a mutation that survived. Some only show while work runs, which may end too early on a busy
/// machine.
const RETRIES: u32 = 2;

/// Applies all mutations, and runs one at a time those with `filter` in their name or in what catches them, or a part of these.
/// Returns whether all were caught.
pub(crate) fn run(layout: &Layout, filter: &str, part: Part) -> Answer<bool> {
    let workspace = cargo::workspace()?;
    let list = List::read(&workspace)?;
    let named = list.mutations().filter(|one| one.name.contains(filter) || one.on.to_string() == filter);
    let chosen: Vec<Mutation<'_>> =
        named.enumerate().filter(|(place, _)| part.has(*place)).map(|(_, one)| one).collect();
    if chosen.is_empty() {
        return Err(Trouble::new(format!("no mutation has {filter} in its name")));
    }
    let began = Instant::now();
    let folder = cargo::target_folder()?.join("mutations");
    let (copy, logs) = (folder.join("tree"), folder.join("logs"));
    tree::plant(&workspace, &copy, &list.change)?;
    fs::create_dir_all(&logs).doing(|| logs.display().to_string())?;
    eprintln!("building the tests for {} mutations of the library", list.change.len());
    let runner = Runner { copy, build: folder.join("build"), logs };
    let mut places: Vec<(On, Answer<OnDriver<'_>>)> = Vec::new();
    for mutation in &chosen {
        if places.iter().all(|(on, _)| *on != mutation.on) {
            places.push((mutation.on, OnDriver::new(&runner, layout, mutation.on)));
        }
    }
    let width = chosen.iter().map(|mutation| mutation.name.len()).max().unwrap_or_default();
    let outcomes = queue::each(chosen.iter().collect(), |mutation| {
        let place = places.iter().find(|(on, _)| *on == mutation.on).map(|(_, place)| place);
        let (outcome, told) = match place {
            Some(Ok(place)) => {
                let mut found = place.run(mutation)?;
                for _ in 0..RETRIES {
                    if found.is_any() {
                        break;
                    }
                    found = place.run(mutation)?;
                }
                (
                    if found.is_any() { Outcome::Caught } else { Outcome::Survived(mutation) },
                    found.to_string(),
                )
            }
            Some(Err(trouble)) => (Outcome::NotRun, format!("NOT RUN: {trouble}")),
            None => (Outcome::NotRun, "NOT RUN".to_owned()),
        };
        println!("{:width$}  {:7}  {told}", mutation.name, mutation.on);
        Ok(outcome)
    })?;
    let not_run = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::NotRun)).count();
    let survivors: Vec<_> = outcomes.iter().filter_map(Outcome::survivor).collect();
    let seconds = began.elapsed().as_secs();
    let caught = chosen.len() - survivors.len() - not_run;
    println!("\n{caught} of {} were caught, in {seconds} s", chosen.len());
    if not_run > 0 {
        println!("{not_run} could not be run");
    }
    for survivor in &survivors {
        println!("SURVIVED on {}: {}: {}", survivor.on, survivor.name, survivor.wrong);
    }
    Ok(survivors.is_empty() && (not_run == 0 || !layout.required))
}

/// The result of the suite for one mutation.
#[derive(Clone, Copy)]
enum Outcome<'a, 'm> {
    Caught,
    Survived(&'a Mutation<'m>),
    NotRun,
}

impl<'a, 'm> Outcome<'a, 'm> {
    fn survivor(&self) -> Option<&'a Mutation<'m>> {
        match self {
            Self::Survived(mutation) => Some(mutation),
            Self::Caught | Self::NotRun => None,
        }
    }
}
