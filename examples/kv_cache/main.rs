//! A server with a paged cache of keys and values under a hard limit. Sequences share the pages of their prompts, part from each other
//! where they write, and are evicted to the host and to a file, the least recently used first.
//!
//! ```text
//! cargo run --release --example kv_cache
//! ```

pub mod cache;

use cache::PagedCache;
use gpu_vmm::{AnyBackend, Backend, BackingStore, Bytes, DeviceId, PageList, Properties};
use gpu_vmm::{Region, RegionState, Result, StagingRing};

/// Keys and values of a token: 32 layers, of 1 KiB each.
const TOKEN: Bytes = Bytes(32 * 2 * 1024);
const PROMPTS: u64 = 4;
/// The tokens of a prompt: its last page is not full.
const PROMPT: u64 = 40;
const SEQUENCES: u64 = 20;
/// The tokens that each sequence adds.
const ANSWER: u64 = 60;
/// The limit, in pages of 32 tokens. All sequences need 49 pages.
const LIMIT: u64 = 24;

struct Sequence<B: Backend> {
    region: Region<B>,
    prompt: u64,
    tokens: u64,
    last_used: u64,
}

struct Server<B: Backend> {
    cache: PagedCache<B>,
    /// The prompts, and the sequences behind them.
    table: Vec<Sequence<B>>,
    now: u64,
    evictions: u64,
}

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    let page = (TOKEN * 32).max(backend.granularity().bytes());
    let pages = PageList::new(&backend, page, Properties::on(DeviceId(0)), page * LIMIT)?;
    // Pinned memory is the faster store, and the file has room for the rest.
    let ring = StagingRing::new(&backend, 1, Bytes::mib(2))?;
    let stores = vec![
        BackingStore::pinned(&backend, page * (LIMIT / 2))?,
        BackingStore::file(std::env::temp_dir(), ring),
    ];
    let longest = TOKEN * (PROMPT + ANSWER) + page;
    let cache = PagedCache { backend, pages, longest, stores };
    let mut server = Server { cache, table: Vec::new(), now: 0, evictions: 0 };
    for prompt in 0..PROMPTS {
        let region = server.cache.begin()?;
        server.table.push(Sequence { region, prompt, tokens: 0, last_used: 0 });
        for _ in 0..PROMPT {
            server.append(prompt as usize)?;
        }
    }
    for number in 0..SEQUENCES {
        server.begin(number % PROMPTS)?;
    }
    for _ in 0..ANSWER {
        for index in PROMPTS as usize..server.table.len() {
            server.append(index)?;
        }
    }
    for index in 0..server.table.len() {
        server.awaken(index)?;
        server.check(index)?;
    }
    let (stats, evictions) = (server.cache.pages.stats(), server.evictions);
    println!("{SEQUENCES} sequences, {evictions} evictions; {} of {} are held", stats.held, stats.budget);
    assert!(stats.held <= stats.budget && evictions > 0);
    server.table.clear();
    let left = server.cache.pages.stats();
    assert_eq!(left.held, left.free, "all pages are free again");
    Ok(())
}

impl<B: Backend> Server<B> {
    /// Begins a sequence with a prompt's tokens, in the same pages.
    fn begin(&mut self, prompt: u64) -> Result<()> {
        self.awaken(prompt as usize)?;
        let parent = &mut self.table[prompt as usize];
        let (region, tokens) = (self.cache.fork(&mut parent.region)?, parent.tokens);
        self.table.push(Sequence { region, prompt, tokens, last_used: self.now });
        Ok(())
    }

    /// Writes the next token of a sequence.
    fn append(&mut self, index: usize) -> Result<()> {
        let end = TOKEN * self.table[index].tokens;
        self.with_room(index, |cache, region| {
            cache.restore(region)?;
            cache.make_writable(region, end)
        })?;
        let Sequence { region, prompt, tokens, .. } = &mut self.table[index];
        region.write(end, &contents(*prompt, index, *tokens))?;
        *tokens += 1;
        Ok(())
    }

    fn awaken(&mut self, index: usize) -> Result<()> {
        self.with_room(index, |cache, region| cache.restore(region))
    }

    /// Acts on a sequence, and evicts others while there is too little memory.
    fn with_room(
        &mut self,
        index: usize,
        act: impl Fn(&PagedCache<B>, &mut Region<B>) -> Result<()>,
    ) -> Result<()> {
        self.now += 1;
        self.table[index].last_used = self.now;
        loop {
            match act(&self.cache, &mut self.table[index].region) {
                Err(error) if error.is_out_of_memory() => {}
                other => return other,
            }
            let awake = self.table.iter_mut().filter(|one| one.region.state() == RegionState::Active);
            let now = self.now;
            let Some(oldest) = awake.filter(|one| one.last_used != now).min_by_key(|one| one.last_used)
            else {
                // The sequence has to fit alone.
                return act(&self.cache, &mut self.table[index].region);
            };
            self.cache.evict(&mut oldest.region)?;
            self.evictions += 1;
        }
    }

    /// Checks that a sequence has the tokens that were written.
    fn check(&self, index: usize) -> Result<()> {
        let Sequence { region, prompt, tokens, .. } = &self.table[index];
        for token in 0..*tokens {
            let mut bytes = vec![0; TOKEN.0 as usize];
            region.read(TOKEN * token, &mut bytes)?;
            assert!(bytes == contents(*prompt, index, token), "token {token} of sequence {index}");
        }
        Ok(())
    }
}

/// The keys and values of a token: those of the prompt are the same in all sequences that share it.
fn contents(prompt: u64, index: usize, token: u64) -> Vec<u8> {
    let word = if token < PROMPT { [prompt, 0, token, 1] } else { [prompt, index as u64, token, 2] };
    bytemuck::cast_slice(&word).repeat(TOKEN.0 as usize / 32)
}

#[test]
fn runs() -> Result<()> {
    main()
}
