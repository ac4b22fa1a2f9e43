//! Prints the cases and their rules.

use crate::CliResult;
use crate::output::{Output, counted};
use gpu_vmm_conformance::{Item, Layer};

pub(super) fn print(items: &[Item], output: &mut Output) -> CliResult {
    let width = items.iter().map(|item| item.name.len()).max().unwrap_or_default();
    for layer in items.chunk_by(|a, b| a.layer == b.layer) {
        let what = match layer[0].layer {
            Layer::Library => "what gpu-vmm promises on every backend",
            Layer::Driver => "what the drivers' documentation says",
        };
        output.line(format!("{}, {}: {what}", layer[0].layer, counted(layer.len(), "case")))?;
        for group in layer.chunk_by(|a, b| group(a) == group(b)) {
            output.line("")?;
            group
                .iter()
                .try_for_each(|item| output.paragraph(&format!("  {:<width$}  ", item.name), item.about))?;
        }
        output.line("")?;
    }
    Ok(())
}

fn group(item: &Item) -> &str {
    item.name.split("::").next().unwrap_or_default()
}
