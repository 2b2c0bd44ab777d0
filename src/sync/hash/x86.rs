//! Keccak-f[1600] of several states at once, one in each 64-bit lane of wide registers, and of one state.
//!
//! [`kernels`] returns what the processor supports of AVX-512 (8 lanes), AVX2 (4) and BMI (1). Compilers do not produce
//! this from plain code, so each module uses the intrinsics of its instruction set, and `absorbing!` adds the rounds.
//! `absorb` panics if there are more jobs than lanes.
//!
//! Source: FIPS 202, section 3; several states in parallel as in `KeccakP-1600-times4` and `times8` of the XKCP.

use super::Kernel;

/// The kernels that this processor supports, the widest first.
pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
    let avx512 = is_x86_feature_detected!("avx512f").then_some(Kernel {
        lanes: 8,
        absorb: avx512::absorb_detected,
    });
    let avx2 = is_x86_feature_detected!("avx2").then_some(Kernel {
        lanes: 4,
        absorb: avx2::absorb_detected,
    });
    let has_bmi = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
    let bmi = has_bmi.then_some(Kernel {
        lanes: 1,
        absorb: bmi::absorb_detected,
    });
    [avx512, avx2, bmi].into_iter().flatten()
}

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

/// Defines `absorb` for a module that has `LANES`, the register type `Lanes` of that many lanes, and operations on it.
macro_rules! absorbing {
    ($feature:literal) => {
        pub(super) fn absorb_detected(jobs: &mut [Job<'_>], blocks: usize) {
            #[expect(unsafe_code, reason = "code for a feature of the processor")]
            // SAFETY: `kernels` returns a kernel only if the processor has the feature.
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
            // Lanes without a job repeat the first job; their results are dropped.
            let mut job_bytes: [&[u8]; LANES] = [&[]; LANES];
            for (lane, job) in jobs.iter_mut().enumerate() {
                job_bytes[lane] = job.take(blocks);
            }
            let first = job_bytes[0];
            for unused in &mut job_bytes[jobs.len()..] {
                *unused = first;
            }
            for block in 0..blocks {
                let inputs: [&[u8; RATE_BYTES]; LANES] = std::array::from_fn(|lane| {
                    let (lane_blocks, _) = job_bytes[lane].as_chunks();
                    &lane_blocks[block]
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

        /// Keccak-f[1600].
        #[inline]
        #[target_feature(enable = $feature)]
        fn permute(a: &mut [Lanes; 25]) {
            // Two rounds in each iteration save moves of the state.
            for pair in 0..ROUND_CONSTANTS.len() / 2 {
                round!(a, ROUND_CONSTANTS[2 * pair]);
                round!(a, ROUND_CONSTANTS[2 * pair + 1]);
            }
        }
    };
}

/// One round; word x + 5y of the state is lane (x, y) of the standard.
macro_rules! round {
    ($a:ident, $constant:expr) => {
        let parity = [
            column!($a, 0 5 10 15 20),
            column!($a, 1 6 11 16 21),
            column!($a, 2 7 12 17 22),
            column!($a, 3 8 13 18 23),
            column!($a, 4 9 14 19 24),
        ];
        let mut change = parity;
        for x in 0..5 {
            change[x] = xor(parity[(x + 4) % 5], rotate::<1, 63>(parity[(x + 1) % 5]));
        }
        // For each new row: the source of each word, and its rotation to the left and to the right.
        let rows = [
            moved!($a, change; 0 0 64, 6 44 20, 12 43 21, 18 21 43, 24 14 50),
            moved!($a, change; 3 28 36, 9 20 44, 10 3 61, 16 45 19, 22 61 3),
            moved!($a, change; 1 1 63, 7 6 58, 13 25 39, 19 8 56, 20 18 46),
            moved!($a, change; 4 27 37, 5 36 28, 11 10 54, 17 15 49, 23 56 8),
            moved!($a, change; 2 62 2, 8 55 9, 14 39 25, 15 41 23, 21 2 62),
        ];
        for (y, row) in rows.into_iter().enumerate() {
            for x in 0..5 {
                $a[5 * y + x] = choose(row[x], row[(x + 1) % 5], row[(x + 2) % 5]);
            }
        }
        $a[0] = xor($a[0], splat($constant));
    };
}

macro_rules! column {
    ($a:ident, $first:literal $second:literal $third:literal $fourth:literal $fifth:literal) => {
        xor(
            xor(xor(xor($a[$first], $a[$second]), $a[$third]), $a[$fourth]),
            $a[$fifth],
        )
    };
}

/// A row after the steps theta, rho and pi: source words, each rotated left by `$left`; `$right` is 64 minus that.
macro_rules! moved {
    ($a:ident, $change:ident; $($word:literal $left:literal $right:literal),+) => {
        [$(rotate::<$left, $right>(xor($a[$word], $change[$word % 5]))),+]
    };
}

/// AVX-512.
mod avx512 {
    use std::arch::x86_64::{
        __m512i, _mm512_rol_epi64, _mm512_set_epi64, _mm512_set1_epi64, _mm512_ternarylogic_epi64,
        _mm512_xor_si512,
    };

    use super::super::{Job, RATE_BYTES};
    use super::ROUND_CONSTANTS;

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
        // SAFETY: both types have 64 bytes, and every value of these is valid.
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
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_andnot_si256, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi64x,
        _mm256_slli_epi64, _mm256_srli_epi64, _mm256_xor_si256,
    };

    use super::super::{Job, RATE_BYTES};
    use super::ROUND_CONSTANTS;

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
        // SAFETY: both types have 32 bytes, and every value of these is valid.
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

/// The general registers, with BMI.
mod bmi {
    use super::super::{Job, RATE_BYTES};
    use super::ROUND_CONSTANTS;

    const LANES: usize = 1;
    type Lanes = u64;

    #[inline]
    fn gather([word]: [u64; LANES]) -> Lanes {
        word
    }

    #[inline]
    fn scatter(lanes: Lanes) -> [u64; LANES] {
        [lanes]
    }

    #[inline]
    fn splat(word: u64) -> Lanes {
        word
    }

    #[inline]
    fn xor(a: Lanes, b: Lanes) -> Lanes {
        a ^ b
    }

    #[inline]
    fn rotate<const LEFT: u32, const RIGHT: u32>(lanes: Lanes) -> Lanes {
        lanes.rotate_left(LEFT)
    }

    #[inline]
    #[target_feature(enable = "bmi1,bmi2")]
    fn choose(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        a ^ (!b & c)
    }

    absorbing!("bmi1,bmi2");
}
