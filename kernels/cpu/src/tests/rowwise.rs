use super::support::{Rng, all_kernels, bits, scalar};
use crate::{KvLayout, KvType, Rotation};

#[test]
fn rms_norm_is_within_its_bound_of_f64_and_has_the_same_bits_everywhere() {
    let mut rng = Rng(10);
    for len in [1, 15, 16, 17, 576, 1000] {
        let (x, weight) = (rng.floats(len), rng.floats(len));
        let mut expected = vec![0.0; len];
        scalar().rms_norm(&x, &weight, 1e-5, &mut expected);
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len as f64;
        for i in 0..len {
            let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
            // A sixteenth of the squares and a tree of 4 levels, then a handful of operations.
            let bound = exact.abs() * (len / 16 + 12) as f64 * 2.0_f64.powi(-24);
            assert!((f64::from(expected[i]) - exact).abs() <= bound);
        }
        for kernels in all_kernels() {
            let mut out = vec![0.0; len];
            kernels.rms_norm(&x, &weight, 1e-5, &mut out);
            assert_eq!(bits(&out), bits(&expected));
        }
    }
}

#[test]
fn rotation_turns_the_right_pairs() {
    let mut rng = Rng(11);
    for pairs in [0, 1, 8, 17, 32] {
        let angles = rng.floats(pairs);
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        let head = rng.floats(2 * pairs);
        for rotation in [Rotation::Halves, Rotation::Pairs] {
            let mut expected = head.clone();
            scalar().rotate(rotation, &mut expected, &cos, &sin);
            for i in 0..pairs {
                let (a, b) = match rotation {
                    Rotation::Halves => (i, i + pairs),
                    Rotation::Pairs => (2 * i, 2 * i + 1),
                };
                let (x, y, c, s) = (
                    f64::from(head[a]),
                    f64::from(head[b]),
                    f64::from(cos[i]),
                    f64::from(sin[i]),
                );
                assert!((f64::from(expected[a]) - (x * c - y * s)).abs() < 2e-7);
                assert!((f64::from(expected[b]) - (y * c + x * s)).abs() < 2e-7);
            }
            for kernels in all_kernels() {
                let mut out = head.clone();
                kernels.rotate(rotation, &mut out, &cos, &sin);
                assert_eq!(bits(&out), bits(&expected));
            }
        }
    }
}

#[test]
fn stored_keys_and_values_lie_where_the_layout_says_and_round_to_nearest_even() {
    let (head_dim, block_size) = (21, 32);
    let mut rng = Rng(12);
    let mut k = rng.floats(head_dim);
    // Halfway between two f16 (and bf16) neighbours: ties go to even.
    k[..6].copy_from_slice(&[
        1.0 + 2.0_f32.powi(-11),
        1.0 + 3.0 * 2.0_f32.powi(-11),
        1e6,
        -1e-8,
        f32::NAN,
        f32::INFINITY,
    ]);
    let v = rng.floats(head_dim);
    for kv_type in [KvType::F32, KvType::F16, KvType::Bf16] {
        let layout = KvLayout::new(kv_type, 2, head_dim, block_size).unwrap();
        let encode = |x: f32| match kv_type {
            KvType::F32 => x.to_le_bytes().to_vec(),
            KvType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
            KvType::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        };
        for kernels in all_kernels() {
            for slot in [0, 15, 16, 31] {
                let mut head = vec![0xaa; layout.head_bytes()];
                kernels.store_kv(layout, &mut head, slot, &k, &v);
                let mut expected = vec![0xaa; layout.head_bytes()];
                let size = kv_type.value_bytes();
                for d in 0..head_dim {
                    let key = (d * block_size + slot) * size;
                    expected[key..key + size].copy_from_slice(&encode(k[d]));
                    let value = (head_dim * block_size + slot * head_dim + d) * size;
                    expected[value..value + size].copy_from_slice(&encode(v[d]));
                }
                assert_eq!(head, expected, "{kv_type:?} slot {slot} with {}", kernels.isa());
            }
        }
    }
}

#[test]
fn block_sizes_that_are_no_multiple_of_16_are_refused() {
    for block_size in [0, 1, 8, 17, 24] {
        assert!(KvLayout::new(KvType::F16, 1, 64, block_size).is_none());
    }
    assert!(KvLayout::new(KvType::F16, usize::MAX, 64, 16).is_none());
}
