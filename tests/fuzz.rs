//! The fuzz targets, for a short time: what is well formed is changed by chance, and nothing may panic or eat memory.
//!
//! `MINUTEHAND_FUZZ_SECONDS` makes it longer, `MINUTEHAND_FUZZ_SEED` (as printed) repeats a run. `MINUTEHAND_FUZZ_CORPUS`
//! names a directory into which the well-formed inputs are written, for libFuzzer to begin with.

use minutehand::testing::fuzz::{TARGETS, Target};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Counts what a thread holds, and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(by: isize) {
    // A thread that ends may free after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + by);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most that a decoder may hold while it reads: some buffers of fixed size, and a multiple of what it is given.
const FIXED_MAX: usize = 1 << 20;
const TIMES_MAX: usize = 64;

/// Changes bytes as fuzzers do: flips, cuts, repeats, joins, numbers at the edge.
fn change(rng: &mut fastrand::Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..bytes.len() + 1);
        match rng.u8(0..9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
            1 if at < bytes.len() => bytes[at] = rng.u8(..),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.u8(..)),
            4 if at < bytes.len() => {
                bytes.remove(at);
            }
            5 => {
                let piece = bytes[at..bytes.len().min(at + rng.usize(1..40))].to_vec();
                let to = rng.usize(..bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 => {
                let other = &corpus[rng.usize(..corpus.len())];
                let from = rng.usize(..other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            7 => {
                let edge: &[u8] = [
                    &[0xff; 8][..],
                    &[0; 8],
                    &[0x7f, 0xff, 0xff, 0xff],
                    &[0x80, 0, 0, 0],
                    b"99999999",
                    b"\r\n\"{[,",
                ][rng.usize(..6)];
                let end = bytes.len().min(at + edge.len());
                bytes.splice(at..end, edge.iter().copied());
            }
            _ => bytes.extend((0..rng.usize(0..30)).map(|_| rng.u8(..))),
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Feeds one input; answers the most memory that was held for it.
fn feed(target: &Target, input: &[u8]) -> usize {
    let before = HELD.with(Cell::get);
    MOST.with(|most| most.set(before));
    (target.feed)(input);
    usize::try_from(MOST.with(Cell::get) - before).unwrap_or(0)
}

#[test]
fn decoders_take_anything() {
    let seed = number("MINUTEHAND_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 48));
    println!("MINUTEHAND_FUZZ_SEED={seed}");
    let each =
        Duration::from_millis(number("MINUTEHAND_FUZZ_SECONDS").unwrap_or(6) * 1_000 / TARGETS.len() as u64);
    for target in &TARGETS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut corpus = (target.seeds)();
        assert!(!corpus.is_empty());
        let seeds = corpus.len();
        let (start, mut runs, mut most) = (minutehand::clock::mono(), 0u64, 0);
        for input in corpus.clone() {
            feed(target, &input);
        }
        while start.elapsed() < each {
            let input = change(&mut rng, &corpus);
            let held = catch_unwind(AssertUnwindSafe(|| feed(target, &input)));
            let held = held.unwrap_or_else(|_| panic!("{} panics at {input:02x?}", target.name));
            let bound = FIXED_MAX + TIMES_MAX * input.len();
            assert!(held <= bound, "{} holds {held} bytes for {} at {input:02x?}", target.name, input.len());
            most = most.max(held);
            runs += 1;
            // Some of what came out is changed further.
            if runs % 64 == 0 {
                if corpus.len() < 256 {
                    corpus.push(input);
                } else {
                    let at = rng.usize(seeds..256);
                    corpus[at] = input;
                }
            }
        }
        println!("{}: {runs} inputs, at most {most} bytes held", target.name);
        assert!(runs > 500, "{} is too slow to tell anything: {runs}", target.name);
    }
}

#[test]
fn each_target_has_its_fuzzer() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for target in &TARGETS {
        let text = std::fs::read_to_string(root.join(format!("fuzz_targets/{}.rs", target.name))).unwrap();
        assert!(text.contains(&format!("\"{}\"", target.name)), "{}", target.name);
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        if let Some(corpus) = std::env::var_os("MINUTEHAND_FUZZ_CORPUS") {
            let corpus = std::path::Path::new(&corpus).join(target.name);
            std::fs::create_dir_all(&corpus).unwrap();
            for (n, seed) in (target.seeds)().into_iter().enumerate() {
                std::fs::write(corpus.join(format!("seed-{n}")), seed).unwrap();
            }
        }
    }
}
