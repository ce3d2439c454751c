//! Speed of single kernels on one thread, for tuning: `cargo run --release -p kvasir-kernels-cpu --example kernels --
//! [ISA]`.
//!
//! Every figure is the best of many runs that are shorter than a scheduler's tick, so that other work on the machine
//! disturbs little. 1 GB/s is packed bytes, 1 GFLOP/s two for every fused multiply-add.
#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::error::Error;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use kvasir_kernels_cpu::{
    AttentionScratch, AttentionTask, Gate, Isa, Kernels, KvLayout, KvType, MatmulScratch, MatmulTask, Packed,
    PackedLayout, Rows, WeightType,
};

fn main() -> Result<(), Box<dyn Error>> {
    let isa = std::env::args()
        .nth(1)
        .map_or_else(|| Ok(Isa::detect()), |isa| isa.parse())?;
    let kernels = Kernels::new(isa).ok_or("this CPU lacks the instruction set")?;
    println!("{isa}");
    println!(
        "{:>6} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "type", "1 row", "2 rows", "8 rows", "64 rows", "256 rows"
    );
    for weight_type in WeightType::ALL {
        products(kernels, weight_type)?;
    }
    attention(kernels)?;
    activation(kernels);
    Ok(())
}

fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(150) {
        let started = Instant::now();
        run();
        best = best.min(started.elapsed().as_secs_f64());
    }
    best
}

fn products(kernels: Kernels, weight_type: WeightType) -> Result<(), Box<dyn Error>> {
    let (outputs, cols) = (1536, 768);
    let layout = PackedLayout::new(weight_type, outputs, cols).ok_or("a size that fits")?;
    // Zeros are as fast as any weights: nothing depends on values.
    let data = vec![0; layout.bytes()];
    let weights = Packed::new(layout, &data).ok_or("the layout's size")?;
    let x = vec![1.0_f32; 256 * cols];
    let mut scratch = MatmulScratch::default();
    let mut figures = String::new();
    for num_rows in [1, 2, 8, 64, 256] {
        // A quarter of the panels keeps long runs short.
        let panels = 0..if num_rows > 8 { 16 } else { layout.num_panels() };
        let share = panels.len() as f64 / layout.num_panels() as f64;
        let seconds = best(|| {
            kernels.matmul(MatmulTask {
                weights,
                panels: panels.clone(),
                x: Rows {
                    data: &x,
                    stride: cols,
                    num_rows,
                },
                scratch: &mut scratch,
                sink: &mut |_, _, values| {
                    std::hint::black_box(values);
                },
            });
        });
        let flops = 2.0 * (outputs * cols * num_rows) as f64 * share;
        let figure = if num_rows == 1 {
            format!("{:.1} GB/s", layout.bytes() as f64 * share / seconds / 1e9)
        } else {
            format!("{:.1} GF", flops / seconds / 1e9)
        };
        write!(figures, " {figure:>10}")?;
    }
    println!("{:>6}{figures}", format!("{weight_type:?}"));
    Ok(())
}

fn attention(kernels: Kernels) -> Result<(), Box<dyn Error>> {
    let (head_dim, group, block_size, context) = (64, 3, 16, 1024);
    let layout = KvLayout::new(KvType::F16, 1, head_dim, block_size).ok_or("a size that fits")?;
    let kv = vec![0_u8; context / block_size * layout.block_bytes()];
    let width = group * head_dim;
    for num_rows in [1, 16] {
        let q = vec![1.0_f32; num_rows * width];
        let mut scratch = AttentionScratch::default();
        let seconds = best(|| {
            let task = AttentionTask {
                layout,
                kv: &kv,
                kv_head: 0,
                block_of: &|index| index,
                q: Rows {
                    data: &q,
                    stride: width,
                    num_rows,
                },
                first_q: 0,
                num_heads: group,
                first_position: context - num_rows,
                scale: 0.125,
                window: None,
            };
            kernels.attention(task, &mut scratch, &mut |_, values| {
                std::hint::black_box(values);
            });
        });
        let flops = 4.0 * (context * width * num_rows) as f64;
        println!(
            "attention of {num_rows} rows over {context}: {:.1} us, {:.1} GB/s of K and V, {:.1} GFLOP/s",
            seconds * 1e6,
            kv.len() as f64 / seconds / 1e9,
            flops / seconds / 1e9
        );
    }
    Ok(())
}

fn activation(kernels: Kernels) {
    let (gates, ups, mut out) = (vec![0.5; 1536], vec![1.0; 1536], vec![0.0; 1536]);
    let seconds = best(|| kernels.gated_activation(Gate::Silu, &gates, &ups, &mut out));
    println!("silu: {:.2} ns a value", seconds * 1e9 / 1536.0);
    let seconds = best(|| kernels.rms_norm(&gates, &ups, 1e-5, &mut out));
    println!("rms_norm: {:.2} ns a value", seconds * 1e9 / 1536.0);
}
