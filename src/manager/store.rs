//! The parts of a manager whose limits are in a store.

mod at_store;
mod carrier;
mod kept_keys;
mod link;

pub(crate) use link::StoreLink;
