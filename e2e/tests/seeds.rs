//! What holds for the property tests of all crates.

/// `.cargo/config.toml` gives it. Without one a test fails in one run and passes in the next, and a mutant survives in one run and not in the next.
#[test]
fn property_tests_are_given_a_seed() {
    let seed = std::env::var("PROPTEST_RNG_SEED");
    assert!(
        seed.as_ref().is_ok_and(|seed| seed.parse::<u64>().is_ok()),
        "PROPTEST_RNG_SEED is {seed:?} and not a number, so each run draws other cases"
    );
}
