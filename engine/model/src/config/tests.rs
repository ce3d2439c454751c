//! Tests of the configuration readers.
