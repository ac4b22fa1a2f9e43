//! Completions for shells, and manual pages: both are made from the arguments.

use crate::CliResult;
use crate::args::{Arguments, CompletionsArguments, ManArguments};
use crate::destination::Destination;
use crate::output::Output;
use clap::CommandFactory;
use std::path::Path;

/// The name of the program.
const NAME: &str = "gpu-vmm";

pub(crate) fn completions(options: &CompletionsArguments) -> CliResult {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), NAME, &mut text);
    Output::default().line(String::from_utf8(text)?)
}

pub(crate) fn man(options: &ManArguments) -> CliResult {
    let mut command = Arguments::command();
    // Names of subcommands then begin with the name of the command.
    command.build();
    let Some(folder) = &options.folder else {
        return Output::default().line(page(&command)?);
    };
    write(folder, NAME, &command)?;
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
    shown.into_iter().try_for_each(|one| write(folder, &format!("{NAME}-{}", one.get_name()), one))
}

fn write(folder: &Path, name: &str, command: &clap::Command) -> CliResult {
    let mut file = Destination::check(&folder.join(format!("{name}.1")))?;
    file.add(&page(command)?)?;
    file.complete()
}

fn page(command: &clap::Command) -> CliResult<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    Ok(String::from_utf8(text)?)
}
