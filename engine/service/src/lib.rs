//! The engine as a service: scheduler thread, in-process client and gRPC server.
