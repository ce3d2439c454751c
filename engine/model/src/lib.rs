//! Transformer families written once over Backend; implements Executor.
