//! Real clients in front of the layers: curl, wrk, reqwest and tonic. After whatever they do, nothing is in flight and nothing waits.

mod curl;
mod grpc;
mod reqwest;
mod server;
mod wrk;
