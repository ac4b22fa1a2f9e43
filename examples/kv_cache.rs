//! An inference server: requests come and go, and each has a cache of keys and values that grows with every piece of text.
//! The caches are contiguous, as the simplest kernels want them, and the pool holds little more than they need.
//!
//! The naive way is to set aside the longest cache there can be for each request that can run at a time.
//!
//! ```text
//! cargo run --release --example kv_cache
//! ```

use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, OffsetRange, Result};

const DEVICE: DeviceId = DeviceId(0);
/// What one token takes: keys and values of 12 layers with 768 numbers of two bytes each.
const TOKEN: Bytes = Bytes(12 * 2 * 768 * 2);
/// The longest text, and by how much a cache grows at a time.
const LONGEST: u64 = 1024;
const STEP: u64 = 128;
/// How many requests run at a time, and how many there are in all.
const AT_A_TIME: usize = 8;
const REQUESTS: u64 = 24;

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    let pool = Pool::builder(&backend).device(DEVICE).build()?;

    let mut arriving = (0..REQUESTS).map(Request::new);
    let mut running: Vec<Cache<AnyBackend>> = Vec::new();
    loop {
        // One step of all requests: those that have ended leave, others come, all get longer.
        let mut still = Vec::new();
        for mut cache in running {
            if cache.tokens >= cache.request.length {
                cache.check()?;
            } else {
                cache.grow(&pool)?;
                still.push(cache);
            }
        }
        running = still;
        while running.len() < AT_A_TIME {
            let Some(request) = arriving.next() else { break };
            running.push(Cache::new(&pool, request)?);
        }
        if running.is_empty() {
            break;
        }
    }

    let account = pool.stats();
    let naive = TOKEN * LONGEST * AT_A_TIME as u64;
    let held = Bytes(account.peak_held);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("{REQUESTS} requests, {AT_A_TIME} at a time, of at most {LONGEST} tokens with {TOKEN} each");
    println!("  the longest cache for each:    {:>7.1} MiB", mib(naive.0));
    println!("  the pool held at most:         {:>7.1} MiB", mib(held.0));
    println!("  what its blocks took at most:  {:>7.1} MiB", mib(account.peak_live));
    println!("{} blocks, {} calls of the driver", account.allocations, account.driver_calls.total());
    // Blocks lie close together; where two of them do not, a part of a page at either end may be nobody's. There is one more
    // of them than there are requests, while a cache is copied.
    let edges = 2 * (AT_A_TIME as u64 + 1) * pool.snapshot().page;
    let taken = account.peak_live;
    assert!(held.0 >= taken && held.0 <= taken + taken / 20 + edges, "{held} are held for {}", Bytes(taken));
    assert!(held < naive);
    assert_eq!(account.live, 0);
    Ok(())
}

/// A request, with a length that is known to nobody beforehand.
#[derive(Clone, Copy)]
struct Request {
    number: u64,
    /// In tokens.
    length: u64,
}

impl Request {
    fn new(number: u64) -> Self {
        // Most are short, some long.
        let random = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let length = if random.is_multiple_of(4) { LONGEST } else { LONGEST / 2 };
        Self { number, length: 1 + random % length }
    }
}

/// The cache of a request.
struct Cache<B: Backend> {
    request: Request,
    block: Block<B>,
    /// How many there is room for.
    tokens: u64,
}

impl<B: Backend> Cache<B> {
    fn new(pool: &Pool<B>, request: Request) -> Result<Self> {
        let mut cache = Self { request, block: pool.alloc(TOKEN * STEP)?, tokens: STEP };
        cache.write(0)?;
        Ok(cache)
    }

    /// A longer block takes the place of the one that is full, which the pool can hand out again at once.
    fn grow(&mut self, pool: &Pool<B>) -> Result<()> {
        let tokens = self.tokens + STEP;
        let mut longer = pool.alloc(TOKEN * tokens)?;
        let all = OffsetRange { offset: Bytes::ZERO, length: self.block.size() };
        longer.copy_from(Bytes::ZERO, &self.block, all)?;
        self.block = longer;
        let before = std::mem::replace(&mut self.tokens, tokens);
        self.write(before)
    }

    /// What each token has: the number of the request, and its own.
    fn mark(&self, token: u64) -> [u8; 16] {
        (u128::from(self.request.number) << 64 | u128::from(token)).to_le_bytes()
    }

    /// Writes the keys and values of the tokens from this one on; here, the first bytes of each.
    fn write(&mut self, from: u64) -> Result<()> {
        (from..self.tokens).try_for_each(|token| self.block.write(TOKEN * token, &self.mark(token)))
    }

    /// All of it is still there, and no other request's.
    fn check(&self) -> Result<()> {
        for token in 0..self.tokens {
            let mut mark = [0; 16];
            self.block.read(TOKEN * token, &mut mark)?;
            assert_eq!(mark, self.mark(token), "token {token} of request {}", self.request.number);
        }
        Ok(())
    }
}

#[test]
fn runs() -> Result<()> {
    main()
}
