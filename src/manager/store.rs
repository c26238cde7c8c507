//! What a manager does whose limits are in a store.

mod at_store;
mod carrier;
mod heartbeat;
mod kept_keys;
mod link;
mod on_drop;

pub(crate) use link::StoreLink;
