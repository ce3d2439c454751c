//! The edge against a scripted engine: every route, every error, streams, disconnects, hostile input.

mod access;
mod answers;
mod disconnects;
mod errors;
mod hostile;
mod probes;
mod serving;
mod stops;
mod streams;
mod support;
