//! Agents: the CPU (number 0) and the GPUs (from 1 on), by their handles.

use crate::abi::Agent;
use crate::settings::settings;

const FIRST: u64 = 0xA6E0_0000;
const STEP: u64 = 0x100;

/// Returns the handle of an agent.
pub(crate) const fn handle(index: usize) -> Agent {
    Agent(FIRST + STEP * index as u64)
}

/// Returns the numbers of all agents.
pub(crate) fn all() -> std::ops::RangeInclusive<usize> {
    0..=settings().gpus
}

/// Returns the number of an agent, if the handle is one.
pub(crate) fn index(agent: Agent) -> Option<usize> {
    let offset = agent.0.checked_sub(FIRST)?;
    let index = usize::try_from(offset / STEP).ok()?;
    (offset % STEP == 0 && all().contains(&index)).then_some(index)
}

/// Returns an agent's bit in a set of agents.
pub(crate) const fn bit(index: usize) -> u32 {
    1 << index
}

/// Returns the set of some agents, if all handles are agents.
pub(crate) fn bits(agents: &[Agent]) -> Option<u32> {
    agents.iter().try_fold(0u32, |bits, agent| Some(bits | bit(index(*agent)?)))
}
