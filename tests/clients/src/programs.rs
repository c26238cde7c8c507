//! Programs of a first hour with crates that only these tests have. The others are in `tests/integration/programs`.

mod grpc;
