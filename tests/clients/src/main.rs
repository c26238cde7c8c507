//! Real clients in front of the layers: curl, wrk, reqwest and tonic. Whatever a client does, in the end nothing is in flight and nothing
//! waits.

mod curl;
mod grpc;
mod programs;
mod reqwest;
mod server;
mod wrk;
