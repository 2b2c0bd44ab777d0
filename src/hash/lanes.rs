//! Keccak-f[1600] of several states at once, one in each 64-bit lane of wide registers.
//!
//! Source: FIPS 202, section 3; side by side as in `KeccakP-1600-times4` and `times8` of the XKCP.
//! Compilers do not make this of plain code, so each width names the processor's own operations.

use super::{RATE_BYTES, State};

/// Blocks of a stream that are to go into its state.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) state: &'a mut State,
    /// Whole blocks.
    pub(super) bytes: &'a [u8],
}

impl<'a> Job<'a> {
    pub(super) fn blocks(&self) -> usize {
        self.bytes.len() / RATE_BYTES
    }

    /// Takes the next blocks away.
    pub(super) fn take(&mut self, blocks: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(blocks * RATE_BYTES);
        self.bytes = rest;
        taken
    }
}

/// A processor's way of taking blocks into several states.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub(super) lanes: usize,
    absorb: fn(&mut [Job<'_>], usize),
}

impl Kernel {
    /// Takes `blocks` blocks of each of at most `lanes` jobs.
    pub(super) fn absorb(self, jobs: &mut [Job<'_>], blocks: usize) {
        (self.absorb)(jobs, blocks);
    }

    /// What this processor has, the widest first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let found = {
            let eight = is_x86_feature_detected!("avx512f").then_some(Self {
                lanes: 8,
                absorb: eight::absorb_detected,
            });
            let four = is_x86_feature_detected!("avx2").then_some(Self {
                lanes: 4,
                absorb: four::absorb_detected,
            });
            [eight, four]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let found = [None::<Self>; 0];
        found.into_iter().flatten()
    }
}

#[cfg(target_arch = "x86_64")]
const ROUND_CONSTANTS: [u64; 24] = [
    0x0000_0000_0000_0001,
    0x0000_0000_0000_8082,
    0x8000_0000_0000_808a,
    0x8000_0000_8000_8000,
    0x0000_0000_0000_808b,
    0x0000_0000_8000_0001,
    0x8000_0000_8000_8081,
    0x8000_0000_0000_8009,
    0x0000_0000_0000_008a,
    0x0000_0000_0000_0088,
    0x0000_0000_8000_8009,
    0x0000_0000_8000_000a,
    0x0000_0000_8000_808b,
    0x8000_0000_0000_008b,
    0x8000_0000_0000_8089,
    0x8000_0000_0000_8003,
    0x8000_0000_0000_8002,
    0x8000_0000_0000_0080,
    0x0000_0000_0000_800a,
    0x8000_0000_8000_000a,
    0x8000_0000_8000_8081,
    0x8000_0000_0000_8080,
    0x0000_0000_8000_0001,
    0x8000_0000_8000_8008,
];

/// `absorb` of a module that has `Lanes`, as many as `LANES`, and the operations on them.
#[cfg(target_arch = "x86_64")]
macro_rules! absorbing {
    ($feature:literal) => {
        pub(super) fn absorb_detected(jobs: &mut [Job<'_>], blocks: usize) {
            #[expect(unsafe_code, reason = "code for a feature of the processor")]
            // SAFETY: a kernel is only made where the processor was found to have the feature.
            unsafe {
                absorb(jobs, blocks);
            }
        }

        #[target_feature(enable = $feature)]
        fn absorb(jobs: &mut [Job<'_>], blocks: usize) {
            assert!(jobs.len() <= LANES, "more streams than lanes");
            let mut lanes: [Lanes; 25] = std::array::from_fn(|word| {
                gather(std::array::from_fn(|lane| {
                    jobs.get(lane).map_or(0, |job| job.state[word])
                }))
            });
            // Lanes without a job follow the first, and are dropped.
            let mut taken: [&[u8]; LANES] = [&[]; LANES];
            for (lane, job) in jobs.iter_mut().enumerate() {
                taken[lane] = job.take(blocks);
            }
            let first = taken[0];
            for unused in &mut taken[jobs.len()..] {
                *unused = first;
            }
            for block in 0..blocks {
                let inputs: [&[u8; RATE_BYTES]; LANES] = std::array::from_fn(|lane| {
                    let (rest, _) = taken[lane].as_chunks();
                    &rest[block]
                });
                for (word, state) in lanes.iter_mut().take(RATE_BYTES / 8).enumerate() {
                    let input = gather(std::array::from_fn(|lane| {
                        let (words, _) = inputs[lane].as_chunks();
                        u64::from_le_bytes(words[word])
                    }));
                    *state = xor(*state, input);
                }
                permute(&mut lanes);
            }
            for (word, state) in lanes.into_iter().enumerate() {
                let values = scatter(state);
                for (job, value) in jobs.iter_mut().zip(values) {
                    job.state[word] = value;
                }
            }
        }

        /// Keccak-f[1600]; word x + 5y of the state is lane (x, y) of the standard.
        #[inline]
        #[target_feature(enable = $feature)]
        fn permute(a: &mut [Lanes; 25]) {
            for constant in ROUND_CONSTANTS {
                let column = |x: usize| {
                    let upper = xor(xor(a[x], a[x + 5]), a[x + 10]);
                    xor(xor(upper, a[x + 15]), a[x + 20])
                };
                let parity = [column(0), column(1), column(2), column(3), column(4)];
                for x in 0..5 {
                    let rotated = rotate::<1, 63>(parity[(x + 1) % 5]);
                    let change = xor(parity[(x + 4) % 5], rotated);
                    for y in 0..5 {
                        a[x + 5 * y] = xor(a[x + 5 * y], change);
                    }
                }
                rotate_and_move!(a;
                    10 1 63, 7 3 61, 11 6 58, 17 10 54, 18 15 49, 3 21 43, 5 28 36, 16 36 28, 8 45 19,
                    21 55 9, 24 2 62, 4 14 50, 15 27 37, 23 41 23, 19 56 8, 13 8 56, 12 25 39, 2 43 21,
                    20 62 2, 14 18 46, 22 39 25, 9 61 3, 6 20 44, 1 44 20);
                for y in 0..5 {
                    let row = [a[5 * y], a[5 * y + 1], a[5 * y + 2], a[5 * y + 3], a[5 * y + 4]];
                    for x in 0..5 {
                        a[5 * y + x] = choose(row[x], row[(x + 1) % 5], row[(x + 2) % 5]);
                    }
                }
                a[0] = xor(a[0], splat(constant));
            }
        }
    };
}

/// The steps rho and pi: along pi's one cycle of words, each rotated left by so much (and back by the rest).
#[cfg(target_arch = "x86_64")]
macro_rules! rotate_and_move {
    ($a:ident; $($word:literal $left:literal $right:literal),+) => {
        let mut moving = $a[1];
        $(
            let replaced = $a[$word];
            $a[$word] = rotate::<$left, $right>(moving);
            moving = replaced;
        )+
        let _ = moving;
    };
}

/// AVX-512.
#[cfg(target_arch = "x86_64")]
mod eight {
    use std::arch::x86_64::{
        __m512i, _mm512_rol_epi64, _mm512_set_epi64, _mm512_set1_epi64, _mm512_ternarylogic_epi64,
        _mm512_xor_si512,
    };

    use super::{Job, RATE_BYTES, ROUND_CONSTANTS};

    const LANES: usize = 8;
    type Lanes = __m512i;

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn gather(words: [u64; LANES]) -> Lanes {
        let w = words.map(u64::cast_signed);
        _mm512_set_epi64(w[7], w[6], w[5], w[4], w[3], w[2], w[1], w[0])
    }

    fn scatter(lanes: Lanes) -> [u64; LANES] {
        #[expect(unsafe_code, reason = "the standard library has no safe way")]
        // SAFETY: both are 64 bytes of which every value is valid.
        unsafe {
            std::mem::transmute(lanes)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn splat(word: u64) -> Lanes {
        _mm512_set1_epi64(word.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn xor(a: Lanes, b: Lanes) -> Lanes {
        _mm512_xor_si512(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn rotate<const LEFT: i32, const RIGHT: i32>(lanes: Lanes) -> Lanes {
        _mm512_rol_epi64::<LEFT>(lanes)
    }

    /// `a ^ (!b & c)`, whose truth table is 0xd2.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn choose(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        _mm512_ternarylogic_epi64::<0xd2>(a, b, c)
    }

    absorbing!("avx512f");
}

/// AVX2.
#[cfg(target_arch = "x86_64")]
mod four {
    use std::arch::x86_64::{
        __m256i, _mm256_andnot_si256, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi64x,
        _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256,
    };

    use super::{Job, RATE_BYTES, ROUND_CONSTANTS};

    const LANES: usize = 4;
    type Lanes = __m256i;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn gather(words: [u64; LANES]) -> Lanes {
        let w = words.map(u64::cast_signed);
        _mm256_set_epi64x(w[3], w[2], w[1], w[0])
    }

    fn scatter(lanes: Lanes) -> [u64; LANES] {
        #[expect(unsafe_code, reason = "the standard library has no safe way")]
        // SAFETY: both are 32 bytes of which every value is valid.
        unsafe {
            std::mem::transmute(lanes)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn splat(word: u64) -> Lanes {
        _mm256_set1_epi64x(word.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn xor(a: Lanes, b: Lanes) -> Lanes {
        _mm256_xor_si256(a, b)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn rotate<const LEFT: i32, const RIGHT: i32>(lanes: Lanes) -> Lanes {
        _mm256_or_si256(
            _mm256_slli_epi64::<LEFT>(lanes),
            _mm256_srli_epi64::<RIGHT>(lanes),
        )
    }

    /// `a ^ (!b & c)`
    #[inline]
    #[target_feature(enable = "avx2")]
    fn choose(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        _mm256_xor_si256(a, _mm256_andnot_si256(b, c))
    }

    absorbing!("avx2");
}
