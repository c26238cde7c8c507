//! The three channels, the options of a request, and its answers.

pub(in crate::manager) mod answer;
pub(in crate::manager) mod in_channel;
pub(in crate::manager) mod out_channel;
pub(in crate::manager) mod release_channel;
pub(in crate::manager) mod request_options;
