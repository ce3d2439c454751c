//! Simulated requests per second; `e2e/bench/README.md` has figures.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvasir_sim::{
    Arrivals, Engines, Lengths, Objectives, Pause, SharedPrefix, Span, Synthetic, Workload, simulate,
};

const NUM_REQUESTS: u64 = 10_000;

/// With room for all clients.
fn engines() -> Engines {
    let mut engines = Engines::default();
    engines.limits.num_blocks = 20_000;
    engines
}

/// 128 clients, so that every step is full.
fn clients(prompts: &str, outputs: &str, shared: Option<SharedPrefix>) -> Workload {
    let lengths = |text: &str| text.parse::<Lengths>().expect("it is a length");
    Workload::Synthetic(Synthetic {
        arrivals: Arrivals::Clients {
            count: 128,
            pause: Pause::Fixed(0.0),
            ramp_seconds: 0.0,
        },
        prompts: lengths(prompts),
        outputs: lengths(outputs),
        shared_prefix: shared,
        ..Synthetic::default()
    })
}

fn requests(criterion: &mut Criterion) {
    let shared = SharedPrefix {
        groups: 16,
        tokens: 512,
    };
    let workloads = [
        ("prompt_256_output_128", clients("256", "128", None)),
        ("prompt_1024_output_32", clients("1024", "32", None)),
        (
            "lognormal",
            clients("lognormal:200:1:4000", "lognormal:100:1:2000", None),
        ),
        (
            "shared_512_prompt_64_output_64",
            clients("64", "64", Some(shared)),
        ),
    ];
    let span = Span {
        num_requests: Some(NUM_REQUESTS),
        ..Span::default()
    };
    let mut group = criterion.benchmark_group("simulated_requests");
    group
        .sample_size(10)
        .throughput(Throughput::Elements(NUM_REQUESTS));
    for (name, workload) in workloads {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let report = simulate(&engines(), &workload, &span, &Objectives::default());
                black_box(report.expect("the workload can be played"))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, requests);
criterion_main!(benches);
