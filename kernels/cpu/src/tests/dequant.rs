use super::support::{Matrix, Rng, all_kernels};
use crate::{PackedLayout, WeightType};

const GOLDENS: &str = include_str!("../../../../e2e/golden/dequant_goldens.txt");

struct Golden {
    weight_type: WeightType,
    rows: usize,
    cols: usize,
    blocks: Vec<u8>,
    digest: u64,
}

fn goldens() -> Vec<Golden> {
    let parse = |line: &str| {
        let fields: Vec<_> = line.split(' ').collect();
        let hex = fields[3]
            .as_bytes()
            .chunks(2)
            .map(|pair| str::from_utf8(pair).unwrap());
        Golden {
            weight_type: weight_type(fields[0]),
            rows: fields[1].parse().unwrap(),
            cols: fields[2].parse().unwrap(),
            blocks: hex.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect(),
            digest: u64::from_str_radix(fields[4], 16).unwrap(),
        }
    };
    GOLDENS.lines().map(parse).collect()
}

fn weight_type(name: &str) -> WeightType {
    let name = name.replace("_K", "K").to_lowercase();
    WeightType::ALL
        .into_iter()
        .find(|kind| format!("{kind:?}").to_lowercase() == name)
        .unwrap()
}

fn fnv1a(weights: impl Iterator<Item = f32>) -> u64 {
    let bytes = weights.flat_map(f32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn the_goldens_have_every_weight_type() {
    let mut found: Vec<_> = goldens().iter().map(|golden| golden.weight_type).collect();
    found.sort_by_key(|kind| WeightType::ALL.iter().position(|other| other == kind));
    assert_eq!(found, WeightType::ALL);
}

#[test]
fn weights_are_bit_equal_to_the_references_in_every_lane() {
    for golden in goldens() {
        // The golden rows, again and again, so that each comes to lie in many lanes of several panels.
        let copies = 15;
        let source = golden.blocks.repeat(copies);
        let matrix = Matrix::pack(golden.weight_type, golden.rows * copies, golden.cols, &source);
        for kernels in all_kernels() {
            for copy in 0..copies {
                let rows = copy * golden.rows..(copy + 1) * golden.rows;
                let digest = fnv1a(rows.flat_map(|row| matrix.row(kernels, row)));
                assert_eq!(
                    digest,
                    golden.digest,
                    "{:?} copy {copy} with {}",
                    golden.weight_type,
                    kernels.isa()
                );
            }
        }
    }
}

#[test]
fn every_instruction_set_dequantizes_plain_rows_of_any_length() {
    let mut rng = Rng(1);
    for weight_type in [WeightType::F32, WeightType::F16, WeightType::Bf16] {
        for cols in [0, 1, 15, 16, 17, 255, 256, 257] {
            let source = rng.weights(weight_type, 2, cols);
            let matrix = Matrix::pack(weight_type, 2, cols, &source);
            for kernels in all_kernels() {
                let size = weight_type.block_bytes();
                let expected: Vec<f32> = source[cols * size..]
                    .chunks(size)
                    .map(|x| plain(weight_type, x))
                    .collect();
                assert_eq!(matrix.row(kernels, 1), expected);
            }
        }
    }
}

fn plain(weight_type: WeightType, bytes: &[u8]) -> f32 {
    match weight_type {
        WeightType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        WeightType::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    }
}

#[test]
fn packed_matrices_stay_near_the_files_size() {
    for (weight_type, limit) in [
        (WeightType::F32, 1.0),
        (WeightType::F16, 1.0),
        (WeightType::Bf16, 1.0),
        (WeightType::Q4_0, 1.0),
        (WeightType::Q4_1, 1.0),
        (WeightType::Q5_0, 1.55),
        (WeightType::Q5_1, 1.5),
        (WeightType::Q8_0, 1.0),
        (WeightType::Q2K, 1.2),
        (WeightType::Q3K, 1.35),
        (WeightType::Q4K, 1.03),
        (WeightType::Q5K, 1.6),
        (WeightType::Q6K, 1.32),
    ] {
        let layout = PackedLayout::new(weight_type, 64, 1024).unwrap();
        let ratio = layout.bytes() as f64 / (64 * layout.source_row_bytes()) as f64;
        assert!(ratio <= limit, "{weight_type:?}: {ratio}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert!(PackedLayout::new(WeightType::Q4_0, 16, 33).is_none());
    assert!(PackedLayout::new(WeightType::Q4K, 16, 128).is_none());
    assert!(PackedLayout::new(WeightType::F32, usize::MAX, 2).is_none());
    assert!(PackedLayout::new(WeightType::F32, 1, usize::MAX / 8).is_none());
    assert!(PackedLayout::new(WeightType::Q8_0, usize::MAX, 32).is_none());
}
