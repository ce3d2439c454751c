use super::support::{Rng, all_kernels, bits};
use crate::math::exp;
use crate::simd::{LANES, Simd, Task};
use crate::{Gate, Kernels};

struct Exp<'a>(&'a mut [f32; LANES]);

impl Task for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        s.store(exp(s, s.load(self.0)), self.0);
    }
}

fn exps(kernels: Kernels, x: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    for lanes in out.as_chunks_mut::<LANES>().0 {
        kernels.run(Exp(lanes));
    }
    out
}

/// From -110 to 95 in steps that hit every exponent of the result, and some random ones.
fn arguments() -> Vec<f32> {
    let mut rng = Rng(7);
    let even = (0..200_000).map(|i| i as f32 * (205.0 / 200_000.0) - 110.0);
    let small = (0..9_600).map(|_| rng.float());
    even.chain(small).collect()
}

#[test]
fn exp_is_within_its_bound_of_f64() {
    let x = arguments();
    for kernels in all_kernels() {
        let worst = x
            .iter()
            .zip(exps(kernels, &x))
            .filter(|(x, _)| (-87.3..88.7).contains(*x))
            .map(|(x, y)| (f64::from(y) / f64::from(*x).exp() - 1.0).abs())
            .fold(0.0, f64::max);
        assert!(
            worst < 2.0_f64.powf(-22.5),
            "relative error {worst:e} with {}",
            kernels.isa()
        );
        for (x, y) in x.iter().zip(exps(kernels, &x)).filter(|(x, _)| **x <= -87.3) {
            let error = (f64::from(y) - f64::from(*x).exp()).abs();
            assert!(error <= 2.0_f64.powi(-149), "exp({x}) = {y:e}");
        }
    }
}

#[test]
fn exp_has_its_limits() {
    let x = [
        f32::NEG_INFINITY,
        f32::MIN,
        -104.5,
        -0.0,
        0.0,
        88.8,
        1e30,
        f32::INFINITY,
        f32::NAN,
        1.0,
        88.72,
        -103.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ];
    for kernels in all_kernels() {
        let y = exps(kernels, &x);
        assert_eq!(
            &y[..8],
            &[
                0.0,
                0.0,
                0.0,
                1.0,
                1.0,
                f32::INFINITY,
                f32::INFINITY,
                f32::INFINITY
            ]
        );
        assert!(y[8].is_nan());
        assert!((y[9] - std::f32::consts::E).abs() <= f32::EPSILON * 2.0);
        assert!(
            y[10].is_finite() && y[11] > 0.0,
            "the ends of the range are not cut off"
        );
    }
}

#[test]
fn exp_has_the_same_bits_with_every_instruction_set() {
    let x = arguments();
    let [scalar, others @ ..] = &all_kernels()[..] else {
        unreachable!("scalar runs everywhere")
    };
    let expected = bits(&exps(*scalar, &x));
    for kernels in others {
        assert_eq!(bits(&exps(*kernels, &x)), expected);
    }
}

fn gated(kernels: Kernels, gate: Gate, gates: &[f32], ups: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; gates.len()];
    kernels.gated_activation(gate, gates, ups, &mut out);
    out
}

#[test]
fn gated_activations_are_within_their_bound_of_f64() {
    let x: Vec<f32> = (-2000..2000).map(|i| i as f32 / 50.0).collect();
    let ups = Rng(8).floats(x.len());
    for (gate, reference) in [(Gate::Silu, silu as fn(f64) -> f64), (Gate::GeluTanh, gelu_tanh)] {
        for (i, y) in gated(super::support::scalar(), gate, &x, &ups)
            .into_iter()
            .enumerate()
        {
            let expected = reference(f64::from(x[i])) * f64::from(ups[i]);
            // The exponent has a relative error of a few units of 2^-24, which e^z multiplies by up to |z| < 90.
            let bound = expected.abs() * 400.0 * 2.0_f64.powi(-24) + 1e-37;
            assert!(
                (f64::from(y) - expected).abs() <= bound,
                "{gate:?}({}) = {y} not {expected}",
                x[i]
            );
        }
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
    // 1 + tanh(u) in the form that doesn't cancel.
    x / (1.0 + (-2.0 * u).exp())
}

#[test]
fn gated_activations_have_the_same_bits_with_every_instruction_set_and_length() {
    let mut rng = Rng(9);
    for len in [0, 1, 15, 16, 17, 100] {
        let gates: Vec<f32> = rng.floats(len).iter().map(|x| x * 30.0).collect();
        let ups = rng.floats(len);
        for gate in [Gate::Silu, Gate::GeluTanh] {
            let expected = bits(&gated(super::support::scalar(), gate, &gates, &ups));
            for kernels in all_kernels() {
                assert_eq!(bits(&gated(kernels, gate, &gates, &ups)), expected);
            }
        }
    }
}
