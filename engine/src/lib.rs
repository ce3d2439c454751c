//! Kvasir serves large language models: engine, edge and command line.
